//! Tests batches of a foreign writer in the log. They are void (ignored) at every node, both live and when the log is replayed, and make
//! no node panic.

use crore_broker::batch::{self, Header};
use crore_broker::{Now, OFFSET_BITS};

use crate::support::{NOW, TestServer};
use crate::{Nodes, world};

/// The topic of valid messages, and its partition.
const TOPIC: &str = "a";

fn number(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn field(out: &mut Vec<u8>, bytes: &[u8]) {
    number(out, bytes.len());
    out.extend_from_slice(bytes);
}

/// The record of a message.
#[derive(Clone, Copy)]
struct Message<'a> {
    behind: usize,
    topic: &'a [u8],
    flags: u8,
    content_type: &'a [u8],
    event: &'a [u8],
    key: &'a [u8],
    attributes: &'a [u8],
    data: &'a [u8],
    /// The bytes of the record after the data.
    rest: &'a [u8],
}

const GOOD: Message<'static> = Message {
    behind: 0,
    topic: TOPIC.as_bytes(),
    flags: 0,
    content_type: b"text/plain",
    event: b"event",
    key: b"key",
    attributes: b"",
    data: b"stranger",
    rest: b"",
};

impl Message<'_> {
    fn record(&self) -> Vec<u8> {
        let mut out = vec![1];
        number(&mut out, self.behind);
        field(&mut out, self.topic);
        out.push(self.flags);
        for bytes in [
            self.content_type,
            self.event,
            self.key,
            self.attributes,
            self.data,
        ] {
            field(&mut out, bytes);
        }
        out.extend_from_slice(self.rest);
        out
    }
}

fn partition() -> u16 {
    world(0).placement().partition_of(TOPIC.as_bytes())
}

/// The first batch of another writer, with these records.
fn batch_of(records: &[&[u8]]) -> Vec<u8> {
    let mut out = vec![1, 0];
    out.extend_from_slice(&partition().to_le_bytes());
    out.extend_from_slice(&77u64.to_le_bytes());
    out.extend_from_slice(&1u64.to_le_bytes());
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&NOW.unix_s.to_le_bytes());
    out.extend_from_slice(&(records.len() as u32).to_le_bytes());
    records.iter().for_each(|record| field(&mut out, record));
    out
}

fn message(message: Message<'_>) -> Vec<u8> {
    batch_of(&[&message.record()])
}

/// The attributes of a message that an MQTT client published with these properties.
fn attributes(properties: &[u8]) -> Vec<u8> {
    [&7u64.to_le_bytes(), properties].concat()
}

