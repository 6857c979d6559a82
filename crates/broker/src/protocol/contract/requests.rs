//! Processes HTTP requests: dispatches each request to its code, and changes a connection to another protocol.

use crore_wire::http::head::Head;

use crate::client::credit::stall_if_needed;
use crate::client::row::{FILTERS, State};
use crate::home::Home;
use crate::io::Io;
use crate::protocol::front::{Clients, Connections, Front};
use crate::protocol::http::history::history;
use crate::protocol::http::interest::follow;
use crate::protocol::http::publish;
use crate::protocol::http::publish::batch::publish_batch;
use crate::protocol::http::publish::publish_one;
use crate::protocol::http::subscribe::subscribe;
use crate::protocol::http::task::{Flow, Task};
use crate::protocol::mqtt::packets::{self, begin_framed};
use crate::protocol::websocket::handshake::accept_upgrade;
use crate::protocol::websocket::publish::upgrade_to_publish;

impl Front {
    /// Processes a request that was accepted.
    pub(crate) fn carry_out<I: Io>(
        &mut self,
        slot: u32,
        head: &Head<'_>,
        task: Task,
        body: &[u8],
        home: &mut Option<Home>,
        io: &mut I,
    ) -> Flow {
        match task {
            Task::Upgrade => upgrade(&mut self.clients, slot, head, io),
            Task::Follow { upgrade } => {
                follow(&mut self.clients, &mut self.subs.lanes, slot, head, upgrade)
            }
            Task::Batch => publish_batch(
                &mut self.clients,
                &mut self.subs,
                &mut self.queues,
                slot,
                body,
                home,
                io,
            ),
            Task::Publish(name) => {
                let flow = publish_one(
                    &mut self.clients,
                    &mut self.subs,
                    slot,
                    head,
                    &name,
                    body,
                    home,
                );
                stall_if_needed(
                    &mut self.clients,
                    &self.subs.lanes,
                    &mut self.queues,
                    slot,
                    io,
                );
                flow
            }
            Task::PublishFrames(name) => {
                upgrade_to_publish(&mut self.clients, slot, head, &name, io)
            }
            Task::History(name) => {
                history(&mut self.clients, &mut self.subs, slot, head, &name, io)
            }
            Task::Verb(verb, name) => publish::verb(
                &mut self.clients,
                &mut self.subs.lanes,
                slot,
                head,
                verb,
                &name,
            ),
            Task::Subscribe {
                names,
                filtered,
                publishes,
                upgrade,
            } => {
                if filtered {
                    self.clients.conns.get_mut(slot).options |= FILTERS;
                }
                subscribe(
                    &mut self.clients,
                    &mut self.subs,
                    slot,
                    head,
                    names,
                    (publishes, upgrade),
                    io,
                )
            }
        }
    }
}

/// Changes the connection to another protocol if its first byte begins that protocol. Returns whether it did.
pub(crate) fn begins_other_protocol(conns: &mut Connections, slot: u32, first: u8) -> bool {
    let begins = packets::begins_with(first);
    if begins {
        conns.get_mut(slot).state = State::Mqtt;
    }
    begins
}

/// Whether an upgrade to WebSocket is for another protocol. The path does not matter.
pub(crate) fn names_other_protocol(head: &Head<'_>) -> bool {
    packets::speaks_mqtt(head)
}

/// Upgrades to a WebSocket that carries another protocol.
fn upgrade<I: Io>(clients: &mut Clients, slot: u32, head: &Head<'_>, io: &mut I) -> Flow {
    if let Err(reason) = accept_upgrade(clients, slot, head, Some(packets::SUBPROTOCOL)) {
        clients.respond_reason(slot, reason);
        return Flow::Next;
    }
    begin_framed(clients, slot);
    clients.send_reply(slot, io);
    Flow::Wait
}
