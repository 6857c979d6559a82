//! Resumes a session on a new connection: restores its subscriptions and messages from their [stored form](crate::mail::session::stored).
//!
//! Invariant: the client gets all messages that are published after its CONNACK. For this, the CONNACK waits until each subscription without a position is in
//! force. A subscription with a position reads the messages that it has missed from the log.
//!
//! `suspend.rs` makes the stored form.

use alloc::boxed::Box;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;

use crore_wire::mqtt::Qos;
use crore_wire::topic;

use crate::base::planted::{self, Fault};
use crate::base::position::{Position, Since};
use crate::base::reason::Reason;
use crate::client::list::filters::resend_retained;
use crate::client::row::SUBSCRIPTION_LIST;
use crate::io::Io;
use crate::mail::session::EncodedSession;
use crate::mail::session::patch::Outline;
use crate::mail::session::stored::{StoredMessage, StoredSession, StoredSubscription};
use crate::protocol::front::{Clients, Subscriptions};
use crate::protocol::mqtt::access::{may_keep_subscription, permitted_messages};
use crate::protocol::mqtt::client::mqtt_state_mut;
use crate::protocol::mqtt::close::end_for_unplaced;
use crate::protocol::mqtt::deliver::resend_inflight;
use crate::protocol::mqtt::options::options_of;
use crate::protocol::mqtt::overlap::{drop_starts_if_live, set_starts, sort_starts};
use crate::protocol::mqtt::retention::{count_qos_subscription_of, release_stored};
use crate::protocol::mqtt::shared::join_group;
use crate::protocol::mqtt::state::{
    DeliveryStep, Inflight, KeylessMessages, MqttState, NO_END_S, RecordWait, SubackEntry,
};
use crate::protocol::mqtt::subscribe::begin_subscription;
use crate::protocol::mqtt::subscription::WantedSubscription;

/// Resumes a session on the connection in `slot`, whose CONNACK is written and not yet sent.
pub(super) fn resume_session<I: Io>(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    state: &EncodedSession,
    io: &mut I,
) {
    let Ok(session) = StoredSession::decode(state) else {
        // Cannot happen: this process has encoded or checked it.
        return clients.end_as_broken(slot);
    };
    if session.token != 0 && clients.records_session(slot) {
        // The log has this state.
        let outline = Some(Outline::from_session(&session));
        let random = clients.protocol_state.next_number(&clients.ctx);
        let recording = mqtt_state_mut(&mut clients.conns, slot).recording();
        recording.outline = outline;
        recording.continue_from(state.bytes.len(), random);
    }
    let StoredSession {
        epoch,
        subscriptions,
        inflight,
        waiting,
        received,
        keyless,
        token,
    } = session;
    clients.move_to_list(slot);
    let records_sessions = clients.ctx.world.records_sessions();
    let (inflight, waiting) = (
        permitted_messages(clients, slot, inflight_from(inflight)),
        permitted_messages(clients, slot, inflight_from(waiting)),
    );
    let mqtt = mqtt_state_mut(&mut clients.conns, slot);
    (mqtt.inflight, mqtt.waiting) = (inflight, waiting);
    let received: BTreeSet<u16> = received.into_iter().collect();
    if token != 0 && records_sessions {
        mqtt.received_ids = keyless.iter().copied().collect();
        mqtt.earlier_received_ids = &received - &mqtt.received_ids;
    } else {
        // The server was stopped cleanly, so all these messages were published.
        mqtt.received_ids = received;
    }
    match token {
        // The log has no state of this session yet.
        0 if mqtt.token != 0 => {
            note_keyless(mqtt);
            clients.record_later(slot);
        }
        0 => {}
        // Homes know the session's QoS 2 messages by the token, also if the session ends with this connection.
        token if records_sessions => {
            mqtt.token = token;
            note_keyless(mqtt);
        }
        // Sessions are not recorded now, whether or not this one was before.
        _ => {}
    }
    let replicates_sessions = clients.ctx.world.replicates_sessions();
    let mqtt = mqtt_state_mut(&mut clients.conns, slot);
    if replicates_sessions {
        mqtt.earlier_releases_left = u16::MAX;
    }
    if planted::is(Fault::LostInflight) {
        mqtt.inflight.pop_front();
    }
    if planted::is(Fault::ResendOrder) {
        mqtt.inflight.make_contiguous().reverse();
    }
    if planted::is(Fault::ForgottenIds) {
        mqtt.received_ids.clear();
    }
    debug_assert!(clients.conns.get(slot).has_option(SUBSCRIPTION_LIST));
    match subscriptions.iter().any(begins_live) {
        true => clients.hold_reply(slot, io),
        false => clients.send_reply(slot, io),
    }
    resend_inflight(clients, slot, io);
    let mut unplaced = None;
    for subscription in &subscriptions {
        if let Err(reason) = resume_subscription(clients, subs, slot, epoch, subscription) {
            let mut bytes = Vec::new();
            subscription.encode(&mut bytes);
            let state = mqtt_state_mut(&mut clients.conns, slot);
            state.unplaced_subscriptions.push(bytes.into_boxed_slice());
            unplaced = Some((&subscription.filter, reason));
        }
    }
    sort_starts(clients, slot);
    drop_starts_if_live(&mut clients.conns, slot);
    clients.connack_when_confirmed(slot, io);
    if let Some((filter, reason)) = unplaced {
        end_for_unplaced(clients, slot, filter, reason, io);
    }
}

