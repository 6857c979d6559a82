//! The topics under `$SYS/broker`, as MQTT brokers have them: how the server is, as retained messages. Each topic's home
//! publishes it, and only while somebody subscribes to it; then it is forgotten.

use alloc::format;
use alloc::string::String;

use crore_wire::topic;

use crate::home::Publish;
use crate::shard::Shard;
use crate::totals::Total;

/// The topics, and what each says.
const TOPICS: [(&str, Says); 13] = [
    ("$SYS/broker/version", Says::Version),
    ("$SYS/broker/uptime", Says::Uptime),
    (
        "$SYS/broker/clients/connected",
        Says::Sum(Total::ClientsConnected),
    ),
    ("$SYS/broker/clients/disconnected", Says::Away),
    ("$SYS/broker/clients/total", Says::Sum(Total::Sessions)),
    (
        "$SYS/broker/publish/messages/received",
        Says::Sum(Total::Published),
    ),
    (
        "$SYS/broker/publish/messages/sent",
        Says::Sum(Total::Delivered),
    ),
    (
        "$SYS/broker/publish/bytes/received",
        Says::Sum(Total::PublishedBytes),
    ),
    ("$SYS/broker/subscriptions/count", Says::Subscriptions),
    (
        "$SYS/broker/shared_subscriptions/count",
        Says::Sum(Total::Groups),
    ),
    (
        "$SYS/broker/retained messages/count",
        Says::Sum(Total::Retained),
    ),
    ("$SYS/broker/store/messages/count", Says::Sum(Total::Kept)),
    (
        "$SYS/broker/store/messages/bytes",
        Says::Sum(Total::KeptBytes),
    ),
];

/// Subscribers who were told that messages are lost, or cannot be told, as in MQTT.
const GAPS: (&str, Says) = ("$SYS/broker/crore/gaps", Says::Sum(Total::Gaps));

#[derive(Clone, Copy)]
enum Says {
    Version,
    Uptime,
    Away,
    Subscriptions,
    Sum(Total),
}

impl Shard {
    /// Once a second: adds to the sums of all shards, and tells them to those who subscribe.
    pub(crate) fn tell_sys(&mut self) {
        let (stats, accounts) = (self.stats(), self.accounts());
        let world = self.world.clone();
        self.added
            .update(&world.admission.totals, &stats, &accounts);
        let interval_s = world.settings.mqtt.sys_interval_s;
        if interval_s == 0 || self.home.is_none() {
            return;
        }
        let due = self.now.s >= self.sys_due_s;
        if due {
            self.sys_due_s = self.now.s + interval_s;
        }
        for (n, (name, says)) in TOPICS.iter().chain([&GAPS]).enumerate() {
            let (hash, home) = self.place_of(name.as_bytes());
            if home != self.lanes.me {
                continue;
            }
            let here = self.home.as_mut().expect("a home has one");
            let watched = here.is_watched(hash, name.as_bytes(), &self.matching);
            let bit = 1 << n;
            let was_watched = self.sys_watched & bit != 0;
            if !watched {
                if was_watched {
                    self.sys_watched &= !bit;
                    here.forget_retained(hash, name.as_bytes(), self.now);
                }
                continue;
            }
            if due || !was_watched {
                self.sys_watched |= bit;
                let text = self.says(*says);
                self.publish_sys(hash, name, &text);
            }
        }
    }

    fn says(&self, says: Says) -> String {
        let totals = &self.world.admission.totals;
        match says {
            Says::Version => String::from(concat!("crore version ", env!("CARGO_PKG_VERSION"))),
            Says::Uptime => format!("{} seconds", self.now.s),
            Says::Away => {
                let (all, connected) = (
                    totals.get(Total::Sessions),
                    totals.get(Total::ClientsConnected),
                );
                // The two are not counted at the same moment.
                format!("{}", all.saturating_sub(connected))
            }
            Says::Subscriptions => {
                format!(
                    "{}",
                    totals.get(Total::Subscriptions) + totals.get(Total::Filters)
                )
            }
            Says::Sum(total) => format!("{}", totals.get(total)),
        }
    }

    fn publish_sys(&mut self, hash: u32, name: &str, text: &str) {
        debug_assert!(topic::is_reserved(name.as_bytes()));
        let message = Publish {
            hash,
            name: name.as_bytes(),
            data: text.as_bytes(),
            content_type: b"",
            event: b"",
            key: b"",
            attributes: b"",
            qos: 0,
            retain: true,
            ttl_s: None,
            binary: false,
            idempotency_key: b"",
        };
        let world = self.world.clone();
        let here = self.home.as_mut().expect("a home has one");
        here.publish_once(
            &message,
            &world.settings,
            &world.rules,
            &self.matching,
            self.now,
            &mut self.lanes,
        );
    }
}
