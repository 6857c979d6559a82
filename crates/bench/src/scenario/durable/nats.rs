//! A publisher of NATS JetStream: `PUB` with a subject to answer to, and the answers. Only what this measurement needs of the
//! protocol is read.

use std::net::SocketAddr;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use memchr::memmem;

use super::PATIENCE;
use crate::scenario::crash::Link;

/// Subjects of the stream.
const SUBJECTS: u32 = 1024;

fn connect(address: SocketAddr) -> Result<Link> {
    let mut link = Link::open(address, PATIENCE)?;
    link.send(b"CONNECT {\"verbose\":false,\"pedantic\":false}\r\nSUB _INBOX.bench 1\r\nPING\r\n")?;
    loop {
        if let Some(at) = memmem::find(&link.held, b"PONG\r\n") {
            link.held.drain(..at + 6);
            return Ok(link);
        }
        link.read()?;
    }
}

/// Makes the stream: file storage, without limits.
pub fn make_stream(address: SocketAddr) -> Result<()> {
    let mut link = connect(address)?;
    let config = "{\"name\":\"bench\",\"subjects\":[\"bench.*\"],\"storage\":\"file\",\"retention\":\"limits\",\"discard\":\"old\",\"num_replicas\":1}";
    let length = config.len();
    let request = format!("PUB $JS.API.STREAM.CREATE.bench _INBOX.bench {length}\r\n{config}\r\n");
    link.send(request.as_bytes())?;
    let answer = loop {
        if let Some((answer, _)) = message(&link.held)? {
            break String::from_utf8_lossy(answer).into_owned();
        }
        link.read()?;
    };
    ensure!(!answer.contains("\"error\""), "NATS: {answer}");
    Ok(())
}

/// The payload of the message at the start of `bytes`, and the bytes of the whole; the server's pings are none of a busy
/// publisher's business.
fn message(bytes: &[u8]) -> Result<Option<(&[u8], usize)>> {
    let Some(end) = memmem::find(bytes, b"\r\n") else {
        return Ok(None);
    };
    let line = std::str::from_utf8(&bytes[..end])?;
    ensure!(!line.starts_with("-ERR"), "NATS: {line}");
    if !line.starts_with("MSG ") {
        return Ok(Some((&[], end + 2)));
    }
    let length = line.rsplit(' ').next().context("a length")?;
    let (start, length) = (end + 2, length.parse::<usize>()?);
    let payload = bytes.get(start..start + length + 2);
    Ok(payload.map(|payload| (&payload[..length], start + length + 2)))
}

/// Keeps so many publishes in flight: answered publishes a second.
pub fn rate(address: SocketAddr, flight: u32, size: usize, seconds: f64) -> Result<f64> {
    let mut link = connect(address)?;
    let data = "x".repeat(size);
    let (mut next, mut out) = (0, Vec::new());
    let mut publish = |count: u32, out: &mut Vec<u8>| {
        out.clear();
        for _ in 0..count {
            next = (next + 1) % SUBJECTS;
            let text = format!("PUB bench.{next} _INBOX.bench {size}\r\n{data}\r\n");
            out.extend_from_slice(text.as_bytes());
        }
    };
    publish(flight, &mut out);
    link.send(&out)?;
    let (begin, mut answered) = (Instant::now(), 0);
    while begin.elapsed().as_secs_f64() < seconds {
        link.read()?;
        let (mut used, mut count) = (0, 0);
        while let Some((payload, bytes)) = message(&link.held[used..])? {
            if memmem::find(payload, b"\"error\"").is_some() {
                bail!("NATS: {}", String::from_utf8_lossy(payload));
            }
            count += u32::from(!payload.is_empty());
            used += bytes;
        }
        link.held.drain(..used);
        answered += count;
        publish(count, &mut out);
        link.send(&out)?;
    }
    Ok(f64::from(answered) / begin.elapsed().as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_whole_or_not_there() {
        let bytes = b"MSG _INBOX.bench 1 5\r\nhello\r\nPING\r\n";
        assert_eq!(message(bytes).unwrap(), Some((&b"hello"[..], 29)));
        assert_eq!(message(&bytes[29..]).unwrap(), Some((&b""[..], 6)));
        for cut in 0..29 {
            assert_eq!(message(&bytes[..cut]).unwrap(), None, "{cut}");
        }
        assert!(message(b"-ERR 'no'\r\n").is_err());
    }
}
