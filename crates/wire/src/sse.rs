//! Writes and parses Server-Sent Events, the event stream format of the WHATWG (HTML, "Server-sent events"). The server uses the writer,
//! and our clients use the parser.
//!
//! Invariant: each event is a block of lines that ends with an empty line, so a reader may start at any block. The caller must handle data
//! that contains NUL or is not UTF-8, because it is not checked here.

use alloc::vec::Vec;
use core::mem;
use memchr::{memchr, memchr_iter, memchr2};

/// For data of at least this number of bytes, exactly the needed memory is reserved.
const LARGE_BYTES: usize = 64 << 10;
/// From a line end on, this number of bytes is written as one block.
const BLOCK_BYTES: usize = 32;
/// A line end and the prefix of the next line fit into this number of bytes, which one instruction copies.
const CELL_BYTES: usize = 8;

/// The prefix of the names of the server's events. Publishers may not use it.
pub const OWN_EVENTS: &str = "crore.";
/// The event for lost messages. Its id is the position before the next message.
pub const GAP_EVENT: &str = "crore.gap";
/// The last event of an interest stream whose client reads too slowly. The data contains the reason.
pub const SLOW_EVENT: &str = "crore.slow";

/// Appends the event for lost messages of `topic` before the position `id`.
pub fn write_gap(out: &mut Vec<u8>, id: &[u8], topic: &[u8]) {
    write_event(out, Some(id), Some(GAP_EVENT.as_bytes()), topic);
}

/// The topic in the data of a gap event.
pub const fn topic_of_gap(data: &[u8]) -> &[u8] {
    data
}

/// Appends one event. `data` is split into lines at CRLF, CR and LF. The reader joins the lines with LF. The caller must have checked that
/// the id and the event name are [field safe](is_field_safe).
///
/// The id is the last field. By the standard an id takes effect at the end of the event, but some readers use it at once. If it came
/// earlier and the connection broke inside the event, such a reader would resume after this event and lose its rest.
pub fn write_event(out: &mut Vec<u8>, id: Option<&[u8]>, event: Option<&[u8]>, data: &[u8]) {
    write_name(out, event);
    write_data(out, data);
    write_end(out, id);
}

/// Begins an event with its name.
pub fn write_name(out: &mut Vec<u8>, event: Option<&[u8]>) {
    if let Some(event) = event {
        debug_assert!(is_field_safe(event));
        write_line(out, b"event: ", event);
    }
}

/// Appends an event's data.
pub fn write_data(out: &mut Vec<u8>, data: &[u8]) {
    write_lines(out, b"data: ", data);
}

/// Appends an event's id and ends the event.
pub fn write_end(out: &mut Vec<u8>, id: Option<&[u8]>) {
    if let Some(id) = id {
        debug_assert!(is_field_safe(id));
        write_line(out, b"id: ", id);
    }
    out.push(b'\n');
}

/// Appends a comment, which readers skip: a heartbeat, or the first bytes of a stream. No empty line follows, because some readers would
/// see it as an event without data.
pub fn write_comment(out: &mut Vec<u8>, text: &str) {
    let prefix: &[u8] = if text.is_empty() { b":" } else { b": " };
    write_lines(out, prefix, text.as_bytes());
}

/// Appends the time in milliseconds that a client waits before it reconnects. It takes effect at the end of its line.
pub fn write_retry(out: &mut Vec<u8>, ms: u32) {
    let mut digits = [0; 10];
    let mut start = digits.len();
    let mut remaining = ms;
    loop {
        start -= 1;
        digits[start] = b'0' + (remaining % 10) as u8;
        remaining /= 10;
        if remaining == 0 {
            break;
        }
    }
    write_line(out, b"retry: ", &digits[start..]);
}

/// Whether a value may be an id, an event name or a header value: it has no control character (below 0x20, and 0x7f).
pub fn is_field_safe(value: &[u8]) -> bool {
    !value.iter().any(u8::is_ascii_control)
}

