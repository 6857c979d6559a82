//! Tests the transports whose clients send commands by POST: `/connection/http_stream` and `/connection/sse`, with `/emulation`.

use std::net::TcpListener;

use serde_json::{Value, json};

use crate::client::{Client, ON, server};
use crate::one_way::{Body, escaped};
use crate::rights::{LATER_S, closed, token};
use crate::support::Server;
use crate::support::http::{Conn, Response, once};

/// A client that sends its commands by POST. Each POST uses a new connection, so the commands arrive at all shards.
struct Poster<'s> {
    server: &'s Server,
    body: Body,
    session: Value,
    node: Value,
    id: u32,
}

/// Opens a response stream with these commands.
type Open = fn(&Server, &str) -> Body;

const TRANSPORTS: [(&str, Open); 2] = [("http_stream", stream), ("sse", events)];

fn stream(server: &Server, commands: &str) -> Body {
    let length = commands.len();
    let request = format!("POST /connection/http_stream HTTP/1.1\r\nContent-Length: {length}\r\n");
    Body::begin(server, &request, commands)
}

fn events(server: &Server, commands: &str) -> Body {
    let target = format!("/connection/sse?cf_connect={}", escaped(commands));
    Body::begin(server, &format!("GET {target} HTTP/1.1\r\n"), "")
}

fn connect(token: &str) -> String {
    json!({"id": 1, "connect": {"token": token}}).to_string()
}

fn post(server: &Server, body: &Value) -> Response {
    once(server, "POST", "/emulation", &[], &body.to_string())
}

