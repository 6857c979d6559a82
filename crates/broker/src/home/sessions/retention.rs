//! What the homes of topics keep for a session that is away.

use crore_wire::mqtt::split_shared;
use crore_wire::topic;

use crate::home;
use crate::mail::session::stored::{StoredSubscription, subscriptions};

/// Bytes that a home needs to keep the messages of a topic for a session: the topic's row, the place of its name, and the count of such
/// subscriptions. The name comes on top.
const TOPIC_BYTES: usize = 96;

/// Bytes that `homes` homes need for the subscriptions of a stored session, if no other session has the same ones.
pub(super) fn retention_bytes(state: &[u8], homes: usize) -> usize {
    let of = |subscription: StoredSubscription<'_>| {
        let filter = &*subscription.filter;
        match split_shared(filter) {
            Some((name, filter)) => home::group_bytes_alone(name, filter) * homes,
            None if topic::has_wildcard(filter) => home::filter_bytes_alone(filter) * homes,
            None => TOPIC_BYTES + filter.len(),
        }
    };
    let all = subscriptions(state);
    all.filter(StoredSubscription::needs_log).map(of).sum()
}
