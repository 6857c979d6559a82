//! Subscriptions of the client (MQTT 5.0 sections 3.8 to 3.11).
//!
//! A client with one plain subscription keeps it in its row, as a WebSocket does. With more, or while it has other
//! state, they stand in a list. A free place in the list is used again under another serial, so that an answer to its
//! former subscription is ignored.

use alloc::vec::Vec;

use crore_wire::mqtt::{
    Filter, PacketId, Properties, Qos, ReasonCode, RetainHandling, Subscribe, SubscribeOptions,
    Unsubscribe, encode,
};
use crore_wire::topic;

use super::options::{is_shared, qos};
use super::state::Suback;
use crate::base::access::Right;
use crate::base::position::{Position, Since};
use crate::budget::admission::Client;
use crate::conn::{COUNTED, LIVE, MULTI, QOS_SHIFT};
use crate::mail::{Attach, ReplyTo};
use crate::protocol::front::Front;
use crate::protocol::side::Sub;
use crate::store::slab::NONE;

/// Where the serial of a place begins in [`ReplyTo::part`].
const SERIAL_SHIFT: u32 = 16;
/// A SUBACK or UNSUBACK without its codes: header, packet id, no properties.
const ACK_BYTES: usize = 6;
/// Filters carried out in one go at least, even if the turn's budget is spent: a packet is read anew each time that it goes on.
const FILTERS_AT_ONCE: usize = 16;
/// A wildcard is a whole level, so that looking for the byte is enough once the filter is checked.
const WILDCARDS: [char; 2] = ['+', '#'];

/// A subscription to be made or restored.
pub(super) struct Wanted<'a> {
    pub filter: &'a [u8],
    pub options: SubscribeOptions,
    pub identifier: u32,
    pub since: Since,
    pub retained: bool,
    /// Where its grant goes.
    pub granted: (u16, u16),
}

impl Front {
    pub(super) fn client_subscribed(
        &mut self,
        slot: u32,
        subscribe: &Subscribe<'_>,
    ) -> Result<(), ReasonCode> {
        let packet_id = subscribe.packet_id.get();
        let identifier = subscribe.properties.subscription_identifier().unwrap_or(0);
        let count = subscribe.filters.iter().count();
        self.has_room_for_codes(slot, count)?;
        self.expand(slot);
        let mqtt = self.mqtt_state(slot);
        let done = usize::from(core::mem::take(&mut mqtt.filters_done));
        let in_use = mqtt.subacks.iter().any(|it| it.packet_id == packet_id);
        if done == 0 && in_use {
            // [MQTT-2.2.1-3]: answers could not be told apart.
            let reasons = core::iter::repeat_n(ReasonCode::PACKET_IDENTIFIER_IN_USE, count);
            let (version, id) = (self.version(slot), subscribe.packet_id);
            self.write(slot, |out| {
                encode::suback(out, version, id, &Properties::NONE, reasons)
            });
            return Ok(());
        }
        if done == 0 {
            mqtt.subacks.push(Suback {
                packet_id,
                waiting: count as u16,
                reasons: alloc::vec![ReasonCode::SUCCESS; count],
            });
        }
        for (n, (filter, options)) in subscribe.filters.iter().enumerate().skip(done) {
            if n >= done + FILTERS_AT_ONCE && (self.is_spent() || self.mqtt_must_wait(slot)) {
                self.mqtt_state(slot).filters_done = n as u16;
                return Ok(());
            }
            let granted = (packet_id, n as u16);
            if let Err(reason) = self.subscribe_one(slot, filter, options, identifier, granted) {
                self.grant(slot, granted, reason);
            }
        }
        Ok(())
    }

    /// Whether the client takes a SUBACK or UNSUBACK with so many codes [MQTT-3.1.2-24].
    fn has_room_for_codes(&self, slot: u32, count: usize) -> Result<(), ReasonCode> {
        match ACK_BYTES + count <= self.packet_bytes_max(slot) {
            true => Ok(()),
            false => Err(ReasonCode::PACKET_TOO_LARGE),
        }
    }

