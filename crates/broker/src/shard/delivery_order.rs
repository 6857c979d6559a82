//! Decides which tells (messages, pages and answers from the homes of topics) must be delivered in order: messages and pages for filters,
//! and the other tells about their topics.

use alloc::vec::Vec;
use core::mem;

use crate::client::deliveries::Flow;
use crate::client::delivery::{Delivery, IN_ORDER};
use crate::client::joining::filter_subscriptions;
use crate::client::subscriptions::topics_of;
use crate::mail::Tell;
use crate::protocol::front::{Connections, Deliveries};
use crate::store::slab::NONE;

/// Marks the tells that must stay in order: messages and pages for filters, and every tell about one of their topics. If two subscriptions of a client
/// overlap, their progress decides which of them sends a message, so their tells must not overtake each other.
///
/// A page for a filter may contain any topic, and the first page of a topic may follow messages for a filter that do not name the topic's row (the home did
/// not know the subscription to the topic). So all pages for a connection with filters stay in order.
pub(super) fn keep_order(conns: &Connections, tells: &[Tell], keys: &mut [u64]) {
    let mut filtered: Vec<u32> = tells
        .iter()
        .filter_map(|tell| match tell {
            Tell::Matches { to, .. } => Some(to.slot),
            _ => None,
        })
        .collect();
    filtered.sort_unstable();
    // A client that subscribes to thousands of filters gets as many pages in one delivery.
    filtered.dedup();
    let ordered_topic = |tell: &Tell| match tell {
        Tell::Match { topic, .. } => Some(*topic),
        Tell::Page { topic, to, .. } if filter_subscriptions(conns, to.slot).is_some() => {
            Some(*topic)
        }
        _ => None,
    };
    let topics_of_filtered = filtered.iter().flat_map(|slot| topics_of(conns, *slot));
    let mut ordered_topics: Vec<u32> = tells
        .iter()
        .filter_map(ordered_topic)
        .filter(|topic| *topic != NONE)
        .chain(topics_of_filtered)
        .collect();
    ordered_topics.sort_unstable();
    for (n, (key, tell)) in keys.iter_mut().zip(tells).enumerate() {
        let is_mixed = |topic: u32| topic != NONE && ordered_topics.binary_search(&topic).is_ok();
        let in_order = matches!(tell, Tell::Match { .. } | Tell::Matches { .. })
            || tell.topic().is_some_and(is_mixed);
        if in_order && *key >> 32 > 0 {
            *key = u64::from(IN_ORDER) << 32 | n as u64;
        }
    }
}

/// The first flow (the rest of a long fan-out) that must end before this ordered delivery continues: a flow of the topic of an ordered tell, or of a topic of
/// a connection that gets a page by filter. The topics are taken from the tells, since the connection for which a tell was marked may be gone.
pub(super) fn flow_before(
    conns: &Connections,
    deliveries: &Deliveries,
    delivery: &Delivery,
) -> Option<Flow> {
    let flow = |topic| {
        let flow = Flow::topic(delivery.home, topic);
        deliveries.has(flow).then_some(flow)
    };
    let in_order = delivery.keys[delivery.cursor..].iter();
    let mut in_order = in_order.filter(|key| **key >> 32 == u64::from(IN_ORDER));
    let mut examined = NONE;
    in_order.find_map(|key| match &delivery.tells[*key as u32 as usize] {
        Tell::Matches { to, .. } if mem::replace(&mut examined, to.slot) == to.slot => None,
        Tell::Matches { to, .. } => topics_of(conns, to.slot).find_map(flow),
        tell => tell.topic().and_then(flow),
    })
}
