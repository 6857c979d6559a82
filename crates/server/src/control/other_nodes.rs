//! Whether this node of a cluster knows the subscribers and the members at all other nodes. Webhooks need this: the steward of a partition tells an endpoint of
//! the topics of all nodes, and its snapshot is complete only then.
//!
//! `interest.rs` and `peer_presence.rs` poll the other nodes and write what they know. Webhooks write which topics they are about.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crore_broker::mail::hooks::HookKinds;

/// What this node knows of the other nodes.
#[derive(Clone, Default)]
pub struct OtherNodes(Arc<Mutex<Known>>);

#[derive(Default)]
struct Known {
    /// The filters of the streams of webhooks that report subscribers, by the number of the stream. The other nodes are polled for the interest in their topics.
    filters: BTreeMap<u64, BTreeSet<String>>,
    /// The streams for which all other nodes have told of all their subscribers.
    has_subscribers: BTreeSet<u64>,
    /// Whether all other nodes have told of all their members.
    has_members: bool,
}

impl OtherNodes {
    fn known(&self) -> MutexGuard<'_, Known> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on, the other nodes are polled for the interest in topics that match these filters, for this stream.
    pub fn begin_stream(&self, number: u64, filters: &[String]) {
        let filters = filters.iter().cloned().collect();
        self.known().filters.insert(number, filters);
    }

    /// Nothing is polled for this stream any more.
    pub fn end_stream(&self, number: u64) {
        let mut known = self.known();
        known.filters.remove(&number);
        known.has_subscribers.remove(&number);
    }

    /// The filters of each stream.
    pub fn filters(&self) -> BTreeMap<u64, BTreeSet<String>> {
        self.known().filters.clone()
    }

    /// Called when the homes have been told of the interest at all other nodes in the topics of this stream.
    pub fn note_subscribers(&self, number: u64) {
        let mut known = self.known();
        if known.filters.contains_key(&number) {
            known.has_subscribers.insert(number);
        }
    }

    /// Called when it may have changed whether the homes have been told of all members at the other nodes.
    pub fn note_members(&self, are_known: bool) {
        self.known().has_members = are_known;
    }

    /// Whether the homes know everything at the other nodes that this stream reports.
    pub fn are_known(&self, number: u64, kinds: HookKinds) -> bool {
        let known = self.known();
        (!kinds.subscribers || known.has_subscribers.contains(&number))
            && (!kinds.members || known.has_members)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stream_is_not_complete_before_the_other_nodes_were_polled_for_it() {
        let nodes = OtherNodes::default();
        let kinds = |subscribers, members| HookKinds {
            subscribers,
            members,
            clients: false,
        };
        let both = kinds(true, true);
        nodes.begin_stream(1, &["#".to_string()]);
        assert!(!nodes.are_known(1, kinds(true, false)) && !nodes.are_known(1, kinds(false, true)));
        nodes.note_members(true);
        assert!(nodes.are_known(1, kinds(false, true)) && !nodes.are_known(1, both));
        nodes.note_subscribers(1);
        assert!(nodes.are_known(1, both));
        // Another stream begins, while the poll of the former one ends.
        nodes.end_stream(1);
        nodes.begin_stream(2, &["#".to_string()]);
        nodes.note_subscribers(1);
        assert!(!nodes.are_known(1, both) && !nodes.are_known(2, both));
        assert_eq!(nodes.filters().len(), 1);
        nodes.note_subscribers(2);
        nodes.note_members(false);
        assert!(!nodes.are_known(2, both));
    }
}
