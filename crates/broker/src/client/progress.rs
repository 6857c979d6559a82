//! Progress of partly received input: the rest of a request's body, of a WebSocket frame or message, or of an MQTT packet
//! must keep coming, or its connection ends.
//!
//! Each input has an allowance of `timeouts.body_s` seconds at `timeouts.progress_bytes_per_s`. A second in which it was read
//! costs a second's worth of the allowance, received bytes pay that back, up to the full allowance: so neither a byte now and
//! then nor a fast beginning holds a connection. (In Apache's mod_reqtimeout a fast beginning counts for ever.) The sweep counts
//! the seconds, so that an input that is whole when it comes costs nothing. A request's head has `timeouts.head_s` as a whole,
//! see `deadlines`.

/// The progress of an input.
#[derive(Clone, Copy, Debug, Default)]
pub struct Progress {
    /// Bytes of it that had been received at the last look.
    seen: usize,
    /// Bytes that should have come by now and have not.
    behind: u64,
}

/// The allowance of each input, in bytes.
#[derive(Clone, Copy)]
pub(crate) struct Allowance {
    /// Due in each second.
    pub per_s: u64,
    /// An input that owes more is too slow.
    pub most: u64,
}

impl Progress {
    /// Counts a second in which the input was read; `held` bytes of it are there. Whether it is too slow.
    pub(crate) fn second(&mut self, held: usize, Allowance { per_s, most }: Allowance) -> bool {
        let came = held.saturating_sub(self.seen) as u64;
        if held < self.seen {
            // This is another input.
            self.behind = 0;
        }
        self.seen = held;
        self.behind = self.behind.saturating_sub(came) + per_s;
        self.behind > most
    }

    /// Bytes that should have come by now and have not.
    pub(crate) fn behind(&self) -> u64 {
        self.behind
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALLOWANCE: Allowance = Allowance {
        per_s: 500,
        most: 20 * 500,
    };

    /// Seconds until an input is too slow that starts with `first` bytes and gets `per_s` each second.
    fn lasts_s(first: usize, per_s: f64) -> Option<u32> {
        let mut progress = Progress::default();
        (1..10_000).find(|s| {
            let held = first + (per_s * f64::from(*s)) as usize;
            progress.second(held, ALLOWANCE)
        })
    }

    #[test]
    fn a_byte_now_and_then_and_a_good_beginning_do_not_hold_it() {
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
            assert!(!progress.second(s / 15 * 10_000 + 1, ALLOWANCE), "{s}");
        }
    }
}
