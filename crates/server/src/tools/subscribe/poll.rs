//! Subscribes by long-poll: one request for each message, over a connection that is kept alive.

use std::convert::Infallible;

use super::session::{MAX_ENVELOPE_BYTES, Session, Stop, refusal};
use crate::http_client::http::Head;

/// Receives messages until the subscription or the connection ends.
pub fn receive(session: &mut Session<'_>) -> Result<Infallible, Stop> {
    let server = &session.server().clone();
    let mut connection = session.open()?;
    loop {
        connection.set_read_timeout(session.read_timeout())?;
        let head = connection.request(server, "GET", &session.target(), &[], None)?;
        let lost = head.header("crore-gap").is_some();
        match head.status {
            200 => {
                session.answered();
                if lost {
                    session.report_gap(position_in_etag(&head));
                }
                let body = connection.read_whole_body(MAX_ENVELOPE_BYTES)?;
                session.deliver(&body)?;
            }
            // No message came before the server's timeout.
            204 | 304 | 408 => {
                session.answered();
                connection.read_whole_body(MAX_ENVELOPE_BYTES)?;
                if lost {
                    session.report_gap(position_in_etag(&head));
                }
            }
            _ => return Err(refusal(&mut connection, &head)),
        }
        if let Some(position) = position_in_etag(&head) {
            session.set_position(position);
        }
        connection = match connection.into_reusable() {
            Some(connection) => connection,
            None => session.open()?,
        };
    }
}

/// The position in the `ETag` (RFC 9110 section 8.8.3).
fn position_in_etag(head: &Head) -> Option<&str> {
    let tag = head.header("etag")?;
    tag.strip_prefix("W/")
        .unwrap_or(tag)
        .strip_prefix('"')?
        .strip_suffix('"')
        .filter(|tag| !tag.is_empty())
}
