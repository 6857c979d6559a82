//! Secrets for HS256, and why a public key is none: everyone who has it could make tokens.
//!
//! Invariants: no secret is as long as an RSA key of 2,048 bits or a certificate, which have 256 bytes or more in every encoding; a shorter key, of a curve, is
//! refused by its marks, in every form that a file of one has ([`marks`]). A file without any of these forms (32 raw bytes) looks like a secret and
//! is taken for one.

mod decoded;
mod marks;

/// Least length of a secret for HS256, in bytes (RFC 7518 section 3.2).
pub const BYTES_MIN: usize = 32;
/// More may be an RSA key in some encoding: the modulus alone has 256 bytes, 342 digits in base64. HMAC hashes all past 64 bytes to 32
/// first (RFC 2104 section 2), so a longer secret is no better.
const BYTES_MAX: usize = 255;

/// Some editors write it before a text in UTF-8.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";
/// Why a file in UTF-16 is refused, and the remedy.
pub const UTF16: &str = "is text in UTF-16, which editors of Windows write; `iconv -f UTF-16 -t UTF-8 FILE` converts it";

/// The secret in a file: a text file ends in a line end that is not part of it, and may begin with a byte order mark.
///
/// # Errors
/// Why it is none, and the remedy.
pub fn secret(bytes: &[u8]) -> Result<&[u8], String> {
    // DER may end in the byte that ends a line.
    if let Some(key) = marks::key_in(bytes) {
        return Err(is_key(key));
    }
    let secret = trimmed(without_mark(bytes));
    check(secret)?;
    Ok(secret)
}

/// The bytes before a line end at the end.
pub fn trimmed(secret: &[u8]) -> &[u8] {
    let end = secret.iter().rposition(|b| !matches!(b, b'\r' | b'\n'));
    &secret[..end.map_or(0, |end| end + 1)]
}

/// The bytes behind a byte order mark, where text follows it: random bytes may begin with the same three.
pub fn without_mark(bytes: &[u8]) -> &[u8] {
    let text = bytes.strip_prefix(BYTE_ORDER_MARK);
    text.filter(|text| std::str::from_utf8(text).is_ok())
        .unwrap_or(bytes)
}

/// Whether this is text in UTF-16: three quarters of its units, or more, are an ASCII character beside a zero. No random secret is so.
pub fn is_utf16(bytes: &[u8]) -> bool {
    let units = bytes.as_chunks::<2>().0;
    let of = |at: usize| {
        let is_ascii = |unit: &&[u8; 2]| matches!((unit[at], unit[1 - at]), (1..=127, 0));
        units.iter().filter(is_ascii).count()
    };
    let ascii = of(0).max(of(1));
    ascii > 0 && 4 * ascii >= 3 * units.len()
}

/// Checks the bytes of a secret.
///
/// # Errors
/// Why they are none, and the remedy.
pub fn check(secret: &[u8]) -> Result<(), String> {
    let bytes = secret.len();
    if let Some(key) = marks::key_in(secret) {
        return Err(is_key(key));
    }
    if is_utf16(secret) {
        return Err(UTF16.to_string());
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

fn is_key(key: &str) -> String {
    format!(
        "is {key}, and HS256 takes a secret that nobody else has; for a public key write RS256, ES256 or EdDSA and PEM or a JWKS, for a secret the output of `openssl rand -hex 32`"
    )
}

#[cfg(test)]
mod tests;
