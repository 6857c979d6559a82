//! Reads the bytes of a server, as far as a load tool needs it: response heads, WebSocket frames, chunked bodies, SSE events.
//!
//! Not the codecs of `wire`: that has no response heads; its chunks keep 32 bytes for each connection, where a row of ours
//! has 24 in all; its frames and events are checked for UTF-8 or copied, and the tool would be measured by that.
//!
//! Every function looks at a slice and answers with whole units only; a unit in part stays with the caller,
//! who passes it again with more bytes behind it. So any split of the bytes gives the
//! same units. Nothing is copied and nothing is kept. Not a complete client: messages that a server
//! fragments are seen by their first fragment, SSE data by its first line.

use std::fmt;

use memchr::{memchr, memmem};

use super::request::ACCEPT;

/// Bytes of a response head past which the peer is no server of ours.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// A violation of the protocol by the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Error {
    Head,
    Frame,
    Chunk,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Error::Head => "not an HTTP/1.x response head",
            Error::Frame => "not a WebSocket frame of a server",
            Error::Chunk => "not a chunked body",
        })
    }
}

impl std::error::Error for Error {}

/// A response head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head<'a> {
    /// Bytes that it takes.
    pub bytes: usize,
    /// The status code.
    pub status: u16,
    /// `Content-Length`.
    pub length: Option<usize>,
    /// Whether the body is chunked.
    pub chunked: bool,
    /// `ETag`, as it stands.
    pub etag: Option<&'a [u8]>,
    /// `Last-Modified`, as it stands.
    pub modified: Option<&'a [u8]>,
    /// Whether `Sec-WebSocket-Accept` answers the key of every [`upgrade`](super::request::upgrade).
    pub accepted: bool,
    /// Whether the connection ends behind this response.
    pub close: bool,
    /// Whether the server tells that messages before this one are lost (`Crore-Gap`).
    pub gap: bool,
}

/// The head at the start of `bytes`, when it is whole.
pub fn head(bytes: &[u8]) -> Result<Option<Head<'_>>, Error> {
    let Some(end) = memmem::find(bytes, b"\r\n\r\n") else {
        return if bytes.len() > HEAD_BYTES_MAX {
            Err(Error::Head)
        } else {
            Ok(None)
        };
    };
    let mut lines = bytes[..end]
        .split(|byte| *byte == b'\n')
        .map(<[u8]>::trim_ascii);
    let status = lines.next().and_then(status).ok_or(Error::Head)?;
    let mut head = Head {
        bytes: end + 4,
        status,
        length: None,
        chunked: false,
        etag: None,
        modified: None,
        accepted: false,
        close: false,
        gap: false,
    };
    for line in lines {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else {
            continue;
        };
        let value = line[colon + 1..].trim_ascii();
        match line[..colon].to_ascii_lowercase().as_slice() {
            b"content-length" => head.length = Some(number(value).ok_or(Error::Head)?),
            b"transfer-encoding" => head.chunked = value.eq_ignore_ascii_case(b"chunked"),
            b"etag" => head.etag = Some(value),
            b"last-modified" => head.modified = Some(value),
            b"sec-websocket-accept" => head.accepted = value == ACCEPT,
            b"crore-gap" => head.gap = true,
            b"connection" => head.close = value.eq_ignore_ascii_case(b"close"),
            _ => {}
        }
    }
    Ok(Some(head))
}

fn status(line: &[u8]) -> Option<u16> {
    let rest = line.strip_prefix(b"HTTP/1.")?;
    std::str::from_utf8(rest.get(2..5)?).ok()?.parse().ok()
}

fn number(digits: &[u8]) -> Option<usize> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// A WebSocket frame of a server (RFC 6455 §5.2: not masked).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The opcode: 0 continuation, 1 text, 2 binary, 8 close, 9 ping, 10 pong.
    pub opcode: u8,
    /// The payload.
    pub payload: &'a [u8],
    /// Bytes that the frame takes.
    pub bytes: usize,
}

