//! Finds public keys, certificates and private keys in bytes that should be a secret, whatever their encoding.
//!
//! The search is for two kinds of *marks*: words in files of keys, and object identifiers or headers of binary keys. Both are searched in
//! the bytes themselves and in all their possible decodings: escapes, base64, base32, hex and decimal numbers, also nested. The decoders
//! skip whatever separates digits. They start at each place where an encoding may begin, since any text may precede a mark.
//!
//! Invariant: a random secret has none of these marks. The search covers some thousand places of each secret, so a mark of seven given
//! bytes (2^-56) appears by accident in one of 2^44 secrets. Each shorter mark has a comment with its probability. Deliberately not here:
//! the 32 bytes of a bare Ed25519 key, which cannot be distinguished from random bytes.

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, ParsedPublicKey};
use crore_net::der::{self, Form};

use super::decodings::{decode_hex_only, decodings};

/// The maximum number of bytes that are searched. A longer file is refused anyway; the search only gives it a better error message.
const SEARCHED_BYTES_MAX: usize = 4 << 10;
/// The maximum depth of nested encodings: enough for base64 three times, with escapes.
const DEPTH_MAX: u8 = 4;
/// The same limit for input that is longer than any secret, since the search of long input takes longer.
const DEPTH_MAX_LONG: u8 = 2;
const LONG_BYTES: usize = 512;
/// Every complete key with a mark is longer than this. The shortest is an Ed25519 key in DER.
const KEY_BYTES_MIN: usize = 40;
/// Shorter decodings are not searched. Every binary mark is shorter than this.
const DECODING_BYTES_MIN: usize = 16;

/// Words in files of keys, in lower case, and the kind of the file.
const WORDS: &[(&str, &str)] = &[
    ("-----begin", "a PEM file"),
    ("begin certificate", "a PEM file"),
    ("begin public key", "a PEM file"),
    ("begin rsa public key", "a PEM file"),
    ("begin ssh2 public key", "a public key of SSH"),
    ("begin pgp public key", "a public key of PGP"),
    ("ssh-rsa", "a public key of SSH"),
    ("ssh-ed25519", "a public key of SSH"),
    ("ssh-dss", "a public key of SSH"),
    ("ecdsa-sha2-", "a public key of SSH"),
    ("untrusted comment:", "a key of minisign or signify"),
    ("putty-user-key-file", "a key of PuTTY"),
    ("rsakeyvalue", "a public key in XML"),
    ("x509certificate", "a certificate in XML"),
    ("v=dkim1", "a DKIM record"),
    ("public-key:", "a public key"),
    ("public key:", "a public key"),
    ("subject public key info", "a certificate"),
    ("x509v3", "a certificate"),
    ("modulus", "an RSA key"),
];
/// Members of a JWK. Random text of all 95 printable characters contains a given member in one of 2^24 secrets.
const JWK_MEMBERS: &[&str] = &["\"kty\"", "'kty'", "\"x5c\""];
/// The values of a JWK's member `kty`, in lower case.
const KTY: &[&str] = &["rsa", "ec", "okp", "oct", "akp"];
/// The maximum number of characters between `kty` and its value, such as `\": \"`.
const KTY_GAP_MAX: usize = 16;

/// Object identifiers, and the kind of key that has them. Keys in DER and PGP keys contain them, even truncated keys.
const OBJECT_IDS: &[(&[u8], &str)] = &[
    // 1.2.840.113549.1, the arc of PKCS: rsaEncryption, RSASSA-PSS, signatures of certificates, PKCS #7.
    (
        &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 0x01],
        "an RSA key or a certificate",
    ),
    // 1.2.840.10045.2.1, ecPublicKey.
    (
        &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01],
        "a key of an elliptic curve",
    ),
    // 1.2.840.10045.3.1.7, prime256v1.
    (
        &[0x2a, 0x86, 0x48, 0xce, 0x3d, 0x03, 0x01, 0x07],
        "a key of P-256",
    ),
    // 1.2.840.10045.4.3, signatures of certificates.
    (
        &[0x06, 0x08, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x04, 0x03],
        "a certificate",
    ),
    // 1.3.6.1.4.1.11591.15.1, Ed25519 in PGP.
    (
        &[0x2b, 0x06, 0x01, 0x04, 0x01, 0xda, 0x47, 0x0f, 0x01],
        "a public key of PGP",
    ),
];

