//! Tests backpressure: when carriers (shards with subscribers) are far behind, the parties (addresses or users) that caused it wait, and
//! others continue to publish.

use std::net::{IpAddr, Ipv4Addr};

use crore_broker::TurnLimits;
use crore_broker::settings::Settings;
use crore_wire::mqtt::encode;
use crore_wire::mqtt::{PacketId, Properties, Qos, SubscribeOptions, Version};

use crate::support::{self, NOW, Town};
use crate::{batch, client_at};

const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
/// Maximum of turns (runs of the event loop) until a publish is answered.
const TURNS: usize = 6;

/// A server whose first shard is the only home (keeps all topics).
fn town(shards: u16) -> Town {
    let mut settings = Settings::default();
    settings.limits.topics_per_connection = 2_000;
    let turn_limits = TurnLimits {
        turns_under_way: 8,
        visits_per_turn: 16,
        ..TurnLimits::default()
    };
    Town::new(&support::world(settings, shards, 1), turn_limits, NOW)
}

/// Number of turns of all shards until a publish of another client on this shard is answered.
fn turns_until_published(town: &mut Town, shard: usize) -> usize {
    let other = town.open_from(shard, OTHER);
    town.say(other, batch("{\"topic\":\"own\",\"data\":\"y\"}\n"));
    let waits = |_: &usize| {
        for shard in 0..town.shards.len() {
            town.flush(shard);
            town.carry(shard);
        }
        town.received(other).is_empty()
    };
    (1..5_000).take_while(waits).count() + 1
}

/// Packets that subscribe to these filters and unsubscribe, repeatedly.
fn churn(filters: &[String], times: u16) -> Vec<u8> {
    let mut bytes = Vec::new();
    let filters: Vec<&str> = filters.iter().map(String::as_str).collect();
    for n in 0..times {
        let id = |n| PacketId::new(n).expect("not 0");
        let all = filters
            .iter()
            .map(|it| (*it, SubscribeOptions::of(Qos::AtMostOnce)));
        encode::subscribe(
            &mut bytes,
            Version::V5,
            id(2 * n + 100),
            &Properties::NONE,
            all,
        );
        encode::unsubscribe(
            &mut bytes,
            Version::V5,
            id(2 * n + 101),
            &Properties::NONE,
            filters.iter().copied(),
        );
    }
    bytes
}

#[test]
fn a_crowd_that_subscribes_and_unsubscribes_holds_up_no_publish_of_others() {
    for shards in [1, 2] {
        let mut town = town(shards);
        let filters: Vec<String> = (0..20).map(|n| format!("evil/{n}/+")).collect();
        let crowd: Vec<usize> = (0..60)
            .map(|_| client_at(&mut town, 0, std::iter::empty(), Qos::AtMostOnce))
            .collect();
        for conn in crowd {
            town.say(conn, churn(&filters, 40));
        }
        for _ in 0..20 {
            town.flush(0);
            town.carry(0);
        }
        for shard in 0..usize::from(shards) {
            let turns = turns_until_published(&mut town, shard);
            assert!(turns <= TURNS, "{turns} turns at shard {shard} of {shards}");
        }
        assert!(town.flush(0), "the crowd is not done");
        town.settle();
    }
}

/// The subscribers are at a carrier that is slower than the home.
#[test]
fn a_publisher_with_a_wide_fan_out_waits_itself_and_others_publish() {
    for (shards, carrier) in [(1, 0), (2, 1)] {
        let mut town = town(shards);
        for _ in 0..300 {
            let conn = town.open(carrier);
            town.say(
                conn,
                "GET /sub/wide HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n",
            );
        }
        town.settle();
        let mut publishers: Vec<usize> = Vec::new();
        let is_served = |town: &Town, conn: usize| !town.received(conn).is_empty();
        while publishers.last().is_none_or(|last| is_served(&town, *last)) {
            assert!(publishers.len() < 40, "the publisher waits itself");
            let conn = town.open(0);
            town.say(conn, batch("{\"topic\":\"wide\",\"data\":\"x\"}\n"));
            town.flush(0);
            publishers.push(conn);
        }
        for shard in 0..usize::from(shards) {
            let turns = turns_until_published(&mut town, shard);
            assert!(turns <= TURNS, "{turns} turns at shard {shard} of {shards}");
        }
        town.settle();
        assert!(publishers.iter().all(|conn| is_served(&town, *conn)));
    }
}
