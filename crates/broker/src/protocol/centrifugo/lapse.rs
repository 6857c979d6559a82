//! The end of what was granted: connections without a connect command, subscriptions whose token ends, and reviews after new settings.

use alloc::vec::Vec;

use crore_wire::centrifugo::codes::{Disconnect, Unsubscribe};

use crate::base::access::Right;
use crate::base::reason::Reason;
use crate::client::list::list_of;
use crate::client::row::SUBSCRIPTION_LIST;
use crate::io::Io;
use crate::protocol::centrifugo::close::end_saying;
use crate::protocol::centrifugo::options::{CONNECTED, connect_until_s};
use crate::protocol::centrifugo::server_side::is_connecting;
use crate::protocol::centrifugo::state::{Granted, state};
use crate::protocol::centrifugo::subscribe::end_subscription;
use crate::protocol::centrifugo::tokens::is_asked_for;
use crate::protocol::front::{Clients, Subscriptions};
use crate::store::slab::NONE;

fn granted(clients: &Clients, slot: u32) -> &[Granted] {
    state(&clients.conns, slot).map_or(&[], |state| &state.granted)
}

/// Ends a connection without a connect command in time, and subscriptions whose tokens have ended. Called once a second: input and waiting bytes move the
/// deadline of a connection, but none of these ends. Returns whether the connection ends.
pub(super) fn end_passed<I: Io>(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    io: &mut I,
) -> bool {
    let row = clients.conns.get(slot);
    if !row.has_option(CONNECTED) {
        // While the server looks for the answer, the client cannot do anything about it.
        let waits = is_asked_for(clients, slot) || is_connecting(clients, slot);
        let is_late = !waits && connect_until_s(row) < clients.ctx.now.s;
        if is_late {
            end_saying(clients, slot, Disconnect::STALE, Disconnect::STALE.text, io);
        }
        return is_late;
    }
    let now = clients.ctx.wall_s();
    let ended = granted(clients, slot).iter();
    let ended = ended.filter(|granted| granted.until_unix_s <= now);
    let ended: Vec<u32> = ended.map(|granted| granted.part).collect();
    for part in ended {
        end_subscription(clients, subs, (slot, part), Unsubscribe::EXPIRED);
    }
    clients.send_reply(slot, io);
    false
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
        topic => clients.check_right(slot, Right::Subscribe, subs.topics.name(topic)),
    };
    if !row.has_option(SUBSCRIPTION_LIST) {
        return may(row.consumer.topic);
    }
    let by_token = parts_by_token(clients, slot);
    let list = list_of(&clients.conns, slot).iter().enumerate();
    let judged = list.filter(|(part, _)| by_token.binary_search(&(*part as u32)).is_err());
    judged.map(|(_, sub)| sub.topic).try_for_each(may)
}

/// The subscriptions of the client that have tokens of their own, sorted. The walk is charged, since clients cause it as often as they want.
fn parts_by_token(clients: &Clients, slot: u32) -> Vec<u32> {
    let mut parts: Vec<u32> = granted(clients, slot).iter().map(|it| it.part).collect();
    parts.sort_unstable();
    let subscriptions = list_of(&clients.conns, slot).len();
    clients.meter.work.steps.add(parts.len() + subscriptions);
    parts
}

/// Ends the subscriptions that the client's new token does not grant.
pub(super) fn end_not_granted(clients: &mut Clients, subs: &mut Subscriptions, slot: u32) {
    if may_keep_all(clients, subs, slot).is_ok() {
        return;
    }
    clients.expand(slot);
    let by_token = parts_by_token(clients, slot);
    let list = list_of(&clients.conns, slot).iter().enumerate();
    let lost = list.filter(|(part, sub)| {
        sub.topic != NONE
            && by_token.binary_search(&(*part as u32)).is_err()
            && clients
                .check_right(slot, Right::Subscribe, subs.topics.name(sub.topic))
                .is_err()
    });
    let lost: Vec<u32> = lost.map(|(part, _)| part as u32).collect();
    for part in lost {
        end_subscription(clients, subs, (slot, part), Unsubscribe::EXPIRED);
    }
}
