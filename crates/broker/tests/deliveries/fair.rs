//! Tests that a fan-out of many turns (runs of the event loop) delays nothing else. Answers, messages of other topics and first pages
//! (past messages) of new subscribers overtake it. Messages of its own topic stay in order.

use crore_wire::mqtt::Qos;

use super::raised::{connect, subscribe};
use super::*;

const VISITS: u32 = 4;
const CROWD: usize = 60;
const LARGE_BYTES: usize = 300_000;
/// Maximum of turns that other work may take during a fan-out. Each turn reserves a part of its deliveries for other work.
const TURNS: usize = 6;

fn server() -> TestServer {
    let turn_limits = TurnLimits {
        visits_per_turn: VISITS,
        ..TurnLimits::default()
    };
    TestServer::new(rule(), |limits| limits.message_bytes = 1 << 20, turn_limits)
}

/// A crowd with this subscription, and a fan-out to it that has begun.
fn under_way(query: &str, topic: &str) -> (TestServer, Vec<usize>) {
    let mut server = server();
    let crowd: Vec<usize> = (0..CROWD)
        .map(|_| server.subscribe_to(Kind::Plain, query))
        .collect();
    server.publish([(topic, "long".into())]);
    server.end_turn();
    server.end_turn();
    assert!(server.accounts().deliveries > 0);
    (server, crowd)
}

/// Number of turns until this connection receives something.
fn turns_until_served(server: &mut TestServer, link: usize) -> usize {
    let served = |turn: &usize| {
        server.end_turn();
        *turn > 10 * CROWD || !server.received(link).is_empty()
    };
    (1..).find(served).unwrap_or_default()
}

#[test]
fn answers_overtake_a_fan_out() {
    for query in ["topic=long", "filter=long/%23", "filter=%23"] {
        let (mut server, crowd) = under_way(query, "long");
        for request in [
            "GET /pub/none HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "PUT /pub/made HTTP/1.1\r\nHost: localhost\r\n\r\n",
            "DELETE /pub/made HTTP/1.1\r\nHost: localhost\r\n\r\n",
        ] {
            let link = server.connect_and_send(request);
            let turns = turns_until_served(&mut server, link);
            assert!(turns <= TURNS, "{query}: {request} took {turns}");
        }
        assert!(server.accounts().deliveries > 0, "{query}");
        server.settle();
        for link in crowd {
            assert_eq!(server.received(link), frame("long"), "{query}");
        }
    }
}

