//! Makes the [stored form](crate::mail::session::stored) of a session when its connection ends. `resume.rs` reads it.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use crate::base::planted::{self, Fault};
use crate::client::list::filters::{lacks_retained, seen_by_group};
use crate::client::list::{is_free_index, name_of};
use crate::mail::session::patch::Outline;
use crate::mail::session::stored::{StoredMessage, StoredSession, StoredSubscription};
use crate::mail::session::{EncodedSession, SessionPatch};
use crate::protocol::front::{Clients, Deliveries, Matching, Sub, Subscriptions};
use crate::protocol::mqtt::client;
use crate::protocol::mqtt::options::qos;
use crate::protocol::mqtt::overlap::starts_of;
use crate::protocol::mqtt::retained_latest::is_sent_latest_values;
use crate::protocol::mqtt::state::{DeliveryStep, Inflight, MqttState, NO_END_S};

/// The stored form of the session on the connection in `slot`, and the patch from the last record to it, if the last record is known.
pub(super) fn store_session(
    clients: &mut Clients,
    subs: &Subscriptions,
    deliveries: &Deliveries,
    slot: u32,
) -> (EncodedSession, Option<SessionPatch>) {
    let subscriptions_here = stored_subscriptions(clients, subs, deliveries, slot);
    let nothing = MqttState::default();
    let mqtt = client::mqtt_state(&clients.conns, slot).unwrap_or(&nothing);
    let subscriptions = mqtt.decode_unplaced().chain(subscriptions_here).collect();
    // A message that was never sent waits behind those that are sent again, and will have no DUP.
    let (unsent_inflight, sent): (Vec<_>, Vec<_>) =
        mqtt.inflight.iter().partition(|it| it.is_publish_unsent());
    let (resent, unsent_queued): (Vec<_>, Vec<_>) =
        mqtt.waiting.iter().partition(|it| it.was_sent());
    let waiting = resent
        .into_iter()
        .chain(unsent_inflight)
        .chain(unsent_queued);
    let session = StoredSession {
        epoch: clients.ctx.world.epoch,
        subscriptions,
        inflight: sent.into_iter().map(stored_message).collect(),
        waiting: waiting.map(stored_message).collect(),
        received: mqtt.unreleased().collect(),
        keyless: mqtt
            .recording
            .as_ref()
            .map_or_else(Vec::new, |it| it.keyless_ids()),
        token: mqtt.token,
    };
    let recording = mqtt.recording.as_ref();
    let recording = recording.filter(|it| !it.is_whole_due());
    let before = recording.and_then(|it| it.outline.as_ref());
    let patch = before.map(|before| before.patch(&session, &Outline::from_session(&session)));
    (session.encode(), patch)
}

/// The subscriptions of the session on the connection in `slot`, without those for which it had no room.
pub(super) fn stored_subscriptions(
    clients: &mut Clients,
    subs: &Subscriptions,
    deliveries: &Deliveries,
    slot: u32,
) -> Vec<StoredSubscription<'static>> {
    clients.move_to_list(slot);
    let mut subscriptions = Vec::new();
    let side_row = clients.conns.side_row(slot);
    for (sub_index, sub) in (0..).zip(&side_row.list) {
        if !is_granted(sub) {
            continue;
        }
        let positions = positions_of(clients, &subs.matching, deliveries, slot, sub);
        subscriptions.push(StoredSubscription {
            filter: name_of(&clients.conns, subs, slot, sub_index).into(),
            options: sub.protocol_state.options,
            identifier: sub.protocol_state.identifier,
            lacks_retained: is_sent_latest_values(&clients.conns, slot, sub_index)
                || lacks_retained(&clients.conns, slot, sub_index),
            starts: starts_of(&clients.conns, slot, sub_index, &positions),
            positions,
        });
    }
    subscriptions
}

/// Whether a subscription belongs to the session. A shared subscription whose homes have not all answered belongs to it only if the session had it before.
fn is_granted(sub: &Sub) -> bool {
    let group = sub.protocol_state.group.as_ref();
    !is_free_index(sub)
        && group.is_none_or(|group| group.is_restored || group.unanswered_homes == 0)
}

/// See [`StoredSubscription::positions`].
fn positions_of(
    clients: &Clients,
    matching: &Matching,
    deliveries: &Deliveries,
    slot: u32,
    sub: &Sub,
) -> Vec<u64> {
    if qos(sub.protocol_state.options) == 0 || sub.protocol_state.group.is_some() {
        return Vec::new();
    }
    if let Some(serial) = sub.filter.checked_sub(1) {
        return seen_by_group(clients, matching, deliveries, slot, serial);
    }
    match sub.epoch == clients.ctx.world.epoch {
        true => alloc::vec![sub.offset + u64::from(planted::is(Fault::FarPosition))],
        false => Vec::new(),
    }
}

pub(super) fn stored_message(message: &Inflight) -> StoredMessage<'_> {
    StoredMessage {
        packet_id: message.packet_id,
        is_released: message.step == DeliveryStep::Released,
        version: message.version,
        end_s: (message.end_s != NO_END_S).then_some(message.end_s),
        packet: Cow::Borrowed(&message.packet),
        payload: message.payload.clone(),
    }
}
