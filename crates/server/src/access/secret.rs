//! Secrets for HS256, and why a public key is none: everyone who has it could make tokens.
//!
//! Invariant: a public key, a certificate or a private key is refused in every form that a file of one has: armour, with text before it or
//! not, DER, JSON, the line of OpenSSH; in base64, in hex, in UTF-16, and in the settings as in a file. A file without any of these forms (32 raw bytes)
//! looks like a secret and is taken for one.

use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED, ParsedPublicKey};
use crore_net::der;

/// Least length of a secret for HS256, in bytes (RFC 7518 section 3.2).
pub const BYTES_MIN: usize = 32;
/// More is no secret but another file: HMAC hashes all past 64 bytes to 32 first (RFC 2104 section 2).
const BYTES_MAX: usize = 4 << 10;
/// How often one encoding may lie within another, such as PEM in base64 in hex.
const DEPTH_MAX: u8 = 2;
/// The smallest key with a form is larger: an Ed25519 key in DER.
const KEY_BYTES_MIN: usize = 40;

/// Words of files of keys, in lower case, and what such a file is.
const WORDS: &[(&str, &str)] = &[
    ("-----begin", "a PEM file"),
    ("begin certificate", "a PEM file"),
    ("begin public key", "a PEM file"),
    ("begin rsa public key", "a PEM file"),
    ("begin ssh2 public key", "a public key of SSH"),
    ("begin pgp public key", "a public key of PGP"),
    ("\"kty\"", "a key in JSON (JWK)"),
    ("'kty'", "a key in JSON (JWK)"),
    ("\"x5c\"", "a key in JSON (JWK)"),
    ("ssh-rsa", "a public key of SSH"),
    ("ssh-ed25519", "a public key of SSH"),
    ("ssh-dss", "a public key of SSH"),
    ("ecdsa-sha2-", "a public key of SSH"),
    ("untrusted comment:", "a key of minisign or signify"),
    ("putty-user-key-file", "a key of PuTTY"),
    ("rsakeyvalue", "a public key in XML"),
    ("x509certificate", "a certificate in XML"),
];

/// The secret in a file or the settings: a text file ends in a line end that is not part of it.
///
/// # Errors
/// Why it is none, and the remedy.
pub fn secret(bytes: &[u8]) -> Result<&[u8], String> {
    // DER may end in the byte that ends a line.
    if let Some(key) = key_in(bytes, 0) {
        return Err(is_key(key));
    }
    let secret = trimmed(bytes);
    check(secret)?;
    Ok(secret)
}

/// The bytes before a line end at the end.
pub fn trimmed(secret: &[u8]) -> &[u8] {
    let end = secret.iter().rposition(|b| !matches!(b, b'\r' | b'\n'));
    &secret[..end.map_or(0, |end| end + 1)]
}

/// Checks the bytes of a secret.
///
/// # Errors
/// Why they are none, and the remedy.
pub fn check(secret: &[u8]) -> Result<(), String> {
    let bytes = secret.len();
    if let Some(key) = key_in(secret, 0) {
        return Err(is_key(key));
    }
    if bytes < BYTES_MIN {
        return Err(format!(
            "has {bytes} bytes, and HS256 needs {BYTES_MIN} at least; write the output of `openssl rand -hex 32`"
        ));
    }
    if bytes > BYTES_MAX {
        return Err(format!(
            "has {bytes} bytes, and a secret for HS256 has {BYTES_MAX} at most; write the output of `openssl rand -hex 32`"
        ));
    }
    Ok(())
}

fn is_key(key: &str) -> String {
    format!(
        "is {key}, and HS256 takes a secret that nobody else has; for a public key write RS256, ES256 or EdDSA and PEM or a JWKS, for a secret the output of `openssl rand -hex 32`"
    )
}

/// The key that these bytes are or hold, in any form.
fn key_in(bytes: &[u8], depth: u8) -> Option<&'static str> {
    // Longer ones are refused for their length; within the bound the tries below are cheap.
    let bytes = &bytes[..bytes.len().min(2 * BYTES_MAX)];
    if let Some(key) = in_binary(bytes) {
        return Some(key);
    }
    // UTF-16 has a zero beside each letter.
    let text: Vec<u8> = bytes.iter().copied().filter(|byte| *byte != 0).collect();
    let lower = String::from_utf8_lossy(&text).to_lowercase();
    if let Some((_, key)) = WORDS.iter().find(|(word, _)| lower.contains(word)) {
        return Some(key);
    }
    if depth == DEPTH_MAX {
        return None;
    }
    let begins =
        |at: &usize| digit64(text[*at]).is_some() && (*at == 0 || digit64(text[*at - 1]).is_none());
    let decoded = (0..text.len())
        .filter(begins)
        .flat_map(|at| [base64(&text[at..]), hex(&text[at..])]);
    decoded
        .filter(|decoded| decoded.len() >= KEY_BYTES_MIN)
        .find_map(|decoded| key_in(&decoded, depth + 1))
}

