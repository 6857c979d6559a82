//! A reader of event streams (SSE) for tests, written from the HTML standard (section 9.2.6). The body is chunked, or ends with the
//! connection. A field that the standard does not define makes the test fail.

use super::Server;
use super::http::{Conn, Response};

pub struct Stream {
    pub conn: Conn,
    pub head: Response,
    chunked: bool,
    bytes: Vec<u8>,
    last_id: String,
    ended: bool,
}

/// An event, as an `EventSource` would dispatch it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Event {
    pub id: String,
    pub kind: String,
    pub data: String,
}

/// A block of a stream up to an empty line: an event, or only comments and fields such as `retry:`.
#[derive(Debug, Default)]
pub struct Block {
    pub event: Option<Event>,
    pub comments: usize,
    pub retry: Option<String>,
}

impl Stream {
    /// Subscribes. Panics if the status is not 200.
    pub fn open(server: &Server, target: &str, headers: &[(&str, &str)]) -> Stream {
        let mut conn = Conn::open(server);
        let headers = [headers, &[("Accept", "text/event-stream")]].concat();
        conn.ask("GET", target, &headers, "");
        let head = conn.head();
        assert_eq!(head.status, 200, "{head:?}");
        Stream::from_response(conn, head)
    }

    /// A stream whose response head was already read from `conn`.
    pub fn from_response(conn: Conn, head: Response) -> Stream {
        let chunked = head.lists("transfer-encoding", "chunked");
        Stream {
            conn,
            head,
            chunked,
            bytes: Vec::new(),
            last_id: String::new(),
            ended: false,
        }
    }

    /// The next line. `None` at the end of the stream.
    fn line(&mut self) -> Option<String> {
        loop {
            if let Some(at) = self.bytes.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.bytes.drain(..=at).collect();
                let line = std::str::from_utf8(&line).expect("an event stream is UTF-8");
                let line = line.trim_end_matches('\n').trim_end_matches('\r');
                assert!(
                    !line.contains('\r'),
                    "a lone CR ends a line for readers: {line:?}"
                );
                return Some(line.to_string());
            }
            if self.ended {
                return None;
            }
            let received = if self.chunked {
                self.conn.chunk()
            } else {
                let waiting = self.conn.take();
                if waiting.is_empty() && self.conn.fill() > 0 {
                    self.conn.take()
                } else {
                    waiting
                }
            };
            if received.is_empty() {
                self.ended = true;
                return None;
            }
            self.bytes.extend(received);
        }
    }

    /// The next block. `None` at the end of the stream. A last block without its empty line has no event.
    pub fn block(&mut self) -> Option<Block> {
        let mut block = Block::default();
        let (mut kind, mut data) = (String::new(), None::<String>);
        loop {
            let Some(line) = self.line() else {
                // Comments and `retry:` take effect at the end of their line, even if the block is not complete.
                let has_effect = block.comments > 0 || block.retry.is_some();
                return has_effect.then_some(block);
            };
            if line.is_empty() {
                break;
            }
            let (field, value) = line.split_once(':').unwrap_or((&line, ""));
            let value = value.strip_prefix(' ').unwrap_or(value);
            match field {
                "" => block.comments += 1,
                "data" => {
                    data = Some(data.map_or(value.to_string(), |before| before + "\n" + value))
                }
                "event" => kind = value.to_string(),
                "id" => self.last_id = value.to_string(),
                "retry" => block.retry = Some(value.to_string()),
                _ => panic!("{line:?} is no field of the standard"),
            }
        }
        let kind = if kind.is_empty() {
            "message".to_string()
        } else {
            kind
        };
        block.event = data.map(|data| Event {
            id: self.last_id.clone(),
            kind,
            data,
        });
        Some(block)
    }

    /// The next event. Blocks without an event are skipped. `None` at the end of the stream.
    pub fn event(&mut self) -> Option<Event> {
        loop {
            if let Some(event) = self.block()?.event {
                return Some(event);
            }
        }
    }

    /// The data of the next `count` events.
    pub fn data(&mut self, count: usize) -> Vec<String> {
        (0..count)
            .map(|_| self.event().expect("the stream goes on").data)
            .collect()
    }
}
