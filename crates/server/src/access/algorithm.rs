//! The algorithms of tokens, and a key that is bound to one.

use jsonwebtoken::{Algorithm, DecodingKey};

/// The algorithms, as settings and tokens call them.
pub const ALGORITHMS: [(&str, Algorithm); 4] = [
    ("HS256", Algorithm::HS256),
    ("RS256", Algorithm::RS256),
    ("ES256", Algorithm::ES256),
    ("EdDSA", Algorithm::EdDSA),
];
/// A file of keys is small; anything larger is another file.
pub const FILE_BYTES_MAX: u64 = 1 << 20;
/// A key and the only algorithm that it is for.
pub struct Key {
    pub kid: Option<String>,
    pub algorithm: Algorithm,
    pub key: DecodingKey,
}

/// The algorithm of this name, if it is offered.
pub fn algorithm(name: &str) -> Option<Algorithm> {
    ALGORITHMS
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, algorithm)| *algorithm)
}

/// The error for another name.
pub fn not_offered(name: &str) -> String {
    format!("`{name}` is not offered; write HS256, RS256, ES256 or EdDSA")
}
