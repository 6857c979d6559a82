//! The clients of `http2`: a publisher over HTTP/1.1 for each window, and event streams over HTTP/1.1 or HTTP/2, all on the calling thread.

use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use super::frames::{self, Frame};
use crate::rig::{DeliveryClients, Load, Receiver, Window};
use crate::sys::{Epoll, Interest};

/// Timeout for an expected response or message.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The publisher's epoll key.
const PUBLISHER_KEY: u64 = u64::MAX;
/// After this many received bytes a client sends a window update, so that the server may send more.
const WINDOW_STEP: u32 = 1 << 28;

/// How event streams are distributed among connections.
#[derive(Clone, Copy)]
pub struct Layout {
    /// The number of streams.
    pub streams: u32,
    /// The number of streams on each HTTP/2 connection. `None` means HTTP/1.1, where each stream has its own connection.
    pub on_each_connection: Option<u32>,
}

/// An event stream.
struct Stream {
    receiver: Receiver,
    /// The received part of an incomplete line.
    line: Vec<u8>,
}

struct Connection {
    socket: TcpStream,
    received: Vec<u8>,
    is_http2: bool,
    streams: Vec<Stream>,
    /// The number of streams whose response has begun.
    answered: usize,
    /// Bytes since the last window update.
    unreported_bytes: u32,
}

/// The streams.
pub struct Clients {
    server: SocketAddr,
    connections: Vec<Connection>,
    epoll: Epoll,
    /// The number of the next message.
    next_number: usize,
}

impl Connection {
    /// Reads once, and passes each message to `on_message`.
    fn read(&mut self, mut on_message: impl FnMut(&mut Stream, &[u8])) -> Result<()> {
        let mut bytes = [0; 64 << 10];
        match self.socket.read(&mut bytes) {
            Ok(0) => bail!("the server closed a connection"),
            Ok(size) => self.received.extend_from_slice(&bytes[..size]),
            Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error.into()),
        }
        if !self.is_http2 {
            if self.answered == 0 && self.received.windows(4).any(|part| part == b"\r\n\r\n") {
                ensure!(self.received.starts_with(b"HTTP/1.1 200 "), "no stream");
                self.answered = 1;
            }
            if self.answered == 1 {
                self.streams[0].push(&self.received, &mut on_message);
                self.received.clear();
            }
            return Ok(());
        }
        let mut handled = 0;
        while let Some((frame, bytes)) = frames::read(&self.received[handled..]) {
            handled += bytes;
            match frame {
                Frame::Data { stream, bytes } => {
                    self.unreported_bytes += bytes.len() as u32;
                    self.streams[index_of(stream)].push(bytes, &mut on_message);
                }
                Frame::Response { stream, is_ok } => {
                    ensure!(is_ok, "stream {stream} was refused");
                    self.answered += 1;
                }
                Frame::NeedsAnswer(answer) => self.socket.write_all(&answer)?,
                Frame::Other => {}
                Frame::Ended(kind) => bail!("the server ended a stream by a frame of type {kind}"),
            }
        }
        self.received.drain(..handled);
        if self.unreported_bytes >= WINDOW_STEP {
            let mut out = Vec::new();
            frames::write_window_update(self.unreported_bytes, &mut out);
            self.socket.write_all(&out)?;
            self.unreported_bytes = 0;
        }
        Ok(())
    }
}

/// The HTTP/2 stream id of the stream with this index on its connection. `index_of` is the inverse.
fn number_of(index: usize) -> u32 {
    2 * index as u32 + 1
}

fn index_of(stream: u32) -> usize {
    (stream as usize - 1) / 2
}

impl Stream {
    /// Handles received bytes of the stream. Only lines with data count: heads, chunk sizes and other fields of an event are ignored.
    fn push(&mut self, bytes: &[u8], on_message: &mut impl FnMut(&mut Stream, &[u8])) {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend_from_slice(part);
            if part.ends_with(b"\n") {
                let mut line = std::mem::take(&mut self.line);
                if let Some(message) = line.strip_prefix(b"data: ") {
                    on_message(self, message);
                }
                line.clear();
                self.line = line;
            }
        }
    }
}

impl Clients {
    /// Connects and opens all streams. Each subscribes to the topic that `topic_of` returns.
    pub fn open(
        server: SocketAddr,
        layout: Layout,
        topic_of: impl Fn(u32) -> String,
    ) -> Result<Clients> {
        let mut clients = Clients {
            server,
            connections: Vec::new(),
            epoll: Epoll::new(1024)?,
            next_number: 0,
        };
        let on_each = layout.on_each_connection.unwrap_or(1);
        let mut first = 0;
        while first < layout.streams {
            let last = layout.streams.min(first + on_each);
            let topics: Vec<String> = (first..last).map(&topic_of).collect();
            let is_http2 = layout.on_each_connection.is_some();
            let connection = Connection::open(server, is_http2, topics)?;
            let key = clients.connections.len() as u64;
            let descriptor = connection.socket.as_raw_fd();
            clients.epoll.add(descriptor, Interest::IN, key)?;
            clients.connections.push(connection);
            first = last;
        }
        Ok(clients)
    }

