//! The stored form of a session while its client is away: its subscriptions with their positions, its unacknowledged messages,
//! and the QoS 2 messages that it has not released. One run of bytes, since millions may be away at once.
//!
//! Invariant: only bytes written by [`write_down`] are read.

use crate::mail::Ask;
use crate::mail::session::{EncodedSession, SavedSession};
use crate::protocol::mqtt::close::end_unplaced;
use alloc::boxed::Box;
use alloc::collections::{BTreeSet, VecDeque};
use alloc::vec::Vec;
use core::slice::Iter;

use crore_wire::mqtt::{Qos, ReasonCode, Version};
use crore_wire::topic;

use crate::base::planted::{self, Fault};
use crate::base::position::{Since, read_varint, write_varint};
use crate::client::row::MULTI;
use crate::home;
use crate::io::Io;
use crate::protocol::front::{
    Clients, Connections, Context, Deliveries, Lanes, Matching, Sub, Subscriptions, Work,
};
use crate::protocol::mqtt::access::{may_have, may_still};
use crate::protocol::mqtt::client::mqtt_state;
use crate::protocol::mqtt::deliver::send_inflight;
use crate::protocol::mqtt::filters::{join_wildcard, since_all, wildcard_seen};
use crate::protocol::mqtt::list::{Wanted, is_vacant, wildcard_of};
use crate::protocol::mqtt::need::{homes_of, keep_log_of};
use crate::protocol::mqtt::options::{is_shared, options_of, qos, split};
use crate::protocol::mqtt::overlap::{end_starts, starts_at, starts_of};
use crate::protocol::mqtt::shared::join_group;
use crate::protocol::mqtt::shows::is_shown_values;
use crate::protocol::mqtt::state::{Inflight, Mqtt, NO_END_S, RESUMED, Step};
use crate::protocol::mqtt::subscribe::join_topic;
use crate::protocol::mqtt::{client, list};
use crate::store::shared::Slice;
use crate::store::slab::NONE;

/// The version of the stored form.
const FORMAT: u8 = 1;
/// In the options of a subscription: it has a position.
const SEEN: u8 = 0x80;
/// Likewise: it began before that position, and may have sent messages that other subscriptions have not reached.
const STARTED: u8 = 0x40;

/// Likewise: it was being shown the latest values of its topic. As Retain Handling no client can ask for this.
const SHOWN: u8 = 0x30;

/// In the form of a message under way: its end is so many seconds behind [`LATE_S`], the last one that 32 bits count.
const LATE: u8 = 1 << 3;
const LATE_S: u64 = u32::MAX as u64;

/// Reads a stored session. If it ended too soon, which never happens, the rest would read as zeros.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn byte(&mut self) -> u8 {
        self.array::<1>()[0]
    }
    fn number(&mut self) -> u64 {
        let number = read_varint(&mut self.0);
        number.unwrap_or_else(|| {
            self.0 = &[];
            0
        })
    }
    /// A count of items that follow, at most as many as bytes are left.
    fn count(&mut self) -> u64 {
        self.number().min(self.0.len() as u64)
    }
    fn array<const N: usize>(&mut self) -> [u8; N] {
        self.bytes(N).try_into().unwrap_or([0; N])
    }
    fn bytes(&mut self, len: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(len.min(self.0.len()));
        self.0 = rest;
        taken
    }
    fn field(&mut self) -> &'a [u8] {
        let len = self.number() as usize;
        self.bytes(len)
    }
}

/// A stored subscription.
pub(super) struct KeptSub<'a> {
    filter: &'a [u8],
    options: u8,
    /// It was not shown all of the latest values.
    shown: bool,
    identifier: u32,
    /// Its position: at its topic, or in each partition.
    seen: Vec<u64>,
    /// The offsets from which on it has sent all that it matches; empty when they equal `seen`.
    starts: Vec<u64>,
    /// The stored bytes of all of that.
    raw: &'a [u8],
}

impl KeptSub<'_> {
    fn read<'a>(from: &mut Reader<'a>) -> KeptSub<'a> {
        let all = from.0;
        let options = from.byte();
        let identifier = from.number() as u32;
        let filter = from.field();
        let count = if options & SEEN != 0 { from.count() } else { 0 };
        let mut offsets = |count| (0..count).map(|_| from.number()).collect();
        let seen = offsets(count);
        let starts = offsets(if options & STARTED != 0 { count } else { 0 });
        KeptSub {
            filter,
            options: options & !(SEEN | STARTED),
            shown: options & SHOWN == SHOWN,
            identifier,
            seen,
            starts,
            raw: &all[..all.len() - from.0.len()],
        }
    }

    /// Whether it begins with what comes, so that it must be in force before the client hears that it is: it has no position, and no group has one.
    fn is_awaited(&self) -> bool {
        self.seen.is_empty() && !is_shared(self.filter)
    }
}

