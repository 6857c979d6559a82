//! Makes keys and tokens for the tests, valid ones and every kind of invalid ones. Tests which tokens the server accepts.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PKCS_ED25519, PKCS_RSA_SHA256, PublicKeyData};
use serde_json::{Value, json};

use crate::support::Server;
use crate::support::http::once;

/// The secret of the HS256 key.
pub const SECRET: &str = "0123456789abcdef0123456789abcdef";

/// A key pair, with the public half in a file.
pub struct Pair {
    pub algorithm: Algorithm,
    pub name: &'static str,
    pair: KeyPair,
    public: PathBuf,
}

fn directory() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

impl Pair {
    fn new(
        algorithm: Algorithm,
        name: &'static str,
        key_algorithm: &'static rcgen::SignatureAlgorithm,
    ) -> Pair {
        let pair = KeyPair::generate_for(key_algorithm).expect("a key pair");
        let public = directory().join(format!("access-{}-{name}", std::process::id()));
        let text = match name {
            // The key is in a JWKS file, which is the third form of a key setting.
            "EdDSA" => {
                let x = URL_SAFE_NO_PAD.encode(pair.der_bytes());
                let key =
                    json!({"kty": "OKP", "crv": "Ed25519", "kid": "ed", "use": "sig", "x": x});
                let other = json!({"kty": "RSA", "use": "enc", "n": "AQAB", "e": "AQAB"});
                json!({ "keys": [other, key] }).to_string()
            }
            _ => pair.public_key_pem(),
        };
        std::fs::write(&public, text).expect("a key file");
        Pair {
            algorithm,
            name,
            pair,
            public,
        }
    }

    pub fn signs(&self) -> EncodingKey {
        let pem = self.pair.serialize_pem();
        let read = match self.algorithm {
            Algorithm::RS256 => EncodingKey::from_rsa_pem(pem.as_bytes()),
            Algorithm::ES256 => EncodingKey::from_ec_pem(pem.as_bytes()),
            _ => EncodingKey::from_ed_pem(pem.as_bytes()),
        };
        read.expect("a private key")
    }

    pub fn public_pem(&self) -> String {
        self.pair.public_key_pem()
    }
}

/// The keys that the server knows.
pub static PAIRS: LazyLock<[Pair; 3]> = LazyLock::new(|| {
    [
        Pair::new(Algorithm::RS256, "RS256", &PKCS_RSA_SHA256),
        Pair::new(Algorithm::ES256, "ES256", &PKCS_ECDSA_P256_SHA256),
        Pair::new(Algorithm::EdDSA, "EdDSA", &PKCS_ED25519),
    ]
});

/// The settings that name the keys.
pub fn key_settings() -> String {
    let mut text = format!("[[access.key]]\nalg = 'HS256'\nkid = 'hs'\nsecret = '{SECRET}'\n");
    for pair in PAIRS.iter() {
        let alg = match pair.name {
            "EdDSA" => String::new(),
            name => format!("alg = '{name}'\n"),
        };
        text += &format!("[[access.key]]\n{alg}file = '{}'\n", pair.public.display());
    }
    text
}

pub fn now_s() -> u64 {
    SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .expect("a time")
        .as_secs()
}

/// A token with these claims, signed with the secret.
pub fn token(claims: Value) -> String {
    let key = EncodingKey::from_secret(SECRET.as_bytes());
    encode(&Header::new(Algorithm::HS256), &claims, &key).expect("a token")
}

/// A token of exactly these parts. The signature need not be valid.
pub fn raw(header: &Value, claims: &Value, signature: &[u8]) -> String {
    let encode_part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let signature = URL_SAFE_NO_PAD.encode(signature);
    format!(
        "{}.{}.{signature}",
        encode_part(header),
        encode_part(claims)
    )
}

/// Claims that allow everything below `doors`.
pub fn everything() -> Value {
    let all = ["doors/#"];
    json!({"sub": "ann", "exp": now_s() + 600, "publish": all, "subscribe": all, "manage": all, "info": all, "interest": all})
}

