//! Tests the HTTP/2 codec with an independent client: the `h2` crate, in memory. A server on a socket, for h2spec and other tools, can be
//! started by hand:
//!
//! ```text
//! cargo test -p crore-wire --test http2_client -- --ignored serve &
//! h2spec --port 8899 --strict
//! ```

mod service;

use std::io::{Read, Write};
use std::net::TcpListener;
use std::time::Instant;

use crore_wire::http2::{Limits, Violation};
use h2::Reason;
use h2::client::{Builder, SendRequest};
use h2::ext::Protocol;
use http::{HeaderMap, Request, StatusCode};
use service::Service;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::task::JoinHandle;

type Sender = SendRequest<bytes::Bytes>;

/// Serves one connection to its end. Returns the service.
async fn serve(mut io: DuplexStream, limits: Limits) -> Service {
    let mut service = Service::new(limits);
    let mut buf = vec![0; 3_000];
    loop {
        io.write_all(&std::mem::take(&mut service.out)).await.ok();
        if service.violation.is_some() {
            return service;
        }
        match io.read(&mut buf).await {
            Ok(0) | Err(_) => return service,
            Ok(len) => service.receive(&buf[..len], 1),
        }
    }
}

/// A client, and the server that it talks to.
async fn connect_with(builder: &Builder, limits: Limits) -> (Sender, JoinHandle<Service>) {
    let (client_end, server_end) = tokio::io::duplex(10_000);
    let server = tokio::spawn(serve(client_end, limits));
    let (sender, connection) = builder.handshake(server_end).await.expect("a handshake");
    tokio::spawn(async move { connection.await.ok() });
    (sender, server)
}

async fn connect() -> (Sender, JoinHandle<Service>) {
    connect_with(&Builder::new(), Limits::default()).await
}

fn post(path: &str) -> Request<()> {
    let uri = format!("https://example.com{path}");
    let request = Request::post(uri).header("x-repeated", "the same value");
    request.body(()).expect("a request")
}

/// Sends a request and returns the body of the answer.
async fn exchange(
    sender: &Sender,
    request: Request<()>,
    body: &[u8],
) -> Result<Vec<u8>, h2::Error> {
    let mut sender = sender.clone().ready().await?;
    let (answer, mut stream) = sender.send_request(request, body.is_empty())?;
    let sending = async {
        let mut unsent = body;
        while !unsent.is_empty() {
            stream.reserve_capacity(unsent.len());
            let Some(capacity) = std::future::poll_fn(|cx| stream.poll_capacity(cx)).await else {
                return;
            };
            let (part, rest) = unsent.split_at(capacity.expect("capacity"));
            unsent = rest;
            stream
                .send_data(part.to_vec().into(), unsent.is_empty())
                .expect("sent");
        }
    };
    let receiving = async {
        let answer = answer.await?;
        assert_eq!(answer.status(), StatusCode::OK);
        assert_eq!(answer.headers()["content-type"], "text/plain");
        assert!(!answer.headers().contains_key("connection"));
        let mut body = answer.into_body();
        let mut got = Vec::new();
        while let Some(part) = body.data().await {
            let part = part?;
            body.flow_control().release_capacity(part.len())?;
            got.extend_from_slice(&part);
        }
        Ok(got)
    };
    let ((), got) = tokio::join!(sending, receiving);
    got
}

#[tokio::test]
async fn requests_of_h2_are_read_and_answered() {
    let (sender, _) = connect().await;
    // Before and after the client has read the size of the table.
    for n in 0..50 {
        let got = exchange(&sender, post(&format!("/pub/{n}?a=b")), b"hello")
            .await
            .unwrap();
        let got = String::from_utf8(got).unwrap();
        let head = format!(
            "POST /pub/{n}?a=b HTTP/1.1\r\nhost: example.com\r\nx-repeated: the same value\r\ntransfer-encoding: chunked\r\n\r\n"
        );
        assert_eq!(got, head + "hello");
    }
    let request = Request::get("https://h/").body(()).unwrap();
    let got = exchange(&sender, request, b"").await.unwrap();
    assert_eq!(got, b"GET / HTTP/1.1\r\nhost: h\r\n\r\n");
}

#[tokio::test]
async fn the_table_is_freed_when_h2_has_read_the_settings() {
    let (sender, server) = connect().await;
    for _ in 0..3 {
        exchange(&sender, post("/"), b"").await.unwrap();
    }
    drop(sender);
    let service = server.await.unwrap();
    assert!(service.connection.is_acknowledged());
    // Only rows of streams.
    assert!(
        service.connection.heap_bytes() < 200,
        "{}",
        service.connection.heap_bytes()
    );
}

#[tokio::test]
async fn large_bodies_pass_through_small_windows() {
    let body: Vec<u8> = (0..1_000_000_u32).map(|n| (n % 251) as u8).collect();
    for window in [1, 100, 65_535, 10_000_000] {
        let mut builder = Builder::new();
        builder
            .initial_window_size(window)
            .initial_connection_window_size(window.max(65_535));
        let (sender, _) = connect_with(&builder, Limits::default()).await;
        let body = &body[..body.len().min(window as usize * 2_000)];
        let got = exchange(&sender, post("/"), body).await.unwrap();
        assert!(got.ends_with(body), "window {window}: {} bytes", got.len());
    }
}

