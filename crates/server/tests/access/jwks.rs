//! Tests keys in the JSON format JWKS: which keys the server reads, and which it refuses at its start.

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD, URL_SAFE, URL_SAFE_NO_PAD};
use jsonwebtoken::{Algorithm, EncodingKey};
use rcgen::{KeyPair, PKCS_RSA_SHA256, PublicKeyData};
use serde_json::{Value, json};

use crate::key_files::{of_file, publish, refusal, signed};
use crate::support::Server;

/// The RSA key of a pair as the numbers of a JWK.
fn rsa_numbers(pair: &KeyPair) -> (Vec<u8>, Vec<u8>) {
    // A PKCS #1 key of 2,048 bits: a sequence, then n with a zero byte before it, then e.
    let der = pair.der_bytes();
    let n = der[der.len() - 5 - 256..der.len() - 5].to_vec();
    (n, der[der.len() - 3..].to_vec())
}

#[test]
fn numbers_of_a_jwks_are_accepted_in_every_length_and_base64() {
    let zero = |bytes: &[u8]| [&[0], bytes].concat();
    let rsa = KeyPair::generate_for(&PKCS_RSA_SHA256).expect("a key");
    let (n, e) = rsa_numbers(&rsa);
    let signs = EncodingKey::from_rsa_pem(rsa.serialize_pem().as_bytes()).expect("a key");
    let token = signed(Algorithm::RS256, &signs);
    let set = |n: String, e: String| json!({"keys": [{"kty": "RSA", "kid": "k", "n": n, "e": e}]});
    for set in [
        set(b64(&n), b64(&e)),
        set(b64(&zero(&n)), b64(&e)),
        set(b64(&zero(&zero(&n))), b64(&zero(&e))),
        set(URL_SAFE.encode(&n), URL_SAFE.encode(&e)),
        set(STANDARD.encode(&n), STANDARD.encode(&e)),
    ] {
        let server = Server::with(&of_file("", set.to_string().as_bytes()));
        assert_eq!(publish(&server, &token), 202, "{set}");
    }
    // One key in 128 has a coordinate that begins with a zero.
    let has_leading_zero = |pair: &KeyPair| pair.der_bytes()[1] == 0 || pair.der_bytes()[33] == 0;
    let ec = std::iter::repeat_with(|| KeyPair::generate().expect("a key")).find(has_leading_zero);
    let ec = ec.expect("one of them");
    let (x, y) = ec.der_bytes()[1..].split_at(32);
    let bare = |bytes: &[u8]| {
        bytes
            .iter()
            .copied()
            .skip_while(|byte| *byte == 0)
            .collect::<Vec<u8>>()
    };
    let signs = EncodingKey::from_ec_pem(ec.serialize_pem().as_bytes()).expect("a key");
    let token = signed(Algorithm::ES256, &signs);
    let set =
        |x: String, y: String| json!({"keys": [{"kty": "EC", "crv": "P-256", "x": x, "y": y}]});
    for set in [
        set(b64(x), b64(y)),
        set(b64(&bare(x)), b64(&bare(y))),
        set(b64(&zero(x)), b64(&zero(y))),
        set(URL_SAFE.encode(x), STANDARD.encode(y)),
    ] {
        let server = Server::with(&of_file("", format!("\u{feff}{set}").as_bytes()));
        assert_eq!(publish(&server, &token), 202, "{set}");
    }
}

fn b64(bytes: &[u8]) -> String {
    URL_SAFE_NO_PAD.encode(bytes)
}

fn rsa_jwk() -> Value {
    let pair = KeyPair::generate_for(&PKCS_RSA_SHA256).expect("a key");
    let (n, e) = rsa_numbers(&pair);
    json!({"kty": "RSA", "kid": "k", "n": b64(&n), "e": b64(&e)})
}

fn ec_jwk() -> Value {
    let pair = KeyPair::generate().expect("a key");
    let (x, y) = pair.der_bytes()[1..].split_at(32);
    json!({"kty": "EC", "kid": "k", "crv": "P-256", "x": b64(x), "y": b64(y)})
}

/// The key with another value in the field `name`.
fn with_field(jwk: &Value, name: &str, value: Value) -> Value {
    let mut jwk = jwk.clone();
    jwk[name] = value;
    jwk
}

/// Checks that a set with only this key is refused with these words.
fn assert_refused(jwk: &Value, words: &str) {
    let set = json!({ "keys": [jwk] }).to_string();
    let error = refusal(&of_file("", set.as_bytes())).unwrap_or_default();
    let names_the_key = error.contains("access.key[1].file") && error.contains("the key \"k\"");
    assert!(
        names_the_key && error.contains(words),
        "{words}: {error}\n{set}"
    );
}

