//! Carries out orders of the server's API for single connections of Centrifugo's protocol.

use crore_wire::centrifugo::Push;
use crore_wire::centrifugo::codes::Unsubscribe;

use crate::base::access::VerifiedClient;
use crate::base::call_kind::CallKind;
use crate::base::ids::ConnId;
use crate::client::list::index_of_topic;
use crate::client::row::{CLOSING, State};
use crate::io::Io;
use crate::mail::orders::ConnectionOrder;
use crate::protocol::centrifugo::close::end_for_order;
use crate::protocol::centrifugo::options::CONNECTED;
use crate::protocol::centrifugo::reply::write_push;
use crate::protocol::centrifugo::server_side::begin_by_order;
use crate::protocol::centrifugo::state::{backend_mut, renewal_of_connection, state, state_mut};
use crate::protocol::centrifugo::subscribe::end_subscription;
use crate::protocol::centrifugo::tokens::{renewal_of, ttl_of_connection};
use crate::protocol::front::{Clients, Subscriptions};

/// Carries out an order. False if it changes nothing: the connection is of another protocol, is gone, or has not connected.
pub(crate) fn carry_out_order<I: Io>(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    conn: ConnId,
    order: &ConnectionOrder,
    io: &mut I,
) -> bool {
    let slot = conn.slot;
    let is_served = clients.conns.is_current(conn) && {
        let row = clients.conns.get(slot);
        row.consumer.state == State::Centrifugo
            && row.has_option(CONNECTED)
            && !row.link.has(CLOSING)
    };
    let is_done = is_served
        && match order {
            ConnectionOrder::Disconnect => false,
            ConnectionOrder::DisconnectAs(code, reason) => {
                end_for_order(clients, slot, *code, reason, io);
                return true;
            }
            ConnectionOrder::Subscribe(server_side) => {
                begin_by_order(clients, subs, slot, server_side)
            }
            ConnectionOrder::Unsubscribe(name) => unsubscribe(clients, subs, slot, name),
            ConnectionOrder::Refresh(until_unix_s) => refresh(clients, slot, *until_unix_s),
        };
    if is_done {
        clients.send_reply(slot, io);
    }
    is_done
}

fn unsubscribe(clients: &mut Clients, subs: &mut Subscriptions, slot: u32, name: &[u8]) -> bool {
    clients.move_to_list(slot);
    if state(&clients.conns, slot).is_some_and(|it| !it.server_starts.is_empty()) {
        // The client was not told of it.
        let beginning = &mut state_mut(&mut clients.conns, slot).server_starts;
        beginning.retain(|it| it.channel.as_bytes() != name);
    }
    let Some(sub_index) = index_of_topic(clients, subs, slot, name) else {
        return false;
    };
    end_subscription(clients, subs, (slot, sub_index), Unsubscribe::SERVER);
    true
}

/// Sets the second in which the client's token ends, and tells the client. The rights stay those of the token.
fn refresh(clients: &mut Clients, slot: u32, until_unix_s: u32) -> bool {
    let Some((grants, _)) = clients.conns.grants.get(slot) else {
        return false;
    };
    let grants = grants.clone();
    let known = VerifiedClient {
        grants,
        until_unix_s,
    };
    clients.conns.grants.set(slot, known);
    if renewal_of_connection(&clients.conns, slot).is_some() {
        let renewal = renewal_of(clients, CallKind::Refresh, until_unix_s);
        backend_mut(&mut clients.conns, slot).renewal = renewal;
    }
    let ttl = ttl_of_connection(clients, slot);
    write_push(clients, slot, &Push::Refresh(ttl));
    true
}