/// Batches that no node writes. Each has the name of its fault.
fn bad_batches() -> Vec<(&'static str, Vec<u8>)> {
    let long = vec![b'x'; 1_001];
    let short = &7u32.to_le_bytes()[..];
    let user = attributes(&[0x26, 0, 1, b'n', 0, 9, b'v']);
    let topic = attributes(&[0x08, 0, 1, b'#']);
    let utf8 = attributes(&[0x01, 1]);
    let session = attributes(&[0x11, 0, 0, 0, 1]);
    let typed = attributes(&[0x03, 0, 1, b't']);
    let other = (0..).map(|n| format!("t{n}")).find(|name| {
        let of = world(0).placement().partition_of(name.as_bytes());
        of != partition()
    });
    let other = other.expect("a topic of another partition");
    let fields = [
        (
            "a content type with a line end",
            Message {
                content_type: b"text/plain\r\nSet-Cookie: a=b",
                ..GOOD
            },
        ),
        (
            "a content type that is not UTF-8",
            Message {
                content_type: b"\xff",
                ..GOOD
            },
        ),
        (
            "a long content type",
            Message {
                content_type: &long,
                ..GOOD
            },
        ),
        (
            "an event name with a line end",
            Message {
                event: b"e\ndata: forged",
                ..GOOD
            },
        ),
        (
            "an event name of the server's",
            Message {
                event: b"crore.gap",
                ..GOOD
            },
        ),
        (
            "a key with a control character",
            Message {
                key: b"\x7f",
                ..GOOD
            },
        ),
        (
            "a topic with a line end",
            Message {
                topic: b"a\r\nb",
                ..GOOD
            },
        ),
        (
            "a topic with a wildcard",
            Message {
                topic: b"#",
                ..GOOD
            },
        ),
        ("an empty topic", Message { topic: b"", ..GOOD }),
        (
            "a long topic",
            Message {
                topic: &long,
                ..GOOD
            },
        ),
        (
            "a topic of another partition",
            Message {
                topic: other.as_bytes(),
                ..GOOD
            },
        ),
        (
            "attributes without a publisher",
            Message {
                attributes: short,
                ..GOOD
            },
        ),
        (
            "a property that is cut off",
            Message {
                attributes: &user,
                ..GOOD
            },
        ),
        (
            "a response topic with a wildcard",
            Message {
                attributes: &topic,
                ..GOOD
            },
        ),
        (
            "a property of another packet",
            Message {
                attributes: &session,
                ..GOOD
            },
        ),
        (
            "a second content type",
            Message {
                attributes: &typed,
                ..GOOD
            },
        ),
        (
            "data that are said to be UTF-8",
            Message {
                attributes: &utf8,
                flags: 8,
                data: b"\xff",
                ..GOOD
            },
        ),
        (
            "text that is not UTF-8",
            Message {
                data: b"\xff",
                ..GOOD
            },
        ),
        ("a quality of service of 3", Message { flags: 3, ..GOOD }),
        ("a flag of another format", Message { flags: 64, ..GOOD }),
        (
            "an empty idempotency key",
            Message {
                flags: 32,
                rest: &[0; 9],
                ..GOOD
            },
        ),
        (
            "a time to live beyond 32 bits",
            Message {
                flags: 16,
                rest: b"\xff\xff\xff\xff\x7f",
                ..GOOD
            },
        ),
        (
            "junk behind a record's end",
            Message {
                rest: b"junk",
                ..GOOD
            },
        ),
        (
            "an offset beyond the batch's",
            Message {
                behind: 4_096,
                ..GOOD
            },
        ),
    ];
    let mut bad: Vec<_> = (fields.into_iter())
        .map(|(what, of)| (what, message(of)))
        .collect();
    let good = message(GOOD);
    let record = GOOD.record();
    let second = Message { behind: 1, ..GOOD }.record();
    let changed = |at: usize, with: &[u8]| {
        let mut batch = good.clone();
        batch[at..at + with.len()].copy_from_slice(with);
        batch
    };
    bad.extend([
        ("a record that is cut off", good[..good.len() - 1].to_vec()),
        ("junk behind the last record", [&good[..], b"junk"].concat()),
        ("a record that is missing", changed(32, &[2])),
        ("no records", batch_of(&[])),
        ("a record of no bytes", batch_of(&[b""])),
        (
            "a kind that must not be left out",
            batch_of(&[&[100, 0, 9]]),
        ),
        (
            "a good record before a bad one",
            batch_of(&[&record, &[100, 1, 9]]),
        ),
        ("records in disorder", batch_of(&[&second, &record])),
        ("no writer", changed(4, &[0; 8])),
        ("no number", changed(12, &[0; 8])),
        ("a number that no writer comes to", changed(12, &[0xff; 8])),
        ("flags in its header", changed(1, &[1])),
        (
            "a sign of life with an escape sequence",
            batch_of(&[b"\x08\x00\x05\x1b[2Jn\x00\x00"]),
        ),
    ]);
    bad
}

impl Nodes {
    /// Appends these bytes of the foreign writer to the log.
    fn intrude(&mut self, bytes: &[u8]) {
        let end = &mut self.ends[usize::from(partition())];
        *end += 1;
        self.log.push((bytes.into(), *end, self.unix_s));
    }