/// The frame at the start of `bytes`, when it is whole.
#[inline]
pub fn frame(bytes: &[u8]) -> Result<Option<Frame<'_>>, Error> {
    let [first, second, ..] = *bytes else {
        return Ok(None);
    };
    // A reserved bit or a mask is something that this client never agreed to.
    if first & 0x70 != 0 || second & 0x80 != 0 {
        return Err(Error::Frame);
    }
    let (start, length) = match second {
        126 => match bytes.get(2..4) {
            Some(size) => (4, u16::from_be_bytes([size[0], size[1]]) as usize),
            None => return Ok(None),
        },
        127 => match bytes.get(2..).and_then(|rest| rest.first_chunk::<8>()) {
            Some(size) => {
                let length = u64::from_be_bytes(*size);
                (
                    10,
                    u32::try_from(length).map_err(|_| Error::Frame)? as usize,
                )
            }
            None => return Ok(None),
        },
        short => (2, short as usize),
    };
    let end = start + length;
    let Some(payload) = bytes.get(start..end) else {
        return Ok(None);
    };
    Ok(Some(Frame {
        opcode: first & 15,
        payload,
        bytes: end,
    }))
}

/// Moves the contents of chunks (RFC 9112 §7.1) together, in place: `buffer[..decoded]` is content
/// already, `buffer[decoded..]` came from the peer. `left` is what remains of the current chunk
/// with its line end, and is kept between calls. Returns where the content ends and where the
/// untouched rest (a part of a size line) begins; `None` at the last chunk.
pub fn unchunk(
    buffer: &mut [u8],
    decoded: usize,
    left: &mut u32,
) -> Result<Option<(usize, usize)>, Error> {
    let (mut write, mut read) = (decoded, decoded);
    loop {
        let available = buffer.len() - read;
        if *left > 0 {
            let content = (*left as usize).saturating_sub(2).min(available);
            buffer.copy_within(read..read + content, write);
            write += content;
            let taken = (*left as usize).min(available);
            read += taken;
            *left -= taken as u32;
            if *left > 0 {
                return Ok(Some((write, read)));
            }
        }
        let rest = &buffer[read..];
        let Some(line) = rest.iter().take(32).position(|byte| *byte == b'\n') else {
            return if rest.len() >= 32 {
                Err(Error::Chunk)
            } else {
                Ok(Some((write, read)))
            };
        };
        let size = std::str::from_utf8(rest[..line].trim_ascii())
            .ok()
            .and_then(|digits| u32::from_str_radix(digits, 16).ok())
            .ok_or(Error::Chunk)?;
        if size == 0 {
            return Ok(None);
        }
        *left = size.checked_add(2).ok_or(Error::Chunk)?;
        read += line + 1;
    }
}

