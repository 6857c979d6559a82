//! Nothing follows a Close frame of a WebSocket (RFC 6455 section 5.5.1). Clients hang up when they have read one, so the
//! network checks every byte that a socket takes.

use std::collections::VecDeque;

/// How far the server's stream on one connection has come.
#[derive(Default)]
pub enum Sent {
    /// In the head of the first response.
    #[default]
    Begun,
    /// The response is no upgrade, so no frames follow.
    Other,
    /// So many bytes before the next frame.
    Within(u64),
    /// A frame's first bytes.
    Header(VecDeque<u8>),
    /// A Close frame, of which so many bytes are still to come.
    Closed(u64),
}

const UPGRADED: &[u8] = b"HTTP/1.1 101 ";
const CLOSE: u8 = 8;

/// The state of the stream, and the bytes sent.
#[derive(Default)]
pub struct Watch {
    sent: Sent,
    head: Vec<u8>,
}

impl Watch {
    /// The socket takes these bytes; false when they come after a Close frame.
    pub fn takes(&mut self, bytes: impl Iterator<Item = u8>) -> bool {
        for byte in bytes {
            match &mut self.sent {
                Sent::Other => return true,
                Sent::Begun => {
                    self.head.push(byte);
                    let matched = self.head.iter().zip(UPGRADED).all(|(a, b)| a == b);
                    if !matched {
                        self.sent = Sent::Other;
                    } else if self.head.ends_with(b"\r\n\r\n") {
                        self.sent = Sent::Header(VecDeque::new());
                    }
                }
                Sent::Within(left) => {
                    *left -= 1;
                    if *left == 0 {
                        self.sent = Sent::Header(VecDeque::new());
                    }
                }
                Sent::Header(header) => {
                    header.push_back(byte);
                    self.sent = begin(std::mem::take(header));
                }
                Sent::Closed(0) => return false,
                Sent::Closed(left) => *left -= 1,
            }
        }
        true
    }
}

/// The state after these first bytes of a server's frame (section 5.2): it has no mask.
fn begin(header: VecDeque<u8>) -> Sent {
    let long = match header.get(1) {
        Some(126) => 2,
        Some(127) => 8,
        _ => 0,
    };
    if header.len() < 2 + long {
        return Sent::Header(header);
    }
    let len = match long {
        0 => u64::from(header[1]),
        _ => header
            .iter()
            .skip(2)
            .fold(0, |len, byte| len << 8 | u64::from(*byte)),
    };
    match (header[0] & 15, len) {
        (CLOSE, len) => Sent::Closed(len),
        (_, 0) => Sent::Header(VecDeque::new()),
        (_, len) => Sent::Within(len),
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
            let mut watch = Watch::default();
            for part in sent.chunks(step) {
                assert!(watch.takes(part.iter().copied()), "{step}");
            }
            assert!(watch.takes([].into_iter()));
            assert!(!watch.takes([0x8A].into_iter()), "{step}");
        }
        let mut watch = Watch::default();
        assert!(watch.takes(b"HTTP/1.1 200 OK\r\n\r\n\x88\x00\x88\x00".iter().copied()));
    }
}
