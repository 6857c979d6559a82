//! Counts connections when they begin and end. If a limit in [`admission`](crate::budget::admission) is reached, the connection is
//! marked, and its first request will be refused.
//!
//! Invariants: connections that wait to be refused count only in the gate (`gate.rs`), which bounds their number. An accepted
//! connection is never marked later, but a request of another client through the same proxy may be refused.

use core::net::IpAddr;

use crore_wire::http::forwarded;

use crate::base::reason::Reason;
use crate::budget::admission::Client;
use crate::client::parts::{Clients, Context, Gate, Stats};
use crate::client::row::{Row, TURNED_AWAY};
use crate::client::types::ProtocolTypes;

/// How many seconds a connection that waits to be refused may take to send its request.
const TURNED_AWAY_S: u32 = 3;

impl Context {
    /// Whether this peer may connect. With the PROXY protocol, only a trusted proxy may connect, since the proxy names the client.
    pub(crate) fn may_connect(&self, peer: IpAddr) -> bool {
        let http = &self.world.settings.http;
        !http.proxy_protocol || forwarded::is_trusted(peer, &http.trusted_proxies)
    }
}

/// Counts a new connection, or marks it to be refused. False if it cannot even have a row (an entry in the table of connections).
pub(crate) fn admit_connection<P: ProtocolTypes>(
    clients: &mut Clients<P>,
    gate: &mut Gate,
    row: &mut Row,
    peer: IpAddr,
) -> bool {
    let (world, http) = (&clients.ctx.world, &clients.ctx.world.settings.http);
    if !gate.has_room(clients.conns.len()) {
        return gate.turn_away_later(&mut clients.meter.stats, &clients.ctx, row);
    }
    let entered = world.admission.enter().and_then(|()| {
        if http.proxy_protocol {
            // The PROXY header will name the client.
            return Ok(());
        }
        if forwarded::is_trusted(peer, &http.trusted_proxies) {
            row.consumer.client = Client::RELAYED;
            return Ok(());
        }
        row.consumer.client = world.admission.client(peer);
        let entered = world.admission.enter_client(row.consumer.client);
        if let Err(reached) = entered {
            world.admission.leave();
            row.consumer.client = turned_away(row.consumer.client, reached);
        }
        entered
    });
    if entered.is_ok() {
        return true;
    }
    gate.turn_away_later(&mut clients.meter.stats, &clients.ctx, row)
}

/// Counts a stream as a connection of its link's client, or marks it to be refused. False if it cannot even have a row.
pub(crate) fn admit_stream<P: ProtocolTypes>(
    clients: &mut Clients<P>,
    gate: &mut Gate,
    row: &mut Row,
    link: u32,
) -> bool {
    let link_row = clients.conns.get(link);
    row.consumer.client = link_row.consumer.client;
    if link_row.link.has(TURNED_AWAY) || !gate.has_room(clients.conns.len()) {
        return gate.turn_away_later(&mut clients.meter.stats, &clients.ctx, row);
    }
    let (admission, client) = (&clients.ctx.world.admission, row.consumer.client);
    let entered = admission.enter().and_then(|()| {
        let entered = admission.enter_client(client);
        entered.inspect_err(|_| admission.leave())
    });
    let Err(reached) = entered else {
        return true;
    };
    row.consumer.client = turned_away(client, reached);
    gate.turn_away_later(&mut clients.meter.stats, &clients.ctx, row)
}

/// Counts the client that a PROXY header has named, or marks the connection to be refused.
pub(crate) fn admit_proxied<P: ProtocolTypes>(
    clients: &mut Clients<P>,
    gate: &mut Gate,
    slot: u32,
    address: IpAddr,
) {
    if clients.conns.get(slot).link.has(TURNED_AWAY) {
        return;
    }
    clients.conns.set_relayed_address(slot, Some(address));
    let world = &clients.ctx.world;
    if forwarded::is_trusted(address, &world.settings.http.trusted_proxies) {
        clients.conns.get_mut(slot).consumer.client = Client::RELAYED;
        return;
    }
    let client = world.admission.client(address);
    let entered = world.admission.enter_client(client);
    let row = clients.conns.get_mut(slot);
    row.consumer.client = client;
    if let Err(reached) = entered {
        row.consumer.client = turned_away(client, reached);
        clients.ctx.world.admission.leave();
        row.link.flags |= TURNED_AWAY;
        gate.count_waiting_refusal();
        clients.meter.stats.turned_away += 1;
    }
}

/// The client of a refused connection. It is recorded if its own limit is the reason (`protocol/http/turned_away.rs`).
fn turned_away(client: Client, reached: Reason) -> Client {
    match reached {
        Reason::ConnectionsOfAddress => client,
        _ => Client::NOBODY,
    }
}

impl Gate {
    fn turn_away_later(&mut self, stats: &mut Stats, ctx: &Context, row: &mut Row) -> bool {
        stats.turned_away += 1;
        if !self.may_turn_away() {
            return false;
        }
        self.count_waiting_refusal();
        row.link.flags |= TURNED_AWAY;
        row.link.deadline_s = row.link.deadline_s.min(ctx.now.s + TURNED_AWAY_S);
        true
    }

    /// Stops counting a connection that has ended.
    pub(crate) fn stop_counting(&mut self, ctx: &Context, row: &Row) {
        if row.link.has(TURNED_AWAY) {
            self.stop_counting_refusal();
        } else {
            ctx.world.admission.leave();
            ctx.world.admission.leave_client(row.consumer.client);
        }
    }
}

impl<P: ProtocolTypes> Clients<P> {
    /// Whether the rate limits allow this connection to publish a message now.
    pub(crate) fn check_publish_rate(&self, slot: u32) -> Result<(), Reason> {
        let client = self.conns.get(slot).consumer.client;
        let admission = &self.ctx.world.admission;
        admission.count_publish(client, self.ctx.now.unix_s)
    }
}
