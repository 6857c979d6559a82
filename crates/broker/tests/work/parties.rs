//! Tests that a home (the part of a shard that keeps topics) divides its reads fairly among parties: the addresses or users that cause work. A client with
//! very many groups or followers gets one share. So other clients need not wait until all of its pages are read.

use std::net::{IpAddr, Ipv4Addr};

use crore_broker::TurnLimits;
use crore_broker::settings::Settings;

use crate::support::{self, NOW, TestServer};
use crate::{TURN_STEPS, batch, member, member_at, payloads};

const PARTITIONS: u16 = 16;
const OTHER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
/// Maximum of turns (runs of the event loop) until a subscriber by filter has a page of each partition while one other client reads. Both
/// get equal shares.
const TURNS: usize = 2;

/// A server with one home whose partitions all have messages.
fn server() -> TestServer {
    let mut settings = Settings::default();
    settings.limits.topics_per_connection = 2_000;
    let turn_limits = TurnLimits {
        steps_per_turn: TURN_STEPS,
        interest_page_topics: 64,
        ..TurnLimits::default()
    };
    let world = support::partitioned(settings, 1, 1, PARTITIONS);
    let mut server = TestServer::new(&world, turn_limits, NOW);
    let publisher = server.open(0);
    let line = |n| format!("{{\"topic\":\"own/{n}\",\"data\":\"x\"}}\n");
    server.send(publisher, batch(&(0..2_000).map(line).collect::<String>()));
    server.settle();
    server
}

/// Number of turns until a client of another address has received all that it requested.
fn turns_until_served(server: &mut TestServer) -> usize {
    let conn = server.open_from(0, OTHER);
    server.send(
        conn,
        "GET /sub?filter=own/%23 HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n",
    );
    let served = |server: &TestServer| server.received(conn).starts_with(b"HTTP/1.1 200 ");
    let turn = |_: &usize| {
        server.flush(0);
        !served(server)
    };
    (1..10_000).take_while(turn).count() + 1
}

#[test]
fn groups_of_one_client_share_one_part_of_the_pages() {
    let mut server = server();
    member(&mut server, 2_000);
    let publisher = server.open(0);
    server.send(
        publisher,
        batch(&"{\"topic\":\"t\",\"data\":\"x\"}\n".repeat(20)),
    );
    let turns = turns_until_served(&mut server);
    assert!(turns <= TURNS, "{turns} turns");
    assert!(server.flush(0), "the groups are not done");
}

#[test]
fn followers_of_one_client_share_one_part_of_the_pages() {
    let mut server = server();
    for _ in 0..60 {
        let conn = server.open(0);
        server.send(
            conn,
            "GET /interest HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n",
        );
    }
    let turns = turns_until_served(&mut server);
    assert!(turns <= TURNS, "{turns} turns");
}

#[test]
fn messages_for_groups_delay_no_message_of_others() {
    const GROUPS: usize = 200;
    let turn_limits = TurnLimits {
        visits_per_turn: 8,
        ..TurnLimits::default()
    };
    let mut settings = Settings::default();
    settings.limits.topics_per_connection = 2_000;
    let mut server = TestServer::new(&support::world(settings, 1, 1), turn_limits, NOW);
    let crowd = member(&mut server, GROUPS);
    let other = server.open_from(0, OTHER);
    server.send(
        other,
        "GET /sub/own HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n",
    );
    server.settle();
    let (publisher, before) = (server.open(0), server.received(other).len());
    server.send(
        publisher,
        batch(&"{\"topic\":\"t\",\"data\":\"x\"}\n".repeat(3)),
    );
    server.flush(0);
    server.send(publisher, batch("{\"topic\":\"own\",\"data\":\"y\"}\n"));
    let waits = |_: &usize| {
        server.flush(0);
        server.received(other).len() == before
    };
    let turns = (1..1_000).take_while(waits).count() + 1;
    assert!(turns <= 4, "{turns} turns");
    server.settle();
    assert_eq!(payloads(&server, crowd).len(), 3 * GROUPS);
}