/// Notes that no home recognises the unreleased QoS 2 messages of the session.
fn note_keyless(mqtt: &mut MqttState) {
    if !mqtt.received_ids.is_empty() {
        let unreleased = mqtt.received_ids.clone();
        mqtt.recording().keyless = Some(Box::new(KeylessMessages {
            unreleased,
            released: Vec::new(),
        }));
    }
}

/// Whether a resumed subscription begins with the next message: it has no position, and is not shared, since the position of a shared one is that of the
/// group.
fn begins_live(subscription: &StoredSubscription<'_>) -> bool {
    subscription.positions.is_empty() && !subscription.is_shared()
}

/// Subscribes the client again. If it lacks the right now, tells the homes instead that they need not keep messages for the subscription.
///
/// # Errors
/// There is no room for its filter.
fn resume_subscription(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    epoch: u32,
    subscription: &StoredSubscription<'_>,
) -> Result<(), Reason> {
    let filter = &*subscription.filter;
    if !may_keep_subscription(clients, slot, filter) {
        if subscription.needs_log() {
            release_stored(&mut subs.lanes, &clients.ctx, filter);
        }
        return Ok(());
    }
    let since = resume_positions(epoch, &subscription.positions);
    let options = options_of(subscription.options);
    let is_live_from_start = begins_live(subscription);
    let wanted = WantedSubscription {
        filter,
        options,
        identifier: subscription.identifier,
        wants_retained: subscription.lacks_retained,
        suback_entry: match is_live_from_start {
            true => SubackEntry::RESUMED,
            false => SubackEntry::NONE,
        },
    };
    mqtt_state_mut(&mut clients.conns, slot).unconfirmed_subscriptions +=
        u32::from(is_live_from_start);
    if subscription.is_shared() {
        join_group(clients, &mut subs.lanes, slot, &wanted, true);
        return Ok(());
    }
    let sub_index = begin_subscription(clients, subs, slot, &wanted, &since)?;
    if topic::has_wildcard(filter) && subscription.lacks_retained && !is_live_from_start {
        resend_retained(clients, subs, slot, sub_index, filter);
    }
    if options.max_qos != Qos::AtMostOnce {
        if epoch == clients.ctx.world.epoch {
            let starts = match subscription.starts.is_empty() {
                true => &subscription.positions,
                false => &subscription.starts,
            };
            set_starts(clients, subs, slot, filter, starts);
        }
        // The homes have counted this subscription before. `begin_subscription` has counted it again, so one count is taken back.
        let (hash, _) = clients.ctx.hash_and_home_of(filter);
        count_qos_subscription_of(&mut subs.lanes, &clients.ctx, hash, filter, false);
    }
    Ok(())
}

/// The positions at which a resumed subscription continues.
fn resume_positions(epoch: u32, offsets: &[u64]) -> Vec<Since> {
    let position = |offset: &u64| Since::At(Position::new(epoch, *offset));
    offsets.iter().map(position).collect()
}

fn inflight_from(messages: Vec<StoredMessage<'_>>) -> VecDeque<Inflight> {
    let entry = |message: StoredMessage<'_>| Inflight {
        packet_id: message.packet_id,
        step: match message.is_released {
            false => DeliveryStep::Published,
            true => DeliveryStep::Released,
        },
        end_s: message.end_s.unwrap_or(NO_END_S),
        // Offsets are not stored. 0 is older than every message of the topic.
        offset: 0,
        group: None,
        version: message.version,
        packet: Box::from(message.packet),
        payload: message.payload,
        record_wait: RecordWait::None,
    };
    messages.into_iter().map(entry).collect()
}
