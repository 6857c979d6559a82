//! The values of the topics under `$SYS/broker`: sums of all shards, and averages of how fast they rise.
//!
//! Invariant: averages go on without subscribers, at some multiplications a second and home.

use alloc::format;
use alloc::string::String;

use crate::budget::totals::Total::{self, *};
use crate::budget::totals::Totals;

/// The topics, below `$SYS/broker/`, and the value of each.
const TOPICS: [(&str, Says); 26] = [
    ("version", Says::Version),
    ("uptime", Says::Uptime),
    ("bytes/received", Says::Sum(&[ReceivedBytes])),
    ("bytes/sent", Says::Sum(&[SentBytes])),
    ("clients/connected", Says::Sum(&[ClientsConnected])),
    ("clients/active", Says::Sum(&[ClientsConnected])),
    ("clients/disconnected", Says::Away),
    ("clients/inactive", Says::Away),
    ("clients/total", Says::Sum(&[Sessions])),
    ("clients/maximum", Says::ClientsMax),
    ("clients/expired", Says::Sum(&[SessionsExpired])),
    ("messages/received", Says::Sum(RECEIVED)),
    ("messages/sent", Says::Sum(SENT)),
    ("messages/stored", Says::Sum(&[Kept])),
    ("publish/messages/received", Says::Sum(&[Published])),
    ("publish/messages/sent", Says::Sum(&[Delivered])),
    ("publish/messages/dropped", Says::Sum(DROPPED)),
    ("publish/bytes/received", Says::Sum(&[PublishedBytes])),
    ("publish/bytes/sent", Says::Sum(&[DeliveredBytes])),
    ("subscriptions/count", Says::Sum(&[Subscriptions, Filters])),
    ("shared_subscriptions/count", Says::Sum(&[Groups])),
    ("retained messages/count", Says::Sum(&[Retained])),
    ("store/messages/count", Says::Sum(&[Kept])),
    ("store/messages/bytes", Says::Sum(&[KeptBytes])),
    ("crore/connections", Says::Sum(&[Connections])),
    ("crore/gaps", Says::Sum(&[Gaps])),
];

/// The averages, below `$SYS/broker/load/`.
const LOADS: [(&str, &[Total]); 9] = [
    ("messages/received", RECEIVED),
    ("messages/sent", SENT),
    ("publish/received", &[Published]),
    ("publish/sent", &[Delivered]),
    ("publish/dropped", DROPPED),
    ("bytes/received", &[ReceivedBytes]),
    ("bytes/sent", &[SentBytes]),
    ("sockets", &[Accepted]),
    ("connections", &[Connects]),
];

/// The window of an average, and the weight of the old average after a second: e to the power of -1 s / window.
const WINDOWS: [(&str, f64); 3] = [
    ("1min", 0.983_471_453_821_617_5),
    ("5min", 0.996_672_216_054_523_3),
    ("15min", 0.998_889_505_944_279_3),
];

/// Messages of MQTT are packets, and those of other protocols are messages.
const RECEIVED: &[Total] = &[Published, PacketsReceived];
const SENT: &[Total] = &[Delivered, PacketsSent];
/// The number of messages in a gap is unknown; it is one at least.
const DROPPED: &[Total] = &[Dropped, Gaps];

const COUNT: usize = TOPICS.len() + LOADS.len() * WINDOWS.len();
const _: () = assert!(COUNT <= u64::BITS as usize, "each has a bit of `watched`");

/// The kind of a topic's value.
#[derive(Clone, Copy)]
pub(super) enum Says {
    Version,
    Uptime,
    Away,
    ClientsMax,
    Sum(&'static [Total]),
    /// Which load, over which window.
    Load(usize, usize),
}

/// A shard's state of these topics.
pub(crate) struct Gauges {
    /// The topics with subscribers, a bit each.
    watched: u64,
    /// The second of their next message.
    due_s: u32,
    loads: [Load; LOADS.len()],
    averaged_s: u32,
}

/// A number that rises, and how fast it does.
#[derive(Clone, Copy, Default)]
struct Load {
    last: u64,
    per_min: [f64; WINDOWS.len()],
}

impl Gauges {
    /// At the beginning of a shard, when all averages are 0.
    pub fn new(now_s: u32) -> Gauges {
        Gauges {
            // All bits are set, so that values told by a predecessor are forgotten where nobody subscribes any more.
            watched: u64::MAX,
            due_s: 0,
            loads: Default::default(),
            averaged_s: now_s,
        }
    }

