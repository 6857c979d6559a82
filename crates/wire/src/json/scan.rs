//! A cursor over JSON text (RFC 8259) that checks and skips values.
//!
//! Invariants: only valid JSON and valid UTF-8 are accepted. There is no recursion, because the open arrays and objects are the bits of one
//! word. The cursor only moves forward, so the work is linear in the length of the text.

use alloc::vec::Vec;
use memchr::memchr2;

/// The maximum depth of arrays and objects in a value. One word has a bit for each level. Common parsers accept 100 to 128 levels, and no
/// real message needs half of that.
pub const MAX_DEPTH: u32 = u64::BITS;

/// Why this crate refuses a text as JSON.
#[derive(Clone, Copy, Debug, PartialEq, Eq, derive_more::Display)]
#[display("{}", self.reason())]
pub enum Fault {
    /// The text ends within a value.
    Incomplete,
    /// A `"` should begin the name of a field.
    ExpectedKey,
    /// A `:` should follow the name of a field.
    ExpectedColon,
    /// A `,` or the closing bracket should follow a value.
    ExpectedComma,
    /// No JSON value begins here.
    ExpectedValue,
    /// Something follows the value.
    Trailing,
    /// A malformed number (RFC 8259 section 6).
    BadNumber,
    /// An unescaped control character in a string.
    Control,
    /// A malformed escape (RFC 8259 section 7).
    BadEscape,
    /// Half of a surrogate pair, as an escape.
    LoneSurrogate,
    /// A string that is not UTF-8.
    NotUtf8,
    /// A value with more than [`MAX_DEPTH`] levels.
    TooDeep,
}

impl Fault {
    /// The reason, in words for the sender.
    pub const fn reason(&self) -> &'static str {
        match self {
            Fault::Incomplete => "not JSON: the text ends too early",
            Fault::ExpectedKey => "not JSON: a field's name in quotes is expected",
            Fault::ExpectedColon => "not JSON: a colon is expected",
            Fault::ExpectedComma => "not JSON: a comma or closing bracket is expected",
            Fault::ExpectedValue => "not JSON: a value is expected",
            Fault::Trailing => "not JSON: something follows the value",
            Fault::BadNumber => "not JSON: a malformed number",
            Fault::Control => "not JSON: a control character in a string",
            Fault::BadEscape => "not JSON: a bad escape in a string",
            Fault::LoneSurrogate => "a string escapes half of a surrogate pair",
            Fault::NotUtf8 => "a string is not UTF-8",
            Fault::TooDeep => "a value nests deeper than 64 levels",
        }
    }
}

impl core::error::Error for Fault {}

/// Whether the bytes are one JSON value, at most [`MAX_DEPTH`] levels deep.
pub fn is_json(bytes: &[u8]) -> bool {
    let mut scan = Scan::new(bytes);
    scan.value().and_then(|()| scan.end()).is_ok()
}

/// Number of bytes after an escape that are checked one by one before the vectorized search starts again. In a string that contains JSON
/// the next escape is near, and a start of the search costs more than these checks.
const LINEAR_SCAN_BYTES: usize = 16;

/// Number of bytes that are checked at once: two of the smallest vectors.
const STRIDE_BYTES: usize = 32;

/// Where a string is in the text, without its quotes.
#[derive(Clone, Copy)]
pub(crate) struct Text {
    pub(crate) start: usize,
    pub(crate) end: usize,
    /// The string has escapes, so it must be decoded.
    pub(crate) escaped: bool,
}

/// Receives the decoded text of a string with escapes.
pub(crate) trait Sink {
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Discards the text of a string that is only checked.
struct Discard;

impl Sink for Discard {
    fn put(&mut self, _: &[u8]) {}
}

/// A cursor over a line or another text.
pub(crate) struct Scan<'a> {
    line: &'a [u8],
    /// The offset of the next byte.
    at: usize,
}

impl<'a> Scan<'a> {
    pub(crate) const fn new(line: &'a [u8]) -> Scan<'a> {
        Scan { line, at: 0 }
    }

    pub(crate) const fn at(&self) -> usize {
        self.at
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        &self.line[self.at..]
    }

    pub(crate) fn slice(&self, start: usize, end: usize) -> &'a [u8] {
        &self.line[start..end]
    }

    pub(crate) const fn step(&mut self) {
        self.skip(1);
    }

    /// Skips bytes that the caller has checked.
    pub(crate) const fn skip(&mut self, bytes: usize) {
        self.at += bytes;
        debug_assert!(self.at <= self.line.len());
    }

    /// Moves to the next byte that is not white space, and returns it.
    #[inline]
    pub(crate) fn peek(&mut self) -> Option<u8> {
        loop {
            match self.line.get(self.at) {
                Some(b' ' | b'\t' | b'\r' | b'\n') => self.at += 1,
                other => return other.copied(),
            }
        }
    }

