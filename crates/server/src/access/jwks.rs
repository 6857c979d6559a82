//! Reads sets of keys in JSON: JWKS (RFC 7517, RFC 7518 section 6, RFC 8037).
//!
//! Some harmless faults of issuers are accepted: numbers with too many or too few leading zeros, padded base64, and the standard base64
//! alphabet in place of base64url. Keys for other uses and algorithms are left out, since most sets have some. A key that is meant to
//! verify but cannot be used is an error, which names the key's `kid` and the faulty member.

use aws_lc_rs::signature::{RSA_PKCS1_2048_8192_SHA256, RsaPublicKeyComponents};
use base64::Engine as _;
use base64::alphabet;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig};
use crore_net::der;
use jsonwebtoken::{Algorithm, DecodingKey};
use serde_json::{Map, Value};

use super::algorithm::{ALGORITHMS, Key, not_offered};
use super::{public, secret};

/// Base64 with or without padding; bits after the last byte are ignored.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &alphabet::URL_SAFE,
    GeneralPurposeConfig::new()
        .with_decode_padding_mode(DecodePaddingMode::Indifferent)
        .with_decode_allow_trailing_bits(true),
);
/// Bytes of a coordinate of P-256 (RFC 7518 section 6.2.1.2), and of an Ed25519 key (RFC 8032 section 5.1.5).
const COORDINATE_BYTES: usize = 32;
/// The minimum number of digits of a number in hex. In base64url, a coordinate or an RSA exponent has fewer digits.
const HEX_DIGITS_MIN: usize = 64;

/// The keys of a JWKS that verify signatures with a supported algorithm. If the settings name an algorithm (`only`) or a `kid`, other keys
/// are left out.
///
/// # Errors
/// A faulty key, with its `kid` and the member; a set without a usable key, with the reasons.
pub fn keys(file: &[u8], only: Option<Algorithm>, kid: Option<&str>) -> Result<Vec<Key>, String> {
    let set: Value = serde_json::from_slice(file)
        .map_err(|error| format!("is no JWKS: {error}; write {{\"keys\": [...]}}"))?;
    let Some(Value::Array(entries)) = set.get("keys") else {
        return Err("is no JWKS: it has no list `keys`; write {\"keys\": [...]}".to_string());
    };
    let (mut keys, mut left_out) = (Vec::new(), Vec::new());
    for (index, entry) in entries.iter().enumerate() {
        let name = match entry.get("kid").and_then(Value::as_str) {
            Some(kid) => format!("the key {kid:?}"),
            None => format!("keys[{index}]"),
        };
        let Value::Object(entry) = entry else {
            return Err(format!("{name} is no object; write {{\"kty\": ...}}"));
        };
        match read_key(entry, only, kid).map_err(|message| format!("{name}: {message}"))? {
            Ok(key) => keys.push(key),
            Err(reason) => left_out.push(format!("{name}: {reason}")),
        }
    }
    if keys.is_empty() {
        left_out.truncate(4);
        let reason = left_out.join("; ");
        return Err(format!(
            "has no key of HS256, RS256, ES256 or EdDSA for signatures; name a JWKS that has one ({reason})"
        ));
    }
    Ok(keys)
}

/// Reads a key. The outer error is a fault of the key. The inner error is the reason why a key without fault is left out.
fn read_key(
    jwk: &Map<String, Value>,
    only: Option<Algorithm>,
    wanted: Option<&str>,
) -> Result<Result<Key, String>, String> {
    let kid = text(jwk, "kid")?;
    let left_out = |reason: &str| Ok(Err(reason.to_string()));
    if wanted.is_some() && wanted != kid {
        return left_out("its kid is another than the entry's");
    }
    if text(jwk, "use")?.is_some_and(|says| says != "sig") {
        return left_out("its use is not sig");
    }
    if !verifies(jwk)? {
        return left_out("its key_ops have no verify");
    }
    let kty = text(jwk, "kty")?.ok_or("kty is missing; write RSA, EC, OKP or oct")?;
    let crv = text(jwk, "crv")?;
    let usual = match (kty, crv) {
        ("RSA", _) => Algorithm::RS256,
        ("oct", _) => Algorithm::HS256,
        ("EC", Some("P-256")) => Algorithm::ES256,
        ("OKP", Some("Ed25519")) => Algorithm::EdDSA,
        ("EC" | "OKP", None) => return Err("crv is missing; write P-256 or Ed25519".to_string()),
        ("EC", Some(crv @ ("Ed25519" | "Ed448" | "X25519" | "X448")))
        | ("OKP", Some(crv @ ("P-256" | "P-384" | "P-521" | "secp256k1"))) => {
            return Err(format!(
                "crv is {crv}, which is none of kty {kty}; write the key anew"
            ));
        }
        ("EC" | "OKP", Some(_)) => return left_out("its crv is neither P-256 nor Ed25519"),
        _ => return left_out("its kty is not offered"),
    };
    let alg = text(jwk, "alg")?;
    let known = alg.map(|alg| ALGORITHMS.iter().find(|(name, _)| *name == alg));
    let algorithm = match known {
        None => usual,
        Some(Some((_, algorithm))) if *algorithm == usual => usual,
        // RFC 9864 gives EdDSA with this curve a name of its own.
        Some(None) if usual == Algorithm::EdDSA && alg == Some("Ed25519") => usual,
        Some(None) => return left_out("its alg is not offered"),
        Some(Some((name, _))) => {
            return Err(format!(
                "alg is {name}, which no key of kty {kty} has; write {usual:?}"
            ));
        }
    };
    if only.is_some_and(|only| only != algorithm) {
        return left_out("its alg is another than the entry's");
    }
    let key = match algorithm {
        Algorithm::HS256 => secret_key(jwk)?,
        Algorithm::RS256 => rsa_key(jwk)?,
        Algorithm::ES256 => {
            let point = [vec![4], coordinate(jwk, "x")?, coordinate(jwk, "y")?].concat();
            let parsed_point = public::decoding_key(algorithm, &point);
            parsed_point
                .map_err(|_| "x and y are no point of P-256; write the key anew".to_string())?
        }
        Algorithm::EdDSA => {
            let x = number(jwk, "x")?;
            if x.len() != COORDINATE_BYTES {
                let bytes = x.len();
                return Err(format!(
                    "x has {bytes} bytes, and Ed25519 needs {COORDINATE_BYTES}; write the key anew"
                ));
            }
            public::decoding_key(algorithm, &x).map_err(|message| format!("x {message}"))?
        }
        other => return Err(not_offered(&format!("{other:?}"))),
    };
    let kid = kid.map(str::to_string);
    Ok(Ok(Key {
        kid,
        algorithm,
        key,
    }))
}

