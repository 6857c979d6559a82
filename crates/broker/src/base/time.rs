//! Defines how the broker gets the time. The broker has no clock: its caller passes the time with each input.
//!
//! There are three clocks:
//! * [`Now::s`] counts seconds for the deadlines of peers.
//! * [`Now::unix_s`] counts Unix seconds (*counted seconds*) for everything with a lifetime. It never goes back, and does not jump when the
//!   wall clock jumps.
//! * The wall clock (`Wall::unix_s`) may jump. It is used only for dates that clients or operators see or send, and for the expiry of
//!   tokens. `Wall` converts between counted seconds and dates.

/// A point in time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Now {
    /// Seconds since the shard started, without the time in which the machine was suspended. Used for the deadlines of peers: peers could
    /// send nothing to a suspended machine, so that time must not count.
    pub s: u32,
    /// The counted second. The count starts with the time of the wall clock and rises by one each second, also while the machine is
    /// suspended. It never goes back, and a planned restart continues it, so it may differ from the wall clock. Used for ages, times to
    /// live, sessions, the window of idempotency keys, and rates.
    pub unix_s: u32,
}

/// The difference between the wall clock and [`Now::unix_s`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Wall {
    offset_s: i32,
    /// The maximum of `offset_s` so far.
    offset_s_max: i32,
}

impl Wall {
    /// Sets the wall clock's offset from `Now::unix_s`. The offset is negative if the wall clock is behind.
    pub fn set(&mut self, offset_s: i32) {
        self.offset_s = offset_s;
        self.offset_s_max = self.offset_s_max.max(offset_s);
    }

    /// The time of the wall clock in Unix seconds. It may differ from [`Now::unix_s`], which does not jump.
    pub fn unix_s(self, now: Now) -> u32 {
        now.unix_s.saturating_add_signed(self.offset_s)
    }

    /// The date of a counted second, in Unix seconds of the wall clock. Another shard may be a second ahead. If `counted_s` comes from that
    /// shard, the date is now, so that no date is in the future.
    pub fn date_of(self, counted_s: u32, now: Now) -> u32 {
        counted_s
            .min(now.unix_s)
            .saturating_add_signed(self.offset_s)
    }

    /// The counted second that a client means by the date `unix_s`. If the date is in the future, the server probably sent it to the client
    /// before the wall clock was set back. Then the client means the counted second that had this date at that time.
    pub fn counted_second_of(self, unix_s: u64, now: Now) -> u32 {
        let is_in_future = unix_s > u64::from(self.unix_s(now));
        let offset_s = if is_in_future {
            self.offset_s_max
        } else {
            self.offset_s
        };
        let counted_s =
            i64::try_from(unix_s).map_or(i64::MAX, |date_s| date_s - i64::from(offset_s));
        counted_s.clamp(0, u32::MAX.into()) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Now = Now {
        s: 1,
        unix_s: 1_000_000,
    };
    const DAY_S: i32 = 86_400;

    #[test]
    fn date_that_was_sent_gives_its_counted_second_after_any_clock_steps() {
        for steps in [
            &[0][..],
            &[DAY_S],
            &[DAY_S, 0],
            &[-DAY_S],
            &[1, 0],
            &[DAY_S, 7],
        ] {
            let mut wall = Wall::default();
            let mut sent_dates = alloc::vec::Vec::new();
            for offset_s in steps {
                wall.set(*offset_s);
                sent_dates.push(wall.date_of(NOW.unix_s - 5, NOW));
                assert_eq!(
                    wall.counted_second_of(sent_dates[sent_dates.len() - 1].into(), NOW),
                    NOW.unix_s - 5
                );
            }
            // A date that was sent before the clock was set back must still give its counted second, as long as the date is in the future.
            for date in sent_dates
                .into_iter()
                .filter(|date| *date > wall.unix_s(NOW))
            {
                assert_eq!(
                    wall.counted_second_of(date.into(), NOW),
                    NOW.unix_s - 5,
                    "{steps:?}"
                );
            }
        }
    }

    #[test]
    fn no_date_is_later_than_now() {
        for offset_s in [0, DAY_S, -DAY_S, i32::MIN, i32::MAX] {
            let mut wall = Wall::default();
            wall.set(offset_s);
            for counted_s in [0, NOW.unix_s - 1, NOW.unix_s, NOW.unix_s + 1, u32::MAX] {
                assert!(wall.date_of(counted_s, NOW) <= wall.unix_s(NOW));
            }
            for date in [0, 1, u64::from(u32::MAX) + 1, u64::MAX] {
                _ = wall.counted_second_of(date, NOW);
            }
        }
    }
}
