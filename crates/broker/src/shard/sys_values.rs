//! The topics under `$SYS/broker` and their values, which are totals of all shards (`budget/totals.rs`). There are no rates: readers
//! compute a rate from two values.

use alloc::format;
use alloc::string::String;

use crate::budget::totals::Total::{self, *};
use crate::budget::totals::{AddedCounts, Totals};

pub(super) const TOPICS: &[(&str, SysValue)] = &[
    ("$SYS/broker/version", SysValue::Version),
    ("$SYS/broker/uptime", SysValue::Uptime),
    (
        "$SYS/broker/bytes/received",
        SysValue::Sum(&[ReceivedBytes]),
    ),
    ("$SYS/broker/bytes/sent", SysValue::Sum(&[SentBytes])),
    (
        "$SYS/broker/clients/connected",
        SysValue::Sum(&[ClientsConnected]),
    ),
    (
        "$SYS/broker/clients/active",
        SysValue::Sum(&[ClientsConnected]),
    ),
    (
        "$SYS/broker/clients/disconnected",
        SysValue::DisconnectedSessions,
    ),
    (
        "$SYS/broker/clients/inactive",
        SysValue::DisconnectedSessions,
    ),
    ("$SYS/broker/clients/total", SysValue::Sum(&[Sessions])),
    ("$SYS/broker/clients/maximum", SysValue::ClientsMax),
    (
        "$SYS/broker/clients/expired",
        SysValue::Sum(&[SessionsExpired]),
    ),
    ("$SYS/broker/messages/received", SysValue::Sum(RECEIVED)),
    ("$SYS/broker/messages/sent", SysValue::Sum(SENT)),
    ("$SYS/broker/messages/stored", SysValue::Sum(&[Kept])),
    (
        "$SYS/broker/publish/messages/received",
        SysValue::Sum(&[Published]),
    ),
    (
        "$SYS/broker/publish/messages/sent",
        SysValue::Sum(&[Delivered]),
    ),
    (
        "$SYS/broker/publish/messages/dropped",
        SysValue::Sum(DROPPED),
    ),
    (
        "$SYS/broker/publish/bytes/received",
        SysValue::Sum(&[PublishedBytes]),
    ),
    (
        "$SYS/broker/publish/bytes/sent",
        SysValue::Sum(&[DeliveredBytes]),
    ),
    (
        "$SYS/broker/subscriptions/count",
        SysValue::Sum(&[Subscriptions, Filters]),
    ),
    (
        "$SYS/broker/shared_subscriptions/count",
        SysValue::Sum(&[Groups]),
    ),
    (
        "$SYS/broker/retained messages/count",
        SysValue::Sum(&[Retained]),
    ),
    ("$SYS/broker/store/messages/count", SysValue::Sum(&[Kept])),
    (
        "$SYS/broker/store/messages/bytes",
        SysValue::Sum(&[KeptBytes]),
    ),
    (
        "$SYS/broker/crore/connections",
        SysValue::Sum(&[Connections]),
    ),
    ("$SYS/broker/crore/gaps", SysValue::Sum(&[Gaps])),
];

/// MQTT counts all packets, the other protocols only messages. `Published` and `Delivered` count the messages of all protocols, so the other
/// two totals count only the MQTT packets that are not messages.
const RECEIVED: &[Total] = &[Published, PacketsReceived];
const SENT: &[Total] = &[Delivered, PacketsSent];
/// A gap (the notice that messages are lost) counts as one dropped message, since the number of its messages is unknown.
const DROPPED: &[Total] = &[Dropped, Gaps];

const _: () = assert!(
    TOPICS.len() <= u32::BITS as usize,
    "each has a bit of `watched`"
);

#[derive(Clone, Copy)]
pub(super) enum SysValue {
    Version,
    Uptime,
    DisconnectedSessions,
    ClientsMax,
    Sum(&'static [Total]),
}

/// A shard's state of the topics under `$SYS/broker`.
pub(crate) struct SysTopics {
    /// The counts that this shard has added to the totals.
    pub added: AddedCounts,
    /// The topics with subscribers, one bit for each.
    watched: u32,
    /// The second of the next publish.
    due_s: u32,
}

impl SysTopics {
    pub fn new() -> SysTopics {
        SysTopics {
            added: AddedCounts::default(),
            // All bits are set at the start, so that the first publish removes old values from topics without a subscriber.
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

    /// Stores whether the topic at this index of [`TOPICS`] has subscribers. Returns whether it had subscribers before.
    pub fn replace_watched(&mut self, topic: usize, is_watched: bool) -> bool {
        let bit = 1 << topic;
        let was_watched = self.watched & bit != 0;
        match is_watched {
            true => self.watched |= bit,
            false => self.watched &= !bit,
        }
        was_watched
    }

    pub(super) fn text(value: SysValue, totals: &Totals, now_s: u32) -> String {
        let number = match value {
            SysValue::Version => {
                return String::from(concat!("crore version ", env!("CARGO_PKG_VERSION")));
            }
            SysValue::Uptime => return format!("{} seconds", now_s),
            // The two totals are not read at the same moment, so their difference could be negative.
            SysValue::DisconnectedSessions => totals
                .get(Sessions)
                .saturating_sub(totals.get(ClientsConnected)),
            SysValue::ClientsMax => totals.clients_max(),
            SysValue::Sum(of) => sum(totals, of),
        };
        format!("{number}")
    }
}

fn sum(totals: &Totals, of: &[Total]) -> u64 {
    of.iter().map(|total| totals.get(*total)).sum()
}