/// A member that is text; `null` counts as absent.
fn text<'j>(jwk: &'j Map<String, Value>, name: &str) -> Result<Option<&'j str>, String> {
    match jwk.get(name) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(format!("{name} is no text; write it in quotes")),
    }
}

/// Whether the key is for verifying (RFC 7517 section 4.3).
fn verifies(jwk: &Map<String, Value>) -> Result<bool, String> {
    match jwk.get("key_ops") {
        None | Some(Value::Null) => Ok(true),
        Some(Value::Array(list)) => Ok(list.iter().any(|item| item == "verify")),
        Some(_) => Err("key_ops is no list; write [\"verify\"]".to_string()),
    }
}

/// The bytes of a member that is a number of a public key.
fn number(jwk: &Map<String, Value>, name: &str) -> Result<Vec<u8>, String> {
    let digits = text(jwk, name)?.unwrap_or_default();
    let digits = digits.strip_prefix("0x").unwrap_or(digits);
    // A number in hex would decode as base64 too, since hex digits are base64 digits. A modulus in base64url is not mistaken for hex: it
    // has at least 342 digits, and in only one of 2^526 keys all of them are hex digits.
    if digits.len() >= HEX_DIGITS_MIN && digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
        return Err(format!(
            "{name} is a number in hex or decimal digits, and a JWK has base64url; write the key anew"
        ));
    }
    bytes(jwk, name)
}

/// The bytes of a member.
fn bytes(jwk: &Map<String, Value>, name: &str) -> Result<Vec<u8>, String> {
    let text = text(jwk, name)?.filter(|text| !text.is_empty());
    let text = text.ok_or_else(|| format!("{name} is missing; write the whole key"))?;
    let text = text.replace('+', "-").replace('/', "_");
    let bytes = BASE64.decode(text);
    bytes.map_err(|error| format!("{name} is no base64url ({error}); write the key anew"))
}

/// The bytes of a number without leading zeros. Some libraries write a leading zero, as RFC 7518 section 6.3.1.1 notes.
fn without_leading_zeros(jwk: &Map<String, Value>, name: &str) -> Result<Vec<u8>, String> {
    let mut bytes = number(jwk, name)?;
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    bytes.drain(..zeros);
    Ok(bytes)
}

/// A coordinate in its full length. Some libraries omit leading zeros, or write one too many.
fn coordinate(jwk: &Map<String, Value>, name: &str) -> Result<Vec<u8>, String> {
    let number = without_leading_zeros(jwk, name)?;
    let zeros = COORDINATE_BYTES.checked_sub(number.len()).ok_or_else(|| {
        let bytes = number.len();
        format!("{name} has {bytes} bytes, and P-256 needs {COORDINATE_BYTES}; write the key anew")
    })?;
    Ok([vec![0; zeros], number].concat())
}

fn rsa_key(jwk: &Map<String, Value>) -> Result<DecodingKey, String> {
    let n = without_leading_zeros(jwk, "n")?;
    let e = without_leading_zeros(jwk, "e")?;
    let bits = der::bit_count(&n);
    if !public::RSA_BITS.contains(&bits) {
        let (least, most) = (public::RSA_BITS.start(), public::RSA_BITS.end());
        return Err(format!(
            "n has {bits} bits, and RS256 needs {least} to {most}; make a new key"
        ));
    }
    if n.last().is_some_and(|last| last % 2 == 0) {
        return Err("n is even, and no modulus is; write the key anew".to_string());
    }
    // After the checks above, only `e` can still be wrong.
    let exponent = || "e is no exponent of RSA; write the key anew".to_string();
    let parts = RsaPublicKeyComponents { n: &n, e: &e };
    let parsed = parts.to_parsed_public_key(&RSA_PKCS1_2048_8192_SHA256);
    let parsed = parsed.map_err(|_| exponent())?;
    public::decoding_key(Algorithm::RS256, parsed.as_ref()).map_err(|_| exponent())
}

fn secret_key(jwk: &Map<String, Value>) -> Result<DecodingKey, String> {
    let k = bytes(jwk, "k")?;
    secret::check(&k).map_err(|message| format!("k {message}"))?;
    Ok(DecodingKey::from_secret(&k))
}
