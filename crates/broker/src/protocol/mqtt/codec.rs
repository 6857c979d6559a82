//! Implements [`SubscriptionHandler`] for MQTT's subscriptions: SUBACK codes, retained messages, and the packets of messages (MQTT 5.0 sections 3.8.4 and 3.9).

use alloc::vec::Vec;

use crore_wire::mqtt::ReasonCode;

use crate::base::ids::PartitionId;
use crate::base::position::Position;
use crate::base::reason::Reason;
use crate::client::codec::{Message, OfferOutcome, SubscriptionHandler};
use crate::client::list::page::catch_up;
use crate::client::list::{name_of, sub, sub_mut};
use crate::client::outbox::Packets;
use crate::client::row::{HELD, Row, State};
use crate::io::Io;
use crate::mail::{Frames, LatestValues, Page, Record};
use crate::protocol::encode::Encoding;
use crate::protocol::front::{
    AllProtocols, Clients, Connections, Deliveries, Front, Queues, Subscriptions, Topics,
};
use crate::protocol::mqtt::client;
use crate::protocol::mqtt::close::end_unplaced;
use crate::protocol::mqtt::deliver::send_waiting;
use crate::protocol::mqtt::options::{is_plain, packets_of, qos_of};
use crate::protocol::mqtt::outgoing_publish::{DeliveryOptions, send_or_queue, write_publish};
use crate::protocol::mqtt::overlap::{
    combined_options, find_overlap, restart_after_deletion, start_live, start_live_subscriptions,
    write_in_turn,
};
use crate::protocol::mqtt::retained_latest::{
    ask_latest_values, begin_latest_values, end_latest_values, send_latest_values,
};
use crate::protocol::mqtt::shared::return_owed_credit;
use crate::protocol::mqtt::state::RESUMED;
use crate::protocol::mqtt::unsubscribe::leave_part;
use crate::store::slab::NONE;

/// The codec of MQTT 3.1.1 and 5.0.
pub(crate) struct MqttCodec;

impl SubscriptionHandler<AllProtocols> for MqttCodec {
    fn shared_encoding(row: &Row) -> Option<Encoding> {
        is_plain(row.consumer.options).then(|| packets_of(row))
    }

    /// Notes the code of a filter; with the last one of its SUBSCRIBE, sends the SUBACK.
    fn tell_granted<I: Io>(clients: &mut Clients, slot: u32, part: u32, io: &mut I) {
        let Some(sub) = sub_mut(&mut clients.conns, slot, part) else {
            return clients.end_as_broken(slot);
        };
        let granted = core::mem::take(&mut sub.protocol_state.granted);
        if granted == (0, 0) {
            return;
        }
        let reason = ReasonCode::granted(qos_of(sub.protocol_state.options));
        clients.grant(slot, granted, reason);
        clients.send_reply(slot, io);
        clients.confirm_resumed(slot, io);
    }

    /// A new subscription is refused. For a resumed one the connection ends, since MQTT has no other way to tell the client. The session keeps it, so
    /// that the next connection tries again.
    fn refused<I: Io>(
        clients: &mut Clients,
        subs: &mut Subscriptions,
        queues: &mut Queues,
        (slot, part): (u32, u32),
        reason: Reason,
        io: &mut I,
    ) {
        let Some(sub) = sub_mut(&mut clients.conns, slot, part) else {
            return clients.end_as_broken(slot);
        };
        let granted = core::mem::take(&mut sub.protocol_state.granted);
        let text = name_of(&clients.conns, subs, slot, part);
        if matches!(granted, (0, 0) | RESUMED) {
            return end_unplaced(clients, slot, &text, reason, io);
        }
        let code = clients.refuse_subscription(slot, reason, &text);
        clients.grant(slot, granted, code);
        leave_part(clients, subs, queues, slot, part);
        clients.send_reply(slot, io);
    }

    fn message(
        clients: &mut Clients,
        subs: &Subscriptions,
        deliveries: &Deliveries,
        (slot, part): (u32, u32),
        message: &Message<'_>,
        out: &mut Packets,
    ) -> OfferOutcome {
        let Some(sub) = sub(&clients.conns, slot, part) else {
            clients.end_as_broken(slot);
            return OfferOutcome::Full;
        };
        let delivery = DeliveryOptions {
            options: sub.protocol_state.options,
            identifiers: &[sub.protocol_state.identifier],
            alias_subscription: (sub.topic != NONE).then_some(part),
            ..DeliveryOptions::default()
        };
        let given = match message.retained {
            true => write_publish(clients, slot, &delivery, message, out),
            false => write_in_turn(
                clients,
                subs,
                deliveries,
                (slot, part),
                &delivery,
                message,
                out,
            ),
        };
        given.offered()
    }

