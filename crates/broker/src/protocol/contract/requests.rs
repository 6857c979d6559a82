//! The part of the contract that concerns HTTP: which protocol a connection changes to, and what carries a request out.

use crore_wire::http::head::Head;

use crate::client::row::{FILTERS, State};
use crate::home::Home;
use crate::io::Io;
use crate::protocol::front::Front;
use crate::protocol::http::task::{Flow, Task};
use crate::protocol::mqtt::packets;

impl Front {
    /// The first byte of a connection: whether it begins another protocol than HTTP, which the connection speaks from now on.
    pub(in crate::protocol) fn begins_other_protocol(&mut self, slot: u32, first: u8) -> bool {
        let begins = packets::begins_with(first);
        if begins {
            self.conns.get_mut(slot).state = State::Mqtt;
        }
        begins
    }

    /// Whether an upgrade to WebSocket is for another protocol, on whichever path.
    pub(in crate::protocol) fn names_other_protocol(&self, head: &Head<'_>) -> bool {
        packets::speaks_mqtt(head)
    }

    /// Upgrades to a WebSocket that carries another protocol.
    fn upgrade<I: Io>(&mut self, slot: u32, head: &Head<'_>, io: &mut I) -> Flow {
        if let Err(reason) = self.accept_upgrade(slot, head, Some(packets::SUBPROTOCOL)) {
            self.respond_reason(slot, reason);
            return Flow::Next;
        }
        self.begin_framed(slot);
        self.send_reply(slot, io);
        Flow::Wait
    }

    /// Does what the request wants.
    pub(in crate::protocol) fn carry_out<I: Io>(
        &mut self,
        slot: u32,
        head: &Head<'_>,
        task: Task,
        body: &[u8],
        home: &mut Option<Home>,
        io: &mut I,
    ) -> Flow {
        match task {
            Task::Upgrade => self.upgrade(slot, head, io),
            Task::Follow { upgrade } => self.follow(slot, head, upgrade),
            Task::Batch => self.batch(slot, body, home, io),
            Task::Publish(name) => {
                let flow = self.publish_one(slot, head, &name, body, home);
                self.stall_if_needed(slot, io);
                flow
            }
            Task::PublishFrames(name) => self.upgrade_to_publish(slot, head, &name, io),
            Task::History(name) => self.history(slot, head, &name, io),
            Task::Verb(verb, name) => self.verb(slot, head, verb, &name),
            Task::Subscribe {
                names,
                filtered,
                publishes,
                upgrade,
            } => {
                if filtered {
                    self.conns.get_mut(slot).options |= FILTERS;
                }
                self.subscribe(slot, head, names, publishes, upgrade, io)
            }
        }
    }
}
