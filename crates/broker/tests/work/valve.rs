//! Tests backpressure for slow carriers (shards with subscribers). When a carrier is far behind, the parties (addresses or users) that
//! caused it wait, and others continue to publish.

use std::net::{IpAddr, Ipv4Addr};

use crore_broker::TurnLimits;
use crore_broker::settings::Settings;
use crore_wire::mqtt::encode;
use crore_wire::mqtt::{PacketId, Properties, Qos, SubscribeOptions, Version};

use crate::support::{self, NOW, TestServer};
use crate::{batch, client_at};

const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
/// Maximum of turns (runs of the event loop) until a publish is answered.
const TURNS: usize = 6;

/// A server whose first shard is the only home (keeps all topics).
fn server(shards: u16) -> TestServer {
    let mut settings = Settings::default();
    settings.limits.topics_per_connection = 2_000;
    let turn_limits = TurnLimits {
        backpressure_turns: 8,
        visits_per_turn: 16,
        ..TurnLimits::default()
    };
    TestServer::new(&support::world(settings, shards, 1), turn_limits, NOW)
}

/// Number of turns of all shards until a publish of another client on this shard is answered.
fn turns_until_published(server: &mut TestServer, shard: usize) -> usize {
    let other = server.open_from(shard, OTHER);
    server.send(other, batch("{\"topic\":\"own\",\"data\":\"y\"}\n"));
    let waits = |_: &usize| {
        for shard in 0..server.shards.len() {
            server.flush(shard);
            server.deliver_mail(shard);
        }
        server.received(other).is_empty()
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
fn clients_that_subscribe_and_unsubscribe_all_the_time_delay_no_publish_of_others() {
    for shards in [1, 2] {
        let mut server = server(shards);
        let filters: Vec<String> = (0..20).map(|n| format!("evil/{n}/+")).collect();
        let crowd: Vec<usize> = (0..60)
            .map(|_| client_at(&mut server, 0, std::iter::empty(), Qos::AtMostOnce))
            .collect();
        for conn in crowd {
            server.send(conn, churn(&filters, 40));
        }
        for _ in 0..20 {
            server.flush(0);
            server.deliver_mail(0);
        }
        for shard in 0..usize::from(shards) {
            let turns = turns_until_published(&mut server, shard);
            assert!(turns <= TURNS, "{turns} turns at shard {shard} of {shards}");
        }
        assert!(server.flush(0), "the crowd is not done");
        server.settle();
    }
}

/// The subscribers are at a carrier that is slower than the home.
#[test]
fn publisher_with_a_wide_fan_out_waits_while_others_publish() {
    for (shards, carrier) in [(1, 0), (2, 1)] {
        let mut server = server(shards);
        for _ in 0..300 {
            let conn = server.open(carrier);
            server.send(
                conn,
                "GET /sub/wide HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n",
            );
        }
        server.settle();
        let mut publishers: Vec<usize> = Vec::new();
        let is_served = |server: &TestServer, conn: usize| !server.received(conn).is_empty();
        while publishers
            .last()
            .is_none_or(|last| is_served(&server, *last))
        {
            assert!(publishers.len() < 40, "the publisher waits itself");
            let conn = server.open(0);
            server.send(conn, batch("{\"topic\":\"wide\",\"data\":\"x\"}\n"));
            server.flush(0);
            publishers.push(conn);
        }
        for shard in 0..usize::from(shards) {
            let turns = turns_until_published(&mut server, shard);
            assert!(turns <= TURNS, "{turns} turns at shard {shard} of {shards}");
        }
        server.settle();
        assert!(publishers.iter().all(|conn| is_served(&server, *conn)));
    }
}
