//! Tests filters of many levels: matching them, for publishes and for deliveries, counts as work.

use crore_broker::TurnLimits;
use crore_broker::settings::Settings;
use crore_wire::mqtt::{PacketId, Properties, Qos, SubscribeOptions, Version, encode};

use crate::support::{self, NOW, TestServer};
use crate::{TURN_STEPS, UNIT_STEPS, batch, client, server, steps_of, turns_until};

/// Filters of sixteen levels, each `a` or `+`, with at most three `+`: as many as the server accepts.
fn deep_filters() -> Vec<String> {
    let has_few_wildcards = |n: &u32| n.count_ones() <= 3;
    let level = |shape: u32, n: u32| if shape >> n & 1 == 1 { "+" } else { "a" };
    let filter = |shape| {
        (0..16)
            .map(|n| level(shape, n))
            .collect::<Vec<_>>()
            .join("/")
    };
    let mut shapes: Vec<u32> = (0..1_u32 << 16).filter(has_few_wildcards).collect();
    shapes.sort_by_key(|shape| shape.count_ones());
    shapes.into_iter().take(392).map(filter).collect()
}

#[test]
fn publish_costs_a_step_for_each_compared_filter() {
    const LINES: u64 = 100;
    let mut settings = Settings::default();
    settings.limits.head_bytes = 64 << 10;
    settings.limits.topics_per_connection = 1_000;
    let mut server = server(settings);
    for filters in deep_filters().chunks(98) {
        let conn = server.open(0);
        let query = filters.join("&filter=").replace('+', "%2B");
        server.send(conn, format!("GET /sub?filter={query} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"));
        server.settle();
        assert!(server.received(conn).starts_with(b"HTTP/1.1 200 "));
    }
    // The lines alternate between two topics, since the matches of the last topic are cached.
    let line = |n: usize| {
        let last = ["a", "b"][n % 2];
        let topic = format!("{}/{last}", ["a"; 15].join("/"));
        format!("{{\"topic\":\"{topic}\",\"data\":\"x\"}}\n")
    };
    let conn = server.open(0);
    let lines: String = (0..LINES as usize).map(line).collect();
    let steps = steps_of(&mut server, conn, batch(&lines));
    assert!(
        steps <= u64::from(TURN_STEPS) + UNIT_STEPS,
        "{steps} steps in an input"
    );
    let turns = turns_until(&mut server, LINES, 0) as u64;
    assert!(turns >= LINES / 10, "{turns} turns for {LINES} lines");
    server.settle();
}

/// A client may get a message by several filters, or by a filter and a subscription to the topic. The shard finds out which for each client.
#[test]
fn delivery_costs_a_step_for_each_matched_filter() {
    const CLIENTS: usize = 200;
    let mut server = server(Settings::default());
    let topic = ["a"; 16].join("/");
    let filters = deep_filters();
    for n in 0..CLIENTS {
        let own = (0..31).map(|at| filters[(31 * n + at) % filters.len()].clone());
        client(&mut server, own.chain([topic.clone()]), Qos::AtMostOnce);
    }
    let publisher = server.open(0);
    server.send(
        publisher,
        batch(&format!("{{\"topic\":\"{topic}\",\"data\":\"x\"}}\n")),
    );
    let before = server.shards[0].stats().delivered;
    let mut turns = 1;
    while server.flush(0) {
        turns += 1;
    }
    assert_eq!(server.shards[0].stats().delivered - before, CLIENTS as u64);
    assert!(turns >= 2, "{turns} turns");
}

/// More filters match than four turns (runs of the event loop) may visit. So each message is delivered on its own.
#[test]
fn message_to_few_clients_with_many_filters_needs_few_visits() {
    const CLIENTS: usize = 60;
    const MESSAGES: usize = 10;
    let mut server = server(Settings::default());
    let topic = ["a"; 16].join("/");
    let filters = deep_filters();
    for n in 0..CLIENTS {
        let own = (0..32).map(|at| filters[(CLIENTS * at + n) % filters.len()].clone());
        client(&mut server, own, Qos::AtMostOnce);
    }
    let publisher = server.open(0);
    let line = format!("{{\"topic\":\"{topic}\",\"data\":\"x\"}}\n");
    let before = server.shards[0].stats().delivered;
    server.send(publisher, batch(&line.repeat(MESSAGES)));
    let mut turns = 1;
    while server.flush(0) {
        turns += 1;
    }
    let delivered = server.shards[0].stats().delivered - before;
    assert_eq!(delivered, (CLIENTS * MESSAGES) as u64);
    assert!(turns <= MESSAGES, "{turns} turns");
}

