//! Subscribes by Server-Sent Events: one request, whose response is a stream of messages.

use std::convert::Infallible;

use crore_wire::sse::{OWN_EVENTS, Parser};

use super::session::{MAX_ENVELOPE_BYTES, Session, Stop, refusal};
use crate::http_client::http::Head;

/// Size of the read buffer.
const READ_BYTES: usize = 16 << 10;

/// Receives messages until the subscription or the connection ends.
pub fn receive(session: &mut Session<'_>) -> Result<Infallible, Stop> {
    let server = &session.server().clone();
    let mut connection = session.open()?;
    let headers = [
        ("Accept", "text/event-stream"),
        // A client that sends this header, as `EventSource` does, gets a position at the start of the stream.
        ("Cache-Control", "no-cache"),
    ];
    let head = connection.request(server, "GET", &session.target(), &headers, None)?;
    match head.status {
        200 if is_event_stream(&head) => session.answered(),
        200 => {
            return Err(Stop::Refused(format!(
                "{server}: what answered sends no event stream"
            )));
        }
        // 204 means that clients must not reconnect (HTML, "Server-sent events").
        204 => return Err(Stop::Refused("the topic was deleted".to_string())),
        _ => return Err(refusal(&mut connection, &head)),
    }

    let mut parser = Parser::new(MAX_ENVELOPE_BYTES);
    let mut buffer = [0; READ_BYTES];
    loop {
        connection.set_read_timeout(session.read_timeout())?;
        let len = connection.read_body(&mut buffer)?;
        if len == 0 {
            return Err(Stop::Lost("the stream ended".to_string()));
        }
        let mut delivered = Ok(());
        let parsed = parser.push(&buffer[..len], |event| {
            if delivered.is_ok() {
                delivered = deliver(session, event.event, event.id, event.data);
            }
        });
        delivered?;
        if let Some(Ok(id)) = parser.last_id().map(std::str::from_utf8) {
            // This includes the id of an event without data, which the parser does not deliver.
            session.set_position(id);
        }
        if parsed.is_err() {
            return Err(Stop::Refused(
                "the server sent an event that is too long".to_string(),
            ));
        }
    }
}

fn deliver(
    session: &mut Session<'_>,
    event: Option<&[u8]>,
    id: Option<&[u8]>,
    data: &[u8],
) -> Result<(), Stop> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    match event {
        // A notice of the server. A notice may have no envelope.
        Some(name) if name.starts_with(OWN_EVENTS.as_bytes()) => {
            session.notice(&text(name), id.map(text).as_deref());
            Ok(())
        }
        _ => session.deliver(data),
    }
}

fn is_event_stream(head: &Head) -> bool {
    let media_type = head
        .header("content-type")
        .and_then(|value| value.split(';').next());
    media_type.is_some_and(|media_type| media_type.trim().eq_ignore_ascii_case("text/event-stream"))
}
