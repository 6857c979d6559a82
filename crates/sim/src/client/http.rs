//! Reads HTTP responses that arrive in pieces.

use crore_wire::http::date::parse_date;

use crate::truth::{Violation, printable};

/// A response's head.
#[derive(Clone, Debug, Default)]
pub struct Head {
    /// The status.
    pub status: u16,
    fields: Vec<(String, String)>,
}

impl Head {
    /// The value of a header field.
    pub fn field(&self, name: &str) -> Option<&str> {
        let found = self.fields.iter().find(|(field, _)| field == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The position in the `ETag`.
    pub fn etag(&self) -> Option<Vec<u8>> {
        let tag = self.field("etag")?.strip_prefix('"')?.strip_suffix('"')?;
        Some(tag.as_bytes().to_vec())
    }
}

/// Removes a response's head from the beginning of `bytes`, if it is complete.
pub fn take_head(bytes: &mut Vec<u8>) -> Result<Option<Head>, Violation> {
    let Some(end) = bytes.windows(4).position(|four| four == b"\r\n\r\n") else {
        return Ok(None);
    };
    let text = String::from_utf8(bytes.drain(..end + 4).collect())
        .map_err(|_| "a head that is not UTF-8")?;
    let mut lines = text.split("\r\n");
    let first = lines.next().unwrap_or_default();
    let status = first
        .strip_prefix("HTTP/1.1 ")
        .and_then(|rest| rest.get(..3));
    let status = status.and_then(|digits| digits.parse().ok());
    let status =
        status.ok_or_else(|| format!("no status line: {}", printable(first.as_bytes())))?;
    let mut fields = Vec::new();
    for line in lines.filter(|line| !line.is_empty()) {
        let (name, value) = line
            .split_once(": ")
            .ok_or_else(|| format!("no header: {}", printable(line.as_bytes())))?;
        fields.push((name.to_ascii_lowercase(), value.to_string()));
    }
    let head = Head { status, fields };
    let date = |name| parse_date(head.field(name)?.as_bytes());
    if let (Some(date), Some(modified)) = (date("date"), date("last-modified"))
        && modified > date
    {
        return Err(format!("a message of {modified} in an answer of {date}"));
    }
    Ok(Some(head))
}

/// Where a response's body ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Framing {
    /// After a known number of bytes.
    Length(usize),
    /// With an empty chunk.
    Chunks,
    /// With the connection.
    ToEnd,
}

/// The end of the body of a response with this head.
pub fn framing(head: &Head) -> Result<Framing, Violation> {
    if matches!(head.status, 101 | 204 | 304) {
        return Ok(Framing::Length(0));
    }
    if head.field("transfer-encoding") == Some("chunked") {
        return Ok(Framing::Chunks);
    }
    match head.field("content-length") {
        Some(len) => len
            .parse()
            .map(Framing::Length)
            .map_err(|_| format!("a length of {len}")),
        None => Ok(Framing::ToEnd),
    }
}

/// Moves complete chunks from `bytes` to `body`. Returns true after the empty chunk at the end.
pub fn take_chunks(bytes: &mut Vec<u8>, body: &mut Vec<u8>) -> Result<bool, Violation> {
    loop {
        let Some(line) = bytes.windows(2).position(|two| two == b"\r\n") else {
            return Ok(false);
        };
        let size = std::str::from_utf8(&bytes[..line])
            .ok()
            .and_then(|hex| usize::from_str_radix(hex, 16).ok())
            .ok_or_else(|| format!("no chunk size: {}", printable(bytes)))?;
        let end = line + 2 + size;
        if bytes.len() < end + 2 {
            return Ok(false);
        }
        if &bytes[end..end + 2] != b"\r\n" {
            return Err(format!(
                "a chunk that does not end: {}",
                printable(&bytes[end..])
            ));
        }
        body.extend_from_slice(&bytes[line + 2..end]);
        bytes.drain(..end + 2);
        if size == 0 {
            return Ok(true);
        }
    }
}