/// The kind of key that these bytes are or contain, in any encoding.
pub fn find_key(bytes: &[u8]) -> Option<&'static str> {
    let depth = match bytes.len() < LONG_BYTES {
        true => DEPTH_MAX,
        false => DEPTH_MAX_LONG,
    };
    let bytes = &bytes[..bytes.len().min(SEARCHED_BYTES_MAX)];
    find_compressed_point(bytes).or_else(|| search(bytes, true, depth))
}

/// The kind of key in these bytes. `at_start`: the bytes are not cut out of something larger, so a key may begin at the first byte.
fn search(bytes: &[u8], at_start: bool, depth: u8) -> Option<&'static str> {
    let at_start = || at_start.then(|| find_at_start(bytes)).flatten();
    if let Some(key) = find_anywhere(bytes).or_else(at_start) {
        return Some(key);
    }
    // In UTF-16 each ASCII character has a zero byte.
    let text: Vec<u8> = bytes.iter().copied().filter(|byte| *byte != 0).collect();
    if let Some(key) = find_in_text(&text) {
        return Some(key);
    }
    if depth == 0 {
        return None;
    }
    decodings(&text)
        .filter(|(read, _)| read.len() >= DECODING_BYTES_MIN)
        .find_map(|(read, at_start)| search(&read, at_start, depth - 1))
}

/// A compressed point of P-256 (SEC 1 section 2.3.3), as 33 bytes or 66 digits in hex, and nothing else.
///
/// One in 256 random secrets of exactly this length is such a point, and is refused. No command that the documentation recommends makes
/// this length, and an operator who tries again gets another secret. Base64 of 33 bytes is not searched: it needs no padding, so operators
/// use it for secrets.
fn find_compressed_point(bytes: &[u8]) -> Option<&'static str> {
    const BYTES: usize = 33;
    let point = match bytes.len() {
        BYTES => bytes.to_vec(),
        _ => decode_hex_only(bytes)?,
    };
    (point.len() == BYTES && matches!(point[0], 2 | 3) && is_point(&point)).then_some(POINT_NAME)
}

const POINT_NAME: &str = "a public key (a point of P-256)";

fn is_point(bytes: &[u8]) -> bool {
    ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, bytes).is_ok()
}

fn find_in_text(text: &[u8]) -> Option<&'static str> {
    let lower = String::from_utf8_lossy(text).to_lowercase();
    if let Some((_, key)) = WORDS.iter().find(|(word, _)| lower.contains(word)) {
        return Some(key);
    }
    // Short words are searched in text only: decoded random bytes have them too often.
    let is_text = std::str::from_utf8(text)
        .is_ok_and(|text| !text.contains(|c: char| c.is_control() && !c.is_whitespace()));
    let is_jwk = JWK_MEMBERS.iter().any(|member| lower.contains(member)) || has_kty(&lower);
    (is_text && is_jwk).then_some("a key in JSON (JWK)")
}

/// Whether a text has the word `kty` and one of its values, with any quotes and punctuation around them. Random text of all printable
/// characters has them in one of 2^23 secrets.
fn has_kty(lower: &str) -> bool {
    let is_end = |text: &str| !text.starts_with(|c: char| c.is_ascii_alphanumeric());
    lower.match_indices("kty").any(|(at, word)| {
        let (before, behind) = (&lower[..at], &lower[at + word.len()..]);
        let gap = behind.find(|c: char| c.is_ascii_alphanumeric());
        let value = behind.get(gap.unwrap_or_default()..).unwrap_or_default();
        !before.ends_with(|c: char| c.is_ascii_alphanumeric())
            && gap.is_some_and(|gap| (1..=KTY_GAP_MAX).contains(&gap))
            && KTY
                .iter()
                .any(|kty| value.strip_prefix(kty).is_some_and(is_end))
    })
}

/// The kind of key whose object identifier or header is anywhere in these bytes.
fn find_anywhere(bytes: &[u8]) -> Option<&'static str> {
    let mut rests = (0..bytes.len()).map(|at| &bytes[at..]);
    rests.find_map(|rest| match rest {
        // 1.3.101.110 to 113, X25519 to Ed448 (RFC 8410), in their sequence or before the bit string of a public key.
        [0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x6e..=0x71, ..]
        | [0x06, 0x03, 0x2b, 0x65, 0x6e..=0x71, 0x03, _, 0x00, ..] => {
            Some("a key of Ed25519 or its like")
        }
        // PKCS #1 with at least 2,048 bits.
        [
            0x30,
            0x82,
            0x01..=0x08,
            _,
            0x02,
            0x82,
            0x01..=0x04,
            _,
            0x00,
            ..,
        ] => Some("an RSA key"),
        [
            0x30,
            0x82,
            _,
            _,
            0x30,
            0x82,
            _,
            _,
            0xa0,
            0x03,
            0x02,
            0x01,
            ..,
        ] => Some("a certificate"),
        _ => {
            let object = OBJECT_IDS
                .iter()
                .find(|(object, _)| rest.starts_with(object));
            object.map(|(_, key)| *key)
        }
    })
}

