//! Tests backends (the application's HTTP endpoints): the requests that they get, the answers that grant or refuse, and backends that fail.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::client::{Client, ON, data_of, server};
use crate::rights::{LATER_S, before_the_end, closed_with, token, with_claims};
use crate::support::Server;

/// A backend on a free port. It gives each request the answer that the request contains in its data, or else in its meta. It holds back the answers for the
/// method `held` and for the channel `held`.
pub struct Backend {
    address: SocketAddr,
    requests: Receiver<Value>,
    /// Releases one held answer.
    release: Sender<()>,
}

impl Backend {
    pub fn start() -> Backend {
        Backend::answering(None)
    }

    /// A backend whose answers all have this body.
    fn with_body(body: &str) -> Backend {
        Backend::with_answer(&format!("Content-Length: {}\r\n\r\n{body}", body.len()))
    }

    /// A backend that sends this text, from the headers on, as each answer.
    fn with_answer(answer: &str) -> Backend {
        Backend::answering(Some(format!("HTTP/1.1 200 OK\r\n{answer}")))
    }

    fn answering(fixed: Option<String>) -> Backend {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (sender, requests) = channel();
        let (release, held) = channel();
        std::thread::spawn(move || {
            let held = std::sync::Arc::new(std::sync::Mutex::new(held));
            for stream in listener.incoming().flatten() {
                let (sender, held, fixed) = (sender.clone(), held.clone(), fixed.clone());
                std::thread::spawn(move || {
                    answer(&stream, &sender, fixed.as_deref(), || {
                        let held = held.lock().expect("the channel");
                        let _ = held.recv();
                    })
                });
            }
        });
        Backend {
            address,
            requests,
            release,
        }
    }

    /// The numbers of the held calls that have arrived. Does not wait for more.
    fn held_numbers(&self) -> Vec<u64> {
        let requests = self.requests.try_iter();
        let number = |it: Value| it["data"]["answer"]["result"]["data"].as_u64();
        requests.filter_map(number).collect()
    }

    fn server(&self, more: &str) -> Server {
        Server::with(&self.settings(more))
    }

    /// A server whose clients need no rights.
    fn server_for(&self, events: &str) -> Server {
        Server::with(&self.settings_for(events, ""))
    }

    fn settings(&self, more: &str) -> String {
        self.settings_for("'rpc'", more)
    }

    pub fn settings_for(&self, events: &str, more: &str) -> String {
        let url = format!("http://{}/calls", self.address);
        format!("{ON}[[backend]]\nurl = '{url}'\nevents = [{events}]\n{more}\n")
    }

    /// Waits for the next request.
    pub fn request(&self) -> Value {
        self.requests.recv().expect("a request")
    }
}

/// Answers the requests of a connection.
fn answer(stream: &TcpStream, requests: &Sender<Value>, fixed: Option<&str>, wait: impl Fn()) {
    let mut reader = BufReader::new(stream);
    loop {
        let (mut length, mut kind) = (0, String::new());
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            let line = line.trim_end().to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.parse().expect("a length");
            }
            if let Some(value) = line.strip_prefix("crore-call: ") {
                kind = value.into();
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).expect("a body");
        let mut request: Value = serde_json::from_slice(&body).expect("JSON");
        request["call"] = json!(kind);
        // A request without data contains the meta that the backend gave the connection.
        let told = ["data", "meta"].map(|name| request.get(name));
        let told = told.into_iter().flatten().next().unwrap_or(&Value::Null);
        let (status, answer) = match told.get("status") {
            Some(status) => (status.to_string(), String::new()),
            None => ("200".into(), told["answer"].to_string()),
        };
        let is_held = request["method"] == "held" || request["channel"] == "held";
        let _ = requests.send(request);
        if is_held {
            wait();
        }
        let length = answer.len();
        let answer = match fixed {
            Some(fixed) => fixed.to_string(),
            None => format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\n\r\n{answer}"),
        };
        let mut stream = stream;
        let _ = stream.write_all(answer.as_bytes());
    }
}

/// The data of a call whose result is this text, encoded as Base64.
fn in_base64(text: &str) -> Value {
    json!({"answer": {"result": {"b64data": STANDARD.encode(text)}}})
}

/// A call whose answer the backend holds until the test releases it.
fn held(n: u32) -> Value {
    json!({"method": "held", "data": {"answer": {"result": {"data": n}}}})
}