impl<'s> Poster<'s> {
    fn connected(server: &'s Server, open: Open, token: &str) -> Poster<'s> {
        let mut body = open(server, &connect(token));
        let mut reply = body.push();
        let reply = &mut reply["connect"];
        assert!(reply["client"].is_string(), "{reply}");
        Poster {
            server,
            body,
            session: reply["session"].take(),
            node: reply["node"].take(),
            id: 1,
        }
    }

    fn post(&self, frame: &str) {
        let body = json!({"session": self.session, "node": self.node, "data": frame});
        let answer = post(self.server, &body);
        assert_eq!((answer.status, answer.text()), (204, ""), "{answer:?}");
    }

    /// Posts a command, and returns its reply.
    fn ask(&mut self, request: &str, body: Value) -> Value {
        self.id += 1;
        let id = self.id;
        self.post(&json!({"id": id, request: body}).to_string());
        loop {
            let reply = self.body.push();
            if reply["id"] == id {
                return reply;
            }
        }
    }

    fn disconnected(&mut self) -> u64 {
        loop {
            let code = self.body.push()["push"]["disconnect"]["code"].take();
            if let Some(code) = code.as_u64() {
                assert!(self.body.conn.chunk().is_empty(), "the end of the answer");
                return code;
            }
        }
    }
}

#[test]
fn posted_commands_subscribe_and_publish_at_every_shard() {
    let server = server();
    for (name, open) in TRANSPORTS {
        let reply = open(&server, &connect("")).push();
        assert_eq!(reply["connect"]["pong"], true, "{reply}");
        let mut client = Poster::connected(&server, open, "");
        for n in 0..8 {
            let channel = format!("{name}/{n}");
            let reply = client.ask("subscribe", json!({"channel": channel}));
            assert_eq!(reply["subscribe"]["recoverable"], true, "{reply}");
            let publish = json!({"channel": channel, "data": {"n": n}});
            client.post(&json!({"id": 1000, "publish": publish}).to_string());
            // The publication and the reply to the publish arrive in either order.
            let items = [client.body.push(), client.body.push()];
            let push = items.iter().find(|item| item.get("push").is_some());
            let push = &push.unwrap_or_else(|| panic!("{items:?}"))["push"];
            assert_eq!(push["channel"], channel);
            assert_eq!(push["pub"]["data"], json!({"n": n}));
        }
    }
}

#[test]
fn first_request_has_several_commands() {
    let server = server();
    for (_, open) in TRANSPORTS {
        let subscribe = json!({"id": 2, "subscribe": {"channel": "a"}});
        let mut body = open(&server, &format!("{}\n{subscribe}", connect("")));
        assert!(body.push()["connect"]["session"].is_string());
        assert!(body.push()["subscribe"].is_object());
    }
}

#[test]
fn clients_of_a_websocket_and_of_one_way_have_no_session() {
    let server = server();
    let reply = Client::open(&server).ask("connect", json!({}));
    assert_eq!(reply["connect"].get("session"), None, "{reply}");
    let first = Body::begin(&server, "GET /connection/uni_sse HTTP/1.1\r\n", "").push();
    assert_eq!(first["connect"].get("session"), None, "{first}");
}

#[test]
fn post_to_an_unknown_session_gets_the_usual_answer_and_changes_nothing() {
    let server = server();
    let mut client = Poster::connected(&server, stream, "");
    let session = client.session.as_str().expect("a text").to_string();
    let (names, digest) = session.rsplit_once('-').expect("a digest");
    assert_eq!(digest.len(), 64, "256 bits that nobody can guess");
    let changed = match digest.strip_suffix('0') {
        Some(begin) => format!("{begin}1"),
        None => format!("{}0", &digest[..63]),
    };
    let frame = json!({"id": 7, "subscribe": {"channel": "stolen"}}).to_string();
    let of_ended = {
        let ended = Poster::connected(&server, events, "");
        ended.session.clone()
    };
    for wrong in [
        json!(format!("{names}-{changed}")),
        json!(names),
        json!(""),
        json!("\u{e9}"),
        json!(format!("ffff-0-0-0-{digest}")),
        of_ended,
    ] {
        let body = json!({"session": wrong, "node": client.node, "data": frame});
        assert_eq!(post(&server, &body).status, 204, "{wrong}");
    }
    // None of these commands gets a reply: the first reply is the one to this ping.
    client.post(&json!({"id": 8, "ping": {}}).to_string());
    assert_eq!(client.body.push()["id"], 8);
}

#[test]
fn posts_for_another_node_and_bad_bodies_are_refused() {
    let server = server();
    let client = Poster::connected(&server, stream, "");
    let body = json!({"session": client.session, "node": "another", "data": "{}"});
    assert_eq!(post(&server, &body).status, 404);
    for bad in ["", "{", "[]", "{\"data\":7}"] {
        let answer = once(&server, "POST", "/emulation", &[], bad);
        assert_eq!(answer.status, 400, "{bad}: {answer:?}");
    }
    for (method, path) in [
        ("GET", "/emulation"),
        ("GET", "/connection/http_stream"),
        ("PUT", "/connection/sse"),
    ] {
        assert_eq!(once(&server, method, path, &[], "").status, 405, "{path}");
    }
    let long = "x".repeat(10 << 20);
    assert_eq!(once(&server, "POST", "/emulation", &[], &long).status, 413);
}

#[test]
fn page_of_a_listed_origin_may_post() {
    let origin = "https://app.example.com";
    let server = Server::with(&format!("[http]\nallowed_origins = ['{origin}']\n{ON}"));
    for path in ["/emulation", "/connection/http_stream", "/connection/sse"] {
        let fields = [
            ("Origin", origin),
            ("Access-Control-Request-Method", "POST"),
            ("Access-Control-Request-Headers", "content-type"),
        ];
        let answer = once(&server, "OPTIONS", path, &fields, "");
        assert_eq!(answer.status, 204, "{path}");
        let allowed = answer.header("access-control-allow-origin");
        assert_eq!(allowed.as_deref(), Some(origin));
        assert!(answer.lists("access-control-allow-headers", "content-type"));
    }
    let foreign = [("Origin", "https://evil.example.com")];
    let answer = once(&server, "POST", "/emulation", &foreign, "{}");
    assert_eq!(answer.status, 403, "{answer:?}");
    // The URL of an event stream contains commands. Without a check of the origin, any web page could publish with it.
    let publish = json!({"id": 2, "publish": {"channel": "a", "data": 1}});
    let commands = escaped(&format!("{}\n{publish}", connect("")));
    let path = format!("/connection/sse?cf_connect={commands}");
    let answer = once(&server, "GET", &path, &foreign, "");
    assert_eq!(answer.status, 403, "{answer:?}");
    assert!(server.info("a").is_none(), "a topic that was published to");
}

#[test]
fn bad_commands_end_the_connection_with_a_push() {
    let server = Server::with(&format!("{ON}frame_commands_max = 3\n"));
    let ping = json!({"id": 5, "ping": {}}).to_string();
    for (frame, code) in [
        ("no command".to_string(), 3501),
        (String::new(), 3501),
        ([ping.as_str(); 4].join("\n"), 3501),
        (json!({"send": {"data": 1}}).to_string(), 3508),
    ] {
        for (_, open) in TRANSPORTS {
            let mut client = Poster::connected(&server, open, "");
            client.post(&frame);
            assert_eq!(client.disconnected(), code, "{frame}");
        }
    }
    for (_, open) in TRANSPORTS {
        let mut body = open(&server, "{\"id\":1,\"ping\":{}}");
        assert_eq!(body.push()["push"]["disconnect"]["code"], 3501);
    }
}

#[test]
fn client_whose_commands_wait_may_post_as_much_as_a_frame() {
    // The backend never answers, so a command waits until its token is verified.
    let callback = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}/", callback.local_addr().expect("an address"));
    let server = closed(&format!(
        "[access.callback]\nurl = '{url}'\ntimeout_s = 60\n[limits]\nmessage_bytes = 20000\n"
    ));
    let claims = json!({"sub": "ann", "exp": LATER_S, "publish": ["a"]});
    let mut client = Poster::connected(&server, stream, &token(&claims));
    let subscribe = json!({"channel": "a", "token": "opaque"});
    client.post(&json!({"id": 8, "subscribe": subscribe}).to_string());
    let publish = json!({"channel": "a", "data": "x".repeat(15_000)});
    let publish = json!({"id": 9, "publish": publish}).to_string();
    // A frame has at most 20,000 bytes, and `centrifugo.frame_beside_bytes` is 65,536.
    for _ in 0..6 {
        client.post(&publish);
    }
    assert_eq!(client.disconnected(), 3013);
}

