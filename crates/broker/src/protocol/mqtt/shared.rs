//! A client as a member of shared subscriptions (MQTT 5.0 section 4.8.2). The groups and their cursors are at the homes. A member gives credit back for each
//! message whose delivery is complete.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crore_wire::mqtt::{ReasonCode, split_shared};

use crate::base::ids::{PartitionId, ShardId};
use crate::client::codec::Message;
use crate::client::list::{self, add_sub, count_asked_pages, part_name, part_named, sub_mut};
use crate::io::Io;
use crate::mail::{Ask, Frames, LeaveGroup, Record, ReplyTo, Unacked};
use crate::protocol::front::{Clients, Connections, Lanes, Sub};
use crate::protocol::mqtt::client::{self, mqtt_state};
use crate::protocol::mqtt::options::qos_of;
use crate::protocol::mqtt::outgoing_publish::{DeliveryOptions, send_or_queue};
use crate::protocol::mqtt::retention::{await_retention, homes_of};
use crate::protocol::mqtt::state::{Inflight, Shared, Step, SubscriptionState};
use crate::protocol::mqtt::subscription::Wanted;
use crate::store::slab::NONE;

/// The maximum number of unacknowledged messages of a client from one home of a group: enough to keep the client busy, and few enough that all members get
/// messages.
const CREDIT: u16 = 16;

/// Handles a home's answer to a join. Returns the subscription's index if the home has no room for the filter.
pub(crate) fn group_joined<I: Io>(
    clients: &mut Clients,
    lanes: &mut Lanes,
    (home, to): (ShardId, ReplyTo),
    (group, is_new_subscriber): (Option<u64>, bool),
    io: &mut I,
) -> Option<u32> {
    let part = clients
        .conns
        .is_waiting_for(to)
        .then(|| part_named(&clients.conns, to.slot, to.part))
        .flatten();
    let shared = part.and_then(|part| shared_mut(&mut clients.conns, to.slot, part));
    let Some(shared) = shared else {
        // The connection has ended.
        if let Some(group) = group {
            quit_group(lanes, home, group, to, Vec::new(), is_new_subscriber);
        }
        return None;
    };
    shared.waiting = shared.waiting.saturating_sub(1);
    shared.homes.extend(group.map(|group| (home, group)));
    let done = shared.waiting == 0;
    let part = part?;
    if group.is_none() {
        return Some(part);
    }
    if !done {
        return None;
    }
    let Some(sub) = sub_mut(&mut clients.conns, to.slot, part) else {
        clients.end_as_broken(to.slot);
        return None;
    };
    let granted = core::mem::take(&mut sub.protocol_state.granted);
    if granted != (0, 0) {
        let options = qos_of(sub.protocol_state.options);
        clients.grant(to.slot, granted, ReasonCode::granted(options));
        clients.send_reply(to.slot, io);
    }
    None
}

/// Sends a message of a group to this client. If the connection has ended, gives the message back to the group.
pub(crate) fn shared_message<I: Io>(
    clients: &mut Clients,
    lanes: &mut Lanes,
    (home, to, group): (ShardId, ReplyTo, u64),
    (name, record, frames): (u32, &Record, &Frames),
    io: &mut I,
) {
    let name = frames.name(name);
    let part = clients
        .conns
        .is_waiting_for(to)
        .then(|| part_named(&clients.conns, to.slot, to.part))
        .flatten();
    let is_member =
        part.is_some_and(|part| shared_mut(&mut clients.conns, to.slot, part).is_some());
    let Some(part) = part.filter(|_| is_member) else {
        let unacked = alloc::vec![Unacked {
            topic: name.into(),
            offset: record.offset,
        }];
        return quit_group(lanes, home, group, to, unacked, false);
    };
    let Some(sub) = list::sub(&clients.conns, to.slot, part) else {
        return clients.end_as_broken(to.slot);
    };
    let identifiers = [sub.protocol_state.identifier];
    let partition = clients.ctx.partition_of(name);
    let delivery = DeliveryOptions {
        options: sub.protocol_state.options,
        identifiers: &identifiers,
        group: Some((part as u16, partition)),
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
        give_credit(clients, lanes, to.slot, part, (partition, record.offset));
    }
}

/// Joins a group at its homes. The subscription is granted when all homes have answered.
pub(super) fn join_group(
    clients: &mut Clients,
    lanes: &mut Lanes,
    slot: u32,
    wanted: &Wanted<'_>,
    restored: bool,
) {
    let Some((name, filter)) = split_shared(wanted.filter) else {
        return clients.end_as_broken(slot);
    };
    let homes = homes_of(&clients.ctx, filter);
    let shared = Box::new(Shared {
        text: wanted.filter.into(),
        homes: Vec::with_capacity(homes.len()),
        waiting: homes.len() as u16,
        restored,
    });
    clients.conns.extra(slot).shared_bytes += shared.bytes() as u32;
    let sub = Sub {
        topic: NONE,
        protocol_state: SubscriptionState {
            options: wanted.options.bits(),
            identifier: wanted.identifier,
            granted: wanted.granted,
            group: Some(shared),
            ..SubscriptionState::default()
        },
        ..Sub::default()
    };
    let part = add_sub(&mut clients.conns, slot, sub);
    let to = clients
        .conns
        .reply_to(slot, part_name(&clients.conns, slot, part));
    let receive_max = clients.conns.protocol_row(slot).receive_max;
    let party = clients.party(slot);
    for home in homes {
        let ask = Ask::JoinGroup {
            to,
            name: name.into(),
            filter: filter.into(),
            credit: u32::from(receive_max.min(CREDIT)),
            is_new_subscriber: !restored,
            party,
        };
        lanes.ask(home, |_| ask);
        count_asked_pages(&mut clients.conns, slot, 1);
    }
    if !restored && clients.records_session(slot) {
        // A new group has its first position in the log before the SUBACK.
        await_retention(clients, lanes, slot, &Wanted { filter, ..*wanted });
    }
}

