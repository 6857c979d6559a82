//! A subscription as a client requests it: to a topic, a filter with wildcards, or `$share/{name}/{filter}`.

use crore_wire::mqtt::{SubscribeOptions, split_shared};
use crore_wire::topic;

use crate::client::list::{index_of_filter, index_of_topic, subscription_list};
use crate::client::types::SubscriptionState as _;
use crate::protocol::front::{Clients, Subscriptions};
use crate::protocol::mqtt::state::SubackEntry;

/// A subscription to be made or restored.
pub(super) struct WantedSubscription<'a> {
    pub filter: &'a [u8],
    pub options: SubscribeOptions,
    pub identifier: u32,
    pub wants_retained: bool,
    /// The entry that the home's answer will fill.
    pub suback_entry: SubackEntry,
}

/// The index of the client's subscription with this filter.
pub(super) fn find_subscription(
    clients: &Clients,
    subs: &Subscriptions,
    slot: u32,
    name: &[u8],
) -> Option<u32> {
    if split_shared(name).is_some() {
        let mut list = subscription_list(&clients.conns, slot).iter();
        let sub_index = list.position(|sub| sub.protocol_state.name() == Some(name))?;
        return Some(sub_index as u32);
    }
    match topic::has_wildcard(name) {
        true => index_of_filter(&clients.conns, &subs.matching, slot, name),
        false => index_of_topic(clients, subs, slot, name),
    }
}
