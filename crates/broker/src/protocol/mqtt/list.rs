//! The list of a client's subscriptions.
//!
//! A client with one plain subscription has it in its row, as a WebSocket does. With more subscriptions, or while the client has other state, they are in
//! a list. A free index of the list is used again with another serial number, so that a late answer to its former subscription is ignored.

use alloc::vec::Vec;

use crore_wire::mqtt::{SubscribeOptions, split_shared};
use crore_wire::topic;

use crate::base::ids::PartitionId;
use crate::base::position::Since;
use crate::client::joining::filter_subscriptions;
use crate::client::row::{COUNTED, LIVE, MULTI};
use crate::protocol::front::{Clients, Connections, Matching, Sub, Subscriptions};
use crate::protocol::mqtt::client::mqtt_state;
use crate::protocol::mqtt::options::QOS_SHIFT;
use crate::protocol::mqtt::state::Subscribed;
use crate::store::slab::NONE;

/// The bit at which the serial number begins in [`ReplyTo::part`](crate::mail::ReplyTo::part). The index is below it.
const SERIAL_SHIFT: u32 = 16;
/// Retain Handling among the options: it matters only when the subscription is made.
const RETAIN_HANDLING: u8 = 0b11_0000;

/// A subscription to be made or restored.
pub(super) struct Wanted<'a> {
    pub filter: &'a [u8],
    pub options: SubscribeOptions,
    pub identifier: u32,
    pub since: Since,
    pub retained: bool,
    /// See [`Subscribed::granted`](crate::protocol::mqtt::state::Subscribed::granted).
    pub granted: (u16, u16),
}

/// Whether this index of the list is free.
pub(super) fn is_vacant(sub: &Sub) -> bool {
    sub.topic == NONE && sub.own.filter == 0 && sub.own.group.is_none()
}

/// The connection's list of subscriptions; empty if it has none.
pub(super) fn list_of(conns: &Connections, slot: u32) -> &[Sub] {
    conns.find_extra(slot).map_or(&[], |extra| &extra.list)
}

/// The subscription with this index. If the index comes from a table of the server and there is none, the caller ends the connection
/// ([`Clients::broken`]).
pub(super) fn sub(conns: &Connections, slot: u32, part: u32) -> Option<&Sub> {
    list_of(conns, slot).get(part as usize)
}

/// The same, to be changed.
pub(super) fn sub_mut(conns: &mut Connections, slot: u32, part: u32) -> Option<&mut Sub> {
    conns.extra(slot).list.get_mut(part as usize)
}

/// The index of the subscription with this filter.
pub(super) fn part_of(
    clients: &Clients,
    subs: &Subscriptions,
    slot: u32,
    name: &[u8],
) -> Option<u32> {
    let list = list_of(&clients.conns, slot);
    let found = if split_shared(name).is_some() {
        let is = |sub: &Sub| {
            sub.own
                .group
                .as_ref()
                .is_some_and(|group| *group.text == *name)
        };
        list.iter().position(is)
    } else if topic::has_wildcard(name) {
        return part_of_wildcard(&clients.conns, &subs.matching, slot, name);
    } else {
        let (hash, _) = clients.ctx.place_of(name);
        let topic = subs.topics.find(hash, name)?;
        list.iter().position(|sub| sub.topic == topic)
    };
    found.map(|part| part as u32)
}

/// Adds a subscription, at a free index if there is one. Returns the index.
pub(super) fn add_sub(conns: &mut Connections, slot: u32, sub: Sub) -> u32 {
    let list = &mut conns.extra(slot).list;
    let part = match list.iter().position(is_vacant) {
        Some(part) => {
            let serial = list[part].own.serial.wrapping_add(1);
            list[part] = sub;
            list[part].own.serial = serial;
            part
        }
        None => {
            list.push(sub);
            list.len() - 1
        }
    };
    part as u32
}

/// An index of the list with its serial number, for [`ReplyTo::part`](crate::mail::ReplyTo::part).
pub(crate) fn part_name(conns: &Connections, slot: u32, part: u32) -> u32 {
    let row = conns.get(slot);
    if !row.wants(MULTI) {
        return part;
    }
    let serial = sub(conns, slot, part).map_or(0, |sub| sub.own.serial);
    part | u32::from(serial) << SERIAL_SHIFT
}

