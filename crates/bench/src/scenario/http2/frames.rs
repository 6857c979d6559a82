//! Writes and reads the frames of HTTP/2 that a subscriber needs (RFC 9113). The client's windows are so large that the server never waits.

/// Bytes of a frame's head.
const HEAD_BYTES: usize = 9;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The largest flow-control window.
const WINDOW_MAX: u32 = (1 << 31) - 1;
/// The window of a new connection.
const WINDOW_INITIAL: u32 = (1 << 16) - 1;
const SETTINGS_INITIAL_WINDOW_SIZE: u16 = 4;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const WINDOW_UPDATE: u8 = 8;
/// The flag of an answer to SETTINGS and PING.
const ACK: u8 = 1;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// The field `:status: 200` in HPACK's static table (RFC 7541 appendix A).
const STATUS_200: u8 = 0x88;

/// A received frame.
pub enum Frame<'a> {
    /// Bytes of a response's body.
    Data { stream: u32, bytes: &'a [u8] },
    /// A response has begun.
    Response { stream: u32, is_ok: bool },
    /// A frame that needs an answer. Contains the answer to send.
    NeedsAnswer(Vec<u8>),
    /// Nothing that the client must handle.
    Other,
    /// The server ended a stream or the connection. Contains the frame's type.
    Ended(u8),
}

/// Reads the frame at the start of `received`. Returns the frame and its length; `None` if it is incomplete.
pub fn read(received: &[u8]) -> Option<(Frame<'_>, usize)> {
    let head = received.first_chunk::<HEAD_BYTES>()?;
    let len = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
    let payload = received.get(HEAD_BYTES..HEAD_BYTES + len)?;
    let (kind, flags) = (head[3], head[4]);
    let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
    let frame = match kind {
        DATA | HEADERS if flags & END_STREAM != 0 => Frame::Ended(kind),
        DATA => Frame::Data {
            stream,
            bytes: payload,
        },
        HEADERS => Frame::Response {
            stream,
            is_ok: payload.first() == Some(&STATUS_200),
        },
        SETTINGS | PING if flags & ACK == 0 => {
            let payload = if kind == PING { payload } else { &[] };
            let mut answer = Vec::new();
            write(kind, ACK, 0, payload, &mut answer);
            Frame::NeedsAnswer(answer)
        }
        SETTINGS | PING | WINDOW_UPDATE => Frame::Other,
        _ => Frame::Ended(kind),
    };
    Some((frame, HEAD_BYTES + len))
}

/// Writes the start of a connection.
pub fn write_start(out: &mut Vec<u8>) {
    out.extend_from_slice(PREFACE);
    let mut setting = SETTINGS_INITIAL_WINDOW_SIZE.to_be_bytes().to_vec();
    setting.extend_from_slice(&WINDOW_MAX.to_be_bytes());
    write(SETTINGS, 0, 0, &setting, out);
    write_window_update(WINDOW_MAX - WINDOW_INITIAL, out);
}

/// Allows the server to send `bytes` more on the connection.
pub fn write_window_update(bytes: u32, out: &mut Vec<u8>) {
    write(WINDOW_UPDATE, 0, 0, &bytes.to_be_bytes(), out);
}

/// Writes a request for an event stream.
pub fn write_request(stream: u32, path: &str, out: &mut Vec<u8>) {
    // `:method: GET` and `:scheme: http` are in the static table. The other fields are literals whose names are in the table.
    let mut block = vec![0x82, 0x86];
    for (name, value) in [
        (&[0x01][..], "localhost"),
        (&[0x04], path),
        (&[0x0f, 0x04], "text/event-stream"),
    ] {
        block.extend_from_slice(name);
        block.push(u8::try_from(value.len()).expect("a short value"));
        block.extend_from_slice(value.as_bytes());
    }
    write(HEADERS, END_STREAM | END_HEADERS, stream, &block, out);
}

fn write(kind: u8, flags: u8, stream: u32, payload: &[u8], out: &mut Vec<u8>) {
    out.extend_from_slice(&(payload.len() as u32).to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}
