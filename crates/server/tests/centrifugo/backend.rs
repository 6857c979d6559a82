//! Tests `rpc`: calls of clients that a backend answers, and backends that fail.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use crate::client::{Client, ON, server};
use crate::support::Server;

/// A backend on a port of the kernel's choice. A request gets the answer that stands in its argument, except for the method `held`, whose answer waits.
struct Backend {
    address: SocketAddr,
    requests: Receiver<Value>,
    /// Lets a held answer go.
    release: Sender<()>,
}

impl Backend {
    fn start() -> Backend {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let (sender, requests) = channel();
        let (release, held) = channel();
        std::thread::spawn(move || {
            let held = std::sync::Arc::new(std::sync::Mutex::new(held));
            for stream in listener.incoming().flatten() {
                let (sender, held) = (sender.clone(), held.clone());
                std::thread::spawn(move || {
                    answer(&stream, &sender, || {
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

    fn server(&self, more: &str) -> Server {
        Server::with(&self.settings(more))
    }

    fn settings(&self, more: &str) -> String {
        let url = format!("http://{}/rpc", self.address);
        format!("{ON}[[backend]]\nurl = '{url}'\nevents = ['rpc']\n{more}\n")
    }
}

/// Answers the requests of a connection.
fn answer(stream: &TcpStream, requests: &Sender<Value>, wait: impl Fn()) {
    let mut reader = BufReader::new(stream);
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).unwrap_or(0) == 0 {
                return;
            }
            let line = line.trim_end().to_ascii_lowercase();
            if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.parse().expect("a length");
            }
            if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).expect("a body");
        let request: Value = serde_json::from_slice(&body).expect("JSON");
        if request["method"] == "held" {
            wait();
        }
        let (status, answer) = match request["data"].get("status") {
            Some(status) => (status.to_string(), String::new()),
            None => ("200".into(), request["data"]["answer"].to_string()),
        };
        let _ = requests.send(request);
        let head = format!(
            "HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n",
            answer.len()
        );
        let mut stream = stream;
        let _ = stream.write_all(&[head.as_bytes(), answer.as_bytes()].concat());
    }
}

/// The argument for a result with this text as data.
fn in_base64(text: &str) -> Value {
    json!({"answer": {"result": {"b64data": STANDARD.encode(text)}}})
}

fn call(client: &mut Client, data: Value) -> Value {
    client.ask("rpc", json!({"method": "sum", "data": data}))
}

#[test]
fn backend_gets_the_call_and_its_answer_goes_to_the_client() {
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
    // A result without data, and data with line ends, which separate replies.
    let reply = call(&mut client, json!({"answer": {"result": {}}}));
    assert!(
        reply["rpc"].is_object() && reply.get("error").is_none(),
        "{reply}"
    );
    let lines = json!({"answer": {"result": {"b64data": "IjEi"}}});
    assert_eq!(call(&mut client, lines)["rpc"]["data"], "1");
}

#[test]
fn errors_of_a_backend_are_told_and_its_failures_are_temporary() {
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
    let body = |n: u32| json!({"method": "held", "data": {"answer": {"result": {"data": n}}}});
    let first = client.send("rpc", body(1));
    let reply = client.ask("ping", json!({}));
    assert!(reply.get("error").is_none(), "{reply}");
    // An address may take half of what is left, so not all of these find room.
    for n in 2..8 {
        client.send("rpc", body(n));
    }
    let refusal = client.next();
    assert_eq!(refusal["error"]["code"], 111, "{refusal}");
    backend.release.send(()).expect("it waits");
    let reply = client.reply(first);
    assert_eq!(reply["rpc"]["data"], 1, "{reply}");
    drop(backend);
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
