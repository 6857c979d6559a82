//! Tests shares: if one client address takes as much as it can of a common limit, other addresses still get their part.

use std::fmt::Write as _;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use crore_wire::mqtt::{ReasonCode, Version, encode};

use crate::support::http::{Conn, once};
use crate::support::mqtt::{Conn as Mqtt, message, plain_connect};
use crate::support::port::metric;
use crate::support::ws::{Ws, handshake};
use crate::support::{Server, connect_from, until, wildcard_filters};

/// The last byte of the greedy client's address. The other clients have the address 127.0.0.1.
const GREEDY: u8 = 2;

fn greedy(server: &Server) -> Conn {
    let stream: TcpStream = connect_from(GREEDY, server.address());
    Conn::from_stream(stream, server)
}

/// Subscribes the greedy client to these filters, four on each connection. Returns the connections with the statuses.
fn subscribe(server: &Server, filters: &[String]) -> Vec<(Conn, u16)> {
    let connections = filters.chunks(4).map(|filters| {
        let mut conn = greedy(server);
        let query = filters.join("&filter=");
        let target = format!("/sub?filter={query}&since=live");
        conn.ask("GET", &target, &handshake(&[]), "");
        let status = conn.head().status;
        (conn, status)
    });
    connections.collect()
}

/// Opens this many connections of the greedy client. Returns those that were accepted; they stay open.
fn accepted_connections(server: &Server, count: usize) -> Vec<Conn> {
    let conns = (0..count).map(|_| greedy(server));
    let accepted_connections = conns.filter_map(|mut conn| {
        let status = conn.get("/pub/nothing", &[]).status;
        assert!([404, 503].contains(&status), "{status}");
        (status == 404).then_some(conn)
    });
    accepted_connections.collect()
}

#[test]
fn connections_of_one_address_leave_room_for_those_of_another() {
    let by_process = "[limits]\nconnections_max = 36\n";
    // The limit of each shard, for two shards. A limit of file descriptors has the same effect.
    let by_shard = "[limits]\nconnections_per_shard = 18\n";
    for (settings, places) in [(by_process, 36), (by_shard, 36)] {
        let server = Server::with(settings);
        let connections = accepted_connections(&server, places + 10);
        assert!(
            (places / 2..places).contains(&connections.len()),
            "{}",
            connections.len()
        );
        let refused = greedy(&server).get("/pub/nothing", &[]);
        assert_eq!(refused.status, 503, "{refused:?}");
        assert!(refused.text().contains("address"), "{refused:?}");

        assert_eq!(once(&server, "POST", "/pub/modest", &[], "x").status, 202);
        drop(Ws::open(&server, "/sub/modest", &[]));
        let mut sensor = Mqtt::to_server(&server, Version::V5);
        sensor.connect(&plain_connect(Version::V5, "sensor"));
        // A client with few connections may always open one more, while there is room.
        let statuses: Vec<u16> = (0..3)
            .map(|_| Conn::open(&server).get("/pub/nothing", &[]).status)
            .collect();
        assert_eq!(statuses, [404; 3]);
    }
}

#[test]
fn connections_of_one_client_of_a_proxy_leave_room_for_those_of_another() {
    let server =
        Server::with("[limits]\nconnections_max = 36\n[http]\ntrusted_proxies = [\"127.0.0.2\"]\n");
    let ask = |client: &str| {
        let mut conn = greedy(&server);
        let status = conn
            .get("/pub/nothing", &[("X-Forwarded-For", client)])
            .status;
        (conn, status)
    };
    let connections: Vec<_> = (0..34).map(|_| ask("192.0.2.1")).collect();
    assert!(connections.iter().any(|(_, status)| *status == 503));
    assert_eq!(ask("192.0.2.2").1, 404);
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
    let response = once(&server, "POST", "/pub/modest", &[], "x");
    assert_eq!(response.status, 202, "{response:?}");
    let ws = Ws::open(&server, "/sub/modest/too", &[]);
    drop(ws);
}

