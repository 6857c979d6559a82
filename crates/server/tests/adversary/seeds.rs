//! Seeds that once found something, and how many of their scripts are played again in every run of the tests.

/// A seed, and how many scripts.
pub const KEPT: &[(u64, u64)] = &[];
