//! Tests that work for presence is bounded in a turn (one run of the event loop): when many members leave at once, when there are many watchers, and when
//! the rules change.

use std::sync::Arc;

use crore_broker::account::MemoryLevel;
use crore_broker::settings::Rule;
use crore_broker::settings::Settings;
use crore_broker::{Input, TurnLimits, World};
use crore_wire::mqtt::{PacketId, Properties, Qos, SubscribeOptions, Version, encode};
use support::{NOW, TestServer, stream};

mod support;

const TOPIC: &str = "chat/1";

fn settings(presence: bool) -> Settings {
    let mut settings = Settings::default();
    settings.rules.push(Rule {
        filter: "chat/#".into(),
        presence,
        presence_max: 100_000,
        ..Rule::default()
    });
    settings
}

fn open_world(presence: bool, shards: u16) -> Arc<World> {
    support::world(settings(presence), shards, 1)
}

/// Settings and shared state of shards whose clients need tokens.
fn closed_world() -> Arc<World> {
    let mut settings = settings(true);
    settings.access.closed = true;
    support::world(settings, 1, 1)
}

/// The topic's counts of clients and users.
fn stats(server: &mut TestServer, user: &str) -> String {
    let conn = server.open(0);
    let head = format!(
        "GET /presence/{TOPIC}?stats=1 HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {user}\r\n\r\n"
    );
    server.send(conn, head);
    server.settle();
    let answer = String::from_utf8_lossy(server.received(conn)).into_owned();
    let body = answer.split("\r\n\r\n").nth(1).expect("it has a body");
    body.trim().to_owned()
}

#[test]
fn members_that_leave_together_take_an_eighth_of_each_turn() {
    const MEMBERS: usize = 2_000;
    let limits = TurnLimits::default();
    let mut server = TestServer::new(&closed_world(), limits, NOW);
    let mut members = Vec::new();
    for n in 0..MEMBERS {
        let path = format!("/sub/{TOPIC}");
        members.push(stream(&mut server, 0, &path, (&format!("user{n}"), "")));
        server.flush(0);
    }
    let reader = format!("/sub/{TOPIC}/other");
    stream(&mut server, 0, &reader, ("reader", ""));
    server.settle();
    // The first members to leave are in the middle of the list, which is the most expensive case.
    for half in [&members[MEMBERS / 2..], &members[..MEMBERS / 2]] {
        for conn in half {
            server.cut(*conn);
            server.flush(0);
        }
        server.settle();
        server.advance_s(1);
    }
    assert!(stats(&mut server, "reader").contains("\"listed\":2000"));
    server.advance_s(20);
    let mut turns = 0;
    loop {
        let before = server.shards[0].steps();
        let has_more = server.flush(0);
        let steps = server.shards[0].steps() - before;
        let most = u64::from(limits.steps_per_turn) / 8 + 64;
        assert!(steps <= most, "{steps} steps in a turn");
        turns += 1;
        // No tick is needed: the shard reports itself that it has more members to remove.
        if !has_more {
            break;
        }
    }
    assert!(turns > 3, "{turns} turns");
    let left = stats(&mut server, "reader");
    assert!(
        left.starts_with("{\"topic\":\"chat/1\",\"clients\":0"),
        "{left}"
    );
}

#[test]
fn turn_sends_a_bounded_number_of_pages_to_watchers() {
    const WATCHERS: usize = 500;
    let mut server = TestServer::new(&open_world(true, 2), TurnLimits::default(), NOW);
    let path = format!("/sub/{TOPIC}");
    stream(&mut server, 0, &path, ("", ""));
    server.settle();
    let path = format!("/presence/{TOPIC}");
    for _ in 0..WATCHERS {
        stream(&mut server, 1, &path, ("", ""));
        server.flush(1);
    }
    server.deliver_mail(0);
    let mut received = Vec::new();
    while received.iter().sum::<usize>() < WATCHERS {
        let has_more = server.flush(0);
        let pages: usize = (server.io[0].mail.iter())
            .map(|(_, mail)| mail.tells.len())
            .sum();
        let before: usize = received.iter().sum();
        received.push(pages - before);
        assert!(
            has_more || pages == WATCHERS,
            "{received:?}: the others wait for ever"
        );
        assert!(received.len() < 99, "{received:?}");
    }
    assert!(received.iter().all(|pages| *pages <= 68), "{received:?}");
}

/// Runs the ticks of the sweep of one second. Returns the number of ticks, and the highest number of steps in one tick.
fn sweep(server: &mut TestServer) -> (usize, u64) {
    server.advance_s(1);
    let (mut ticks, mut most) = (0, 0);
    loop {
        let before = server.shards[0].steps();
        server.handle(0, Input::Tick);
        most = most.max(server.shards[0].steps() - before);
        ticks += 1;
        if server.shards[0].ms_until_tick().is_none() {
            return (ticks, most);
        }
    }
}

fn subscribe(filter: &str, id: u16) -> Vec<u8> {
    let mut out = Vec::new();
    let filters = [(filter, SubscribeOptions::of(Qos::AtMostOnce))];
    let id = PacketId::new(id).expect("it is not 0");
    let none = &Properties::NONE;
    encode::subscribe(&mut out, Version::V5, id, none, filters.into_iter());
    out
}

