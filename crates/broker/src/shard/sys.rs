//! The topics under `$SYS/broker`, as MQTT brokers have them (mosquitto(8)): the state of the server as retained
//! messages. Each topic's home publishes it, and only while the topic has a subscriber; then it is forgotten.
//!
//! Invariants: these messages are not counted as publishes, and a topic keeps only its newest, whatever the operator's
//! rules say ([`Rules`](crate::base::rules::Rules)).

use crore_wire::topic;

use crate::budget::admission::Client;
use crate::budget::stats::Moved;
use crate::mail::message::{Headers, Publish};
use crate::mail::{Answer, Change};
use crate::shard::Shard;
use crate::shard::gauges::{Gauges, Says, TOPICS};

impl Shard {
    /// Once a second: adds to the sums of all shards, and publishes them to subscribers. `moved` counts the bytes of
    /// the shard's sockets since it began.
    pub(crate) fn tell_sys(&mut self, moved: Moved) {
        let (stats, accounts) = (self.stats(), self.accounts());
        let world = self.front.clients.ctx.world.clone();
        let totals = &world.admission.totals;
        self.added.update(totals, &stats, &accounts, moved);
        let interval_s = world.settings.mqtt.sys_interval_s;
        if interval_s == 0 || self.home.is_none() {
            return;
        }
        let due = self.sys.is_due(self.front.clients.ctx.now.s, interval_s);
        for (n, (name, says)) in TOPICS.into_iter().enumerate() {
            self.tell_one(n, name, says, due);
        }
    }

    /// Publishes the value of a topic, if this is its home and it has a subscriber; `place` is its own in [`TOPICS`].
    fn tell_one(&mut self, place: usize, name: &str, says: Says, due: bool) {
        let (hash, home) = self.front.clients.ctx.place_of(name.as_bytes());
        if home != self.front.clients.ctx.me {
            return;
        }
        let here = self.home.as_mut().expect("a home has one");
        let matching = &self.front.subs.matching;
        let is_watched =
            (here.subscriptions).is_watched(&here.topics, hash, name.as_bytes(), matching);
        let was_watched = self.sys.watch(place, is_watched);
        if is_watched && (due || !was_watched) {
            let totals = &self.front.clients.ctx.world.admission.totals;
            let text = Gauges::text(says, totals, self.front.clients.ctx.now.s);
            self.publish_sys(hash, name, &text);
        } else if was_watched && !is_watched {
            self.change_topic(Change::ForgetLatest, name.as_bytes(), Answer::None);
        }
    }

    fn publish_sys(&mut self, hash: u32, name: &str, text: &str) {
        debug_assert!(topic::is_reserved(name.as_bytes()));
        let message = Publish {
            hash,
            name: name.as_bytes(),
            data: text.as_bytes(),
            headers: Headers {
                retain: true,
                ..Headers::default()
            },
            retry: None,
            client: Client::NOBODY,
        };
        let me = self.front.clients.ctx.me;
        self.front
            .subs
            .lanes
            .ask_publish(&self.front.meter.work, me, &message, Answer::None);
    }
}
