//! Implements [`SubscriptionHandler`] for MQTT's subscriptions: SUBACK codes, retained messages, and the packets of messages (MQTT 5.0 sections 3.8.4 and 3.9).

use alloc::vec::Vec;

use crore_wire::mqtt::ReasonCode;

use crate::base::ids::PartitionId;
use crate::base::position::Position;
use crate::base::reason::Reason;
use crate::client::codec::{Message, OfferOutcome, SubscriptionHandler};
use crate::client::list::page::request_next_pages;
use crate::client::list::{name_of, sub, subscription_at_mut};
use crate::client::outbox::Packets;
use crate::client::row::{HELD, Row, State};
use crate::io::Io;
use crate::mail::{Frames, LatestValues, Page, Record};
use crate::protocol::encode::Encoding;
use crate::protocol::front::{
    AllProtocols, Clients, Connections, Deliveries, Front, Queues, Subscriptions, Topics,
};
use crate::protocol::mqtt::client;
use crate::protocol::mqtt::close::end_for_unplaced;
use crate::protocol::mqtt::deliver::send_waiting;
use crate::protocol::mqtt::options::{is_plain, plain_encoding, qos_of};
use crate::protocol::mqtt::outgoing_publish::{DeliveryOptions, send_or_queue, write_publish};
use crate::protocol::mqtt::overlap::{
    Turn, combined_options, find_overlap, note_live, restart_after_deletion, start_behind,
    start_live_subscriptions, write_in_turn,
};
use crate::protocol::mqtt::retained_latest::{
    ask_latest_values, begin_latest_values, end_latest_values, send_latest_values,
};
use crate::protocol::mqtt::shared::return_owed_credit;
use crate::protocol::mqtt::state::SubackEntry;
use crate::protocol::mqtt::unsubscribe::end_subscription;
use crate::store::slab::NONE;

/// The codec of MQTT 3.1.1 and 5.0.
pub(crate) struct MqttCodec;

impl SubscriptionHandler<AllProtocols> for MqttCodec {
    fn shared_encoding(row: &Row) -> Option<Encoding> {
        is_plain(row.consumer.options).then(|| plain_encoding(row))
    }

    /// Sets the reason code of the filter in its SUBACK, and sends the SUBACK if this was the last code.
    fn tell_granted<I: Io>(clients: &mut Clients, slot: u32, sub_index: u32, io: &mut I) {
        let Some(sub) = subscription_at_mut(&mut clients.conns, slot, sub_index) else {
            return clients.end_as_broken(slot);
        };
        let entry = core::mem::take(&mut sub.protocol_state.suback_entry);
        if entry == SubackEntry::NONE {
            return;
        }
        let reason = ReasonCode::granted(qos_of(sub.protocol_state.options));
        clients.note_suback_code(slot, entry, reason);
        clients.send_reply(slot, io);
        clients.connack_when_confirmed(slot, io);
    }

    /// Refuses a new subscription by its reason code. If the refused subscription was resumed with the session, ends the connection, since MQTT has no other
    /// way to tell the client. The session keeps the subscription, so the client's next connection tries again.
    fn refused<I: Io>(
        clients: &mut Clients,
        subs: &mut Subscriptions,
        queues: &mut Queues,
        (slot, sub_index): (u32, u32),
        reason: Reason,
        io: &mut I,
    ) {
        let Some(sub) = subscription_at_mut(&mut clients.conns, slot, sub_index) else {
            return clients.end_as_broken(slot);
        };
        let entry = core::mem::take(&mut sub.protocol_state.suback_entry);
        let text = name_of(&clients.conns, subs, slot, sub_index);
        if matches!(entry, SubackEntry::NONE | SubackEntry::RESUMED) {
            return end_for_unplaced(clients, slot, &text, reason, io);
        }
        let code = clients.refuse_subscription(slot, reason, &text);
        clients.note_suback_code(slot, entry, code);
        end_subscription(clients, subs, queues, slot, sub_index);
        clients.send_reply(slot, io);
    }

    fn message(
        clients: &mut Clients,
        subs: &Subscriptions,
        deliveries: &Deliveries,
        (slot, sub_index): (u32, u32),
        message: &Message<'_>,
        out: &mut Packets,
    ) -> OfferOutcome {
        let Some(sub) = sub(&clients.conns, slot, sub_index) else {
            clients.end_as_broken(slot);
            return OfferOutcome::Full;
        };
        let delivery = DeliveryOptions {
            options: sub.protocol_state.options,
            identifiers: &[sub.protocol_state.identifier],
            alias_subscription: (sub.topic != NONE).then_some(sub_index),
            ..DeliveryOptions::default()
        };
        let result = match message.retained {
            true => write_publish(clients, slot, &delivery, message, out),
            false => write_in_turn(
                clients,
                subs,
                deliveries,
                (slot, sub_index),
                &delivery,
                message,
                out,
            ),
        };
        result.into_offer_outcome()
    }