fn call(client: &mut Client, data: Value) -> Value {
    client.ask("rpc", json!({"method": "sum", "data": data}))
}

#[test]
fn backend_gets_the_call_and_the_client_gets_its_answer() {
    let backend = Backend::start();
    let server = backend.server("");
    let mut client = Client::connected(&server);
    let data = json!({"answer": {"result": {"data": {"sum": 3}}}});
    let reply = call(&mut client, data.clone());
    assert_eq!(reply["rpc"]["data"], json!({"sum": 3}), "{reply}");
    let request = backend.requests.recv().expect("a request");
    assert_eq!(
        (&request["method"], &request["data"]),
        (&json!("sum"), &data)
    );
    assert_eq!(request["transport"], "websocket");
    assert_eq!(
        (&request["protocol"], &request["user"]),
        (&json!("json"), &json!(""))
    );
    assert!(request["client"].as_str().is_some_and(|id| id.len() > 10));
    // One result without data, and one whose data contains line ends, which also separate replies.
    let reply = call(&mut client, json!({"answer": {"result": {}}}));
    assert!(
        reply["rpc"].is_object() && reply.get("error").is_none(),
        "{reply}"
    );
    let lines = json!({"answer": {"result": {"b64data": "IjEi"}}});
    assert_eq!(call(&mut client, lines)["rpc"]["data"], "1");
}