    /// Takes the changes since the last call into the averages.
    pub fn average(&mut self, totals: &Totals, now_s: u32) {
        let passed_s = now_s.saturating_sub(self.averaged_s);
        if passed_s == 0 {
            return;
        }
        self.averaged_s = now_s;
        let left = WINDOWS.map(|(_, per_s)| power(per_s, passed_s));
        for (load, (_, of)) in self.loads.iter_mut().zip(LOADS) {
            let now = sum(totals, of);
            let more = now.saturating_sub(load.last) as f64;
            load.last = now;
            let per_min = more * 60.0 / f64::from(passed_s);
            for (average, left) in load.per_min.iter_mut().zip(left) {
                *average = per_min + (*average - per_min) * left;
            }
        }
    }

    /// Whether topics are told whose value was told before; then they are again after so many seconds.
    pub fn is_due(&mut self, now_s: u32, interval_s: u32) -> bool {
        let due = now_s >= self.due_s;
        if due {
            self.due_s = now_s + interval_s;
        }
        due
    }

    /// Notes whether the topic at this place in [`topics`] has subscribers; returns whether it had.
    pub fn watch(&mut self, topic: usize, is_watched: bool) -> bool {
        let bit = 1 << topic;
        let was_watched = self.watched & bit != 0;
        match is_watched {
            true => self.watched |= bit,
            false => self.watched &= !bit,
        }
        was_watched
    }

    /// The value of a topic.
    pub(super) fn text(&self, says: Says, totals: &Totals, now_s: u32) -> String {
        let number = match says {
            Says::Version => {
                return String::from(concat!("crore version ", env!("CARGO_PKG_VERSION")));
            }
            Says::Uptime => return format!("{} seconds", now_s),
            Says::Load(load, window) => {
                return format!("{:.2}", self.loads[load].per_min[window]);
            }
            // The two are not counted at the same moment.
            Says::Away => totals
                .get(Sessions)
                .saturating_sub(totals.get(ClientsConnected)),
            Says::ClientsMax => totals.clients_max(),
            Says::Sum(of) => sum(totals, of),
        };
        format!("{number}")
    }
}

/// All topics: the name below `$SYS/broker/`, in two parts, and the value.
pub(super) fn topics() -> impl Iterator<Item = (&'static str, &'static str, &'static str, Says)> {
    let plain = TOPICS.iter().map(|(name, says)| ("", *name, "", *says));
    let loads = LOADS.iter().enumerate().flat_map(|(load, (name, _))| {
        let of = move |(window, (over, _)): (usize, &(&'static str, f64))| {
            ("load/", *name, *over, Says::Load(load, window))
        };
        WINDOWS.iter().enumerate().map(of)
    });
    plain.chain(loads)
}

/// `base` to the power of a whole number, which `core` has not.
fn power(base: f64, mut exponent: u32) -> f64 {
    let (mut result, mut square) = (1.0, base);
    while exponent > 0 {
        if exponent & 1 == 1 {
            result *= square;
        }
        square *= square;
        exponent >>= 1;
    }
    result
}

fn sum(totals: &Totals, of: &[Total]) -> u64 {
    of.iter().map(|total| totals.get(*total)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::budget::stats::Moved;

    #[test]
    fn an_average_comes_near_the_rate_in_its_own_time_however_often_it_is_looked_at() {
        for step_s in [1, 7, 60] {
            let (totals, mut sys) = (Totals::default(), Gauges::new(0));
            let mut added = crate::budget::totals::Added::default();
            for now_s in (step_s..=60).step_by(step_s as usize) {
                let moved = Moved {
                    received_bytes: 10 * u64::from(now_s),
                    sent_bytes: 0,
                };
                added.update(&totals, &Default::default(), &Default::default(), moved);
                sys.average(&totals, now_s);
            }
            let load = sys.loads[5];
            let min = f64::from(60 / step_s * step_s);
            for (average, window_s) in load.per_min.into_iter().zip([60.0, 300.0, 900.0]) {
                let expected = 600.0 * (1.0 - f64::exp(-min / window_s));
                assert!((average - expected).abs() < 0.001, "{average} {expected}");
            }
            assert_eq!(sys.loads[6].per_min, [0.0; 3], "nothing was sent");
        }
    }
}