/// MQTT clients that subscribe to many topics each.
fn mqtt_clients(server: &mut TestServer, clients: usize, topics: usize) {
    for client in 0..clients {
        let conn = server.open(0);
        let mut packets = support::connect(&format!("c{client}"), 0);
        for topic in 1..=topics {
            packets.extend(subscribe(&format!("chat/{topic}"), topic as u16));
        }
        server.send(conn, packets);
        server.settle();
    }
}

#[test]
fn turning_presence_on_by_rule_takes_bounded_steps_in_each_tick() {
    let limits = TurnLimits::default();
    let mut server = TestServer::new(&open_world(false, 1), limits, NOW);
    mqtt_clients(&mut server, 60, 100);
    sweep(&mut server);
    server.settle();
    server.shards[0].change_settings(open_world(true, 1));
    let (ticks, most) = sweep(&mut server);
    // A tick may exceed the budget by one connection, the joins at the home, and the visited rows.
    let bound = u64::from(limits.steps_per_turn) * 2 + 300;
    assert!(ticks >= 2 && most <= bound, "{ticks} ticks, {most} steps");
    server.settle();
    let counts = stats(&mut server, "");
    assert!(counts.contains("\"clients\":60"), "{counts}");
}

#[test]
fn search_for_members_visits_rows_as_fast_as_the_sweep() {
    let limits = TurnLimits {
        rows_per_tick: 64,
        steps_per_turn: 64,
        ..TurnLimits::default()
    };
    let mut server = TestServer::new(&open_world(false, 1), limits, NOW);
    let path = format!("/sub/{TOPIC}");
    for _ in 0..640 {
        stream(&mut server, 0, &path, ("", ""));
        server.settle();
    }
    let (before, _) = sweep(&mut server);
    server.settle();
    server.shards[0].change_settings(open_world(true, 1));
    let (ticks, _) = sweep(&mut server);
    assert!(ticks <= 2 * before, "{ticks} ticks instead of {before}");
    server.settle();
    assert!(stats(&mut server, "").contains("\"clients\":640"));
}

fn has(server: &TestServer, conn: usize, text: &str) -> bool {
    String::from_utf8_lossy(server.received(conn)).contains(text)
}

#[test]
fn idle_shard_sleeps_until_a_watcher_may_be_told() {
    const NS: u64 = 1_000_000_000;
    let mut server = TestServer::new(&open_world(true, 1), TurnLimits::default(), NOW);
    server.shards[0].set_turn_time(NS);
    let watcher = stream(&mut server, 0, &format!("/presence/{TOPIC}"), ("", ""));
    server.settle();
    assert!(has(&server, watcher, "event: whole"));
    stream(&mut server, 0, &format!("/sub/{TOPIC}"), ("", ""));
    server.settle();
    assert!(!server.shards[0].is_waiting(), "it would not sleep");
    let at_ns = server.shards[0].next_wake_ns().expect("it has news");
    assert_eq!(at_ns, NS + 100_000_000);
    server.shards[0].set_turn_time(at_ns);
    server.socket(watcher).received.clear();
    server.settle();
    assert!(has(&server, watcher, "event: join"));
    assert_eq!(server.shards[0].next_wake_ns(), None);
}

/// A client that has sent the first bytes of a message, and sends no more.
fn incomplete_post(server: &mut TestServer, bytes: usize) -> usize {
    let conn = server.open_from(0, [127, 0, 1, 1].into());
    let head = "POST /pub/a HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n";
    server.send(conn, head);
    server.send(conn, vec![b'x'; bytes]);
    server.settle();
    conn
}

#[test]
fn relief_ends_the_connection_whose_members_take_most_memory() {
    const LIMIT: usize = 8 << 20;
    let mut settings = settings(true);
    settings.limits.memory_bytes = LIMIT;
    let world = support::world(settings, 1, 1);
    let mut server = TestServer::new(&world, TurnLimits::default(), NOW);
    // Without its members this client would hold less than the other one.
    mqtt_clients(&mut server, 1, 3_000);
    let heavy = 0;
    let other = incomplete_post(&mut server, 200 << 10);
    let account = &world.admission.account;
    while account.level() < MemoryLevel::Tight {
        account.charge_unowned(LIMIT / 64);
    }
    server.settle();
    let open = [heavy, other].map(|conn| server.is_open(conn));
    assert_eq!(open, [false, true]);
}

#[test]
fn connections_bytes_are_counted_only_while_memory_is_short() {
    const LIMIT: usize = 8 << 20;
    let mut settings = settings(true);
    settings.limits.memory_bytes = LIMIT;
    let world = support::world(settings, 1, 1);
    let mut server = TestServer::new(&world, TurnLimits::default(), NOW);
    // A shard that holds little takes no account of how much other shards hold. This upload makes it hold enough.
    incomplete_post(&mut server, 400 << 10);
    let path = format!("/sub/{TOPIC}");
    let account = &world.admission.account;
    for level in [MemoryLevel::Calm, MemoryLevel::Full] {
        while account.level() < level {
            account.charge_unowned(LIMIT / 64);
        }
        stream(&mut server, 0, &path, ("", ""));
        server.settle();
    }
    let counts = stats(&mut server, "");
    assert!(
        counts.contains("\"clients\":2,\"users\":1,\"listed\":1"),
        "{counts}"
    );
}
