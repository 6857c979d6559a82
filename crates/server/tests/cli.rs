//! The command line, through the real binary: help, exit codes, and `crore pub` and `crore sub`
//! against a scripted server that says exactly what a test wants, torn connections included.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use crore_wire::websocket::frame::{Opcode, write_close, write_frame};
use crore_wire::websocket::handshake::accept_key;
use crore_wire::websocket::receive::{Config, Event, Role, next};

/// No step of a script takes longer, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);

fn crore(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_crore"));
    command
        .args(args)
        .env_remove("RUST_LOG")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn run(args: &[&str]) -> Output {
    crore(args).output().unwrap()
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).unwrap()
}

/// A server that serves one connection after the other, each by its step of the script.
struct Scripted {
    url: String,
    script: JoinHandle<()>,
}

type Step = fn(&mut Peer);

impl Scripted {
    fn start(steps: &'static [Step]) -> Scripted {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let script = thread::spawn(move || {
            for step in steps {
                let (stream, _) = listener.accept().unwrap();
                stream.set_read_timeout(Some(PATIENCE)).unwrap();
                step(&mut Peer {
                    stream: BufReader::new(stream),
                });
            }
        });
        Scripted { url, script }
    }

    /// Runs `crore ARGS --server URL` to its end, and the script to its own.
    fn run(self, args: &[&str]) -> Output {
        let output = crore(args).args(["--server", &self.url]).output().unwrap();
        self.script.join().unwrap();
        output
    }
}

/// One connection of a client.
struct Peer {
    stream: BufReader<TcpStream>,
}

struct Request {
    line: String,
    head: String,
    body: String,
}

impl Request {
    fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(": ")?;
            key.eq_ignore_ascii_case(name).then_some(value)
        })
    }
}

impl Peer {
    fn request(&mut self) -> Request {
        let mut lines = Vec::new();
        loop {
            let mut line = String::new();
            assert!(
                self.stream.read_line(&mut line).unwrap() > 0,
                "the client closed after {lines:?}"
            );
            match line.trim_end() {
                "" => break,
                line => lines.push(line.to_string()),
            }
        }
        let mut request = Request {
            line: lines[0].clone(),
            head: lines.join("\n"),
            body: String::new(),
        };
        let length = request
            .header("content-length")
            .map_or(0, |length| length.parse().unwrap());
        let mut body = vec![0; length];
        self.stream.read_exact(&mut body).unwrap();
        request.body = String::from_utf8(body).unwrap();
        request
    }

    fn say(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.get_mut().write_all(bytes.as_ref()).unwrap();
    }

