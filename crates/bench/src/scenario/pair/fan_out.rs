//! Measures a fan-out over WebSocket with a fixed number of messages in flight: when a message has reached all subscribers, the next one is
//! published. The rate shows how a server handles a busy topic whose publishers wait for the readers. The latency includes the wait behind
//! the other messages in flight. Their number is the same for all servers, so the latencies can be compared.
//!
//! The first messages are spread over the duration of one fan-out, as with independent publishers. If they were published together, they
//! would reach all subscribers at the same time, and the next messages would be published together again. Then any server could write all
//! of them together.
//!
//! Publisher and subscribers run on one thread, because the publisher must know at once what has arrived. All messages have the same
//! length, so the received bytes of a connection give the number of its messages. Message numbers and latencies are read from those messages
//! whose header arrives in one piece.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Parser;
use serde_json::{Value, json};

use crate::client::request;
use crate::measure::payload::{HEADER_BYTES, Header};
use crate::measure::stats::Latency;
use crate::publish::{PublishArgs, Publisher};
use crate::rig::{RunArgs, Sample, Server, ServerKind, ServerOptions, bottleneck};
use crate::subscribe::Protocol;
use crate::sys::{self, DialOptions, Epoll, Interest};

/// Default number of subscribers.
const FAN_OUT_SUBSCRIBERS: u32 = 1_000;
/// Default size of a message, in bytes.
const DEFAULT_MESSAGE_BYTES: usize = 512;
/// Warm-up before the window, in seconds.
const WARM_UP_S: f64 = 1.0;
/// Default duration of the window, in seconds.
const WINDOW_S: f64 = 5.0;
/// Timeout for the next message.
const TIMEOUT_NS: u64 = 20_000_000_000;
/// The number of connections that are read before each turn of the publisher. It is a small part of the subscribers, so that the publisher
/// does not learn of several complete messages at once.
const READS_PER_TURN: usize = 32;
const TOPIC: &str = "news";
/// Size of one read.
const BUFFER_BYTES: usize = 256 << 10;
/// Size of a frame's header, for messages of more than 125 bytes.
const FRAME_HEADER_BYTES: usize = 4;
const MESSAGE_BYTES_RANGE: std::ops::RangeInclusive<usize> = 126..=65_535;

/// Measures the rate with `in_flight` messages in flight, each to all subscribers.
pub fn fan_out_with(args: &RunArgs, kind: ServerKind, in_flight: u64) -> Result<Value> {
    ensure!(
        kind.protocol(args.subscribe_protocol()) == Protocol::Ws,
        "only subscribers over WebSocket are measured with few messages under way"
    );
    let options = ServerOptions::new(kind, args.shards.unwrap_or(1), args.keep(Protocol::Ws));
    let mut server = Server::start(args, options)?;
    std::thread::scope(|scope| {
        let run = scope.spawn(|| {
            args.pin_tool()?;
            measure(args, &mut server, in_flight)
        });
        run.join().expect("the load does not panic")
    })
}

