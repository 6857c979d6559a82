//! Carries out and answers the operator's orders ([`orders`](crate::orders)).

use crate::mail::Outcome;
use crate::mail::orders::{Control, Ended, Report, Ticket};
use crate::protocol::front::Front;
use crate::shard::control::connections::{
    client_ids, connections_page, end_by_order, find_connection, find_session, order_connections,
    schedule_session_end, sessions_page, users_page,
};
use crate::shard::control::hooks::carry_out_hooks;
use crate::shard::control::topics::{
    carry_out_interest_order, carry_out_peer_presence, find_topic, log_page, members_page,
    order_change, topics_page,
};
use alloc::boxed::Box;

use crate::io::Io;
use crate::shard::Shard;

mod connections;
mod hooks;
pub(in crate::shard) mod topics;

impl Shard {
    pub(crate) fn carry_out_order<I: Io>(&mut self, ticket: Ticket, control: Control, io: &mut I) {
        let Front { clients, subs, .. } = &mut self.front;
        let report = match control {
            Control::Accounts => Report::Accounts(Box::new((self.stats(), self.accounts()))),
            Control::Notice(kind) => {
                let of_home = || self.home.as_mut()?.reports.take_notice(kind);
                Report::Notice(clients.meter.notices.take(kind).or_else(of_home))
            }
            Control::Topics(page) => {
                Report::Topics(topics_page(self.home.as_ref(), clients.ctx.now, &page))
            }
            Control::Topic(name) => {
                let topic = find_topic(self.home.as_ref(), clients.ctx.now, &name);
                Report::Topic(topic.map(Box::new))
            }
            Control::Presence(name, after, members_max) => {
                let page = members_page(
                    self.home.as_ref(),
                    &clients.ctx,
                    (&name, after, members_max),
                );
                Report::Presence(Box::new(page))
            }
            Control::Log(page) => {
                Report::Messages(log_page(self.home.as_mut(), &clients.ctx, &page))
            }
            // While a snapshot is written, nothing may change.
            Control::Purge(..) | Control::Delete(_) | Control::Publish(_) if self.is_stopped => {
                Report::Outcome(Outcome::Unknown)
            }
            order @ (Control::Purge(..) | Control::Delete(_) | Control::Publish(_)) => {
                return order_change(clients, subs, order, ticket);
            }
            Control::Connections {
                which,
                from,
                connections_max,
            } => {
                let connections_max = connections_max as usize;
                Report::Connections(connections_page(
                    clients,
                    subs,
                    &which,
                    from,
                    connections_max,
                    io,
                ))
            }
            Control::Connection(id) => {
                Report::Connection(find_connection(clients, subs, id, io).map(Box::new))
            }
            Control::Users(from) => Report::Users(users_page(clients, from)),
            Control::ClientIds(sessions) => {
                Report::ClientIds(client_ids(&self.sessions, &sessions))
            }
            Control::Sessions { from, sessions_max } => {
                let (sessions_max, now) = (sessions_max as usize, clients.ctx.now);
                Report::Sessions(sessions_page(&self.sessions, from, sessions_max, now))
            }
            Control::Session(name) => {
                let found = find_session(&self.sessions, clients, &name);
                Report::Session(found.map(Box::new))
            }
            // While a snapshot is written, nothing may change.
            Control::EndSession(_) if self.is_stopped => Report::Ended(Ended::default()),
            Control::EndSession(name) if clients.ctx.world.replicates_sessions() => {
                Report::Ended(self.record_end_by_operator(&name))
            }
            Control::EndSession(name) => {
                Report::Ended(schedule_session_end(&mut self.sessions, clients, &name))
            }
            Control::Disconnect(id) => Report::Ended(Ended {
                count: u32::from(end_by_order(clients, id, io)),
                next: None,
            }),
            Control::EachConnection { order, which, from } => {
                Report::Ended(order_connections(clients, subs, &order, (&which, from), io))
            }
            Control::PrepareRules(world) => {
                let home = self.home.as_mut();
                Report::RulesPrepared(home.is_some_and(|home| home.topics.prepare_rules(&world)))
            }
            Control::Settings(world) => {
                self.change_settings(world);
                Report::Done
            }
            Control::Floors(partition, offset, names) => {
                let home = self.home.as_ref();
                Report::Floors(home.and_then(|home| home.floors_of(partition, offset, &names)))
            }
            Control::Cluster => Report::Cluster(self.node_context().map(|mut node| node.state())),
            Control::Interest(order) => {
                Report::Interest(carry_out_interest_order(self.home.as_mut(), order))
            }
            Control::PeerPresence(order) => {
                let reply = carry_out_peer_presence(self.home.as_mut(), clients, order);
                Report::PeerPresence(reply)
            }
            Control::Hooks(order) => {
                let news = carry_out_hooks(self.home.as_mut(), clients, order);
                Report::Hooks(news.map(Box::new))
            }
            Control::Drain => {
                self.drain(self.front.clients.ctx.now);
                Report::Done
            }
            Control::Save(head, bytes_max) => Report::Block(self.save(&head, bytes_max)),
            Control::Settle => Report::Settled(self.settle()),
        };
        io.answer_order(ticket, report);
    }
}
