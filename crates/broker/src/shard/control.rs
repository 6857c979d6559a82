//! Carries out an operator's orders ([`orders`](crate::orders)), and answers.

use crate::base::notices::Notice;
use crate::mail::Outcome;
use crate::mail::orders::{Control, Ended, Interested, Report, Ticket};
use alloc::boxed::Box;

use crate::io::Io;
use crate::shard::Shard;

mod connections;
mod topics;

impl Shard {
    pub(crate) fn control<I: Io>(&mut self, ticket: Ticket, control: Control, io: &mut I) {
        let report = match control {
            Control::Accounts => Report::Accounts(Box::new((self.stats(), self.accounts()))),
            Control::Notice(kind @ (Notice::ShortLog | Notice::Keys)) => {
                let home = self.home.as_mut();
                Report::Notice(home.and_then(|home| home.reports.take_notice(kind)))
            }
            Control::Notice(kind) => Report::Notice(self.front.gate.notices().take(kind)),
            Control::Topics(page) => Report::Topics(self.topics_page(&page)),
            Control::Topic(name) => Report::Topic(self.topic(&name).map(Box::new)),
            Control::Log(page) => Report::Messages(self.log_page(&page)),
            // A document that is being written must not change.
            Control::Purge(..) | Control::Delete(_) | Control::Publish(_) if self.stopped => {
                Report::Outcome(Outcome::Unknown)
            }
            Control::Purge(name, until) => return self.purge_some(&name, until, ticket),
            Control::Delete(name) => return self.delete_topic(&name, ticket),
            Control::Publish(message) => return self.publish_ordered(&message, ticket),
            Control::Connections { which, from, most } => {
                Report::Connections(self.connections_page(&which, from, most as usize, io))
            }
            Control::Connection(id) => Report::Connection(self.connection(id, io).map(Box::new)),
            Control::ClientIds(sessions) => Report::ClientIds(self.client_ids(&sessions)),
            Control::Disconnect(id) => Report::Ended(Ended {
                count: u32::from(self.end_connection(id, io)),
                next: None,
            }),
            Control::DisconnectAll { which, from } => {
                Report::Ended(self.end_connections(&which, from, io))
            }
            Control::Foresee(world) => {
                let home = self.home.as_mut();
                Report::Foreseen(home.is_some_and(|home| home.topics.foresee(&world)))
            }
            Control::Settings(world) => {
                self.change(world);
                Report::Done
            }
            Control::Floors(partition, offset, names) => {
                let home = self.home.as_ref();
                Report::Floors(
                    home.and_then(|home| home.topics.floors(&home.logs, partition, offset, &names)),
                )
            }
            Control::Cluster => Report::Cluster(self.cluster_state()),
            Control::Interest(order) => {
                let home = self.home.as_mut();
                Report::Interest(match home {
                    Some(home) => home.interest.interest_order(
                        &home.topics,
                        &home.readings,
                        &home.pace,
                        order,
                    ),
                    None => Interested::Done,
                })
            }
            Control::Drain => {
                self.drain(self.front.clients.ctx.now);
                Report::Done
            }
            Control::Save(head, bytes_max) => Report::Block(self.save(&head, bytes_max)),
            Control::Settle => Report::Settled(self.settle()),
        };
        io.report(ticket, report);
    }
}
