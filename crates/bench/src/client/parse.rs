//! Parses what a server sends to the load tools: HTTP responses, WebSocket frames, chunked bodies, SSE events.
//!
//! The codecs of `crore_wire` do not fit. There is none for responses. The chunk decoder needs 32 bytes for each connection, but the load
//! tools keep a whole connection in 24. The WebSocket decoder checks the UTF-8 of frames and the SSE decoder copies events, which would
//! take processor time from the server on the same machine.
//!
//! Every function takes a slice and returns a unit (response, frame or event) only if it is complete. The caller keeps the bytes of an
//! incomplete unit and passes them again, followed by more bytes. So the result does not depend on how the bytes are split, and this module
//! has no state. The parsers are not complete: each fragment of a WebSocket message is returned as a frame of its own, and of an SSE event
//! only the first `data:` line.

use crore_wire::sse::OWN_EVENTS;
use crore_wire::websocket::frame::Opcode;
use memchr::{memchr, memmem};

use super::request::ACCEPT;

/// The maximum size of a response head, in bytes. A longer head is an error.
const HEAD_BYTES_MAX: usize = 64 << 10;

/// How the server violates the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the names say it")]
pub enum Error {
    #[error("not an HTTP/1.x response head")]
    Head,
    #[error("not a WebSocket frame of a server")]
    Frame,
    #[error("not a chunked body")]
    Chunk,
}

impl From<Error> for String {
    fn from(error: Error) -> String {
        error.to_string()
    }
}

/// A response head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head<'a> {
    /// The length of the head in bytes.
    pub bytes: usize,
    /// The status code.
    pub status: u16,
    /// `Content-Length`.
    pub length: Option<usize>,
    /// Whether the body is chunked.
    pub chunked: bool,
    /// The raw `ETag`.
    pub etag: Option<&'a [u8]>,
    /// The raw `Last-Modified`.
    pub modified: Option<&'a [u8]>,
    /// Whether `Sec-WebSocket-Accept` matches the key of [`upgrade`](super::request::upgrade).
    pub accepted: bool,
    /// Whether the connection ends after this response.
    pub close: bool,
    /// Whether the server announces that messages before the one in this response are lost (`Crore-Gap`).
    pub gap: bool,
    /// Whether the server repeats its answer to an earlier request with the same idempotency key.
    pub replayed: bool,
}

/// Parses the head at the start of `bytes`, if it is complete.
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
        replayed: false,
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
            b"idempotency-replayed" => head.replayed = true,
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

/// A response with its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Response<'a> {
    /// The head.
    pub head: Head<'a>,
    /// The body, which must not be chunked.
    pub body: &'a [u8],
    /// The length of head and body.
    pub bytes: usize,
}

/// Parses the response at the start of `bytes`, if it is complete. Without `Content-Length` it has no body.
pub fn response(bytes: &[u8]) -> Result<Option<Response<'_>>, Error> {
    let Some(head) = head(bytes)? else {
        return Ok(None);
    };
    let length = match head.status {
        204 | 304 => 0,
        _ => head.length.unwrap_or(0),
    };
    let end = head.bytes + length;
    let body = bytes.get(head.bytes..end);
    Ok(body.map(|body| Response {
        head,
        body,
        bytes: end,
    }))
}

/// A WebSocket frame of a server, which is not masked (RFC 6455 §5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    /// The kind of frame.
    pub opcode: Opcode,
    /// The payload.
    pub payload: &'a [u8],
    /// The length of the frame.
    pub bytes: usize,
}

/// Parses the frame at the start of `bytes`, if it is complete.
#[inline]
pub fn frame(bytes: &[u8]) -> Result<Option<Frame<'_>>, Error> {
    let [first, second, ..] = *bytes else {
        return Ok(None);
    };
    // Reserved bits must be 0 because no extension was negotiated, and servers do not mask.
    let (Some(opcode), 0) = (Opcode::from_repr(first & 0x7f), second & 0x80) else {
        return Err(Error::Frame);
    };
    let (start, length) = match (second, &bytes[2..]) {
        (126, [high, low, ..]) => (4, u16::from_be_bytes([*high, *low]).into()),
        (127, [0, 0, 0, 0, a, b, c, d, ..]) => (10, u32::from_be_bytes([*a, *b, *c, *d])),
        (127, [_, _, _, _, _, _, _, _, ..]) => return Err(Error::Frame),
        (126 | 127, _) => return Ok(None),
        (short, _) => (2, short.into()),
    };
    let end = start + length as usize;
    Ok(bytes.get(start..end).map(|payload| Frame {
        opcode,
        payload,
        bytes: end,
    }))
}

/// Removes the WebSocket frames around binary data, in place: `buffer[..decoded]` is already payload, `buffer[decoded..]` is raw. Passes
/// each control frame to `control`. Returns the end of the payload, and the start of the raw rest, which is an incomplete frame.
pub fn unframe(
    buffer: &mut [u8],
    decoded: usize,
    mut control: impl FnMut(Opcode, &[u8]),
) -> Result<(usize, usize), Error> {
    let (mut write, mut read) = (decoded, decoded);
    while let Some(frame) = frame(&buffer[read..])? {
        let (size, end) = (frame.payload.len(), read + frame.bytes);
        match frame.opcode {
            Opcode::Text => return Err(Error::Frame),
            Opcode::Continuation | Opcode::Binary => {
                buffer.copy_within(end - size..end, write);
                write += size;
            }
            opcode => control(opcode, frame.payload),
        }
        read = end;
    }
    Ok((write, read))
}

