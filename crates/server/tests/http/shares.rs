//! One client address that takes all that it gets of a place for all leaves room for another one.

use std::fmt::Write as _;
use std::net::TcpStream;

use crate::support::http::{Conn, once};
use crate::support::ws::{Ws, handshake};
use crate::support::{Server, connect_from};

/// The greedy one's address, 127.0.0.`GREEDY`. The others have 127.0.0.1.
const GREEDY: u8 = 2;

fn greedy(server: &Server) -> Conn {
    let stream: TcpStream = connect_from(GREEDY, server.address());
    Conn::over(stream, server)
}

/// Filters of eight levels, each with its `+` at other levels, three at least.
fn shapes(count: usize) -> Vec<String> {
    let shapes = (0_u32..1 << 10).filter(|shape| shape.count_ones() > 2);
    let text = |shape: u32| {
        let level = |n: u32| if shape >> n & 1 == 1 { "%2B" } else { "x" };
        (0..10).map(level).collect::<Vec<_>>().join("/")
    };
    shapes.map(text).take(count).collect()
}

/// The greedy one's subscriptions to these filters, 32 on a connection: the statuses of the answers.
fn subscribe(server: &Server, filters: &[String]) -> Vec<(Conn, u16)> {
    let all = filters.chunks(4).map(|filters| {
        let mut conn = greedy(server);
        let query = filters.join("&filter=");
        let target = format!("/sub?filter={query}&since=live");
        conn.ask("GET", &target, &handshake(&[]), "");
        let status = conn.head().status;
        (conn, status)
    });
    all.collect()
}

#[test]
fn topics_that_one_address_publishes_to_leave_room_for_those_of_another() {
    let server = Server::with_shards(1, "[limits]\ntopics_per_shard = 100\n");
    let lines = (0..300).fold(String::new(), |mut lines, n| {
        let _ = writeln!(lines, "{{\"topic\":\"greedy/{n}\",\"data\":\"x\"}}");
        lines
    });
    let kind = [("Content-Type", "application/x-ndjson")];
    for _ in 0..3 {
        let _ = greedy(&server).request("POST", "/pub", &kind, &lines);
    }
    let refused = greedy(&server).request("POST", "/pub/greedy/more", &[], "x");
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(refused.text().contains("address"), "{refused:?}");
    let made = once(&server, "POST", "/pub/modest", &[], "x");
    assert_eq!(made.status, 202, "{made:?}");
    let ws = Ws::open(&server, "/sub/modest/too", &[]);
    drop(ws);
}

#[test]
fn an_address_past_its_share_gives_up_its_own_idle_topics_and_no_other() {
    let server = Server::with_shards(1, "[limits]\ntopics_per_shard = 100\n");
    // Made while nobody needs a share, and idle since.
    assert_eq!(once(&server, "PUT", "/pub/early", &[], "").status, 201);
    let make = |many: std::ops::Range<u32>| {
        let mut conn = greedy(&server);
        for n in many {
            let made = conn.request("PUT", &format!("/pub/greedy/{n}"), &[], "");
            assert_eq!(made.status, 201, "{n}: {made:?}");
        }
    };
    make(0..150);
    let made = once(&server, "PUT", "/pub/modest", &[], "");
    assert_eq!(made.status, 201, "{made:?}");
    make(150..300);
    for topic in ["early", "modest", "greedy/299"] {
        let there = once(&server, "GET", &format!("/pub/{topic}"), &[], "");
        assert_eq!(there.status, 200, "{topic}: {there:?}");
    }
    let gone = once(&server, "GET", "/pub/greedy/149", &[], "");
    assert_eq!(gone.status, 404, "{gone:?}");
}

#[test]
fn topics_that_an_address_has_deleted_leave_room_for_its_next_ones() {
    let server = Server::with_shards(1, "[limits]\ntopics_per_shard = 200\n");
    // All that may be had, and each with a message: not idle.
    let mut conn = greedy(&server);
    let taken = (0..300).filter(|n| {
        let target = format!("/pub/greedy/{n}");
        conn.request("POST", &target, &[], "x").status == 202
    });
    assert!(taken.count() < 200);
    for (n, message) in (0..200).flat_map(|n| [(n, false), (n, true)]) {
        let target = format!("/pub/modest/{n}.{message}");
        let made = match message {
            true => once(&server, "POST", &target, &[], "x"),
            false => once(&server, "PUT", &target, &[], ""),
        };
        assert!([201, 202].contains(&made.status), "{n}: {made:?}");
        let deleted = once(&server, "DELETE", &target, &[], "");
        assert_eq!(deleted.status, 200, "{n}: {deleted:?}");
    }
}

#[test]
fn topics_that_one_address_subscribes_to_leave_room_for_those_of_another() {
    let server = Server::with_shards(1, "[limits]\ntopics_per_shard = 100\n");
    let held: Vec<(Conn, u16)> = (0..130)
        .map(|n| {
            let mut conn = greedy(&server);
            let target = format!("/sub/greedy/{n}?since=live");
            conn.ask("GET", &target, &handshake(&[]), "");
            let status = conn.head().status;
            (conn, status)
        })
        .collect();
    assert!(held.iter().any(|(_, status)| *status == 503));
    let made = once(&server, "PUT", "/pub/modest", &[], "");
    assert_eq!(made.status, 201, "{made:?}");
}

#[test]
fn followers_of_one_address_leave_room_for_one_of_another() {
    let server = Server::with("[interest]\nfollowers_max = 16\n");
    let follow = |mut conn: Conn| {
        conn.ask("GET", "/interest", &handshake(&[]), "");
        let status = conn.head().status;
        (conn, status)
    };
    let held: Vec<_> = (0..40).map(|_| follow(greedy(&server))).collect();
    let count = held.iter().filter(|(_, status)| *status == 101).count();
    assert!((8..16).contains(&count), "{count}");
    assert_eq!(follow(Conn::open(&server)).1, 101);
}

#[test]
fn filters_of_one_address_leave_room_for_one_of_another() {
    let server = Server::with_shards(1, "[limits]\nfilters_per_shard = 100\n");
    let filters: Vec<String> = (0..300).map(|n| format!("greedy/{n}/%2B")).collect();
    let held = subscribe(&server, &filters);
    assert!(held.iter().any(|(_, status)| *status == 503));
    drop(Ws::open(&server, "/sub?filter=modest/%2B", &[]));
}

#[test]
fn shapes_of_filters_of_one_address_leave_room_for_one_of_another() {
    // With two shards one is the other's home, where the filters of both meet.
    for shards in [1, 2] {
        let server = Server::with_shards(shards, "");
        let shapes = shapes(513);
        let (last, first) = shapes.split_last().expect("they are many");
        let held = subscribe(&server, first);
        assert!(held.iter().any(|(_, status)| *status == 503));
        for _ in 0..4 {
            drop(Ws::open(&server, &format!("/sub?filter={last}"), &[]));
        }
    }
}
