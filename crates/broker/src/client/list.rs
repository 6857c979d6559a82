//! The list of a connection's subscriptions, for protocols whose clients subscribe and unsubscribe on an open connection.
//!
//! A client with one plain subscription has it in its row, as an event stream does. With more subscriptions, or while the client has other state, they
//! are in a list, and the index in the list is the *part*. A free index is used again with another serial number, so that a late answer to its former
//! subscription is ignored.

pub(crate) mod filters;
pub(crate) mod live;
pub(crate) mod page;

use alloc::vec::Vec;

use crate::base::reason::Reason;
use crate::client::joining::filter_subscriptions;
use crate::client::parts::{Clients, Connections, Matching, Queues, Subscriptions};
use crate::client::row::{COUNTED, LIVE, MEMBER, SUBSCRIPTION_LIST};
use crate::client::side::{ListedSubscription, NamesBytes};
use crate::client::subscriptions::{check_subscription_limits, end_topic_subscription};
use crate::client::types::{ProtocolTypes, SideState, SubscriptionState};
use crate::store::slab::NONE;

/// The bit at which the serial number begins in [`ReplyTo::part`](crate::mail::ReplyTo::part). The index is below it.
const SERIAL_SHIFT: u32 = 16;
/// Pages that may be requested for a client at once. With more, its received bytes wait, so that the pages in flight are bounded.
const PAGES_MAX: u32 = 64;
/// The least number of entries by which a list grows.
const LIST_GROWTH_MIN: usize = 4;

/// Whether this index of the list is free.
pub(crate) fn is_free_index<S: SubscriptionState>(sub: &ListedSubscription<S>) -> bool {
    sub.topic == NONE && sub.filter == 0 && sub.protocol_state.name().is_none()
}

/// The connection's list of subscriptions; empty if it has none.
pub(crate) fn subscription_list<P: ProtocolTypes>(
    conns: &Connections<P>,
    slot: u32,
) -> &[ListedSubscription<P::SubscriptionState>] {
    conns
        .find_side_row(slot)
        .map_or(&[], |side_row| &side_row.list)
}

/// The subscription with this index. If the index comes from a table of the server and there is none, the caller ends the connection
/// ([`Clients::end_as_broken`]).
pub(crate) fn sub<P: ProtocolTypes>(
    conns: &Connections<P>,
    slot: u32,
    sub_index: u32,
) -> Option<&ListedSubscription<P::SubscriptionState>> {
    subscription_list(conns, slot).get(sub_index as usize)
}

/// The same, to be changed.
pub(crate) fn subscription_at_mut<P: ProtocolTypes>(
    conns: &mut Connections<P>,
    slot: u32,
    sub_index: u32,
) -> Option<&mut ListedSubscription<P::SubscriptionState>> {
    conns.ensure_side_row(slot).list.get_mut(sub_index as usize)
}

/// The index of the subscription to this topic.
pub(crate) fn index_of_topic<P: ProtocolTypes>(
    clients: &Clients<P>,
    subs: &Subscriptions,
    slot: u32,
    name: &[u8],
) -> Option<u32> {
    let (hash, _) = clients.ctx.hash_and_home_of(name);
    let topic = subs.topics.find(hash, name)?;
    let list = subscription_list(&clients.conns, slot);
    clients.meter.work.steps.add(list.len() / 8);
    let sub_index = list.iter().position(|sub| sub.topic == topic)?;
    Some(sub_index as u32)
}

/// The index of the subscription with this filter, which has wildcards.
pub(crate) fn index_of_filter<P: ProtocolTypes>(
    conns: &Connections<P>,
    matching: &Matching,
    slot: u32,
    filter: &[u8],
) -> Option<u32> {
    let row = matching.find(filter)?;
    let mut parts = filter_subscriptions(conns, slot)?.parts();
    parts
        .find(|(_, part)| part.row == row)
        .map(|(_, part)| part.id)
}