/// Removes the chunked encoding (RFC 9112 §7.1), in place: `buffer[..decoded]` is already content, `buffer[decoded..]` is raw.
/// `left` is the number of bytes still missing from the current chunk and its line end; the caller keeps it between
/// calls. Returns the end of the content, and the start of the raw rest, which is an incomplete size line; `None` at the last
/// chunk.
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

/// Parses the SSE event at the start of `bytes`, if it is complete. Returns its first `data:` line and its length.
/// Comments and notices of the server count as events without data.
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
            notice = name.trim_ascii().starts_with(OWN_EVENTS.as_bytes());
        }
    }
}

/// Passes the data of the complete events at the start of `buffer` to `on_data`, after [`unchunk`] if the stream is chunked. Returns
/// the bytes to keep, and how many of them are decoded; `None` at the end of the stream.
pub fn events<'a>(
    buffer: &'a mut [u8],
    decoded: usize,
    chunk_left: Option<&mut u32>,
    mut on_data: impl FnMut(&[u8]),
) -> Result<Option<(&'a [u8], usize)>, Error> {
    let (end, rest) = match chunk_left {
        Some(left) => match unchunk(buffer, decoded, left)? {
            Some(split) => split,
            None => return Ok(None),
        },
        None => (buffer.len(), buffer.len()),
    };
    let mut used = 0;
    while let Some((data, length)) = event(&buffer[used..end]) {
        data.into_iter().for_each(&mut on_data);
        used += length;
    }
    // Keep the rest of the content, followed by the raw bytes.
    let raw = buffer.len() - rest;
    buffer.copy_within(rest.., end);
    Ok(Some((&buffer[used..end + raw], end - used)))
}

#[cfg(test)]
mod tests {
    use crore_wire::websocket::frame::write_frame;
    use proptest::prelude::*;

    use super::*;

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
        // Each of these is an error: a mask, a reserved bit, a reserved opcode, a length of more than 32 bits.
        for bytes in [
            &[0x81, 0x80][..],
            &[0xc1, 0],
            &[0x83, 0],
            &[0x82, 127, 0, 0, 0, 1, 0, 0, 0, 0],
        ] {
            assert_eq!(frame(bytes), Err(Error::Frame), "{bytes:?}");
        }
    }

    #[test]
    fn a_response_has_the_body_that_its_head_tells() {
        let text = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nokrest";
        let whole = response(text).unwrap().unwrap();
        assert_eq!((whole.body, whole.bytes), (&b"ok"[..], text.len() - 4));
        assert_eq!(response(&text[..text.len() - 5]), Ok(None));
        let empty = b"HTTP/1.1 204 No Content\r\nContent-Length: 9\r\n\r\n";
        assert_eq!(response(empty).unwrap().unwrap().bytes, empty.len());
    }

    #[test]
    fn payloads_of_frames_are_moved_together() {
        let mut bytes = b"ab\x02\x01c\x89\x01p\x80\x01d\x82".to_vec();
        let mut seen = Vec::new();
        let moved = unframe(&mut bytes, 2, |opcode, payload| {
            seen.push((opcode, payload.to_vec()));
        });
        assert_eq!(moved, Ok((4, 11)));
        assert_eq!(bytes[..4], *b"abcd");
        assert_eq!(seen, [(Opcode::Ping, b"p".to_vec())]);
        assert_eq!(unframe(&mut [0x81, 0], 0, |_, _| ()), Err(Error::Frame));
    }

    #[test]
    fn frames_are_whole_or_not_there() {
        for size in [0, 1, 125, 126, 512, 65_535, 65_536] {
            let mut bytes = Vec::new();
            write_frame(&mut bytes, Opcode::Text, &vec![b'x'; size]);
            let whole = frame(&bytes).unwrap().unwrap();
            assert_eq!(
                (whole.payload.len(), whole.bytes, whole.opcode),
                (size, bytes.len(), Opcode::Text)
            );
            assert_eq!(frame(&bytes[..bytes.len() - 1]), Ok(None));
        }
    }

    #[test]
    fn comments_and_notices_are_no_messages() {
        assert_eq!(event(b": hi\n\n"), Some((None, 6)));
        assert_eq!(event(b"event: crore.any\ndata: x\n\n"), Some((None, 26)));
        assert_eq!(
            event(b"id: 7\r\ndata: a b\r\n\r\n"),
            Some((Some(&b"a b"[..]), 20))
        );
        assert_eq!(event(b"data: a\n"), None);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..80)) {
            let _ = (response(&bytes), frame(&bytes), event(&bytes));
            let _ = unchunk(&mut bytes.clone(), 0, &mut 0);
            let _ = unframe(&mut bytes, 0, |_, _| ());
        }
    }
}
