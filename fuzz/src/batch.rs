//! Fuzz target for batches of records in the log of a cluster, as a faulty or malicious writer could write them. Checked: no batch makes a
//! node panic; subscribers receive nothing that clients may not publish; a node that reads a batch live has the same state as a node that
//! reads the batch at its start.
//!
//! The first byte says how the input becomes a batch. With bit 7 the input is a whole batch. Otherwise its bytes are the records of a
//! batch with a valid header, and the other bits are the count of records and the partition.

use std::sync::Arc;

use crore_broker::admission::Admission;
use crore_broker::batch::{self, Header};
use crore_broker::rules::Rules;
use crore_broker::settings::{RetentionMode, Rule, Settings};
use crore_broker::{
    Backlog, Committed, ForeignBatch, Input, Now, OFFSET_BITS, Offsets, Placement, Shard, World,
};

use crate::Input as Bytes;
use crate::node::Node;

const NOW: Now = Now {
    s: 100,
    unix_s: 1_800_000_000,
};
const PARTITIONS: u16 = 2;
/// The bit of the first byte which says that the input is a whole batch.
const WHOLE: u8 = 0x80;

/// Parts of records: kinds, and topics of both partitions with their lengths.
pub const WORDS: &[&str] = &[
    "\x01\0",
    "\x02\0\x01a",
    "\x05\0\x01b",
    "\x07\0",
    "\x08\0",
    "\x01a",
    "\x01b",
    "\0\0\0\0",
    "\x0atext/plain",
    "\r\n",
    "\u{80}",
];

/// A new node with one shard.
fn node() -> Node {
    let rule = |filter: &str, keep| Rule {
        filter: filter.into(),
        keep,
        ..Rule::default()
    };
    let settings = Settings {
        rules: vec![
            rule("b", RetentionMode::Latest),
            rule("#", RetentionMode::Log),
        ],
        ..Settings::default()
    };
    let world = Arc::new(World {
        rules: Rules::new(&settings.rules),
        admission: Admission::new(&settings, 42),
        settings,
        shards: 1,
        homes: 1,
        partitions: PARTITIONS,
        epoch: 7,
        writer: Some(1000),
        offsets: Offsets::ByLog,
        seed: 42,
    });
    Node::of(Shard::new(0, world, NOW), 0, NOW)
}

/// Everything that a node keeps, as a client of each protocol receives it.
fn kept(node: &mut Node) -> Vec<Vec<u8>> {
    let clients = readers("oldest").map(|says| node.client(&says));
    clients.map(|link| node.received(link).to_vec()).into()
}

/// Requests that read everything since this position, one for each form of delivery: events with envelopes, a long-poll, a WebSocket, MQTT
/// 5.
fn readers(since: &str) -> [Vec<u8>; 4] {
    const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n";
    const MQTT: &[u8] = b"\x10\x0e\0\x04MQTT\x05\x02\0\0\0\0\x01c\x82\x07\0\x01\0\0\x01#\x02";
    let get = |more: &str, fields: &str| {
        let head = format!(
            "GET /sub?filter=%23&since={since}{more} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n"
        );
        head.into_bytes()
    };
    [
        get("&envelope=json", "Accept: text/event-stream\r\n"),
        get("", ""),
        get("", UPGRADE),
        MQTT.to_vec(),
    ]
}

/// The batch that an input describes.
fn batch_of(input: &Bytes<'_>) -> Vec<u8> {
    if input.options & WHOLE != 0 {
        return input.bytes.to_vec();
    }
    let mut bytes = vec![1, 0, input.options >> 6 & 1, 0];
    bytes.extend(77u64.to_le_bytes());
    bytes.extend(1u64.to_le_bytes());
    bytes.extend([0; 12]);
    bytes.extend(u32::from(input.options & 7).to_le_bytes());
    bytes.extend(input.bytes);
    bytes
}

/// Reads the input as the next batch of the log.
pub fn batch(data: &[u8]) {
    let Some(input) = Bytes::of(data) else {
        return;
    };
    let bytes: Arc<[u8]> = batch_of(&input).into();
    // The tools that print a log read batches too, so they must not panic either.
    let _ = batch::for_each_record(&bytes, |_, _| ());
    let (mut live, mut read) = (node(), node());
    let empty = live.shard.digest();
    let readers = readers("live").map(|says| live.client(&says));
    let placement = Placement::new(PARTITIONS, 1);
    let checked = ForeignBatch::checked(bytes.clone(), placement, &Backlog::default());
    let is_void = checked.is_err();
    let in_log = |header| Header {
        first_offset: 5 << OFFSET_BITS,
        unix_s: NOW.unix_s,
        ..header
    };
    if let Ok((header, batch)) = checked {
        live.handle(Input::Committed(Committed {
            header: in_log(header),
            batch: Some(batch),
        }));
        live.settle();
    }
    if let Ok(header) = Header::read(&bytes) {
        let folded = read.shard.apply_logged_batch(&in_log(header), &bytes, NOW);
        assert_eq!(folded, Ok(()), "a node starts whatever stands in the log");
    }
    assert_eq!(live.shard.digest(), read.shard.digest());
    if is_void {
        assert_eq!(read.shard.digest(), empty);
    }
    assert_eq!(kept(&mut live), kept(&mut read));
    let head = live.received(readers[1]).split(|byte| *byte == b'\n');
    for line in head.take_while(|line| line.len() > 1) {
        let line = line
            .strip_suffix(b"\r")
            .expect("CRLF ends each line of a head");
        assert!(
            !line.iter().any(u8::is_ascii_control),
            "{}",
            line.escape_ascii()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_good_message_of_the_corpus_is_told_at_once_and_kept() {
        let kept_inputs = [
            &include_bytes!("../corpus/batch/message-0")[..],
            include_bytes!("../corpus/batch/message-1"),
        ];
        // The topic belongs to one of the two partitions, so only one of the batches is valid.
        let applied = kept_inputs.map(|data| {
            let bytes = batch_of(&Bytes::of(data).expect("an input"));
            let placement = Placement::new(PARTITIONS, 1);
            batch::check(&bytes, placement, true).is_ok()
        });
        assert_eq!(applied.iter().filter(|it| **it).count(), 1);
    }
}
