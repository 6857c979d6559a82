//! The topics under `$SYS/broker` and their values: totals of all shards (`budget/totals.rs`). Readers compute rates from two values.

use alloc::format;
use alloc::string::String;

use crate::budget::totals::Total::{self, *};
use crate::budget::totals::{Added, Totals};

pub(super) const TOPICS: &[(&str, Says)] = &[
    ("$SYS/broker/version", Says::Version),
    ("$SYS/broker/uptime", Says::Uptime),
    ("$SYS/broker/bytes/received", Says::Sum(&[ReceivedBytes])),
    ("$SYS/broker/bytes/sent", Says::Sum(&[SentBytes])),
    (
        "$SYS/broker/clients/connected",
        Says::Sum(&[ClientsConnected]),
    ),
    ("$SYS/broker/clients/active", Says::Sum(&[ClientsConnected])),
    ("$SYS/broker/clients/disconnected", Says::Away),
    ("$SYS/broker/clients/inactive", Says::Away),
    ("$SYS/broker/clients/total", Says::Sum(&[Sessions])),
    ("$SYS/broker/clients/maximum", Says::ClientsMax),
    ("$SYS/broker/clients/expired", Says::Sum(&[SessionsExpired])),
    ("$SYS/broker/messages/received", Says::Sum(RECEIVED)),
    ("$SYS/broker/messages/sent", Says::Sum(SENT)),
    ("$SYS/broker/messages/stored", Says::Sum(&[Kept])),
    (
        "$SYS/broker/publish/messages/received",
        Says::Sum(&[Published]),
    ),
    ("$SYS/broker/publish/messages/sent", Says::Sum(&[Delivered])),
    ("$SYS/broker/publish/messages/dropped", Says::Sum(DROPPED)),
    (
        "$SYS/broker/publish/bytes/received",
        Says::Sum(&[PublishedBytes]),
    ),
    (
        "$SYS/broker/publish/bytes/sent",
        Says::Sum(&[DeliveredBytes]),
    ),
    (
        "$SYS/broker/subscriptions/count",
        Says::Sum(&[Subscriptions, Filters]),
    ),
    (
        "$SYS/broker/shared_subscriptions/count",
        Says::Sum(&[Groups]),
    ),
    (
        "$SYS/broker/retained messages/count",
        Says::Sum(&[Retained]),
    ),
    ("$SYS/broker/store/messages/count", Says::Sum(&[Kept])),
    ("$SYS/broker/store/messages/bytes", Says::Sum(&[KeptBytes])),
    ("$SYS/broker/crore/connections", Says::Sum(&[Connections])),
    ("$SYS/broker/crore/gaps", Says::Sum(&[Gaps])),
];

/// With MQTT packets count, with other protocols messages.
const RECEIVED: &[Total] = &[Published, PacketsReceived];
const SENT: &[Total] = &[Delivered, PacketsSent];
/// The number of messages in a gap is unknown: a gap counts as one.
const DROPPED: &[Total] = &[Dropped, Gaps];

const _: () = assert!(
    TOPICS.len() <= u32::BITS as usize,
    "each has a bit of `watched`"
);

/// The kind of a topic's value.
#[derive(Clone, Copy)]
pub(super) enum Says {
    Version,
    Uptime,
    Away,
    ClientsMax,
    Sum(&'static [Total]),
}

/// A shard's state of these topics.
pub(crate) struct SysTopics {
    /// This shard's part of the totals.
    pub added: Added,
    /// The topics with subscribers, a bit each.
    watched: u32,
    /// The second of the next publish.
    due_s: u32,
}

impl SysTopics {
    pub fn new() -> SysTopics {
        SysTopics {
            added: Added::default(),
            // All set, so that values published by the former process are removed where nobody subscribes.
            watched: u32::MAX,
            due_s: 0,
        }
    }

    /// Whether the next publish is due; if so, schedules the one after it.
    pub fn is_due(&mut self, now_s: u32, interval_s: u32) -> bool {
        let due = now_s >= self.due_s;
        if due {
            self.due_s = now_s + interval_s;
        }
        due
    }

    /// Notes whether the topic at this index of [`TOPICS`] has subscribers; returns whether it had.
    pub fn watch(&mut self, topic: usize, is_watched: bool) -> bool {
        let bit = 1 << topic;
        let was_watched = self.watched & bit != 0;
        match is_watched {
            true => self.watched |= bit,
            false => self.watched &= !bit,
        }
        was_watched
    }

    pub(super) fn text(says: Says, totals: &Totals, now_s: u32) -> String {
        let number = match says {
            Says::Version => {
                return String::from(concat!("crore version ", env!("CARGO_PKG_VERSION")));
            }
            Says::Uptime => return format!("{} seconds", now_s),
            // The two are not read at the same moment.
            Says::Away => totals
                .get(Sessions)
                .saturating_sub(totals.get(ClientsConnected)),
            Says::ClientsMax => totals.clients_max(),
            Says::Sum(of) => sum(totals, of),
        };
        format!("{number}")
    }
}

fn sum(totals: &Totals, of: &[Total]) -> u64 {
    of.iter().map(|total| totals.get(*total)).sum()
}
