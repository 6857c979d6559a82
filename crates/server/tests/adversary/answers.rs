//! Checks the bytes that the server sends to an attacker: one response to each request, frames and packets that the decoders of
//! `crore-wire` accept, and nothing after the last one (a response that announces the end of the connection, or a Close frame).

use std::collections::VecDeque;

use crore_wire::http2::frame::{HEADER_BYTES, Header, Kind, PAYLOAD_MAX};
use crore_wire::mqtt::{Packet, Version, decode, fixed_header};
use crore_wire::websocket::receive::{Config, Event, Partial, Role, next};

use crate::script::{Ask, Protocol};

/// The maximum length of a head, a line or a packet. A longer one is a fault of the server.
const PART_MAX: usize = 8 << 20;

/// Reads and checks the bytes that one connection receives.
pub struct Answers {
    state: State,
    buffer: Vec<u8>,
    unanswered: VecDeque<Ask>,
    /// The answer that is being read says that the connection ends after it.
    is_last: bool,
    /// Number of complete answers, frames or packets.
    pub count: usize,
}

enum State {
    Head,
    /// In a body. This number of bytes is missing.
    Body(u64),
    Chunk,
    /// In the data of a chunk or the line break after it. This number of bytes is missing.
    ChunkData(u64),
    Trailer,
    UntilEnd,
    WebSocket(WebSocket),
    Mqtt(Mqtt),
    /// Reads HTTP/2 frames. True after the server's preface (its SETTINGS frame) has come.
    Http2(bool),
    /// An answer said that the connection ends.
    Over,
    Unjudged,
}

#[derive(Default)]
struct WebSocket {
    partial: Option<Box<Partial>>,
    deflate: bool,
    mqtt: Option<Mqtt>,
    has_closed: bool,
}

struct Mqtt {
    version: Version,
    is_connected: bool,
    buffer: Vec<u8>,
    has_disconnected: bool,
}

impl Answers {
    pub fn new(protocol: Protocol) -> Answers {
        Answers {
            state: match protocol {
                Protocol::Http => State::Head,
                Protocol::Http2 => State::Http2(false),
                Protocol::Mqtt(version) => State::Mqtt(Mqtt::new(version)),
                Protocol::Noise => State::Unjudged,
            },
            buffer: Vec::new(),
            unanswered: VecDeque::new(),
            is_last: false,
            count: 0,
        }
    }

    pub fn expect_answers_to(&mut self, asks: &[Ask]) {
        self.unanswered.extend(asks);
    }

    /// Checks received bytes. The error says what is wrong with them.
    pub fn check(&mut self, bytes: &mut [u8]) -> Result<(), String> {
        match &mut self.state {
            State::Unjudged => {
                self.count += bytes.len().min(1);
                return Ok(());
            }
            State::WebSocket(socket) => return socket.check(bytes, &mut self.count),
            // A server that has read nothing does not know that the client speaks MQTT. So it may refuse the client once over HTTP, like
            // any client that sent no request: because it was too slow or because there are too many clients.
            State::Mqtt(mqtt) if mqtt.has_received_nothing() && bytes.first() == Some(&b'H') => {
                self.state = State::Head;
                self.buffer.extend_from_slice(bytes);
            }
            // It may refuse a client of HTTP/2 in that way too.
            State::Http2(false) if self.buffer.is_empty() && bytes.first() == Some(&b'H') => {
                self.state = State::Unjudged;
                return Ok(());
            }
            State::Mqtt(mqtt) => return mqtt.check(bytes, &mut self.count),
            _ => self.buffer.extend_from_slice(bytes),
        }
        while self.step()? {}
        match self.buffer.len() {
            0..PART_MAX => Ok(()),
            _ => Err("a part of an answer has no end".to_string()),
        }
    }

