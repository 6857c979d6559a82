//! Tests what a connection costs.

use alloc::vec::Vec;

use crore_settings::Centrifugo;

use crate::base::ids::SocketId;
use crate::base::settings::Settings;
use crate::base::time::Now;
use crate::budget::world::World;
use crate::client::row::{COUNTED, LIVE};
use crate::io::{Input, Recorded};
use crate::shard::Shard;
use crate::store::slab::NONE;

const NOW: Now = Now { s: 1, unix_s: 9 };
const UPGRADE: &[u8] = b"GET /connection/websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\
    Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n";

/// A text frame with a mask of zeros.
fn frame(text: &str) -> Vec<u8> {
    assert!(text.len() < 126, "a short frame");
    let mut frame = alloc::vec![0x81, 0x80 | text.len() as u8, 0, 0, 0, 0];
    frame.extend_from_slice(text.as_bytes());
    frame
}

#[test]
fn idle_client_of_one_subscription_has_its_row_alone() {
    let settings = Settings {
        centrifugo: Centrifugo {
            enabled: true,
            ..Centrifugo::default()
        },
        ..Settings::default()
    };
    let mut io = Recorded::default();
    let mut shard = Shard::new(0, World::for_tests(settings, 1), NOW);
    let accepted = Input::Accepted(SocketId(5), [127, 0, 0, 1].into());
    shard.handle(accepted, NOW, &mut io);
    let conn = shard.front().clients.conns.id_of(0);
    let commands = "{\"id\":1,\"connect\":{}}\n{\"id\":2,\"subscribe\":{\"channel\":\"a\"}}";
    for bytes in [UPGRADE.to_vec(), frame(commands)] {
        shard.handle(Input::Received(conn, &mut bytes.clone()), NOW, &mut io);
        shard.flush(NOW, &mut io);
    }
    assert!(io.closed.is_empty());
    let is_answered = io.sent.windows(9).any(|part| part == b"subscribe");
    let row = shard.front().clients.conns.get(0);
    assert!(is_answered && row.consumer.flags == COUNTED | LIVE);
    assert_eq!(
        (row.extra(), row.link.spill, row.link.outbox),
        (NONE, NONE, NONE)
    );
}
