//! Checks that the server sends nothing after a WebSocket Close frame (RFC 6455 section 5.5.1). A client hangs up as soon as it has read a
//! Close frame, and would not see later bytes. So the network checks every byte that a socket takes.

use std::collections::VecDeque;

/// The part of the server's byte stream that comes next.
#[derive(Default)]
pub enum Stream {
    /// The head of the first response.
    #[default]
    ResponseHead,
    /// Any bytes: the response was no upgrade, so there are no frames to check.
    NotWebSocket,
    /// The payload of a frame. The number is how many bytes of the payload are left.
    Payload(u64),
    /// The header of a frame, with the bytes received so far.
    Header(VecDeque<u8>),
    /// The payload of a Close frame. The number is how many bytes of the payload are left. No byte may follow the payload.
    Closed(u64),
}

const UPGRADED: &[u8] = b"HTTP/1.1 101 ";
const CLOSE: u8 = 8;

/// The check of one connection.
#[derive(Default)]
pub struct CloseCheck {
    stream: Stream,
    head: Vec<u8>,
}

impl CloseCheck {
    /// Parses the bytes that the socket takes. Returns false if some of these bytes follow a Close frame.
    pub fn accepts(&mut self, bytes: impl Iterator<Item = u8>) -> bool {
        for byte in bytes {
            match &mut self.stream {
                Stream::NotWebSocket => return true,
                Stream::ResponseHead => {
                    self.head.push(byte);
                    let matched = self.head.iter().zip(UPGRADED).all(|(a, b)| a == b);
                    if !matched {
                        self.stream = Stream::NotWebSocket;
                    } else if self.head.ends_with(b"\r\n\r\n") {
                        self.stream = Stream::Header(VecDeque::new());
                    }
                }
                Stream::Payload(left) => {
                    *left -= 1;
                    if *left == 0 {
                        self.stream = Stream::Header(VecDeque::new());
                    }
                }
                Stream::Header(header) => {
                    header.push_back(byte);
                    self.stream = after_header(std::mem::take(header));
                }
                Stream::Closed(0) => return false,
                Stream::Closed(left) => *left -= 1,
            }
        }
        true
    }
}

/// The state after these first bytes of a frame (section 5.2). A server's frames have no mask.
fn after_header(header: VecDeque<u8>) -> Stream {
    let extended_len_bytes = match header.get(1) {
        Some(126) => 2,
        Some(127) => 8,
        _ => 0,
    };
    if header.len() < 2 + extended_len_bytes {
        return Stream::Header(header);
    }
    let len = match extended_len_bytes {
        0 => u64::from(header[1]),
        _ => header
            .iter()
            .skip(2)
            .fold(0, |len, byte| len << 8 | u64::from(*byte)),
    };
    match (header[0] & 15, len) {
        (CLOSE, len) => Stream::Closed(len),
        (_, 0) => Stream::Header(VecDeque::new()),
        (_, len) => Stream::Payload(len),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_after_a_close_are_seen_at_any_split() {
        let mut sent = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n".to_vec();
        sent.extend([0x81, 126, 0, 200]);
        sent.extend([8; 200]);
        sent.extend([0x89, 0, 0x82, 1, 8, 0x88, 2, 3, 0xE8]);
        for step in 1..sent.len() {
            let mut check = CloseCheck::default();
            for part in sent.chunks(step) {
                assert!(check.accepts(part.iter().copied()), "{step}");
            }
            assert!(check.accepts([].into_iter()));
            assert!(!check.accepts([0x8A].into_iter()), "{step}");
        }
        let mut check = CloseCheck::default();
        assert!(check.accepts(b"HTTP/1.1 200 OK\r\n\r\n\x88\x00\x88\x00".iter().copied()));
    }
}