    /// A node that replays the whole log when it starts.
    fn recovered(&self) -> TestServer {
        let mut server = TestServer::new(&world(0), Default::default(), NOW);
        for (bytes, sequence, unix_s) in &self.log {
            // Readers of the log skip entries without the header of a batch.
            let Ok(mut header) = Header::read(bytes) else {
                continue;
            };
            (header.first_offset, header.unix_s) = (sequence << OFFSET_BITS, *unix_s);
            let now = Now {
                unix_s: *unix_s,
                ..NOW
            };
            let home = usize::from(header.partition % 2);
            let folded = server.shards[home].apply_logged_batch(&header, bytes, now);
            assert_eq!(folded, Ok(()), "a stranger keeps no node from starting");
        }
        server
    }
}

#[test]
fn batches_of_a_stranger_are_void_and_readers_go_on() {
    for (what, bad) in bad_batches() {
        let checked = batch::check(&bad, world(0).placement(), true);
        assert!(checked.is_err(), "{what}");
        let mut nodes = Nodes::new(1);
        let stream = nodes.events(0, "sub/a", "");
        let poll = nodes.ask(0, "GET /sub/a?filter=%23", "", "");
        nodes.intrude(&bad);
        nodes.read_stored(&[0]);
        nodes.post(0, TOPIC, "good");
        nodes.run(&[0]);
        let data = |nodes: &Nodes, of| -> Vec<String> {
            let got = nodes.received_events(0, of).into_iter();
            got.map(|(_, data)| data).collect()
        };
        assert_eq!(data(&nodes, stream), ["good"], "{what}");
        let text = nodes.text(0, poll);
        assert!(text.ends_with("good"), "{what}: {text}");
        let late = nodes.events(0, "sub/a?since=oldest", "");
        assert_eq!(data(&nodes, late), ["good"], "{what}");
        let states = nodes.states(0);
        assert!(
            states
                .iter()
                .all(|it| it.nodes.iter().all(|node| node.is_self)),
            "{what}"
        );
    }
}

#[test]
fn a_node_that_starts_voids_the_same_batches_as_one_that_reads_them_live() {
    let mut nodes = Nodes::new(1);
    for (n, (_, bad)) in bad_batches().into_iter().enumerate() {
        nodes.intrude(&bad);
        nodes.post(0, TOPIC, &n.to_string());
        nodes.run(&[0]);
    }
    let server = nodes.recovered();
    let digest = |server: &TestServer| server.shards.iter().fold(0, |all, it| all ^ it.digest());
    assert_eq!(digest(&server), nodes.digest(0));
    let live = nodes.events(0, "sub/a?since=oldest", "");
    let live = nodes.received_events(0, live);
    assert_eq!(live.len(), bad_batches().len());
    nodes.nodes[0].server = server;
    let read = nodes.events(0, "sub/a?since=oldest", "");
    assert_eq!(nodes.received_events(0, read), live);
}

#[test]
fn valid_batch_of_another_writer_is_applied() {
    let mut nodes = Nodes::new(1);
    let user = attributes(&[0x26, 0, 1, b'n', 0, 1, b'v']);
    for good in [
        GOOD,
        Message {
            attributes: &user,
            flags: 2 | 4,
            ..GOOD
        },
        Message {
            data: b"\xff",
            flags: 8,
            ..GOOD
        },
        Message {
            flags: 16,
            rest: &[60],
            ..GOOD
        },
        Message {
            flags: 32,
            rest: b"\x01k\0\0\0\0\0\0\0\0",
            ..GOOD
        },
    ] {
        let checked = batch::check(&message(good), world(0).placement(), true);
        assert!(checked.is_ok(), "{checked:?}");
    }
    let stream = nodes.events(0, "sub/a", "");
    // A record of a kind that may be skipped precedes the message.
    nodes.intrude(&batch_of(&[&[200, 0, 9], &GOOD.record()]));
    nodes.read_stored(&[0]);
    let got = nodes.received_events(0, stream);
    assert_eq!(got.len(), 1);
    assert_eq!(got[0].1, "stranger");
}
