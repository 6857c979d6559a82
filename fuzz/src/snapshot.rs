//! Fuzz target for changed snapshots of a server. The server refuses each one, or restores a state of which a snapshot can be taken again.
//!
//! The input is a list of changes to the records in the snapshot of a small server. The checksums of the blocks are computed after the
//! changes, so they are right. Whether the checksums detect every change is checked separately.

use std::sync::OnceLock;

use crore_broker::snapshot::{Head, block_bytes, block_head, check_block};

use crate::Input;
use crate::node::Node;
use crate::shards::{SavedHome, Shards, saved};

/// A receive window that is never exhausted.
const WIDE: usize = 1 << 20;

/// An MQTT client with a session that outlives its connection and a delayed will. It subscribes to a plain filter and a shared one. It sends a QoS 2
/// message that it does not release, and does not acknowledge the copy that it gets.
const SESSION: &[u8] =
    b"\x10\x20\0\x04MQTT\x05\x0c\0\x3c\x05\x11\0\0\0\xff\0\x01c\x05\x18\0\0\0\x64\0\x01w\0\x02hi\
    \x82\x18\0\x01\0\0\x03a/+\x01\0\x0c$share/g/a/#\x01\
    \x34\x09\0\x03a/d\0\x07\0x";

/// The same client connects again with the session that it has.
const RECONNECT: &[u8] = b"\x10\x13\0\x04MQTT\x05\x00\0\x3c\x05\x11\0\0\0\xff\0\x01c";

/// Publishes of each kind that a snapshot stores.
const REQUESTS: &[&str] = &[
    "POST /pub/a/b HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\none",
    "POST /pub/a/b HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/css\r\nContent-Length: 3\r\n\r\ntwo",
    "POST /pub/a/c HTTP/1.1\r\nHost: localhost\r\nCrore-Retain: ?1\r\nContent-Length: 4\r\n\r\nkept",
    "POST /pub/latest/x HTTP/1.1\r\nHost: localhost\r\nCrore-Key: one\r\nContent-Length: 5\r\n\r\nfirst",
    "POST /pub/latest/x HTTP/1.1\r\nHost: localhost\r\nCrore-Key: one\r\nContent-Length: 6\r\n\r\nsecond",
    "POST /pub/skip/y HTTP/1.1\r\nHost: localhost\r\nIdempotency-Key: \"k\"\r\nContent-Length: 1\r\n\r\ny",
    "POST /pub/none/z HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nz",
];

/// The snapshots of the homes of a small server. A home is the part of a shard that keeps topics.
fn saved_homes() -> &'static [SavedHome; 2] {
    static SAVED: OnceLock<[SavedHome; 2]> = OnceLock::new();
    SAVED.get_or_init(|| {
        [0, 1].map(|home| {
            let mut shards = Shards::new();
            let session = shards.connect(0, WIDE);
            shards.write(session, SESSION);
            shards.settle();
            shards.reset(session);
            let link = shards.connect(1, WIDE);
            for request in REQUESTS {
                shards.write(link, request.as_bytes());
                shards.settle();
            }
            shards.save_home(home)
        })
    })
}

/// Restores a changed snapshot. Checked: it is refused, or a snapshot of the restored state can be taken and read.
pub fn snapshot(data: &[u8]) {
    let Some(input) = Input::of(data) else {
        return;
    };
    let left = &saved_homes()[usize::from(input.options & 1)];
    let mut bytes = left.blocks.concat();
    let untouched = bytes.clone();
    for change in input.bytes.chunks_exact(4) {
        let [what, high, low, value] = *change else {
            return;
        };
        let at = usize::from(u16::from_be_bytes([high, low])) % (bytes.len() + 1);
        let end = bytes.len().min(at + usize::from(value));
        match what % 6 {
            0 if at < bytes.len() => bytes[at] = value,
            1 if at < bytes.len() => bytes[at] ^= 1 << (value % 8),
            2 => bytes.truncate(at),
            3 => drop(bytes.drain(at..end)),
            4 => {
                let copy = bytes[at..end].to_vec();
                bytes.extend(copy);
            }
            _ => bytes.insert(at, value),
        }
    }
    checks(&bytes, &untouched);
    // The writer may divide records into blocks in any way, if it cuts no record. So one block holds all records here.
    let changed = SavedHome {
        blocks: vec![bytes.clone()],
        world: left.world.clone(),
        ..*left
    };
    let Ok(mut shard) = changed.restored() else {
        assert!(bytes != untouched, "what was left can be read");
        return;
    };
    let served = changed.restored().expect("as before");
    read_all(&mut Node::of(served, left.head.home, left.now));
    let again = SavedHome {
        blocks: saved(&mut shard, &left.head),
        world: left.world.clone(),
        ..*left
    };
    if let Err(why) = again.restored() {
        panic!("it cannot be left again: {why}");
    }
}

/// Clients read the topics of this home, and the client of its session connects again. No field of a snapshot may make the shard panic.
fn read_all(node: &mut Node) {
    node.client(RECONNECT);
    const ACCEPT: &str = "Accept: text/event-stream\r\n";
    const UPGRADE: &str = "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n";
    for topic in ["a/b", "a/c", "latest/x", "skip/y"] {
        for fields in ["", ACCEPT, UPGRADE] {
            let target = format!("/sub/{topic}?since=oldest");
            let request = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n{fields}\r\n");
            node.client(request.as_bytes());
        }
    }
}

/// Checks that no block is accepted in the place of another one, and that no changed block is accepted.
fn checks(bytes: &[u8], untouched: &[u8]) {
    let head = block_head(1, untouched);
    let holds = check_block(&head, 1, bytes);
    assert_eq!(holds.is_ok(), bytes == untouched);
    assert!(check_block(&head, 2, untouched).is_err());
    assert_eq!(block_bytes(&head), Ok(untouched.len()));
    // The head is read before anything else, so reading these bytes as a head must not panic either.
    let _ = Head::read(bytes);
}