    /// Skips the quote at the beginning of a field's name.
    pub(crate) fn quote(&mut self) -> Result<(), Fault> {
        self.expect(b'"', Fault::ExpectedKey)
    }

    /// Skips the colon after a field's name.
    pub(crate) fn colon(&mut self) -> Result<(), Fault> {
        self.expect(b':', Fault::ExpectedColon)
    }

    /// Checks that nothing but white space is left.
    pub(crate) fn end(&mut self) -> Result<(), Fault> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(Fault::Trailing),
        }
    }

    fn expect(&mut self, byte: u8, fault: Fault) -> Result<(), Fault> {
        match self.peek() {
            Some(next) if next == byte => {
                self.step();
                Ok(())
            }
            Some(_) => Err(fault),
            None => Err(Fault::Incomplete),
        }
    }

    /// Reads a string after its opening quote. If it has escapes, appends the decoded text to `out`.
    pub(crate) fn string(&mut self, out: &mut impl Sink) -> Result<Text, Fault> {
        let start = self.at;
        let Some(offset) = memchr2(b'"', b'\\', self.rest()) else {
            return Err(self.unclosed_fault(start));
        };
        self.at += offset;
        let escaped = self.line[self.at] == b'\\';
        if escaped {
            self.read_escaped(start, out)?;
        }
        let end = self.at;
        check_text(&self.line[start..end])?;
        self.step();
        Ok(Text {
            start,
            end,
            escaped,
        })
    }

    /// Reads a string from its first escape up to the closing quote.
    fn read_escaped(&mut self, start: usize, out: &mut impl Sink) -> Result<(), Fault> {
        out.put(&self.line[start..self.at]);
        loop {
            let character = self.read_escape()?;
            out.put(character.encode_utf8(&mut [0; 4]).as_bytes());
            let start_of_plain = self.at;
            let rest = self.rest();
            let near_offset = rest
                .iter()
                .take(LINEAR_SCAN_BYTES)
                .position(|b| matches!(b, b'"' | b'\\'));
            let offset = near_offset.or_else(|| {
                let far = rest.get(LINEAR_SCAN_BYTES..)?;
                memchr2(b'"', b'\\', far).map(|offset| LINEAR_SCAN_BYTES + offset)
            });
            let Some(offset) = offset else {
                return Err(self.unclosed_fault(start));
            };
            self.at += offset;
            out.put(&self.line[start_of_plain..self.at]);
            if self.line[self.at] == b'"' {
                return Ok(());
            }
        }
    }

    /// The error for a string without a closing quote. If there is an error in the content, that is the better error: an unescaped line end
    /// may have cut the string.
    #[cold]
    fn unclosed_fault(&self, start: usize) -> Fault {
        check_text(&self.line[start..])
            .err()
            .unwrap_or(Fault::Incomplete)
    }

    /// Reads one escape, from its backslash on.
    fn read_escape(&mut self) -> Result<char, Fault> {
        let character = match self.line.get(self.at + 1) {
            Some(&same @ (b'"' | b'\\' | b'/')) => char::from(same),
            Some(b'n') => '\n',
            Some(b't') => '\t',
            Some(b'r') => '\r',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'u') => return self.read_unicode_escape(),
            Some(_) => return Err(Fault::BadEscape),
            None => return Err(Fault::Incomplete),
        };
        self.skip(2);
        Ok(character)
    }

    /// Reads `\u` and four digits, or a surrogate pair of two such escapes.
    fn read_unicode_escape(&mut self) -> Result<char, Fault> {
        let mut code = self.read_four_digits()?;
        if (0xD800..0xDC00).contains(&code) {
            if !self.rest().starts_with(b"\\u") {
                return Err(Fault::LoneSurrogate);
            }
            let low = self.read_four_digits()?;
            if !(0xDC00..0xE000).contains(&low) {
                return Err(Fault::LoneSurrogate);
            }
            code = 0x1_0000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        }
        char::from_u32(code).ok_or(Fault::LoneSurrogate)
    }

    /// Reads `\u` and four digits; returns the value of the digits.
    fn read_four_digits(&mut self) -> Result<u32, Fault> {
        let Some(digits) = self.rest().get(2..6) else {
            return Err(Fault::BadEscape);
        };
        let mut code = 0;
        for &digit in digits {
            let value = char::from(digit).to_digit(16);
            code = code << 4 | value.ok_or(Fault::BadEscape)?;
        }
        self.skip(6);
        Ok(code)
    }

    /// Checks and skips any value.
    pub(crate) fn value(&mut self) -> Result<(), Fault> {
        // One bit for each open level, set for an object, clear for an array. The lowest bit is the innermost level.
        let mut objects = 0_u64;
        let mut depth = 0;
        loop {
            let first = self.peek().ok_or(Fault::Incomplete)?;
            if let b'{' | b'[' = first {
                if depth == MAX_DEPTH {
                    return Err(Fault::TooDeep);
                }
                depth += 1;
                objects = objects << 1 | u64::from(first == b'{');
                self.step();
                // In ASCII the code of a closing bracket is that of its opening bracket plus 2.
                if self.peek() != Some(first + 2) {
                    self.skip_key(objects)?;
                    continue;
                }
            } else {
                self.skip_scalar(first)?;
            }
            // A value has ended, or the innermost level is empty. All levels that end here are closed.
            loop {
                if depth == 0 {
                    return Ok(());
                }
                let closing = if objects & 1 == 1 { b'}' } else { b']' };
                match self.peek().ok_or(Fault::Incomplete)? {
                    b',' => break,
                    next if next == closing => self.step(),
                    _ => return Err(Fault::ExpectedComma),
                }
                depth -= 1;
                objects >>= 1;
            }
            self.step();
            self.skip_key(objects)?;
        }
    }

    /// Skips the name and the colon before a value, if the innermost level is an object.
    fn skip_key(&mut self, objects: u64) -> Result<(), Fault> {
        if objects & 1 == 0 {
            return Ok(());
        }
        self.quote()?;
        self.string(&mut Discard)?;
        self.colon()
    }

    fn skip_scalar(&mut self, first: u8) -> Result<(), Fault> {
        match first {
            b'"' => {
                self.step();
                self.string(&mut Discard).map(|_| ())
            }
            b'-' | b'0'..=b'9' => self.skip_number(),
            b't' => self.skip_literal(b"true"),
            b'f' => self.skip_literal(b"false"),
            b'n' => self.skip_literal(b"null"),
            _ => Err(Fault::ExpectedValue),
        }
    }

    fn skip_literal(&mut self, word: &[u8]) -> Result<(), Fault> {
        if !self.rest().starts_with(word) {
            return Err(Fault::ExpectedValue);
        }
        self.skip(word.len());
        Ok(())
    }

    /// Skips a number (RFC 8259 section 6). Any magnitude is accepted, because subscribers get the number as text.
    fn skip_number(&mut self) -> Result<(), Fault> {
        self.skip_one_of(b"-");
        // After a leading zero only a fraction or an exponent may follow.
        if !self.skip_one_of(b"0") {
            self.skip_digits()?;
        }
        if self.skip_one_of(b".") {
            self.skip_digits()?;
        }
        if self.skip_one_of(b"eE") {
            self.skip_one_of(b"+-");
            self.skip_digits()?;
        }
        match self.line.get(self.at) {
            Some(b'0'..=b'9') => Err(Fault::BadNumber),
            _ => Ok(()),
        }
    }

    /// Skips the next byte if it is one of `bytes`. Returns whether it was.
    fn skip_one_of(&mut self, bytes: &[u8]) -> bool {
        let is_next = self.line.get(self.at).is_some_and(|b| bytes.contains(b));
        self.at += usize::from(is_next);
        is_next
    }

    fn skip_digits(&mut self) -> Result<(), Fault> {
        let count = self
            .rest()
            .iter()
            .take_while(|b| b.is_ascii_digit())
            .count();
        if count == 0 {
            return Err(Fault::BadNumber);
        }
        self.skip(count);
        Ok(())
    }
}