/// The subscriptions of a stored session, each with its QoS.
pub(crate) fn subscriptions_kept(state: &[u8]) -> impl Iterator<Item = (&[u8], u8)> {
    let mut from = Reader(state);
    from.bytes(5);
    let count = from.count();
    (0..count).map(move |_| {
        let sub = KeptSub::read(&mut from);
        (sub.filter, qos(sub.options))
    })
}

/// The topics and groups that keep messages for a session.
pub(crate) fn topics_kept(state: &[u8]) -> Vec<&[u8]> {
    subscriptions_kept(state)
        .filter(|(filter, qos)| *qos > 0 || is_shared(filter))
        .map(|(filter, _)| filter)
        .collect()
}

/// Of a topic that keeps messages for a session: its row at home, its name's place beside the name, and an entry that counts.
const TOPIC_BYTES: usize = 96;

/// Bytes that so many homes need for the subscriptions of a stored session, if no other session has the same.
pub(crate) fn needs_bytes(state: &[u8], homes: usize) -> usize {
    let of = |name: &[u8]| match is_shared(name) {
        true => {
            let (group, filter) = split(name);
            home::group_bytes_alone(group, filter) * homes
        }
        false if topic::has_wildcard(name) => home::filter_bytes_alone(name) * homes,
        false => TOPIC_BYTES + name.len(),
    };
    topics_kept(state).into_iter().map(of).sum()
}

/// Restores the stored session. The CONNACK, which is written, goes out when each subscription without a position is in force: what is
/// published behind it comes. The others get from the log what they miss meanwhile.
pub(super) fn restore_session<I: Io>(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    state: &EncodedSession,
    io: &mut I,
) {
    let mut from = Reader(&state.bytes);
    let mut payloads = state.payloads.iter();
    if from.byte() != FORMAT {
        // No other version was ever written.
        return clients.broken(slot);
    }
    let epoch = u32::from_le_bytes(from.array());
    clients.expand(slot);
    let count = from.count();
    let kept: Vec<_> = (0..count).map(|_| KeptSub::read(&mut from)).collect();
    restore_messages(clients, slot, &mut from, &mut payloads);
    debug_assert!(clients.conns.get(slot).wants(MULTI));
    match kept.iter().any(KeptSub::is_awaited) {
        true => clients.hold_reply(slot, io),
        false => clients.send_reply(slot, io),
    }
    send_inflight(clients, slot, io);
    let mut unplaced = None;
    for sub in kept {
        if restore_sub(clients, subs, slot, epoch, &sub).is_err() {
            mqtt_state(&mut clients.conns, slot)
                .unplaced
                .push(sub.raw.into());
            unplaced = Some(sub.filter);
        }
    }
    end_starts(&mut clients.conns, slot);
    clients.confirm_resumed(slot, io);
    if let Some(filter) = unplaced {
        end_unplaced(clients, slot, filter, ReasonCode::QUOTA_EXCEEDED, io);
    }
}

/// Joins a stored subscription again, or releases its log if the client may no longer have it.
///
/// # Errors
/// There is no room for its filter.
fn restore_sub(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    epoch: u32,
    sub: &KeptSub<'_>,
) -> Result<(), ReasonCode> {
    if !may_still(clients, slot, sub.filter) {
        if qos(sub.options) > 0 || is_shared(sub.filter) {
            release_kept(&mut subs.lanes, &clients.ctx, sub.filter);
        }
        return Ok(());
    }
    let all = since_all(epoch, &sub.seen);
    let since = all.first().copied().unwrap_or(Since::Live);
    let options = options_of(sub.options);
    let awaited = sub.is_awaited();
    let wanted = Wanted {
        filter: sub.filter,
        options,
        identifier: sub.identifier,
        since,
        retained: sub.shown,
        granted: if awaited { RESUMED } else { (0, 0) },
    };
    mqtt_state(&mut clients.conns, slot).unconfirmed += u32::from(awaited);
    if is_shared(sub.filter) {
        join_group(clients, &mut subs.lanes, slot, &wanted, true);
        return Ok(());
    }
    if topic::has_wildcard(sub.filter) {
        join_wildcard(clients, subs, slot, &wanted, &all)?;
    } else {
        join_topic(clients, subs, slot, &wanted);
    }
    if options.max_qos != Qos::AtMostOnce {
        if epoch == clients.ctx.world.epoch {
            let starts = match sub.starts.is_empty() {
                true => &sub.seen,
                false => &sub.starts,
            };
            starts_at(clients, subs, slot, sub.filter, starts);
        }
        // The session kept this log already, and joining has counted it once more.
        let (hash, _) = clients.ctx.place_of(sub.filter);
        keep_log_of(&mut subs.lanes, &clients.ctx, hash, sub.filter, false);
    }
    Ok(())
}