/// Claims that allow everything but these rights.
pub fn everything_but(rights: &[&str]) -> Value {
    let mut claims = everything();
    for right in rights {
        claims.as_object_mut().expect("claims").remove(*right);
    }
    claims
}

/// Publishes with a token in the header. Returns the status.
fn publish(server: &Server, token: &str) -> u16 {
    let authorization = format!("Bearer {token}");
    let headers = [("Authorization", authorization.as_str())];
    once(server, "POST", "/pub/doors/tokens", &headers, "x").status
}

#[test]
fn each_algorithm_is_accepted_only_with_its_own_key() {
    let server = Server::with(&format!("[access]\n{}", key_settings()));
    assert_eq!(publish(&server, &token(everything())), 202);
    for pair in PAIRS.iter() {
        let sign = |kid: Option<&str>, key: &EncodingKey| {
            let header = Header {
                kid: kid.map(str::to_string),
                ..Header::new(pair.algorithm)
            };
            encode(&header, &everything(), key).expect("a token")
        };
        let (name, key) = (pair.name, pair.signs());
        assert_eq!(publish(&server, &sign(None, &key)), 202, "{name}");
        // Keys without a kid verify tokens with any kid. The key of the JWKS file has a kid, which must match.
        let by_kid = if name == "EdDSA" { 401 } else { 202 };
        assert_eq!(publish(&server, &sign(Some("hs"), &key)), by_kid, "{name}");
        assert_eq!(publish(&server, &sign(Some("ed"), &key)), 202, "{name}");
        let other = Pair::new(pair.algorithm, "other", pair.pair.algorithm()).signs();
        assert_eq!(
            publish(&server, &sign(None, &other)),
            401,
            "{name}: signed by somebody else"
        );
        // Uses the public key, which anybody may have, as an HS256 secret.
        let confused = EncodingKey::from_secret(pair.public_pem().as_bytes());
        for header in [
            Header::new(Algorithm::HS256),
            Header {
                kid: Some("ed".into()),
                ..Header::new(Algorithm::HS256)
            },
        ] {
            let forged = encode(&header, &everything(), &confused).expect("a token");
            assert_eq!(
                publish(&server, &forged),
                401,
                "{name}: its public key as a secret"
            );
        }
    }
}

#[test]
fn claims_of_time_audience_and_issuer_are_enforced() {
    let settings = format!(
        "[access]\naudience = 'crore'\nissuer = 'us'\nleeway_s = 300\n{}",
        key_settings()
    );
    let server = Server::with(&settings);
    let token_with = |extra_claims: Value| {
        let mut claims = everything();
        let claims_of = claims.as_object_mut().expect("claims");
        claims_of.insert("aud".into(), json!(["else", "crore"]));
        claims_of.insert("iss".into(), json!("us"));
        for (name, value) in extra_claims.as_object().expect("an object") {
            claims_of.insert(name.clone(), value.clone());
        }
        publish(&server, &token(claims))
    };
    let now_s = now_s();
    let table = [
        (json!({}), 202),
        (json!({"aud": "crore"}), 202),
        (json!({"exp": now_s - 2}), 202), // within the leeway, however long the test takes
        (json!({"exp": now_s - 600}), 401),
        (json!({"exp": now_s + 7200, "nbf": now_s + 3600}), 401),
        (json!({"nbf": now_s - 60}), 202),
        (json!({"exp": "tomorrow"}), 401),
        (json!({"nbf": [1]}), 401),
        // RFC 7519 section 2: a date is a number, which may have a fraction.
        (json!({"exp": now_s as f64 + 600.5}), 202),
        (
            json!({"exp": (now_s as f64 + 600.0) * 1e0, "nbf": 0.5}),
            202,
        ),
        (json!({"exp": (now_s + 600).to_string()}), 401),
        (json!({"exp": null}), 401),
        (json!({"exp": true}), 401),
        (json!({"exp": -1}), 401),
        (json!({"nbf": "0"}), 401),
        (
            json!({"subscribe": null, "sub": null, "unknown": {"a": [1]}}),
            202,
        ),
        (json!({"publish": null}), 403),
        (json!({"info": [null]}), 401),
        (json!({"interest": {"a": 1}}), 401),
        // Centrifugo's claim with what others are told of the user.
        (json!({"info": {"a": 1}}), 202),
        (json!({"aud": "else"}), 401),
        (json!({"aud": null}), 401),
        (json!({"iss": "them"}), 401),
        (json!({"publish": 7}), 401),
        (json!({"publish": ["a/#/b"]}), 401),
        (json!({"sub": 7}), 401),
        (json!({"publish": "doors/tokens"}), 202),
        (json!({"publish": "doors"}), 403),
        (json!({"publish": []}), 403),
    ];
    for (extra_claims, expected) in table {
        assert_eq!(token_with(extra_claims.clone()), expected, "{extra_claims}");
    }
}

