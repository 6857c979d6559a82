//! Ends subscriptions: by UNSUBSCRIBE (MQTT 5.0 sections 3.10 and 3.11), or with the connection.

use alloc::vec::Vec;

use crore_wire::mqtt::{Properties, ReasonCode, Unsubscribe, encode};

use crate::client::list::{self, leave, list_of, sub_mut};
use crate::client::row::{COUNTED, SUBSCRIPTION_LIST};
use crate::protocol::front::{Clients, Lanes, Queues, Sub, Subscriptions};
use crate::protocol::mqtt::client::{self, mqtt_state};
use crate::protocol::mqtt::options::qos;
use crate::protocol::mqtt::overlap::forget_starts;
use crate::protocol::mqtt::retained_latest::end_latest_values;
use crate::protocol::mqtt::retention::release_log;
use crate::protocol::mqtt::shared::part_group;
use crate::protocol::mqtt::state::Suback;
use crate::protocol::mqtt::subscribe::has_room_for_codes;
use crate::protocol::mqtt::subscription::part_of;
use crate::store::slab::NONE;

/// Carries out an UNSUBSCRIBE, which is answered at once. If the session is recorded, it is answered when the log has its new state.
pub(super) fn client_unsubscribed(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    queues: &mut Queues,
    slot: u32,
    unsubscribe: &Unsubscribe<'_>,
) -> Result<(), ReasonCode> {
    has_room_for_codes(&clients.conns, slot, unsubscribe.filters.iter().count())?;
    clients.expand(slot);
    let mut reasons = Vec::new();
    for filter in unsubscribe.filters.iter() {
        let listed = clients.conns.extra_of(slot).list.len();
        clients.meter.work.steps.add(1 + listed / 8);
        let part = part_of(clients, subs, slot, filter.as_bytes());
        reasons.push(match part {
            Some(part) => {
                leave_part(clients, subs, queues, slot, part);
                ReasonCode::SUCCESS
            }
            None => ReasonCode::NO_SUBSCRIPTION_EXISTED,
        });
    }
    let (version, id) = (client::version(&clients.conns, slot), unsubscribe.packet_id);
    if clients.records_session(slot) {
        clients.record_later(slot);
        let subacks = &mut mqtt_state(&mut clients.conns, slot).subacks;
        // A client that uses the packet id of a SUBSCRIBE is answered at once.
        if !subacks.iter().any(|suback| suback.packet_id == id.get()) {
            subacks.push(Suback {
                packet_id: id.get(),
                waiting: 0,
                is_asked: false,
                is_unsuback: true,
                reasons,
            });
            return Ok(());
        }
    }
    let reasons = reasons.iter().copied();
    clients.write_packet(slot, |out| {
        encode::unsuback(out, version, id, &Properties::NONE, reasons)
    });
    Ok(())
}

/// Removes one subscription from the list. Its index becomes free.
pub(super) fn leave_part(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    queues: &mut Queues,
    slot: u32,
    part: u32,
) {
    part_group(clients, &mut subs.lanes, slot, part, true);
    forget_starts(&mut clients.conns, slot, part);
    end_latest_values(clients, queues, slot, part);
    let Some(sub) = list::sub(&clients.conns, slot, part) else {
        return clients.end_as_broken(slot);
    };
    if sub.protocol_state.group.is_none() && qos(sub.protocol_state.options) > 0 {
        release_log(clients, subs, slot, part);
    }
    let extra = clients.conns.extra(slot);
    let Some(sub) = extra.list.get_mut(part as usize) else {
        return;
    };
    let granted = core::mem::take(&mut sub.protocol_state.granted);
    let shared_bytes = sub
        .protocol_state
        .group
        .take()
        .map_or(0, |shared| shared.bytes() as u32);
    extra.shared_bytes -= shared_bytes;
    leave(clients, subs, slot, part);
    if granted != (0, 0) {
        clients.grant(slot, granted, ReasonCode::UNSPECIFIED_ERROR);
    }
}

/// Removes subscriptions that no home has granted yet from the session. Otherwise a home could learn of one only after the home of the client id has
/// ended the session, and would keep messages for ever.
pub(super) fn leave_unanswered(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    queues: &mut Queues,
    slot: u32,
) {
    let row = clients.conns.get(slot);
    if !row.has_option(SUBSCRIPTION_LIST) {
        return;
    }
    let new = !clients.ctx.world.epoch;
    let waits = |sub: &Sub| {
        sub.topic != NONE
            && sub.epoch == new
            && sub.flags & COUNTED == 0
            && qos(sub.protocol_state.options) > 0
    };
    let list = list_of(&clients.conns, slot);
    let parts = (0..list.len()).filter(|part| waits(&list[*part]));
    for part in parts.collect::<Vec<_>>() {
        // The connection has ended, so nobody is told.
        if let Some(sub) = sub_mut(&mut clients.conns, slot, part as u32) {
            sub.protocol_state.granted = (0, 0);
        }
        leave_part(clients, subs, queues, slot, part as u32);
    }
}

/// Takes the client out of all its groups.
pub(super) fn part_groups(clients: &mut Clients, lanes: &mut Lanes, slot: u32, ends: bool) {
    let row = clients.conns.get(slot);
    if !row.has_option(SUBSCRIPTION_LIST) {
        return;
    }
    for part in 0..list_of(&clients.conns, slot).len() as u32 {
        part_group(clients, lanes, slot, part, ends);
    }
}