/// The index that an answer is for, if it still has the same subscription.
pub(crate) fn part_named(conns: &Connections, slot: u32, name: u32) -> Option<u32> {
    let row = conns.get(slot);
    let part = name & ((1 << SERIAL_SHIFT) - 1);
    if !row.wants(MULTI) {
        return (name == 0).then_some(0);
    }
    let sub = sub(conns, slot, part)?;
    (u32::from(sub.own.serial) == name >> SERIAL_SHIFT).then_some(part)
}

impl Clients {
    /// Moves the only subscription into the list.
    pub(crate) fn expand(&mut self, slot: u32) {
        mqtt_state(&mut self.conns, slot);
        let epoch = self.ctx.world.epoch;
        let row = self.conns.get_mut(slot);
        if row.wants(MULTI) {
            return;
        }
        row.options |= MULTI;
        let (topic, place) = (core::mem::replace(&mut row.topic, NONE), row.place);
        let flags = row.flags & (COUNTED | LIVE);
        row.flags &= !(COUNTED | LIVE);
        let options = (row.options >> QOS_SHIFT & 3) as u8;
        row.options &= !(3 << QOS_SHIFT);
        if topic != NONE {
            self.conns.extra(slot).list.push(Sub {
                topic,
                place,
                flags,
                offset: 0,
                epoch,
                own: Subscribed {
                    options,
                    ..Subscribed::default()
                },
            });
        }
    }
}

/// Drops the state of a client that has at most one plain subscription and nothing else. Free indexes are dropped too: no page is in flight, so no
/// answer refers to them.
pub(crate) fn collapse(conns: &mut Connections, slot: u32) {
    let row = conns.get(slot);
    if row.extra() == NONE || row.own == NONE || row.spill != NONE {
        return;
    }
    let extra = conns.extra_of(slot);
    let filters = extra.filters.as_ref();
    if !extra.is_idle() || filters.is_some_and(|filters| !filters.groups().is_empty()) {
        return;
    }
    let plain = |sub: &Sub| {
        sub.topic != NONE
            && sub.own.identifier == 0
            && sub.own.options & !(3 | RETAIN_HANDLING) == 0
            && sub.flags == COUNTED | LIVE
    };
    let mut subs = extra.list.iter().filter(|sub| !is_vacant(sub));
    match (subs.next(), subs.next()) {
        (None, _) => conns.get_mut(slot).options &= !MULTI,
        (Some(sub), None) if plain(sub) => {
            let (topic, place, options) = (sub.topic, sub.place, sub.own.options);
            let row = conns.get_mut(slot);
            (row.topic, row.place) = (topic, place);
            row.flags |= COUNTED | LIVE;
            row.options = row.options & !MULTI | u32::from(options & 3) << QOS_SHIFT;
        }
        _ => return,
    }
    conns.drop_extra(slot);
}

/// The filter of a subscription with wildcards.
pub(super) fn wildcard_of(
    conns: &Connections,
    matching: &Matching,
    slot: u32,
    part: u32,
) -> Option<Vec<u8>> {
    let serial = serial_of(conns, slot, part)?;
    let (_, found) = filter_subscriptions(conns, slot)?.parts_of(serial).next()?;
    Some(matching.name(found.row))
}

/// The serial number of a subscription with wildcards among the connection's filters.
pub(crate) fn serial_of(conns: &Connections, slot: u32, part: u32) -> Option<u32> {
    sub(conns, slot, part)?.own.filter.checked_sub(1)
}

/// The index of the subscription with this filter, which has wildcards.
pub(super) fn part_of_wildcard(
    conns: &Connections,
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

pub(crate) fn wildcard_at(
    conns: &Connections,
    slot: u32,
    serial: u32,
    partition: PartitionId,
) -> u64 {
    let group = filter_subscriptions(conns, slot).and_then(|all| all.group(serial));
    let at = group.and_then(|group| group.positions().get(usize::from(partition)));
    at.map_or(0, |at| at.offset)
}

/// The index of the subscription with this serial number among the connection's filters.
pub(crate) fn part_of_group(conns: &Connections, slot: u32, serial: u32) -> Option<u32> {
    let (_, part) = filter_subscriptions(conns, slot)?.parts_of(serial).next()?;
    Some(part.id)
}