    /// Sends one packet with the options of all subscriptions that match (section 3.3.4).
    fn append_message_to_several(
        clients: &mut Clients,
        subs: &Subscriptions,
        deliveries: &Deliveries,
        slot: u32,
        parts: &mut Vec<u32>,
        message: &Message<'_>,
        out: &mut Packets,
    ) {
        let (mut all, mut waiting) = (parts.clone(), Vec::new());
        if let Some(overlap) = find_overlap(clients, subs, deliveries, slot, message) {
            let shares = |part: &u32| overlap.parts.contains(part);
            if parts.contains(&overlap.sender) {
                let others = overlap.parts.iter().filter(|part| !parts.contains(part));
                all.extend(others);
            } else {
                waiting = parts.extract_if(.., |part| shares(part)).collect();
                all.clone_from(parts);
            }
        }
        let mut identifiers = Vec::new();
        let options = combined_options(&clients.conns, slot, &all, message, &mut identifiers);
        let delivery = DeliveryOptions {
            options: options.unwrap_or_default(),
            identifiers: &identifiers,
            ..DeliveryOptions::default()
        };
        let full = options.is_some()
            && write_publish(clients, slot, &delivery, message, out).offered()
                == OfferOutcome::Full;
        if !full {
            parts.clear();
        }
        waiting.append(parts);
        *parts = waiting;
    }

    /// MQTT has no packet that tells it.
    fn gap<I: Io>(
        _clients: &mut Clients,
        _subs: &mut Subscriptions,
        _of: (u32, u32),
        _from: (PartitionId, Position),
        _io: &mut I,
    ) {
    }

    /// The client is not told. Its subscription outlives the topic.
    fn ended<I: Io>(
        clients: &mut Clients,
        subs: &mut Subscriptions,
        (slot, part): (u32, u32),
        (partition, offset): (PartitionId, u64),
        _io: &mut I,
    ) {
        restart_after_deletion(clients, &subs.topics, slot, part, partition, offset);
    }

    /// The Receive Maximum bounds messages of QoS 1 and 2.
    fn page_messages_max(conns: &Connections, slot: u32, part: u32) -> u32 {
        client::places(conns, slot, part)
    }

    fn can_take_more(conns: &Connections, slot: u32) -> bool {
        client::has_place(conns, slot)
    }

    fn take_retained<I: Io>(
        clients: &mut Clients,
        subs: &Subscriptions,
        queues: &mut Queues,
        (slot, part): (u32, u32),
        page: &Page,
        (messages, frames): (&[Record], &Frames),
        io: &mut I,
    ) {
        let of = (slot, part);
        if page.values == LatestValues::InThisPage {
            let messages = (messages, frames);
            return send_latest_values(clients, &subs.topics, queues, of, page, messages, io);
        }
        let Some(sub) = sub(&clients.conns, slot, part) else {
            return clients.end_as_broken(slot);
        };
        let delivery = DeliveryOptions {
            options: sub.protocol_state.options,
            identifiers: &[sub.protocol_state.identifier],
            is_in_no_log: true,
            ..DeliveryOptions::default()
        };
        let topic = sub.topic;
        let position = (sub.epoch == page.epoch).then_some(sub.offset);
        for record in messages {
            let message = Message {
                name: subs.topics.name(topic),
                record,
                frames,
                retained: true,
            };
            send_or_queue(clients, slot, &delivery, &message, io);
        }
        if page.values == LatestValues::MustRequest {
            // Values after the position of a resumed session are sent by the subscription.
            let until = position.filter(|_| !page.only_retained);
            let until = until.unwrap_or(page.head);
            begin_latest_values(clients, queues, slot, part, until);
        }
    }

    fn take_retained_deletion(
        clients: &mut Clients,
        queues: &mut Queues,
        (slot, part): (u32, u32),
        page: &Page,
    ) -> bool {
        page.only_retained && end_latest_values(clients, queues, slot, part)
    }

    fn note_live(
        conns: &mut Connections,
        (slot, part): (u32, u32),
        partition: PartitionId,
        offset: u64,
    ) {
        start_live(conns, slot, part, partition, offset);
    }

    fn note_falling_behind(
        clients: &mut Clients,
        topics: &Topics,
        slot: u32,
        partition: PartitionId,
        offset: u64,
    ) {
        start_live_subscriptions(clients, topics, slot, partition, offset);
    }
}

/// Sends what waits for room, and goes on with subscriptions that have fallen behind.
pub(super) fn mqtt_catch_up<I: Io>(front: &mut Front, slot: u32, io: &mut I) {
    let (clients, subs, _, queues) = front.parts();
    send_waiting(clients, &mut subs.lanes, queues, slot, io);
    return_owed_credit(clients, &mut subs.lanes, slot);
    let row = clients.conns.get(slot);
    let full = row.link.outbox != NONE;
    // Nothing may overtake a CONNACK that waits in the outbox for resumed subscriptions.
    if full && !row.link.has(HELD) || row.extra() == NONE || row.consumer.state != State::Mqtt {
        return;
    }
    if !full {
        ask_latest_values(clients, subs, slot);
    }
    catch_up::<MqttCodec, _>(clients, subs, slot);
}