    /// One filter. Its grant comes with the answer of the topic's home.
    fn subscribe_one(
        &mut self,
        slot: u32,
        text: &str,
        options: SubscribeOptions,
        identifier: u32,
        granted: (u16, u16),
    ) -> Result<(), ReasonCode> {
        let (topic_bytes, most) = {
            let limits = &self.world.settings.limits;
            (limits.topic_bytes, limits.topics_per_connection)
        };
        let filter = Filter::parse(text).map_err(|_| ReasonCode::TOPIC_FILTER_INVALID)?;
        // The name of a share is stored like a filter, by the session and by each home.
        let share = filter.share.unwrap_or("-").as_bytes();
        if topic::check_filter(filter.filter.as_bytes(), topic_bytes).is_err()
            || topic::check_name(share, topic_bytes).is_err()
        {
            return Err(ReasonCode::TOPIC_FILTER_INVALID);
        }
        self.grants(slot, Right::Subscribe, filter.filter.as_bytes())?;
        let name = text.as_bytes();
        let part = self.part_of(slot, name);
        let retained = match options.retain_handling {
            RetainHandling::Send => true,
            RetainHandling::SendIfNew => part.is_none(),
            RetainHandling::DoNotSend => false,
        };
        let wanted = Wanted {
            filter: name,
            options,
            identifier,
            since: Since::Live,
            retained,
            granted,
        };
        let wildcard = filter.share.is_none() && filter.filter.contains(WILDCARDS);
        if let Some(part) = part {
            return match wildcard {
                true => self.resubscribe_wildcard(slot, part, &wanted),
                false => self.resubscribe(slot, part, options, identifier, granted),
            };
        }
        let list = &self.conns.extra_of(slot).list;
        self.work.steps.add(1 + list.len() / 8);
        if list.iter().filter(|sub| !sub.is_vacant()).count() >= most {
            return Err(ReasonCode::QUOTA_EXCEEDED);
        }
        if wildcard {
            return self.join_wildcard(slot, &wanted, &[]);
        }
        match filter.share {
            Some(_) => self.join_group(slot, &wanted, false),
            None => self.join_topic(slot, &wanted),
        }
        Ok(())
    }

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
            let is = |sub: &Sub| sub.group.as_ref().is_some_and(|group| *group.text == *name);
            list.iter().position(is)
        } else if name.iter().any(|b| matches!(b, b'+' | b'#')) {
            return self.part_of_wildcard(slot, name);
        } else {
            let (hash, _) = self.place_of(name);
            let topic = self.topics.find(hash, name)?;
            list.iter().position(|sub| sub.topic == topic)
        };
        found.map(|part| part as u32)
    }

    /// A subscription that exists takes new options, and perhaps the retained message again [MQTT-3.8.4-3].
    fn resubscribe(
        &mut self,
        slot: u32,
        part: u32,
        options: SubscribeOptions,
        identifier: u32,
        granted: (u16, u16),
    ) -> Result<(), ReasonCode> {
        let Some(sub) = self.sub_mut(slot, part) else {
            return Err(ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR);
        };
        let waits = sub.granted != (0, 0);
        if waits {
            // The home has not answered the former SUBSCRIBE yet: its grant is given now, since `granted` is replaced.
            let former = core::mem::replace(&mut sub.granted, granted);
            let reason = ReasonCode::granted(options.max_qos);
            self.grant(slot, former, reason);
        }
        let Some(sub) = self.sub_mut(slot, part) else {
            return Err(ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR);
        };
        let (topic, former) = (sub.topic, qos(sub.options));
        (sub.options, sub.identifier) = (options.bits(), identifier);
        if sub.group.is_some() {
            if !waits {
                self.grant(slot, granted, ReasonCode::granted(options.max_qos));
            }
            return Ok(());
        }
        let needs_log = options.max_qos.bits();
        if (former > 0) != (needs_log > 0) {
            self.keep_log(topic, needs_log > 0);
            self.mqtt_state(slot).needs_told |= needs_log > 0;
        }
        let Some(sub) = self.sub_mut(slot, part) else {
            return Err(ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR);
        };
        // If the home has not answered yet, its answer gives the grant.
        let waits = waits || topic != NONE && sub.flags & COUNTED == 0;
        let shows = options.retain_handling == RetainHandling::Send;
        if shows || waits {
            sub.granted = granted;
        } else {
            self.grant(slot, granted, ReasonCode::granted(options.max_qos));
        }
        if !shows {
            return Ok(());
        }
        // Only the retained message: live messages go on.
        let to = self.conns.reply_to(slot, self.part_name(slot, part));
        self.attach_to(topic, to, Since::Live, true, true, Client::NOBODY);
        Ok(())
    }

    /// Adds a subscription to the list and asks its home.
    pub(super) fn join_topic(&mut self, slot: u32, wanted: &Wanted<'_>) {
        let (hash, _) = self.place_of(wanted.filter);
        let topic = self.topics.open(hash, wanted.filter);
        let place = self.topics.join(topic, slot);
        let (epoch, offset) = match wanted.since {
            Since::At(Position { epoch, offset }) => (epoch, offset),
            // It has seen nothing yet.
            _ => (!self.world.epoch, 0),
        };
        let sub = Sub {
            topic,
            place,
            flags: 0,
            offset,
            epoch,
            options: wanted.options.bits(),
            identifier: wanted.identifier,
            alias: 0,
            serial: 0,
            granted: wanted.granted,
            filter: 0,
            group: None,
        };
        let part = self.add_sub(slot, sub);
        self.topics.get_mut(topic).waiting += 1;
        let to = self.conns.reply_to(slot, self.part_name(slot, part));
        // A subscription of the session was counted when it was made, and is not counted again.
        let client = match wanted.granted {
            (0, 0) => Client::NOBODY,
            _ => self.conns.get(slot).client,
        };
        let (since, retained) = (wanted.since, wanted.retained);
        self.attach_to(topic, to, since, false, retained, client);
        if wanted.options.max_qos != Qos::AtMostOnce {
            self.keep_log(topic, true);
        }
    }

    /// Puts a subscription into a free place of the list.
    pub(super) fn add_sub(&mut self, slot: u32, sub: Sub) -> u32 {
        let list = &mut self.conns.extra(slot).list;
        let part = match list.iter().position(Sub::is_vacant) {
            Some(part) => {
                let serial = list[part].serial.wrapping_add(1);
                list[part] = Sub { serial, ..sub };
                part
            }
            None => {
                list.push(sub);
                list.len() - 1
            }
        };
        part as u32
    }

    /// Takes the client out of all its groups.
    pub(super) fn part_groups(&mut self, slot: u32, ends: bool) {
        let row = self.conns.get(slot);
        if !row.wants(MULTI) {
            return;
        }
        for part in 0..self.list_of(slot).len() as u32 {
            self.part_group(slot, part, ends);
        }
    }

    pub(super) fn attach_to(
        &mut self,
        topic: u32,
        to: ReplyTo,
        since: Since,
        again: bool,
        retained: bool,
        client: Client,
    ) {
        self.asked_page(to.slot);
        let row = self.topics.get(topic);
        let (hash, serial) = (row.hash, row.serial);
        self.attach(Attach {
            hash,
            topic,
            serial,
            to,
            since,
            poll: false,
            most: u32::MAX,
            deflate: false,
            again,
            retained,
            client,
            party: self.party(to.slot),
        });
    }

    /// A place in the list with its serial, to be named in answers.
    pub(crate) fn part_name(&self, slot: u32, part: u32) -> u32 {
        let row = self.conns.get(slot);
        if !row.wants(MULTI) {
            return part;
        }
        let serial = self.sub(slot, part).map_or(0, |sub| sub.serial);
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
        (u32::from(sub.serial) == name >> SERIAL_SHIFT).then_some(part)
    }

    /// Notes what a filter was granted, and writes the SUBACK with the last one.
    pub(super) fn grant(&mut self, slot: u32, (packet_id, n): (u16, u16), reason: ReasonCode) {
        let version = self.version(slot);
        let subacks = &mut self.mqtt_state(slot).subacks;
        let found = subacks
            .iter()
            .position(|suback| suback.packet_id == packet_id);
        let suback = found.and_then(|at| subacks.get_mut(at));
        let place = suback.and_then(|it| {
            it.reasons
                .get_mut(usize::from(n))
                .zip(Some(&mut it.waiting))
        });
        let (Some((place, waiting)), Some(id)) = (place, PacketId::new(packet_id)) else {
            // Each grant has its SUBACK.
            return self.broken(slot);
        };
        *place = reason;
        *waiting = waiting.saturating_sub(1);
        let (0, Some(at)) = (*waiting, found) else {
            return;
        };
        let suback = subacks.remove(at);
        let reasons = suback.reasons.iter().copied();
        self.write(slot, |out| {
            encode::suback(out, version, id, &Properties::NONE, reasons)
        });
    }

    pub(super) fn client_unsubscribed(
        &mut self,
        slot: u32,
        unsubscribe: &Unsubscribe<'_>,
    ) -> Result<(), ReasonCode> {
        self.has_room_for_codes(slot, unsubscribe.filters.iter().count())?;
        self.expand(slot);
        let mut reasons = Vec::new();
        for filter in unsubscribe.filters.iter() {
            let listed = self.conns.extra_of(slot).list.len();
            self.work.steps.add(1 + listed / 8);
            let part = self.part_of(slot, filter.as_bytes());
            reasons.push(match part {
                Some(part) => {
                    self.leave_part(slot, part);
                    ReasonCode::SUCCESS
                }
                None => ReasonCode::NO_SUBSCRIPTION_EXISTED,
            });
        }
        let (version, id) = (self.version(slot), unsubscribe.packet_id);
        let reasons = reasons.iter().copied();
        self.write(slot, |out| {
            encode::unsuback(out, version, id, &Properties::NONE, reasons)
        });
        Ok(())
    }

    /// Takes one subscription out of the list; its place stays.
    pub(super) fn leave_part(&mut self, slot: u32, part: u32) {
        self.part_group(slot, part, true);
        self.forget_starts(slot, part);
        let Some(sub) = self.sub(slot, part) else {
            return self.broken(slot);
        };
        if sub.group.is_none() && qos(sub.options) > 0 {
            self.release_log(slot, part);
        }
        let extra = self.conns.extra(slot);
        extra.behind.retain(|behind| behind.part != part);
        if let Some(mqtt) = &mut extra.mqtt {
            mqtt.fresh.retain(|other| *other != part);
        }
        let Some(sub) = extra.list.get_mut(part as usize) else {
            return;
        };
        let shared_bytes = sub.group.take().map(|shared| shared.bytes());
        let grouped = shared_bytes.is_some();
        extra.shared_bytes -= shared_bytes.unwrap_or(0);
        let (topic, place, counted) = (sub.topic, sub.place, sub.flags & COUNTED != 0);
        let (granted, filter) = (sub.granted, core::mem::take(&mut sub.filter));
        (sub.topic, sub.granted, sub.flags) = (NONE, (0, 0), 0);
        if filter != 0 {
            self.leave_wildcard(slot, part, filter - 1);
        }
        if granted != (0, 0) {
            self.grant(slot, granted, ReasonCode::UNSPECIFIED_ERROR);
        }
        if grouped || filter != 0 {
            return;
        }
        self.part_one(topic, place, counted);
    }

    /// Removes subscriptions that were never granted from the session: their home might hear of them only after another home
    /// has ended the session.
    pub(super) fn leave_unanswered(&mut self, slot: u32) {
        let row = self.conns.get(slot);
        if !row.wants(MULTI) {
            return;
        }
        let new = !self.world.epoch;
        let waits = |sub: &Sub| {
            sub.topic != NONE
                && sub.epoch == new
                && sub.flags & COUNTED == 0
                && qos(sub.options) > 0
        };
        let list = self.list_of(slot);
        let parts = (0..list.len()).filter(|part| waits(&list[*part]));
        for part in parts.collect::<Vec<_>>() {
            // There is no client to tell.
            if let Some(sub) = self.sub_mut(slot, part as u32) {
                sub.granted = (0, 0);
            }
            self.leave_part(slot, part as u32);
        }
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
                options,
                identifier: 0,
                alias: 0,
                serial: 0,
                granted: (0, 0),
                filter: 0,
                group: None,
            });
        }
    }

    /// Drops the state of a client that has nothing but one plain subscription.
    pub(crate) fn collapse(&mut self, slot: u32) {
        let row = self.conns.get(slot);
        if row.extra == NONE || row.mqtt == NONE || row.spill != NONE {
            return;
        }
        let extra = self.conns.extra_of(slot);
        let idle = extra.behind.is_empty() && extra.mqtt.as_ref().is_none_or(|mqtt| mqtt.is_idle());
        let plain = |sub: &Sub| {
            sub.topic != NONE
                && sub.identifier == 0
                && sub.serial == 0
                && sub.options & !(3 | RETAIN_HANDLING) == 0
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
        let (topic, place, options) = (sub.topic, sub.place, sub.options);
        let row = self.conns.get_mut(slot);
        (row.topic, row.place) = (topic, place);
        row.flags |= COUNTED | LIVE;
        row.options = row.options & !MULTI | u32::from(options & 3) << QOS_SHIFT;
        self.conns.drop_extra(slot);
    }
}

/// Retain Handling among the options: it matters only when the subscription is made.
const RETAIN_HANDLING: u8 = 0b11_0000;
