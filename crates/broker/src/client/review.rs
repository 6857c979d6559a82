//! Reviews connections: checks their rights again when a credential expires or is revoked, or when new settings grant less.
//!
//! Rights are checked when a stream, a poll or an MQTT client begins. After a change of settings, the next complete walk over all
//! connections (`shard/tick.rs`) reviews each connection once. A stream, a waiting poll, a follower of interest (which topics have
//! subscribers) or an MQTT client ends with a reason, if it has something that it would now be refused.
//!
//! Invariant: grants of a token or a user are valid until they expire or are revoked. Everything else is judged by the current
//! settings. A request that waits for a home (a part of a shard that keeps topics) is dropped if it would now be refused.
//!
//! Publishes are not reviewed, since each one is judged when it arrives.

use crate::base::reason::Reason;
use crate::client::row::CLOSING;
use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::base::access::Right;
use crate::base::settings::Settings;
use crate::client::front::Front;
use crate::client::joining;
use crate::client::parts::{Clients, Connections, Matching, Subscriptions, Topics};
use crate::client::protocols::{Protocols, protocol_of};
use crate::client::subscriptions::topics_of;
use crate::client::types::ProtocolTypes;
use crate::io::Io;

/// The progress of a review.
#[derive(Default)]
pub struct Review {
    /// The next walk must review connections.
    due: bool,
    /// The current walk reviews connections.
    is_running: bool,
    /// The next walk must look for members of topics whose rules have changed.
    members_due: bool,
    /// The current walk looks for such members.
    looks_for_members: bool,
}

impl Review {
    /// Records whether connections must be reviewed when the settings `next` replace `former`.
    pub fn note_change(&mut self, former: &Settings, next: &Settings) {
        let everybody =
            |settings: &Settings| (settings.access.closed, settings.access.anonymous_wildcards);
        let open_rules = |settings: &Settings| -> Vec<_> {
            let rules = settings.rules.iter();
            rules.map(|rule| (rule.filter.clone(), rule.open)).collect()
        };
        let is_same = everybody(former) == everybody(next)
            && former.access.anonymous == next.access.anonymous
            && open_rules(former) == open_rules(next)
            && former.access.revoked == next.access.revoked;
        self.due |= next.access.closed && !is_same;
        let presence_rules = |settings: &Settings| -> Vec<_> {
            let rules = settings.rules.iter();
            rules
                .map(|rule| (rule.filter.clone(), rule.presence))
                .collect()
        };
        let presence_differs = presence_rules(former) != presence_rules(next);
        self.members_due |= presence_differs;
        // The review also ends watchers of topics that have no presence any more.
        self.due |= presence_differs;
    }

    /// Begins a walk over the connections.
    pub fn begin(&mut self) {
        self.is_running = core::mem::take(&mut self.due);
        self.looks_for_members = core::mem::take(&mut self.members_due);
    }

    /// Whether the current walk makes subscriptions members of topics, or not, since the rules have changed.
    pub fn looks_for_members(&self) -> bool {
        self.looks_for_members
    }

    /// Whether the current walk reviews connections.
    pub fn is_running(&self) -> bool {
        self.is_running
    }
}

/// Ends a stream, a poll or an MQTT client whose rights are gone: its credential is not valid any more (`lost`), or new settings
/// (`changed`) would refuse what it has. False if it stays.
pub(crate) fn review<P: Protocols, I: Io>(
    front: &mut Front<P>,
    slot: u32,
    (lost, changed): (Option<Reason>, bool),
    io: &mut I,
) -> bool {
    let row = front.clients.conns.get(slot);
    if row.link.has(CLOSING) {
        return false;
    }
    let state = row.consumer.state;
    let ended = lost
        .is_some_and(|why| protocol_of!(P, state, end_for_reason(front, slot, why, io)))
        || changed && protocol_of!(P, state, settings_changed(front, slot, io));
    front.clients.meter.stats.lapsed += u64::from(ended);
    ended
}

impl<P: ProtocolTypes> Clients<P> {
    /// Whether the client would now be allowed to subscribe to everything that it is subscribed to.
    pub(crate) fn check_subscriptions(
        &self,
        subs: &Subscriptions,
        slot: u32,
    ) -> Result<(), Reason> {
        let check = |name: &[u8]| self.check_right(slot, Right::Subscribe, name);
        all_topics_of(&self.conns, &subs.topics, slot)
            .into_iter()
            .try_for_each(check)?;
        let filters = all_filters_of(&self.conns, &subs.matching, slot);
        filters.iter().try_for_each(|filter| check(filter))
    }
}

pub(crate) fn all_topics_of<'a, P: ProtocolTypes>(
    conns: &Connections<P>,
    topics: &'a Topics,
    slot: u32,
) -> Vec<&'a [u8]> {
    let topic_rows = topics_of(conns, slot);
    topic_rows.map(|topic| topics.name(topic)).collect()
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
