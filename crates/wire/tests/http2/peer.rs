//! A client that the tests write by hand, and the codec that it talks to.

use crore_wire::http2::frame::{self, ACK, END_HEADERS, END_STREAM, Header, Kind};
use crore_wire::http2::{Connection, Event, Limits, Scratch, Violation, bytes_kept};

/// An event that outlives the receive buffer. The pieces of a frame's data are joined.
#[derive(Clone, Debug, PartialEq)]
pub enum OwnedEvent {
    Request {
        stream: u32,
        head: String,
        ends_stream: bool,
    },
    TooLarge(u32),
    Data {
        stream: u32,
        data: Vec<u8>,
        ends_stream: bool,
    },
    Reset(u32, u32),
    Refused(u32, Violation),
    Writable(u32),
    GoAway(u32),
    /// The connection has ended.
    Ended(Violation),
}

pub struct Peer {
    pub connection: Connection,
    pub limits: Limits,
    pub now_s: u32,
    /// What the codec wrote since the last look.
    pub out: Vec<u8>,
    scratch: Scratch,
    unread: Vec<u8>,
}

impl Peer {
    /// A connection whose preface has not come.
    pub fn before_preface(limits: Limits) -> Peer {
        let mut out = Vec::new();
        Peer {
            connection: Connection::new(&limits, &mut out),
            limits,
            now_s: 1,
            out,
            scratch: Scratch::default(),
            unread: Vec::new(),
        }
    }

    /// A connection with settings exchanged.
    pub fn with_limits(limits: Limits) -> Peer {
        let mut peer = Peer::before_preface(limits);
        assert_eq!(peer.feed(&preface()), []);
        assert_eq!(peer.feed(&frame(Kind::Settings, ACK, 0, &[])), []);
        assert!(peer.connection.is_acknowledged());
        peer.out.clear();
        peer
    }

    pub fn new() -> Peer {
        Peer::with_limits(Limits::default())
    }

    /// Gives bytes to the codec. Returns the events.
    pub fn feed(&mut self, bytes: &[u8]) -> Vec<OwnedEvent> {
        self.unread.extend_from_slice(bytes);
        let mut events = Vec::new();
        let mut consumed = 0;
        loop {
            let received = self.connection.receive(
                &self.unread[consumed..],
                self.now_s,
                &self.limits,
                &mut self.scratch,
                &mut self.out,
            );
            match received {
                Ok(received) => {
                    consumed += received.consumed;
                    match received.event {
                        Some(event) => push_joined(&mut events, event),
                        None => break,
                    }
                }
                Err(violation) => {
                    events.push(OwnedEvent::Ended(violation));
                    break;
                }
            }
        }
        self.unread.drain(..consumed);
        let is_whole = matches!(events.last(), Some(OwnedEvent::Ended(_)));
        assert!(is_whole || self.unread.len() <= bytes_kept(&self.limits));
        events
    }

    /// Gives one frame to the codec.
    pub fn send(&mut self, kind: Kind, flags: u8, stream: u32, payload: &[u8]) -> Vec<OwnedEvent> {
        self.feed(&frame(kind, flags, stream, payload))
    }

    /// Opens a stream with a GET request, and expects that it is accepted.
    pub fn get(&mut self, stream: u32) {
        let events = self.feed(&request(stream, true, &get()));
        assert!(
            matches!(events[..], [OwnedEvent::Request { stream: s, ends_stream: true, .. }] if s == stream),
            "{events:?}"
        );
    }

    /// Opens a stream with a POST request whose body follows.
    pub fn post(&mut self, stream: u32) {
        let events = self.feed(&request(stream, false, &post()));
        assert!(
            matches!(events[..], [OwnedEvent::Request { stream: s, ends_stream: false, .. }] if s == stream),
            "{events:?}"
        );
    }

    /// The frames that the codec wrote since the last look.
    pub fn take_written_frames(&mut self) -> Vec<(Header, Vec<u8>)> {
        frames(&std::mem::take(&mut self.out))
    }

