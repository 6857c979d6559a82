//! Decodes chunked bodies in place (RFC 9112 section 7.1).
//!
//! Invariants: only CRLF ends a line. The result does not depend on how the stream is split into reads. The bytes of extensions and
//! trailers are limited, so that a peer cannot keep a connection busy with them. Extensions and trailer fields are checked by their grammar
//! and then ignored.

use super::is_tchar;

/// Limit of the chunk extensions in one body. Few clients send extensions, but some proxies add a signature of 90 bytes to each chunk.
pub const MAX_EXTENSION_BYTES: u32 = 16 * 1024;
/// Limit of the trailer fields after one body.
pub const MAX_TRAILER_BYTES: u32 = 4 * 1024;
/// Limit of the hexadecimal digits of a chunk size, including leading zeros. A `u64` has no more digits.
const MAX_SIZE_DIGITS: u8 = 16;

/// Why a chunked body was refused. The connection is closed after the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, derive_more::Display)]
#[display("{}", self.reason())]
pub enum BodyError {
    /// More data than the limit (413).
    TooLarge,
    /// An error in the chunked coding, or too many bytes of extensions or trailers (400).
    Malformed(&'static str),
}

impl BodyError {
    /// The status code of the response.
    pub const fn status(&self) -> u16 {
        match self {
            Self::TooLarge => 413,
            Self::Malformed(_) => 400,
        }
    }

    /// A message for the peer, in one line.
    pub const fn reason(&self) -> &'static str {
        match self {
            Self::TooLarge => "the body is too large",
            Self::Malformed(why) => why,
        }
    }
}

impl core::error::Error for BodyError {}

/// The result of one call of [`ChunkedDecoder::decode`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Consumed bytes of the buffer: all of them, unless the body ended before.
    pub consumed: usize,
    /// Bytes of data at the beginning of the buffer, never more than `consumed`.
    pub written: usize,
    /// The body is complete. The bytes after `consumed` belong to the next request.
    pub done: bool,
}

/// The position of the next byte in the grammar of chunked bodies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Size,
    /// After whitespace behind the size or an extension: another extension must follow.
    ExtensionGap,
    /// After the semicolon.
    ExtensionStart,
    ExtensionName,
    /// After whitespace behind the name.
    ExtensionNameEnd,
    /// After the equals sign.
    ExtensionValueStart,
    ExtensionValue,
    ExtensionQuoted,
    /// After a backslash.
    ExtensionQuotedPair,
    ExtensionQuotedEnd,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    TrailerStart,
    TrailerName,
    TrailerValue,
    TrailerLf,
    EndLf,
    Done,
}

/// The decoder of one chunked body. It buffers nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChunkedDecoder {
    /// In the data: the number of missing bytes of the chunk. In the size line: the value of the digits so far.
    chunk_bytes_left: u64,
    /// The sum of all chunk sizes so far.
    body_bytes: u64,
    extension_bytes: u32,
    trailer_bytes: u32,
    digit_count: u8,
    state: State,
}

impl ChunkedDecoder {
    /// Decodes the next bytes of the stream, and moves the data to the front of `buf`.
    ///
    /// The next call must begin with the bytes after [`Progress::consumed`], which are unchanged. `limit` is the maximum number of data bytes
    /// of the whole body. After an error the contents of `buf` are unspecified.
    ///
    /// # Errors
    /// [`BodyError::TooLarge`] after the size line that makes the sum of the chunk sizes exceed the limit. [`BodyError::Malformed`] at the
    /// first byte that the grammar does not allow.
    pub fn decode(&mut self, buf: &mut [u8], limit: usize) -> Result<Progress, BodyError> {
        let mut consumed = 0;
        let mut written = 0;
        while consumed < buf.len() && self.state != State::Done {
            if self.state == State::Data {
                let available = buf.len() - consumed;
                let count = usize::try_from(self.chunk_bytes_left)
                    .map_or(available, |bytes| bytes.min(available));
                buf.copy_within(consumed..consumed + count, written);
                consumed += count;
                written += count;
                self.chunk_bytes_left -= count as u64;
                if self.chunk_bytes_left == 0 {
                    self.state = State::DataCr;
                }
            } else {
                self.state = self.next_state(buf[consumed], limit)?;
                consumed += 1;
            }
        }
        Ok(Progress {
            consumed,
            written,
            done: self.state == State::Done,
        })
    }

