//! Handles a client's shared subscriptions (MQTT 5.0 section 4.8.2). Each home has its group with the group's position, and sends each message to one member. A member has
//! credit for a number of messages, and gives credit back for each message whose delivery is complete.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crore_wire::mqtt::{ReasonCode, split_shared};

use crate::base::ids::{PartitionId, ShardId};
use crate::base::reason::Reason;
use crate::client::codec::Message;
use crate::client::list::{
    self, add_to_list, count_asked_pages, index_if_current, index_with_serial, subscription_at_mut,
};
use crate::io::Io;
use crate::mail::{Ask, Frames, LeaveGroup, Record, ReplyTo, UnackedMessage};
use crate::protocol::front::{Clients, Connections, Lanes, Sub};
use crate::protocol::mqtt::client::{self, mqtt_state_mut};
use crate::protocol::mqtt::options::qos_of;
use crate::protocol::mqtt::outgoing_publish::{DeliveryOptions, send_or_queue};
use crate::protocol::mqtt::retention::{await_retention, homes_of};
use crate::protocol::mqtt::state::{
    DeliveryStep, GroupMembership, Inflight, SubackEntry, SubscriptionState,
};
use crate::protocol::mqtt::subscription::WantedSubscription;
use crate::store::slab::NONE;

/// The maximum number of unacknowledged messages that one home of a group sends to a client: enough to keep the client busy, and few enough that all members
/// get messages.
const CREDIT_MAX: u16 = 16;

/// Handles a home's answer to a join. Returns the subscription's index, and the reason, if the home has refused the join.
pub(crate) fn handle_group_join<I: Io>(
    clients: &mut Clients,
    lanes: &mut Lanes,
    (home, to): (ShardId, ReplyTo),
    (group, is_new_subscriber): (Result<u64, Reason>, bool),
    io: &mut I,
) -> Option<(u32, Reason)> {
    let sub_index = clients
        .conns
        .is_waiting_for(to)
        .then(|| index_if_current(&clients.conns, to.slot, to.part))
        .flatten();
    let membership =
        sub_index.and_then(|sub_index| membership_mut(&mut clients.conns, to.slot, sub_index));
    let Some(membership) = membership else {
        // The connection has ended.
        if let Ok(group) = group {
            ask_to_leave_group(lanes, home, group, to, Vec::new(), is_new_subscriber);
        }
        return None;
    };
    membership.unanswered_homes = membership.unanswered_homes.saturating_sub(1);
    membership
        .homes
        .extend(group.ok().map(|group| (home, group)));
    let has_all_answers = membership.unanswered_homes == 0;
    let sub_index = sub_index?;
    if let Err(reason) = group {
        return Some((sub_index, reason));
    }
    if !has_all_answers {
        return None;
    }
    let Some(sub) = subscription_at_mut(&mut clients.conns, to.slot, sub_index) else {
        clients.end_as_broken(to.slot);
        return None;
    };
    let entry = core::mem::take(&mut sub.protocol_state.suback_entry);
    if entry != SubackEntry::NONE {
        let options = qos_of(sub.protocol_state.options);
        clients.note_suback_code(to.slot, entry, ReasonCode::granted(options));
        clients.send_reply(to.slot, io);
    }
    None
}

