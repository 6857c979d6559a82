//! Tests many subscribers that never read (WebSockets and event streams), while others receive every message in order. Memory stays below a
//! bound that follows from the settings, and a second crowd does not need more than the first.
//!
//! The crowd is `crore-bench` with small receive buffers, which SIGSTOP suspends.

use crate::support::http::Conn;
use crate::support::stream::Stream;
use crate::support::ws::{TEXT, Ws};
use crate::support::{Server, bench_program};
use std::process::{Child, Command, Stdio};

/// The size of a message. Each goes to all subscribers.
const MESSAGE_BYTES: usize = 8_000;
/// The limit of bytes that wait for one connection, and the size of the topic's log.
const OUTBOX_BYTES: u64 = 32_000;
/// Memory of a connection: its outbox (a vector of bytes grows by doubling), its table rows with their spare room, and the allocator's
/// overhead.
const CONNECTION_BYTES: u64 = 2 * OUTBOX_BYTES + 4_000;
/// Memory that does not depend on the number of subscribers: logs, messages between shards, and the allocations of one publish.
const FIXED_BYTES: u64 = 24 << 20;

/// Subscribers that no longer read.
struct Stalled(Child);

impl Stalled {
    /// Subscribes `count` clients over `protocol`, and then suspends them. The topic has `subscribers_before` subscribers already.
    fn subscribe_and_suspend(
        server: &Server,
        protocol: &str,
        count: u64,
        subscribers_before: u64,
    ) -> Stalled {
        let tool = Command::new(bench_program())
            .args(["subscribe", "--quiet", "--topics", "news"])
            .args(["--receive-buffer", "2048", "--protocol", protocol])
            .args(["--connections", &count.to_string()])
            .args(["--server", &server.address().to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let stalled = Stalled(tool.expect("the load tool starts"));
        server.await_subscribers("news", subscribers_before + count);
        let stop = Command::new("kill")
            .args(["-STOP", &stalled.0.id().to_string()])
            .status();
        assert!(stop.expect("kill is there").success());
        stalled
    }
}

impl Drop for Stalled {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Publishes the messages. The healthy clients read each message before the next one is published, so that they never fall behind. Returns
/// the highest memory.
fn flood(server: &Server, healthy: &mut (Ws, Stream), round: usize, messages: usize) -> u64 {
    let mut publisher = Conn::open(server);
    let mut bytes_max = 0;
    for number in 0..messages {
        let text = format!("{round:03}{number:06}{}", "x".repeat(MESSAGE_BYTES - 9));
        let response = publisher.request("POST", "/pub/news", &[], &text);
        assert_eq!(response.status, 201, "message {number}");
        let frame = healthy.0.message();
        assert_eq!((frame.opcode(), frame.text()), (TEXT, text.clone()));
        let event = healthy.1.event().expect("the stream goes on");
        assert_eq!((event.kind.as_str(), event.data), ("message", text));
        bytes_max = bytes_max.max(server.resident_bytes());
    }
    bytes_max
}

/// `messages` must be several times what the sockets of the crowd hold. On the loopback the kernel lets a send buffer grow to about 4 MB,
/// until `tcp_mem` is used up.
fn run(crowd: u64, messages: usize) {
    let server = Server::with(&format!(
        "[limits]\noutbox_bytes = {OUTBOX_BYTES}\n\
         message_bytes = {MESSAGE_BYTES}\n[timeouts]\nbody_s = 600\n\
         [[rule]]\nmatch = \"#\"\nlog_messages = 10\nslow = \"skip\"\n"
    ));
    let mut healthy = (
        Ws::open(&server, "/sub/news", &[]),
        Stream::open(&server, "/sub/news", &[]),
    );
    server.await_subscribers("news", 2);
    let bytes_before = server.resident_bytes();
    let bound = crowd * CONNECTION_BYTES + FIXED_BYTES;
    let offered = crowd * (messages * MESSAGE_BYTES) as u64;
    assert!(bound < offered / 4, "the bound could not fail");
    for round in 0..2 {
        let sockets = Stalled::subscribe_and_suspend(&server, "ws", crowd / 2, 2);
        let streams = Stalled::subscribe_and_suspend(&server, "sse", crowd / 2, 2 + crowd / 2);
        let grown = flood(&server, &mut healthy, round, messages).saturating_sub(bytes_before);
        assert!(
            grown < bound,
            "{crowd} that do not read: {grown} bytes in round {round}, at most {bound}"
        );
        drop((sockets, streams));
        server.await_subscribers("news", 2);
    }
    // The server has forgotten no subscriber, and still works.
    flood(&server, &mut healthy, 2, messages);
}

#[test]
fn memory_follows_from_the_limits_when_a_crowd_does_not_read() {
    run(120, 700);
}

#[test]
#[ignore = "uses up the kernel's memory for TCP, which slows whatever else runs; `cargo xtask test` runs it alone"]
fn memory_follows_from_the_limits_when_ten_thousand_do_not_read() {
    run(10_000, 100);
}
