//! The end of what was granted: connections without a connect command, subscriptions whose token ends, and reviews after new settings.

use alloc::vec::Vec;

use crore_wire::centrifugo::codes::{Disconnect, Unsubscribe};

use crate::base::access::Right;
use crate::base::reason::Reason;
use crate::client::list::list_of;
use crate::client::row::{MULTI, State};
use crate::io::Io;
use crate::protocol::centrifugo::close::end_saying;
use crate::protocol::centrifugo::options::CONNECTED;
use crate::protocol::centrifugo::state::{Granted, state};
use crate::protocol::centrifugo::subscribe::end_subscription;
use crate::protocol::front::{Clients, Subscriptions};
use crate::store::slab::NONE;

fn granted(clients: &Clients, slot: u32) -> &[Granted] {
    state(&clients.conns, slot).map_or(&[], |state| &state.granted)
}

/// The second of the next end: of a connection without a connect command, or of a subscription's token. 0 if there is none.
pub(super) fn next_end_s(clients: &Clients, slot: u32) -> u32 {
    let ctx = &clients.ctx;
    if !clients.conns.get(slot).wants(CONNECTED) {
        return ctx.now.s + ctx.world.settings.timeouts.head_s;
    }
    let ends = granted(clients, slot)
        .iter()
        .map(|granted| granted.until_unix_s);
    let next = ends.filter(|end| *end != u32::MAX).min();
    next.map_or(0, |end| ctx.now.s + end.saturating_sub(ctx.wall_s()))
}

/// The second of [`next_end_s`] has passed.
pub(super) fn end_passed<I: Io>(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    io: &mut I,
) {
    if !clients.conns.get(slot).wants(CONNECTED) {
        let code = Disconnect::STALE;
        return end_saying(clients, slot, code, code.text, io);
    }
    let now = clients.ctx.wall_s();
    let ended = granted(clients, slot).iter();
    let ended = ended.filter(|granted| granted.until_unix_s <= now);
    let ended: Vec<u32> = ended.map(|granted| granted.part).collect();
    for part in ended {
        end_subscription(clients, subs, (slot, part), Unsubscribe::EXPIRED);
    }
    clients.send_reply(slot, io);
    watch_next_end(clients, slot);
}

/// Sets the deadline to the second of [`next_end_s`]. While bytes wait for the socket, the deadline is another one, and this one is set after it.
pub(super) fn watch_next_end(clients: &mut Clients, slot: u32) {
    let next_s = next_end_s(clients, slot);
    let row = clients.conns.get_mut(slot);
    let is_open = row.consumer.state == State::Centrifugo && row.wants(CONNECTED);
    if is_open && row.link.outbox == NONE {
        row.link.deadline_s = next_s;
    }
}

/// Ends the subscriptions whose tokens are revoked.
pub(super) fn end_revoked<I: Io>(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    io: &mut I,
) {
    let is_revoked = |it: &&Granted| {
        let token = it.token.as_ref();
        token.is_some_and(|token| clients.is_revoked(token))
    };
    let revoked = granted(clients, slot).iter().filter(is_revoked);
    let revoked: Vec<u32> = revoked.map(|it| it.part).collect();
    for part in revoked {
        end_subscription(clients, subs, (slot, part), Unsubscribe::SERVER);
    }
    clients.send_reply(slot, io);
}

/// Whether the client would now be granted all its subscriptions. Those of tokens stay until their tokens end.
pub(super) fn may_keep_all(
    clients: &Clients,
    subs: &Subscriptions,
    slot: u32,
) -> Result<(), Reason> {
    let row = clients.conns.get(slot);
    let may = |topic: u32| match topic {
        NONE => Ok(()),
        topic => clients.may(slot, Right::Subscribe, subs.topics.name(topic)),
    };
    if !row.wants(MULTI) {
        return may(row.consumer.topic);
    }
    let granted = granted(clients, slot);
    let list = list_of(&clients.conns, slot).iter().enumerate();
    let judged = list.filter(|(part, _)| granted.iter().all(|it| it.part as usize != *part));
    judged.map(|(_, sub)| sub.topic).try_for_each(may)
}