/// The members' shard is slower than the home, so messages are in flight all the time.
#[test]
fn messages_for_groups_delay_no_publisher() {
    const GROUPS: usize = 1_000;
    const MESSAGES: usize = 20;
    let turn_limits = TurnLimits {
        visits_per_turn: 8,
        ..TurnLimits::default()
    };
    let mut settings = Settings::default();
    settings.limits.topics_per_connection = 2_000;
    let mut server = TestServer::new(&support::world(settings, 2, 1), turn_limits, NOW);
    let crowd = member_at(&mut server, 1, GROUPS);
    let publisher = server.open(0);
    let line = "{\"topic\":\"t\",\"data\":\"x\"}\n";
    for _ in 0..MESSAGES {
        server.send(publisher, batch(line));
        server.flush(0);
    }
    for _ in 0..1_000 {
        server.flush(0);
    }
    let before = server.received(publisher).len();
    server.send(publisher, batch("{\"topic\":\"own\",\"data\":\"y\"}\n"));
    server.settle_one(0);
    assert!(
        server.received(publisher).len() > before,
        "it waits for the members"
    );
    server.settle();
    assert_eq!(payloads(&server, crowd).len(), MESSAGES * GROUPS);
}

/// Number of turns until a client of another address gets a small page, while a crowd requests this target, which begins with a large
/// message.
fn turns_beside_large_pages(target: &str) -> usize {
    const CROWD: u8 = 20;
    const LARGE: usize = 128 << 10;
    let world = support::world(Settings::default(), 1, 1);
    let mut server = TestServer::new(&world, TurnLimits::default(), NOW);
    let publisher = server.open(0);
    let publish = |topic: &str, bytes: usize| {
        let body = "\u{1}".repeat(bytes);
        format!(
            "POST /pub/{topic} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {bytes}\r\n\r\n{body}"
        )
    };
    server.send(publisher, publish("large", LARGE));
    server.settle();
    server.send(publisher, publish("small", 1));
    server.settle();
    let subscribe = |target: &str| {
        format!("GET /sub{target} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
    };
    let mut crowd = Vec::new();
    for address in 0..CROWD {
        let conn = server.open_from(0, IpAddr::V4(Ipv4Addr::new(10, 0, 1, address)));
        server.send(conn, subscribe(target));
        crowd.push(conn);
    }
    let conn = server.open_from(0, OTHER);
    server.send(conn, subscribe("/small?since=oldest"));
    let waits = |_: &usize| {
        server.flush(0);
        let received = server.received(conn);
        !received.windows(8).any(|line| line == b"data: \x01\n")
    };
    let turns = (1..1_000).take_while(waits).count() + 1;
    assert!(server.flush(0), "the crowd is not served yet");
    server.settle();
    let is_served = |conn: &usize| server.received(*conn).len() > LARGE;
    assert!(crowd.iter().all(is_served), "each of the crowd is served");
    turns
}

#[test]
fn small_page_overtakes_large_pages_of_other_clients() {
    for target in [
        "/large?since=oldest&envelope=json",
        "?filter=large/%23&since=oldest&envelope=json",
    ] {
        let turns = turns_beside_large_pages(target);
        assert!(turns <= 6, "{target}: {turns} turns");
    }
}

/// Number of turns until another client's message arrives. Before it, large ones are sent to a crowd that requests this target and reads
/// nothing.
fn turns_behind_large_messages(target: &str) -> usize {
    const CROWD: usize = 30;
    const MESSAGES: usize = 5;
    const LARGE: usize = 128 << 10;
    let mut server = TestServer::new(
        &support::world(Settings::default(), 1, 1),
        TurnLimits::default(),
        NOW,
    );
    let subscribe = |target: &str| {
        format!("GET /sub{target} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
    };
    let publish = |topic: &str, bytes: usize| {
        let body = "x".repeat(bytes);
        format!(
            "POST /pub/{topic} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {bytes}\r\n\r\n{body}"
        )
    };
    let publisher = server.open(0);
    for _ in 0..CROWD {
        let conn = server.open(0);
        server.send(conn, subscribe(target));
        server.settle();
        server.set_window(conn, 0);
    }
    server.send(publisher, publish("large", 1));
    let other = server.open_from(0, OTHER);
    server.send(other, subscribe("/small"));
    server.settle();
    for _ in 0..MESSAGES {
        server.send(publisher, publish("large", LARGE));
    }
    server.flush(0);
    server.send(publisher, publish("small", 1));
    let waits = |_: &usize| {
        server.flush(0);
        let received = server.received(other);
        !received.windows(8).any(|line| line == b"data: x\n")
    };
    (1..1_000).take_while(waits).count() + 1
}

#[test]
fn large_messages_cost_no_visits_of_full_sockets() {
    for target in ["/large", "?filter=large/%23"] {
        let turns = turns_behind_large_messages(target);
        assert!(turns <= 8, "{target}: {turns} turns");
    }
}
