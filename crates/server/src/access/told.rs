//! Tells the operator that clients are refused: once in a while, with what to do, however many there are.

use crore_broker::Stats;
use crore_broker::access::Refusal;

use super::remedy;

/// How often it is said, at most.
const TELL_EVERY_S: u32 = 60;

/// What one shard has told.
#[derive(Default)]
pub struct Told {
    refused: u64,
    oversized: u64,
    denied: u64,
    /// The second until which nothing more is said.
    quiet_until_s: u32,
}

impl Told {
    /// Whether something came that was not said yet.
    pub fn waits(&self, stats: &Stats) -> bool {
        (stats.refused, stats.denied) != (self.refused, self.denied)
    }

    /// Says what came since it was last said.
    pub fn tell(&mut self, stats: &Stats, now_s: u32) {
        if now_s < self.quiet_until_s || !self.waits(stats) {
            return;
        }
        let (refused, denied) = (stats.refused - self.refused, stats.denied - self.denied);
        let oversized = stats.oversized - self.oversized;
        (self.refused, self.denied) = (stats.refused, stats.denied);
        self.oversized = stats.oversized;
        self.quiet_until_s = now_s + TELL_EVERY_S;
        tracing::warn!(
            refused,
            denied,
            "clients came with worthless credentials, or without a grant for what they asked for; \
             `crore token inspect --config FILE` shows what a token grants (docs/ACCESS.md)"
        );
        // The one refusal that no thread but the shard's sees, and so tells nobody else of.
        if oversized > 0 {
            let (reason, remedy) = (Refusal::TooLong.reason(), remedy(Refusal::TooLong));
            tracing::warn!(
                refused = oversized,
                "credentials refused: {reason}; {remedy}"
            );
        }
    }
}