/// An ended session's messages need not be kept any more.
pub(crate) fn session_ended(
    lanes: &mut Lanes,
    work: &Work,
    ctx: &Context,
    ended: Option<SavedSession>,
) {
    let Some(kept) = ended else { return };
    work.steps.add_bytes(kept.state.bytes.len());
    for name in topics_kept(&kept.state.bytes) {
        work.steps.add(1);
        release_kept(lanes, ctx, name);
    }
}

/// The messages of this subscription of a session need not be kept any more.
pub(crate) fn release_kept(lanes: &mut Lanes, ctx: &Context, name: &[u8]) {
    if is_shared(name) {
        let (group, filter) = split(name);
        for home in homes_of(ctx, filter) {
            let (name, filter) = (group.into(), filter.into());
            lanes.ask(home, |_| Ask::ReleaseGroup { name, filter });
        }
        return;
    }
    let (hash, _) = ctx.place_of(name);
    keep_log_of(lanes, ctx, hash, name, false);
    if planted::is(Fault::DoubleRelease) {
        keep_log_of(lanes, ctx, hash, name, false);
    }
}

/// The stored form of the session.
pub(super) fn write_down(
    clients: &mut Clients,
    subs: &Subscriptions,
    deliveries: &Deliveries,
    slot: u32,
) -> EncodedSession {
    clients.expand(slot);
    let (mut out, mut payloads) = (Vec::with_capacity(64), Vec::new());
    out.push(FORMAT);
    out.extend_from_slice(&clients.ctx.world.epoch.to_le_bytes());
    let extra = clients.conns.extra_of(slot);
    let granted = |sub: &Sub| {
        let group = sub.own.group.as_ref();
        !is_vacant(sub) && group.is_none_or(|group| group.restored || group.waiting == 0)
    };
    let list = extra.list.iter().enumerate();
    let granted: Vec<_> = list.filter(|(_, sub)| granted(sub)).collect();
    let nothing = Mqtt::default();
    let mqtt = extra.own.mqtt.as_deref().unwrap_or(&nothing);
    write_varint(&mut out, (granted.len() + mqtt.unplaced.len()) as u64);
    for sub in &mqtt.unplaced {
        out.extend_from_slice(sub);
    }
    for (part, sub) in granted {
        let seen = seen_of(clients, &subs.matching, deliveries, slot, sub);
        let starts = starts_of(&clients.conns, slot, part as u32, &seen);
        let flag = |is_there: bool, flag| if is_there { flag } else { 0 };
        let shown = flag(is_shown_values(&clients.conns, slot, part as u32), SHOWN);
        let flags = flag(!seen.is_empty(), SEEN) | flag(!starts.is_empty(), STARTED) | shown;
        out.push(sub.own.options & 0x3F | flags);
        write_varint(&mut out, u64::from(sub.own.identifier));
        write_field(&mut out, &text_of(&clients.conns, subs, slot, part as u32));
        if !seen.is_empty() {
            write_varint(&mut out, seen.len() as u64);
            for offset in seen.iter().chain(&starts) {
                write_varint(&mut out, *offset);
            }
        }
    }
    for list in [&mqtt.inflight, &mqtt.waiting] {
        write_varint(&mut out, list.len() as u64);
        for sent in list {
            let step = u8::from(sent.step == Step::Released);
            let version = u8::from(sent.version == Version::V5) << 1;
            let payload = u8::from(sent.payload.is_some()) << 2;
            out.extend_from_slice(&sent.packet_id.to_le_bytes());
            let (end_s, late) = match sent.end_s {
                NO_END_S => (u32::MAX, 0),
                end_s if end_s < LATE_S => (end_s as u32, 0),
                end_s => ((end_s - LATE_S) as u32, LATE),
            };
            out.extend_from_slice(&end_s.to_le_bytes());
            out.push(step | version | payload | late);
            write_field(&mut out, &sent.packet);
            payloads.extend(sent.payload.clone());
        }
    }
    write_received(&mut out, &mqtt.received);
    EncodedSession {
        bytes: out.into_boxed_slice(),
        payloads,
    }
}