#[test]
fn errors_of_a_backend_are_passed_on_and_its_failures_are_temporary() {
    let backend = Backend::start();
    let server = backend.server("");
    let mut client = Client::connected(&server);
    let error = json!({"code": 1000, "message": "no such thing", "temporary": true});
    let reply = call(&mut client, json!({"answer": {"error": error}}));
    assert_eq!(reply["error"], error, "{reply}");
    let bad = [
        json!({"status": 500}),
        json!({"status": 302}),
        json!({"answer": {}}),
        json!({"answer": []}),
        json!({"answer": {"error": {"code": 3}}}),
        json!({"answer": {"disconnect": {"code": 3000}}}),
        json!({"answer": {"result": null}}),
        json!({"answer": {"result": {"b64data": "/w=="}}}),
        // Deeper than a reply may be, and half of a surrogate pair.
        in_base64(&["[".repeat(65), "]".repeat(65)].concat()),
        in_base64(r#""\ud800""#),
    ];
    for data in bad {
        let error = call(&mut client, data.clone())["error"].take();
        assert_eq!(
            (&error["code"], &error["temporary"]),
            (&json!(100), &json!(true)),
            "{data}"
        );
    }
    // An empty `b64data` counts as absent.
    let both = json!({"answer": {"result": {"data": 1, "b64data": ""}}});
    assert_eq!(call(&mut client, both)["rpc"]["data"], 1);
    let end = json!({"answer": {"disconnect": {"code": 4500, "reason": "go away"}}});
    client.send("rpc", json!({"method": "sum", "data": end}));
    assert_eq!(client.closed(), (4500, "go away".into()));
}

#[test]
fn without_a_backend_a_call_is_not_available() {
    let server = server();
    let mut client = Client::connected(&server);
    assert_eq!(call(&mut client, json!({}))["error"]["code"], 108);
}

#[test]
fn slow_answer_delays_no_other_command_and_calls_have_a_limit() {
    let backend = Backend::start();
    let server = backend.server("timeout_s = 60\nconcurrency = 1\ncalls_max = 4");
    let mut client = Client::connected(&server);
    let first = client.send("rpc", held(1));
    let reply = client.ask("ping", json!({}));
    assert!(reply.get("error").is_none(), "{reply}");
    // An address may use half of the free places, so some of these calls are refused.
    for n in 2..8 {
        client.send("rpc", held(n));
    }
    let refusal = client.next();
    assert_eq!(refusal["error"]["code"], 111, "{refusal}");
    backend.release.send(()).expect("it waits");
    let reply = client.reply(first);
    assert_eq!(reply["rpc"]["data"], 1, "{reply}");
    drop(backend);
}

#[test]
fn calls_of_one_user_leave_room_for_others() {
    let backend = Backend::start();
    let more = "timeout_s = 60\nconcurrency = 2\ncalls_max = 8";
    let server = closed_with(&backend.settings(more));
    let mut ann = Client::with_token(&server, &token(&json!({"sub": "ann", "subscribe": ["a"]})));
    let calls: Vec<u32> = (0..8).map(|n| ann.send("rpc", held(n))).collect();
    // A user may use half of the places. One call is at the backend.
    for call in &calls[4..] {
        let refusal = ann.reply(*call);
        assert_eq!(refusal["error"]["code"], 111, "{refusal}");
    }
    let mut bob = Client::with_token(&server, &token(&json!({"sub": "bob", "subscribe": ["a"]})));
    let answer = json!({"answer": {"result": {"data": "for bob"}}});
    assert_eq!(call(&mut bob, answer)["rpc"]["data"], "for bob");
    for call in &calls[..4] {
        backend.release.send(()).expect("it waits");
        assert!(ann.reply(*call).get("rpc").is_some());
    }
}

#[test]
fn call_beyond_those_in_flight_waits_with_the_commands_behind_it() {
    let backend = Backend::start();
    let settings = backend.settings("timeout_s = 60\nconcurrency = 8");
    let limit = "enabled = true\ncalls_in_flight_max = 2\n";
    let server = Server::with(&settings.replacen("enabled = true\n", limit, 1));
    let mut client = Client::connected(&server);
    let calls = [1, 2, 3].map(|n| client.send("rpc", held(n)));
    let ping = client.send("ping", json!({}));
    for _ in 0..2 {
        backend.request();
    }
    backend.release.send(()).expect("it waits");
    let first = client.next();
    assert!(calls[..2].iter().any(|id| first["id"] == *id), "{first}");
    assert_eq!(client.next()["id"], ping);
    assert_eq!(backend.request()["data"], held(3)["data"]);
    for _ in 0..2 {
        backend.release.send(()).expect("it waits");
    }
}

#[test]
fn call_that_waited_too_long_is_never_sent() {
    let backend = Backend::start();
    let server = backend.server("timeout_s = 1\nconcurrency = 1");
    let mut client = Client::connected(&server);
    // The first call occupies the backend for a second. The second one may occupy it for another.
    for call in [1, 2, 3].map(|n| client.send("rpc", held(n))) {
        assert_eq!(client.reply(call)["error"]["code"], 100);
    }
    let last = json!({"answer": {"result": {"data": 4}}});
    assert_eq!(call(&mut client, last)["rpc"]["data"], 4);
    let came = backend.held_numbers();
    assert!(came.contains(&1) && came.contains(&4), "{came:?}");
    assert!(!came.contains(&3), "{came:?}");
}

#[test]
fn duplicate_member_makes_an_answer_malformed() {
    let backend = Backend::with_body("{\"result\":{\"data\":1},\"result\":{\"data\":2}}");
    let server = backend.server("");
    let reply = call(&mut Client::connected(&server), json!({}));
    assert_eq!(reply["error"]["code"], 100, "{reply}");
}

#[test]
fn answer_in_chunks_is_read_to_its_end() {
    let chunks = "9\r\n{\"result\"\r\nE;x=y\r\n:{\"data\":[7]}}\r\n0\r\nA: b\r\n\r\n";
    let backend = Backend::with_answer(&format!("Transfer-Encoding: chunked\r\n\r\n{chunks}"));
    let server = backend.server("");
    let mut client = Client::connected(&server);
    // The server reuses the connection, so nothing of the first answer may be left in it.
    for _ in 0..2 {
        let reply = call(&mut client, json!({}));
        assert_eq!(reply["rpc"]["data"], json!([7]), "{reply}");
    }
}

/// The body of a subscribe command to which the backend gives this answer.
fn subscribe_with(channel: &str, answer: &Value) -> Value {
    json!({"channel": channel, "data": {"answer": answer}})
}

/// A client who may do nothing by its token.
fn ann(server: &Server) -> Client {
    Client::with_token(
        server,
        &token(&json!({"sub": "ann", "subscribe": ["other"]})),
    )
}

#[test]
fn backend_grants_and_refuses_subscriptions() {
    let backend = Backend::start();
    let server = closed_with(&backend.settings_for("'subscribe'", ""));
    let mut client = ann(&server);
    let grant = json!({"result": {"data": {"n": 1}, "info": {"ignored": true}}});
    let reply = client.ask("subscribe", subscribe_with("a", &grant));
    assert_eq!(reply["subscribe"]["data"], json!({"n": 1}), "{reply}");
    assert_eq!(reply["subscribe"].get("expires"), None, "{reply}");
    let request = backend.request();
    assert_eq!(
        (&request["user"], &request["channel"]),
        (&json!("ann"), &json!("a"))
    );
    assert_eq!(request["data"]["answer"], grant);
    assert!(request["client"].as_str().is_some_and(|id| id.len() > 10));
    // The backend is asked about each subscription, except a second one to the same channel and one to a name that no topic can have.
    assert_eq!(client.error("subscribe", subscribe_with("a", &grant)), 105);
    assert_eq!(client.error("subscribe", subscribe_with("+", &grant)), 107);
    let error = json!({"code": 1403, "message": "not you", "temporary": false});
    let refusal = client.ask("subscribe", subscribe_with("b", &json!({"error": error})));
    assert_eq!(
        (&refusal["error"]["code"], &refusal["error"]["message"]),
        (&json!(1403), &json!("not you"))
    );
    assert_eq!(backend.request()["channel"], "b");
    let end = json!({"disconnect": {"code": 4501, "reason": "go"}});
    client.send("subscribe", subscribe_with("c", &end));
    assert_eq!(client.closed(), (4501, "go".into()));
}

#[test]
fn failure_of_the_backend_grants_nothing() {
    let backend = Backend::start();
    let server = closed_with(&backend.settings_for("'subscribe', 'publish'", "timeout_s = 1"));
    let mut client = ann(&server);
    // The token allows this channel, but the backend decides.
    for data in [
        json!({"status": 500}),
        json!({"answer": {}}),
        json!({"answer": "yes"}),
    ] {
        let command = json!({"channel": "other", "data": data});
        assert_eq!(client.error("subscribe", command.clone()), 100, "{data}");
        assert_eq!(client.error("publish", command), 100, "{data}");
    }
    assert_eq!(client.error("subscribe", json!({"channel": "held"})), 100);
    backend.release.send(()).expect("it waits");
    let grant = json!({"result": {}});
    let reply = client.ask("subscribe", subscribe_with("other", &grant));
    assert!(reply["subscribe"].get("publications").is_none(), "{reply}");
    assert_eq!(
        reply["subscribe"].get("offset"),
        None,
        "nothing was published: {reply}"
    );
}

#[test]
fn commands_behind_a_subscribe_wait_for_the_backend() {
    let backend = Backend::start();
    let server = backend.server_for("'subscribe'");
    let mut client = Client::connected(&server);
    let grant = json!({"result": {}});
    let commands = [
        client.command("subscribe", subscribe_with("held", &grant)),
        client.command("publish", json!({"channel": "held", "data": "for me"})),
        client.command("unsubscribe", json!({"channel": "held"})),
    ];
    client.frame(&commands.map(|it| it.to_string()).join("\n"));
    client.send("ping", json!({}));
    assert_eq!(backend.request()["channel"], "held");
    backend.release.send(()).expect("it waits");
    let mut kinds = Vec::new();
    while kinds.last().is_none_or(|last| last != "ping") {
        let item = client.next();
        let kind = item
            .as_object()
            .and_then(|it| it.keys().find(|key| *key != "id"));
        kinds.push(kind.expect("a kind").clone());
    }
    let place = |wanted: &str| kinds.iter().position(|kind| kind == wanted).expect(wanted);
    assert!(
        place("subscribe") < place("push") && place("push") < place("unsubscribe"),
        "{kinds:?}"
    );
}

#[test]
fn subscription_ends_at_the_time_that_the_backend_grants() {
    let backend = Backend::start();
    let server = backend.server_for("'subscribe'");
    let mut client = Client::connected(&server);
    let until = |second: u64| subscribe_with("a", &json!({"result": {"expire_at": second}}));
    assert_eq!(client.error("subscribe", until(1_000)), 110);
    let reply = client.ask("subscribe", until(LATER_S));
    // Without access control no token could renew the subscription, so the client is not told that it expires.
    assert_eq!(reply["subscribe"].get("expires"), None, "{reply}");
    let ended = before_the_end(|end_s| {
        let mut client = Client::connected(&server);
        let reply = client.ask("subscribe", until(end_s));
        reply.get("subscribe")?;
        Some(client.push())
    });
    assert_eq!(ended["unsubscribe"]["code"], 2501, "{ended}");
}

#[test]
fn subscription_token_decides_only_where_tokens_are_read() {
    let backend = Backend::start();
    let of_a = token(&json!({"sub": "ann", "channel": "a"}));
    let command =
        json!({"channel": "a", "token": of_a, "data": {"answer": {"error": {"code": 400}}}});
    let open = backend.server_for("'subscribe'");
    let mut client = Client::connected(&open);
    assert_eq!(client.error("subscribe", command.clone()), 400);
    let closed = closed_with(&backend.settings_for("'subscribe'", ""));
    let reply = ann(&closed).ask("subscribe", command);
    assert!(reply.get("subscribe").is_some(), "{reply}");
}

#[test]
fn backend_grants_changes_and_refuses_messages() {
    let backend = Backend::start();
    let server = closed_with(&backend.settings_for("'publish'", ""));
    let everything = json!({"sub": "bob", "subscribe": ["#"]});
    let mut bob = Client::with_token(&server, &token(&everything));
    bob.subscribe("a");
    let mut client = ann(&server);
    let message = |answer: Value| json!({"channel": "a", "data": {"answer": answer}});
    let as_it_is = message(json!({"result": {}}));
    client.ask("publish", as_it_is.clone());
    let request = backend.request();
    assert_eq!(
        (&request["user"], &request["channel"]),
        (&json!("ann"), &json!("a"))
    );
    assert_eq!(request["data"], as_it_is["data"]);
    assert_eq!(bob.data("a"), as_it_is["data"]);
    client.ask("publish", message(json!({"result": {"data": "instead"}})));
    assert_eq!(bob.data("a"), "instead");
    client.ask(
        "publish",
        message(json!({"result": {"data": "passing", "skip_history": true}})),
    );
    assert_eq!(bob.data("a"), "passing");
    let code = client.error("publish", message(json!({"error": {"code": 1999}})));
    assert_eq!(code, 1999);
    let command = json!({"channel": "a", "data": {"status": 500}});
    assert_eq!(client.error("publish", command), 100);
    let kept = bob.ask("history", json!({"channel": "a", "limit": 10}));
    assert_eq!(
        data_of(&kept["history"]),
        [as_it_is["data"].clone(), json!("instead")]
    );
}

/// Sends a connect command to which the backend gives this answer.
fn connect_with(client: &mut Client, answer: &Value) -> u32 {
    let data = json!({"answer": answer});
    client.send(
        "connect",
        json!({"data": data, "name": "app", "version": "1.2"}),
    )
}

#[test]
fn backend_grants_connections_and_server_side_subscriptions() {
    let backend = Backend::start();
    let server = closed_with(&backend.settings_for("'connect', 'rpc'", ""));
    let meta = json!({"answer": {"result": {}}});
    let grant = json!({"result": {
        "user": "zoe", "expire_at": LATER_S, "info": {"color": "red"}, "data": {"hello": 1},
        "channels": ["news"], "subs": {"a": {"data": [5]}}, "meta": meta,
    }});
    let mut client = Client::open(&server);
    let id = connect_with(&mut client, &grant);
    let mut reply = client.reply(id);
    let connect = reply["connect"].take();
    assert_eq!(connect["data"], json!({"hello": 1}), "{connect}");
    assert_eq!(connect["expires"], true, "{connect}");
    assert_eq!(connect["subs"]["a"]["data"], json!([5]), "{connect}");
    assert!(connect["subs"]["news"].is_object(), "{connect}");
    let request = backend.request();
    assert_eq!(
        (&request["call"], request.get("user")),
        (&json!("connect"), None)
    );
    assert_eq!(
        (&request["name"], &request["version"]),
        (&json!("app"), &json!("1.2"))
    );
    assert_eq!(request["client"], connect["client"]);
    // Later calls contain the user and the meta that the backend gave.
    client.ask("rpc", json!({"method": "m"}));
    let request = backend.request();
    assert_eq!(
        (&request["call"], &request["user"]),
        (&json!("rpc"), &json!("zoe"))
    );
    assert_eq!(request["meta"], meta);
    // The grant includes no other rights.
    assert_eq!(client.error("subscribe", json!({"channel": "b"})), 103);
    // The server does not ask the backend about a client with a token. The meta is then the token's.
    let meta_of = |n: u32| json!({"n": n, "answer": {"result": {}}});
    let token = |n| with_claims("bob", &json!({"meta": meta_of(n)}));
    let mut bob = Client::with_token(&server, &token(1));
    bob.publish("a", json!(1));
    assert_eq!(client.data("a"), json!(1));
    bob.ask("rpc", json!({"method": "m"}));
    assert_eq!(backend.request()["meta"], meta_of(1));
    bob.ask("refresh", json!({"token": token(2)}));
    bob.ask("rpc", json!({"method": "m"}));
    assert_eq!(backend.request()["meta"], meta_of(2));
}

#[test]
fn client_refused_by_the_backend_does_not_connect() {
    let backend = Backend::start();
    let server = backend.server_for("'connect'");
    let closed = |data: Value| {
        let mut client = Client::open(&server);
        // A token has no effect, because this server does not verify tokens.
        let id = client.send("connect", json!({"data": data, "token": "anything"}));
        let answer = client.next();
        assert!(
            answer["id"] == id && answer.get("connect").is_none(),
            "{answer}"
        );
        (answer["error"]["code"].as_u64(), client.closed().0)
    };
    let error = json!({"answer": {"error": {"code": 1403, "message": "no"}}});
    assert_eq!(closed(error), (Some(1403), 3000));
    assert_eq!(closed(json!({"status": 503})), (Some(100), 3000));
    assert_eq!(closed(json!({"answer": {}})), (Some(100), 3000));
    let long = json!({"answer": {"result": {"user": "x".repeat(256)}}});
    assert_eq!(closed(long), (Some(100), 3000));
    let mut client = Client::open(&server);
    connect_with(
        &mut client,
        &json!({"disconnect": {"code": 4400, "reason": "later"}}),
    );
    assert_eq!(client.closed(), (4400, "later".into()));
    let mut client = Client::open(&server);
    connect_with(
        &mut client,
        &json!({"result": {"user": "zoe", "expire_at": 1_000}}),
    );
    assert_eq!(client.closed().0, 3005);
}

/// A connection that the backend grants until this time (Unix seconds). `later` is the backend's answer to its later calls.
fn connected_until(server: &Server, end_s: u64, later: &Value) -> Option<Client> {
    let mut client = Client::open(server);
    let meta = json!({"answer": later});
    let grant = json!({"result": {"user": "zoe", "expire_at": end_s, "meta": meta}});
    let id = connect_with(&mut client, &grant);
    let reply = client.reply_before_the_end(id)?;
    // The server renews the connection, so the client is not told that it expires.
    assert_eq!(reply["connect"].get("expires"), None, "{reply}");
    reply.get("connect").map(|_| client)
}

#[test]
fn backend_is_asked_before_its_granted_connection_ends() {
    let backend = Backend::start();
    let server = backend.server_for("'connect', 'refresh'");
    let expired = json!({"result": {"expired": true}});
    let mut client = before_the_end(|end_s| connected_until(&server, end_s, &expired));
    assert_eq!(client.closed().0, 3005);
    let calls = backend
        .requests
        .try_iter()
        .filter(|it| it["call"] == "refresh");
    let calls: Vec<Value> = calls.collect();
    assert!(calls.iter().any(|it| it["user"] == "zoe"), "{calls:?}");
}

#[test]
fn backend_is_asked_before_its_granted_subscription_ends() {
    let backend = Backend::start();
    let server = backend.server_for("'connect', 'subscribe', 'sub_refresh'");
    let expired = json!({"result": {"expired": true}});
    let mut client = connected_until(&server, 0, &expired).expect("a connection");
    let ended = before_the_end(|end_s| {
        let grant = json!({"result": {"expire_at": end_s}});
        let reply = client.ask("subscribe", subscribe_with("a", &grant));
        assert_eq!(reply["subscribe"].get("expires"), None, "{reply}");
        reply.get("subscribe")?;
        Some(client.push())
    });
    assert_eq!(ended["unsubscribe"]["code"], 2501, "{ended}");
    let calls = backend
        .requests
        .try_iter()
        .filter(|it| it["call"] == "sub_refresh");
    assert!(calls.map(|it| it["channel"].clone()).any(|it| it == "a"));
    assert!(client.goes_on());
}

#[test]
fn backend_that_does_not_answer_in_time_is_a_temporary_error() {
    let backend = Backend::start();
    let server = backend.server("timeout_s = 1");
    let mut client = Client::connected(&server);
    let reply = client.ask("rpc", json!({"method": "held"}));
    assert_eq!(reply["error"]["code"], 100, "{reply}");
    backend.release.send(()).expect("it waits");
}
