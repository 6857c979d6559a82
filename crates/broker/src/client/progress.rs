//! Finds input that arrives too slowly, so that its connection must end: the rest of a request's body, of a WebSocket frame or message, or
//! of an MQTT packet.
//!
//! Each input has an allowance of `timeouts.body_s` seconds at `timeouts.progress_bytes_per_s`. Each second of reading the input
//! costs one second of the allowance. Received bytes pay it back, up to the full allowance. A client can hold a connection neither with a
//! byte now and then nor with a fast beginning. (In Apache's mod_reqtimeout a fast beginning counts for ever.) The walk
//! over all connections (`shard/tick.rs`) counts the seconds, so an input that arrives at once costs nothing. A request's head has
//! `timeouts.head_s` in all, see `deadlines`.

/// The progress of an input.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// The received bytes of the input at the last check.
    counted_bytes: usize,
    /// How many bytes the input is behind: those that should have arrived and have not.
    bytes_behind: u64,
}

/// The allowance of each input, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Allowance {
    /// The bytes due in each second.
    pub bytes_per_s: u64,
    /// An input that is behind by more bytes is too slow.
    pub bytes_behind_max: u64,
}

impl Progress {
    /// Counts a second of reading the input. `held` is the number of its bytes received so far. Returns whether the input is too
    /// slow.
    pub(crate) fn count_second(
        &mut self,
        held: usize,
        Allowance {
            bytes_per_s,
            bytes_behind_max,
        }: Allowance,
    ) -> bool {
        let new_bytes = held.saturating_sub(self.counted_bytes) as u64;
        if held < self.counted_bytes {
            // Fewer bytes than before: another input has begun.
            self.bytes_behind = 0;
        }
        self.counted_bytes = held;
        self.bytes_behind = self.bytes_behind.saturating_sub(new_bytes) + bytes_per_s;
        self.bytes_behind > bytes_behind_max
    }

    /// How many bytes the input is behind.
    pub(crate) fn bytes_behind(&self) -> u64 {
        self.bytes_behind
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWANCE: Allowance = Allowance {
        bytes_per_s: 500,
        bytes_behind_max: 20 * 500,
    };

    /// The seconds until an input is too slow, if it starts with `first` bytes and then gets `per_s` bytes each second.
    fn lasts_s(first: usize, per_s: f64) -> Option<u32> {
        let mut progress = Progress::default();
        (1..10_000).find(|s| {
            let held = first + (per_s * f64::from(*s)) as usize;
            progress.count_second(held, ALLOWANCE)
        })
    }

    #[test]
    fn slow_bytes_after_a_fast_beginning_do_not_hold_the_connection() {
        // The check that finds the allowance used up comes after its last second.
        assert_eq!(lasts_s(1, 0.0), Some(21));
        assert_eq!(lasts_s(1 << 20, 0.0), Some(21));
        assert_eq!(lasts_s(1 << 20, 0.1), Some(21));
        assert_eq!(lasts_s(0, 250.0), Some(40), "half of what is due");
        assert_eq!(lasts_s(0, 500.0), None);
        assert_eq!(lasts_s(0, 1e5), None);
    }

    #[test]
    fn bytes_in_pieces_pay_for_the_seconds_between_them() {
        let mut progress = Progress::default();
        for s in 0..2_000 {
            // Ten kilobytes every fifteen seconds.
            assert!(
                !progress.count_second(s / 15 * 10_000 + 1, ALLOWANCE),
                "{s}"
            );
        }
    }
}
