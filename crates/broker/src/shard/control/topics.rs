//! Topics, for the operator: pages of them, their logs, and orders that change them. Only a topic's home is asked.

use crate::budget::admission::Client;
use crate::home::Publish;
use crate::mail::orders::{LogPage, Messages, Topic, TopicsPage};
use crate::mail::orders::{Publishing, Topics};
use crate::mail::{Answer, Outcome};
use crate::shard::Shard;

/// Messages that one order takes away from a log at most.
pub const PURGED_PER_TURN: u32 = 4_096;

impl Shard {
    pub(super) fn topics_page(&self, page: &TopicsPage) -> Topics {
        match &self.front.home {
            Some(home) => home.list(page, self.front.now),
            None => Topics::default(),
        }
    }

    pub(super) fn topic(&self, name: &[u8]) -> Option<Topic> {
        self.front.home.as_ref()?.look_up(name, self.front.now)
    }

    pub(super) fn log_page(&mut self, page: &LogPage) -> Option<Messages> {
        self.front.home.as_mut()?.read_log(page)
    }

    pub(super) fn purge_some(&mut self, name: &[u8], until: u64) -> Option<u32> {
        let home = self.front.home.as_mut()?;
        home.purge_some(name, until, PURGED_PER_TURN, self.front.now)
    }

    pub(super) fn delete_topic(&mut self, name: &[u8]) -> bool {
        let (hash, home) = self.front.place_of(name);
        assert_eq!(home, self.front.lanes.me, "only its home is asked");
        let here = self.front.home.as_mut().expect("a home has one");
        let outcome = here.delete(hash, name, self.front.now, &mut self.front.lanes);
        matches!(outcome, Outcome::Done(_))
    }

    pub(super) fn publish_ordered(&mut self, message: &Publishing) -> Outcome {
        let (hash, home) = self.front.place_of(&message.name);
        assert_eq!(home, self.front.lanes.me, "only its home is asked");
        let publish = Publish {
            hash,
            name: &message.name,
            data: &message.data,
            content_type: &message.content_type,
            event: &message.event,
            key: &message.key,
            attributes: &[],
            qos: 0,
            retain: message.retain,
            ttl_s: message.ttl_s,
            binary: message.binary,
            retry: None,
            client: Client::NOBODY,
        };
        self.front
            .publish(home, &publish, Answer::None)
            .expect("the home is here")
    }
}
