//! The parts of a JWT (RFC 7515, section 7.1), as text that nobody has verified.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Map, Value};

/// Whether a token has the three parts of a JWT. Nothing of it is decoded.
pub fn has_parts(token: &[u8]) -> bool {
    token.iter().filter(|b| **b == b'.').count() == 2
}

/// The members of one of a token's first two parts, not verified.
pub fn part(token: &[u8], n: usize) -> Option<Map<String, Value>> {
    if !has_parts(token) {
        return None;
    }
    let text = token.split(|b| *b == b'.').nth(n)?;
    serde_json::from_slice(&URL_SAFE_NO_PAD.decode(text).ok()?).ok()
}