/// Adds a subscription, at a free index if there is one. Returns the index.
pub(crate) fn add_to_list<P: ProtocolTypes>(
    conns: &mut Connections<P>,
    slot: u32,
    sub: ListedSubscription<P::SubscriptionState>,
) -> u32 {
    // A list that does not change has no free index.
    let changes = conns.get(slot).has_changing_subscriptions();
    let list = &mut conns.ensure_side_row(slot).list;
    let mut vacant = list
        .iter()
        .enumerate()
        .filter(|(_, sub)| is_free_index(sub));
    let free_entry = changes.then(|| vacant.next()).flatten();
    let index = match free_entry.map(|(index, former)| (index, former.serial)) {
        Some((index, former_serial)) => {
            let serial = former_serial.wrapping_add(1);
            list[index] = ListedSubscription { serial, ..sub };
            index
        }
        None => {
            if list.len() == list.capacity() {
                // Most clients subscribe once to all that they want, so a list does not double: an eighth of its entries is room for more.
                list.reserve_exact((list.len() / 8).max(LIST_GROWTH_MIN));
            }
            list.push(sub);
            list.len() - 1
        }
    };
    index as u32
}

/// Ends a subscription. Its index becomes free.
pub(crate) fn remove_subscription<P: ProtocolTypes>(
    clients: &mut Clients<P>,
    subs: &mut Subscriptions,
    slot: u32,
    sub_index: u32,
) {
    let side_row = clients.conns.ensure_side_row(slot);
    side_row
        .behind
        .retain(|behind| behind.sub_index != sub_index);
    let Some(sub) = side_row.list.get(sub_index as usize) else {
        return clients.end_as_broken(slot);
    };
    let (topic, place, flags) = (sub.topic, sub.member_place, sub.flags);
    let is_filter = sub.filter != 0;
    free_index(&mut clients.conns, slot, sub_index);
    if is_filter {
        end_filter_groups(clients, subs, slot, sub_index, None);
    } else if topic != NONE {
        end_topic_subscription(clients, subs, slot, (topic, place), flags);
    }
}

/// Ends the groups of filters of a subscription, except the group `own_serial`. Besides its own, a subscription may have one that only sends retained messages.
pub(crate) fn end_filter_groups<P: ProtocolTypes>(
    clients: &mut Clients<P>,
    subs: &mut Subscriptions,
    slot: u32,
    sub_index: u32,
    own_serial: Option<u32>,
) {
    let subscriptions = filter_subscriptions(&clients.conns, slot);
    let parts = subscriptions.into_iter().flat_map(|all| all.parts());
    let other_groups = parts.filter(|(_, it)| it.id == sub_index && Some(it.group) != own_serial);
    let groups: Vec<u32> = other_groups.map(|(_, it)| it.group).collect();
    for serial in groups {
        clients.leave_group(subs, slot, serial);
    }
}

/// Frees the index of a subscription that has ended everywhere else.
pub(crate) fn free_index<P: ProtocolTypes>(conns: &mut Connections<P>, slot: u32, sub_index: u32) {
    if let Some(side_row) = conns.find_side_row_mut(slot) {
        side_row.names_bytes = NamesBytes::Unknown;
    }
    if let Some(sub) = subscription_at_mut(conns, slot, sub_index) {
        (sub.topic, sub.filter, sub.flags) = (NONE, 0, 0);
        debug_assert!(is_free_index(sub), "the protocol still carries it out");
    }
}

/// Counts requested pages.
pub(crate) fn count_asked_pages<P: ProtocolTypes>(
    conns: &mut Connections<P>,
    slot: u32,
    count: u32,
) {
    if conns.get(slot).has_changing_subscriptions()
        && let Some(side_row) = conns.find_side_row_mut(slot)
    {
        side_row.pending_pages += count;
    }
}

/// Counts an answered page. The client's received bytes may continue.
pub(crate) fn count_answered_page<P: ProtocolTypes>(
    clients: &mut Clients<P>,
    queues: &mut Queues,
    slot: u32,
) {
    if clients.conns.get(slot).has_changing_subscriptions()
        && let Some(side_row) = clients.conns.find_side_row_mut(slot)
        && side_row.pending_pages > 0
    {
        side_row.pending_pages -= 1;
        if side_row.pending_pages == PAGES_MAX
            || side_row.protocol_state.pending_answers() > PAGES_MAX as usize
        {
            queues.resume_later(clients, clients.conns.id_of(slot));
        }
    }
}

/// Whether homes owe the client so many pages that its received bytes wait.
pub(crate) fn has_many_pages<P: ProtocolTypes>(conns: &Connections<P>, slot: u32) -> bool {
    let side_row = conns.find_side_row(slot);
    side_row.is_some_and(|side_row| {
        side_row.pending_pages > PAGES_MAX
            || side_row.protocol_state.pending_answers() > PAGES_MAX as usize
    })
}

