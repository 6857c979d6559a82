//! `GET /api/v1/tail`: the messages of a topic, or of all that match a filter, as they are published.
//!
//! It is Crore's own event stream (docs/PROTOCOLS.md, envelopes in JSON): the control thread is a client of the data port over the
//! loopback, by TLS where nothing else is taken there, and passes on what comes, byte for byte. So the page that follows needs one origin and one token, whatever stands before the
//! data port, and a tail is bounded as every subscriber is: who reads too slowly falls back to the log.
//!
//! Deliberately not here: reading the log, which is `GET /api/v1/topic/messages`.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use super::{Plane, pinned};
use crate::config::access::operator_token;
use crate::tls;
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use crore_broker::settings::Http;
use futures_util::stream;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_rustls::TlsConnector;

/// Tails at once: each is a connection to the data port, and a page has one.
const TAILS_MAX: usize = 64;
/// How long the data port may take to begin its answer.
const BEGIN_TIMEOUT: Duration = Duration::from_secs(10);
/// Heads are short: these are our own server's.
const HEAD_BYTES_MAX: usize = 8 * 1024;
/// What is read at once.
const READ_BYTES: usize = 16 * 1024;
/// A position of as many topics as one connection may have is far shorter.
const POSITION_BYTES_MAX: usize = 4 * 1024;
/// A PROXY protocol v2 header of the kind that health checks send: `LOCAL`, no addresses.
const PROXY_LOCAL: &[u8] = b"\r\n\r\n\0\r\nQUIT\n\x20\0\0\0";

/// The way to the data port, as far as no reload changes it.
#[derive(Clone)]
pub struct Door {
    address: SocketAddr,
    /// How to greet where TLS only is taken.
    tls: Option<TlsConnector>,
    room: Arc<Semaphore>,
}

impl Door {
    /// `listen` is where the data port is, at least one address: the first is taken. `tls`: it takes TLS only.
    pub fn new(listen: &[SocketAddr], tls: Option<&tls::Shared>) -> Self {
        let mut address = listen[0];
        if address.ip().is_unspecified() {
            address.set_ip(match address {
                SocketAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
            });
        }
        Door {
            address,
            tls: tls.map(|tls| pinned::connector(tls.handle.clone())),
            room: Arc::new(Semaphore::new(TAILS_MAX)),
        }
    }
}

/// The route.
pub fn routes() -> Router<Plane> {
    Router::new().route("/api/v1/tail", get(tail))
}

/// What is asked for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Asked {
    topic: Option<String>,
    filter: Option<String>,
    since: Option<String>,
}

/// Why there is no tail.
pub struct Refusal(StatusCode, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, axum::Json(serde_json::json!({ "error": self.1 }))).into_response()
    }
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
    State(plane): State<Plane>,
    Query(asked): Query<Asked>,
    headers: HeaderMap,
) -> Result<Response, Refusal> {
    let (door, world) = (plane.door(), plane.life().world());
    let http = &world.settings.http;
    let request = request(door, http, &asked, &headers)?;
    let tls = plane.effective().tls;
    if door.tls.is_some() && tls.wants_certificates() {
        let why = "the data port takes only clients with a certificate, and a tail has none to show; set tls.client_certificates = \"optional\"";
        return Err(Refusal(StatusCode::SERVICE_UNAVAILABLE, why.to_string()));
    }
    let permit = door.room.clone().try_acquire_owned().map_err(|_| {
        let why = format!("{TAILS_MAX} tails are open; close one");
        Refusal(StatusCode::SERVICE_UNAVAILABLE, why)
    })?;
    let fails = |why: &str| unreachable_port(door, http, why);
    let begun = tokio::time::timeout(BEGIN_TIMEOUT, begin(door, http, request.as_bytes())).await;
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
    Ok((headers, pass_on(rest, stream, permit)).into_response())
}

/// HTTP/1.0, so that the stream comes without chunks and ends with its connection.
fn request(
    door: &Door,
    http: &Http,
    asked: &Asked,
    headers: &HeaderMap,
) -> Result<String, Refusal> {
    let Some(path) = http.subscribe_paths.first() else {
        let why = "http.subscribe_paths is empty: nobody can subscribe over HTTP".to_string();
        return Err(Refusal(StatusCode::SERVICE_UNAVAILABLE, why));
    };
    let what = match (&asked.topic, &asked.filter) {
        (Some(topic), None) => format!("topic={}", encoded(topic)),
        (None, Some(filter)) => format!("filter={}", encoded(filter)),
        _ => {
            let why = "name either topic= or filter=".to_string();
            return Err(Refusal(StatusCode::BAD_REQUEST, why));
        }
    };
    let since = asked
        .since
        .as_ref()
        .map(|since| format!("&since={}", encoded(since)))
        .unwrap_or_default();
    let position = headers
        .get("last-event-id")
        .and_then(|value| value.to_str().ok())
        .filter(|value| value.len() <= POSITION_BYTES_MAX)
        .map(|value| format!("Last-Event-ID: {value}\r\n"))
        .unwrap_or_default();
    Ok(format!(
        "GET {path}?{what}{since}&envelope=json HTTP/1.0\r\nHost: {}\r\nAccept: text/event-stream\r\nAuthorization: Bearer {}\r\n{position}\r\n",
        door.address,
        operator_token()
    ))
}