    /// Sends one packet with the combined options of all subscriptions that match (section 3.3.4). Leaves those in `sub_indexes` that could not send it now.
    fn append_message_to_several(
        clients: &mut Clients,
        subs: &Subscriptions,
        deliveries: &Deliveries,
        slot: u32,
        sub_indexes: &mut Vec<u32>,
        message: &Message<'_>,
        out: &mut Packets,
    ) {
        let (mut combined, mut postponed) = (sub_indexes.clone(), Vec::new());
        let found = find_overlap(clients, subs, deliveries, slot, sub_indexes, message);
        if let Some(overlap) = found {
            let overlaps = |sub_index: &u32| overlap.subscriptions.contains(sub_index);
            if overlap.turn == Turn::Send {
                let also_matching = overlap
                    .subscriptions
                    .iter()
                    .filter(|sub_index| !sub_indexes.contains(sub_index));
                combined.extend(also_matching);
            } else {
                postponed = sub_indexes
                    .extract_if(.., |sub_index| overlaps(sub_index))
                    .collect();
                combined.clone_from(sub_indexes);
            }
        }
        let mut identifiers = Vec::new();
        let options = combined_options(&clients.conns, slot, &combined, message, &mut identifiers);
        let delivery = DeliveryOptions {
            options: options.unwrap_or_default(),
            identifiers: &identifiers,
            ..DeliveryOptions::default()
        };
        let is_full = options.is_some()
            && write_publish(clients, slot, &delivery, message, out).into_offer_outcome()
                == OfferOutcome::Full;
        if !is_full {
            sub_indexes.clear();
        }
        postponed.append(sub_indexes);
        *sub_indexes = postponed;
    }

    /// Does nothing: MQTT has no packet for a gap.
    fn gap<I: Io>(
        _clients: &mut Clients,
        _subs: &mut Subscriptions,
        _of: (u32, u32),
        _from: (PartitionId, Position),
        _io: &mut I,
    ) {
    }

    /// Does not tell the client, because its subscription outlives the topic.
    fn ended<I: Io>(
        clients: &mut Clients,
        subs: &mut Subscriptions,
        (slot, sub_index): (u32, u32),
        (partition, offset): (PartitionId, u64),
        _io: &mut I,
    ) {
        restart_after_deletion(clients, &subs.topics, slot, sub_index, partition, offset);
    }

    /// The Receive Maximum bounds messages of QoS 1 and 2.
    fn page_messages_max(conns: &Connections, slot: u32, sub_index: u32) -> u32 {
        client::inflight_room(conns, slot, sub_index)
    }

    fn can_take_more(conns: &Connections, slot: u32) -> bool {
        client::has_inflight_room(conns, slot)
    }

    fn take_retained<I: Io>(
        clients: &mut Clients,
        subs: &Subscriptions,
        queues: &mut Queues,
        (slot, sub_index): (u32, u32),
        page: &Page,
        (messages, frames): (&[Record], &Frames),
        io: &mut I,
    ) {
        let subscription = (slot, sub_index);
        if page.values == LatestValues::InThisPage {
            let messages = (messages, frames);
            return send_latest_values(
                clients,
                &subs.topics,
                queues,
                subscription,
                page,
                messages,
                io,
            );
        }
        let Some(sub) = sub(&clients.conns, slot, sub_index) else {
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
            // A resumed subscription itself sends the values after its position.
            let last_offset = position.filter(|_| !page.only_retained);
            let last_offset = last_offset.unwrap_or(page.head);
            begin_latest_values(clients, queues, slot, sub_index, last_offset);
        }
    }

    fn take_retained_deletion(
        clients: &mut Clients,
        queues: &mut Queues,
        (slot, sub_index): (u32, u32),
        page: &Page,
    ) -> bool {
        page.only_retained && end_latest_values(clients, queues, slot, sub_index)
    }

    fn note_beginning_behind(
        clients: &mut Clients,
        topics: &Topics,
        (slot, sub_index): (u32, u32),
        begin: (PartitionId, u64),
    ) {
        start_behind(clients, topics, slot, sub_index, begin);
    }

    fn note_live(
        clients: &mut Clients,
        (slot, sub_index): (u32, u32),
        partition: PartitionId,
        offset: u64,
    ) {
        note_live(clients, slot, sub_index, partition, offset);
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

/// Sends messages that waited for room, and continues with subscriptions that have fallen behind.
pub(super) fn mqtt_catch_up<I: Io>(front: &mut Front, slot: u32, io: &mut I) {
    let (clients, subs, _, queues) = front.parts();
    send_waiting(clients, &mut subs.lanes, queues, slot, io);
    return_owed_credit(clients, &mut subs.lanes, slot);
    let row = clients.conns.get(slot);
    let has_outbox = row.link.outbox != NONE;
    // Nothing may overtake a CONNACK that waits in the outbox for resumed subscriptions.
    if has_outbox && !row.link.has(HELD)
        || row.side_row() == NONE
        || row.consumer.state != State::Mqtt
    {
        return;
    }
    if !has_outbox {
        ask_latest_values(clients, subs, slot);
    }
    request_next_pages::<MqttCodec, _>(clients, subs, slot);
}
