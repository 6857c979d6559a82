//! Honest publishers over HTTP and WebSocket.

use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::readers::Socket;
use super::stream::{BETWEEN_PIECES, Stream, read_answer};
use super::topics::{ANEW, HTTP, SOCKET};
use super::{ANSWER_TIMEOUT, Server};
use crate::tally::Tally;

/// Time between two messages of a publisher.
pub const INTERVAL: Duration = Duration::from_millis(60);
/// Every third message is sent in two pieces, and is longer.
const SPLIT_EVERY: u64 = 3;
const SPLIT_BYTES: usize = 6_000;
/// Every tenth message is longer still.
const LONG_EVERY: u64 = 10;
const LONG_BYTES: usize = 20_000;

/// Publishes one message after the other, until it is told to stop.
pub fn publish_until_stopped(
    tally: &Tally,
    topic: &str,
    mut publish: impl FnMut(&str, bool) -> Result<(), String>,
) -> Result<(), String> {
    let mut number = 0;
    while !tally.must_stop_publishing.load(Ordering::Relaxed) {
        number += 1;
        let in_two = number % SPLIT_EVERY == 0;
        let padding = match number % LONG_EVERY {
            0 => LONG_BYTES,
            _ if in_two => SPLIT_BYTES,
            _ => 100,
        };
        let delay = match in_two {
            true => BETWEEN_PIECES,
            false => Duration::ZERO,
        };
        let sent = Instant::now() + delay;
        let message = tally.message(topic, number, sent, padding);
        publish(&message, in_two)?;
        tally.record_wait(|| format!("the answer to {topic} {number}"), sent);
        tally.published.fetch_add(1, Ordering::Relaxed);
        std::thread::sleep(INTERVAL);
    }
    tally.set_last_number(topic, number);
    Ok(())
}

fn post(stream: &mut Stream, topic: &str, message: &str, in_two: bool) -> Result<(), String> {
    let request = format!(
        "POST /pub/{topic} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n\r\n{message}",
        message.len()
    );
    match in_two {
        true => stream.send_in_two(request.as_bytes())?,
        false => stream.send(request.as_bytes())?,
    }
    let answer = read_answer(stream)?;
    match answer.status {
        201 | 202 => Ok(()),
        _ => Err(format!("it is refused: {}", answer.describe())),
    }
}

/// Publishes over one HTTP connection.
pub fn http(server: &Server, tally: &Tally) -> Result<(), String> {
    let mut stream = Stream::plain(server)?;
    publish_until_stopped(tally, HTTP, |message, in_two| {
        post(&mut stream, HTTP, message, in_two)
    })
}

/// Publishes each message over a new connection; every second one uses TLS.
pub fn http_new_connections(server: &Server, tally: &Tally) -> Result<(), String> {
    let mut tls = false;
    publish_until_stopped(tally, ANEW, |message, in_two| {
        tls = !tls;
        let mut stream = match tls {
            true => Stream::tls(server)?,
            false => Stream::plain(server)?,
        };
        post(&mut stream, ANEW, message, in_two)
    })
}

/// Publishes over a WebSocket that acknowledges messages.
pub fn web_socket(server: &Server, tally: &Tally) -> Result<(), String> {
    let protocol = "Sec-WebSocket-Protocol: ws+meta.nchan\r\n";
    let mut socket = Socket::open(server, &format!("/pub/{SOCKET}"), protocol)?;
    publish_until_stopped(tally, SOCKET, |message, in_two| {
        socket.send(message.as_bytes(), in_two)?;
        let began = Instant::now();
        let mut acknowledgement = None;
        while acknowledgement.is_none() {
            socket
                .read(|text| acknowledgement = Some(String::from_utf8_lossy(text).into_owned()))?;
            if began.elapsed() > ANSWER_TIMEOUT {
                return Err(format!("no answer came in {ANSWER_TIMEOUT:?}"));
            }
        }
        let acknowledgement = acknowledgement.unwrap_or_default();
        match acknowledgement.contains("\nstatus: 201\n")
            || acknowledgement.contains("\nstatus: 202\n")
        {
            true => Ok(()),
            false => Err(format!("it is refused: {acknowledgement:?}")),
        }
    })
}