/// The key that these bytes begin with.
fn in_binary(bytes: &[u8]) -> Option<&'static str> {
    let begins = |with: &[u8]| bytes.starts_with(with);
    match der::form(bytes) {
        Some((form, length)) if length >= KEY_BYTES_MIN => return Some(form.name()),
        _ => {}
    }
    let name = bytes.get(4..).unwrap_or_default();
    let ssh = begins(&[0, 0, 0])
        && [&b"ssh-"[..], b"ecdsa-", b"sk-"]
            .iter()
            .any(|kind| name.starts_with(kind));
    let point = bytes.len() == 65 && begins(&[4]);
    match () {
        () if ssh => Some("a public key of SSH"),
        () if begins(&[0xfe, 0xed, 0xfe, 0xed]) => Some("a keystore of Java"),
        () if bytes.len() == 42 && begins(b"Ed") => Some("a key of minisign or signify"),
        () if pgp(bytes) => Some("a public key of PGP"),
        () if point && ParsedPublicKey::new(&ECDSA_P256_SHA256_FIXED, bytes).is_ok() => {
            Some("a public key (a point of P-256)")
        }
        () => None,
    }
}

/// Whether these bytes begin with a public key of PGP (RFC 9580 section 5.5.2).
fn pgp(bytes: &[u8]) -> bool {
    let packet = match bytes {
        [0x99, _, _, packet @ ..]
        | [0xc6, 192..=223, _, packet @ ..]
        | [0xc6, 0..=191, packet @ ..] => packet,
        _ => return false,
    };
    // Version, time, algorithm.
    matches!(
        packet,
        [
            3..=6,
            0x30..=0x9f,
            _,
            _,
            _,
            1..=3 | 16..=19 | 22 | 25..=28,
            ..,
        ]
    )
}

/// The value of a digit of base64, of either alphabet.
fn digit64(digit: u8) -> Option<u32> {
    Some(u32::from(match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' | b'-' => 62,
        b'/' | b'_' => 63,
        _ => return None,
    }))
}

/// The bytes that the text begins with in base64, over spaces and line ends.
fn base64(text: &[u8]) -> Vec<u8> {
    let digits = text.iter().filter(|byte| !byte.is_ascii_whitespace());
    joined(digits.map_while(|digit| digit64(*digit)), 6)
}

/// The bytes that the text begins with in hex, with any bytes between pairs: in a list or a string of C too.
fn hex(text: &[u8]) -> Vec<u8> {
    let text = text.strip_prefix(b"x").unwrap_or(text);
    let pairs = String::from_utf8_lossy(text)
        .replace("0x", "")
        .replace("\\x", "");
    let digits = pairs.chars().filter(|digit| !"\t\r\n:,- ".contains(*digit));
    joined(digits.map_while(|digit| digit.to_digit(16)), 4)
}

/// The whole bytes of these digits of so many bits.
fn joined(digits: impl Iterator<Item = u32>, bits: u32) -> Vec<u8> {
    let (mut bytes, mut held, mut count) = (Vec::new(), 0, 0);
    for digit in digits {
        held = (held << bits | digit) & 0xffff;
        count += bits;
        if count >= 8 {
            count -= 8;
            bytes.push((held >> count) as u8);
        }
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A random number of the test's own, the same in each run.
    fn random(state: &mut u64) -> u8 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state >> 32) as u8
    }

    #[test]
    fn random_secrets_are_secrets_in_every_encoding() {
        let mut state = 88_172_645_463_325_252;
        for round in 0..500 {
            let bytes: Vec<u8> = (0..32 + round % 33).map(|_| random(&mut state)).collect();
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            for secret in [&bytes[..], hex.as_bytes()] {
                assert_eq!(key_in(secret, 0), None, "{hex}");
            }
        }
    }
}
