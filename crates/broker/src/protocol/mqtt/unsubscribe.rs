//! Ends subscriptions: by UNSUBSCRIBE (MQTT 5.0 sections 3.10 and 3.11), or with the connection.

use alloc::vec::Vec;

use crore_wire::mqtt::{Properties, ReasonCode, Unsubscribe, encode};

use crate::client::list::{self, remove_subscription, subscription_at_mut, subscription_list};
use crate::client::row::{COUNTED, SUBSCRIPTION_LIST};
use crate::protocol::front::{Clients, Lanes, Queues, Sub, Subscriptions};
use crate::protocol::mqtt::client::{self, mqtt_state_mut};
use crate::protocol::mqtt::options::qos;
use crate::protocol::mqtt::overlap::forget_starts;
use crate::protocol::mqtt::retained_latest::end_latest_values;
use crate::protocol::mqtt::retention::release_log;
use crate::protocol::mqtt::shared::leave_share_group;
use crate::protocol::mqtt::state::{Suback, SubackEntry};
use crate::protocol::mqtt::subscribe::has_room_for_codes;
use crate::protocol::mqtt::subscription::find_subscription;
use crate::store::slab::NONE;

/// Carries out an UNSUBSCRIBE and answers it. If the session is recorded, the answer waits until the log has the session's new state.
pub(super) fn handle_unsubscribe(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    queues: &mut Queues,
    slot: u32,
    unsubscribe: &Unsubscribe<'_>,
) -> Result<(), ReasonCode> {
    has_room_for_codes(&clients.conns, slot, unsubscribe.filters.iter().count())?;
    clients.move_to_list(slot);
    let mut reasons = Vec::new();
    for filter in unsubscribe.filters.iter() {
        let listed = clients.conns.side_row(slot).list.len();
        clients.meter.work.steps.add(1 + listed / 8);
        let sub_index = find_subscription(clients, subs, slot, filter.as_bytes());
        reasons.push(match sub_index {
            Some(sub_index) => {
                end_subscription(clients, subs, queues, slot, sub_index);
                ReasonCode::SUCCESS
            }
            None => ReasonCode::NO_SUBSCRIPTION_EXISTED,
        });
    }
    let (version, id) = (
        client::version_of(&clients.conns, slot),
        unsubscribe.packet_id,
    );
    if clients.records_session(slot) {
        clients.record_later(slot);
        let subacks = &mut mqtt_state_mut(&mut clients.conns, slot).subacks;
        // If the packet id is that of an unanswered SUBSCRIBE, the UNSUBACK does not wait, since it could not be distinguished.
        if !subacks.iter().any(|suback| suback.packet_id == id.get()) {
            subacks.push(Suback {
                packet_id: id.get(),
                unanswered_homes: 0,
                is_record_in_flight: false,
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

/// Ends one subscription and removes it from the list. Its index becomes free.
pub(super) fn end_subscription(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    queues: &mut Queues,
    slot: u32,
    sub_index: u32,
) {
    leave_share_group(clients, &mut subs.lanes, slot, sub_index, true);
    forget_starts(&mut clients.conns, slot, sub_index);
    end_latest_values(clients, queues, slot, sub_index);
    let Some(sub) = list::sub(&clients.conns, slot, sub_index) else {
        return clients.end_as_broken(slot);
    };
    if sub.protocol_state.group.is_none() && qos(sub.protocol_state.options) > 0 {
        release_log(clients, subs, slot, sub_index);
    }
    let side_row = clients.conns.ensure_side_row(slot);
    let Some(sub) = side_row.list.get_mut(sub_index as usize) else {
        return;
    };
    let entry = core::mem::take(&mut sub.protocol_state.suback_entry);
    let shared_bytes = sub
        .protocol_state
        .group
        .take()
        .map_or(0, |shared| shared.bytes() as u32);
    side_row.share_entry_bytes -= shared_bytes;
    remove_subscription(clients, subs, slot, sub_index);
    if entry != SubackEntry::NONE {
        clients.note_suback_code(slot, entry, ReasonCode::UNSPECIFIED_ERROR);
    }
}

/// Removes subscriptions from the session that no home has granted yet. Otherwise a home could learn of such a subscription after the session has ended, and
/// would keep messages for it for ever.
pub(super) fn end_unanswered_subscriptions(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    queues: &mut Queues,
    slot: u32,
) {
    let row = clients.conns.get(slot);
    if !row.has_option(SUBSCRIPTION_LIST) {
        return;
    }
    let unanswered_epoch = !clients.ctx.world.epoch;
    let is_unanswered = |sub: &Sub| {
        sub.topic != NONE
            && sub.epoch == unanswered_epoch
            && sub.flags & COUNTED == 0
            && qos(sub.protocol_state.options) > 0
    };
    let list = subscription_list(&clients.conns, slot);
    let sub_indexes = (0..list.len()).filter(|sub_index| is_unanswered(&list[*sub_index]));
    for sub_index in sub_indexes.collect::<Vec<_>>() {
        // The connection has ended, so nobody is told.
        if let Some(sub) = subscription_at_mut(&mut clients.conns, slot, sub_index as u32) {
            sub.protocol_state.suback_entry = SubackEntry::NONE;
        }
        end_subscription(clients, subs, queues, slot, sub_index as u32);
    }
}

/// Takes the client out of the groups of all its shared subscriptions. `ends`: the subscriptions end too.
pub(super) fn leave_all_share_groups(
    clients: &mut Clients,
    lanes: &mut Lanes,
    slot: u32,
    subscriptions_end: bool,
) {
    let row = clients.conns.get(slot);
    if !row.has_option(SUBSCRIPTION_LIST) {
        return;
    }
    for sub_index in 0..subscription_list(&clients.conns, slot).len() as u32 {
        leave_share_group(clients, lanes, slot, sub_index, subscriptions_end);
    }
}
