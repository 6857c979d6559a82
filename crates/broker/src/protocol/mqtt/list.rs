//! The list of a client's subscriptions.
//!
//! A client with one plain subscription keeps it in its row, as a WebSocket does. With more, or while it has other
//! state, they stand in a list. A free place in the list is used again under another serial, so that an answer to its
//! former subscription is ignored.

use crore_wire::topic;

use super::options::is_shared;
use super::state::Subscribed;
use crate::client::row::{COUNTED, LIVE, MULTI};
use crate::protocol::front::Front;
use crate::protocol::front::Sub;
use crate::protocol::mqtt::options::QOS_SHIFT;
use crate::store::slab::NONE;

/// Where the serial of a place begins in [`ReplyTo::part`](crate::mail::ReplyTo::part).
const SERIAL_SHIFT: u32 = 16;
/// Retain Handling among the options: it matters only when the subscription is made.
const RETAIN_HANDLING: u8 = 0b11_0000;

/// Whether a place in the list is free.
pub(super) fn is_vacant(sub: &Sub) -> bool {
    sub.topic == NONE && sub.own.filter == 0 && sub.own.group.is_none()
}

impl Front {
    /// The connection's subscriptions, if they stand in a list.
    pub(super) fn list_of(&self, slot: u32) -> &[Sub] {
        self.conns.find_extra(slot).map_or(&[], |extra| &extra.list)
    }

    /// One of them. A caller whose place comes from a table of ours and finds none ends the connection ([`Front::broken`]).
    pub(super) fn sub(&self, slot: u32, part: u32) -> Option<&Sub> {
        self.list_of(slot).get(part as usize)
    }

    /// The same, to be changed.
    pub(super) fn sub_mut(&mut self, slot: u32, part: u32) -> Option<&mut Sub> {
        self.conns.extra(slot).list.get_mut(part as usize)
    }

    /// The place of a topic in the list.
    pub(super) fn part_of(&self, slot: u32, name: &[u8]) -> Option<u32> {
        let list = self.list_of(slot);
        let found = if is_shared(name) {
            let is = |sub: &Sub| {
                sub.own
                    .group
                    .as_ref()
                    .is_some_and(|group| *group.text == *name)
            };
            list.iter().position(is)
        } else if topic::has_wildcard(name) {
            return self.part_of_wildcard(slot, name);
        } else {
            let (hash, _) = self.place_of(name);
            let topic = self.topics.find(hash, name)?;
            list.iter().position(|sub| sub.topic == topic)
        };
        found.map(|part| part as u32)
    }

    /// Puts a subscription into a free place of the list.
    pub(super) fn add_sub(&mut self, slot: u32, sub: Sub) -> u32 {
        let list = &mut self.conns.extra(slot).list;
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

    /// A place in the list with its serial, to be named in answers.
    pub(crate) fn part_name(&self, slot: u32, part: u32) -> u32 {
        let row = self.conns.get(slot);
        if !row.wants(MULTI) {
            return part;
        }
        let serial = self.sub(slot, part).map_or(0, |sub| sub.own.serial);
        part | u32::from(serial) << SERIAL_SHIFT
    }

    /// The place that an answer is for, if its subscription is still the same.
    pub(crate) fn part_named(&self, slot: u32, name: u32) -> Option<u32> {
        let row = self.conns.get(slot);
        let part = name & ((1 << SERIAL_SHIFT) - 1);
        if !row.wants(MULTI) {
            return (name == 0).then_some(0);
        }
        let sub = self.sub(slot, part)?;
        (u32::from(sub.own.serial) == name >> SERIAL_SHIFT).then_some(part)
    }

    /// Moves the only subscription into the list.
    pub(crate) fn expand(&mut self, slot: u32) {
        self.mqtt_state(slot);
        let epoch = self.world.epoch;
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

    /// Drops the state of a client that has nothing but one plain subscription.
    pub(crate) fn collapse(&mut self, slot: u32) {
        let row = self.conns.get(slot);
        if row.extra == NONE || row.own == NONE || row.spill != NONE {
            return;
        }
        let extra = self.conns.extra_of(slot);
        let idle = extra.is_idle();
        let plain = |sub: &Sub| {
            sub.topic != NONE
                && sub.own.identifier == 0
                && sub.own.serial == 0
                && sub.own.options & !(3 | RETAIN_HANDLING) == 0
                && sub.flags == COUNTED | LIVE
        };
        let [sub] = &extra.list[..] else {
            if idle && extra.list.is_empty() {
                self.conns.get_mut(slot).options &= !MULTI;
                self.conns.drop_extra(slot);
            }
            return;
        };
        if !idle || !plain(sub) {
            return;
        }
        let (topic, place, options) = (sub.topic, sub.place, sub.own.options);
        let row = self.conns.get_mut(slot);
        (row.topic, row.place) = (topic, place);
        row.flags |= COUNTED | LIVE;
        row.options = row.options & !MULTI | u32::from(options & 3) << QOS_SHIFT;
        self.conns.drop_extra(slot);
    }
}