/// Checks that the text between two quotes is UTF-8 without control characters. Nearly every text is ASCII, and then the first pass is
/// enough, which takes a few instructions for each vector.
fn check_text(text: &[u8]) -> Result<(), Fault> {
    // After subtracting the space, control characters wrap around into the range of non-ASCII bytes.
    if max_of(text, |b| b.wrapping_sub(b' ')) < 0x80 - b' ' {
        return Ok(());
    }
    if max_of(text, |b| !b) > !b' ' {
        return Err(Fault::Control);
    }
    core::str::from_utf8(text).map_or(Err(Fault::NotUtf8), |_| Ok(()))
}

/// The largest `measure` of any byte. The compiler vectorizes the loop because it has no early exit. The last `STRIDE_BYTES` bytes are
/// measured a second time: they include the bytes after the last whole stride.
#[inline]
fn max_of(text: &[u8], measure: impl Fn(u8) -> u8) -> u8 {
    let max_in = |text: &[u8], max| text.iter().fold(max, |max: u8, &b| max.max(measure(b)));
    match text.last_chunk::<STRIDE_BYTES>() {
        Some(last) => max_in(
            text.as_chunks::<STRIDE_BYTES>().0.as_flattened(),
            max_in(last, 0),
        ),
        None => max_in(text, 0),
    }
}
