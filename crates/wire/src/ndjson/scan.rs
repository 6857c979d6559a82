//! A cursor over JSON text (RFC 8259) that checks and skips.
//!
//! Invariants: nothing is accepted that is not JSON and UTF-8; no recursion, the kinds of the open levels
//! are the bits of one word; every step is forward, so that the work is linear in the line.

use super::{LineError, MAX_DEPTH};
use alloc::vec::Vec;
use memchr::memchr2;

/// How many bytes after an escape are checked one by one before the vector search starts again: in strings that hold JSON
/// the next escape is near, and starting the search costs more than these checks.
const NEAR: usize = 16;

/// How many bytes are checked at once: two vectors of the smallest kind.
const STRIDE: usize = 32;

/// A string in the line, without its quotes.
#[derive(Clone, Copy)]
pub(super) struct Text {
    pub(super) start: usize,
    pub(super) end: usize,
    /// It holds escapes, so that it has to be decoded.
    pub(super) escaped: bool,
}

/// Takes the decoded text of a string with escapes.
pub(super) trait Sink {
    fn put(&mut self, bytes: &[u8]);
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// For strings that are only checked.
struct Discard;

impl Sink for Discard {
    fn put(&mut self, _: &[u8]) {}
}

pub(super) struct Scan<'a> {
    line: &'a [u8],
    at: usize,
}

impl<'a> Scan<'a> {
    pub(super) const fn new(line: &'a [u8]) -> Scan<'a> {
        Scan { line, at: 0 }
    }

    pub(super) const fn at(&self) -> usize {
        self.at
    }

    pub(super) fn rest(&self) -> &'a [u8] {
        &self.line[self.at..]
    }