    /// Reads one part of an answer. False if not enough bytes have arrived.
    fn step(&mut self) -> Result<bool, String> {
        if self.buffer.is_empty() {
            return Ok(false);
        }
        match &mut self.state {
            State::Head => return self.read_head(),
            State::Http2(_) => return self.read_http2_frame(),
            State::Body(missing) | State::ChunkData(missing) => {
                let available = (self.buffer.len() as u64).min(*missing);
                self.buffer.drain(..available as usize);
                *missing -= available;
                if *missing > 0 {
                    return Ok(false);
                }
                self.state = match self.state {
                    State::ChunkData(_) => State::Chunk,
                    _ => self.state_after_answer(),
                };
            }
            State::Chunk => {
                let Some(line) = self.take_line()? else {
                    return Ok(false);
                };
                let size = u64::from_str_radix(&line, 16)
                    .map_err(|_| format!("{line:?} is no chunk size"))?;
                self.state = match size {
                    0 => State::Trailer,
                    size => State::ChunkData(size + 2),
                };
            }
            State::Trailer => match self.take_line()? {
                None => return Ok(false),
                Some(line) if line.is_empty() => self.state = self.state_after_answer(),
                Some(_) => {}
            },
            State::UntilEnd => self.buffer.clear(),
            State::Over => {
                let preview = preview(&self.buffer);
                return Err(format!("bytes after an answer that closes: {preview}"));
            }
            State::WebSocket(_) | State::Mqtt(_) | State::Unjudged => {
                let mut rest = std::mem::take(&mut self.buffer);
                self.check(&mut rest)?;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads a frame of HTTP/2.
    fn read_http2_frame(&mut self) -> Result<bool, String> {
        let Some(header) = Header::read(&self.buffer) else {
            return Ok(false);
        };
        if header.payload_bytes() > PAYLOAD_MAX {
            return Err(format!("a frame that is too long: {header:?}"));
        }
        if matches!(self.state, State::Http2(false)) && header.kind != Kind::Settings as u8 {
            return Err(format!("the first frame is not SETTINGS: {header:?}"));
        }
        let len = HEADER_BYTES + header.payload_bytes();
        if self.buffer.len() < len {
            return Ok(false);
        }
        self.buffer.drain(..len);
        self.state = State::Http2(true);
        self.count += 1;
        Ok(true)
    }

    fn state_after_answer(&mut self) -> State {
        self.count += 1;
        match self.is_last {
            true => State::Over,
            false => State::Head,
        }
    }

    fn take_line(&mut self) -> Result<Option<String>, String> {
        let Some(end) = self.buffer.windows(2).position(|pair| pair == b"\r\n") else {
            return Ok(None);
        };
        let line: Vec<u8> = self.buffer.drain(..end + 2).take(end).collect();
        String::from_utf8(line)
            .map(Some)
            .map_err(|_| "a line is not UTF-8".to_string())
    }

    fn read_head(&mut self) -> Result<bool, String> {
        if !b"HTTP/1.1 ".starts_with(&self.buffer[..self.buffer.len().min(9)]) {
            return Err(format!("no answer: {}", preview(&self.buffer)));
        }
        let Some(end) = self.buffer.windows(4).position(|four| four == b"\r\n\r\n") else {
            return Ok(false);
        };
        let bytes: Vec<u8> = self.buffer.drain(..end + 4).collect();
        let text = std::str::from_utf8(&bytes).map_err(|_| "a head is not UTF-8".to_string())?;
        let status: u16 = text[9..]
            .get(..3)
            .and_then(|status| status.parse().ok())
            .ok_or_else(|| format!("no status: {}", preview(&bytes)))?;
        if status == 100 {
            return Ok(true);
        }
        let field = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(':'));
            let found = lines.find(|(other, _)| other.eq_ignore_ascii_case(name));
            found.map(|(_, value)| value.trim())
        };
        let ask = self.unanswered.pop_front();
        let is_last = field("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"));
        let is_allowed = match ask {
            // Without a request the server may refuse the client once: it was too slow, or there are too many.
            None => is_last && matches!(status, 408 | 429 | 503),
            Some(Ask::Junk) => is_last && status >= 400,
            Some(Ask::Plain | Ask::Head) => true,
        };
        if !is_allowed {
            return Err(format!(
                "an answer that nobody asked for: {}",
                preview(&bytes)
            ));
        }
        self.is_last = is_last;
        let has_no_body = ask == Some(Ask::Head) || matches!(status, 204 | 304);
        let length = field("content-length").and_then(|length| length.parse().ok());
        self.state = match length {
            _ if status == 101 => State::WebSocket(WebSocket::new(
                field("sec-websocket-extensions").is_some(),
                field("sec-websocket-protocol").is_some_and(|protocol| protocol == "mqtt"),
            )),
            _ if has_no_body => self.state_after_answer(),
            _ if field("transfer-encoding").is_some() => State::Chunk,
            Some(0) => self.state_after_answer(),
            Some(length) => State::Body(length),
            None => State::UntilEnd,
        };
        Ok(true)
    }
}

