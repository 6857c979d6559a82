//! Tests the memory of removed messages: its chunks are freed, whatever the sizes of the messages were, and even if some messages remain.

use crore_broker::TurnLimits;
use crore_broker::settings::{Rule, Settings};
use support::{NOW, TestServer};

mod support;

/// The value of `limits.log_bytes`.
const BUDGET_BYTES: usize = 1 << 20;
/// Bytes of chunks that a partition may use in addition: one chunk of each size class, and some for rows.
const SPARE_BYTES: usize = (112 + 4) << 14;
const CHUNK_BYTES: usize = 16 << 10;

/// A shard whose only limit of kept messages is their bytes.
fn server(partitions: u16) -> (TestServer, usize) {
    let mut settings = Settings {
        rules: vec![Rule {
            log_messages: 1 << 20,
            log_bytes: BUDGET_BYTES,
            ..Rule::default()
        }],
        ..Settings::default()
    };
    settings.limits.log_bytes = BUDGET_BYTES;
    let world = support::partitioned(settings, 1, 1, partitions);
    let mut server = TestServer::new(&world, TurnLimits::default(), NOW);
    let publisher = server.open(0);
    (server, publisher)
}

/// Publishes a message of this size. `fields` are further header lines of the request.
fn publish(server: &mut TestServer, publisher: usize, (topic, fields): (&str, &str), bytes: usize) {
    let mut request = format!(
        "POST /pub/{topic} HTTP/1.1\r\nHost: localhost\r\n{fields}Content-Length: {bytes}\r\n\r\n"
    );
    request.extend(std::iter::repeat_n('x', bytes));
    server.send(publisher, request);
    server.settle();
    let answer = std::mem::take(&mut server.socket(publisher).received);
    assert!(answer.starts_with(b"HTTP/1.1 20"), "{answer:?}");
}

/// Sizes of messages, each in a different size class.
fn sizes() -> impl Iterator<Item = usize> {
    (7..13).flat_map(|power| (0..16).map(move |step| (1 << power) + (step << (power - 4)) + 1))
}

/// Fills the log with messages of one size, then of the next. After each message `beside` may publish another one. Returns the highest
/// number of bytes in the tables of the log.
fn fill_by_size(
    server: &mut TestServer,
    publisher: usize,
    mut beside: impl FnMut(&mut TestServer, usize),
) -> usize {
    let mut most = 0;
    for size in sizes().step_by(6) {
        for _ in 0..BUDGET_BYTES / size {
            publish(server, publisher, ("flood", ""), size);
            beside(server, size);
        }
        most = most.max(server.shards[0].tables().log);
    }
    most
}

#[test]
fn log_filled_by_one_size_class_after_another_stays_within_its_budget() {
    let (mut server, publisher) = server(1);
    let most = fill_by_size(&mut server, publisher, |_, _| {});
    assert!(
        most <= BUDGET_BYTES + SPARE_BYTES,
        "{most} bytes for a log of {BUDGET_BYTES}"
    );
}

/// Retained messages are removed last, so one of them may remain in each chunk. Then the log must remove all other messages, and as few retained ones as
/// possible.
#[test]
fn retained_messages_in_each_chunk_do_not_keep_the_chunks_of_removed_messages() {
    let (mut server, publisher) = server(1);
    let (mut bytes, mut pins) = (0, 0);
    let most = fill_by_size(&mut server, publisher, |server, size| {
        bytes += size;
        if bytes >= CHUNK_BYTES / 2 {
            bytes = 0;
            pins += 1;
            let pin = format!("pin/{pins}");
            publish(server, publisher, (&pin, "Crore-Retain: true\r\n"), size);
        }
    });
    // Two chunks more: one for messages, one for rows.
    let most_allowed = BUDGET_BYTES + BUDGET_BYTES / 2 + SPARE_BYTES + 2 * CHUNK_BYTES;
    assert!(
        most <= most_allowed,
        "{most} bytes for a log of {BUDGET_BYTES}"
    );
}

/// The memory of one partition's messages is freed for another partition.
#[test]
fn partitions_that_are_filled_in_turn_stay_within_one_budget() {
    const PARTITIONS: u16 = 4;
    let (mut server, publisher) = server(PARTITIONS);
    let mut most = 0;
    for n in 0..3 * PARTITIONS {
        let topic = format!("flood/{n}");
        for _ in 0..BUDGET_BYTES / 2 / (1 + 48 + 7) {
            publish(&mut server, publisher, (&topic, ""), 1);
        }
        for _ in 0..BUDGET_BYTES / 2 / 8_000 {
            publish(&mut server, publisher, (&topic, ""), 8_000);
        }
        most = most.max(server.shards[0].tables().log);
    }
    // Few size classes are in use, so the spare chunks are few.
    let spare = 8 * CHUNK_BYTES * usize::from(PARTITIONS);
    assert!(
        most <= BUDGET_BYTES + BUDGET_BYTES / 2 + spare,
        "{most} bytes for logs of {BUDGET_BYTES}"
    );
}