fn measure(args: &RunArgs, server: &mut Server, in_flight: u64) -> Result<Value> {
    let size = args.size.unwrap_or(DEFAULT_MESSAGE_BYTES);
    ensure!(
        MESSAGE_BYTES_RANGE.contains(&size),
        "messages have {MESSAGE_BYTES_RANGE:?} bytes"
    );
    let mut audience = Audience::open(
        server,
        args.connections.unwrap_or(FAN_OUT_SUBSCRIBERS),
        size,
    )?;
    let mut publisher = open_publisher(server, size, in_flight)?;
    audience.run_for(&mut publisher, in_flight, WARM_UP_S)?;
    audience.reset_window();
    let (before, tools_before) = (Sample::of(server)?, sys::process_cpu_ns());
    audience.run_for(&mut publisher, in_flight, args.duration.unwrap_or(WINDOW_S))?;
    let (after, tools_after) = (Sample::of(server)?, sys::process_cpu_ns());
    let elapsed_s = after.seconds_since(&before);
    let deliveries_per_s = audience.window.messages as f64 / elapsed_s;
    let server_busy = after.cores_since(&before);
    let server_waited = (after.process.waited_s - before.process.waited_s) / elapsed_s;
    let tools_busy = (tools_after - tools_before) as f64 / 1e9 / elapsed_s;
    let latency = audience.window.latency.summary().json();
    Ok(json!({
        "clean": publisher.refused() == 0,
        "under_way": in_flight,
        "deliveries_per_s": deliveries_per_s,
        "p50_ms": latency["p50"],
        "latency_ms": latency,
        "messages_per_read": audience.window.messages as f64 / audience.window.reads as f64,
        "server_cpu_us_per_delivery": server_busy / deliveries_per_s * 1e6,
        "server_cores_busy": server_busy,
        "server_cores_waited_for": server_waited,
        "tools_cores_busy": tools_busy,
        "bottleneck": bottleneck(server_busy + server_waited, 1.0, tools_busy, 1.0),
        "complaints": server.error_log(),
    }))
}

/// A publisher with the flags that are fastest for this kind of server.
fn open_publisher(server: &Server, size: usize, in_flight: u64) -> Result<Publisher> {
    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: PublishArgs,
    }
    let mut line = vec!["publish", "--saturate"];
    line.extend(server.kind.publish_flags(Protocol::Ws).0);
    if server.kind == ServerKind::Floor {
        line.push("--broadcast");
    }
    let args = PublishArgs {
        server: vec![server.addresses[0].to_string()],
        topics: TOPIC.into(),
        size,
        in_flight: in_flight as usize,
        ..Line::parse_from(line).args
    };
    Publisher::open(&args)
}

/// The counts of a window.
#[derive(Default)]
struct Window {
    messages: u64,
    reads: u64,
    latency: Latency,
}

/// The subscribers.
struct Audience {
    epoll: Epoll,
    /// Each connection's descriptor, and the bytes received after the response head.
    connections: Vec<(i32, u64)>,
    buffer: Vec<u8>,
    frame_bytes: usize,
    /// For each message after the first `complete_messages`, the number of connections that have received it.
    receipt_counts: std::collections::VecDeque<u32>,
    /// The number of messages that all connections have received.
    complete_messages: u64,
    /// Deliveries, including those before the window.
    deliveries: u64,
    window: Window,
}

impl Audience {
    /// Opens the connections one after another.
    fn open(server: &Server, count: u32, size: usize) -> Result<Audience> {
        sys::raise_descriptor_limit();
        let remote = server.addresses[0];
        let mut audience = Audience {
            epoll: Epoll::new(READS_PER_TURN)?,
            connections: Vec::new(),
            buffer: vec![0; BUFFER_BYTES],
            frame_bytes: FRAME_HEADER_BYTES + size,
            receipt_counts: Default::default(),
            complete_messages: 0,
            deliveries: 0,
            window: Window::default(),
        };
        let request_bytes = request::upgrade(&remote.to_string(), &format!("/sub/{TOPIC}"), None);
        for index in 0..count {
            let options = DialOptions {
                remote,
                local: None,
                receive_buffer: None,
            };
            let (fd, connected) = sys::dial(&options).context("a subscriber's connection")?;
            audience.connections.push((fd, 0));
            if !connected {
                sys::wait_writable(fd);
                sys::connect_result(fd)?;
            }
            sys::no_delay(fd)?;
            ensure!(
                sys::send(fd, &request_bytes)? == request_bytes.len(),
                "the request is sent"
            );
            audience.epoll.add(fd, Interest::IN, index.into())?;
            audience.read_response_head(fd)?;
        }
        Ok(audience)
    }