    /// The state after one byte that is not data.
    fn next_state(&mut self, b: u8, limit: usize) -> Result<State, BodyError> {
        match (self.state, b) {
            (State::Size, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => self.take_digit(b),
            (State::Size, b';' | b' ' | b'\t') if self.digit_count > 0 => {
                self.take_extension_byte(b)
            }
            (State::Size, b'\r') if self.digit_count > 0 => Ok(State::SizeLf),
            (State::Size, _) => Err(BodyError::Malformed("bad chunk size")),
            (State::ExtensionName | State::ExtensionValue | State::ExtensionQuotedEnd, b'\r') => {
                Ok(State::SizeLf)
            }
            (
                State::ExtensionGap
                | State::ExtensionStart
                | State::ExtensionName
                | State::ExtensionNameEnd
                | State::ExtensionValueStart
                | State::ExtensionValue
                | State::ExtensionQuoted
                | State::ExtensionQuotedPair
                | State::ExtensionQuotedEnd,
                _,
            ) => self.take_extension_byte(b),
            (State::SizeLf, b'\n') => self.after_size_line(limit),
            (State::DataCr, b'\r') => Ok(State::DataLf),
            (State::DataLf, b'\n') | (State::TrailerLf, b'\n') => Ok(match self.state {
                State::DataLf => State::Size,
                _ => State::TrailerStart,
            }),
            (State::TrailerStart, b'\r') => Ok(State::EndLf),
            (State::TrailerValue, b'\r') => Ok(State::TrailerLf),
            (State::TrailerStart | State::TrailerName, _) if is_tchar(b) => {
                self.count_trailer_byte(State::TrailerName)
            }
            (State::TrailerName, b':') => self.count_trailer_byte(State::TrailerValue),
            (State::TrailerStart | State::TrailerName, _) => {
                Err(BodyError::Malformed("bad trailer field"))
            }
            (State::TrailerValue, _) if is_field_byte(b) => {
                self.count_trailer_byte(State::TrailerValue)
            }
            (State::EndLf, b'\n') => Ok(State::Done),
            _ => Err(BodyError::Malformed("bad chunk framing")),
        }
    }

    /// The state after a byte of a chunk's extensions (RFC 9112 section 7.1.1). An extension is a name and optionally a value, which is a
    /// token or a quoted string (RFC 9110 section 5.6.4). Whitespace around `;` and `=` is allowed.
    fn take_extension_byte(&mut self, b: u8) -> Result<State, BodyError> {
        self.extension_bytes += u32::from(self.state != State::Size);
        if self.extension_bytes > MAX_EXTENSION_BYTES {
            return Err(BodyError::Malformed("too many chunk extensions"));
        }
        let is_blank = matches!(b, b' ' | b'\t');
        Ok(match (self.state, b) {
            (State::ExtensionQuoted, b'"') => State::ExtensionQuotedEnd,
            (State::ExtensionQuoted, b'\\') => State::ExtensionQuotedPair,
            (State::ExtensionQuoted | State::ExtensionQuotedPair, _) if is_field_byte(b) => {
                State::ExtensionQuoted
            }
            (State::ExtensionStart | State::ExtensionName, _) if is_tchar(b) => {
                State::ExtensionName
            }
            (State::ExtensionValueStart | State::ExtensionValue, _) if is_tchar(b) => {
                State::ExtensionValue
            }
            (State::ExtensionValueStart, b'"') => State::ExtensionQuoted,
            (State::ExtensionName | State::ExtensionNameEnd, b'=') => State::ExtensionValueStart,
            (State::ExtensionStart | State::ExtensionValueStart, _) if is_blank => self.state,
            (State::ExtensionName | State::ExtensionNameEnd, _) if is_blank => {
                State::ExtensionNameEnd
            }
            (
                State::Size
                | State::ExtensionGap
                | State::ExtensionName
                | State::ExtensionNameEnd
                | State::ExtensionValue
                | State::ExtensionQuotedEnd,
                b';',
            ) => State::ExtensionStart,
            (
                State::Size
                | State::ExtensionGap
                | State::ExtensionValue
                | State::ExtensionQuotedEnd,
                _,
            ) if is_blank => State::ExtensionGap,
            _ => return Err(BodyError::Malformed("bad chunk extension")),
        })
    }

    /// Counts a byte of the trailer fields; `next` is the state after it.
    fn count_trailer_byte(&mut self, next: State) -> Result<State, BodyError> {
        self.trailer_bytes += 1;
        if self.trailer_bytes > MAX_TRAILER_BYTES {
            return Err(BodyError::Malformed("too many trailer fields"));
        }
        Ok(next)
    }

    fn take_digit(&mut self, b: u8) -> Result<State, BodyError> {
        if self.digit_count == MAX_SIZE_DIGITS {
            return Err(BodyError::Malformed("chunk size with too many digits"));
        }
        let value = match b {
            b'0'..=b'9' => b - b'0',
            _ => (b | 0x20) - b'a' + 10,
        };
        self.digit_count += 1;
        self.chunk_bytes_left = self.chunk_bytes_left << 4 | u64::from(value);
        Ok(State::Size)
    }

    /// The state after the line of a chunk size: the data, or the trailers after the last chunk.
    fn after_size_line(&mut self, limit: usize) -> Result<State, BodyError> {
        self.digit_count = 0;
        if self.chunk_bytes_left == 0 {
            return Ok(State::TrailerStart);
        }
        let body_bytes = self
            .body_bytes
            .checked_add(self.chunk_bytes_left)
            .ok_or(BodyError::TooLarge)?;
        if body_bytes > limit as u64 {
            return Err(BodyError::TooLarge);
        }
        self.body_bytes = body_bytes;
        Ok(State::Data)
    }
}

/// Whether a field value or a quoted string may contain the byte (RFC 9110 section 5.5).
const fn is_field_byte(b: u8) -> bool {
    b == b'\t' || (b >= b' ' && b != 0x7f)
}