/// A token whose header and claims are these texts, signed with the secret.
fn signed_text(header: &str, claims: &str) -> String {
    let message = [header, claims]
        .map(|text| URL_SAFE_NO_PAD.encode(text))
        .join(".");
    let key = EncodingKey::from_secret(SECRET.as_bytes());
    let signature = jsonwebtoken::crypto::sign(message.as_bytes(), &key, Algorithm::HS256);
    format!("{message}.{}", signature.expect("a signature"))
}

#[test]
fn correctly_signed_bad_token_is_refused_for_its_fault() {
    let server = Server::with(&format!("[access]\n{}", key_settings()));
    let (head, claims) = (r#"{"alg":"HS256"}"#, everything().to_string());
    let refused = |token: &str, reason: &str| {
        let authorization = format!("Bearer {token}");
        let headers = [("Authorization", authorization.as_str())];
        let response = once(&server, "POST", "/pub/doors/tokens", &headers, "x");
        assert_eq!(response.status, 401, "{token}");
        assert!(
            response.text().contains(reason),
            "{reason}: {}",
            response.text()
        );
    };
    for member in [r#""kid":1"#, r#""typ":1"#, r#""x5c":"x""#, r#""cty":[]"#] {
        let head = format!(r#"{{"alg":"HS256",{member}}}"#);
        refused(
            &signed_text(&head, &claims),
            "the credentials cannot be read",
        );
        let forged = signed_text(&head, &claims) + "A";
        refused(&forged, "is not signed by a key");
    }
    for claims in [
        r#"{"sub":["a"]}"#,
        r#"{"exp":1e400}"#,
        r#"{"nbf":-1e400}"#,
        "[]",
        "",
        "{",
    ] {
        refused(
            &signed_text(head, claims),
            "a claim of the token is not valid",
        );
    }
    refused(
        &signed_text(r#"{"alg":1}"#, &claims),
        "the credentials cannot be read",
    );
    refused(
        &signed_text(r#"{"alg":"HS512"}"#, &claims),
        "no key of this server has",
    );
}

#[test]
fn token_with_an_unknown_critical_header_is_refused() {
    let server = Server::with(&format!("[access]\n{}", key_settings()));
    let key = EncodingKey::from_secret(SECRET.as_bytes());
    let header = json!({"alg": "HS256", "crit": ["b64"], "b64": false});
    let claims = everything();
    let encode_part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let message = format!("{}.{}", encode_part(&header), encode_part(&claims));
    let signature = jsonwebtoken::crypto::sign(message.as_bytes(), &key, Algorithm::HS256)
        .expect("a signature");
    assert_eq!(publish(&server, &format!("{message}.{signature}")), 401);
    for invalid in [
        "",
        ".",
        "..",
        "a.b",
        "a.b.c",
        "eyJhbGciOiJIUzI1NiJ9..",
        &format!("{}.x", token(everything())),
    ] {
        assert_eq!(publish(&server, invalid), 401, "{invalid:?}");
    }
    server.await_log("credentials refused");
    let log = server.log();
    assert!(!log.contains(&message), "no token stands in the log: {log}");
}