    /// Reads the answer to an upgrade.
    fn read_response_head(&mut self, fd: i32) -> Result<()> {
        let (mut head, start_ns) = (Vec::new(), sys::now_ns());
        while !head.ends_with(b"\r\n\r\n") {
            ensure!(sys::now_ns() - start_ns < TIMEOUT_NS, "no answer came");
            self.epoll.wait(Duration::from_millis(1))?;
            match sys::receive(fd, &mut self.buffer)? {
                Some(0) => bail!("the server closed a subscriber's connection"),
                count => head.extend_from_slice(&self.buffer[..count.unwrap_or(0)]),
            }
        }
        let text = String::from_utf8_lossy(&head);
        ensure!(text.starts_with("HTTP/1.1 101"), "it answered: {text}");
        Ok(())
    }

    fn reset_window(&mut self) {
        self.window = Window::default();
    }

    /// Publishes and reads during `seconds`.
    fn run_for(&mut self, publisher: &mut Publisher, in_flight: u64, seconds: f64) -> Result<()> {
        let start_ns = sys::now_ns();
        let (mut now_ns, mut last_read_ns) = (start_ns, start_ns);
        while now_ns - start_ns < (seconds * 1e9) as u64 {
            publisher.set_messages_max(self.complete_messages + self.in_flight_max(in_flight));
            publisher.run_turn(now_ns, now_ns)?;
            let ready = self.epoll.wait(Duration::from_millis(1))?;
            now_ns = sys::now_ns();
            for index in 0..ready {
                self.read(self.epoll.ready(index).key as usize, now_ns)?;
                last_read_ns = now_ns;
            }
            ensure!(now_ns - last_read_ns < TIMEOUT_NS, "no message came");
        }
        Ok(())
    }

    /// The number of messages that may be in flight. It is one at first, and rises to `in_flight` during the first fan-out.
    fn in_flight_max(&self, in_flight: u64) -> u64 {
        let connections = self.connections.len() as u64;
        in_flight.min(1 + self.deliveries * in_flight / connections)
    }

    /// Reads from a connection.
    fn read(&mut self, index: usize, now_ns: u64) -> Result<()> {
        let (fd, bytes_before) = self.connections[index];
        let Some(count) = sys::receive(fd, &mut self.buffer)? else {
            return Ok(());
        };
        ensure!(count > 0, "the server closed a subscriber's connection");
        let (frame_bytes, bytes_after) = (self.frame_bytes as u64, bytes_before + count as u64);
        self.connections[index].1 = bytes_after;
        self.window.reads += 1;
        for number in bytes_before / frame_bytes..bytes_after / frame_bytes {
            self.window.messages += 1;
            self.deliveries += 1;
            let queue_index = (number - self.complete_messages) as usize;
            if queue_index >= self.receipt_counts.len() {
                self.receipt_counts.resize(queue_index + 1, 0);
            }
            self.receipt_counts[queue_index] += 1;
            // If a part of the header arrived in another read, the message's number and latency are unknown.
            let start = number * frame_bytes + FRAME_HEADER_BYTES as u64;
            let payload = start.checked_sub(bytes_before).map(|start| start as usize);
            let payload = payload.and_then(|start| self.buffer.get(start..start + HEADER_BYTES));
            if let Some(payload) = payload {
                let header = Header::decode(payload).context("a message of another publisher")?;
                ensure!(
                    u64::from(header.sequence) == number + 1,
                    "message {} came in the place of {}",
                    header.sequence,
                    number + 1
                );
                let latency_ns = now_ns.saturating_sub(header.sent_ns);
                self.window.latency.add(latency_ns);
            }
        }
        while self
            .receipt_counts
            .front()
            .is_some_and(|received| *received as usize == self.connections.len())
        {
            self.receipt_counts.pop_front();
            self.complete_messages += 1;
        }
        Ok(())
    }
}

impl Drop for Audience {
    fn drop(&mut self) {
        for (fd, _) in &self.connections {
            sys::close(*fd);
        }
    }
}
