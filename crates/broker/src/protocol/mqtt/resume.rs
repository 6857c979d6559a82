//! Resumes a session on a new connection: restores its subscriptions and messages from their [stored form](crate::mail::session::stored).
//!
//! Invariant: the CONNACK waits until each subscription without a position is in force, so the client gets what is published after the CONNACK.
//! Subscriptions with a position read the messages that they miss meanwhile from the log.
//!
//! The opposite, the stored form of a connection's session, is in `suspend.rs`.

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
use crate::protocol::mqtt::client::mqtt_state;
use crate::protocol::mqtt::close::end_unplaced;
use crate::protocol::mqtt::deliver::send_inflight;
use crate::protocol::mqtt::options::options_of;
use crate::protocol::mqtt::overlap::{end_starts, set_starts};
use crate::protocol::mqtt::retention::{count_qos_subscription_of, release_stored};
use crate::protocol::mqtt::shared::join_group;
use crate::protocol::mqtt::state::{Inflight, Keyless, Mqtt, NO_END_S, RESUMED, Step, Unsent};
use crate::protocol::mqtt::subscribe::join;
use crate::protocol::mqtt::subscription::Wanted;

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
        let recording = mqtt_state(&mut clients.conns, slot).recording();
        recording.outline = outline;
        recording.goes_on_from(state.bytes.len(), random);
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
    clients.expand(slot);
    let records_sessions = clients.ctx.world.records_sessions();
    let (inflight, waiting) = (
        permitted_messages(clients, slot, resumed(inflight)),
        permitted_messages(clients, slot, resumed(waiting)),
    );
    let mqtt = mqtt_state(&mut clients.conns, slot);
    (mqtt.inflight, mqtt.waiting) = (inflight, waiting);
    let received: BTreeSet<u16> = received.into_iter().collect();
    if token != 0 && records_sessions {
        mqtt.received = keyless.iter().copied().collect();
        mqtt.received_before = &received - &mqtt.received;
    } else {
        // A clean stop came between, so all of them were published.
        mqtt.received = received;
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
        // The session is not recorded, whatever it was before.
        _ => {}
    }
    let replicates_sessions = clients.ctx.world.replicates_sessions();
    let mqtt = mqtt_state(&mut clients.conns, slot);
    if replicates_sessions {
        mqtt.releases_before = u16::MAX;
    }
    if planted::is(Fault::LostInflight) {
        mqtt.inflight.pop_front();
    }
    if planted::is(Fault::ResendOrder) {
        mqtt.inflight.make_contiguous().reverse();
    }
    if planted::is(Fault::ForgottenIds) {
        mqtt.received.clear();
    }
    debug_assert!(clients.conns.get(slot).has_option(SUBSCRIPTION_LIST));
    match subscriptions.iter().any(begins_live) {
        true => clients.hold_reply(slot, io),
        false => clients.send_reply(slot, io),
    }
    send_inflight(clients, slot, io);
    let mut unplaced = None;
    for subscription in &subscriptions {
        if let Err(reason) = resume_subscription(clients, subs, slot, epoch, subscription) {
            let mut bytes = Vec::new();
            subscription.encode(&mut bytes);
            let state = mqtt_state(&mut clients.conns, slot);
            state.unplaced.push(bytes.into_boxed_slice());
            unplaced = Some((&subscription.filter, reason));
        }
    }
    end_starts(&mut clients.conns, slot);
    clients.confirm_resumed(slot, io);
    if let Some((filter, reason)) = unplaced {
        end_unplaced(clients, slot, filter, reason, io);
    }
}

/// No home knows the QoS 2 messages that the session has now.
fn note_keyless(mqtt: &mut Mqtt) {
    if !mqtt.received.is_empty() {
        let unreleased = mqtt.received.clone();
        mqtt.recording().keyless = Some(Box::new(Keyless {
            unreleased,
            released: Vec::new(),
        }));
    }
}

/// Whether a subscription without a position begins with the next message. A shared one does not, since its group has the position.
fn begins_live(subscription: &StoredSubscription<'_>) -> bool {
    subscription.positions.is_empty() && !subscription.is_shared()
}

/// Joins a subscription again. If the client may no longer have it, releases its log.
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
    let all = since_all(epoch, &subscription.positions);
    let options = options_of(subscription.options);
    let waits = begins_live(subscription);
    let wanted = Wanted {
        filter,
        options,
        identifier: subscription.identifier,
        retained: subscription.lacks_retained,
        granted: if waits { RESUMED } else { (0, 0) },
    };
    mqtt_state(&mut clients.conns, slot).unconfirmed += u32::from(waits);
    if subscription.is_shared() {
        join_group(clients, &mut subs.lanes, slot, &wanted, true);
        return Ok(());
    }
    let part = join(clients, subs, slot, &wanted, &all)?;
    if topic::has_wildcard(filter) && subscription.lacks_retained && !waits {
        resend_retained(clients, subs, slot, part, filter);
    }
    if options.max_qos != Qos::AtMostOnce {
        if epoch == clients.ctx.world.epoch {
            let starts = match subscription.starts.is_empty() {
                true => &subscription.positions,
                false => &subscription.starts,
            };
            set_starts(clients, subs, slot, filter, starts);
        }
        // Joining has counted the subscription at its homes, which count it already.
        let (hash, _) = clients.ctx.hash_and_home_of(filter);
        count_qos_subscription_of(&mut subs.lanes, &clients.ctx, hash, filter, false);
    }
    Ok(())
}

/// The positions at which a resumed subscription continues.
fn since_all(epoch: u32, seen: &[u64]) -> Vec<Since> {
    let at = |offset: &u64| Since::At(Position::new(epoch, *offset));
    seen.iter().map(at).collect()
}

fn resumed(messages: Vec<StoredMessage<'_>>) -> VecDeque<Inflight> {
    let one = |message: StoredMessage<'_>| Inflight {
        packet_id: message.packet_id,
        step: match message.is_released {
            false => Step::Published,
            true => Step::Released,
        },
        end_s: message.end_s.unwrap_or(NO_END_S),
        // Offsets are not stored. 0 counts as older than every message of the topic.
        offset: 0,
        group: None,
        version: message.version,
        packet: Box::from(message.packet),
        payload: message.payload,
        unsent: Unsent::No,
    };
    messages.into_iter().map(one).collect()
}
