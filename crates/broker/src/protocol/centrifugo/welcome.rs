//! Writes the reply to the connect command.

use crore_wire::centrifugo::{Answer, ConnectResult, Payload, SubscribeResult};

use crate::base::journal::EventKind;
use crate::protocol::centrifugo::emulation::session_id;
use crate::protocol::centrifugo::options::{CONNECTED, ONE_WAY, VERSION, posts_commands};
use crate::protocol::centrifugo::ping::begin_pings;
use crate::protocol::centrifugo::reply::write_reply;
use crate::protocol::centrifugo::state::{client_id, node_id};
use crate::protocol::centrifugo::tokens::ttl_of_connection;
use crate::protocol::front::Clients;

/// Marks the client as connected, and writes the reply with data of the backend and the subscriptions that the server begins.
pub(super) fn finish_connect(
    clients: &mut Clients,
    slot: u32,
    (id, data): (u32, &[u8]),
    subs: &[(&str, SubscribeResult<'_>)],
) {
    let row = clients.conns.get_mut(slot);
    let sends = !row.has_option(ONE_WAY);
    row.consumer.options |= CONNECTED;
    begin_pings(clients, slot);
    let client = client_id(clients, slot);
    let (session, node) = match posts_commands(clients.conns.get(slot)) {
        true => (session_id(clients, slot), node_id(&clients.ctx.world)),
        false => Default::default(),
    };
    clients.record_event(slot, EventKind::SessionOpened, client.as_bytes());
    let ping_s = clients.ctx.world.settings.centrifugo.ping_interval_s;
    let result = ConnectResult {
        client: &client,
        version: VERSION,
        ttl: ttl_of_connection(clients, slot),
        data: Payload::Value(data),
        subs,
        ping: ping_s,
        pong: sends && ping_s > 0,
        session: &session,
        node: &node,
    };
    write_reply(clients, slot, id, Answer::Connect(result));
}