#[test]
fn a_key_of_a_curve_that_could_verify_nothing_is_refused_by_kid_and_member() {
    let ec = ec_jwk();
    for (name, value, words) in [
        ("x", ec["y"].clone(), "x and y are no point of P-256"),
        ("y", json!(b64(&[1; 33])), "y has 33 bytes"),
        ("y", json!(null), "y is missing"),
        ("x", json!(7), "x is no text"),
        ("x", json!("a b"), "x is no base64url"),
        ("crv", json!("Ed25519"), "crv is Ed25519"),
        ("crv", json!(null), "crv is missing"),
        ("crv", json!("P-384"), "its crv is neither"),
        ("alg", json!("RS256"), "alg is RS256"),
        ("alg", json!("ES384"), "its alg is not offered"),
        ("use", json!("enc"), "its use is not sig"),
        ("key_ops", json!(["sign"]), "its key_ops have no verify"),
        ("key_ops", json!("verify"), "key_ops is no list"),
        ("kty", json!(null), "kty is missing"),
    ] {
        assert_refused(&with_field(&ec, name, value), words);
    }
    let ed = json!({"kty": "OKP", "kid": "k", "crv": "Ed25519", "x": b64(&[1; 31])});
    assert_refused(&ed, "x has 31 bytes");
    assert_refused(&with_field(&ed, "crv", json!("P-256")), "crv is P-256");
    assert_refused(&with_field(&ed, "alg", json!("ES256")), "alg is ES256");
}

#[test]
fn an_rsa_key_or_a_secret_that_could_verify_nothing_is_refused_by_kid_and_member() {
    let rsa = rsa_jwk();
    for (name, value, words) in [
        ("n", json!(b64(&[0xff; 128])), "n has 1024 bits"),
        ("n", json!(b64(&[0xff; 2048])), "n has 16384 bits"),
        ("n", json!(b64(&[0xfe; 256])), "n is even"),
        ("n", json!(""), "n is missing"),
        ("n", json!(null), "n is missing"),
        ("n", json!(65_537), "n is no text"),
        ("e", json!("AA"), "e is no exponent"),
        ("e", json!("Ag"), "e is no exponent"),
        ("alg", json!("HS256"), "alg is HS256"),
        ("alg", json!("PS256"), "its alg is not offered"),
    ] {
        assert_refused(&with_field(&rsa, name, value), words);
    }
    let secret = json!({"kty": "oct", "kid": "k", "k": b64(&[1; 31])});
    assert_refused(&secret, "k has 31 bytes");
}

#[test]
fn an_ed25519_key_that_is_no_point_or_one_of_small_order_is_refused() {
    let jwk = |x: &[u8]| json!({"kty": "OKP", "kid": "k", "crv": "Ed25519", "x": b64(x)});
    let with_low_bytes = |low: u8, rest: u8, high: u8| [&[low][..], &[rest; 30], &[high]].concat();
    for (x, words) in [
        (with_low_bytes(0, 0, 0), "x is a point of small order"),
        (with_low_bytes(1, 0, 0), "x is a point of small order"),
        // p - 1, a point of order 2.
        (
            with_low_bytes(0xec, 0xff, 0x7f),
            "x is a point of small order",
        ),
        // p and p + 1, second encodings of 0 and 1.
        (with_low_bytes(0xed, 0xff, 0x7f), "x is no point"),
        (with_low_bytes(0xee, 0xff, 0x7f), "x is no point"),
        // No point has the y coordinate 2.
        (with_low_bytes(2, 0, 0), "x is no point"),
        (with_low_bytes(0xff, 0xff, 0xff), "x is no point"),
    ] {
        assert_refused(&jwk(&x), words);
    }
    // The same point in PEM.
    let head = [0x30, 0x2a, 0x30, 5, 6, 3, 0x2b, 0x65, 0x70, 3, 0x21, 0];
    let body = STANDARD.encode([&head[..], &with_low_bytes(1, 0, 0)].concat());
    let pem = format!("-----BEGIN PUBLIC KEY-----\n{body}\n-----END PUBLIC KEY-----\n");
    let error = refusal(&of_file("EdDSA", pem.as_bytes())).unwrap_or_default();
    assert!(
        error.contains("line 1: is a point of small order"),
        "{error}"
    );
}

#[test]
fn a_number_in_hex_is_no_base64url() {
    let hex = |bytes: &[u8]| {
        bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    let pair = KeyPair::generate_for(&PKCS_RSA_SHA256).expect("a key");
    let n = hex(&rsa_numbers(&pair).0);
    for n in [
        n.clone(),
        n.to_uppercase(),
        format!("0x{n}"),
        "7".repeat(617),
    ] {
        assert_refused(
            &with_field(&rsa_jwk(), "n", json!(n)),
            "n is a number in hex",
        );
    }
    assert_refused(
        &with_field(&ec_jwk(), "x", json!(hex(&[9; 32]))),
        "x is a number in hex",
    );
    // An exponent may begin with a zero byte.
    let exponent = with_field(&rsa_jwk(), "e", json!("AAEAAQ"));
    let set = json!({"keys": [exponent]}).to_string();
    assert_eq!(refusal(&of_file("", set.as_bytes())), None);
}

#[test]
fn keys_for_other_uses_are_ignored_if_one_verifies_tokens() {
    let enc = with_field(&rsa_jwk(), "use", json!("enc"));
    let set = json!({"keys": [enc, ec_jwk(), {"kty": "PQ", "kid": "q"}]}).to_string();
    assert_eq!(refusal(&of_file("", set.as_bytes())), None);
}