impl WebSocket {
    fn new(deflate: bool, mqtt: bool) -> WebSocket {
        WebSocket {
            deflate,
            // Attackers over WebSocket speak MQTT 5.
            mqtt: mqtt.then(|| Mqtt::new(Version::V5)),
            ..WebSocket::default()
        }
    }

    fn check(&mut self, mut bytes: &mut [u8], count: &mut usize) -> Result<(), String> {
        let config = Config {
            role: Role::Client,
            message_bytes: PART_MAX,
            deflate: self.deflate,
        };
        while !bytes.is_empty() {
            if self.has_closed {
                return Err(format!("bytes after a Close frame: {}", preview(bytes)));
            }
            let step = next(&mut self.partial, bytes, &config)
                .map_err(|violation| format!("a bad frame: {violation:?}"))?;
            let consumed = step.consumed;
            match step.event {
                None => return Ok(()),
                Some(Event::Close { .. }) => self.has_closed = true,
                Some(Event::Binary(payload)) => match &mut self.mqtt {
                    Some(mqtt) => mqtt.check(payload, count)?,
                    None => *count += 1,
                },
                Some(Event::Text(_)) if self.mqtt.is_some() => {
                    return Err("a text frame in MQTT".to_string());
                }
                Some(_) => *count += 1,
            }
            bytes = &mut bytes[consumed..];
        }
        Ok(())
    }
}

impl Mqtt {
    fn new(version: Version) -> Mqtt {
        Mqtt {
            version,
            is_connected: false,
            buffer: Vec::new(),
            has_disconnected: false,
        }
    }

    /// Whether nothing has arrived from the server yet.
    fn has_received_nothing(&self) -> bool {
        !self.is_connected && self.buffer.is_empty()
    }

    fn check(&mut self, bytes: &[u8], count: &mut usize) -> Result<(), String> {
        self.buffer.extend_from_slice(bytes);
        let mut at = 0;
        while at < self.buffer.len() {
            let unread = &self.buffer[at..];
            if self.has_disconnected {
                return Err(format!("bytes after a DISCONNECT: {}", preview(unread)));
            }
            let header = fixed_header(unread, PART_MAX);
            let wrong = |error| format!("{error}: {}", preview(unread));
            let Some((header, start)) = header.map_err(wrong)? else {
                break;
            };
            let end = start + header.body_bytes();
            let Some(body) = unread.get(start..end) else {
                break;
            };
            let packet = decode(self.version, header, body)
                .map_err(|error| format!("a bad packet, {error}: {}", preview(unread)))?;
            match packet {
                Packet::ConnAck(_) if !self.is_connected => self.is_connected = true,
                _ if !self.is_connected => return Err(format!("{packet:?} before CONNACK")),
                Packet::Disconnect(_) => self.has_disconnected = true,
                Packet::ConnAck(_)
                | Packet::Connect(_)
                | Packet::Subscribe(_)
                | Packet::Unsubscribe(_)
                | Packet::PingReq => return Err(format!("{packet:?} from a server")),
                _ => {}
            }
            *count += 1;
            at += end;
        }
        self.buffer.drain(..at);
        Ok(())
    }
}

/// The first received bytes, shortened to a line of the report.
fn preview(bytes: &[u8]) -> String {
    let beginning = &bytes[..bytes.len().min(120)];
    format!("{:?}", String::from_utf8_lossy(beginning))
}
