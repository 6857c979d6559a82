//! A server over the codec, without sockets: it answers every request with its head and its body.

use std::collections::BTreeMap;

use crore_wire::http::head::{self, HeadError, Method};
use crore_wire::http::response::ResponseHead;
use crore_wire::http2::{Connection, ErrorCode, Event, Limits, Scratch, Violation};

/// The requests whose bodies are incomplete, and the answers that wait for a window.
#[derive(Default)]
struct Streams {
    /// By stream: the answer, which begins with the head of the request.
    requests: BTreeMap<u32, Vec<u8>>,
    /// By stream: the rest of the answer, and whether it ends there.
    waiting: BTreeMap<u32, (Vec<u8>, bool)>,
    tunnels: Vec<u32>,
}

pub struct Service {
    pub connection: Connection,
    limits: Limits,
    streams: Streams,
    scratch: Scratch,
    incomplete_frame: Vec<u8>,
    /// What must be sent.
    pub out: Vec<u8>,
    /// Why the connection must be closed.
    pub violation: Option<Violation>,
}

impl Service {
    pub fn new(limits: Limits) -> Service {
        let mut out = Vec::new();
        Service {
            connection: Connection::new(&limits, &mut out),
            limits,
            streams: Streams::default(),
            scratch: Scratch::default(),
            incomplete_frame: Vec::new(),
            out,
            violation: None,
        }
    }

    pub fn receive(&mut self, bytes: &[u8], now_s: u32) {
        self.incomplete_frame.extend_from_slice(bytes);
        let mut at = 0;
        loop {
            let (limits, scratch, out) = (&self.limits, &mut self.scratch, &mut self.out);
            let unread = &self.incomplete_frame[at..];
            match self.connection.receive(unread, now_s, limits, scratch, out) {
                Ok(received) => {
                    at += received.consumed;
                    let Some(event) = received.event else { break };
                    self.streams
                        .handle(&mut self.connection, event, &mut self.out);
                }
                Err(violation) => {
                    self.violation = Some(violation);
                    break;
                }
            }
        }
        self.incomplete_frame.drain(..at);
    }
}

impl Streams {
    fn handle(&mut self, connection: &mut Connection, event: Event<'_>, out: &mut Vec<u8>) {
        match event {
            Event::Request { stream, head, ends } => {
                match head::parse(head, usize::MAX) {
                    Ok(Some(request)) if request.is_websocket_upgrade() => {
                        let answer = b"HTTP/1.1 101 x\r\nUpgrade: websocket\r\n\r\n";
                        connection.respond(stream, answer, false, out);
                        self.tunnels.push(stream);
                        return;
                    }
                    Err(error) => return refuse(connection, stream, error, out),
                    Ok(_) => {}
                }
                self.requests.insert(stream, head.to_vec());
                if ends {
                    self.answer(connection, stream, out);
                }
            }
            Event::TooLarge { stream } => refuse(connection, stream, HeadError::TooLarge, out),
            Event::Data {
                stream, data, ends, ..
            } => {
                connection.release(stream, data.len(), out);
                if self.tunnels.contains(&stream) {
                    return self.write(connection, stream, data, ends, out);
                }
                if let Some(request) = self.requests.get_mut(&stream) {
                    request.extend_from_slice(data);
                    if ends {
                        self.answer(connection, stream, out);
                    }
                }
            }
            Event::Reset { stream, .. } | Event::Refused { stream, .. } => {
                self.requests.remove(&stream);
                self.waiting.remove(&stream);
            }
            Event::Writable { .. } => {
                for (stream, (rest, ends)) in std::mem::take(&mut self.waiting) {
                    self.write(connection, stream, &rest, ends, out);
                }
            }
            Event::GoAway { .. } => {}
        }
    }

    fn answer(&mut self, connection: &mut Connection, stream: u32, out: &mut Vec<u8>) {
        let echo = self.requests.remove(&stream).expect("a request");
        let head = head::parse(&echo, usize::MAX)
            .expect("valid")
            .expect("whole");
        if head.path == b"/refused" {
            return connection.reset(stream, ErrorCode::RefusedStream, out);
        }
        let is_head = head.method == Method::Head;
        let mut answer = Vec::new();
        let response = ResponseHead::new(&mut answer, 200).header("Content-Type", b"text/plain");
        response.header("Connection", b"close").content(&echo);
        let len = connection.respond(stream, &answer, is_head, out);
        let len = len.expect("the stream is open");
        if !is_head {
            self.write(connection, stream, &answer[len..], true, out);
        }
    }

    /// Writes what the windows allow, and keeps the rest.
    fn write(
        &mut self,
        connection: &mut Connection,
        stream: u32,
        body: &[u8],
        ends: bool,
        out: &mut Vec<u8>,
    ) {
        if let Some((rest, end)) = self.waiting.get_mut(&stream) {
            rest.extend_from_slice(body);
            *end = ends;
            return;
        }
        let accepted = connection.send_data(stream, body, ends, out);
        if accepted < body.len() {
            self.waiting
                .insert(stream, (body[accepted..].to_vec(), ends));
        }
    }
}

fn refuse(connection: &mut Connection, stream: u32, error: HeadError, out: &mut Vec<u8>) {
    let mut answer = Vec::new();
    ResponseHead::new(&mut answer, error.status()).end();
    connection.respond(stream, &answer, true, out);
}
