//! Tests what a connection costs, and what must not depend on the time of a real machine.

use alloc::format;
use alloc::vec::Vec;

use crore_settings::Centrifugo;

use crate::base::ids::SocketId;
use crate::base::reason::Reason;
use crate::base::settings::Settings;
use crate::base::time::Now;
use crate::budget::world::World;
use crate::client::row::{COUNTED, LIVE};
use crate::io::{Input, RecordingIo};
use crate::protocol::centrifugo::expiry::end_subscriptions_without_right;
use crate::protocol::centrifugo::reasons::{disconnect_of, error_of};
use crate::protocol::centrifugo::state::{SeparateGrant, StartedBy, state_mut};
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

/// A shard with a WebSocket of this protocol, at [`NOW`].
fn upgraded(io: &mut RecordingIo) -> Shard {
    let settings = Settings {
        centrifugo: Centrifugo {
            enabled: true,
            ..Centrifugo::default()
        },
        ..Settings::default()
    };
    let mut shard = Shard::new(0, World::for_tests(settings, 1), NOW);
    let accepted = Input::Accepted(SocketId(5), [127, 0, 0, 1].into());
    shard.handle(accepted, NOW, io);
    receive(&mut shard, UPGRADE, NOW, io);
    shard
}

fn receive(shard: &mut Shard, bytes: &[u8], now: Now, io: &mut RecordingIo) {
    let conn = shard.front().clients.conns.id_of(0);
    shard.handle(Input::Received(conn, &mut bytes.to_vec()), now, io);
    shard.flush(now, io);
}

/// So many seconds after [`NOW`].
fn later(seconds: u32) -> Now {
    Now {
        s: NOW.s + seconds,
        unix_s: NOW.unix_s + seconds,
    }
}

fn tick(shard: &mut Shard, now: Now, io: &mut RecordingIo) {
    shard.handle(Input::Tick, now, io);
    while shard.ms_until_tick().is_some() {
        shard.handle(Input::Tick, now, io);
    }
    shard.flush(now, io);
}

fn has_sent(io: &RecordingIo, text: &str) -> bool {
    let mut parts = io.sent.windows(text.len());
    parts.any(|part| part == text.as_bytes())
}

/// The frame of a WebSocket's ping.
const PING: &[u8] = &[0x89, 0x80, 0, 0, 0, 0];
const CONNECT: &str = "{\"id\":1,\"connect\":{}}";

#[test]
fn idle_client_of_one_subscription_has_its_row_alone() {
    let mut io = RecordingIo::default();
    let mut shard = upgraded(&mut io);
    let commands = format!("{CONNECT}\n{{\"id\":2,\"subscribe\":{{\"channel\":\"a\"}}}}");
    receive(&mut shard, &frame(&commands), NOW, &mut io);
    assert!(io.closed.is_empty());
    let row = shard.front().clients.conns.get(0);
    assert!(has_sent(&io, "subscribe") && row.consumer.flags == COUNTED | LIVE);
    assert_eq!(
        (row.side_row(), row.link.unprocessed_input, row.link.outbox),
        (NONE, NONE, NONE)
    );
}

#[test]
fn input_does_not_put_off_the_end_of_a_client_that_does_not_connect() {
    let mut io = RecordingIo::default();
    let mut shard = upgraded(&mut io);
    let head_s = Settings::default().timeouts.head_s;
    for second in 1..=head_s {
        receive(&mut shard, PING, later(second), &mut io);
        tick(&mut shard, later(second), &mut io);
    }
    assert!(!has_sent(&io, "stale"));
    receive(&mut shard, PING, later(head_s + 1), &mut io);
    tick(&mut shard, later(head_s + 1), &mut io);
    assert!(has_sent(&io, "stale"));
}

#[test]
fn input_does_not_put_off_the_end_of_a_subscription() {
    let mut io = RecordingIo::default();
    let mut shard = upgraded(&mut io);
    let commands = format!("{CONNECT}\n{{\"id\":2,\"subscribe\":{{\"channel\":\"a\"}}}}");
    receive(&mut shard, &frame(&commands), NOW, &mut io);
    let clients = &mut shard.front().clients;
    clients.move_to_list(0);
    let granted = SeparateGrant {
        sub_index: 0,
        until_unix_s: clients.ctx.wall_s() + 2,
        token: None,
        started_by: StartedBy::Client,
    };
    state_mut(&mut clients.conns, 0)
        .separate_grants
        .push(granted);
    for second in 1..=2 {
        assert!(!has_sent(&io, "2501"));
        receive(&mut shard, PING, later(second), &mut io);
        tick(&mut shard, later(second), &mut io);
    }
    assert!(has_sent(&io, "2501"));
}

#[test]
fn late_ping_leaves_as_much_time_for_its_answer_as_others() {
    let mut io = RecordingIo::default();
    let mut shard = upgraded(&mut io);
    receive(&mut shard, &frame(CONNECT), NOW, &mut io);
    let settings = Centrifugo::default();
    // No tick comes until the middle of the next interval.
    let middle_s = settings.ping_interval_s + settings.ping_interval_s / 2;
    for second in 0..3 {
        tick(&mut shard, later(middle_s + second), &mut io);
    }
    assert!(has_sent(&io, "{}") && !has_sent(&io, "no pong"));
}

#[test]
fn search_in_a_long_list_is_counted_as_work() {
    let mut io = RecordingIo::default();
    let mut shard = upgraded(&mut io);
    receive(&mut shard, &frame(CONNECT), NOW, &mut io);
    for n in 0..800 {
        let command = format!("{{\"id\":2,\"subscribe\":{{\"channel\":\"c{n}\"}}}}");
        receive(&mut shard, &frame(&command), NOW, &mut io);
    }
    let unsubscribe = frame("{\"id\":2,\"unsubscribe\":{\"channel\":\"c0\"}}");
    let before = shard.front().clients.meter.work.steps.count();
    receive(&mut shard, &unsubscribe, NOW, &mut io);
    let steps = shard.front().clients.meter.work.steps.count() - before;
    assert!(steps >= 100, "{steps}");
}

#[test]
fn look_at_all_subscriptions_after_a_refresh_is_counted_as_work() {
    let mut io = RecordingIo::default();
    let mut shard = upgraded(&mut io);
    receive(&mut shard, &frame(CONNECT), NOW, &mut io);
    for n in 0..200 {
        let command = format!("{{\"id\":2,\"subscribe\":{{\"channel\":\"c{n}\"}}}}");
        receive(&mut shard, &frame(&command), NOW, &mut io);
    }
    let front = shard.front();
    let granted = (0..200).map(|sub_index| SeparateGrant {
        sub_index,
        until_unix_s: u32::MAX,
        token: None,
        started_by: StartedBy::Client,
    });
    (state_mut(&mut front.clients.conns, 0).separate_grants).extend(granted);
    let before = front.clients.meter.work.steps.count();
    end_subscriptions_without_right(&mut front.clients, &mut front.subs, 0);
    let steps = front.clients.meter.work.steps.count() - before;
    assert!(steps >= 400, "{steps}");
}

#[test]
fn codes_for_reasons_let_libraries_come_back_unless_it_is_in_vain() {
    let code = |reason| disconnect_of(reason).map(|it| it.code);
    assert_eq!(code(Reason::TooSlow), Some(3000));
    assert_eq!(code(Reason::InputsFull), Some(3013));
    assert_eq!(code(Reason::Broken), Some(3004));
    assert_eq!(error_of(Reason::Revoked).code, 103);
    assert_eq!(error_of(Reason::CredentialsRevoked).code, 101);
}
