//! Reads and checks secrets for HS256. A public key is refused as a secret, since everyone who has the key could sign tokens.
//!
//! Invariants: a secret is shorter than any RSA key of 2,048 bits and any certificate, which have 256 bytes or more in every encoding. Keys
//! of elliptic curves can be as short as a secret. Such keys are recognized by byte patterns of the usual file formats ([`key_detection`]).
//! A bare key (32 raw bytes) has no such pattern: it cannot be distinguished from a secret, and is accepted as one.

mod decodings;
mod key_detection;

/// The minimum length of a secret for HS256, in bytes (RFC 7518 section 3.2).
pub const BYTES_MIN: usize = 32;
/// The maximum length of a secret. A longer value may be an RSA key: its modulus alone has 256 bytes, or 342 digits in base64. A longer
/// secret would not be safer, since HMAC first hashes a key of more than 64 bytes to 32 (RFC 2104 section 2).
const BYTES_MAX: usize = 255;

/// Some editors write these bytes at the beginning of UTF-8 text.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// The error message for a file in UTF-16.
pub const UTF16_ERROR: &str = "is text in UTF-16, which editors of Windows write; `iconv -f UTF-16 -t UTF-8 FILE` converts it";

/// Reads the secret in a file: the bytes without byte order mark and line end.
pub fn parse(bytes: &[u8]) -> Result<&[u8], String> {
    // The search comes before line ends are trimmed, since the last byte of a key in DER may look like a line end.
    if let Some(key) = key_detection::find_key(bytes) {
        return Err(key_error(key));
    }
    let secret = without_line_end(without_byte_order_mark(bytes));
    check(secret)?;
    Ok(secret)
}

/// The bytes without trailing line ends.
pub fn without_line_end(secret: &[u8]) -> &[u8] {
    let end = secret.iter().rposition(|b| !matches!(b, b'\r' | b'\n'));
    &secret[..end.map_or(0, |end| end + 1)]
}

/// The bytes without a byte order mark. The three bytes are a mark only if UTF-8 text follows, since a random secret may begin with them.
pub fn without_byte_order_mark(bytes: &[u8]) -> &[u8] {
    let text = bytes.strip_prefix(BYTE_ORDER_MARK);
    text.filter(|text| std::str::from_utf8(text).is_ok())
        .unwrap_or(bytes)
}

/// Whether this is text in UTF-16: in one of the two byte orders, at least three quarters of its two-byte units are an ASCII character
/// (one byte is the character, the other is zero). A random secret never is.
pub fn is_utf16(bytes: &[u8]) -> bool {
    let units = bytes.as_chunks::<2>().0;
    let ascii_units = |at: usize| {
        let is_ascii = |unit: &&[u8; 2]| matches!((unit[at], unit[1 - at]), (1..=127, 0));
        units.iter().filter(is_ascii).count()
    };
    let ascii = ascii_units(0).max(ascii_units(1));
    ascii > 0 && 4 * ascii >= 3 * units.len()
}

/// Checks that these bytes are a good secret.
///
/// # Errors
/// The bytes are a key, text in UTF-16, too short, too long, or all the same. The message names the remedy.
pub fn check(secret: &[u8]) -> Result<(), String> {
    let bytes = secret.len();
    if let Some(key) = key_detection::find_key(secret) {
        return Err(key_error(key));
    }
    if is_utf16(secret) {
        return Err(UTF16_ERROR.to_string());
    }
    if bytes < BYTES_MIN {
        return Err(format!(
            "has {bytes} bytes, and HS256 needs {BYTES_MIN} at least; write the output of `openssl rand -hex 32`"
        ));
    }
    if bytes > BYTES_MAX {
        return Err(format!(
            "has {bytes} bytes, and HS256 takes a secret of {BYTES_MAX} at most, since public keys are longer; write the output of `openssl rand -hex 32`, or for a public key RS256, ES256 or EdDSA"
        ));
    }
    if secret.iter().all(|byte| *byte == secret[0]) {
        return Err(format!(
            "is one byte {bytes} times, which anybody can guess; write the output of `openssl rand -hex 32`"
        ));
    }
    Ok(())
}

/// The error message for a file that is a key.
fn key_error(key: &str) -> String {
    format!(
        "is {key}, and HS256 takes a secret that nobody else has; for a public key write RS256, ES256 or EdDSA and PEM or a JWKS, for a secret the output of `openssl rand -hex 32`"
    )
}

#[cfg(test)]
mod tests;
