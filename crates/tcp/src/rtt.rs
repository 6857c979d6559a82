//! The estimate of the round trip, and the retransmission timeout that follows from it (RFC 6298). The row of each connection contains its estimate.

use crate::config::Config;

/// The estimate. Without a sample both numbers are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rtt {
    /// The smoothed round trip.
    pub smoothed_us: u32,
    /// Its mean deviation.
    pub deviation_us: u32,
}

impl Rtt {
    /// Takes a sample.
    pub fn sample(&mut self, sample_us: u32) {
        let sample_us = sample_us.clamp(1, 1 << 30);
        if self.smoothed_us == 0 {
            *self = Rtt {
                smoothed_us: sample_us,
                deviation_us: sample_us / 2,
            };
            return;
        }
        let difference = self.smoothed_us.abs_diff(sample_us);
        self.deviation_us = self.deviation_us - self.deviation_us / 4 + difference / 4;
        self.smoothed_us = (self.smoothed_us - self.smoothed_us / 8 + sample_us / 8).max(1);
    }

    /// The timeout after `backoff` timeouts in a row.
    pub fn timeout_us(&self, config: &Config, backoff: u8) -> u64 {
        let base = if self.smoothed_us == 0 {
            u64::from(config.rto_first_us)
        } else {
            u64::from(self.smoothed_us) + 4 * u64::from(self.deviation_us)
        };
        let base = base.max(config.rto_min_us.into());
        (base << backoff.min(16)).min(config.rto_max_us.into())
    }
}