fn write_line(out: &mut Vec<u8>, prefix: &[u8], line: &[u8]) {
    out.extend_from_slice(prefix);
    out.extend_from_slice(line);
    out.push(b'\n');
}

/// Writes each line of `text`, at least one, with the prefix. The prefix must be shorter than [`CELL_BYTES`] bytes.
fn write_lines(out: &mut Vec<u8>, prefix: &[u8], mut text: &[u8]) {
    if text.len() >= LARGE_BYTES {
        out.reserve_exact(lines_len(prefix, text));
    }
    out.extend_from_slice(prefix);
    while let Some(end) = memchr2(b'\r', b'\n', text) {
        out.extend_from_slice(&text[..end]);
        text = write_block(out, prefix, &text[end..]);
    }
    out.extend_from_slice(text);
    out.push(b'\n');
}

/// The maximum number of bytes that [`write_lines`] appends. CRLF counts as two line ends here.
fn lines_len(prefix: &[u8], text: &[u8]) -> usize {
    let line_ends = memchr_iter(b'\n', text).count() + memchr_iter(b'\r', text).count();
    text.len() + line_ends * prefix.len() + prefix.len() + 1
}

/// Appends a block from the beginning of `text`, which may contain line ends; returns the rest. There is no branch, so a line end costs as
/// much as any other byte, and a client cannot slow the server down by its choice of bytes.
fn write_block<'a>(out: &mut Vec<u8>, prefix: &[u8], text: &'a [u8]) -> &'a [u8] {
    let mut next_line = [0; CELL_BYTES];
    next_line[0] = b'\n';
    next_line[1..=prefix.len()].copy_from_slice(prefix);
    let next_line = u64::from_le_bytes(next_line);
    let (mut written, mut len) = ([0; (BLOCK_BYTES + 1) * CELL_BYTES], 0);
    let (block, rest) = text.split_at(text.len().min(BLOCK_BYTES));
    for (byte, next_index) in block.iter().zip(1..) {
        let is_first_of_two = *byte == b'\r' && text.get(next_index) == Some(&b'\n');
        let (cell, cell_len) = match is_line_end(*byte) {
            true => (next_line, 1 + prefix.len()),
            false => (u64::from(*byte), 1),
        };
        written[len..len + CELL_BYTES].copy_from_slice(&cell.to_le_bytes());
        len += if is_first_of_two { 0 } else { cell_len };
    }
    out.extend_from_slice(&written[..len]);
    rest
}

const fn is_line_end(byte: u8) -> bool {
    (byte == b'\r') | (byte == b'\n')
}

/// A received event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event<'a> {
    /// The last event id, from this event or an earlier one. `None` if there was none, or if the id is empty.
    pub id: Option<&'a [u8]>,
    /// The event's name; `None` for the default, `message`.
    pub event: Option<&'a [u8]>,
    /// The lines of data, joined with LF.
    pub data: &'a [u8],
    /// The last reconnection time in the stream, in milliseconds.
    pub retry: Option<u32>,
}

/// A line or an event is longer than the parser's limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooLong;

/// Reads an event stream that arrives in pieces.
#[derive(Clone, Debug)]
pub struct Parser {
    /// The maximum number of bytes of a line, and of an event's data.
    limit: usize,
    /// The incomplete line so far.
    line: Vec<u8>,
    /// The last byte was CR, so an LF after it belongs to the same line end.
    after_cr: bool,
    /// The current line is the first one, which may begin with a byte order mark.
    first_line: bool,
    data: Vec<u8>,
    event: Vec<u8>,
    id: Vec<u8>,
    /// The id at the end of the last event.
    last_id: Vec<u8>,
    retry: Option<u32>,
}

impl Parser {
    /// A parser for a stream whose lines and event data have at most `limit` bytes.
    pub const fn new(limit: usize) -> Parser {
        Parser {
            limit,
            line: Vec::new(),
            after_cr: false,
            first_line: true,
            data: Vec::new(),
            event: Vec::new(),
            id: Vec::new(),
            last_id: Vec::new(),
            retry: None,
        }
    }