    pub(super) fn slice(&self, start: usize, end: usize) -> &'a [u8] {
        &self.line[start..end]
    }

    pub(super) const fn step(&mut self) {
        self.skip(1);
    }

    /// Goes past bytes that the caller has checked.
    pub(super) const fn skip(&mut self, bytes: usize) {
        self.at += bytes;
        debug_assert!(self.at <= self.line.len());
    }

    /// The next byte that is not white space, which the cursor then stands on.
    #[inline]
    pub(super) fn peek(&mut self) -> Option<u8> {
        loop {
            match self.line.get(self.at) {
                Some(b' ' | b'\t' | b'\r' | b'\n') => self.at += 1,
                other => return other.copied(),
            }
        }
    }

    /// The quote that begins the name of a field.
    pub(super) fn quote(&mut self) -> Result<(), LineError> {
        self.expect(b'"', LineError::ExpectedKey)
    }

    /// The colon after the name of a field.
    pub(super) fn colon(&mut self) -> Result<(), LineError> {
        self.expect(b':', LineError::ExpectedColon)
    }

    fn expect(&mut self, byte: u8, otherwise: LineError) -> Result<(), LineError> {
        match self.peek() {
            Some(next) if next == byte => {
                self.step();
                Ok(())
            }
            Some(_) => Err(otherwise),
            None => Err(LineError::Incomplete),
        }
    }

    /// A string whose opening quote has been taken. When it has escapes `out` gets the decoded text.
    pub(super) fn string(&mut self, out: &mut impl Sink) -> Result<Text, LineError> {
        let start = self.at;
        let Some(found) = memchr2(b'"', b'\\', self.rest()) else {
            return Err(self.unclosed(start));
        };
        self.at += found;
        let escaped = self.line[self.at] == b'\\';
        if escaped {
            self.escaped(start, out)?;
        }
        let end = self.at;
        check(&self.line[start..end])?;
        self.step();
        Ok(Text {
            start,
            end,
            escaped,
        })
    }

    /// The rest of a string from its first escape to the closing quote, which is not taken.
    fn escaped(&mut self, start: usize, out: &mut impl Sink) -> Result<(), LineError> {
        out.put(&self.line[start..self.at]);
        loop {
            let meaning = self.escape()?;
            out.put(meaning.encode_utf8(&mut [0; 4]).as_bytes());
            let from = self.at;
            let rest = self.rest();
            let near = rest
                .iter()
                .take(NEAR)
                .position(|b| matches!(b, b'"' | b'\\'));
            let found = near.or_else(|| {
                let far = rest.get(NEAR..)?;
                memchr2(b'"', b'\\', far).map(|found| NEAR + found)
            });
            let Some(found) = found else {
                return Err(self.unclosed(start));
            };
            self.at += found;
            out.put(&self.line[from..self.at]);
            if self.line[self.at] == b'"' {
                return Ok(());
            }
        }
    }

    /// The error of a string that has no end: that of its content, if that is wrong too, since an unescaped line ending
    /// cuts a line there.
    #[cold]
    fn unclosed(&self, start: usize) -> LineError {
        check(&self.line[start..])
            .err()
            .unwrap_or(LineError::Incomplete)
    }

    /// One escape, from its backslash on.
    fn escape(&mut self) -> Result<char, LineError> {
        let meaning = match self.line.get(self.at + 1) {
            Some(&same @ (b'"' | b'\\' | b'/')) => char::from(same),
            Some(b'n') => '\n',
            Some(b't') => '\t',
            Some(b'r') => '\r',
            Some(b'b') => '\u{8}',
            Some(b'f') => '\u{c}',
            Some(b'u') => return self.unicode_escape(),
            Some(_) => return Err(LineError::BadEscape),
            None => return Err(LineError::Incomplete),
        };
        self.skip(2);
        Ok(meaning)
    }

    /// `\u` and four digits, or two of them that are a surrogate pair.
    fn unicode_escape(&mut self) -> Result<char, LineError> {
        let mut code = self.four_digits()?;
        if (0xD800..0xDC00).contains(&code) {
            if !self.rest().starts_with(b"\\u") {
                return Err(LineError::LoneSurrogate);
            }
            let low = self.four_digits()?;
            if !(0xDC00..0xE000).contains(&low) {
                return Err(LineError::LoneSurrogate);
            }
            code = 0x1_0000 + ((code - 0xD800) << 10) + (low - 0xDC00);
        }
        char::from_u32(code).ok_or(LineError::LoneSurrogate)
    }

    /// The digits after `\u`, on whose backslash the cursor stands.
    fn four_digits(&mut self) -> Result<u32, LineError> {
        let Some(digits) = self.rest().get(2..6) else {
            return Err(LineError::BadEscape);
        };
        let mut code = 0;
        for &digit in digits {
            let value = char::from(digit).to_digit(16);
            code = code << 4 | value.ok_or(LineError::BadEscape)?;
        }
        self.skip(6);
        Ok(code)
    }

    /// Any value, checked and skipped.
    pub(super) fn value(&mut self) -> Result<(), LineError> {
        // One bit for each open level, the innermost lowest: set when it is an object.
        let mut objects = 0_u64;
        let mut depth = 0;
        loop {
            let first = self.peek().ok_or(LineError::Incomplete)?;
            if let b'{' | b'[' = first {
                if depth == MAX_DEPTH {
                    return Err(LineError::TooDeep);
                }
                depth += 1;
                objects = objects << 1 | u64::from(first == b'{');
                self.step();
                // Both closing brackets are two after their opening ones.
                if self.peek() != Some(first + 2) {
                    self.member_key(objects)?;
                    continue;
                }
            } else {
                self.scalar(first)?;
            }
            // A value ended, or the innermost level is empty: close all levels that end here.
            loop {
                if depth == 0 {
                    return Ok(());
                }
                let closing = if objects & 1 == 1 { b'}' } else { b']' };
                match self.peek().ok_or(LineError::Incomplete)? {
                    b',' => break,
                    next if next == closing => self.step(),
                    _ => return Err(LineError::ExpectedComma),
                }
                depth -= 1;
                objects >>= 1;
            }
            self.step();
            self.member_key(objects)?;
        }
    }

    /// The name and the colon before a value, when the innermost level is an object.
    fn member_key(&mut self, objects: u64) -> Result<(), LineError> {
        if objects & 1 == 0 {
            return Ok(());
        }
        self.quote()?;
        self.string(&mut Discard)?;
        self.colon()
    }

    fn scalar(&mut self, first: u8) -> Result<(), LineError> {
        match first {
            b'"' => {
                self.step();
                self.string(&mut Discard).map(|_| ())
            }
            b'-' | b'0'..=b'9' => self.number(),
            b't' => self.literal(b"true"),
            b'f' => self.literal(b"false"),
            b'n' => self.literal(b"null"),
            _ => Err(LineError::ExpectedValue),
        }
    }

    fn literal(&mut self, word: &[u8]) -> Result<(), LineError> {
        if !self.rest().starts_with(word) {
            return Err(LineError::ExpectedValue);
        }
        self.skip(word.len());
        Ok(())
    }

    /// RFC 8259 section 6. Its magnitude is left to the receivers, since it is passed on as text.
    fn number(&mut self) -> Result<(), LineError> {
        self.take(b"-");
        // Nothing but a fraction or an exponent follows a leading zero.
        if !self.take(b"0") {
            self.digits()?;
        }
        if self.take(b".") {
            self.digits()?;
        }
        if self.take(b"eE") {
            self.take(b"+-");
            self.digits()?;
        }
        match self.line.get(self.at) {
            Some(b'0'..=b'9') => Err(LineError::BadNumber),
            _ => Ok(()),
        }
    }

    fn take(&mut self, any: &[u8]) -> bool {
        let there = self.line.get(self.at).is_some_and(|b| any.contains(b));
        self.at += usize::from(there);
        there
    }

    fn digits(&mut self) -> Result<(), LineError> {
        let digits = self
            .rest()
            .iter()
            .take_while(|b| b.is_ascii_digit())
            .count();
        if digits == 0 {
            return Err(LineError::BadNumber);
        }
        self.skip(digits);
        Ok(())
    }
}

/// Whether the text between two quotes is UTF-8 without control characters. Nearly every text is ASCII, which the first
/// pass decides in a few instructions for each vector.
fn check(text: &[u8]) -> Result<(), LineError> {
    // Counted from the space on, control characters wrap around into the range of non-ASCII bytes.
    if most(text, |b| b.wrapping_sub(b' ')) < 0x80 - b' ' {
        return Ok(());
    }
    if most(text, |b| !b) > !b' ' {
        return Err(LineError::Control);
    }
    core::str::from_utf8(text).map_or(Err(LineError::NotUtf8), |_| Ok(()))
}

/// The greatest measure of any byte. The loop has no early exit, which would keep the compiler from vectors, and the rest
/// after the last whole stride is measured as part of a whole one.
#[inline]
fn most(text: &[u8], measure: impl Fn(u8) -> u8) -> u8 {
    let most_of = |text: &[u8], most| text.iter().fold(most, |most: u8, &b| most.max(measure(b)));
    match text.last_chunk::<STRIDE>() {
        Some(last) => most_of(
            text.as_chunks::<STRIDE>().0.as_flattened(),
            most_of(last, 0),
        ),
        None => most_of(text, 0),
    }
}
