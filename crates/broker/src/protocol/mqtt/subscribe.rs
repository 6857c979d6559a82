//! Subscriptions that a client makes (MQTT 5.0 sections 3.8 and 3.9): its SUBSCRIBE, what the homes are asked, and the SUBACK.
//! `list` has where they stand, `unsubscribe` how they end.

use crore_wire::mqtt::{
    Filter, PacketId, Properties, Qos, ReasonCode, RetainHandling, Subscribe, SubscribeOptions,
    encode,
};
use crore_wire::topic;

use super::list::is_vacant;
use super::options::qos;
use super::state::{Suback, Subscribed};
use crate::base::access::Right;
use crate::base::position::{Position, Since};
use crate::base::reason::Reason;
use crate::budget::admission::Client;
use crate::client::row::COUNTED;
use crate::client::words;
use crate::mail::{Attach, ReplyTo};
use crate::protocol::front::Front;
use crate::protocol::front::Sub;
use crate::store::slab::NONE;

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
    /// A SUBSCRIBE, as far as the turn allows; the SUBACK follows when the homes have answered.
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
            if n >= done + FILTERS_AT_ONCE && (self.work.is_spent() || self.mqtt_must_wait(slot)) {
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
    pub(super) fn has_room_for_codes(&self, slot: u32, count: usize) -> Result<(), ReasonCode> {
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
        mut options: SubscribeOptions,
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
        let checked = topic::check_filter(filter.filter.as_bytes(), topic_bytes)
            .and_then(|()| topic::check_name(share, topic_bytes));
        if let Err(error) = checked {
            self.refused_subscription(&words::of_topic(&error), text);
            return Err(ReasonCode::TOPIC_FILTER_INVALID);
        }
        if filter.share.is_some() && self.world.is_shared() {
            self.refused_subscription("a cluster has no shared subscriptions", text);
            return Err(ReasonCode::SHARED_SUBSCRIPTIONS_NOT_SUPPORTED);
        }
        self.grants(slot, Right::Subscribe, filter.filter.as_bytes())?;
        if self.is_bridge(slot) {
            // 3.1.1 has no options to ask for it with. Shared subscriptions have no No Local [MQTT-3.8.3-4].
            (options.no_local, options.retain_as_published) = (filter.share.is_none(), true);
        }
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
        if list.iter().filter(|sub| !is_vacant(sub)).count() >= most {
            let reason = words::of_reason(Reason::TooManyNames, &self.world.settings);
            self.refused_subscription(&reason, text);
            return Err(ReasonCode::QUOTA_EXCEEDED);
        }
        if !self.may_take(slot, 0) {
            // Memory is short, and this client holds much.
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

    /// Tells of a subscription that is refused, since libraries hide the SUBACK's codes.
    pub(super) fn refused_subscription(&mut self, reason: &str, filter: &str) {
        let reason = alloc::format!("SUBSCRIBE: {reason}: ");
        self.refused_packet(&reason, filter.as_bytes());
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
        let waits = sub.own.granted != (0, 0);
        if waits {
            // The home has not answered the former SUBSCRIBE yet: its grant is given now, since `granted` is replaced.
            let former = core::mem::replace(&mut sub.own.granted, granted);
            let reason = ReasonCode::granted(options.max_qos);
            self.grant(slot, former, reason);
        }
        let Some(sub) = self.sub_mut(slot, part) else {
            return Err(ReasonCode::IMPLEMENTATION_SPECIFIC_ERROR);
        };
        let (topic, former) = (sub.topic, qos(sub.own.options));
        (sub.own.options, sub.own.identifier) = (options.bits(), identifier);
        if sub.own.group.is_some() {
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
            sub.own.granted = granted;
        } else {
            self.grant(slot, granted, ReasonCode::granted(options.max_qos));
        }
        if !shows {
            return Ok(());
        }
        // Only the retained message: live messages go on.
        let to = self.conns.reply_to(slot, self.part_name(slot, part));
        let ask = self.page_of(topic, to, Since::Live, Client::NOBODY);
        self.attach(Attach {
            again: true,
            retained: true,
            ..ask
        });
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
            own: Subscribed {
                options: wanted.options.bits(),
                identifier: wanted.identifier,
                granted: wanted.granted,
                ..Subscribed::default()
            },
        };
        let part = self.add_sub(slot, sub);
        self.topics.get_mut(topic).waiting += 1;
        let to = self.conns.reply_to(slot, self.part_name(slot, part));
        // A subscription of the session was counted when it was made, and is not counted again.
        let client = match wanted.granted {
            (0, 0) => Client::NOBODY,
            _ => self.conns.get(slot).client,
        };
        let retained = wanted.retained;
        let ask = self.page_of(topic, to, wanted.since, client);
        self.attach(Attach { retained, ..ask });
        if wanted.options.max_qos != Qos::AtMostOnce {
            self.keep_log(topic, true);
        }
    }

    /// The first page of a topic, which is counted as asked for.
    pub(super) fn page_of(
        &mut self,
        topic: u32,
        to: ReplyTo,
        since: Since,
        client: Client,
    ) -> Attach {
        self.asked_pages(to.slot, 1);
        let row = self.topics.get(topic);
        let (hash, serial) = (row.hash, row.serial);
        Attach {
            hash,
            topic,
            serial,
            to,
            since,
            poll: false,
            most: u32::MAX,
            deflate: false,
            again: false,
            once: false,
            retained: false,
            client,
            party: self.party(to.slot),
        }
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
}
