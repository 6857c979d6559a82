//! The signature algorithms of tokens, and the type of a key. Each key may be used with one algorithm only.

use jsonwebtoken::{Algorithm, DecodingKey};

/// The supported algorithms, by their names in settings and tokens.
pub const ALGORITHMS: [(&str, Algorithm); 4] = [
    ("HS256", Algorithm::HS256),
    ("RS256", Algorithm::RS256),
    ("ES256", Algorithm::ES256),
    ("EdDSA", Algorithm::EdDSA),
];

/// Largest size of a key file. A larger file must be something else.
pub const FILE_BYTES_MAX: u64 = 1 << 20;

/// A key and its only algorithm.
pub struct Key {
    pub kid: Option<String>,
    pub algorithm: Algorithm,
    pub key: DecodingKey,
}

/// The algorithm with this name, if it is supported.
pub fn algorithm(name: &str) -> Option<Algorithm> {
    ALGORITHMS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, algorithm)| *algorithm)
}

/// The error message for an unsupported algorithm name.
pub fn not_offered(name: &str) -> String {
    format!("`{name}` is not offered; write HS256, RS256, ES256 or EdDSA")
}
