//! Time as the shard is told it: the broker has no clock.

/// One moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Seconds since the shard began, rising steadily.
    pub s: u32,
    /// Unix seconds.
    pub unix_s: u32,
}
