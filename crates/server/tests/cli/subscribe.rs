//! Tests `crore sub` over all its protocols: what it prints, and where it resumes after a stream was cut.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::Child;
use std::sync::mpsc;
use std::thread;

use crore_wire::sse::GAP_EVENT;
use crore_wire::websocket::frame::{Opcode, write_close};
use crore_wire::websocket::receive::{Config, Event, Role, next};

use crate::scripted::{Peer, Scripted, Step};
use crate::support::PATIENCE;
use crate::support::program::await_output;
use crate::{crore, text};

fn envelope(id: u32) -> String {
    format!(r#"{{"topic":"a","id":"e:{id}","content_type":"text/plain","data":"message {id}"}}"#)
}

fn event(id: u32) -> String {
    format!("id: e:{id}\ndata: {}\n\n", envelope(id))
}

const STREAM: &str =
    "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n:\n\n";

#[test]
fn websocket_resumes_from_the_position_before_its_first_message() {
    let server = Scripted::start(&[
        |peer| {
            let request = peer.request();
            assert!(!request.line.contains("since="), "{}", request.line);
            peer.upgrade(&request);
            peer.frame(Opcode::Text, r#"{"id":"1a-7"}"#);
        },
        |peer| {
            let request = peer.request();
            assert!(request.line.contains("since=1a-7"), "{}", request.line);
            peer.upgrade(&request);
            peer.frame(Opcode::Text, r#"{"topic":"a","id":"1a-8","data":"one"}"#);
        },
    ]);
    let output = server.run(&["sub", "a", "--protocol", "WebSocket", "--count", "1"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(text(&output.stdout), "one\n");
    assert!(
        !text(&output.stderr).contains("no position"),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn sse_resumes_after_a_cut() {
    let server = Scripted::start(&[
        |peer| {
            let request = peer.request();
            assert_eq!(
                request.line,
                "GET /sub?envelope=json&topic=a&topic=b%20c HTTP/1.1"
            );
            assert_eq!(request.header("accept"), Some("text/event-stream"));
            assert_eq!(request.header("cache-control"), Some("no-cache"));
            // The second event is cut off, so it must not be printed now. It comes again.
            peer.send(format!("{STREAM}{}{}", event(1), event(2).trim_end()));
        },
        |peer| {
            assert!(peer.request().line.contains("&since=e%3A1 "));
            peer.respond("503 Service Unavailable", "full");
        },
        |peer| {
            assert!(peer.request().line.contains("&since=e%3A1 "));
            // Chunks that end at any place in an event.
            peer.send(
                STREAM
                    .replace("Connection: close", "Transfer-Encoding: chunked")
                    .replace(":\n\n", ""),
            );
            for byte in event(2).bytes().chain(event(3).bytes()) {
                peer.send(format!("1;x=y\r\n{}\r\n", char::from(byte)));
            }
            assert!(peer.is_closed());
        },
    ]);
    let output = server.run(&["sub", "a", "b c", "--count", "3"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(
        text(&output.stdout),
        "a message 1\na message 2\na message 3\n"
    );
    let log = text(&output.stderr);
    assert!(
        log.contains("the server closed") || log.contains("the stream ended"),
        "{log}"
    );
    assert!(log.contains("503 Service Unavailable: full"), "{log}");
}

#[test]
fn topic_is_printed_for_several_topics_and_by_the_format() {
    let run = |args: &[&str]| {
        let server = Scripted::start(&[|peer| {
            peer.request();
            peer.send(format!("{STREAM}{}", event(1)));
            assert!(peer.is_closed());
        }]);
        let output = server.run(&[&["sub", "--count", "1"], args].concat());
        assert!(output.status.success(), "{}", text(&output.stderr));
        text(&output.stdout).to_string()
    };
    assert_eq!(run(&["a"]), "message 1\n");
    assert_eq!(run(&["a", "-v"]), "a message 1\n");
    assert_eq!(run(&["a", "b"]), "a message 1\n");
    assert_eq!(run(&["+"]), "a message 1\n");
    assert_eq!(run(&["#", "--format", "%p"]), "message 1\n");
    assert_eq!(
        run(&["a", "-F", r"%i|%t|%c|%k|%p\t%%"]),
        "e:1|a|text/plain||message 1\t%\n"
    );
    let refused = crate::run(&["sub", "a", "--format", "%x"]);
    assert_eq!(refused.status.code(), Some(2));
    assert!(text(&refused.stderr).contains("%t (topic)"));
}

#[test]
fn timeout_ends_every_protocol_and_fails_if_messages_are_missing() {
    let silent: [(&str, Step); 3] = [
        ("sse", |peer| {
            peer.request();
            peer.send(format!("{STREAM}{}", event(1)));
            assert!(peer.is_closed());
        }),
        ("ws", |peer| {
            let request = peer.request();
            peer.upgrade(&request);
            peer.frame(Opcode::Text, &envelope(1));
            assert!(peer.is_closed());
        }),
        ("poll", |peer| {
            peer.request();
            peer.respond("200 OK", &envelope(1));
            peer.request();
            assert!(peer.is_closed());
        }),
    ];
    for (protocol, step) in silent {
        for (count, code, expected_error) in [
            (&[][..], 0, ""),
            (
                &["--count", "2"],
                1,
                "crore: --timeout: 1 of 2 messages came in time\n",
            ),
        ] {
            let steps: &'static [Step] = Box::leak(Box::new([step]));
            let args = [&["sub", "a", "--timeout", "1s", "-p", protocol], count].concat();
            let output = Scripted::start(steps).run(&args);
            assert_eq!(text(&output.stdout), "message 1\n", "{protocol}");
            assert_eq!(output.status.code(), Some(code), "{protocol}");
            assert_eq!(text(&output.stderr), expected_error, "{protocol}");
        }
    }
}

#[test]
fn gap_is_reported_and_its_position_is_used() {
    let server = Scripted::start(&[
        |peer| {
            assert!(peer.request().line.ends_with("&since=e%3A1 HTTP/1.1"));
            peer.send(format!(
                "{STREAM}id: e:6\nevent: {GAP_EVENT}\ndata: lost\n\n"
            ));
        },
        |peer| {
            assert!(peer.request().line.ends_with("&since=e%3A6 HTTP/1.1"));
            peer.send(format!("{STREAM}{}", event(7)));
        },
    ]);
    let output = server.run(&["sub", "a", "--since", "e:1", "--count", "1"]);
    assert_eq!(text(&output.stdout), "message 7\n");
    assert!(
        text(&output.stderr).contains(GAP_EVENT),
        "{}",
        text(&output.stderr)
    );
}

#[test]
fn gap_is_reported_with_its_cause() {
    let begun_anew: &'static [Step] = &[|peer| {
        peer.request();
        let gap = format!("id: 1bbb-0\nevent: {GAP_EVENT}\ndata: a\n\n");
        peer.send(format!("{STREAM}{gap}{}", event(7)));
    }];
    let short_log: &'static [Step] = &[|peer| {
        peer.request();
        let gap = format!("id: 1aaa-6\nevent: {GAP_EVENT}\ndata: a\n\n");
        peer.send(format!("{STREAM}{gap}{}", event(7)));
    }];
    for (steps, cause) in [
        (begun_anew, "state.directory"),
        (short_log, "rule.log_bytes"),
    ] {
        let output = Scripted::start(steps).run(&["sub", "a", "--since", "1aaa-4", "--count", "1"]);
        assert_eq!(text(&output.stdout), "message 7\n");
        let expected_error = text(&output.stderr);
        assert!(
            expected_error.contains(GAP_EVENT) && expected_error.contains(cause),
            "{expected_error}"
        );
    }
}

#[test]
fn websocket_answers_pings_and_resumes_after_a_cut() {
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
            peer.send(close);
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
fn polls_reuse_their_connection() {
    let server = Scripted::start(&[
        |peer| {
            assert!(peer.request().line.ends_with("&since=live HTTP/1.1"));
            // The poll brings no message. From now on the tool must not miss any.
            peer.send("HTTP/1.1 204 No Content\r\nETag: \"e:0\"\r\n\r\n");
            assert!(peer.request().line.ends_with("&since=e%3A0 HTTP/1.1"));
            peer.respond("200 OK", &envelope(1));
            assert!(peer.request().line.ends_with("&since=e%3A1 HTTP/1.1"));
            peer.send("HTTP/1.1 304 Not Modified\r\nETag: \"e:1\"\r\nContent-Length: 9\r\n\r\n");
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

/// If the stream resumed with no position, messages published before the client is back would be lost without notice.
#[test]
fn sse_resumes_at_the_beginning_of_a_stream_cut_before_its_first_message() {
    let server = Scripted::start(&[
        |peer| {
            assert!(peer.request().line.ends_with("&topic=a HTTP/1.1"));
            // The second id is cut off before its event ends.
            peer.send(format!("{STREAM}id: e:0\n\nid: e:9\n"));
        },
        |peer| {
            assert!(peer.request().line.ends_with("&since=e%3A0 HTTP/1.1"));
            peer.send(format!("{STREAM}{}", event(1)));
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
            (|peer: &mut Peer| peer.send("SSH-2.0-x\r\n\r\n")) as Step,
            |peer| {
                peer.request();
                peer.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nabc\r\n");
            },
            |peer| {
                peer.request();
                peer.send("HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n");
            },
            |peer| {
                peer.request();
                peer.send("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\ndata: not an envelope\n\n");
            },
        ] {
            let steps: &'static [Step] = Box::leak(Box::new([step]));
            let server = Scripted::start(steps);
            let mut child = crore(&["sub", "a", "--protocol", protocol])
                .args(["--server", &server.url])
                .spawn()
                .unwrap();
            server.await_end();
            // The tool fails, or tries again where nobody listens any more. It must say why, and must not panic or print messages.
            let errors = BufReader::new(child.stderr.take().unwrap());
            let (sender, receiver) = mpsc::channel();
            thread::spawn(move || {
                let lines = errors.lines().map_while(Result::ok);
                lines.for_each(|line| drop(sender.send(line)));
            });
            let mut expected_error = receiver.recv_timeout(PATIENCE).expect("an error");
            let _ = child.kill();
            expected_error.extend(receiver);
            assert!(await_output(child).stdout.is_empty());
            assert!(!expected_error.contains("panicked"), "{expected_error}");
        }
    }
}

#[test]
fn closed_output_ends_sub_quietly() {
    let server = Scripted::start(&[|peer| {
        peer.request();
        peer.send(STREAM);
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
    let output = await_output(child);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
    server.await_end();
}
