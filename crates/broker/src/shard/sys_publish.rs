//! Publishes the server's state as retained messages under `$SYS/broker`, as MQTT brokers do (mosquitto(8)). The home of a topic (the shard
//! that stores the topic) publishes the value only while the topic has a subscriber, and removes the value afterwards.
//!
//! Invariants: these messages do not count as publishes. A topic keeps only its newest value, whatever the operator's rules say
//! ([`Rules`](crate::base::rules::Rules)).

use crore_wire::topic;

use crate::budget::admission::Client;
use crate::budget::stats::SocketBytes;
use crate::home::Home;
use crate::mail::message::{Headers, Publish};
use crate::mail::{Change, WantedAnswer};
use crate::protocol::front::{Clients, Front, Lanes, Subscriptions};
use crate::shard::Shard;
use crate::shard::control::topics::change_topic;
use crate::shard::sys_values::{SysTopics, TOPICS};

impl Shard {
    /// Adds this shard's counts to the totals of all shards, and publishes values to subscribers. Called once a second. `socket_bytes` are
    /// the bytes that the shard's sockets have received and sent since the start.
    pub(crate) fn publish_sys_topics(&mut self, socket_bytes: SocketBytes) {
        let (stats, accounts) = (self.stats(), self.accounts());
        let world = self.front.clients.ctx.world.clone();
        let totals = &world.admission.totals;
        self.sys_topics
            .added
            .update(totals, &stats, &accounts, socket_bytes);
        let interval_s = world.settings.mqtt.sys_interval_s;
        let Some(home) = self.home.as_mut().filter(|_| interval_s > 0) else {
            return;
        };
        let (Front { clients, subs, .. }, sys) = (&mut self.front, &mut self.sys_topics);
        let due = sys.is_due(clients.ctx.now.s, interval_s);
        for topic in 0..TOPICS.len() {
            publish_if_watched(clients, subs, home, sys, topic, due);
        }
    }
}

/// Publishes a topic's value if this shard is the topic's home and the topic has a subscriber. `topic` is the index in [`TOPICS`].
fn publish_if_watched(
    clients: &Clients,
    subs: &mut Subscriptions,
    home: &mut Home,
    sys: &mut SysTopics,
    topic_index: usize,
    is_due: bool,
) {
    let (name, figure) = TOPICS[topic_index];
    let (hash, home_shard) = clients.ctx.hash_and_home_of(name.as_bytes());
    if home_shard != clients.ctx.own_shard {
        return;
    }
    let is_watched = home.has_any_subscriber(hash, name.as_bytes(), &subs.matching);
    let was_watched = sys.replace_watched(topic_index, is_watched);
    if is_watched && (is_due || !was_watched) {
        let totals = &clients.ctx.world.admission.totals;
        let text = SysTopics::text(figure, totals, clients.ctx.now.s);
        publish_sys(clients, &mut subs.lanes, hash, name, &text);
    } else if was_watched && !is_watched {
        let (change, name) = (Change::ForgetLatest, name.as_bytes());
        change_topic(
            &mut subs.lanes,
            &clients.ctx,
            change,
            name,
            WantedAnswer::None,
        );
    }
}

fn publish_sys(clients: &Clients, lanes: &mut Lanes, hash: u32, name: &str, text: &str) {
    debug_assert!(topic::is_reserved(name.as_bytes()));
    let message = Publish {
        hash,
        name: name.as_bytes(),
        data: text.as_bytes(),
        headers: Headers {
            retain: true,
            ..Headers::default()
        },
        dedup: None,
        client: Client::NOBODY,
    };
    let own_shard = clients.ctx.own_shard;
    lanes.push_publish(&clients.meter.work, own_shard, &message, WantedAnswer::None);
}