/// An index of the list with its serial number, for [`ReplyTo::part`](crate::mail::ReplyTo::part).
pub(crate) fn index_with_serial<P: ProtocolTypes>(
    conns: &Connections<P>,
    slot: u32,
    sub_index: u32,
) -> u32 {
    if !conns.get(slot).has_option(SUBSCRIPTION_LIST) {
        return sub_index;
    }
    let serial = sub(conns, slot, sub_index).map_or(0, |sub| sub.serial);
    sub_index | u32::from(serial) << SERIAL_SHIFT
}

/// The index that an answer is for, if it still has the same subscription.
pub(crate) fn index_if_current<P: ProtocolTypes>(
    conns: &Connections<P>,
    slot: u32,
    index_with_serial: u32,
) -> Option<u32> {
    let sub_index = index_with_serial & ((1 << SERIAL_SHIFT) - 1);
    if !conns.get(slot).has_option(SUBSCRIPTION_LIST) {
        return (index_with_serial == 0).then_some(0);
    }
    let sub = sub(conns, slot, sub_index)?;
    (u32::from(sub.serial) == index_with_serial >> SERIAL_SHIFT).then_some(sub_index)
}

/// The serial number of a subscription with wildcards among the connection's filters.
pub(crate) fn group_serial<P: ProtocolTypes>(
    conns: &Connections<P>,
    slot: u32,
    sub_index: u32,
) -> Option<u32> {
    sub(conns, slot, sub_index)?.filter.checked_sub(1)
}

/// The index of the subscription with this serial number among the connection's filters.
pub(crate) fn index_of_group<P: ProtocolTypes>(
    conns: &Connections<P>,
    slot: u32,
    serial: u32,
) -> Option<u32> {
    let (_, part) = filter_subscriptions(conns, slot)?.parts_of(serial).next()?;
    Some(part.id)
}

/// The topic or filter of a subscription, as its client named it.
pub(crate) fn name_of<P: ProtocolTypes>(
    conns: &Connections<P>,
    subs: &Subscriptions,
    slot: u32,
    sub_index: u32,
) -> Vec<u8> {
    let Some(sub) = sub(conns, slot, sub_index) else {
        return Vec::new();
    };
    match sub.protocol_state.name() {
        Some(name) => name.to_vec(),
        None if sub.topic != NONE => subs.topics.name(sub.topic).to_vec(),
        None => filter_of(conns, &subs.matching, slot, sub_index).unwrap_or_default(),
    }
}

/// The filter of a subscription with wildcards.
pub(crate) fn filter_of<P: ProtocolTypes>(
    conns: &Connections<P>,
    matching: &Matching,
    slot: u32,
    sub_index: u32,
) -> Option<Vec<u8>> {
    let serial = group_serial(conns, slot, sub_index)?;
    let (_, found) = filter_subscriptions(conns, slot)?.parts_of(serial).next()?;
    Some(matching.name(found.row))
}

/// Checks that the connection may have one more subscription, to this topic or filter, and counts the bytes of its name.
///
/// # Errors
/// The limit that was reached.
pub(crate) fn check_room<P: ProtocolTypes>(
    clients: &mut Clients<P>,
    subs: &Subscriptions,
    slot: u32,
    name: &[u8],
) -> Result<(), Reason> {
    let limits = &clients.ctx.world.settings.limits;
    let list = subscription_list(&clients.conns, slot);
    clients.meter.work.steps.add(1 + list.len() / 8);
    let count = 1 + list.iter().filter(|sub| !is_free_index(sub)).count();
    // A few subscriptions are allowed however long their names are.
    if limits.has_room_for_names(count, count * limits.topic_bytes) {
        let checked = check_subscription_limits(limits, count, 0);
        set_names_bytes(clients, slot, NamesBytes::Unknown);
        return checked;
    }
    let fits = |bytes: u32| limits.has_room_for_names(count, bytes as usize + name.len());
    let known = clients.conns.find_side_row(slot).map(|it| it.names_bytes);
    let (before, is_exact) = match known.unwrap_or_default() {
        NamesBytes::Exactly(bytes) => (bytes, true),
        NamesBytes::AtMost(bytes) if fits(bytes) => (bytes, false),
        NamesBytes::AtMost(_) | NamesBytes::Unknown => {
            (count_names_bytes(clients, subs, slot), true)
        }
    };
    let with_name = before.saturating_add(name.len() as u32);
    let checked = check_subscription_limits(limits, count, with_name as usize);
    let now = match checked {
        Ok(()) => NamesBytes::AtMost(with_name),
        Err(_) if is_exact => NamesBytes::Exactly(before),
        Err(_) => NamesBytes::AtMost(before),
    };
    set_names_bytes(clients, slot, now);
    checked
}