/// The kind of key that these bytes begin with.
fn find_at_start(bytes: &[u8]) -> Option<&'static str> {
    let begins = |with: &[u8]| bytes.starts_with(with);
    match der::read_form(bytes) {
        // The form of PKCS #7 alone is no mark, since random bytes have it too often. PKCS #7 is found by its object identifier.
        Some((Form::Pkcs7, _)) => {}
        Some((form, length)) if length >= KEY_BYTES_MIN => return Some(form.name()),
        _ => {}
    }
    let name = bytes.get(4..).unwrap_or_default();
    let ssh = begins(&[0, 0, 0])
        && [&b"ssh-"[..], b"ecdsa-", b"sk-"]
            .iter()
            .any(|kind| name.starts_with(kind));
    let is_compressed = COMPRESSED_MAGIC.iter().any(|magic| begins(magic)) || is_gzip(bytes);
    let point = match bytes.len() {
        65 => begins(&[4]) && is_point(bytes),
        64 => is_point(&[&[4], bytes].concat()),
        _ => false,
    };
    match () {
        () if ssh => Some("a public key of SSH"),
        () if begins(&[0xfe, 0xed, 0xfe, 0xed]) => Some("a keystore of Java"),
        // One in 65,536 random secrets of 42 bytes (56 digits in base64) begins like this.
        () if bytes.len() == 42 && begins(b"Ed") => Some("a key of minisign or signify"),
        () if is_pgp_key(bytes) => Some("a public key of PGP"),
        () if point => Some(POINT_NAME),
        () if is_compressed => Some("a compressed file"),
        () => None,
    }
}

/// Magic bytes of compressed files: xz, zstd, bzip2, ZIP.
const COMPRESSED_MAGIC: &[&[u8]] = &[
    &[0xfd, b'7', b'z', b'X', b'Z', 0],
    &[0x28, 0xb5, 0x2f, 0xfd],
    b"BZh91AY&SY",
    &[b'P', b'K', 3, 4],
];

/// Whether these bytes begin with a gzip header (RFC 1952 section 2.3). One of 2^37 random secrets does.
fn is_gzip(bytes: &[u8]) -> bool {
    matches!(
        bytes,
        [
            0x1f,
            0x8b,
            8,
            0..=0x1f,
            _,
            _,
            _,
            _,
            0 | 2 | 4,
            0..=13 | 255,
            ..
        ]
    )
}

/// Whether these bytes begin with a public key of PGP (RFC 9580 section 5.5.2). One of 2^26 random secrets does: the length and the
/// header of the numbers must fit.
fn is_pgp_key(bytes: &[u8]) -> bool {
    let (length, packet) = match bytes {
        [0x99, high, low, packet @ ..] => (usize::from(*high) << 8 | usize::from(*low), packet),
        [0xc6, high @ 192..=223, low, packet @ ..] => {
            let length = ((usize::from(*high) - 192) << 8) + usize::from(*low) + 192;
            (length, packet)
        }
        [0xc6, length @ 0..=191, packet @ ..] => (usize::from(*length), packet),
        _ => return false,
    };
    // Version, time, algorithm.
    let [3..=6, 0x30..=0x9f, _, _, _, algorithm, numbers @ ..] = packet else {
        return false;
    };
    let fits = match (algorithm, numbers.first().copied().unwrap_or_default()) {
        // The bit length of a modulus or a prime.
        (1..=3 | 16 | 17, high) => (4..=0x40).contains(&high),
        // The length of an object identifier.
        (18 | 19 | 22, length) => (3..=10).contains(&length),
        (25..=28, _) => matches!(length, 38 | 42 | 62 | 63 | 66 | 67),
        _ => false,
    };
    fits && length >= KEY_BYTES_MIN - 2 && packet.len() >= length.min(KEY_BYTES_MIN)
}