    fn handle_events(&mut self, publisher: &mut TcpStream, window: &mut Window) -> Result<()> {
        for index in 0..self.epoll.wait(Duration::from_secs(1))? {
            match self.epoll.ready(index).key {
                PUBLISHER_KEY => {
                    let mut bytes = [0; 64 << 10];
                    let size = publisher.read(&mut bytes)?;
                    ensure!(size > 0, "the server closed the publisher's connection");
                    let answers = String::from_utf8_lossy(&bytes[..size]);
                    let mut statuses = answers.split("HTTP/1.1 ").skip(1);
                    let refusal = statuses.find(|answer| !answer.starts_with('2'));
                    ensure!(refusal.is_none(), "a publish was refused: {refusal:?}");
                }
                key => self.connections[key as usize]
                    .read(|stream, message| window.record(&mut stream.receiver, parse(message)))?,
            }
        }
        Ok(())
    }
}

impl DeliveryClients for Clients {
    fn publish(&mut self, load: &Load) -> Result<usize> {
        let messages = load.messages;
        let mut window = Window::new(self.next_number, messages, load.receivers);
        let first_number = self.next_number;
        self.next_number += messages;
        // Each window has its own publisher, because the server closes connections that stay idle while the other variants are measured.
        let mut publisher = connect(self.server)?;
        publisher.set_nonblocking(true)?;
        let descriptor = publisher.as_raw_fd();
        self.epoll.add(descriptor, Interest::IN, PUBLISHER_KEY)?;
        let (mut published, mut progress) = (0, Instant::now());
        while window.completed < messages {
            let mut out = Vec::new();
            while published < messages && published - window.completed < load.in_flight {
                let topic = load.topic_of(published);
                let mut body = format!("{} {topic} ", first_number + published);
                body.extend(std::iter::repeat_n(
                    '.',
                    load.size.saturating_sub(body.len()),
                ));
                write!(
                    out,
                    "POST /pub/{topic} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                )?;
                published += 1;
            }
            // At most `in_flight` small requests are unanswered, so the socket has room for them.
            publisher.write_all(&out)?;
            let completed = window.completed;
            self.handle_events(&mut publisher, &mut window)?;
            if window.completed > completed {
                progress = Instant::now();
            }
            ensure!(progress.elapsed() < TIMEOUT, "messages are missing");
        }
        Ok(window.faults)
    }
}

impl Connection {
    /// Connects, requests the streams, and waits until their responses have begun.
    fn open(server: SocketAddr, is_http2: bool, topics: Vec<String>) -> Result<Connection> {
        let mut out = Vec::new();
        if is_http2 {
            frames::write_start(&mut out);
            for (index, topic) in topics.iter().enumerate() {
                frames::write_request(number_of(index), &format!("/sub/{topic}"), &mut out);
            }
        } else {
            let topic = topics.first().context("a stream")?;
            write!(
                out,
                "GET /sub/{topic} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n"
            )?;
        }
        let streams = topics.into_iter().map(|topic| Stream {
            receiver: Receiver::new(topic),
            line: Vec::new(),
        });
        let mut connection = Connection {
            socket: connect(server)?,
            received: Vec::new(),
            is_http2,
            streams: streams.collect(),
            answered: 0,
            unreported_bytes: 0,
        };
        connection.socket.write_all(&out)?;
        while connection.answered < connection.streams.len() {
            connection.read(|_, _| {})?;
        }
        connection.socket.set_nonblocking(true)?;
        Ok(connection)
    }
}

/// Opens HTTP/2 connections. Each sends one short request and receives its answer.
pub fn open_idle(server: SocketAddr, connections: u32) -> Result<Vec<TcpStream>> {
    let open = |_| {
        let mut socket = connect(server)?;
        let mut out = Vec::new();
        frames::write_start(&mut out);
        frames::write_request(number_of(0), "/", &mut out);
        socket.write_all(&out)?;
        let (mut received, mut bytes, mut is_answered) = (Vec::new(), [0; 4096], false);
        while !is_answered {
            let size = socket.read(&mut bytes)?;
            ensure!(size > 0, "the server closed a connection");
            received.extend_from_slice(&bytes[..size]);
            let mut handled = 0;
            while let Some((frame, bytes)) = frames::read(&received[handled..]) {
                handled += bytes;
                match frame {
                    Frame::NeedsAnswer(answer) => socket.write_all(&answer)?,
                    Frame::Ended(_) => is_answered = true,
                    Frame::Data { .. } | Frame::Response { .. } | Frame::Other => {}
                }
            }
            received.drain(..handled);
        }
        Ok(socket)
    };
    (0..connections).map(open).collect()
}

fn connect(server: SocketAddr) -> Result<TcpStream> {
    let socket = TcpStream::connect(server)?;
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(TIMEOUT))?;
    Ok(socket)
}

/// Number and topic of a message.
fn parse(message: &[u8]) -> Option<(usize, &str)> {
    let mut words = std::str::from_utf8(message).ok()?.split(' ');
    Some((words.next()?.parse().ok()?, words.next()?))
}
