//! Presence: tells homes (the parts of shards that keep topics) which connections are members of topics whose rules ask for it.
//!
//! A subscription is a member from the home's first answer until its end. The flag [`MEMBER`] of the subscription records it, so
//! a home is told of each join and each end once, whatever happens to the rules meanwhile (`subscriptions.rs`). Long-polls are no members.

use alloc::vec::Vec;

use crate::budget::account::MemoryLevel;
use crate::client::parts::{Clients, Lanes, Subscriptions};
use crate::client::row::{MEMBER, SUBSCRIPTION_LIST};
use crate::client::types::{ProtocolTypes, SideState};
use crate::mail::presence::{MEMBER_BYTES, PresenceAsk, write_member};
use crate::mail::{Ask, Span};

/// The subscriptions of a list that are looked at in the time of one step. They are adjacent in memory.
const SUBS_PER_STEP: usize = 4;

/// A subscription becomes a member of its topic.
pub(crate) fn join_presence<P: ProtocolTypes>(
    clients: &Clients<P>,
    subs: &mut Subscriptions,
    slot: u32,
    topic: u32,
) {
    let (conn, name) = (clients.conns.id_of(slot), subs.topics.name(topic));
    let (user, info) = user_and_info(clients, slot, topic);
    let mut text = Vec::with_capacity(3 + name.len() + user.len() + info.len());
    write_member(&mut text, name, user, info);
    let (_, home) = clients.ctx.hash_and_home_of(name);
    // While memory is this short, the connection is only counted.
    let ask = PresenceAsk::Join(conn, clients.conns.level() < MemoryLevel::Full);
    subs.lanes
        .ask(home, |bytes| Ask::Presence(ask, Span::append(bytes, &text)));
}

/// Asks the home of a topic about its members.
pub(crate) fn ask_presence<P: ProtocolTypes>(
    clients: &Clients<P>,
    lanes: &mut Lanes,
    topic: &[u8],
    ask: PresenceAsk,
) {
    let (_, home) = clients.ctx.hash_and_home_of(topic);
    lanes.ask(home, |bytes| Ask::Presence(ask, Span::append(bytes, topic)));
}

/// The user's name in this topic, and what others may know of the user: by its token, unless the protocol has users by topic.
fn user_and_info<P: ProtocolTypes>(clients: &Clients<P>, slot: u32, topic: u32) -> (&[u8], &[u8]) {
    let side_row = clients.conns.find_side_row(slot);
    if let Some(member) = side_row.and_then(|it| it.protocol_state.member_of(topic)) {
        return member;
    }
    let grants = clients.conns.grants.get(slot);
    grants.map_or((&[], &[]), |(grants, _)| {
        (grants.user().as_bytes(), grants.info())
    })
}

/// The bytes of a connection's members at all homes.
pub(crate) fn member_bytes<P: ProtocolTypes>(clients: &Clients<P>, slot: u32) -> usize {
    if !clients.ctx.world.rules.has_presence() {
        return 0;
    }
    let bytes_in = |flags: u8, topic: u32| {
        if flags & MEMBER == 0 {
            return 0;
        }
        let (user, info) = user_and_info(clients, slot, topic);
        MEMBER_BYTES + user.len() + info.len()
    };
    let row = clients.conns.get(slot);
    match row.has_option(SUBSCRIPTION_LIST) {
        true => {
            let list = &clients.conns.side_row(slot).list;
            clients.meter.work.steps.add(list.len() / SUBS_PER_STEP);
            list.iter().map(|sub| bytes_in(sub.flags, sub.topic)).sum()
        }
        false => bytes_in(row.consumer.flags, row.consumer.topic),
    }
}

/// A member's subscription ends. If the connection broke, or the server moves it to another one, the member may come back.
pub(crate) fn leave_presence<P: ProtocolTypes>(
    clients: &Clients<P>,
    subs: &mut Subscriptions,
    slot: u32,
    topic: u32,
) {
    // While memory is short, nothing is kept of those who have gone.
    let may_return = clients.scratch.is_lost || clients.ctx.is_draining;
    let lingers = may_return && clients.conns.level() < MemoryLevel::Near;
    let linger_s = match lingers {
        true => clients.ctx.world.settings.presence.leave_s,
        false => 0,
    };
    let ask = PresenceAsk::Leave(clients.conns.id_of(slot), linger_s);
    let name = subs.topics.name(topic);
    let (_, home) = clients.ctx.hash_and_home_of(name);
    subs.lanes
        .ask(home, |bytes| Ask::Presence(ask, Span::append(bytes, name)));
}
