//! Tests the circular walk over the members of a topic. A fan-out that needs many turns (runs of the event loop) is one walk, and new messages join it, so
//! that a busy topic needs fewer writes. Each member must receive each message once and in order, even if others join, leave or fall behind.

use super::*;

/// Turns that visit few members, so that each fan-out takes many turns.
fn slow_pace() -> TurnLimits {
    TurnLimits {
        visits_per_turn: 8,
        page_messages: 3,
        ..TurnLimits::default()
    }
}

/// Publishes messages to this number of subscribers, with at most `most` messages in flight.
fn publish_all(server: &mut TestServer, subscribers: usize, messages: usize, most: usize) {
    let (mut published, mut done) = (0, 0);
    while done < messages {
        while published < messages && published - done < most {
            server.publish([("t", published.to_string())]);
            published += 1;
        }
        server.end_turn();
        done = server.stats().delivered as usize / subscribers;
    }
}

/// The numbers of the messages in the received frames.
fn numbers(bytes: &[u8]) -> Vec<u32> {
    let (mut rest, mut all) = (bytes, Vec::new());
    while let [_, len, more @ ..] = rest {
        let (data, behind) = more.split_at(usize::from(*len));
        let text = std::str::from_utf8(data).expect("text");
        all.push(text.trim_start_matches('x').parse().expect("a number"));
        rest = behind;
    }
    all
}

#[test]
fn subscriber_of_a_busy_topic_gets_many_messages_in_one_write() {
    const SUBSCRIBERS: usize = 1_000;
    const MESSAGES: usize = 64;
    for (kind, query, most, together) in [
        (Kind::Plain, "topic=t", 1, 1),
        (Kind::Plain, "topic=t", 4, 2),
        (Kind::Plain, "topic=t", 16, 4),
        (Kind::Plain, "topic=t", 64, 16),
        (Kind::Sse, "topic=t", 16, 4),
        (Kind::Plain, "topic=t&topic=other", 16, 4),
        (Kind::Plain, "filter=%2B", 16, 4),
        (Kind::Plain, "filter=%2B&filter=%23", 64, 16),
        (Kind::Sse, "filter=%23", 16, 4),
    ] {
        let mut server = wide();
        for _ in 0..SUBSCRIBERS {
            server.ask_for(kind, query);
        }
        server.settle();
        server.io().sends = 0;
        publish_all(&mut server, SUBSCRIBERS, MESSAGES, most);
        // The writes to the subscribers, without the answers to the publisher.
        let writes = server.io().sends - MESSAGES;
        assert!(
            writes * together <= SUBSCRIBERS * MESSAGES,
            "{kind:?} {query}, {most} under way: {writes} writes"
        );
        server.settle();
        assert_eq!(server.stats().delivered, (SUBSCRIBERS * MESSAGES) as u64);
    }
}

/// The members of a walk get the same bytes as a single subscriber, in each encoding, although the messages are copied for the walk.
#[test]
fn messages_of_a_long_fan_out_have_the_same_bytes_as_those_of_a_short_one() {
    const DEFLATE: &str = "Host: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
        Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\
        Sec-WebSocket-Extensions: permessage-deflate\r\n\r\n";
    let received = |crowd: usize| {
        let mut server =
            TestServer::new(rule(), |limits| limits.message_bytes = 1 << 20, slow_pace());
        for _ in 0..crowd {
            server.subscribe(Kind::Plain, "t");
        }
        let mut links: Vec<usize> = KINDS.map(|kind| server.subscribe(kind, "t")).into();
        links.push(server.subscribe(Kind::Sse, "t&topic=other"));
        links.push(server.connect_and_send(format!("GET /sub/t HTTP/1.1\r\n{DEFLATE}")));
        server.settle();
        for n in 0..40 {
            // Some messages are large, and all can be compressed.
            let bytes = if n % 9 == 0 { 20_000 } else { 300 };
            server.publish([("t", format!("{n}{}", "x".repeat(bytes)))]);
            server.end_turn();
        }
        server.settle();
        let all = links.iter().map(|link| server.received(*link).to_vec());
        all.collect::<Vec<_>>()
    };
    assert!(received(0) == received(100), "the same bytes");
}

