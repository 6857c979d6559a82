//! `GET /api/v1/tail`: the messages of a topic, or of all topics that match a filter, as they are published.
//!
//! The answer is an event stream of the data port (docs/PROTOCOLS.md, envelopes in JSON). The control thread subscribes at the data port
//! over the loopback, with TLS if the port requires it, and passes the bytes on unchanged. So the console needs only one origin and one
//! token, whatever proxy is in front of the data port. A tail is bounded like every subscriber: if its client reads too slowly, the tail
//! continues from the log.
//!
//! Deliberately not here: reading the log, which is `GET /api/v1/topic/messages`.

use std::time::Duration;

use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use crore_broker::settings::Http;
use futures_util::stream;
use serde::Deserialize;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::OwnedSemaphorePermit;

use super::answer::ApiError;
use crate::control::data_port::{DataPortClient, OpenTail, Stream, TAILS_MAX};
use crate::control::state::AdminState;
use crate::http_client::server::escape;
use crate::settings::access::operator_token;

/// Timeout for the head of the data port's answer.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(10);
/// The maximum size of that head, in bytes. The head is short, since it is from our own server.
const HEAD_BYTES_MAX: usize = 8 * 1024;
/// The maximum size of one read, in bytes.
const READ_BYTES: usize = 16 * 1024;
/// The maximum size of a position (`Last-Event-ID`), in bytes. Even a position in all topics that one connection may have is far shorter.
const POSITION_BYTES_MAX: usize = 4 * 1024;

/// The parameters of the request.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TailQuery {
    topic: Option<String>,
    filter: Option<String>,
    since: Option<String>,
}

/// Messages as they are published
///
/// A topic's, or those of all that match a filter, as Server-Sent Events with JSON envelopes.
#[utoipa::path(
    get,
    path = "/api/v1/tail",
    tag = "topics",
    params(
        ("topic" = Option<String>, Query, description = "A topic's name"),
        ("filter" = Option<String>, Query, description = "A filter"),
        ("since" = Option<String>, Query, description = "A position, or what the data port takes for one"),
    ),
    responses(
        (status = 200, content_type = "text/event-stream", body = String),
        (status = 400, description = "Not one of topic and filter"),
        (status = 503, description = "Too many tails are open, or the data port takes only clients with certificates"),
    )
)]
pub async fn tail(
    State(state): State<AdminState>,
    Query(query): Query<TailQuery>,
    headers: HeaderMap,
) -> Result<Response, ApiError> {
    let (data_port, world) = (&state.data_port, state.lifecycle.world());
    let http = &world.settings.http;
    let request = request(data_port, http, &query, &headers)?;
    let tls = state.effective_settings().file.tls;
    if data_port.requires_tls() && tls.requires_client_certificates() {
        let reason = "the data port takes only clients with a certificate, and a tail has none to show; set tls.client_certificates = \"optional\"";
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, reason));
    }
    let permit = data_port
        .tail_permits
        .clone()
        .try_acquire_owned()
        .map_err(|_| {
            let reason = format!("{TAILS_MAX} tails are open; close one");
            ApiError::new(StatusCode::SERVICE_UNAVAILABLE, reason)
        })?;
    let fails = |reason: &str| unreachable_port(data_port, http, reason);
    let begun =
        tokio::time::timeout(BEGIN_TIMEOUT, begin(data_port, http, request.as_bytes())).await;
    let (head, rest, stream) = begun
        .map_err(|_| fails("it does not answer"))?
        .map_err(|error| fails(&error.to_string()))?;
    let status = status(&head).ok_or_else(|| fails("it does not speak HTTP"))?;
    if status != StatusCode::OK {
        return refused(status, rest, stream).await;
    }
    let headers = [
        (header::CONTENT_TYPE, "text/event-stream"),
        (header::CACHE_CONTROL, "no-cache, no-transform"),
    ];
    let tail = query
        .topic
        .as_deref()
        .map(|topic| data_port.open_tail(topic));
    Ok((headers, pass_on(rest, stream, (permit, tail))).into_response())
}

/// Writes the request to the data port. It is HTTP/1.0, so that the answer is not chunked and ends with the connection.
fn request(
    data_port: &DataPortClient,
    http: &Http,
    query: &TailQuery,
    headers: &HeaderMap,
) -> Result<String, ApiError> {
    let Some(path) = http.subscribe_paths.first() else {
        let reason = "http.subscribe_paths is empty: nobody can subscribe over HTTP";
        return Err(ApiError::new(StatusCode::SERVICE_UNAVAILABLE, reason));
    };
    let selection = match (&query.topic, &query.filter) {
        (Some(topic), None) => format!("topic={}", escape(topic)),
        (None, Some(filter)) => format!("filter={}", escape(filter)),
        _ => {
            let reason = "name either topic= or filter=";
            return Err(ApiError::bad(reason));
        }
    };
    let since = query
        .since
        .as_ref()
        .map(|since| format!("&since={}", escape(since)))
        .unwrap_or_default();
    let position = headers
        .get("last-event-id")
        .and_then(|value| value.to_str().ok())
        .filter(|value| value.len() <= POSITION_BYTES_MAX)
        .map(|value| format!("Last-Event-ID: {value}\r\n"))
        .unwrap_or_default();
    Ok(format!(
        "GET {path}?{selection}{since}&envelope=json HTTP/1.0\r\nHost: {}\r\nAccept: text/event-stream\r\nCache-Control: no-cache\r\nAuthorization: Bearer {}\r\n{position}\r\n",
        data_port.address,
        operator_token()
    ))
}

