//! Honest readers over HTTP and WebSocket.

use std::sync::atomic::Ordering;
use std::time::Instant;

use crore_wire::websocket::frame::{Opcode, write_masked};
use crore_wire::websocket::receive::{Config, Event, Partial, Role, next};

use super::stream::{Stream, read_answer, read_head};
use super::topics::{ANEW, EXACTLY, HTTP, MQTT, SOCKET};
use super::{ANSWER_TIMEOUT, Server};
use crate::tally::{SequenceCheck, Tally};

/// Number of polls over one connection. Then the reader opens another one.
const POLLS: usize = 20;
/// The maximum size of a message. The tests publish none that is longer.
const MESSAGE_BYTES: usize = 1 << 20;

/// Reads until all messages have arrived. The error names the missing ones.
fn read_until_complete(
    tally: &Tally,
    check: &mut SequenceCheck<'_>,
    mut read: impl FnMut(&mut SequenceCheck<'_>) -> Result<(), String>,
) -> Result<(), String> {
    let mut finishing: Option<Instant> = None;
    while !check.is_done() {
        read(check)?;
        if tally.must_finish.load(Ordering::Relaxed) {
            let finish_start = *finishing.get_or_insert_with(Instant::now);
            if finish_start.elapsed() > ANSWER_TIMEOUT {
                let missing = check.missing().unwrap_or_default();
                return Err(format!("lost at the end: {missing}"));
            }
        }
    }
    Ok(())
}

/// Reads one message with each request. Each request goes on where the last one ended.
pub fn long_poll(server: &Server, tally: &Tally) -> Result<(), String> {
    let mut check = SequenceCheck::new(tally, "long-poll", &[HTTP]);
    let mut stream = Stream::plain(server)?;
    let mut tag: Option<String> = None;
    let mut polls = 0;
    tally.ready_readers.fetch_add(1, Ordering::Relaxed);
    read_until_complete(tally, &mut check, |check| {
        polls += 1;
        if polls % POLLS == 0 {
            stream = Stream::plain(server)?;
        }
        let condition = match &tag {
            None => String::new(),
            Some(tag) => format!("If-None-Match: {tag}\r\n"),
        };
        let request = format!("GET /sub/{HTTP} HTTP/1.1\r\nHost: localhost\r\n{condition}\r\n");
        stream.send(request.as_bytes())?;
        let answer = read_answer(&mut stream)?;
        if answer.field("crore-gap").is_some() {
            return Err(format!("it is told a gap: {}", answer.describe()));
        }
        tag = answer.field("etag").map(ToString::to_string).or(tag.take());
        match answer.status {
            200 => check.receive(&answer.body),
            204 | 304 => {}
            _ => return Err(format!("it is refused: {}", answer.describe())),
        }
        Ok(())
    })
}

pub fn event_stream(server: &Server, tally: &Tally) -> Result<(), String> {
    let target = format!("/sub/{HTTP}?since=oldest");
    let check = SequenceCheck::new(tally, "event stream", &[HTTP]);
    read_event_stream(tally, Stream::plain(server)?, &target, check)
}

pub fn filter_over_tls(server: &Server, tally: &Tally) -> Result<(), String> {
    let target = "/sub?filter=own/%23&since=oldest";
    let topics = [ANEW, SOCKET, EXACTLY];
    let check = SequenceCheck::new(tally, "event stream of a filter, over TLS", &topics);
    read_event_stream(tally, Stream::tls(server)?, target, check)
}

fn read_event_stream(
    tally: &Tally,
    mut stream: Stream,
    target: &str,
    mut check: SequenceCheck<'_>,
) -> Result<(), String> {
    let request =
        format!("GET {target} HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n");
    stream.send(request.as_bytes())?;
    let head = read_head(&mut stream)?;
    if head.status != 200 {
        return Err(format!("it is refused: {}", head.describe()));
    }
    tally.ready_readers.fetch_add(1, Ordering::Relaxed);
    let mut text = Vec::new();
    read_until_complete(tally, &mut check, |check| {
        stream.read_available()?;
        while let Some((chunk, bytes)) = first_chunk(&stream.unparsed)? {
            text.extend_from_slice(&chunk);
            stream.unparsed.drain(..bytes);
        }
        while let Some(end) = text.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            if let Some(data) = line.strip_prefix(b"data: ") {
                check.receive(data.trim_ascii_end());
            } else if line.starts_with(b"event: crore") {
                return Err(format!("it is told {:?}", String::from_utf8_lossy(&line)));
            }
        }
        Ok(())
    })
}

