//! Checks connections again when their credential expires or is revoked, or when new settings grant less to some client.
//!
//! Rights were checked when a stream, poll or client began. The first whole sweep after the change checks each connection once:
//! a stream, a waiting poll, a follower of interest or an MQTT client that has something it would not be granted now ends,
//! with the reason.
//!
//! Invariant: the grants of a token or a user's entry hold until they expire or are revoked; all else is judged by the current settings. A
//! request that waits for a home meanwhile is dropped where it would be refused.
//!
//! Deliberately not here: publishes, each of which is judged when it comes.

use crate::base::reason::Reason;
use crate::client::row::CLOSING;
use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::base::access::Right;
use crate::base::settings::Settings;
use crate::client::joining;
use crate::client::parts::{Clients, Connections, Matching, Queues, Subscriptions, Topics};
use crate::client::protocols::Protocols;
use crate::client::subscriptions::topics_of;
use crate::client::types::ProtocolTypes;
use crate::io::Io;

/// The progress of a review.
#[derive(Default)]
pub struct Review {
    /// The next sweep is to do it.
    due: bool,
    /// The sweep under way does it.
    runs: bool,
}

impl Review {
    /// Notes whether connections must be checked, once `next` replaces `former`.
    pub fn change(&mut self, former: &Settings, next: &Settings) {
        let everybody = |of: &Settings| (of.access.closed, of.access.anonymous_wildcards);
        let open = |of: &Settings| -> Vec<_> {
            let rules = of.rules.iter();
            rules.map(|rule| (rule.filter.clone(), rule.open)).collect()
        };
        let same = everybody(former) == everybody(next)
            && former.access.anonymous == next.access.anonymous
            && open(former) == open(next)
            && former.access.revoked == next.access.revoked;
        self.due |= next.access.closed && !same;
    }

    /// A sweep begins.
    pub fn begin(&mut self) {
        self.runs = core::mem::take(&mut self.due);
    }

    /// Whether the sweep under way checks connections.
    pub fn runs(&self) -> bool {
        self.runs
    }
}

/// Ends a stream, a poll or an MQTT client that may not have what it has any more: its credential counts no more (`lost`), or new settings (`changed`)
/// would refuse it. False when it stays.
pub(crate) fn review<P: Protocols, I: Io>(
    clients: &mut Clients<P>,
    subs: &mut Subscriptions,
    queues: &mut Queues,
    slot: u32,
    (lost, changed): (Option<Reason>, bool),
    io: &mut I,
) -> bool {
    if clients.conns.get(slot).is(CLOSING) {
        return false;
    }
    let ended = lost.is_some_and(|why| P::try_end(clients, subs, queues, slot, why, io))
        || changed && P::settings_changed(clients, subs, queues, slot, io);
    clients.meter.stats.lapsed += u64::from(ended);
    ended
}

/// Whether the client could subscribe now to all that it is subscribed to.
pub(crate) fn may_keep<P: ProtocolTypes>(
    clients: &Clients<P>,
    subs: &Subscriptions,
    slot: u32,
) -> Result<(), Reason> {
    let may = |name: &[u8]| clients.may(slot, Right::Subscribe, name);
    all_topics_of(&clients.conns, &subs.topics, slot)
        .into_iter()
        .try_for_each(may)?;
    let filters = all_filters_of(&clients.conns, &subs.matching, slot);
    filters.iter().try_for_each(|filter| may(filter))
}

pub(crate) fn all_topics_of<'a, P: ProtocolTypes>(
    conns: &Connections<P>,
    topics: &'a Topics,
    slot: u32,
) -> Vec<&'a [u8]> {
    let all = topics_of(conns, slot);
    all.map(|topic| topics.name(topic)).collect()
}

pub(crate) fn all_filters_of<P: ProtocolTypes>(
    conns: &Connections<P>,
    matching: &Matching,
    slot: u32,
) -> Vec<Box<[u8]>> {
    let subscriptions = joining::filter_subscriptions(conns, slot).into_iter();
    let parts = subscriptions.flat_map(|all| all.parts());
    parts
        .map(|(_, part)| matching.name(part.row).into_boxed_slice())
        .collect()
}
