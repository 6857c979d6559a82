//! Verifies tokens: JWT (RFC 7519) signed with HS256, RS256, ES256 or EdDSA (RFC 7518 section 3, RFC 8037).
//!
//! Invariants: each key is bound to one algorithm, and verifies only tokens that name this algorithm, so that a public key never serves as
//! an HMAC secret. `none` is no algorithm. Keys that a token itself contains or names (`jwk`, `jku`, `x5c`) are ignored.

use std::path::Path;
use std::sync::Arc;

use crore_broker::Reason;
use crore_broker::access::{Revoked, TokenIssue, VerifiedClient};
use jsonwebtoken::{Algorithm, DecodingKey, crypto};
use serde_json::{Map, Value};

use super::algorithm::{FILE_BYTES_MAX, Key, algorithm, not_offered};
use super::jwt::part;
use super::remote_keys::RemoteKeys;
use super::revocations::token_id;
use super::{claims, jwks, public, secret};
use crate::settings::access::{Access, Key as Entry};

/// The remedy for an entry with no source of a key, or with several.
const ONE_SOURCE: &str =
    "write one of `file` (a secret, a PEM or a JWKS file), `secret` and `url` (a JWKS)";

/// All keys, and the claims that tokens must have.
#[derive(Default)]
pub struct Keys {
    /// Keys in the settings and in the files that they name.
    own: Vec<Key>,
    /// Keys that are fetched from URLs.
    remote: Vec<RemoteKeys>,
    audience: String,
    issuer: String,
    leeway_s: u64,
}