    fn respond(&mut self, status: &str, body: &str) {
        self.say(format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
    }

    /// Accepts the upgrade that `request` asks for.
    fn upgrade(&mut self, request: &Request) {
        let accept = accept_key(request.header("sec-websocket-key").unwrap().as_bytes()).unwrap();
        self.say("HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: ");
        self.say(accept);
        self.say("\r\n\r\n");
    }

    fn frame(&mut self, opcode: Opcode, payload: &str) {
        let mut frame = Vec::new();
        write_frame(&mut frame, opcode, payload.as_bytes());
        self.say(frame);
    }

    fn is_closed(&mut self) -> bool {
        matches!(self.stream.fill_buf(), Ok([]) | Err(_))
    }
}

fn envelope(id: u32) -> String {
    format!(r#"{{"topic":"a","id":"e:{id}","content_type":"text/plain","data":"message {id}"}}"#)
}

fn event(id: u32) -> String {
    format!("id: e:{id}\ndata: {}\n\n", envelope(id))
}

const STREAM: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n:\n\n";

#[test]
fn help_and_version() {
    for args in [
        &["--help"][..],
        &["serve", "--help"],
        &["bench", "--help"],
        &["pub", "--help"],
        &["sub", "--help"],
        &["admin", "--help"],
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(0), "{args:?}");
        let help = text(&output.stdout);
        assert!(
            help.contains("Usage: crore") && help.contains("Examples:\n"),
            "{args:?}: {help}"
        );
    }
    let version = run(&["--version"]);
    assert_eq!(
        text(&version.stdout),
        format!("crore {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn wrong_usage_exits_with_2() {
    for args in [
        &[][..],
        &["fly"],
        &["serve", "--what"],
        &["serve", "--shards", "many"],
        &["serve", "--listen", "localhost"],
        &["serve", "--message-bytes", "1 XB"],
        &["serve", "--log", "crore=loud"],
        &["pub"],
        &["pub", "a", "b", "--lines"],
        &["pub", "a", "b", "--event", "x\ny"],
        &["pub", "a", "b", "--key", "x\ny"],
        &["pub", "a", "b", "--ttl", "-1"],
        &["pub", "a", "b", "--server", "ftp://127.0.0.1"],
        &["sub"],
        &["sub", "a", "--count", "0"],
        &["sub", "a", "--protocol", "pigeon"],
    ] {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(
            output.stdout.is_empty() && !output.stderr.is_empty(),
            "{args:?}"
        );
    }
}

#[test]
fn an_unreachable_server_exits_with_1() {
    // The kernel gives this one to nobody, as it may one that was bound and dropped: to the server of another test.
    let url = "http://127.0.0.1:1";
    for args in [
        &["pub", "a", "b"][..],
        &["sub", "a"],
        &["sub", "a", "--protocol", "ws"],
    ] {
        let output = crore(args).args(["--server", url]).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        let error = text(&output.stderr);
        assert!(
            error.starts_with("crore: ") && error.contains(url),
            "{args:?}: {error}"
        );
    }
}

#[test]
fn pub_sends_one_message_and_prints_the_info() {
    let server = Scripted::start(&[|peer| {
        let request = peer.request();
        assert_eq!(request.line, "POST /pub/a/b%20c HTTP/1.1");
        assert_eq!(request.header("content-type"), Some("text/html"));
        assert_eq!(request.header("x-eventsource-event"), Some("news"));
        assert_eq!(request.header("crore-key"), Some("ACME"));
        assert_eq!(request.header("crore-ttl"), Some("60"));
        assert_eq!(request.header("accept"), Some("application/json"));
        assert_eq!(request.body, "hello");
        peer.say("HTTP/1.1 100 Continue\r\n\r\n");
        peer.respond("201 Created", "{\"messages\":1}\r\n");
    }]);
    let output = server.run(&[
        "pub",
        "a/b c",
        "hello",
        "--json",
        "--content-type",
        "text/html",
        "--event",
        "news",
        "--key",
        "ACME",
        "--ttl",
        "60",
    ]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "{\"messages\":1}\n");
}

#[test]
fn pub_exits_with_1_and_the_servers_reason() {
    let server = Scripted::start(&[|peer| {
        peer.request();
        peer.respond(
            "413 Content Too Large",
            "the message has more than\u{1b}[1m 9 bytes\n",
        );
    }]);
    let output = server.run(&["pub", "a", "hello"]);
    assert_eq!(output.status.code(), Some(1));
    let reason = "crore: the server refused the message: 413 Content Too Large: the message has more than [1m 9 bytes\n";
    assert_eq!(text(&output.stderr), reason);
}

#[test]
fn pub_takes_stdin_whole_or_by_lines() {
    let whole = Scripted::start(&[|peer| {
        let request = peer.request();
        assert_eq!(request.body, "one\ntwo\n");
        let more = ["crore-key", "crore-ttl", "x-eventsource-event"];
        assert!(more.iter().all(|name| request.header(name).is_none()));
        peer.respond("202 Accepted", "");
    }]);
    assert!(pipe(whole, &["pub", "a"], "one\ntwo\n").status.success());

    let lines = Scripted::start(&[
        |peer| {
            assert_eq!(peer.request().body, "one");
            peer.respond("202 Accepted", "");
            assert_eq!(peer.request().body, "");
            // A server that says so is connected to anew.
            peer.say("HTTP/1.1 202 Accepted\r\nConnection: close\r\nContent-Length: 0\r\n\r\n");
        },
        |peer| {
            assert_eq!(peer.request().body, "three");
            peer.respond("202 Accepted", "");
            assert!(peer.is_closed());
        },
    ]);
    assert!(
        pipe(lines, &["pub", "a", "--lines"], "one\n\r\nthree")
            .status
            .success()
    );
}

fn pipe(server: Scripted, args: &[&str], input: &str) -> Output {
    let mut child = crore(args)
        .args(["--server", &server.url])
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    child
        .stdin
        .take()
        .unwrap()
        .write_all(input.as_bytes())
        .unwrap();
    let output = child.wait_with_output().unwrap();
    server.script.join().unwrap();
    output
}

#[test]
fn sse_goes_on_where_it_was_cut() {
    let server = Scripted::start(&[
        |peer| {
            let request = peer.request();
            assert_eq!(
                request.line,
                "GET /sub?envelope=json&topic=a&topic=b%2B&since=live HTTP/1.1"
            );
            assert_eq!(request.header("accept"), Some("text/event-stream"));
            // The second event is cut off: it must not be printed, and comes again.
            peer.say(format!("{STREAM}{}{}", event(1), event(2).trim_end()));
        },
        |peer| {
            assert!(peer.request().line.contains("&since=e%3A1 "));
            peer.respond("503 Service Unavailable", "full");
        },
        |peer| {
            assert!(peer.request().line.contains("&since=e%3A1 "));
            // Chunks that end anywhere.
            peer.say(
                STREAM
                    .replace("Connection: close", "Transfer-Encoding: chunked")
                    .replace(":\n\n", ""),
            );
            for byte in event(2).bytes().chain(event(3).bytes()) {
                peer.say(format!("1;x=y\r\n{}\r\n", char::from(byte)));
            }
            assert!(peer.is_closed());
        },
    ]);
    let output = server.run(&["sub", "a", "b+", "--count", "3"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "message 1\nmessage 2\nmessage 3\n");
    let log = text(&output.stderr);
    assert!(
        log.contains("the server closed") || log.contains("the stream ended"),
        "{log}"
    );
    assert!(log.contains("503 Service Unavailable: full"), "{log}");
}

#[test]
fn a_gap_is_told_and_its_position_taken() {
    let server = Scripted::start(&[
        |peer| {
            assert!(peer.request().line.ends_with("&since=e%3A1 HTTP/1.1"));
            peer.say(format!("{STREAM}id: e:6\nevent: crore.gap\ndata: lost\n\n"));
        },
        |peer| {
            assert!(peer.request().line.ends_with("&since=e%3A6 HTTP/1.1"));
            peer.say(format!("{STREAM}{}", event(7)));
        },
    ]);
    let output = server.run(&["sub", "a", "--since", "e:1", "--count", "1"]);
    assert_eq!(text(&output.stdout), "message 7\n");
    assert!(
        text(&output.stderr).contains("crore.gap"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn websocket_answers_pings_and_goes_on_where_it_was_cut() {
    let server = Scripted::start(&[
        |peer| {
            let request = peer.request();
            assert!(
                request.line.ends_with("&since=-5 HTTP/1.1"),
                "{}",
                request.line
            );
            peer.upgrade(&request);
            peer.frame(Opcode::Ping, "are you there");
            peer.frame(Opcode::Text, &envelope(1));
            let config = Config {
                role: Role::Server,
                message_bytes: 100,
                deflate: false,
            };
            let mut input = [0; 6 + 13];
            peer.stream.read_exact(&mut input).unwrap();
            let mut partial = None;
            let event = next(&mut partial, &mut input, &config).unwrap().event;
            assert_eq!(event, Some(Event::Pong(b"are you there")));
        },
        |peer| {
            let request = peer.request();
            assert!(
                request.line.ends_with("&since=e%3A1 HTTP/1.1"),
                "{}",
                request.line
            );
            peer.upgrade(&request);
            peer.frame(Opcode::Text, &envelope(2));
            let mut close = Vec::new();
            write_close(&mut close, 4410, "deleted");
            peer.say(close);
            assert!(!peer.is_closed(), "the close frame is answered");
        },
    ]);
    let output = server.run(&["sub", "a", "--protocol", "ws", "--since", "-5"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(text(&output.stdout), "message 1\nmessage 2\n");
    assert!(
        text(&output.stderr).contains("4410: deleted"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn poll_asks_again_over_the_same_connection() {
    let server = Scripted::start(&[
        |peer| {
            assert!(peer.request().line.ends_with("&since=live HTTP/1.1"));
            // Nothing yet, but from now on nothing may be missed.
            peer.say("HTTP/1.1 204 No Content\r\nETag: \"e:0\"\r\n\r\n");
            assert!(peer.request().line.ends_with("&since=e%3A0 HTTP/1.1"));
            peer.respond("200 OK", &envelope(1));
            assert!(peer.request().line.ends_with("&since=e%3A1 HTTP/1.1"));
            peer.say("HTTP/1.1 304 Not Modified\r\nETag: \"e:1\"\r\nContent-Length: 9\r\n\r\n");
            assert!(peer.request().line.ends_with("&since=e%3A1 HTTP/1.1"));
        },
        |peer| {
            assert!(peer.request().line.ends_with("&since=e%3A1 HTTP/1.1"));
            peer.respond("200 OK", &envelope(2));
        },
    ]);
    let output = server.run(&["sub", "a", "--protocol", "poll", "--count", "2", "--json"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let line = |id: u32| {
        format!(
            "{{\"id\":\"e:{id}\",\"topic\":\"a\",\"content_type\":\"text/plain\",\"data\":\"message {id}\"}}\n"
        )
    };
    assert_eq!(text(&output.stdout), line(1) + &line(2));
}

/// Otherwise messages that are published until the client is back would be lost in silence.
#[test]
fn sse_goes_on_from_where_a_stream_began_that_was_cut_before_its_first_message() {
    let server = Scripted::start(&[
        |peer| {
            assert!(peer.request().line.ends_with("&since=live HTTP/1.1"));
            // The second id is cut off before its event ends.
            peer.say(format!("{STREAM}id: e:0\n\nid: e:9\n"));
        },
        |peer| {
            assert!(peer.request().line.ends_with("&since=e%3A0 HTTP/1.1"));
            peer.say(format!("{STREAM}{}", event(1)));
        },
    ]);
    let output = server.run(&["sub", "a", "--count", "1"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "message 1\n");
}

#[test]
fn a_refusal_ends_every_protocol_with_the_reason() {
    for protocol in ["sse", "ws", "poll"] {
        let server = Scripted::start(&[|peer| {
            peer.request();
            peer.respond("403 Forbidden", "publishers create this topic");
        }]);
        let output = server.run(&["sub", "a", "--protocol", protocol]);
        assert_eq!(output.status.code(), Some(1), "{protocol}");
        let error = text(&output.stderr);
        assert!(
            error.contains("403 Forbidden: publishers create this topic"),
            "{protocol}: {error}"
        );
    }
}

#[test]
fn garbage_is_an_error_and_no_panic() {
    for protocol in ["sse", "ws", "poll"] {
        for step in [
            (|peer: &mut Peer| peer.say("SSH-2.0-x\r\n\r\n")) as Step,
            |peer| {
                peer.request();
                peer.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n");
            },
            |peer| {
                peer.request();
                peer.say("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n");
            },
            |peer| {
                peer.request();
                peer.say("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\ndata: not an envelope\n\n");
            },
        ] {
            let steps: &'static [Step] = Box::leak(Box::new([step]));
            let server = Scripted::start(steps);
            let mut child = crore(&["sub", "a", "--protocol", protocol])
                .args(["--server", &server.url])
                .spawn()
                .unwrap();
            server.script.join().unwrap();
            // It fails, or tries again where nobody listens any more, and says why: it must not crash or print.
            let errors = BufReader::new(child.stderr.take().unwrap());
            let (tell, told) = mpsc::channel();
            thread::spawn(move || {
                let lines = errors.lines().map_while(Result::ok);
                lines.for_each(|line| drop(tell.send(line)));
            });
            let mut said = told.recv_timeout(PATIENCE).expect("an error");
            let _ = child.kill();
            said.extend(told);
            assert!(child.wait_with_output().unwrap().stdout.is_empty());
            assert!(!said.contains("panicked"), "{said}");
        }
    }
}

#[test]
fn a_reader_that_went_away_ends_sub_quietly() {
    let server = Scripted::start(&[|peer| {
        peer.request();
        peer.say(STREAM);
        let mut id = 0;
        while peer
            .stream
            .get_mut()
            .write_all(event(id).as_bytes())
            .is_ok()
        {
            id += 1;
        }
    }]);
    let mut child: Child = crore(&["sub", "a"])
        .args(["--server", &server.url])
        .spawn()
        .unwrap();
    let mut first = String::new();
    BufReader::new(child.stdout.take().unwrap())
        .read_line(&mut first)
        .unwrap();
    assert_eq!(first, "message 0\n");
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
    server.script.join().unwrap();
}
