//! Topics, for the operator: pages of them, their logs, and orders that change them. Only a topic's home is asked.

use crate::budget::admission::Client;
use crate::client::asking;
use crate::mail::message::Publish;
use crate::mail::orders::{LogPage, Messages, Publishing, Ticket, Topic, Topics, TopicsPage};
use crate::mail::{Answer, Ask, Change, Span, Verb};
use crate::shard::Shard;

/// Messages that one order takes away from a log at most.
pub const PURGED_PER_TURN: u32 = 4_096;

impl Shard {
    pub(super) fn topics_page(&self, page: &TopicsPage) -> Topics {
        match &self.home {
            Some(home) => home
                .topics
                .list(&home.logs, page, self.front.clients.ctx.now),
            None => Topics::default(),
        }
    }

    pub(super) fn topic(&self, name: &[u8]) -> Option<Topic> {
        let home = self.home.as_ref()?;
        home.topics
            .look_up(&home.logs, name, self.front.clients.ctx.now)
    }

    pub(super) fn log_page(&mut self, page: &LogPage) -> Option<Messages> {
        let home = self.home.as_mut()?;
        let mut read = home.logs.read_log(&home.topics, page)?;
        for message in &mut read.messages {
            message.time_s = self.front.clients.ctx.date_of(message.time_s) as u32;
        }
        Some(read)
    }

    pub(super) fn purge_some(&mut self, name: &[u8], until: u64, ticket: Ticket) {
        let change = Change::PurgeSome(until, PURGED_PER_TURN);
        self.change_topic(change, name, Answer::Order(ticket));
    }

    pub(super) fn delete_topic(&mut self, name: &[u8], ticket: Ticket) {
        self.change_topic(Change::Delete, name, Answer::Order(ticket));
    }

    /// Changes a topic, for nobody.
    pub(in crate::shard) fn change_topic(&mut self, change: Change, name: &[u8], answer: Answer) {
        let (hash, home) = self.front.clients.ctx.place_of(name);
        self.front.subs.lanes.ask(home, |bytes| Ask::Topic {
            verb: Verb::Change(change),
            hash,
            name: Span::of(bytes, name),
            answer,
            client: Client::NOBODY,
        });
    }

    pub(super) fn publish_ordered(&mut self, message: &Publishing, ticket: Ticket) {
        let (hash, home) = self.front.clients.ctx.place_of(&message.name);
        let publish = Publish {
            hash,
            name: &message.name,
            data: &message.data,
            headers: message.headers.map(|field| &field[..]),
            retry: None,
            client: Client::NOBODY,
        };
        let answer = Answer::Order(ticket);
        asking::publish(
            &mut self.front.subs,
            &mut self.front.meter,
            &self.front.clients.ctx,
            &mut None,
            home,
            &publish,
            answer,
        );
    }
}