    /// The violation that these bytes cause, and the code of the GOAWAY or RST_STREAM that was written.
    pub fn violation(&mut self, bytes: &[u8]) -> (Violation, u32) {
        self.out.clear();
        let events = self.feed(bytes);
        let frames = self.take_written_frames();
        let (header, payload) = frames.last().unwrap_or_else(|| panic!("{events:?}"));
        match events.last() {
            Some(OwnedEvent::Ended(violation)) => {
                assert!(!violation.is_of_stream(), "{violation:?}");
                assert_eq!(header.kind, Kind::GoAway as u8);
                assert_eq!(violation.name().as_bytes(), &payload[8..]);
                (*violation, u32_at(payload, 4))
            }
            Some(OwnedEvent::Refused(stream, violation)) => {
                assert!(violation.is_of_stream(), "{violation:?}");
                assert_eq!((header.kind, header.stream), (3, *stream));
                (*violation, u32_at(payload, 0))
            }
            _ => panic!("{events:?}"),
        }
    }
}

fn push_joined(events: &mut Vec<OwnedEvent>, event: Event<'_>) {
    let event = match event {
        Event::Request {
            stream,
            head,
            ends: ends_stream,
        } => OwnedEvent::Request {
            stream,
            head: String::from_utf8_lossy(head).into_owned(),
            ends_stream,
        },
        Event::TooLarge { stream } => OwnedEvent::TooLarge(stream),
        Event::Data {
            stream,
            data,
            ends: ends_stream,
            ..
        } => {
            let mut joined_data = data.to_vec();
            if let Some(OwnedEvent::Data {
                stream: last_stream,
                data: earlier_data,
                ends_stream: false,
            }) = events.last()
                && *last_stream == stream
            {
                joined_data.splice(0..0, earlier_data.iter().copied());
                events.pop();
            }
            OwnedEvent::Data {
                stream,
                data: joined_data,
                ends_stream,
            }
        }
        Event::Reset { stream, code, .. } => OwnedEvent::Reset(stream, code),
        Event::Refused {
            stream, violation, ..
        } => OwnedEvent::Refused(stream, violation),
        Event::Writable { stream, .. } => OwnedEvent::Writable(stream),
        Event::GoAway { code } => OwnedEvent::GoAway(code),
    };
    events.push(event);
}

pub fn u32_at(bytes: &[u8], offset: usize) -> u32 {
    u32::from_be_bytes(bytes[offset..offset + 4].try_into().unwrap())
}

/// Takes frames apart.
pub fn frames(mut bytes: &[u8]) -> Vec<(Header, Vec<u8>)> {
    let mut frames = Vec::new();
    while !bytes.is_empty() {
        let header = Header::read(bytes).unwrap();
        let (frame, rest) = bytes.split_at(9 + header.payload_bytes());
        frames.push((header, frame[9..].to_vec()));
        bytes = rest;
    }
    frames
}

pub fn frame(kind: Kind, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let header = Header::new(kind, flags, stream, payload.len()).bytes();
    [&header[..], payload].concat()
}

/// The client's preface, with an empty SETTINGS frame.
pub fn preface() -> Vec<u8> {
    [&frame::PREFACE[..], &frame(Kind::Settings, 0, 0, &[])].concat()
}

pub fn settings(settings: &[(u16, u32)]) -> Vec<u8> {
    let payload = settings.iter().flat_map(|(id, value)| {
        let (id, value) = (id.to_be_bytes(), value.to_be_bytes());
        [&id[..], &value].concat()
    });
    frame(Kind::Settings, 0, 0, &payload.collect::<Vec<u8>>())
}

/// Literals without indexing.
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            match text.len() {
                len @ 0..127 => block.push(len as u8),
                len => {
                    block.push(127);
                    let mut rest = len - 127;
                    while rest >= 128 {
                        block.push(128 | (rest & 127) as u8);
                        rest >>= 7;
                    }
                    block.push(rest as u8);
                }
            }
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

pub fn headers(stream: u32, ends_stream: bool, block: &[u8]) -> Vec<u8> {
    let flags = END_HEADERS | if ends_stream { END_STREAM } else { 0 };
    frame(Kind::Headers, flags, stream, block)
}

pub fn request(stream: u32, ends_stream: bool, fields: &[(&str, &str)]) -> Vec<u8> {
    headers(stream, ends_stream, &block(fields))
}

pub type Fields<'a> = Vec<(&'a str, &'a str)>;

pub fn get<'a>() -> Fields<'a> {
    vec![
        (":method", "GET"),
        (":scheme", "https"),
        (":authority", "h"),
        (":path", "/sub/a"),
    ]
}

pub fn post<'a>() -> Fields<'a> {
    vec![
        (":method", "POST"),
        (":scheme", "https"),
        (":authority", "h"),
        (":path", "/pub/a"),
    ]
}
