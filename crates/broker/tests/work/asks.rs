//! Tests a client that sends more requests than the homes (the parts of shards that keep topics) can answer at once. The client waits for the answers.
//! Meanwhile the homes answer other clients before the rest of its requests.

use crore_broker::TurnLimits;
use crore_broker::settings::Settings;
use crore_wire::mqtt::encode;
use crore_wire::mqtt::{PacketId, Properties, Qos, RetainHandling, SubscribeOptions, Version};

use crate::support::{self, NOW, TestServer};
use crate::{TURN_STEPS, batch, client, server};

/// Number of filters in a packet, and of packets in one read.
const FILTERS: usize = 1_000;
const PACKETS: u16 = 20;
/// Maximum of turns (runs of the event loop) until another client's request is answered.
const TURNS: usize = 4;

/// Packets that subscribe to the same filter repeatedly, with QoS 1 and 0 in turn.
fn changes(filter: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    for id in 0..PACKETS {
        let filters = (0..FILTERS).map(|n| {
            let qos = [Qos::AtLeastOnce, Qos::AtMostOnce][n % 2];
            let mut options = SubscribeOptions::of(qos);
            options.retain_handling = RetainHandling::DoNotSend;
            (filter, options)
        });
        let id = PacketId::new(100 + id).expect("not 0");
        encode::subscribe(&mut bytes, Version::V5, id, &Properties::NONE, filters);
    }
    bytes
}

#[test]
fn client_that_changes_its_subscription_all_the_time_delays_no_request_of_others() {
    for filter in ["+/a", "a"] {
        let mut server = server(Settings::default());
        let conn = client(
            &mut server,
            [filter.to_owned()].into_iter(),
            Qos::AtMostOnce,
        );
        let before = server.received(conn).len();
        server.send(conn, changes(filter));
        let other = server.open(0);
        server.send(other, "GET /pub/none HTTP/1.1\r\nHost: localhost\r\n\r\n");
        let waits = |_: &usize| {
            server.flush(0);
            server.received(other).is_empty()
        };
        let turns = (1..1_000).take_while(waits).count() + 1;
        assert!(turns <= TURNS, "{turns} turns with {filter}");
        server.settle();
        // The SUBACKs have a code for each filter.
        let answers = server.received(conn).len() - before;
        assert!(answers > FILTERS * usize::from(PACKETS), "{answers} bytes");
    }
}

/// A shard that wakes often sends many mails (messages between shards) during one turn of a home. The home must handle all of them in its next turn, and
/// not one in each turn.
#[test]
fn many_mails_of_a_shard_are_handled_in_one_turn_of_the_home() {
    const MAILS: usize = 100;
    let turn_limits = TurnLimits {
        steps_per_turn: TURN_STEPS,
        publish_credit_bytes: 16,
        ..TurnLimits::default()
    };
    let mut server = TestServer::new(&support::world(Settings::default(), 2, 1), turn_limits, NOW);
    let publisher = server.open(1);
    let kept = |n| format!("{{\"topic\":\"kept/{n}\",\"data\":\"x\"}}\n");
    server.send(publisher, batch(&(0..2_000).map(kept).collect::<String>()));
    server.settle();
    // Subscribers from the oldest message keep the home busy all the time.
    for _ in 0..100 {
        let conn = server.open(0);
        server.send(conn, "GET /sub?filter=kept/%23&since=oldest HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n");
    }
    let line = "{\"topic\":\"own\",\"data\":\"x\"}\n";
    server.send(publisher, batch(&line.repeat(2 * TURN_STEPS as usize)));
    server.settle_one(1);
    let mut last = publisher;
    for _ in 0..MAILS {
        last = server.open(1);
        server.send(last, batch(line));
        server.settle_one(1);
    }
    server.deliver_mail(0);
    let waits = |_: &usize| {
        server.flush(0);
        server.deliver_mail(1);
        server.flush(1);
        server.received(last).is_empty()
    };
    let turns = (1..1_000).take_while(waits).count() + 1;
    assert!(turns <= 40, "{turns} turns");
    assert!(server.flush(0), "the subscribers have everything");
}
