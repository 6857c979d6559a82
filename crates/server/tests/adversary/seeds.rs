//! Seeds that once found something, whose first scripts every run of the tests plays again.
//!
//! What a seed means changes with the generators: whoever changes those looks for new ones, with `--server` and a build from
//! before the fault was mended.

/// The first scripts of a seed.
pub struct Kept {
    pub seed: u64,
    /// Which kinds of attackers played.
    pub only: &'static str,
    pub scripts: u64,
}

pub const KEPT: &[Kept] = &[];
