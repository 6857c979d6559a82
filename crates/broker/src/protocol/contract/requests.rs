//! Carries out requests, and changes a connection to another protocol.

use crore_wire::http::head::Head;

use crate::client::credit::stall_if_needed;
use crate::client::row::{FILTERS, State};
use crate::home::Home;
use crate::io::Io;
use crate::protocol::front::{AllProtocols, Clients, Connections, Front};
use crate::protocol::http::history::history;
use crate::protocol::http::publish;
use crate::protocol::http::publish::batch::publish_batch;
use crate::protocol::http::publish::publish_one;
use crate::protocol::http::task::{Flow, Requests, Task};
use crate::protocol::mqtt::packets::{self, begin_framed};
use crate::protocol::stream::interest::follow;
use crate::protocol::stream::subscribe::subscribe;
use crate::protocol::websocket::handshake::accept_upgrade;
use crate::protocol::websocket::publish::upgrade_to_publish;

impl Requests for AllProtocols {
    fn carry_out<I: Io>(
        front: &mut Front,
        slot: u32,
        head: &Head<'_>,
        task: Task,
        body: &[u8],
        home: &mut Option<Home>,
        io: &mut I,
    ) -> Flow {
        let Front {
            clients,
            subs,
            queues,
            ..
        } = front;
        match task {
            Task::Upgrade => upgrade(clients, slot, head, io),
            Task::Follow { upgrade } => follow(clients, &mut subs.lanes, slot, head, upgrade),
            Task::Batch => publish_batch(clients, subs, queues, slot, body, home, io),
            Task::Publish(name) => {
                let flow = publish_one(clients, subs, slot, head, &name, body, home);
                stall_if_needed(clients, &subs.lanes, queues, slot, io);
                flow
            }
            Task::PublishFrames(name) => upgrade_to_publish(clients, slot, head, &name, io),
            Task::History(name) => history(clients, subs, slot, head, &name, io),
            Task::Verb(verb, name) => {
                publish::verb(clients, &mut subs.lanes, slot, head, verb, &name)
            }
            Task::Subscribe {
                names,
                filtered,
                publishes,
                upgrade,
            } => {
                if filtered {
                    clients.conns.get_mut(slot).consumer.options |= FILTERS;
                }
                let how = (publishes, upgrade);
                subscribe(clients, subs, slot, head, names, how, io)
            }
        }
    }

    fn begins_other(conns: &mut Connections, slot: u32, first: u8) -> bool {
        let begins = packets::begins_with(first);
        if begins {
            conns.get_mut(slot).consumer.state = State::Mqtt;
        }
        begins
    }

    fn names_other(head: &Head<'_>) -> bool {
        packets::speaks_mqtt(head)
    }

    fn has_changed(conns: &Connections, slot: u32) -> bool {
        match conns.get(slot).consumer.state {
            State::WebSocket | State::Mqtt => true,
            State::Proxy
            | State::Http
            | State::Waiting
            | State::Poll
            | State::Sse
            | State::Draining => false,
        }
    }

    fn received<I: Io>(
        front: &mut Front,
        slot: u32,
        bytes: &mut [u8],
        home: &mut Option<Home>,
        io: &mut I,
    ) {
        front.handle_bytes(slot, bytes, home, io);
    }
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
