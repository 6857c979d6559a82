//! A client's part in shared subscriptions (MQTT 5.0 section 4.8.2). The group and its cursor are at the homes; here are
//! the members, which give back credit for each message that they are done with.

use alloc::boxed::Box;
use alloc::vec::Vec;

use crore_wire::mqtt::{ReasonCode, split_shared};

use crate::base::ids::ShardId;
use crate::io::Io;
use crate::mail::{Ask, Frames, LeaveGroup, Record, ReplyTo, Unacked};
use crate::protocol::front::{Clients, Connections, Lanes, Sub};
use crate::protocol::mqtt::client::{asked_pages, mqtt_state};
use crate::protocol::mqtt::give::{Wants, give_once};
use crate::protocol::mqtt::list::{Wanted, add_sub, part_name, part_named, sub_mut};
use crate::protocol::mqtt::options::qos_of;
use crate::protocol::mqtt::retention::homes_of;
use crate::protocol::mqtt::state::{Inflight, Shared, Step, Subscribed};
use crate::protocol::mqtt::{client, list};
use crate::store::slab::NONE;

/// Messages of one group and home that a client may have unacknowledged: enough to keep it busy, few enough for a
/// fair share among the members.
const CREDIT: u16 = 16;

/// A home has taken the client into a group, or had no room for the filter: then returns the part.
pub(crate) fn group_joined<I: Io>(
    clients: &mut Clients,
    lanes: &mut Lanes,
    (home, to): (ShardId, ReplyTo),
    (group, counts): (Option<u64>, bool),
    io: &mut I,
) -> Option<u32> {
    let part = clients
        .conns
        .is_asked(to)
        .then(|| part_named(&clients.conns, to.slot, to.part))
        .flatten();
    let shared = part.and_then(|part| shared_mut(&mut clients.conns, to.slot, part));
    let Some(shared) = shared else {
        // The client that asked is gone.
        if let Some(group) = group {
            quit_group(lanes, home, group, to, Vec::new(), counts);
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
        clients.broken(to.slot);
        return None;
    };
    let granted = core::mem::take(&mut sub.own.granted);
    if granted != (0, 0) {
        let options = qos_of(sub.own.options);
        clients.grant(to.slot, granted, ReasonCode::granted(options));
        clients.send_reply(to.slot, io);
    }
    None
}

/// A message of a group for this client; if the client is gone the message goes back to the group.
#[allow(clippy::too_many_arguments)] // a tell, and what a delivery is always given
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
        .is_asked(to)
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
        return clients.broken(to.slot);
    };
    let identifiers = [sub.own.identifier];
    let wants = Wants {
        options: sub.own.options,
        identifiers: &identifiers,
        group: Some((part as u16, home)),
        unbound: true,
        ..Wants::default()
    };
    if !give_once(clients, to.slot, &wants, (name, record, frames), io) {
        give_credit(&mut clients.conns, lanes, to.slot, part, home);
    }
}

/// Joins a group at its homes. The grant comes when all have answered.
pub(super) fn join_group(
    clients: &mut Clients,
    lanes: &mut Lanes,
    slot: u32,
    wanted: &Wanted<'_>,
    restored: bool,
) {
    let Some((name, filter)) = split_shared(wanted.filter) else {
        return clients.broken(slot);
    };
    let homes = homes_of(&clients.ctx, filter);
    let shared = Box::new(Shared {
        text: wanted.filter.into(),
        homes: Vec::with_capacity(homes.len()),
        waiting: homes.len() as u16,
        restored,
    });
    clients.conns.extra(slot).shared_bytes += shared.bytes();
    let sub = Sub {
        topic: NONE,
        own: Subscribed {
            options: wanted.options.bits(),
            identifier: wanted.identifier,
            granted: wanted.granted,
            group: Some(shared),
            ..Subscribed::default()
        },
        ..Sub::default()
    };
    let part = add_sub(&mut clients.conns, slot, sub);
    let to = clients
        .conns
        .reply_to(slot, part_name(&clients.conns, slot, part));
    let receive_max = clients.conns.own_row(slot).receive_max;
    let party = clients.party(slot);
    for home in homes {
        let ask = Ask::JoinGroup {
            to,
            name: name.into(),
            filter: filter.into(),
            credit: u32::from(receive_max.min(CREDIT)),
            counts: !restored,
            party,
        };
        lanes.ask(home, |_| ask);
        asked_pages(&mut clients.conns, slot, 1);
    }
}

fn shared_mut(conns: &mut Connections, slot: u32, part: u32) -> Option<&mut Shared> {
    let extra = conns.find_extra_mut(slot)?;
    let sub = extra.list.get_mut(part as usize)?;
    sub.own.group.as_deref_mut()
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

/// The client is done with one message of a group.
pub(super) fn give_credit(
    conns: &mut Connections,
    lanes: &mut Lanes,
    slot: u32,
    part: u32,
    home: ShardId,
) {
    if conns.get(slot).outbox != NONE {
        // Only when the socket has taken the bytes before it.
        return mqtt_state(conns, slot).groups_behind.push((part, home));
    }
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
        count: 1,
    };
    lanes.ask(home, |_| ask);
}

/// Gives back credit that waited for the socket.
pub(super) fn give_owed(conns: &mut Connections, lanes: &mut Lanes, slot: u32) {
    if client::mqtt(conns, slot).is_none_or(|mqtt| mqtt.groups_behind.is_empty()) {
        return;
    }
    for (part, home) in core::mem::take(&mut mqtt_state(conns, slot).groups_behind) {
        give_credit(conns, lanes, slot, part, home);
    }
}

/// Takes the client out of a group; messages that were never sent go back, and if its session ends the subscription also the
/// unacknowledged ones, except those of QoS 2.
pub(super) fn part_group(
    conns: &mut Connections,
    lanes: &mut Lanes,
    slot: u32,
    part: u32,
    ends: bool,
) {
    let to = conns.reply_to(slot, part_name(conns, slot, part));
    let Some(shared) = shared_mut(conns, slot, part) else {
        return;
    };
    let homes: Vec<_> = shared.homes.drain(..).collect();
    let mqtt = mqtt_state(conns, slot);
    mqtt.left_group = true;
    let of_part = |sent: &Inflight| sent.group.is_some_and(|(of, _)| u32::from(of) == part);
    let mut back: Vec<(ShardId, Unacked)> = Vec::new();
    let mut take = |sent: &Inflight| {
        back.extend(sent.group.map(|(_, home)| (home, sent.unacked())));
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
        let of_home = back.iter().filter(|(at, _)| *at == home);
        let unacked = of_home.map(|(_, unacked)| unacked.clone()).collect();
        quit_group(lanes, home, group, to, unacked, ends);
    }
}

impl Inflight {
    /// QoS 1, and not acknowledged.
    fn is_at_least_once(&self) -> bool {
        self.step == Step::Published && self.qos() == 1
    }

    /// The message in the form that the group takes back.
    fn unacked(&self) -> Unacked {
        Unacked {
            topic: self.topic().into(),
            offset: self.offset,
        }
    }
}