/// The session ends: releases the logs of its subscriptions that found no place.
pub(super) fn release_unplaced(clients: &mut Clients, lanes: &mut Lanes, slot: u32) {
    if client::mqtt(&clients.conns, slot).is_none_or(|mqtt| mqtt.unplaced.is_empty()) {
        return;
    }
    for raw in core::mem::take(&mut mqtt_state(&mut clients.conns, slot).unplaced) {
        let sub = KeptSub::read(&mut Reader(&raw));
        if qos(sub.options) > 0 {
            release_kept(lanes, &clients.ctx, sub.filter);
        }
    }
}

/// The filter that a subscription was made with.
pub(super) fn text_of(conns: &Connections, subs: &Subscriptions, slot: u32, part: u32) -> Vec<u8> {
    let Some(sub) = list::sub(conns, slot, part) else {
        return Vec::new();
    };
    match &sub.own.group {
        Some(group) => group.text.to_vec(),
        None if sub.topic != NONE => subs.topics.name(sub.topic).to_vec(),
        // It has wildcards.
        None => wildcard_of(conns, &subs.matching, slot, part).unwrap_or_default(),
    }
}

/// The position of a subscription that needs its log; empty when it has seen nothing yet.
fn seen_of(
    clients: &Clients,
    matching: &Matching,
    deliveries: &Deliveries,
    slot: u32,
    sub: &Sub,
) -> Vec<u64> {
    if qos(sub.own.options) == 0 || sub.own.group.is_some() {
        return Vec::new();
    }
    if let Some(serial) = sub.own.filter.checked_sub(1) {
        return wildcard_seen(clients, matching, deliveries, slot, serial);
    }
    match sub.epoch == clients.ctx.world.epoch {
        true => alloc::vec![sub.offset + u64::from(planted::is(Fault::FarPosition))],
        false => Vec::new(),
    }
}

/// Restores the messages that were under way, either way.
fn restore_messages(
    clients: &mut Clients,
    slot: u32,
    from: &mut Reader<'_>,
    payloads: &mut Iter<'_, Slice>,
) {
    let inflight = read_inflight(from, payloads);
    let waiting = read_inflight(from, payloads);
    let received = read_received(from);
    let (inflight, waiting) = (
        may_have(clients, slot, inflight),
        may_have(clients, slot, waiting),
    );
    let mqtt = mqtt_state(&mut clients.conns, slot);
    (mqtt.inflight, mqtt.waiting, mqtt.received) = (inflight, waiting, received);
    if planted::is(Fault::LostInflight) {
        mqtt.inflight.pop_front();
    }
    if planted::is(Fault::ResendOrder) {
        mqtt.inflight.make_contiguous().reverse();
    }
    if planted::is(Fault::ForgottenIds) {
        mqtt.received.clear();
    }
}

/// The stored session without this QoS 2 message of the client, which was refused after all.
pub(super) fn forget_received(state: &[u8], id: u16) -> Box<[u8]> {
    let mut from = Reader(state);
    from.bytes(5);
    for _ in 0..from.count() {
        KeptSub::read(&mut from);
    }
    read_inflight(&mut from, &mut [].iter());
    read_inflight(&mut from, &mut [].iter());
    let mut out = Vec::from(&state[..state.len() - from.0.len()]);
    let mut received = read_received(&mut from);
    received.remove(&id);
    write_received(&mut out, &received);
    out.into_boxed_slice()
}

fn read_inflight(from: &mut Reader<'_>, payloads: &mut Iter<'_, Slice>) -> VecDeque<Inflight> {
    let count = from.count();
    let one = |_| {
        let packet_id = from.array();
        let end_s = from.array();
        let form = from.byte();
        Inflight {
            packet_id: u16::from_le_bytes(packet_id),
            step: if form & 1 == 0 {
                Step::Published
            } else {
                Step::Released
            },
            end_s: match u32::from_le_bytes(end_s) {
                end_s if form & LATE != 0 => LATE_S + u64::from(end_s),
                u32::MAX => NO_END_S,
                end_s => u64::from(end_s),
            },
            offset: 0,
            group: None,
            version: if form & 2 == 0 {
                Version::V311
            } else {
                Version::V5
            },
            packet: from.field().into(),
            payload: match form & 4 {
                0 => None,
                _ => payloads.next().cloned(),
            },
        }
    };
    (0..count).map(one).collect()
}

fn write_received(out: &mut Vec<u8>, received: &BTreeSet<u16>) {
    write_varint(out, received.len() as u64);
    for id in received {
        out.extend_from_slice(&id.to_le_bytes());
    }
}

fn read_received(from: &mut Reader<'_>) -> BTreeSet<u16> {
    let count = from.count();
    let ids = (0..count).map(|_| from.array());
    ids.map(u16::from_le_bytes).collect()
}

fn write_field(out: &mut Vec<u8>, field: &[u8]) {
    write_varint(out, field.len() as u64);
    out.extend_from_slice(field);
}