#[test]
fn address_above_its_share_loses_only_its_own_idle_topics() {
    let server = Server::with_shards(1, "[limits]\ntopics_per_shard = 100\n");
    // The topic is created before the limit is reached, and idle since then.
    assert_eq!(once(&server, "PUT", "/pub/early", &[], "").status, 201);
    let create = |numbers: std::ops::Range<u32>| {
        let mut conn = greedy(&server);
        for n in numbers {
            let response = conn.request("PUT", &format!("/pub/greedy/{n}"), &[], "");
            assert_eq!(response.status, 201, "{n}: {response:?}");
        }
    };
    create(0..150);
    let response = once(&server, "PUT", "/pub/modest", &[], "");
    assert_eq!(response.status, 201, "{response:?}");
    create(150..300);
    for topic in ["early", "modest", "greedy/299"] {
        let messages = once(&server, "GET", &format!("/pub/{topic}"), &[], "");
        assert_eq!(messages.status, 200, "{topic}: {messages:?}");
    }
    let removed = once(&server, "GET", "/pub/greedy/149", &[], "");
    assert_eq!(removed.status, 404, "{removed:?}");
}

#[test]
fn topics_that_an_address_has_deleted_leave_room_for_its_next_ones() {
    let server = Server::with_shards(1, "[limits]\ntopics_per_shard = 200\n");
    // The greedy client creates as many topics as it can, each with a message, so that none is idle.
    let mut conn = greedy(&server);
    let accepted = (0..300).filter(|n| {
        let target = format!("/pub/greedy/{n}");
        conn.request("POST", &target, &[], "x").status == 202
    });
    assert!(accepted.count() < 200);
    for (n, message) in (0..200).flat_map(|n| [(n, false), (n, true)]) {
        let target = format!("/pub/modest/{n}.{message}");
        let response = match message {
            true => once(&server, "POST", &target, &[], "x"),
            false => once(&server, "PUT", &target, &[], ""),
        };
        assert!([201, 202].contains(&response.status), "{n}: {response:?}");
        let deleted = once(&server, "DELETE", &target, &[], "");
        assert_eq!(deleted.status, 200, "{n}: {deleted:?}");
    }
}

#[test]
fn topics_that_one_address_subscribes_to_leave_room_for_those_of_another() {
    let server = Server::with_shards(1, "[limits]\ntopics_per_shard = 100\n");
    let connections: Vec<(Conn, u16)> = (0..130)
        .map(|n| {
            let mut conn = greedy(&server);
            let target = format!("/sub/greedy/{n}?since=live");
            conn.ask("GET", &target, &handshake(&[]), "");
            let status = conn.head().status;
            (conn, status)
        })
        .collect();
    assert!(connections.iter().any(|(_, status)| *status == 503));
    let response = once(&server, "PUT", "/pub/modest", &[], "");
    assert_eq!(response.status, 201, "{response:?}");
}

#[test]
fn followers_of_one_address_leave_room_for_one_of_another() {
    let server = Server::with("[interest]\nfollowers_max = 16\n");
    let follow = |mut conn: Conn| {
        conn.ask("GET", "/interest", &handshake(&[]), "");
        let status = conn.head().status;
        (conn, status)
    };
    let connections: Vec<_> = (0..40).map(|_| follow(greedy(&server))).collect();
    let count = connections
        .iter()
        .filter(|(_, status)| *status == 101)
        .count();
    assert!((8..16).contains(&count), "{count}");
    assert_eq!(follow(Conn::open(&server)).1, 101);
}

#[test]
fn filters_of_one_address_leave_room_for_one_of_another() {
    let server = Server::with_shards(1, "[limits]\nfilters_per_shard = 100\n");
    let filters: Vec<String> = (0..300).map(|n| format!("greedy/{n}/%2B")).collect();
    let connections = subscribe(&server, &filters);
    assert!(connections.iter().any(|(_, status)| *status == 503));
    drop(Ws::open(&server, "/sub?filter=modest/%2B", &[]));
}