/// A turn that may visit few clients may also examine only few members of the filters.
#[test]
fn skipped_members_of_filters_count_in_the_budget() {
    let turn_limits = TurnLimits {
        visits_per_turn: 8,
        ..TurnLimits::default()
    };
    let mut server = TestServer::new(&support::world(Settings::default(), 1, 1), turn_limits, NOW);
    let filters = [
        "+/b/c", "a/+/c", "a/b/+", "+/+/c", "+/b/+", "a/+/+", "+/+/+", "#", "a/#", "+/#", "a/b/#",
        "+/b/#", "a/+/#", "+/+/#", "a/b/c/#",
    ];
    for _ in 0..20 {
        let own = filters.map(String::from).into_iter();
        client(&mut server, own, Qos::AtMostOnce);
    }
    let publisher = server.open(0);
    let before = server.shards[0].stats().delivered;
    server.send(publisher, batch("{\"topic\":\"a/b/c\",\"data\":\"x\"}\n"));
    let mut turns = 1;
    while server.flush(0) {
        turns += 1;
    }
    assert_eq!(server.shards[0].stats().delivered - before, 20);
    assert!(turns >= 8, "{turns} turns for 300 members");
}

/// Subscribes to one more filter. Returns the steps.
fn subscribe(server: &mut TestServer, conn: usize, n: usize) -> u64 {
    let (filter, id) = (format!("a/{n}/+"), PacketId::new(9).expect("not 0"));
    let filters = [(&filter[..], SubscribeOptions::of(Qos::AtMostOnce))];
    let mut bytes = Vec::new();
    encode::subscribe(
        &mut bytes,
        Version::V5,
        id,
        &Properties::NONE,
        filters.into_iter(),
    );
    let before = server.shards[0].steps();
    server.send(conn, bytes);
    server.settle();
    server.shards[0].steps() - before
}

#[test]
fn further_filter_is_subscribed_in_few_steps() {
    const FILTERS: usize = 2_000;
    let mut server = server(Settings::default());
    let conn = client(
        &mut server,
        (0..FILTERS).map(|n| format!("a/{n}/+")),
        Qos::AtMostOnce,
    );
    // A few filters are always allowed. The first one beyond them may count all names, so the next one is measured.
    subscribe(&mut server, conn, FILTERS);
    let steps = subscribe(&mut server, conn, FILTERS + 1);
    assert!(steps < FILTERS as u64 / 2, "{steps} steps");
}

/// Sends a packet. Returns the last reason code of the answer.
fn reason_of(server: &mut TestServer, conn: usize, packet: &[u8]) -> u8 {
    server.send(conn, packet);
    server.settle();
    *server.received(conn).last().expect("an answer")
}

#[test]
fn ended_subscription_makes_room_for_another_one_at_the_limit_of_names() {
    let mut server = server(Settings::default());
    let conn = client(&mut server, core::iter::empty(), Qos::AtMostOnce);
    let id = PacketId::new(9).expect("not 0");
    let filter = |n: usize| format!("{}/{n:04}/+", "a".repeat(200));
    let subscribe = |server: &mut TestServer, n: usize| {
        let (filter, mut bytes) = (filter(n), Vec::new());
        let filters = [(&filter[..], SubscribeOptions::of(Qos::AtMostOnce))];
        let (version, none) = (Version::V5, Properties::NONE);
        encode::subscribe(&mut bytes, version, id, &none, filters.into_iter());
        reason_of(server, conn, &bytes)
    };
    let room = (0..2_000).find(|n| subscribe(&mut server, *n) >= 0x80);
    let room = room.expect("a limit");
    assert!(room > 200, "{room} filters");
    for n in [room, room + 1] {
        assert!(subscribe(&mut server, n) >= 0x80);
    }
    let (first, mut bytes) = (filter(0), Vec::new());
    let (version, none) = (Version::V5, Properties::NONE);
    encode::unsubscribe(&mut bytes, version, id, &none, [&first[..]].into_iter());
    assert_eq!(reason_of(&mut server, conn, &bytes), 0);
    assert_eq!(subscribe(&mut server, room), 0);
    assert!(subscribe(&mut server, room + 1) >= 0x80);
}