/// The first complete chunk in these bytes, and its length.
fn first_chunk(unparsed: &[u8]) -> Result<Option<(Vec<u8>, usize)>, String> {
    let Some(line) = unparsed.windows(2).position(|pair| pair == b"\r\n") else {
        return Ok(None);
    };
    let size = std::str::from_utf8(&unparsed[..line]).ok();
    let size = size.and_then(|size| usize::from_str_radix(size, 16).ok());
    let size = size.ok_or_else(|| "a bad chunk".to_string())?;
    if size == 0 {
        return Err("the stream was ended".to_string());
    }
    let (data_start, end) = (line + 2, line + 2 + size);
    let whole = unparsed.get(..end + 2);
    Ok(whole.map(|whole| (whole[data_start..end].to_vec(), end + 2)))
}

pub fn web_socket(server: &Server, tally: &Tally) -> Result<(), String> {
    let target = format!("/sub/{MQTT}?since=oldest");
    let mut check = SequenceCheck::new(tally, "WebSocket", &[MQTT]);
    let mut socket = Socket::open(server, &target, "")?;
    tally.ready_readers.fetch_add(1, Ordering::Relaxed);
    read_until_complete(tally, &mut check, |check| {
        socket.read(|message| check.receive(message))
    })
}

pub fn web_socket_of_two(server: &Server, tally: &Tally) -> Result<(), String> {
    let name = "WebSocket with JSON of two topics";
    let target = format!("/sub?topic={HTTP}&topic={SOCKET}&since=oldest&envelope=json");
    let mut check = SequenceCheck::new(tally, name, &[HTTP, SOCKET]);
    let mut socket = Socket::open(server, &target, "")?;
    tally.ready_readers.fetch_add(1, Ordering::Relaxed);
    read_until_complete(tally, &mut check, |check| {
        socket.read(|message| {
            let value: Option<serde_json::Value> = serde_json::from_slice(message).ok();
            let field = |name| value.as_ref().and_then(|value| value[name].as_str());
            match (field("data"), field("id"), field("gap")) {
                // An event with only an id: the position before the first message.
                (None, Some(_), None) => {}
                (data, ..) => check.receive(data.map_or(message, str::as_bytes)),
            }
        })
    })
}

/// A WebSocket that answers pings.
pub struct Socket {
    stream: Stream,
    partial: Option<Box<Partial>>,
}

impl Socket {
    pub fn open(server: &Server, target: &str, extra_headers: &str) -> Result<Socket, String> {
        let mut stream = Stream::plain(server)?;
        let request = format!(
            "GET {target} HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
             Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n{extra_headers}\r\n"
        );
        stream.send(request.as_bytes())?;
        let head = read_head(&mut stream)?;
        if head.status != 101 {
            return Err(format!("it is refused: {}", head.describe()));
        }
        let partial = None;
        Ok(Socket { stream, partial })
    }

    /// Sends a text frame, in one piece or two.
    pub fn send(&mut self, text: &[u8], in_two: bool) -> Result<(), String> {
        let bytes = masked(Opcode::Text, text);
        match in_two {
            true => self.stream.send_in_two(&bytes),
            false => self.stream.send(&bytes),
        }
    }

    /// Waits a moment for messages.
    pub fn read(&mut self, mut take: impl FnMut(&[u8])) -> Result<(), String> {
        let config = Config {
            role: Role::Client,
            message_bytes: MESSAGE_BYTES,
            deflate: false,
        };
        self.stream.read_available()?;
        let mut held = std::mem::take(&mut self.stream.unparsed);
        let mut at = 0;
        while at < held.len() {
            let step = next(&mut self.partial, &mut held[at..], &config)
                .map_err(|violation| format!("a bad frame: {violation:?}"))?;
            at += step.consumed;
            match step.event {
                None => break,
                Some(Event::Text(message) | Event::Binary(message)) => take(message),
                Some(Event::Ping(payload)) => {
                    let pong = masked(Opcode::Pong, payload);
                    self.stream.send(&pong)?;
                }
                Some(Event::Pong(_)) => {}
                Some(Event::Close { code, reason }) => {
                    let reason = String::from_utf8_lossy(reason);
                    return Err(format!("the server closed it: {code:?} {reason}"));
                }
            }
        }
        Ok(())
    }
}

fn masked(opcode: Opcode, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    write_masked(&mut out, opcode, payload, [1, 2, 3, 4]);
    out
}
