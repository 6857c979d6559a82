//! Tests the unidirectional transports with plain HTTP and WebSockets, as pages without a library use them.

use serde_json::{Value, json};

use crate::client::{Client, ON};
use crate::rights::{LATER_S, closed, token};
use crate::support::Server;
use crate::support::http::Conn;
use crate::support::ws::{CLOSE, FIN, TEXT, Ws};

/// A token whose user the server subscribes to `a`.
fn listener() -> String {
    token(&json!({"sub": "ann", "exp": LATER_S, "channels": ["a"]}))
}

fn publisher(server: &Server) -> Client {
    let claims = json!({"sub": "bob", "exp": LATER_S, "publish": ["#"]});
    Client::with_token(server, &token(&claims))
}

/// Escapes text for a query.
pub fn escaped(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02x}")).collect()
}

/// A response body that is a stream of events or lines.
pub struct Body {
    pub conn: Conn,
    is_events: bool,
    /// Received text that is not parsed yet.
    rest: String,
}

impl Body {
    /// Opens an event stream with this connect command.
    fn events(server: &Server, connect: &str) -> Body {
        let target = format!("/connection/uni_sse?cf_connect={}", escaped(connect));
        Body::begin(server, &format!("GET {target} HTTP/1.1\r\n"), "")
    }

    fn lines(server: &Server, connect: &str) -> Body {
        let request = format!(
            "POST /connection/uni_http_stream HTTP/1.1\r\nContent-Length: {}\r\n",
            connect.len()
        );
        Body::begin(server, &request, connect)
    }

    /// Sends this request, and reads the head of the response.
    pub fn begin(server: &Server, request: &str, body: &str) -> Body {
        let mut conn = Conn::open(server);
        conn.send(format!("{request}Host: localhost\r\n\r\n{body}"));
        let head = conn.head();
        assert_eq!(head.status, 200, "{head:?}");
        let content_type = head.header("content-type").expect("a content type");
        Body {
            conn,
            is_events: content_type == "text/event-stream",
            rest: String::new(),
        }
    }

    /// The next push or reply. Pings are skipped.
    pub fn push(&mut self) -> Value {
        loop {
            let end = if self.is_events { "\n\n" } else { "\n" };
            let Some(at) = self.rest.find(end) else {
                let chunk = self.conn.chunk();
                assert!(!chunk.is_empty(), "the stream has ended: {}", self.rest);
                self.rest += core::str::from_utf8(&chunk).expect("text");
                continue;
            };
            let item: String = self.rest.drain(..at + end.len()).collect();
            let item = match self.is_events {
                true => item.strip_prefix("data: ").expect("data"),
                false => &item,
            };
            let push: Value = serde_json::from_str(item).expect("JSON");
            if push != json!({}) {
                return push;
            }
        }
    }
}

#[test]
fn stream_gets_the_channels_of_its_token_and_recovers() {
    let server = closed("");
    let mut publisher = publisher(&server);
    for open in [Body::events, Body::lines] {
        let connect = json!({"token": listener()});
        // Line ends inside the JSON do not end the command.
        let mut body = open(&server, &format!("\n{connect}\r\n"));
        let first = body.push();
        let sub = &first["connect"]["subs"]["a"];
        assert_eq!(sub["recoverable"], true, "{first}");
        assert_eq!(first["connect"].get("pong"), None, "{first}");
        publisher.publish("a", json!({"n": 1}));
        let push = body.push();
        assert_eq!(
            (&push["channel"], &push["pub"]["data"]),
            (&json!("a"), &json!({"n": 1}))
        );
        drop(body);
        publisher.publish("a", json!(2));
        let position =
            json!({"recover": true, "epoch": sub["epoch"], "offset": push["pub"]["offset"]});
        let connect = json!({"token": listener(), "subs": {"a": position}});
        let mut body = open(&server, &connect.to_string());
        let first = body.push();
        assert_eq!(first["connect"]["subs"]["a"]["recovered"], true, "{first}");
        assert_eq!(body.push()["pub"]["data"], 2);
    }
}

#[test]
fn one_way_websocket_takes_a_connect_without_an_id() {
    let server = closed("");
    let mut ws = Ws::open(&server, "/connection/uni_websocket", &[]);
    ws.send(FIN | TEXT, json!({"token": listener()}).to_string());
    let mut push = || loop {
        let push: Value = serde_json::from_str(&ws.message().text()).expect("JSON");
        if push != json!({}) {
            return push;
        }
    };
    assert!(push()["connect"]["subs"]["a"].is_object());
    publisher(&server).publish("a", json!(1));
    let got = push();
    assert_eq!(
        (&got["channel"], &got["pub"]["data"]),
        (&json!("a"), &json!(1))
    );
}

#[test]
fn stream_of_a_bad_connect_ends_with_a_push() {
    let server = closed("");
    let expired = token(&json!({"sub": "ann", "exp": 1_000, "channels": ["a"]}));
    for (connect, code, reconnect) in [
        (json!({"token": "no token"}).to_string(), 3500, false),
        (json!({"token": expired}).to_string(), 3005, true),
        ("{}".into(), 3507, false),
        ("{".into(), 3501, false),
        ("{}}\n{\"id\":2,\"ping\":{}".into(), 3501, false),
        ("[]".into(), 3501, false),
    ] {
        for open in [Body::events, Body::lines] {
            let mut body = open(&server, &connect);
            let push = body.push();
            let told = &push["disconnect"];
            assert_eq!(told["code"], code, "{push}");
            assert_eq!(
                told["reconnect"].as_bool().unwrap_or(false),
                reconnect,
                "{push}"
            );
            assert!(body.conn.chunk().is_empty());
        }
        let mut ws = Ws::open(&server, "/connection/uni_websocket", &[]);
        ws.send(FIN | TEXT, &connect);
        let frame = ws.frame();
        assert_eq!((frame.opcode(), frame.close_code()), (CLOSE, Some(code)));
    }
}

#[test]
fn streams_accept_get_and_post_and_http_1_0() {
    let server = Server::with(ON);
    let mut conn = Conn::open(&server);
    let paths = ["/connection/uni_sse", "/connection/uni_http_stream"];
    for path in paths {
        assert_eq!(conn.request("DELETE", path, &[], "").status, 405);
        let mut old = Conn::open(&server);
        old.send(format!("GET {path} HTTP/1.0\r\n\r\n"));
        let head = old.head();
        assert_eq!((head.status, head.header("transfer-encoding")), (200, None));
        let mut text = old.take();
        while !text.ends_with(b"\n") {
            assert!(old.fill() > 0, "the stream has ended");
            text.extend(old.take());
        }
        let line = core::str::from_utf8(&text).expect("text");
        let push = line.strip_prefix("data: ").unwrap_or(line);
        let push: Value = serde_json::from_str(push).expect("JSON");
        assert!(push["connect"]["client"].is_string(), "{push}");
    }
    assert_eq!(conn.get("/connection/uni_websocket", &[]).status, 426);
}

#[test]
fn stream_is_told_when_the_server_stops() {
    let server = Server::with(ON);
    let mut body = Body::events(&server, "{}");
    assert!(body.push()["connect"].is_object());
    server.signal("TERM");
    assert_eq!(body.push()["disconnect"]["code"], 3001);
    server.await_end();
}