#[test]
fn shapes_of_filters_of_one_address_leave_room_for_one_of_another() {
    // With two shards, the filters of both meet at the home of one (the part of a shard that keeps topics).
    for shards in [1, 2] {
        let server = Server::with_shards(shards, "");
        let shapes = wildcard_filters("%2B", 513);
        let (last, first) = shapes.split_last().expect("they are many");
        let connections = subscribe(&server, first);
        assert!(connections.iter().any(|(_, status)| *status == 503));
        for _ in 0..4 {
            drop(Ws::open(&server, &format!("/sub?filter={last}"), &[]));
        }
    }
}

/// WebSockets of the greedy client that read nothing. They subscribe to a topic that sends more than the socket buffers hold.
fn clients_that_do_not_read(server: &Server, count: usize) -> Vec<Conn> {
    let open = |_| {
        let mut conn = greedy(server);
        conn.ask("GET", "/sub/loud?since=live", &handshake(&[]), "");
        assert_eq!(conn.head().status, 101);
        conn
    };
    let connections = (0..count).map(open).collect();
    server.await_subscribers("loud", count as u64);
    let mut conn = greedy(server);
    for _ in 0..6 {
        let body = "x".repeat(1_000_000);
        assert_eq!(conn.request("POST", "/pub/loud", &[], &body).status, 201);
    }
    connections
}

const KERNEL_BUFFERS: &str = "crore_table_memory_bytes{table=\"kernel_buffers\"}";

#[test]
fn client_that_does_not_read_is_charged_for_what_the_kernel_holds() {
    let server = Server::with_admin("[timeouts]\nbody_s = 600\n");
    let charge = || metric(server.admin(), KERNEL_BUFFERS).expect("a metric");
    let connections = clients_that_do_not_read(&server, 40);
    // For each connection 128 KiB, and a piece of 64 KiB.
    let kernel = f64::from(40 * (192 << 10));
    until("the charge", || charge() >= kernel);
    assert!(charge() < 2.0 * kernel, "{}", charge());
    // A client that reads again is no longer charged.
    let readers: Vec<_> = connections
        .into_iter()
        .map(|mut conn| std::thread::spawn(move || drop(conn.read_to_end())))
        .collect();
    until("no charge", || charge() < kernel / 40.0);
    drop(server);
    readers
        .into_iter()
        .for_each(|thread| thread.join().expect("it ends"));
}

#[test]
fn kernel_buffers_of_one_address_leave_memory_for_others() {
    let server = Server::with_admin(
        "[limits]\nmemory_bytes = \"16 MiB\"\nbatch_bytes = \"1 MiB\"\nlog_bytes = \"16 MiB\"\n[timeouts]\nbody_s = 600\n",
    );
    let mut honest = Ws::open(&server, "/sub/modest", &[]);
    let _held = clients_that_do_not_read(&server, 120);
    // 120 such connections would hold 22 MiB, so the server closes some.
    until("room", || {
        let connections = metric(server.admin(), "crore_connections{transport=\"websocket\"}");
        connections.is_some_and(|count| count < 100.0)
    });
    assert_eq!(
        once(&server, "POST", "/pub/modest", &[], "still here").status,
        201
    );
    assert_eq!(honest.message().text(), "still here");
    let charged = metric(server.admin(), KERNEL_BUFFERS).expect("a metric");
    assert!(charged <= f64::from(16 << 20), "{charged}");
}

/// Messages with which the greedy client fills the logs.
#[derive(Clone, Copy, Debug)]
enum Flood {
    /// Many topics with one message of this many bytes each.
    Topics(usize),
    /// Many topics with one retained message of this many bytes each.
    Retained(usize),
    /// Many keys in a topic that keeps the newest message of each key.
    Keys,
    /// Messages of changing sizes, so that deleted messages leave holes in memory.
    Sizes,
}