    /// The id at the end of the last event, even of an event without data (HTML, "Interpreting an event stream"). A client resumes from
    /// this id.
    #[must_use]
    pub fn last_id(&self) -> Option<&[u8]> {
        Some(&self.last_id[..]).filter(|id| !id.is_empty())
    }

    /// Takes the next bytes, and calls `on_event` for every event that is now complete.
    ///
    /// # Errors
    ///
    /// [`TooLong`]; then the parser must not be used any more.
    pub fn push(
        &mut self,
        mut bytes: &[u8],
        mut on_event: impl FnMut(Event<'_>),
    ) -> Result<(), TooLong> {
        loop {
            if self.after_cr && !bytes.is_empty() {
                self.after_cr = false;
                bytes = bytes.strip_prefix(b"\n").unwrap_or(bytes);
            }
            let Some(end) = memchr2(b'\r', b'\n', bytes) else {
                self.check_limit(self.line.len() + bytes.len())?;
                self.line.extend_from_slice(bytes);
                return Ok(());
            };
            self.after_cr = bytes[end] == b'\r';
            self.check_limit(self.line.len() + end)?;
            if self.line.is_empty() {
                self.read_line(&bytes[..end], &mut on_event)?;
            } else {
                let mut line = mem::take(&mut self.line);
                line.extend_from_slice(&bytes[..end]);
                self.read_line(&line, &mut on_event)?;
                line.clear();
                self.line = line;
            }
            bytes = &bytes[end + 1..];
        }
    }

    fn check_limit(&self, bytes: usize) -> Result<(), TooLong> {
        if bytes > self.limit {
            return Err(TooLong);
        }
        Ok(())
    }

    fn read_line(
        &mut self,
        line: &[u8],
        on_event: &mut impl FnMut(Event<'_>),
    ) -> Result<(), TooLong> {
        let is_first_line = mem::replace(&mut self.first_line, false);
        let line = match line.strip_prefix(b"\xEF\xBB\xBF") {
            Some(line) if is_first_line => line,
            _ => line,
        };
        if line.is_empty() {
            self.dispatch(on_event);
            return Ok(());
        }
        let (name, value) = match memchr(b':', line) {
            Some(colon) => (&line[..colon], &line[colon + 1..]),
            None => (line, &line[line.len()..]),
        };
        self.read_field(name, value.strip_prefix(b" ").unwrap_or(value))
    }

    fn read_field(&mut self, name: &[u8], value: &[u8]) -> Result<(), TooLong> {
        match name {
            b"data" => {
                self.check_limit(self.data.len() + value.len())?;
                self.data.extend_from_slice(value);
                self.data.push(b'\n');
            }
            b"event" => replace_value(&mut self.event, value),
            b"id" if memchr(0, value).is_none() => replace_value(&mut self.id, value),
            b"retry" if !value.is_empty() && value.iter().all(u8::is_ascii_digit) => {
                let append_digit = |ms: u32, digit: &u8| {
                    ms.saturating_mul(10)
                        .saturating_add(u32::from(digit - b'0'))
                };
                self.retry = Some(value.iter().fold(0, append_digit));
            }
            // Comments have an empty name; unknown fields are ignored.
            _ => {}
        }
        Ok(())
    }

    fn dispatch(&mut self, on_event: &mut impl FnMut(Event<'_>)) {
        if self.last_id != self.id {
            replace_value(&mut self.last_id, &self.id);
        }
        if let Some(data) = self.data.strip_suffix(b"\n") {
            on_event(Event {
                id: Some(&self.id[..]).filter(|id| !id.is_empty()),
                event: Some(&self.event[..]).filter(|event| !event.is_empty()),
                data,
                retry: self.retry,
            });
        }
        self.data.clear();
        self.event.clear();
    }
}

fn replace_value(field: &mut Vec<u8>, value: &[u8]) {
    field.clear();
    field.extend_from_slice(value);
}
