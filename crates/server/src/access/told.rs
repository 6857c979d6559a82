//! Tells the operator that clients are refused: once in a while, with what to do, however many there are.

use crore_broker::Stats;

/// How often it is said, at most.
const TELL_EVERY_S: u32 = 60;

/// What one shard has told.
#[derive(Default)]
pub struct Told {
    refused: u64,
    denied: u64,
    /// The second until which nothing more is said.
    quiet_until_s: u32,
}

impl Told {
    /// Says what came since it was last said.
    pub fn tell(&mut self, stats: &Stats, now_s: u32) {
        if now_s < self.quiet_until_s
            || (stats.refused, stats.denied) == (self.refused, self.denied)
        {
            return;
        }
        let (refused, denied) = (stats.refused - self.refused, stats.denied - self.denied);
        (self.refused, self.denied) = (stats.refused, stats.denied);
        self.quiet_until_s = now_s + TELL_EVERY_S;
        tracing::warn!(
            refused,
            denied,
            "clients came with worthless credentials, or without a grant for what they asked for; \
             `crore token inspect --config FILE` shows what a token grants (docs/ACCESS.md)"
        );
    }
}