fn set_names_bytes<P: ProtocolTypes>(clients: &mut Clients<P>, slot: u32, names_bytes: NamesBytes) {
    if let Some(side_row) = clients.conns.find_side_row_mut(slot) {
        side_row.names_bytes = names_bytes;
    }
}

/// The bytes of the names of all subscriptions of a connection. Looks each name up.
fn count_names_bytes<P: ProtocolTypes>(
    clients: &Clients<P>,
    subs: &Subscriptions,
    slot: u32,
) -> u32 {
    let list = subscription_list(&clients.conns, slot);
    clients.meter.work.steps.add(list.len());
    let topics = list.iter().map(|sub| match sub.protocol_state.name() {
        Some(name) => name.len(),
        None if sub.topic != NONE => subs.topics.name(sub.topic).len(),
        None => 0,
    });
    let filters = filter_subscriptions(&clients.conns, slot).into_iter();
    let filters = filters.flat_map(|all| all.parts());
    let filters = filters.map(|(_, part)| subs.matching.name(part.row).len());
    u32::try_from(topics.sum::<usize>() + filters.sum::<usize>()).unwrap_or(u32::MAX)
}

impl<P: ProtocolTypes> Clients<P> {
    /// Moves the only subscription into the list.
    pub(crate) fn move_to_list(&mut self, slot: u32) {
        let epoch = self.ctx.world.epoch;
        self.conns.ensure_side_row(slot);
        let row = self.conns.get_mut(slot);
        if row.has_option(SUBSCRIPTION_LIST) {
            return;
        }
        row.consumer.options |= SUBSCRIPTION_LIST;
        let (topic, member_place) = (
            core::mem::replace(&mut row.consumer.topic, NONE),
            row.consumer.member_place,
        );
        let flags = row.consumer.flags & (COUNTED | LIVE | MEMBER);
        row.consumer.flags &= !flags;
        let protocol_state = P::SubscriptionState::unpack_options(&mut row.consumer.options);
        if topic != NONE {
            self.conns
                .ensure_side_row(slot)
                .list
                .push(ListedSubscription {
                    topic,
                    member_place,
                    flags,
                    epoch,
                    protocol_state,
                    ..ListedSubscription::default()
                });
        }
    }
}

/// Drops the side row of a client that has at most one plain subscription and nothing else. Free indexes are dropped too: no page is in flight, so no
/// answer refers to them.
pub(crate) fn move_to_row<P: ProtocolTypes>(conns: &mut Connections<P>, slot: u32) {
    let row = conns.get(slot);
    if row.side_row() == NONE || row.link.unprocessed_input != NONE {
        return;
    }
    let side_row = conns.side_row(slot);
    let filters = side_row.filters.as_ref();
    if !side_row.is_idle() || filters.is_some_and(|filters| !filters.groups().is_empty()) {
        return;
    }
    let mut subs = side_row.list.iter().filter(|sub| !is_free_index(sub));
    match (subs.next(), subs.next()) {
        (None, _) => conns.get_mut(slot).consumer.options &= !SUBSCRIPTION_LIST,
        (Some(sub), None) if sub.topic != NONE && sub.flags & !MEMBER == COUNTED | LIVE => {
            let mut options = row.consumer.options & !SUBSCRIPTION_LIST;
            if !sub.protocol_state.pack_options(&mut options) {
                return;
            }
            let (topic, place, flags) = (sub.topic, sub.member_place, sub.flags);
            let row = conns.get_mut(slot);
            (
                row.consumer.topic,
                row.consumer.member_place,
                row.consumer.options,
            ) = (topic, place, options);
            row.consumer.flags |= flags;
        }
        _ => return,
    }
    conns.drop_side_row(slot);
}
