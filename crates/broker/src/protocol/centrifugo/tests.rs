//! Tests what a connection costs, and what must not depend on the time of a real machine.

use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;

use crore_settings::Centrifugo;

use crate::base::access::Grants;
use crate::base::call_kind::CallKind;
use crate::base::ids::SocketId;
use crate::base::reason::Reason;
use crate::base::settings::Settings;
use crate::base::time::Now;
use crate::budget::world::World;
use crate::client::row::{COUNTED, LIVE};
use crate::io::{Input, RecordingIo};
use crate::mail::backend::{
    BackendAnswer, BackendError, BackendResult, ConnectGrant, SubscribeGrant,
};
use crate::mail::orders::ConnectionOrder;
use crate::protocol::centrifugo::expiry::end_subscriptions_without_right;
use crate::protocol::centrifugo::orders::carry_out_order;
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
    upgraded_with(&[], io)
}

/// The same, with a backend that answers these calls.
fn upgraded_with(calls: &[CallKind], io: &mut RecordingIo) -> Shard {
    let settings = Settings {
        backend_calls: calls.iter().copied().collect(),
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

/// The time this many seconds after [`NOW`].
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
        renewal: None,
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

/// The backend answers the last call that the shard has made.
fn answer(shard: &mut Shard, result: BackendResult, now: Now, io: &mut RecordingIo) {
    let call = io.calls.pop().expect("a call");
    let answer = BackendAnswer {
        kind: call.subject.kind(),
        number: call.number,
        result,
    };
    let conn = shard.front().clients.conns.id_of(0);
    shard.handle(Input::BackendAnswer(conn, answer), now, io);
    shard.flush(now, io);
    tick(shard, now, io);
}

fn failure() -> BackendResult {
    BackendResult::Error(BackendError {
        code: 100,
        message: "internal server error".into(),
        is_temporary: true,
    })
}

#[test]
fn grant_of_a_backend_goes_on_only_if_the_backend_extends_it() {
    let mut io = RecordingIo::default();
    let calls = [
        CallKind::Connect,
        CallKind::Refresh,
        CallKind::Subscribe,
        CallKind::SubRefresh,
    ];
    let mut shard = upgraded_with(&calls, &mut io);
    let unix_s = shard.front().clients.ctx.wall_s();
    receive(&mut shard, &frame(CONNECT), NOW, &mut io);
    let granted = BackendResult::Connect(Box::new(ConnectGrant {
        grants: Grants::new("zoe", []).expect("a name"),
        until_unix_s: unix_s + 40,
        data: Box::default(),
        meta: Box::default(),
        subs: Vec::new(),
    }));
    answer(&mut shard, granted, NOW, &mut io);
    let subscribe = frame("{\"id\":2,\"subscribe\":{\"channel\":\"a\"}}");
    receive(&mut shard, &subscribe, NOW, &mut io);
    assert!(
        !has_sent(&io, "\"subscribe\""),
        "the backend has not answered"
    );
    let granted = BackendResult::Subscribe(SubscribeGrant {
        until_unix_s: unix_s + 20,
        data: Box::default(),
    });
    answer(&mut shard, granted, NOW, &mut io);
    assert!(has_sent(&io, "\"subscribe\""));
    tick(&mut shard, later(9), &mut io);
    assert!(io.calls.is_empty(), "the ends are far");
    tick(&mut shard, later(10), &mut io);
    assert_eq!(io.calls.len(), 1, "one end is near");
    tick(&mut shard, later(11), &mut io);
    assert_eq!(io.calls.len(), 1, "it is asked once");
    answer(&mut shard, failure(), later(11), &mut io);
    assert!(io.calls.is_empty(), "not again at once");
    tick(&mut shard, later(15), &mut io);
    answer(
        &mut shard,
        BackendResult::Extension(Some(unix_s + 100)),
        later(15),
        &mut io,
    );
    tick(&mut shard, later(25), &mut io);
    assert!(!has_sent(&io, "2501"), "the subscription goes on");
    // The answer to a ping.
    receive(&mut shard, &frame("{}"), later(25), &mut io);
    // Every answer to the question about the connection is a failure.
    let mut failures = 0;
    for second in 26..40 {
        tick(&mut shard, later(second), &mut io);
        if !io.calls.is_empty() {
            answer(&mut shard, failure(), later(second), &mut io);
            failures += 1;
        }
    }
    assert!(failures >= 2 && !has_sent(&io, "expired"));
    tick(&mut shard, later(40), &mut io);
    assert!(has_sent(&io, "expired"), "a failure grants nothing");
}

/// The client connects, and the backend grants the connection until this second, with these subscriptions.
fn connect_until(shard: &mut Shard, until_unix_s: u32, subs: &[(&str, u32)], io: &mut RecordingIo) {
    receive(shard, &frame(CONNECT), NOW, io);
    let subs = subs.iter().map(|(channel, until_unix_s)| {
        let grant = SubscribeGrant {
            until_unix_s: *until_unix_s,
            data: Box::default(),
        };
        ((*channel).into(), grant)
    });
    let granted = ConnectGrant {
        grants: Grants::new("zoe", []).expect("a name"),
        until_unix_s,
        data: Box::default(),
        meta: Box::default(),
        subs: subs.collect(),
    };
    answer(shard, BackendResult::Connect(Box::new(granted)), NOW, io);
}

/// The client subscribes, and the backend grants the subscription until this second.
fn subscribe_until(
    shard: &mut Shard,
    (channel, until_unix_s): (&str, u32),
    now: Now,
    io: &mut RecordingIo,
) {
    let subscribe = format!("{{\"id\":2,\"subscribe\":{{\"channel\":\"{channel}\"}}}}");
    receive(shard, &frame(&subscribe), now, io);
    let granted = SubscribeGrant {
        until_unix_s,
        data: Box::default(),
    };
    answer(shard, BackendResult::Subscribe(granted), now, io);
}

#[test]
fn backend_extends_a_connection_and_ends_it() {
    let mut io = RecordingIo::default();
    let mut shard = upgraded_with(&[CallKind::Connect, CallKind::Refresh], &mut io);
    let unix_s = shard.front().clients.ctx.wall_s();
    connect_until(&mut shard, unix_s + 20, &[], &mut io);
    tick(&mut shard, later(10), &mut io);
    let extension = BackendResult::Extension(Some(unix_s + 60));
    answer(&mut shard, extension, later(10), &mut io);
    tick(&mut shard, later(21), &mut io);
    assert!(!has_sent(&io, "expired") && io.calls.is_empty());
    tick(&mut shard, later(50), &mut io);
    answer(
        &mut shard,
        BackendResult::Extension(None),
        later(50),
        &mut io,
    );
    assert!(has_sent(&io, "expired"));
}

/// The client has this number of subscriptions that end in the same second.
fn subscriptions_with_one_end(
    count: u32,
    until_unix_s: u32,
    shard: &mut Shard,
    io: &mut RecordingIo,
) {
    for n in 0..count {
        let channel = format!("c{n}");
        subscribe_until(shard, (&channel, until_unix_s), NOW, io);
    }
}

/// The backend extends every subscription that it is asked about. Returns the number of these subscriptions.
fn extend_all(shard: &mut Shard, until_unix_s: u32, now: Now, io: &mut RecordingIo) -> usize {
    let conn = shard.front().clients.conns.id_of(0);
    let calls = core::mem::take(&mut io.calls);
    for call in &calls {
        let extension = BackendAnswer {
            kind: call.subject.kind(),
            number: call.number,
            result: BackendResult::Extension(Some(until_unix_s)),
        };
        shard.handle(Input::BackendAnswer(conn, extension), now, io);
    }
    shard.flush(now, io);
    calls.len()
}

#[test]
fn all_subscriptions_with_one_end_go_on_if_the_backend_extends_them() {
    for lifetime_s in [20, 60, 3_600] {
        let mut io = RecordingIo::default();
        let mut shard = upgraded_with(&[CallKind::Subscribe, CallKind::SubRefresh], &mut io);
        let unix_s = shard.front().clients.ctx.wall_s();
        receive(&mut shard, &frame(CONNECT), NOW, &mut io);
        subscriptions_with_one_end(800, unix_s + lifetime_s, &mut shard, &mut io);
        let mut asked = Vec::new();
        for second in lifetime_s / 4..=lifetime_s {
            tick(&mut shard, later(second), &mut io);
            // The answer to a ping.
            receive(&mut shard, &frame("{}"), later(second), &mut io);
            asked.push(extend_all(&mut shard, u32::MAX, later(second), &mut io));
        }
        assert!(!has_sent(&io, "2501") && io.closed.is_empty());
        assert_eq!(asked.iter().sum::<usize>(), 800);
        if lifetime_s == 3_600 {
            assert!(asked.iter().all(|count| *count <= 2), "{asked:?}");
        }
    }
}

#[test]
fn question_without_room_is_asked_in_the_next_second() {
    let mut io = RecordingIo::default();
    let mut shard = upgraded_with(&[CallKind::Subscribe, CallKind::SubRefresh], &mut io);
    let unix_s = shard.front().clients.ctx.wall_s();
    receive(&mut shard, &frame(CONNECT), NOW, &mut io);
    subscriptions_with_one_end(2, unix_s + 20, &mut shard, &mut io);
    io.refuses_calls = true;
    tick(&mut shard, later(10), &mut io);
    assert!(io.calls.is_empty());
    io.refuses_calls = false;
    tick(&mut shard, later(11), &mut io);
    assert_eq!(io.calls.len(), 2);
}

#[test]
fn refresh_by_the_api_puts_off_the_question_to_the_backend() {
    let mut io = RecordingIo::default();
    let mut shard = upgraded_with(&[CallKind::Connect, CallKind::Refresh], &mut io);
    let unix_s = shard.front().clients.ctx.wall_s();
    connect_until(&mut shard, unix_s + 20, &[], &mut io);
    let front = shard.front();
    let (clients, subs) = (&mut front.clients, &mut front.subs);
    let (conn, order) = (
        clients.conns.id_of(0),
        ConnectionOrder::Refresh(unix_s + 100),
    );
    assert!(carry_out_order(clients, subs, conn, &order, &mut io));
    tick(&mut shard, later(20), &mut io);
    assert!(io.calls.is_empty() && !has_sent(&io, "expired"));
}

#[test]
fn late_answer_about_a_subscription_extends_no_other() {
    let mut io = RecordingIo::default();
    let mut shard = upgraded_with(&[CallKind::Subscribe, CallKind::SubRefresh], &mut io);
    let unix_s = shard.front().clients.ctx.wall_s();
    receive(&mut shard, &frame(CONNECT), NOW, &mut io);
    subscribe_until(&mut shard, ("a", unix_s + 20), NOW, &mut io);
    tick(&mut shard, later(10), &mut io);
    let late = io.calls.pop().expect("a call about `a`");
    let unsubscribe = frame("{\"id\":3,\"unsubscribe\":{\"channel\":\"a\"}}");
    receive(&mut shard, &unsubscribe, later(10), &mut io);
    // Without subscriptions, the list is given back. The next one numbers its subscriptions anew.
    tick(&mut shard, later(11), &mut io);
    subscribe_until(&mut shard, ("b", unix_s + 15), later(11), &mut io);
    io.calls.clear();
    tick(&mut shard, later(13), &mut io);
    assert_eq!(io.calls.len(), 1, "the backend is asked about `b`");
    let extension = BackendAnswer {
        kind: CallKind::SubRefresh,
        number: late.number,
        result: BackendResult::Extension(Some(unix_s + 1_000)),
    };
    let conn = shard.front().clients.conns.id_of(0);
    shard.handle(Input::BackendAnswer(conn, extension), later(13), &mut io);
    assert!(!has_sent(&io, "2501"));
    tick(&mut shard, later(15), &mut io);
    assert!(has_sent(&io, "2501"));
}

#[test]
fn backend_is_asked_about_the_subscriptions_that_it_begins() {
    let mut io = RecordingIo::default();
    let mut shard = upgraded_with(&[CallKind::Connect, CallKind::SubRefresh], &mut io);
    let unix_s = shard.front().clients.ctx.wall_s();
    connect_until(&mut shard, u32::MAX, &[("a", unix_s + 20)], &mut io);
    assert!(has_sent(&io, "\"connect\""));
    tick(&mut shard, later(10), &mut io);
    assert_eq!(io.calls.len(), 1);
    let extension = BackendResult::Extension(Some(unix_s + 60));
    answer(&mut shard, extension, later(10), &mut io);
    tick(&mut shard, later(20), &mut io);
    assert!(!has_sent(&io, "2501"));
}

#[test]
fn subscription_whose_end_has_passed_does_not_begin_with_the_connection() {
    let mut io = RecordingIo::default();
    let mut shard = upgraded_with(&[CallKind::Connect], &mut io);
    let unix_s = shard.front().clients.ctx.wall_s();
    connect_until(&mut shard, u32::MAX, &[("a", unix_s)], &mut io);
    assert!(has_sent(&io, "expired") && !has_sent(&io, "\"connect\""));
}

#[test]
fn client_is_not_told_to_renew_where_tokens_are_not_read() {
    let mut io = RecordingIo::default();
    let mut shard = upgraded_with(&[CallKind::Connect, CallKind::Subscribe], &mut io);
    let unix_s = shard.front().clients.ctx.wall_s();
    connect_until(&mut shard, unix_s + 20, &[], &mut io);
    subscribe_until(&mut shard, ("a", unix_s + 20), NOW, &mut io);
    assert!(has_sent(&io, "\"subscribe\"") && !has_sent(&io, "expires"));
}

#[test]
fn connect_that_was_just_answered_is_not_late() {
    let mut io = RecordingIo::default();
    let mut shard = upgraded_with(&[CallKind::Connect], &mut io);
    let late = later(Settings::default().timeouts.head_s + 1);
    receive(&mut shard, &frame(CONNECT), NOW, &mut io);
    let answer = BackendAnswer {
        kind: CallKind::Connect,
        number: io.calls.pop().expect("a call").number,
        result: failure(),
    };
    let conn = shard.front().clients.conns.id_of(0);
    // The tick comes in the same turn, before the command is carried out.
    shard.handle(Input::BackendAnswer(conn, answer), late, &mut io);
    tick(&mut shard, late, &mut io);
    assert!(!has_sent(&io, "stale") && has_sent(&io, "\"error\""));
}

#[test]
fn answer_for_a_connection_that_is_gone_reaches_no_other() {
    let mut io = RecordingIo::default();
    let mut shard = upgraded_with(&[CallKind::Rpc], &mut io);
    let call = format!("{CONNECT}\n{{\"id\":2,\"rpc\":{{\"method\":\"m\",\"data\":1}}}}");
    receive(&mut shard, &frame(&call), NOW, &mut io);
    let gone = shard.front().clients.conns.id_of(0);
    shard.handle(Input::Failed(gone), NOW, &mut io);
    shard.flush(NOW, &mut io);
    // Another connection takes its place, and has a call with the same number.
    let accepted = Input::Accepted(SocketId(6), [127, 0, 0, 1].into());
    shard.handle(accepted, NOW, &mut io);
    receive(&mut shard, UPGRADE, NOW, &mut io);
    receive(&mut shard, &frame(&call), NOW, &mut io);
    assert_eq!(io.calls.len(), 2);
    let current = shard.front().clients.conns.id_of(0);
    for (conn, is_answered) in [(gone, false), (current, true)] {
        let answer = BackendAnswer {
            kind: CallKind::Rpc,
            number: 2,
            result: BackendResult::Data(b"77".as_slice().into()),
        };
        shard.handle(Input::BackendAnswer(conn, answer), NOW, &mut io);
        shard.flush(NOW, &mut io);
        assert_eq!(has_sent(&io, "{\"data\":77}"), is_answered);
    }
}

#[test]
fn list_of_fifty_subscriptions_has_little_room_for_more() {
    let mut io = RecordingIo::default();
    let mut shard = upgraded(&mut io);
    receive(&mut shard, &frame(CONNECT), NOW, &mut io);
    for n in 0..50 {
        let command = format!("{{\"id\":2,\"subscribe\":{{\"channel\":\"c{n}\"}}}}");
        receive(&mut shard, &frame(&command), NOW, &mut io);
    }
    let list = &shard.front().clients.conns.side_row(0).list;
    assert!(
        list.len() == 50 && list.capacity() <= 56,
        "{}",
        list.capacity()
    );
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
        renewal: None,
        started_by: StartedBy::Client,
    });
    (state_mut(&mut front.clients.conns, 0).separate_grants).extend(granted);
    let before = front.clients.meter.work.steps.count();
    end_subscriptions_without_right(&mut front.clients, &mut front.subs, 0);
    let steps = front.clients.meter.work.steps.count() - before;
    assert!(steps >= 400, "{steps}");
}

#[test]
fn close_codes_let_libraries_reconnect_unless_that_is_useless() {
    let code = |reason| disconnect_of(reason).map(|it| it.code);
    assert_eq!(code(Reason::TooSlow), Some(3000));
    assert_eq!(code(Reason::InputsFull), Some(3013));
    assert_eq!(code(Reason::Broken), Some(3004));
    assert_eq!(error_of(Reason::Revoked).code, 103);
    assert_eq!(error_of(Reason::CredentialsRevoked).code, 101);
    for shortage in [Reason::MemoryFull, Reason::TopicsFull, Reason::LogFull] {
        let error = error_of(shortage);
        assert!(error.code == 111 && error.temporary(), "{shortage:?}");
    }
    assert_eq!(error_of(Reason::NamesTooLong).code, 106);
}