#[tokio::test]
async fn a_hundred_streams_share_a_connection() {
    let (sender, _) = connect().await;
    let one = |n: usize| {
        let sender = sender.clone();
        async move {
            let body = vec![n as u8; 20_000 + n];
            let got = exchange(&sender, post("/"), &body).await.unwrap();
            assert!(got.ends_with(&body), "stream {n}");
        }
    };
    let tasks: Vec<_> = (0..100).map(|n| tokio::spawn(one(n))).collect();
    for task in tasks {
        task.await.unwrap();
    }
}

#[tokio::test]
async fn a_refused_stream_is_told() {
    let (sender, _) = connect().await;
    let error = exchange(&sender, post("/refused"), b"").await.unwrap_err();
    assert_eq!(error.reason(), Some(Reason::REFUSED_STREAM));
    exchange(&sender, post("/"), b"").await.unwrap();
}

#[tokio::test]
async fn trailers_end_a_request() {
    let (sender, _) = connect().await;
    let mut sender = sender.ready().await.unwrap();
    let (answer, mut stream) = sender.send_request(post("/"), false).unwrap();
    stream.send_data(b"body"[..].into(), false).unwrap();
    let mut trailers = HeaderMap::new();
    trailers.insert("checksum", "x".parse().unwrap());
    stream.send_trailers(trailers).unwrap();
    let mut body = answer.await.unwrap().into_body();
    assert!(body.data().await.unwrap().unwrap().ends_with(b"body"));
}

#[tokio::test]
async fn a_tunnel_of_a_websocket_is_opened() {
    let (sender, _) = connect().await;
    let mut sender = sender.ready().await.unwrap();
    // The settings say that CONNECT may name a protocol.
    exchange(&sender, post("/"), b"").await.unwrap();
    assert!(sender.is_extended_connect_protocol_enabled());
    let mut request = Request::connect("https://example.com/sub/a")
        .body(())
        .unwrap();
    request
        .extensions_mut()
        .insert(Protocol::from_static("websocket"));
    let (answer, mut stream) = sender.send_request(request, false).unwrap();
    let answer = answer.await.unwrap();
    assert_eq!(answer.status(), StatusCode::OK);
    let mut body = answer.into_body();
    for part in [&b"one"[..], b"two"] {
        stream.send_data(part.into(), false).unwrap();
        assert_eq!(body.data().await.unwrap().unwrap(), part);
    }
    stream.send_data(b"end"[..].into(), true).unwrap();
    assert_eq!(body.data().await.unwrap().unwrap(), &b"end"[..]);
    assert!(body.data().await.is_none());
}

#[tokio::test]
async fn a_large_head_is_answered_with_431() {
    let mut builder = Builder::new();
    builder.max_header_list_size(1 << 20);
    let limits = Limits {
        header_list_bytes: 1_000,
        ..Limits::default()
    };
    let (sender, _) = connect_with(&builder, limits).await;
    let mut sender = sender.ready().await.unwrap();
    let mut request = post("/");
    request
        .headers_mut()
        .insert("long", "x".repeat(2_000).parse().unwrap());
    let (answer, _) = sender.send_request(request, true).unwrap();
    assert_eq!(
        answer.await.unwrap().status(),
        StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE
    );
}

#[tokio::test]
async fn rapid_resets_end_the_connection() {
    let (sender, server) = connect().await;
    let mut sender = sender;
    let outcome = loop {
        sender = match sender.ready().await {
            Ok(sender) => sender,
            Err(error) => break error,
        };
        let Ok((_, mut stream)) = sender.send_request(post("/"), false) else {
            continue;
        };
        stream.send_reset(Reason::CANCEL);
        tokio::task::yield_now().await;
    };
    assert_eq!(outcome.reason(), Some(Reason::ENHANCE_YOUR_CALM));
    assert_eq!(server.await.unwrap().violation, Some(Violation::ResetFlood));
}

/// A server for tools that a person starts.
#[test]
#[ignore = "serves until it is stopped"]
fn serve_on_a_socket() {
    let port = std::env::var("PORT").map_or(8899, |port| port.parse().expect("a port"));
    let listener = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
    let start = Instant::now();
    for socket in listener.incoming() {
        let mut socket = socket.expect("a connection");
        std::thread::spawn(move || {
            let mut service = Service::new(Limits::default());
            let mut buf = vec![0; 16_384];
            loop {
                let out = std::mem::take(&mut service.out);
                if socket.write_all(&out).is_err() || service.violation.is_some() {
                    return;
                }
                match socket.read(&mut buf) {
                    Ok(0) | Err(_) => return,
                    Ok(len) => service.receive(&buf[..len], start.elapsed().as_secs() as u32),
                }
            }
        });
    }
}
