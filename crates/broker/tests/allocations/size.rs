//! Tests the heap of an idle connection and of a kept message, against `docs/internals/MEMORY.md`. The allocator's own overhead (about 8
//! bytes for each chunk of 16 KiB) does not count.

use crore_broker::settings::{RetentionMode, Rule};

use crate::counting::grown_bytes;
use crate::test_server::{TestServer, Transport, keeping, post, subscribe};

/// Number of connections: so large that partly filled chunks hardly affect the mean.
const MANY: usize = 50_000;

/// A topic name of 13 bytes, as the documented budgets assume.
fn own_topic(n: usize) -> String {
    format!("p/s{n:08}/-")
}

/// Creates the tables and their first chunks.
fn warm(server: &mut TestServer, transport: Transport) {
    for n in 0..1_000 {
        server.open(
            n % server.shards(),
            &subscribe(transport, &format!("warm/{n}")),
        );
    }
}

/// Bytes of an idle connection: its row 52; its topic's row at the carrier (the shard with the subscriber) 24 and at the home (the part of
/// a shard that keeps topics) 40; at both the name 16 and a hash bucket 4.
const IDLE_BYTES: f64 = 52.0 + 24.0 + 40.0 + 2.0 * (16.0 + 4.0);
/// Bytes for lists of chunks and partly filled chunks.
const CHUNKS_BYTES: f64 = 2.5;

#[test]
#[ignore = "takes a minute without optimisation; `cargo xtask test` runs it optimised"]
fn idle_connection_costs_only_its_rows() {
    let two_shards = [(2, Transport::WebSocket), (2, Transport::LongPoll)];
    for (shards, transport) in Transport::ALL
        .map(|transport| (1, transport))
        .into_iter()
        .chain(two_shards)
    {
        let mut server = TestServer::new(shards, keeping(0));
        warm(&mut server, transport);
        let grown = grown_bytes(|| {
            for n in 0..MANY {
                server.open(n % server.shards(), &subscribe(transport, &own_topic(n)));
            }
        });
        let each = grown as f64 / MANY as f64;
        assert!(
            each <= IDLE_BYTES + CHUNKS_BYTES,
            "{shards} shards, {transport:?}: {each} bytes a connection"
        );
    }
}

#[test]
#[ignore = "takes a minute without optimisation; `cargo xtask test` runs it optimised"]
fn served_connection_costs_no_more_than_an_idle_one() {
    for transport in [Transport::WebSocket, Transport::Deflated, Transport::Events] {
        let mut server = TestServer::new(1, keeping(0));
        warm(&mut server, transport);
        let publisher = server.open(0, "");
        server.receive(0, publisher, &post("warm/7"));
        server.settle();
        let grown = grown_bytes(|| {
            for n in 0..MANY {
                server.open(0, &subscribe(transport, &own_topic(n)));
            }
            for n in 0..MANY {
                let message = post(&own_topic(n));
                server.receive(0, publisher, &message);
                server.settle();
            }
        });
        let each = grown as f64 / MANY as f64;
        assert!(
            each <= IDLE_BYTES + CHUNKS_BYTES,
            "{transport:?}: {each} bytes a connection after a message to each"
        );
    }
}

/// Bytes of a kept message: a slot of 544 for 512 bytes of data and a frame header of 4, and the log's entry of 48.
const KEPT_BYTES: f64 = 544.0 + 48.0;
/// Bytes of the topic's list of messages, once for each topic.
const CHAIN_BYTES: f64 = 24.0;
/// Bytes of a topic without subscribers at its home.
const TOPIC_BYTES: f64 = 40.0 + 16.0 + 4.0;

#[test]
#[ignore = "takes a minute without optimisation; `cargo xtask test` runs it optimised"]
fn kept_message_costs_its_slot_and_its_log_entry() {
    for shards in [1, 2] {
        let mut server = TestServer::new(shards, keeping(2));
        let publisher = server.open(0, "");
        let to_each = |server: &mut TestServer, topics: std::ops::Range<usize>| {
            let grown = grown_bytes(|| {
                for n in topics.clone() {
                    let message = post(&own_topic(n));
                    server.receive(0, publisher, &message);
                    server.settle();
                }
            });
            grown as f64 / topics.len() as f64
        };
        to_each(&mut server, MANY..MANY + 1_000);
        let first = to_each(&mut server, 0..MANY);
        assert!(
            first <= TOPIC_BYTES + CHAIN_BYTES + KEPT_BYTES + CHUNKS_BYTES,
            "{shards} shards: {first} bytes for a new topic's message"
        );
        let second = to_each(&mut server, 0..MANY);
        assert!(
            second <= KEPT_BYTES + CHUNKS_BYTES,
            "{shards} shards: {second} bytes for a further message"
        );
        let third = to_each(&mut server, 0..MANY);
        assert!(
            third.abs() < 1.0,
            "{shards} shards: {third} bytes for a message that takes the place of another"
        );
    }
}

/// Bytes of a message key: a row and a hash bucket.
const KEY_BYTES: f64 = 16.0 + 4.0;

#[test]
#[ignore = "takes a minute without optimisation; `cargo xtask test` runs it optimised"]
fn message_key_costs_one_row_and_a_newer_value_costs_nothing() {
    for shards in [1, 2] {
        let rule = Rule {
            keep: RetentionMode::Latest,
            ..keeping(0)
        };
        let mut server = TestServer::new(shards, rule);
        let publisher = server.open(0, "");
        let mut to_each = |keys: std::ops::Range<usize>| {
            let grown = grown_bytes(|| {
                for n in keys.clone() {
                    let key = format!("\r\nCrore-Key: {n:08}\r\n\r\n");
                    let message = String::from_utf8(post(&format!("topic/{}", n % 100))).unwrap();
                    let message = message.replacen("\r\n\r\n", &key, 1);
                    server.receive(0, publisher, message.as_bytes());
                    server.settle();
                }
            });
            grown as f64 / keys.len() as f64
        };
        to_each(MANY..MANY + 1_000);
        let first = to_each(0..MANY);
        assert!(
            first <= KEPT_BYTES + KEY_BYTES + CHUNKS_BYTES,
            "{shards} shards: {first} bytes for a key"
        );
        let second = to_each(0..MANY);
        assert!(
            second.abs() < 1.0,
            "{shards} shards: {second} bytes for a newer value"
        );
    }
}