#[test]
fn token_is_needed_and_ends_the_connection_with_its_rights() {
    let server = closed("");
    for (_, open) in TRANSPORTS {
        let mut body = open(&server, &connect(""));
        assert_eq!(body.push()["push"]["disconnect"]["code"], 3507);
        let claims = json!({"sub": "ann", "exp": LATER_S, "subscribe": ["a"]});
        let mut client = Poster::connected(&server, open, &token(&claims));
        let reply = client.ask("subscribe", json!({"channel": "b"}));
        assert_eq!(reply["error"]["code"], 103, "{reply}");
        assert!(client.ask("subscribe", json!({"channel": "a"}))["subscribe"].is_object());
    }
}

#[test]
fn client_that_posts_no_pong_is_disconnected() {
    let server = Server::with(&format!("{ON}ping_interval_s = 5\npong_timeout_s = 1\n"));
    let mut client = Poster::connected(&server, events, "");
    assert_eq!(client.disconnected(), 3012);
}

#[test]
fn streams_of_old_http_end_with_the_connection() {
    let server = server();
    for (path, method) in [
        ("/connection/http_stream", "POST"),
        ("/connection/sse", "POST"),
    ] {
        let mut old = Conn::open(&server);
        let commands = connect("");
        let length = commands.len();
        old.send(format!(
            "{method} {path} HTTP/1.0\r\nContent-Length: {length}\r\n\r\n{commands}"
        ));
        let head = old.head();
        assert_eq!((head.status, head.header("transfer-encoding")), (200, None));
        let mut text = old.take();
        while !text.ends_with(b"\n") {
            assert!(old.fill() > 0, "the stream has ended");
            text.extend(old.take());
        }
        assert!(
            core::str::from_utf8(&text)
                .expect("text")
                .contains("\"session\"")
        );
    }
}