/// Connects and sends the request. Returns the head of the answer and the bytes received after it.
async fn begin(
    data_port: &DataPortClient,
    http: &Http,
    request: &[u8],
) -> std::io::Result<(Vec<u8>, Vec<u8>, Stream)> {
    let mut stream = data_port.connect(http.proxy_protocol).await?;
    stream.write_all(request).await?;
    let mut head = Vec::with_capacity(1024);
    loop {
        if let Some(end) = head.windows(4).position(|four| four == b"\r\n\r\n") {
            let rest = head.split_off(end + 4);
            return Ok((head, rest, stream));
        }
        if head.len() >= HEAD_BYTES_MAX || stream.read_buf(&mut head).await? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Parses the status of a line like `HTTP/1.1 200 OK`.
fn status(head: &[u8]) -> Option<StatusCode> {
    StatusCode::from_bytes(head.strip_prefix(b"HTTP/1.")?.get(2..5)?).ok()
}

fn unreachable_port(data_port: &DataPortClient, http: &Http, reason: &str) -> ApiError {
    let remedy = if http.proxy_protocol {
        "; with http.proxy_protocol the loopback must be in http.trusted_proxies"
    } else {
        ""
    };
    let address = data_port.address;
    let reason = format!("the data port at {address} gives no event stream: {reason}{remedy}");
    ApiError::new(StatusCode::BAD_GATEWAY, reason)
}

/// The answer if the data port refuses the subscription: an error with the text of the data port. 204 is passed on.
async fn refused(
    status: StatusCode,
    mut body: Vec<u8>,
    stream: Stream,
) -> Result<Response, ApiError> {
    if status == StatusCode::NO_CONTENT {
        return Ok(status.into_response());
    }
    let mut rest = stream.take(HEAD_BYTES_MAX as u64);
    let all = rest.read_to_end(&mut body);
    let _ = tokio::time::timeout(BEGIN_TIMEOUT, all).await; // an incomplete text is good enough
    let words = String::from_utf8_lossy(&body).trim().to_string();
    // A 401 from the admin port would mean that the client's `admin.token` is wrong, so a 401 of the data port becomes 403.
    let status = match status {
        StatusCode::UNAUTHORIZED => StatusCode::FORBIDDEN,
        other => other,
    };
    Err(ApiError::new(status, words))
}

/// The stream as a body of the answer. The connection to the data port closes when the client disconnects.
fn pass_on(
    rest: Vec<u8>,
    stream: Stream,
    permit: (OwnedSemaphorePermit, Option<OpenTail>),
) -> Body {
    let begun = (Some(rest).filter(|rest| !rest.is_empty()), stream, permit);
    Body::from_stream(stream::try_unfold(
        begun,
        async |(rest, mut stream, permit)| {
            let mut bytes = rest.unwrap_or_default();
            if bytes.is_empty() {
                bytes.reserve(READ_BYTES);
                stream.read_buf(&mut bytes).await?;
            }
            let end = bytes.is_empty();
            let next = (!end).then(|| (Bytes::from(bytes), (None, stream, permit)));
            Ok::<_, std::io::Error>(next)
        },
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crore_broker::settings::Settings;

    fn request_to(
        data_port: &DataPortClient,
        topic: Option<&str>,
        filter: Option<&str>,
    ) -> Result<String, ApiError> {
        let owned = |text: Option<&str>| text.map(str::to_string);
        let query = TailQuery {
            topic: owned(topic),
            filter: owned(filter),
            since: None,
        };
        let http = Settings::default().http;
        request(data_port, &http, &query, &HeaderMap::new())
    }

    #[test]
    fn whatever_the_topic_is_called_the_request_stays_one_line() {
        let data_port = DataPortClient::new(&["0.0.0.0:8800".parse().unwrap()], None);
        let name = "a b\r\nX-Evil: 1/\u{2713}&since=live#";
        let Ok(text) = request_to(&data_port, Some(name), None) else {
            panic!("it is refused");
        };
        let line = text.lines().next().unwrap();
        assert_eq!(
            line,
            "GET /sub?topic=a%20b%0D%0AX-Evil%3A%201/%E2%9C%93%26since%3Dlive%23&envelope=json HTTP/1.0"
        );
        assert!(text.contains("\r\nHost: 127.0.0.1:8800\r\n"), "{text}");
        assert!(text.ends_with("\r\n\r\n"));
    }

    #[test]
    fn a_topic_or_a_filter_and_not_both() {
        let data_port = DataPortClient::new(&["[::]:8800".parse().unwrap()], None);
        for (one, other) in [(None, None), (Some("a"), Some("#"))] {
            assert!(request_to(&data_port, one, other).is_err());
        }
        assert_eq!(data_port.address, "[::1]:8800".parse().unwrap());
    }
}
