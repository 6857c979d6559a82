//! A subscription as a client names it: a topic, a filter with wildcards, or `$share/{name}/{filter}`.

use crore_wire::mqtt::{SubscribeOptions, split_shared};
use crore_wire::topic;

use crate::client::list::{list_of, part_of_filter, part_of_topic};
use crate::client::types::SubscriptionState as _;
use crate::protocol::front::{Clients, Subscriptions};

/// A subscription to be made or restored.
pub(super) struct Wanted<'a> {
    pub filter: &'a [u8],
    pub options: SubscribeOptions,
    pub identifier: u32,
    pub retained: bool,
    /// See [`SubscriptionState::granted`](crate::protocol::mqtt::state::SubscriptionState::granted).
    pub granted: (u16, u16),
}

/// The index of the subscription with this filter.
pub(super) fn part_of(
    clients: &Clients,
    subs: &Subscriptions,
    slot: u32,
    name: &[u8],
) -> Option<u32> {
    if split_shared(name).is_some() {
        let mut list = list_of(&clients.conns, slot).iter();
        let part = list.position(|sub| sub.protocol_state.name() == Some(name))?;
        return Some(part as u32);
    }
    match topic::has_wildcard(name) {
        true => part_of_filter(&clients.conns, &subs.matching, slot, name),
        false => part_of_topic(clients, subs, slot, name),
    }
}
