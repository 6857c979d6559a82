//! Ends what has lapsed: connections without a connect command, subscriptions whose token ends or is revoked, and subscriptions that new rights do not grant.

use alloc::vec::Vec;

use crore_wire::centrifugo::codes::{Disconnect, Unsubscribe};

use crate::base::access::Right;
use crate::base::reason::Reason;
use crate::client::list::subscription_list;
use crate::client::row::SUBSCRIPTION_LIST;
use crate::io::Io;
use crate::protocol::centrifugo::backend::has_backend_check;
use crate::protocol::centrifugo::close::end_with_text;
use crate::protocol::centrifugo::options::{CONNECTED, connect_until_s};
use crate::protocol::centrifugo::server_side::is_connecting;
use crate::protocol::centrifugo::state::{SeparateGrant, state};
use crate::protocol::centrifugo::subscribe::{end_expired_subscription, end_subscription};
use crate::protocol::centrifugo::tokens::has_token_check;
use crate::protocol::front::{Clients, Subscriptions};
use crate::store::slab::NONE;

fn granted(clients: &Clients, slot: u32) -> &[SeparateGrant] {
    state(&clients.conns, slot).map_or(&[], |state| &state.separate_grants)
}

/// Ends a connection that has sent no connect command in time, and subscriptions that have expired. Called once a second, because the deadline of a
/// connection is moved by received and waiting bytes, and these ends must not move. Returns whether the connection ends.
pub(super) fn end_expired<I: Io>(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    io: &mut I,
) -> bool {
    let row = clients.conns.get(slot);
    if !row.has_option(CONNECTED) {
        // A connect that waits for the server is not late, also if the answer has just come.
        let is_waiting = has_token_check(clients, slot)
            || has_backend_check(clients, slot)
            || is_connecting(clients, slot);
        let is_late = !is_waiting && connect_until_s(row) < clients.ctx.now.s;
        if is_late {
            end_with_text(clients, slot, Disconnect::STALE, Disconnect::STALE.text, io);
        }
        return is_late;
    }
    let unix_s = clients.ctx.wall_s();
    let expired = granted(clients, slot).iter();
    let expired = expired.filter(|granted| granted.until_unix_s <= unix_s);
    let expired: Vec<u32> = expired.map(|granted| granted.sub_index).collect();
    for sub_index in expired {
        if end_expired_subscription(clients, subs, (slot, sub_index), io) {
            return true;
        }
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
    let is_revoked = |it: &&SeparateGrant| {
        let token = it.token.as_ref();
        token.is_some_and(|token| clients.is_revoked(token))
    };
    let revoked = granted(clients, slot).iter().filter(is_revoked);
    let revoked: Vec<u32> = revoked.map(|it| it.sub_index).collect();
    for sub_index in revoked {
        end_subscription(clients, subs, (slot, sub_index), Unsubscribe::SERVER);
    }
    clients.send_reply(slot, io);
}

/// Whether the client would now be granted all its subscriptions. Those of tokens stay until their tokens end.
fn may_keep_all(clients: &Clients, subs: &Subscriptions, slot: u32) -> Result<(), Reason> {
    let row = clients.conns.get(slot);
    let check = |topic: u32| match topic {
        NONE => Ok(()),
        topic => clients.check_right(slot, Right::Subscribe, subs.topics.name(topic)),
    };
    if !row.has_option(SUBSCRIPTION_LIST) {
        return check(row.consumer.topic);
    }
    let by_token = subscriptions_by_token(clients, slot);
    let list = subscription_list(&clients.conns, slot).iter().enumerate();
    let checked =
        list.filter(|(sub_index, _)| by_token.binary_search(&(*sub_index as u32)).is_err());
    checked.map(|(_, sub)| sub.topic).try_for_each(check)
}

/// The indexes of the client's subscriptions with separate grants, sorted. Counts the work of a walk over all subscriptions, since clients can cause it as often
/// as they want.
fn subscriptions_by_token(clients: &Clients, slot: u32) -> Vec<u32> {
    let mut sub_indexes: Vec<u32> = granted(clients, slot)
        .iter()
        .map(|it| it.sub_index)
        .collect();
    sub_indexes.sort_unstable();
    let subscriptions = subscription_list(&clients.conns, slot).len();
    clients
        .meter
        .work
        .steps
        .add(sub_indexes.len() + subscriptions);
    sub_indexes
}

/// Ends the subscriptions that a new token of the client, or new settings, do not grant.
pub(super) fn end_subscriptions_without_right(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
) {
    if may_keep_all(clients, subs, slot).is_ok() {
        return;
    }
    clients.move_to_list(slot);
    let by_token = subscriptions_by_token(clients, slot);
    let list = subscription_list(&clients.conns, slot).iter().enumerate();
    let without_right = list.filter(|(sub_index, sub)| {
        sub.topic != NONE
            && by_token.binary_search(&(*sub_index as u32)).is_err()
            && clients
                .check_right(slot, Right::Subscribe, subs.topics.name(sub.topic))
                .is_err()
    });
    let without_right: Vec<u32> = without_right
        .map(|(sub_index, _)| sub_index as u32)
        .collect();
    for sub_index in without_right {
        end_subscription(clients, subs, (slot, sub_index), Unsubscribe::EXPIRED);
    }
}