fn shared_mut(conns: &mut Connections, slot: u32, part: u32) -> Option<&mut Shared> {
    let extra = conns.find_extra_mut(slot)?;
    let sub = extra.list.get_mut(part as usize)?;
    sub.protocol_state.group.as_deref_mut()
}

fn quit_group(
    lanes: &mut Lanes,
    home: ShardId,
    group: u64,
    to: ReplyTo,
    unacked: Vec<Unacked>,
    ends: bool,
) {
    let leave = Box::new(LeaveGroup {
        group,
        to,
        unacked,
        ends,
    });
    lanes.ask(home, |_| Ask::LeaveGroup(leave));
}

/// The delivery of one message of a group is complete: gives credit back. The message has this offset of the partition.
pub(super) fn give_credit(
    clients: &mut Clients,
    lanes: &mut Lanes,
    slot: u32,
    part: u32,
    (partition, offset): (PartitionId, u64),
) {
    let conns = &mut clients.conns;
    if conns.get(slot).link.outbox != NONE {
        // Not before the socket has taken the bytes of the message.
        let behind = &mut mqtt_state(conns, slot).groups_behind;
        return behind.push((part, partition, offset));
    }
    let home = clients.ctx.world.placement().home_of(partition);
    let to = conns.reply_to(slot, part_name(conns, slot, part));
    let Some(shared) = shared_mut(conns, slot, part) else {
        return;
    };
    let Some((_, group)) = shared.homes.iter().find(|at| at.0 == home) else {
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

/// Gives the credit back that waited for the socket.
pub(super) fn return_owed_credit(clients: &mut Clients, lanes: &mut Lanes, slot: u32) {
    let mqtt = client::mqtt(&clients.conns, slot);
    if mqtt.is_none_or(|mqtt| mqtt.groups_behind.is_empty()) {
        return;
    }
    let behind = &mut mqtt_state(&mut clients.conns, slot).groups_behind;
    for (part, partition, offset) in core::mem::take(behind) {
        give_credit(clients, lanes, slot, part, (partition, offset));
    }
}

/// Takes the client out of a group. Gives messages back that were never sent. If the subscription ends too, also gives unacknowledged messages of QoS 1
/// back.
pub(super) fn part_group(
    clients: &mut Clients,
    lanes: &mut Lanes,
    slot: u32,
    part: u32,
    ends: bool,
) {
    let placement = clients.ctx.world.placement();
    let conns = &mut clients.conns;
    let to = conns.reply_to(slot, part_name(conns, slot, part));
    let Some(shared) = shared_mut(conns, slot, part) else {
        return;
    };
    let homes: Vec<_> = shared.homes.drain(..).collect();
    let mqtt = mqtt_state(conns, slot);
    mqtt.left_group = true;
    let of_part = |sent: &Inflight| sent.group.is_some_and(|(of, _)| u32::from(of) == part);
    let mut back: Vec<(PartitionId, Unacked)> = Vec::new();
    let mut take = |sent: &Inflight| {
        back.extend(sent.group.map(|(_, partition)| (partition, sent.unacked())));
    };
    mqtt.waiting
        .iter()
        .filter(|sent| of_part(sent))
        .for_each(&mut take);
    mqtt.waiting.retain(|sent| !of_part(sent));
    if ends {
        let again = |sent: &&Inflight| of_part(sent) && sent.is_at_least_once();
        mqtt.inflight.iter().filter(again).for_each(&mut take);
    }
    mqtt.inflight
        .iter_mut()
        .filter(|sent| of_part(sent))
        .for_each(|sent| sent.group = None);
    for (home, group) in homes {
        let of_home = back.iter().filter(|(at, _)| placement.home_of(*at) == home);
        let unacked = of_home.map(|(_, unacked)| unacked.clone()).collect();
        quit_group(lanes, home, group, to, unacked, ends);
    }
}

impl Inflight {
    /// Whether it has QoS 1 and is not acknowledged.
    fn is_at_least_once(&self) -> bool {
        self.step == Step::Published && self.qos() == 1
    }

    /// The message as its group takes it back.
    fn unacked(&self) -> Unacked {
        Unacked {
            topic: self.topic().into(),
            offset: self.offset,
        }
    }
}