/// The places of members that have left are freed, even if the topic always has messages in flight.
#[test]
fn walk_that_never_ends_frees_the_entries_of_members_that_left() {
    let mut server = TestServer::new(rule(), |_| {}, slow_pace());
    let links: Vec<usize> = (0..400)
        .map(|_| server.subscribe(Kind::Plain, "t"))
        .collect();
    // Each turn leaves messages in flight.
    let turn = |server: &mut TestServer, data: String| {
        server.publish([("t", data)]);
        server.end_turn();
    };
    for n in 0..5 {
        turn(&mut server, n.to_string());
    }
    for link in &links[4..] {
        server.cut(*link);
    }
    for n in 0..200 {
        turn(&mut server, n.to_string());
    }
    turn(&mut server, "last".into());
    turn(&mut server, "more".into());
    for link in &links[..4] {
        assert!(
            server.take_received(*link).contains("last"),
            "eight visits are enough"
        );
    }
}

#[derive(Clone, Debug)]
enum Move {
    Publish(usize),
    Turn,
    Join,
    Leave(prop::sample::Index),
    /// The socket accepts this many further bytes.
    Window(prop::sample::Index, usize),
    Open(prop::sample::Index),
}

fn moves() -> impl Strategy<Value = Vec<Move>> {
    let any = any::<prop::sample::Index>;
    let one = prop_oneof![
        4 => (1..4_usize).prop_map(Move::Publish),
        6 => Just(Move::Turn),
        1 => Just(Move::Join),
        2 => any().prop_map(Move::Leave),
        1 => (any(), 0..40_usize).prop_map(|(who, bytes)| Move::Window(who, bytes)),
        1 => any().prop_map(Move::Open),
    ];
    prop::collection::vec(one, 0..120)
}

proptest! {
    #[test]
    fn each_member_gets_every_message_once_in_order_while_others_come_go_and_fall_behind(
        moves in moves(),
        crowd in 1..80_usize,
        outbox_messages in 1..4_u32,
        query in prop::sample::select(vec!["topic=t", "filter=%2B", "filter=%23&filter=t"]),
    ) {
        let rule = Rule { outbox_messages, ..rule() };
        let mut server = TestServer::new(rule, |_| {}, slow_pace());
        let mut links: Vec<usize> = (0..crowd).map(|_| server.subscribe_to(Kind::Plain, query)).collect();
        let begun = links.clone();
        let mut newcomers = Vec::new();
        let mut next = 0..;
        for one in moves {
            match one {
                Move::Publish(count) => {
                    for n in next.by_ref().take(count) {
                        server.publish([("t", format!("{}{n}", "x".repeat(n as usize % 5)))]);
                    }
                }
                Move::Turn => server.end_turn(),
                Move::Join => newcomers.push(server.ask_for(Kind::Plain, query)),
                Move::Leave(who) if links.len() > 1 => {
                    server.cut(links.swap_remove(who.index(links.len())));
                }
                Move::Window(who, bytes) => server.set_window(links[who.index(links.len())], Some(bytes)),
                Move::Open(who) => server.set_window(links[who.index(links.len())], None),
                Move::Leave(_) => {}
            }
        }
        for link in &links {
            server.set_window(*link, None);
        }
        server.settle();
        let all: Vec<u32> = (0..next.start).collect();
        for link in &links {
            prop_assert_eq!(&numbers(server.received(*link)), &all, "one of {}", begun.len());
        }
        for link in newcomers {
            let text = server.received(link);
            let head = text.windows(4).position(|four| four == b"\r\n\r\n");
            let received_numbers = numbers(&text[head.expect("it was upgraded") + 4..]);
            prop_assert_eq!(&all[all.len() - received_numbers.len()..], &received_numbers[..], "all from where it came");
        }
        prop_assert_eq!(server.accounts().deliveries, 0);
        prop_assert_eq!(server.accounts().outboxes, 0);
    }
}