/// Percent-encoded as a value of a query.
fn encoded(text: &str) -> String {
    text.bytes().fold(String::new(), |mut out, byte| {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                out.push(char::from(byte));
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
        out
    })
}

/// A connection to the data port.
type Stream = Box<dyn Duplex>;

/// With TLS or without.
trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// Connects and asks; gives the head of the answer and what came behind it.
async fn begin(
    door: &Door,
    http: &Http,
    request: &[u8],
) -> std::io::Result<(Vec<u8>, Vec<u8>, Stream)> {
    let mut stream = TcpStream::connect(door.address).await?;
    if http.proxy_protocol {
        stream.write_all(PROXY_LOCAL).await?;
    }
    let mut stream: Stream = match &door.tls {
        None => Box::new(stream),
        Some(tls) => Box::new(tls.connect(door.address.ip().into(), stream).await?),
    };
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

/// The status of `HTTP/1.1 200 OK`.
fn status(head: &[u8]) -> Option<StatusCode> {
    StatusCode::from_bytes(head.strip_prefix(b"HTTP/1.")?.get(2..5)?).ok()
}

fn unreachable_port(door: &Door, http: &Http, why: &str) -> Refusal {
    let remedy = if http.proxy_protocol {
        "; with http.proxy_protocol the loopback must be in http.trusted_proxies"
    } else {
        ""
    };
    let address = door.address;
    let why = format!("the data port at {address} gives no event stream: {why}{remedy}");
    Refusal(StatusCode::BAD_GATEWAY, why)
}

/// The data port's own words.
async fn refused(
    status: StatusCode,
    mut body: Vec<u8>,
    stream: Stream,
) -> Result<Response, Refusal> {
    if status == StatusCode::NO_CONTENT {
        return Ok(status.into_response());
    }
    let mut rest = stream.take(HEAD_BYTES_MAX as u64);
    let all = rest.read_to_end(&mut body);
    let _ = tokio::time::timeout(BEGIN_TIMEOUT, all).await; // what came so far will do
    let words = String::from_utf8_lossy(&body).trim().to_string();
    // 401 would say that the token of the admin port is wrong.
    let status = match status {
        StatusCode::UNAUTHORIZED => StatusCode::FORBIDDEN,
        other => other,
    };
    Err(Refusal(status, words))
}

/// The stream as a body; the connection closes when whoever asked has gone.
fn pass_on(rest: Vec<u8>, stream: Stream, permit: OwnedSemaphorePermit) -> Body {
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
        door: &Door,
        topic: Option<&str>,
        filter: Option<&str>,
    ) -> Result<String, Refusal> {
        let owned = |text: Option<&str>| text.map(str::to_string);
        let asked = Asked {
            topic: owned(topic),
            filter: owned(filter),
            since: None,
        };
        let http = Settings::default().http;
        request(door, &http, &asked, &HeaderMap::new())
    }

    #[test]
    fn whatever_the_topic_is_called_the_request_stays_one_line() {
        let door = Door::new(&["0.0.0.0:8800".parse().unwrap()], None);
        let name = "a b\r\nX-Evil: 1/\u{2713}&since=live#";
        let Ok(text) = request_to(&door, Some(name), None) else {
            panic!("it is refused");
        };
        let line = text.lines().next().unwrap();
        assert_eq!(
            line,
            "GET /sub?topic=a%20b%0D%0AX-Evil%3A%201%2F%E2%9C%93%26since%3Dlive%23&envelope=json HTTP/1.0"
        );
        assert!(text.contains("\r\nHost: 127.0.0.1:8800\r\n"), "{text}");
        assert!(text.ends_with("\r\n\r\n"));
    }

    #[test]
    fn a_topic_or_a_filter_and_not_both() {
        let door = Door::new(&["[::]:8800".parse().unwrap()], None);
        for (one, other) in [(None, None), (Some("a"), Some("#"))] {
            assert!(request_to(&door, one, other).is_err());
        }
        assert_eq!(door.address, "[::1]:8800".parse().unwrap());
    }
}
