//! Makes the [stored form](crate::mail::session::stored) of a session when its connection ends. `resume.rs` reads it.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use crate::base::planted::{self, Fault};
use crate::client::list::filters::{lacks_retained, seen_by_group};
use crate::client::list::{is_vacant, name_of};
use crate::mail::session::patch::Outline;
use crate::mail::session::stored::{StoredMessage, StoredSession, StoredSubscription};
use crate::mail::session::{EncodedSession, SessionPatch};
use crate::protocol::front::{Clients, Deliveries, Matching, Sub, Subscriptions};
use crate::protocol::mqtt::client;
use crate::protocol::mqtt::options::qos;
use crate::protocol::mqtt::overlap::starts_of;
use crate::protocol::mqtt::retained_latest::is_shown_values;
use crate::protocol::mqtt::state::{Inflight, Mqtt, NO_END_S, Step};

/// The stored form of the session on the connection in `slot`, and what of it the log does not have, if that is known.
pub(super) fn suspend_session(
    clients: &mut Clients,
    subs: &Subscriptions,
    deliveries: &Deliveries,
    slot: u32,
) -> (EncodedSession, Option<SessionPatch>) {
    let placed = stored_subscriptions(clients, subs, deliveries, slot);
    let nothing = Mqtt::default();
    let mqtt = client::mqtt(&clients.conns, slot).unwrap_or(&nothing);
    let subscriptions = mqtt.unplaced().chain(placed).collect();
    // A message that was never sent waits behind those that are sent again, and has no DUP on the next connection.
    let (unsent, sent): (Vec<_>, Vec<_>) =
        mqtt.inflight.iter().partition(|it| it.is_first_unsent());
    let (again, fresh): (Vec<_>, Vec<_>) = mqtt.waiting.iter().partition(|it| it.was_sent());
    let waiting = again.into_iter().chain(unsent).chain(fresh);
    let session = StoredSession {
        epoch: clients.ctx.world.epoch,
        subscriptions,
        inflight: sent.into_iter().map(stored).collect(),
        waiting: waiting.map(stored).collect(),
        received: mqtt.unreleased().collect(),
        keyless: mqtt
            .recording
            .as_ref()
            .map_or_else(Vec::new, |it| it.keyless()),
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
    clients.expand(slot);
    let mut subscriptions = Vec::new();
    let extra = clients.conns.extra_of(slot);
    for (part, sub) in (0..).zip(&extra.list) {
        if !is_granted(sub) {
            continue;
        }
        let positions = positions_of(clients, &subs.matching, deliveries, slot, sub);
        subscriptions.push(StoredSubscription {
            filter: name_of(&clients.conns, subs, slot, part).into(),
            options: sub.protocol_state.options,
            identifier: sub.protocol_state.identifier,
            lacks_retained: is_shown_values(&clients.conns, slot, part)
                || lacks_retained(&clients.conns, slot, part),
            starts: starts_of(&clients.conns, slot, part, &positions),
            positions,
        });
    }
    subscriptions
}

/// Whether a subscription belongs to the session. One to a group that has not answered belongs to it only if it did before.
fn is_granted(sub: &Sub) -> bool {
    let group = sub.protocol_state.group.as_ref();
    !is_vacant(sub) && group.is_none_or(|group| group.restored || group.waiting == 0)
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

pub(super) fn stored(message: &Inflight) -> StoredMessage<'_> {
    StoredMessage {
        packet_id: message.packet_id,
        is_released: message.step == Step::Released,
        version: message.version,
        end_s: (message.end_s != NO_END_S).then_some(message.end_s),
        packet: Cow::Borrowed(&message.packet),
        payload: message.payload.clone(),
    }
}
