//! Subscribes by WebSocket (RFC 6455), without extensions.

use std::convert::Infallible;
use std::io::{self, ErrorKind, Read, Write};

use crore_net::memory::random_u64;
use crore_wire::sse::GAP_EVENT;
use crore_wire::websocket::frame::{Opcode, write_masked};
use crore_wire::websocket::gap::{CLOSE_GAP, resume_position};
use crore_wire::websocket::handshake::{accept_key, client_key};
use crore_wire::websocket::receive::{Config, Event, Role, next};

use super::session::{MAX_ENVELOPE_BYTES, Session, Stop, refusal};
use crate::http_client::http::ANSWER_TIMEOUT;
use crate::http_client::stream::Stream;
use crate::tools::refusals::reason;

/// Size of the read buffer.
const READ_BYTES: usize = 16 << 10;

/// Whether a retry would end with the same close code. The server's codes 4400 to 4499 stand for the HTTP status 4xx, and 1008 is a policy
/// violation (RFC 6455 section 7.4.1). The exception is `CLOSE_GAP`: a retry can then succeed, and the close reason has the position to
/// continue from.
fn is_final(code: u16) -> bool {
    code == 1008 || (4400..4500).contains(&code) && code != CLOSE_GAP
}

/// Receives messages until the subscription or the connection ends.
pub fn receive(session: &mut Session<'_>) -> Result<Infallible, Stop> {
    let (mut stream, mut input) = open(session)?;
    session.answered();
    let config = Config {
        role: Role::Client,
        message_bytes: MAX_ENVELOPE_BYTES,
        deflate: false,
    };
    let mut partial = None;
    let mut buffer = [0; READ_BYTES];
    loop {
        let mut at = 0;
        loop {
            let step = next(&mut partial, &mut input[at..], &config).map_err(|violation| {
                Stop::Lost(format!(
                    "the server broke the protocol: {}",
                    violation.reason()
                ))
            })?;
            at += step.consumed;
            match step.event {
                None => break,
                Some(Event::Text(message) | Event::Binary(message)) => session.deliver(message)?,
                Some(Event::Ping(payload)) => send(&mut stream, Opcode::Pong, payload)?,
                Some(Event::Pong(_)) => {}
                Some(Event::Close {
                    code,
                    reason: words,
                }) => {
                    let payload = code.map(u16::to_be_bytes);
                    // If this answer is lost, the server closes the connection all the same.
                    let _ = send(
                        &mut stream,
                        Opcode::Close,
                        payload.as_ref().map_or(&[], |code| &code[..]),
                    );
                    if code == Some(CLOSE_GAP) {
                        session.notice(GAP_EVENT, resume_position(words));
                    }
                    return Err(closed(code, words));
                }
            }
        }
        stream.set_timeouts(session.read_timeout(), ANSWER_TIMEOUT)?;
        let len = stream.read(&mut buffer)?;
        if len == 0 {
            return Err(io::Error::from(ErrorKind::UnexpectedEof).into());
        }
        input.clear();
        input.extend_from_slice(&buffer[..len]);
    }
}

/// The opening handshake (RFC 6455 section 4.1). Returns the stream, and the bytes after the response's head.
fn open(session: &Session<'_>) -> Result<(Stream, Vec<u8>), Stop> {
    let server = session.server();
    let mut connection = session.open()?;
    let mut nonce = [0; 16];
    nonce[..8].copy_from_slice(&random_u64().to_le_bytes());
    nonce[8..].copy_from_slice(&random_u64().to_le_bytes());
    let key = client_key(nonce);
    let key_text = String::from_utf8_lossy(&key);
    let headers = [
        ("Upgrade", "websocket"),
        ("Connection", "Upgrade"),
        ("Sec-WebSocket-Version", "13"),
        ("Sec-WebSocket-Key", &*key_text),
    ];
    let head = connection.request(server, "GET", &session.target(), &headers, None)?;
    if head.status != 101 {
        return Err(refusal(&mut connection, &head));
    }
    let accept = accept_key(&key);
    if head.header("sec-websocket-accept").map(str::as_bytes)
        != accept.as_ref().map(|accept| &accept[..])
    {
        return Err(Stop::Refused(format!(
            "{server}: what answered is not a WebSocket server"
        )));
    }
    Ok(connection.into_stream())
}

fn send(stream: &mut Stream, opcode: Opcode, payload: &[u8]) -> io::Result<()> {
    let mut frame = Vec::new();
    let [a, b, c, d, ..] = random_u64().to_le_bytes();
    write_masked(&mut frame, opcode, payload, [a, b, c, d]);
    stream.write_all(&frame)
}

fn closed(code: Option<u16>, words: &[u8]) -> Stop {
    let code = code.unwrap_or(1005);
    let message = format!(
        "the server closed the subscription: {code}{}",
        reason(words)
    );
    if is_final(code) {
        Stop::Refused(message)
    } else {
        Stop::Lost(message)
    }
}
