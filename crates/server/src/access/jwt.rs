//! Reads the parts of a JWT (RFC 7515, section 7.1), without verifying the signature.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

/// Whether a token has the three parts of a JWT. Decodes nothing.
pub fn has_parts(token: &[u8]) -> bool {
    token.iter().filter(|b| **b == b'.').count() == 2
}

/// The JSON members of part `n` of a token, without verifying the token. Part 0 is the header, part 1 the claims.
pub fn part(token: &[u8], n: usize) -> Option<Map<String, Value>> {
    if !has_parts(token) {
        return None;
    }
    let text = token.split(|b| *b == b'.').nth(n)?;
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()
}
