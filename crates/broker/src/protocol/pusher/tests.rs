//! Tests what a connection costs.

use alloc::vec::Vec;

use crate::base::ids::SocketId;
use crate::base::pusher::{PusherApp, Secret};
use crate::base::reason::Reason;
use crate::base::settings::Settings;
use crate::base::time::Now;
use crate::budget::world::World;
use crate::io::{Input, RecordingIo};
use crate::protocol::pusher::reasons::{close_code_of, code_of_refusal};
use crate::protocol::pusher::state::app_of;
use crate::shard::Shard;
use crate::store::slab::NONE;

const NOW: Now = Now { s: 1, unix_s: 9 };
const UPGRADE: &str = " HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\
    Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n";

fn app(id: &str) -> PusherApp {
    PusherApp {
        id: id.into(),
        key: id.into(),
        secret: Secret(b"0123456789abcdef".to_vec()),
        client_events: true,
        resume: false,
    }
}

/// A shard with a connection to the app with this id.
pub(super) fn connected(apps: &[&str], id: &str, io: &mut RecordingIo) -> Shard {
    let settings = Settings {
        pusher_apps: apps.iter().map(|id| app(id)).collect(),
        ..Settings::default()
    };
    let mut shard = Shard::new(0, World::for_tests(settings, 1), NOW);
    shard.handle(Input::Accepted(SocketId(5), [127, 0, 0, 1].into()), NOW, io);
    let request = alloc::format!("GET /app/{id}?protocol=7{UPGRADE}");
    receive(&mut shard, request.as_bytes(), io);
    shard
}

fn receive(shard: &mut Shard, bytes: &[u8], io: &mut RecordingIo) {
    let conn = shard.front().clients.conns.id_of(0);
    shard.handle(Input::Received(conn, &mut bytes.to_vec()), NOW, io);
    shard.flush(NOW, io);
}

/// A text frame with a mask of zeros.
fn frame(text: &str) -> Vec<u8> {
    assert!(text.len() < 126, "a short frame");
    let mut frame = alloc::vec![0x81, 0x80 | text.len() as u8, 0, 0, 0, 0];
    frame.extend_from_slice(text.as_bytes());
    frame
}

fn has_sent(io: &RecordingIo, text: &str) -> bool {
    let mut parts = io.sent.windows(text.len());
    parts.any(|part| part == text.as_bytes())
}

#[test]
fn idle_subscriber_of_one_channel_needs_only_its_row() {
    let mut io = RecordingIo::default();
    let mut shard = connected(&["a"], "a", &mut io);
    let subscribe = r#"{"event":"pusher:subscribe","data":{"channel":"news"}}"#;
    receive(&mut shard, &frame(subscribe), &mut io);
    assert!(has_sent(&io, "subscription_succeeded"));
    let row = shard.front().clients.conns.get(0);
    assert_eq!(row.side_row(), NONE);
    assert!(row.consumer.topic != NONE);
    shard.handle(
        Input::Accepted(SocketId(6), [127, 0, 0, 1].into()),
        NOW,
        &mut io,
    );
    let publisher = shard.front().clients.conns.id_of(1);
    let request =
        "POST /pub/pusher/a/news HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nhello";
    let mut request = request.as_bytes().to_vec();
    shard.handle(Input::Received(publisher, &mut request), NOW, &mut io);
    shard.flush(NOW, &mut io);
    assert!(has_sent(&io, r#""data":"hello""#));
    assert_eq!(shard.front().clients.conns.get(0).side_row(), NONE);
}

#[test]
fn connection_keeps_its_app_with_and_without_a_list() {
    let ids: Vec<_> = (0..64)
        .map(|number| alloc::format!("app{number}"))
        .collect();
    let ids: Vec<&str> = ids.iter().map(|id| &**id).collect();
    for id in [ids[0], ids[1], ids[32], ids[63]] {
        let mut io = RecordingIo::default();
        let mut shard = connected(&ids, id, &mut io);
        for channel in ["a", "b"] {
            let subscribe = alloc::format!(
                "{{\"event\":\"pusher:subscribe\",\"data\":{{\"channel\":\"{channel}\"}}}}"
            );
            receive(&mut shard, &frame(&subscribe), &mut io);
            let clients = &shard.front().clients;
            assert_eq!(app_of(clients, 0).map(|app| &*app.id), Some(id));
        }
    }
}

#[test]
fn each_reason_ends_a_connection_with_a_code_or_leaves_it_open() {
    for reason in Reason::ALL {
        let stays = matches!(
            reason,
            Reason::Deleted | Reason::NotCreated | Reason::Displaced | Reason::Occupied
        );
        assert_eq!(close_code_of(*reason).is_none(), stays, "{reason:?}");
        let code = code_of_refusal(*reason).map_or(4009, |code| code.code);
        assert!((4009..=4301).contains(&code), "{reason:?}");
    }
}