/// The SSE event at the start of `bytes`, when it is whole: its first `data:` line (`None` for
/// comments and for the server's own notices) and the bytes that it takes.
pub fn event(bytes: &[u8]) -> Option<(Option<&[u8]>, usize)> {
    let (mut data, mut notice, mut start) = (None, false, 0);
    loop {
        let length = memchr(b'\n', &bytes[start..])?;
        let line = &bytes[start..start + length];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        start += length + 1;
        if line.is_empty() {
            return Some((data.filter(|_| !notice), start));
        }
        if let Some(value) = line.strip_prefix(b"data:") {
            data.get_or_insert(value.strip_prefix(b" ").unwrap_or(value));
        } else if let Some(name) = line.strip_prefix(b"event:") {
            notice = name.trim_ascii().starts_with(b"crore.");
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn frame_of(opcode: u8, payload: &[u8]) -> Vec<u8> {
        let mut out = vec![0x80 | opcode];
        match payload.len() {
            n @ 0..126 => out.push(n as u8),
            n @ 126..65536 => {
                out.push(126);
                out.extend((n as u16).to_be_bytes());
            }
            n => {
                out.push(127);
                out.extend((n as u64).to_be_bytes());
            }
        }
        out.extend_from_slice(payload);
        out
    }

    #[test]
    fn heads_are_read_whole_or_not_at_all() {
        let text = b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\
            Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\nrest";
        for cut in 0..text.len() - 4 {
            assert_eq!(head(&text[..cut]), Ok(None), "{cut}");
        }
        let whole = head(text).unwrap().unwrap();
        assert_eq!(
            (whole.status, whole.accepted, whole.bytes),
            (101, true, text.len() - 4)
        );

        let poll =
            b"HTTP/1.1 200 OK\r\netag: \"3:1\"\r\nContent-Length: 5\r\nconnection: close\r\n\r\n";
        let poll = head(poll).unwrap().unwrap();
        assert_eq!(
            (poll.length, poll.etag, poll.close),
            (Some(5), Some(&b"\"3:1\""[..]), true)
        );
        assert_eq!(head(b"SSH-2.0 hello\r\n\r\n"), Err(Error::Head));
    }

    #[test]
    fn masked_and_reserved_frames_are_refused() {
        assert_eq!(frame(&[0x81, 0x80]), Err(Error::Frame));
        assert_eq!(frame(&[0xc1, 0x00]), Err(Error::Frame));
    }

    #[test]
    fn frames_are_whole_or_not_there() {
        for size in [0, 1, 125, 126, 512, 65_535, 65_536] {
            let bytes = frame_of(1, &vec![b'x'; size]);
            let whole = frame(&bytes).unwrap().unwrap();
            assert_eq!(
                (whole.payload.len(), whole.bytes, whole.opcode),
                (size, bytes.len(), 1)
            );
            assert_eq!(frame(&bytes[..bytes.len() - 1]), Ok(None));
        }
    }

    #[test]
    fn comments_and_notices_are_no_messages() {
        assert_eq!(event(b": hi\n\n"), Some((None, 6)));
        assert_eq!(event(b"event: crore.gap\ndata: x\n\n"), Some((None, 26)));
        assert_eq!(
            event(b"id: 7\r\ndata: a b\r\n\r\n"),
            Some((Some(&b"a b"[..]), 20))
        );
        assert_eq!(event(b"data: a\n"), None);
    }

    /// Shows a chunked SSE stream in pieces, keeping what is not whole, as the tool does.
    fn events_of(pieces: &[&[u8]]) -> Vec<Vec<u8>> {
        let (mut held, mut decoded, mut left) = (Vec::new(), 0, 0);
        let mut events = Vec::new();
        for piece in pieces {
            held.extend_from_slice(piece);
            let Some((end, rest)) = unchunk(&mut held, decoded, &mut left).unwrap() else {
                break;
            };
            let mut used = 0;
            while let Some((data, bytes)) = event(&held[used..end]) {
                events.extend(data.map(<[u8]>::to_vec));
                used += bytes;
            }
            held = [&held[used..end], &held[rest..]].concat();
            decoded = end - used;
        }
        events
    }

    proptest! {
        #[test]
        fn chunked_events_survive_any_split(
            texts in prop::collection::vec("[a-z]{0,40}", 1..8),
            sizes in prop::collection::vec(1usize..30, 1..8),
            cuts in prop::collection::vec(0usize..600, 0..6),
        ) {
            let plain: String = texts.iter().map(|t| format!("id: 1\ndata: {t}\n\n")).collect();
            let mut stream = Vec::new();
            let (mut rest, mut turn) = (plain.as_bytes(), 0);
            while !rest.is_empty() {
                let size = sizes[turn % sizes.len()].min(rest.len());
                stream.extend(format!("{size:x}\r\n").bytes());
                stream.extend_from_slice(&rest[..size]);
                stream.extend(b"\r\n");
                rest = &rest[size..];
                turn += 1;
            }
            let mut cuts: Vec<usize> = cuts.iter().map(|c| c % (stream.len() + 1)).collect();
            cuts.push(stream.len());
            cuts.sort_unstable();
            let mut start = 0;
            let pieces: Vec<&[u8]> = cuts
                .iter()
                .map(|end| &stream[std::mem::replace(&mut start, *end)..*end])
                .collect();
            let expected: Vec<Vec<u8>> = texts.iter().map(|t| t.clone().into_bytes()).collect();
            prop_assert_eq!(events_of(&pieces), expected);

            let single: Vec<&[u8]> = stream.chunks(1).collect();
            prop_assert_eq!(events_of(&single).len(), texts.len());
        }

        #[test]
        fn any_bytes_are_read_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = (head(&bytes), frame(&bytes), event(&bytes));
            let _ = unchunk(&mut bytes, 0, &mut 0);
        }
    }
}
