//! Time, as the shard receives it: the broker has no clock.

/// One moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Seconds since the shard began; never falls.
    pub s: u32,
    /// Unix seconds.
    pub unix_s: u32,
}
