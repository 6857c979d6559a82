//! Presence: tells homes (the parts of shards that keep topics) which connections are members of topics whose rules ask for it.
//!
//! A subscription is a member from the home's first answer until its end. The flag [`MEMBER`](crate::client::row::MEMBER) of the subscription records it, so
//! a home is told of each join and each end once, whatever happens to the rules meanwhile (`subscriptions.rs`). Long-polls are no members.

use alloc::vec::Vec;

use crate::budget::account::Level;
use crate::client::parts::{Clients, Subscriptions};
use crate::client::types::ProtocolTypes;
use crate::mail::presence::{PresenceAsk, write_member};
use crate::mail::{Ask, Span};

/// A subscription becomes a member of its topic.
pub(crate) fn begins_presence<P: ProtocolTypes>(
    clients: &Clients<P>,
    subs: &mut Subscriptions,
    slot: u32,
    topic: u32,
) {
    let (conn, name) = (clients.conns.id_of(slot), subs.topics.name(topic));
    let grants = clients.conns.grants.get(slot);
    let (user, info) = grants.map_or((&b""[..], &b""[..]), |(grants, _)| {
        (grants.user().as_bytes(), grants.info())
    });
    let mut text = Vec::with_capacity(3 + name.len() + user.len() + info.len());
    write_member(&mut text, name, user, info);
    let (_, home) = clients.ctx.place_of(name);
    let ask = PresenceAsk::Join(conn);
    subs.lanes
        .ask(home, |bytes| Ask::Presence(ask, Span::append(bytes, &text)));
}

/// A member's subscription ends. If the connection broke, the member may come back.
pub(crate) fn ends_presence<P: ProtocolTypes>(
    clients: &Clients<P>,
    subs: &mut Subscriptions,
    slot: u32,
    topic: u32,
) {
    // While memory is short, nothing is kept of those who have gone.
    let lingers = clients.scratch.is_lost && clients.conns.level() < Level::Near;
    let linger_s = match lingers {
        true => clients.ctx.world.settings.presence.leave_s,
        false => 0,
    };
    let ask = PresenceAsk::Leave(clients.conns.id_of(slot), linger_s);
    let name = subs.topics.name(topic);
    let (_, home) = clients.ctx.place_of(name);
    subs.lanes
        .ask(home, |bytes| Ask::Presence(ask, Span::append(bytes, name)));
}