impl Keys {
    /// Reads the keys that the settings name. Adds faults to `errors`, each with the path of the settings key.
    pub fn read(access: &Access, errors: &mut Vec<(String, String)>) -> Keys {
        let (mut own, mut remote) = (Vec::new(), Vec::new());
        for (index, entry) in access.keys.iter().enumerate() {
            let read = match entry.url.is_empty() {
                true => read_entry(entry).map(|keys| own.extend(keys)),
                false => read_remote_entry(entry).map(|keys| remote.push(keys)),
            };
            if let Err((key, message)) = read {
                errors.push((format!("access.key[{}]{key}", index + 1), message));
            }
        }
        Keys {
            own,
            remote,
            audience: access.audience.clone(),
            issuer: access.issuer.clone(),
            leeway_s: u64::from(access.leeway_s),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.own.is_empty() && self.remote.is_empty()
    }

    /// Starts the threads that fetch keys from URLs. Each thread calls `fetched` after a fetch. If `former` has the same entry, the entry
    /// uses the keys from there until its first fetch succeeds.
    pub fn start(
        &self,
        former: &Keys,
        fetched: impl Fn() + Clone + Send + 'static,
    ) -> std::io::Result<()> {
        let start = |remote: &RemoteKeys| remote.start(&former.remote, fetched.clone());
        self.remote.iter().try_for_each(start)
    }

    /// Fetches the keys of all URLs once, for a command. Blocks.
    pub fn fetch(&self) {
        self.remote.iter().for_each(RemoteKeys::fetch);
    }

    /// Whether a fetch is due or in progress.
    pub fn is_pending(&self) -> bool {
        self.remote.iter().any(RemoteKeys::is_pending)
    }

    /// Requests newer keys if this refused token names an unknown `kid`. Returns true if a fetch is due or in progress. Then the token must
    /// be verified again after the fetch.
    pub fn request_newer(&self, token: &[u8]) -> bool {
        if self.remote.is_empty() {
            return false;
        }
        let header = header(token);
        let kid = header.as_ref().and_then(|it| it.get("kid")?.as_str());
        let is_known = |key: &Key| key.kid.is_some() && key.kid.as_deref() == kid;
        let has_it = |remote: &RemoteKeys| remote.keys().iter().any(is_known);
        if self.own.iter().any(is_known) || self.remote.iter().any(has_it) {
            return false;
        }
        // `any` would stop at the first URL with a request, but each URL must be asked.
        let requested = self.remote.iter().map(RemoteKeys::request);
        requested.fold(false, |any, requested| any | requested)
    }

    /// The user and the rights of a token that is valid at this Unix second.
    pub fn verify(&self, token: &[u8], now_unix_s: u64) -> Result<VerifiedClient, Reason> {
        let header = header(token).ok_or(Reason::CredentialsMalformed)?;
        // RFC 7515 section 4.1.11: a token with extensions that we do not know must be refused.
        if header.contains_key("crit") {
            return Err(Reason::CredentialsMalformed);
        }
        let text = |name| header.get(name).and_then(Value::as_str);
        let alg = algorithm(text("alg").ok_or(Reason::CredentialsMalformed)?);
        let of_alg = |key: &&Key| Some(key.algorithm) == alg;
        let sets: Vec<_> = self.remote.iter().map(RemoteKeys::keys).collect();
        let keys = || {
            self.own
                .iter()
                .chain(sets.iter().flat_map(|set| set.iter()))
        };
        let refused = |reason| match self.remote.iter().any(RemoteKeys::is_unknown) {
            true => Err(Reason::VerifierUnreachable),
            false => Err(reason),
        };
        if !keys().any(|key| of_alg(&key)) {
            return refused(Reason::TokenAlgorithm);
        }
        let of_kid = |key: &&Key| match (text("kid"), &key.kid) {
            (Some(wanted), Some(kid)) => wanted == kid,
            _ => true,
        };
        let mut fitting = keys().filter(of_kid).filter(of_alg);
        if !fitting.any(|key| is_signed(token, key)) {
            return refused(Reason::TokenSignature);
        }
        // This is checked only after the signature: the issuer has then signed this text, so a fault in the text is the issuer's.
        jsonwebtoken::decode_header(token).map_err(|_| Reason::CredentialsMalformed)?;
        self.known(
            token,
            &part(token, 1).ok_or(Reason::TokenClaims)?,
            now_unix_s,
        )
    }

    /// The user and the rights of a token whose signature is verified.
    fn known(
        &self,
        token: &[u8],
        claims: &Map<String, Value>,
        now_unix_s: u64,
    ) -> Result<VerifiedClient, Reason> {
        let moment = |name| claims::unix_time(claims, name).map_err(|_| Reason::TokenClaims);
        let end = moment("exp")?.map(|end| end.saturating_add(self.leeway_s));
        if end.is_some_and(|end| end <= now_unix_s) {
            return Err(Reason::TokenExpired);
        }
        let begin = moment("nbf")?.unwrap_or(0);
        if begin > now_unix_s.saturating_add(self.leeway_s) {
            return Err(Reason::TokenNotYet);
        }
        let claim_is = |name: &str, wanted: &str| match claims.get(name) {
            _ if wanted.is_empty() => true,
            Some(Value::String(value)) => value == wanted,
            Some(Value::Array(values)) => values.iter().any(|value| value == wanted),
            _ => false,
        };
        if !claim_is("aud", &self.audience) || !claim_is("iss", &self.issuer) {
            return Err(Reason::TokenForOthers);
        }
        let grants = claims::grants(claims, "sub").map_err(|_| Reason::TokenClaims)?;
        let issued = claims.get("iat").and_then(Value::as_f64).unwrap_or(0.0);
        let grants = grants.with_issue(TokenIssue {
            token: Revoked::token_number(token_id(token, claims).as_bytes()),
            // `u32::MAX` is reserved: a revocation of a user without `issued_before` has this value, which must be later than every `iat`.
            issued_unix_s: (issued as u32).min(u32::MAX - 1),
        });
        Ok(VerifiedClient {
            grants: Arc::new(grants),
            until_unix_s: end.map_or(u32::MAX, |end| u32::try_from(end).unwrap_or(u32::MAX)),
        })
    }
}

/// The members of a token's header, without verifying the token.
pub fn header(token: &[u8]) -> Option<Map<String, Value>> {
    part(token, 0)
}

/// Whether this key has signed the token.
fn is_signed(token: &[u8], key: &Key) -> bool {
    let point = token.iter().rposition(|byte| *byte == b'.');
    let (message, signature) = token.split_at(point.unwrap_or_default());
    let signature = std::str::from_utf8(signature.get(1..).unwrap_or_default()).unwrap_or_default();
    crypto::verify(signature, message, &key.key, key.algorithm).unwrap_or(false)
}

type ReadError = (&'static str, String);

/// The keys of an entry with a `url`.
fn read_remote_entry(entry: &Entry) -> Result<RemoteKeys, ReadError> {
    if entry.file.is_some() || entry.secret.is_some() {
        return Err(("", ONE_SOURCE.to_string()));
    }
    RemoteKeys::new(entry)
}

/// The keys of an entry with a secret or a file: one key, or the keys of a JWKS.
fn read_entry(entry: &Entry) -> Result<Vec<Key>, ReadError> {
    let bytes = match (&entry.file, &entry.secret) {
        (Some(path), None) => {
            read_file(path).map_err(|error| (".file", format!("{}: {error}", path.display())))?
        }
        (None, Some(secret)) => secret.0.clone().into_bytes(),
        _ => {
            return Err(("", ONE_SOURCE.to_string()));
        }
    };
    let algorithm = match entry.alg.as_str() {
        "" => None,
        name => Some(algorithm(name).ok_or_else(|| (".alg", not_offered(name)))?),
    };
    let kid = (!entry.kid.is_empty()).then(|| entry.kid.clone());
    if entry.file.is_some() && is_json(&bytes) {
        let text = secret::without_byte_order_mark(&bytes);
        return jwks::keys(text, algorithm, kid.as_deref()).map_err(|message| (".file", message));
    }
    if algorithm.is_none() && secret::is_utf16(&bytes) {
        return Err((".file", secret::UTF16_ERROR.to_string()));
    }
    let names = "HS256 for a secret, RS256, ES256 or EdDSA for a public key";
    let algorithm = algorithm.ok_or_else(|| (".alg", format!("is missing; write {names}")))?;
    let place = if entry.file.is_some() {
        ".file"
    } else {
        ".secret"
    };
    let key = match (algorithm, &entry.secret) {
        (Algorithm::HS256, Some(_)) => {
            secret::check(&bytes).map(|()| DecodingKey::from_secret(&bytes))
        }
        (Algorithm::HS256, None) => secret::parse(&bytes).map(DecodingKey::from_secret),
        _ => public::from_pem(algorithm, &bytes),
    };
    let key = key.map_err(|message| (place, message))?;
    Ok(vec![Key {
        kid,
        algorithm,
        key,
    }])
}

/// Whether a file is JSON, so that it is read as a JWKS.
pub fn is_json(file: &[u8]) -> bool {
    secret::without_byte_order_mark(file)
        .trim_ascii_start()
        .first()
        == Some(&b'{')
}

/// Reads a file of keys.
pub fn read_file(path: &Path) -> Result<Vec<u8>, String> {
    let length = std::fs::metadata(path)
        .map_err(|error| error.to_string())?
        .len();
    if length > FILE_BYTES_MAX {
        return Err(format!(
            "{length} bytes are too many for keys; at most {FILE_BYTES_MAX}"
        ));
    }
    std::fs::read(path).map_err(|error| error.to_string())
}