#[test]
fn messages_and_pages_of_other_topics_overtake_a_fan_out() {
    let mut server = server();
    let other = server.subscribe(Kind::Plain, "other");
    let crowd: Vec<usize> = (0..CROWD)
        .map(|_| server.subscribe(Kind::Plain, "long"))
        .collect();
    server.publish([("long", "one".into()), ("old", "kept".into())]);
    server.end_turn();
    server.publish([("long", "two".into()), ("other", "short".into())]);
    let turns = turns_until_served(&mut server, other);
    assert!(turns <= TURNS, "{turns}");
    let reader =
        server.connect_and_send("GET /sub/old?since=0 HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let turns = turns_until_served(&mut server, reader);
    assert!(turns <= TURNS, "{turns}");
    assert!(server.accounts().deliveries > 0);
    server.settle();
    assert_eq!(server.received(other), frame("short"));
    for link in crowd {
        assert_eq!(server.received(link), [frame("one"), frame("two")].concat());
    }
}

/// This holds even if both messages arrive in one turn, and if a page for a subscriber by filter arrives meanwhile.
#[test]
fn messages_and_pages_for_filters_pass_the_fan_out_of_a_topic_that_they_do_not_match() {
    let mut server = server();
    let [first, second] =
        ["a", "b"].map(|at| server.subscribe_to(Kind::Plain, &format!("filter=other/{at}/%23")));
    let crowd: Vec<usize> = (0..CROWD)
        .map(|_| server.subscribe(Kind::Plain, "long"))
        .collect();
    for (subscriber, topic, data) in [(first, "other/a", "one"), (second, "other/b", "two")] {
        server.publish([("long", data.into()), (topic, data.into())]);
        let turns = turns_until_served(&mut server, subscriber);
        assert!(turns <= TURNS, "{data}: {turns}");
        assert_eq!(server.received(subscriber), frame(data));
    }
    let target = "/sub?filter=other/%23&since=oldest";
    let reader =
        server.connect_and_send(format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
    let turns = turns_until_served(&mut server, reader);
    assert!(turns <= TURNS, "{turns}");
    assert!(server.accounts().deliveries > 0);
    server.settle();
    for link in crowd {
        assert_eq!(server.received(link), [frame("one"), frame("two")].concat());
    }
}

/// Messages wait for the fan-out of their topic if a page has put them into an order. This holds even if the reader of that page
/// disconnects before they are delivered.
#[test]
fn ordered_messages_wait_for_the_fan_out_of_their_topic_after_a_reader_left() {
    for turns in 0..4 * CROWD {
        let mut server = server();
        let crowd: Vec<usize> = (0..CROWD)
            .map(|_| server.subscribe(Kind::Plain, "long"))
            .collect();
        let readers = ["a", "b"].map(|name| {
            let link = server.connect_and_send(connect(name));
            server.send(link, subscribe(1, "long", Qos::AtMostOnce));
            server.settle();
            link
        });
        let mut said = 0..;
        let mut speak = |server: &mut TestServer, times: usize| {
            for n in said.by_ref().take(times) {
                server.publish([("long", n.to_string())]);
                server.end_turn();
            }
        };
        speak(&mut server, 2);
        for reader in readers {
            server.send(reader, subscribe(2, "other/#", Qos::AtMostOnce));
            speak(&mut server, 3);
        }
        for _ in 0..turns {
            server.end_turn();
        }
        server.cut(readers[1]);
        server.settle();
        let all: Vec<u8> = (0..8).flat_map(|n| frame(&n.to_string())).collect();
        for link in crowd {
            assert_eq!(server.received(link), all, "{turns}");
        }
    }
}

#[test]
fn delete_of_a_topic_with_many_subscribers_follows_its_messages_and_delays_no_answer() {
    let (mut server, crowd) = under_way("topic=long", "long");
    server.connect_and_send("DELETE /pub/long HTTP/1.1\r\nHost: localhost\r\n\r\n");
    server.end_turn();
    let link = server.connect_and_send("GET /pub/none HTTP/1.1\r\nHost: localhost\r\n\r\n");
    assert!(turns_until_served(&mut server, link) <= TURNS);
    assert!(server.accounts().deliveries > 0);
    server.settle();
    for link in crowd {
        let received = server.received(link).to_vec();
        assert!(received.starts_with(&frame("long")) && received.len() > frame("long").len());
        assert!(!server.is_open(link));
    }
}

#[test]
fn large_messages_to_sockets_that_refuse_them_are_not_counted_as_written() {
    let mut server = TestServer::new(
        rule(),
        |limits| (limits.message_bytes, limits.outbox_bytes) = (1 << 20, 1 << 20),
        TurnLimits::default(),
    );
    let crowd: Vec<usize> = (0..CROWD)
        .map(|_| {
            let link = server.subscribe(Kind::Plain, "long");
            server.set_window(link, Some(0));
            link
        })
        .collect();
    let mut turns = [0; 2];
    for turns in &mut turns {
        server.publish([("long", "x".repeat(LARGE_BYTES))]);
        server.end_turn();
        while server.accounts().deliveries > 0 {
            server.end_turn();
            *turns += 1;
        }
    }
    assert!(turns[1] * 4 < turns[0], "{turns:?}");
    for link in crowd {
        server.set_window(link, None);
    }
}