impl Flood {
    /// Publishes about this many MiB.
    fn publish(self, server: &Server, mib: usize) {
        let bytes_all = mib << 20;
        match self {
            Flood::Topics(size) => publish_batches(server, bytes_all / size, |n| {
                (format!("greedy/{n}"), "null".into(), size)
            }),
            Flood::Keys => publish_batches(server, bytes_all / 200, |n| {
                ("keys/greedy".into(), format!("\"{n}\""), 200)
            }),
            Flood::Sizes => {
                for size in [100, 1_000, 60, 3_000, 400] {
                    Flood::Topics(size).publish(server, mib);
                }
            }
            Flood::Retained(size) => {
                let mut stream = connect_from(GREEDY, server.address());
                let mut bytes = Vec::new();
                encode::connect(&mut bytes, &plain_connect(Version::V5, "greedy"));
                let payload = vec![b'x'; size];
                for n in 0..bytes_all / size {
                    let topic = format!("greedy/{n}");
                    let mut publish = message(&topic, 0, 0, &payload);
                    publish.retain = true;
                    encode::publish(&mut bytes, Version::V5, &publish);
                }
                encode::pingreq(&mut bytes);
                stream.write_all(&bytes).expect("they are read");
                // The bytes of the PINGRESP, which comes after the CONNACK.
                let mut answers = Vec::new();
                while !answers.ends_with(&[0xd0, 0]) {
                    let mut buffer = [0; 1024];
                    let count = stream.read(&mut buffer).expect("answers");
                    assert!(count > 0, "the connection has ended");
                    answers.extend(&buffer[..count]);
                }
            }
        }
    }
}

#[test]
fn messages_of_one_address_leave_those_of_another_in_the_logs() {
    for (flood, shards) in [
        (Flood::Topics(100), 1),
        (Flood::Topics(2_000), 2),
        (Flood::Retained(100), 2),
        (Flood::Retained(2_000), 1),
        (Flood::Keys, 1),
        (Flood::Sizes, 1),
    ] {
        let server = Server::with_shards(
            shards,
            "[limits]\nlog_bytes = \"1 MiB\"\n\
             [[rule]]\nmatch = \"keys/#\"\nkeep = \"latest\"\nkeys_max = 100000\nlog_bytes = \"64 MiB\"\n",
        );
        let mut conn = Conn::open(&server);
        let large = "x".repeat(3_000);
        for n in 0..60 {
            let topic = format!("/pub/modest/{}", n % 4);
            let body = format!("{n} {}", if n % 10 == 0 { &large } else { "" });
            let published = conn.request("POST", &topic, &[], &body);
            assert!([201, 202].contains(&published.status), "{published:?}");
        }
        let mut sensor = Mqtt::to_server(&server, Version::V5);
        sensor.connect(&plain_connect(Version::V5, "sensor"));
        let mut state = message("modest/state", 1, 1, b"21.5");
        state.retain = true;
        sensor.publish(&state);
        sensor.packet();

        flood.publish(&server, 2);

        for n in 0..4 {
            let messages = conn.get(&format!("/history/modest/{n}"), &[]).json();
            let messages = messages.as_array().expect("a list").len();
            assert_eq!(messages, 15, "{flood:?}, {shards} shards: modest/{n}");
        }
        assert_eq!(sensor.subscribe("modest/state", 0), ReasonCode::SUCCESS);
        assert_eq!(sensor.packet().publish().payload, b"21.5", "{flood:?}");
    }
}

/// Publishes `count` messages in batches. `message` returns the topic, the key and the size of a message by its number.
fn publish_batches(
    server: &Server,
    count: usize,
    message: impl Fn(usize) -> (String, String, usize),
) {
    let kind = [("Content-Type", "application/x-ndjson")];
    let mut conn = greedy(server);
    let numbers: Vec<usize> = (0..count).collect();
    for batch in numbers.chunks(500) {
        let lines = batch.iter().fold(String::new(), |mut lines, n| {
            let (topic, key, size) = message(*n);
            let data = "x".repeat(size);
            let _ = writeln!(
                lines,
                "{{\"topic\":\"{topic}\",\"key\":{key},\"data\":\"{data}\"}}"
            );
            lines
        });
        let answer = conn.request("POST", "/pub", &kind, &lines);
        assert_eq!(answer.status, 200, "{answer:?}");
    }
}