/// Sends a message of a group to this client. If the connection has ended, gives the message back to the group.
pub(crate) fn handle_group_message<I: Io>(
    clients: &mut Clients,
    lanes: &mut Lanes,
    (home, to, group): (ShardId, ReplyTo, u64),
    (name, record, frames): (u32, &Record, &Frames),
    io: &mut I,
) {
    let name = frames.name(name);
    let sub_index = clients
        .conns
        .is_waiting_for(to)
        .then(|| index_if_current(&clients.conns, to.slot, to.part))
        .flatten();
    let is_member = sub_index
        .is_some_and(|sub_index| membership_mut(&mut clients.conns, to.slot, sub_index).is_some());
    let Some(sub_index) = sub_index.filter(|_| is_member) else {
        let unacked = alloc::vec![UnackedMessage {
            topic: name.into(),
            offset: record.offset,
        }];
        return ask_to_leave_group(lanes, home, group, to, unacked, false);
    };
    let Some(sub) = list::sub(&clients.conns, to.slot, sub_index) else {
        return clients.end_as_broken(to.slot);
    };
    let identifiers = [sub.protocol_state.identifier];
    let partition = clients.ctx.partition_of(name);
    let delivery = DeliveryOptions {
        options: sub.protocol_state.options,
        identifiers: &identifiers,
        group: Some((sub_index as u16, partition)),
        is_in_no_log: true,
        ..DeliveryOptions::default()
    };
    let message = Message {
        name,
        record,
        frames,
        retained: false,
    };
    if !send_or_queue(clients, to.slot, &delivery, &message, io) {
        give_credit(
            clients,
            lanes,
            to.slot,
            sub_index,
            (partition, record.offset),
        );
    }
}

/// Joins a group at its homes. The subscription is granted when all homes have answered.
pub(super) fn join_group(
    clients: &mut Clients,
    lanes: &mut Lanes,
    slot: u32,
    wanted: &WantedSubscription<'_>,
    is_restored: bool,
) {
    let Some((name, filter)) = split_shared(wanted.filter) else {
        return clients.end_as_broken(slot);
    };
    let homes = homes_of(&clients.ctx, filter);
    let membership = Box::new(GroupMembership {
        name: wanted.filter.into(),
        homes: Vec::with_capacity(homes.len()),
        unanswered_homes: homes.len() as u16,
        is_restored,
    });
    clients.conns.ensure_side_row(slot).share_entry_bytes += membership.bytes() as u32;
    let sub = Sub {
        topic: NONE,
        protocol_state: SubscriptionState {
            options: wanted.options.bits(),
            identifier: wanted.identifier,
            suback_entry: wanted.suback_entry,
            group: Some(membership),
            ..SubscriptionState::default()
        },
        ..Sub::default()
    };
    let sub_index = add_to_list(&mut clients.conns, slot, sub);
    let to = clients
        .conns
        .reply_to(slot, index_with_serial(&clients.conns, slot, sub_index));
    let receive_max = clients.conns.protocol_row(slot).receive_max;
    let party = clients.party(slot);
    let client = clients.conns.get(slot).consumer.client;
    let recorded_for = clients.records_session(slot).then_some(client);
    for home in homes {
        let ask = Ask::JoinGroup {
            to,
            name: name.into(),
            filter: filter.into(),
            credit: u32::from(receive_max.min(CREDIT_MAX)),
            is_new_subscriber: !is_restored,
            party,
            recorded_for,
        };
        lanes.ask(home, |_| ask);
        count_asked_pages(&mut clients.conns, slot, 1);
    }
    if !is_restored && recorded_for.is_some() {
        // A new group has its first position in the log before the SUBACK.
        await_retention(
            clients,
            lanes,
            slot,
            &WantedSubscription { filter, ..*wanted },
        );
    }
}

fn membership_mut(
    conns: &mut Connections,
    slot: u32,
    sub_index: u32,
) -> Option<&mut GroupMembership> {
    let side_row = conns.find_side_row_mut(slot)?;
    let sub = side_row.list.get_mut(sub_index as usize)?;
    sub.protocol_state.group.as_deref_mut()
}

fn ask_to_leave_group(
    lanes: &mut Lanes,
    home: ShardId,
    group: u64,
    to: ReplyTo,
    unacked: Vec<UnackedMessage>,
    subscription_ends: bool,
) {
    let leave = Box::new(LeaveGroup {
        group,
        to,
        unacked,
        ends: subscription_ends,
    });
    lanes.ask(home, |_| Ask::LeaveGroup(leave));
}

/// Gives credit back for a message of a group, because its delivery is complete. The message is the one at this offset of the partition.
pub(super) fn give_credit(
    clients: &mut Clients,
    lanes: &mut Lanes,
    slot: u32,
    sub_index: u32,
    (partition, offset): (PartitionId, u64),
) {
    let conns = &mut clients.conns;
    if conns.get(slot).link.outbox != NONE {
        // The credit waits until the socket has taken the bytes of the message.
        let owed = &mut mqtt_state_mut(conns, slot).owed_credit;
        return owed.push((sub_index, partition, offset));
    }
    let home = clients.ctx.world.placement().home_of(partition);
    let to = conns.reply_to(slot, index_with_serial(conns, slot, sub_index));
    let Some(membership) = membership_mut(conns, slot, sub_index) else {
        return;
    };
    let Some((_, group)) = membership.homes.iter().find(|at| at.0 == home) else {
        return;
    };
    let ask = Ask::GroupCredit {
        group: *group,
        to,
        partition,
        offset,
    };
    lanes.ask(home, |_| ask);
}

/// Gives back the credit that waited for the socket.
pub(super) fn return_owed_credit(clients: &mut Clients, lanes: &mut Lanes, slot: u32) {
    let mqtt = client::mqtt_state(&clients.conns, slot);
    if mqtt.is_none_or(|mqtt| mqtt.owed_credit.is_empty()) {
        return;
    }
    let owed = &mut mqtt_state_mut(&mut clients.conns, slot).owed_credit;
    for (sub_index, partition, offset) in core::mem::take(owed) {
        give_credit(clients, lanes, slot, sub_index, (partition, offset));
    }
}

/// Takes the client out of the group of a shared subscription, and returns the messages that were never sent to the group. If the subscription ends too,
/// also returns unacknowledged QoS 1 messages.
pub(super) fn leave_share_group(
    clients: &mut Clients,
    lanes: &mut Lanes,
    slot: u32,
    sub_index: u32,
    subscription_ends: bool,
) {
    let placement = clients.ctx.world.placement();
    let conns = &mut clients.conns;
    let to = conns.reply_to(slot, index_with_serial(conns, slot, sub_index));
    let Some(membership) = membership_mut(conns, slot, sub_index) else {
        return;
    };
    let homes: Vec<_> = membership.homes.drain(..).collect();
    let mqtt = mqtt_state_mut(conns, slot);
    mqtt.has_left_group = true;
    let is_of_group = |message: &Inflight| {
        message
            .group
            .is_some_and(|(group_index, _)| u32::from(group_index) == sub_index)
    };
    let mut returned: Vec<(PartitionId, UnackedMessage)> = Vec::new();
    let mut give_back = |message: &Inflight| {
        returned.extend(
            message
                .group
                .map(|(_, partition)| (partition, message.unacked())),
        );
    };
    mqtt.waiting
        .iter()
        .filter(|message| is_of_group(message))
        .for_each(&mut give_back);
    mqtt.waiting.retain(|message| !is_of_group(message));
    if subscription_ends {
        let is_unacknowledged =
            |message: &&Inflight| is_of_group(message) && message.is_at_least_once();
        mqtt.inflight
            .iter()
            .filter(is_unacknowledged)
            .for_each(&mut give_back);
    }
    mqtt.inflight
        .iter_mut()
        .filter(|message| is_of_group(message))
        .for_each(|message| message.group = None);
    for (home, group) in homes {
        let of_home = returned
            .iter()
            .filter(|(at, _)| placement.home_of(*at) == home);
        let unacked = of_home.map(|(_, unacked)| unacked.clone()).collect();
        ask_to_leave_group(lanes, home, group, to, unacked, subscription_ends);
    }
}

impl Inflight {
    /// Whether it has QoS 1 and is not acknowledged.
    fn is_at_least_once(&self) -> bool {
        self.step == DeliveryStep::Published && self.qos() == 1
    }

    /// The message as its group takes it back.
    fn unacked(&self) -> UnackedMessage {
        UnackedMessage {
            topic: self.topic().into(),
            offset: self.offset,
        }
    }
}
