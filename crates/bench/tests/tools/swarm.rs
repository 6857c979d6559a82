//! Runs the swarm against a small server that has one fault: the swarm reports this fault, and reports none if the server has none.
//!
//! Every run has a network namespace and a device of its own, which needs root. Without root the tests print that they did not run.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use clap::Parser;
use crore_bench::swarm::{Namespace, Outcome, SERVER, SwarmArgs, SwarmRun, Transport};
use crore_wire::websocket::frame::{Opcode, write_frame};
use crore_wire::websocket::handshake::accept_key;
use serde_json::Value;

#[derive(Parser)]
#[command(args_override_self = true)]
struct Swarm {
    #[command(flatten)]
    args: SwarmArgs,
}

/// The fault of the server.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    Lost,
    Doubled,
    WrongTopic,
    WrongKey,
    ByteTooFew,
    FrameTooShort,
    LateClose,
    EarlyClose,
    Refused,
}

/// The number of the message, or of the subscription, at which the fault occurs.
const FAULTY_NUMBER: usize = 7;
/// A delay that is longer than the clients wait until the server closes a connection.
const LATE_CLOSE_DELAY: Duration = Duration::from_secs(1);

#[derive(Default)]
struct Topics {
    streams: HashMap<String, TcpStream>,
    subscribed: usize,
    published: usize,
}

/// A server for `/pub` and `/sub`, a thread for each connection.
#[derive(Clone)]
struct TestServer {
    fault: Fault,
    topics: Arc<Mutex<Topics>>,
}

impl TestServer {
    fn start(fault: Fault) {
        let server = TestServer {
            fault,
            topics: Arc::default(),
        };
        let listener = TcpListener::bind((SERVER, 8800)).unwrap();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let server = server.clone();
                std::thread::spawn(move || server.serve(stream));
            }
        });
    }

    fn serve(&self, stream: TcpStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        loop {
            let mut head = String::new();
            while !(head.ends_with("\r\n\r\n") || head.starts_with('/') && head.ends_with('\n')) {
                if reader.read_line(&mut head).unwrap_or(0) == 0 {
                    return;
                }
            }
            if head.starts_with("POST") {
                self.publish(&head, &mut reader, &stream);
                continue;
            }
            self.subscribe(&head, &stream);
            // The client sends nothing more until it closes.
            let _ = reader.read_to_end(&mut Vec::new());
            if self.fault == Fault::LateClose {
                std::thread::sleep(LATE_CLOSE_DELAY);
            }
            let _ = stream.shutdown(Shutdown::Both);
            return;
        }
    }

    fn subscribe(&self, head: &str, mut stream: &TcpStream) {
        let field = |name: &str| {
            head.split_once(name)
                .map(|(_, rest)| rest.lines().next().unwrap())
        };
        let mut topics = self.topics.lock().unwrap();
        topics.subscribed += 1;
        let is_victim = topics.subscribed == FAULTY_NUMBER;
        let (topic, answer) = match (field("Sec-WebSocket-Key: "), field("topic=")) {
            (Some(key), Some(topic)) => {
                let mut accept = accept_key(key.as_bytes()).unwrap();
                if is_victim && self.fault == Fault::WrongKey {
                    accept[0] ^= 1;
                }
                let accept = std::str::from_utf8(&accept).unwrap().to_string();
                let text = "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n";
                (
                    topic,
                    format!("{text}Sec-WebSocket-Accept: {accept}\r\n\r\n"),
                )
            }
            (None, Some(topic)) => (
                topic,
                "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n".into(),
            ),
            _ => (head.trim_end(), "\n".into()),
        };
        let topic = topic.split(' ').next().unwrap().to_string();
        topics.streams.insert(topic, stream.try_clone().unwrap());
        stream.write_all(answer.as_bytes()).unwrap();
        if is_victim && self.fault == Fault::EarlyClose {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    fn publish(&self, head: &str, reader: &mut impl Read, mut stream: &TcpStream) {
        let (_, length) = head.split_once("Content-Length: ").unwrap();
        let mut body = vec![0; length.trim_end().parse().unwrap()];
        reader.read_exact(&mut body).unwrap();
        for line in String::from_utf8(body).unwrap().lines() {
            let message: Value = serde_json::from_str(line).unwrap();
            let (topic, data) = (message["topic"].as_str(), message["data"].as_str());
            self.deliver(topic.unwrap(), data.unwrap());
        }
        let failed = u8::from(self.fault == Fault::Refused);
        let body = format!("{{\"failed\":{failed}}}");
        let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len());
        stream.write_all((head + &body).as_bytes()).unwrap();
    }

    fn deliver(&self, topic: &str, data: &str) {
        let mut topics = self.topics.lock().unwrap();
        topics.published += 1;
        let fault = if topics.published == FAULTY_NUMBER {
            self.fault
        } else {
            Fault::None
        };
        let bytes = match topics.published {
            // The topic tells the protocol of the run's clients.
            _ if topic.starts_with("/sse") => format!("data: {data}\n\n").into_bytes(),
            _ if topic.starts_with("/tcp") => format!("{data}\n").into_bytes(),
            _ => {
                let mut frame = Vec::new();
                let end = data.len() - usize::from(fault == Fault::ByteTooFew);
                write_frame(&mut frame, Opcode::Text, &data.as_bytes()[..end]);
                frame.truncate(frame.len() - usize::from(fault == Fault::FrameTooShort));
                frame
            }
        };
        let other_topic = topics.streams.keys().find(|name| *name != topic).cloned();
        let target_topic = if fault == Fault::WrongTopic {
            other_topic.unwrap()
        } else {
            topic.to_string()
        };
        let copies = match fault {
            Fault::Lost => 0,
            Fault::Doubled => 2,
            _ => 1,
        };
        for _ in 0..copies {
            if let Some(mut stream) = topics.streams.get(&target_topic) {
                let _ = stream.write_all(&bytes);
            }
        }
    }
}

/// Runs twenty clients, if the flags give no other number, with some 400 messages a second from the server; `None` if this process cannot
/// make a namespace.
#[allow(clippy::print_stderr, reason = "a test that did not run says so")]
fn run(fault: Fault, queue_packets: u32, flags: &str) -> Option<Outcome> {
    let line = format!("x --quiet --connections 20 --size 40 --rate 400 {flags}");
    let args = Swarm::parse_from(line.split_whitespace()).args;
    let made = match args.transport {
        Transport::Tun => Namespace::with_queue(1, args.connections, queue_packets),
        transport => Namespace::make(transport, 1, args.connections),
    };
    let mut namespace = match made {
        Ok(namespace) => namespace,
        Err(error) => {
            eprintln!("not run: {error:#}");
            return None;
        }
    };
    TestServer::start(fault);
    let mut run = SwarmRun::in_namespace(&args, &mut namespace, None).unwrap();
    run.connect().unwrap();
    run.set_publish_rate(args.publish_rate()).unwrap();
    run.swarm.set_drop_rate(args.reconnect_rate);
    run.swarm.reset_clients(args.reset_clients);
    run.run_window(1.0).unwrap();
    Some(run.finish().unwrap())
}

/// The names of the reported faults, without the server's retransmissions: a busy machine causes these by itself.
fn fault_names(outcome: &Outcome) -> Vec<&'static str> {
    let names = outcome.faults.iter().map(|(name, _)| *name);
    names
        .filter(|name| *name != "segments that the server sent again")
        .collect()
}

/// The names of the faults that a run reports.
fn run_and_find_faults(fault: Fault, flags: &str) -> Option<Vec<&'static str>> {
    let outcome = run(fault, 1000, flags)?;
    assert!(outcome.counts.tally.messages > 100);
    Some(fault_names(&outcome))
}

/// Asserts that a run reports the fault `name`. It may report others that follow from the fault.
fn assert_found(fault: Fault, flags: &str, name: &str) {
    if let Some(found) = run_and_find_faults(fault, flags) {
        assert!(found.contains(&name), "{found:?}");
    }
}

#[test]
fn server_without_faults_has_none() {
    for flags in [
        "--drop-rate 20",
        "--protocol sse --topics /sse/{1..20} --drop-rate 20",
        "--protocol tcp --topics /tcp/{1..20} --drop-rate 20",
        "--loss 0.05 --delay 10",
        "--transport veth --drop-rate 20",
        "--transport veth --loss 0.05 --delay 10",
    ] {
        if let Some(found) = run_and_find_faults(Fault::None, flags) {
            assert!(found.is_empty(), "{flags}: {found:?}");
        }
    }
}

#[test]
fn a_lost_message_is_reported() {
    assert_found(Fault::Lost, "", "lost");
}

#[test]
fn a_doubled_message_is_reported() {
    assert_found(Fault::Doubled, "", "doubled");
}

#[test]
fn a_message_of_a_wrong_topic_is_reported() {
    assert_found(Fault::WrongTopic, "", "misdelivered");
}

#[test]
fn a_wrong_accept_key_is_reported() {
    assert_found(Fault::WrongKey, "", "violations of the protocol");
}

#[test]
fn a_byte_too_few_is_reported() {
    assert_found(Fault::ByteTooFew, "", "of a wrong length");
    assert_found(Fault::FrameTooShort, "", "violations of the protocol");
}

#[test]
fn late_close_and_early_close_are_reported() {
    assert_found(
        Fault::LateClose,
        "--drop-rate 20 --close-within 0.3",
        "connections closed late",
    );
    assert_found(Fault::EarlyClose, "", "connections closed by the server");
}

#[test]
fn a_publish_that_is_refused_is_reported() {
    assert_found(Fault::Refused, "", "messages that the server refused");
}

#[test]
fn clients_that_reset_at_once_reconnect_at_the_pace_of_their_device() {
    // The kernel answers all SYNs that it is given at once.
    let flags = "--connections 400 --rate 1 --tsunami 400";
    let Some(outcome) = run(Fault::None, 16, flags) else {
        return;
    };
    assert_eq!(outcome.counts.tally.connections.opened, 800);
    assert_eq!(fault_names(&outcome), [""; 0]);
}

#[test]
fn segments_that_the_tool_has_no_room_for_fail_the_run() {
    // A message has several packets, and the kernel sends them to the device one right after the other.
    let Some(outcome) = run(Fault::None, 1, "--rate 300 --size 2500") else {
        return;
    };
    let name = "segments that the tool had no room for";
    assert!(
        outcome.faults.iter().any(|(found, _)| *found == name),
        "{:?}",
        outcome.faults
    );
    // TCP retransmits the segments. A message counts as lost if that takes longer than the run.
    let tally = &outcome.counts.tally;
    let accepted = outcome.json["published"]["accepted"].as_u64();
    assert_eq!(accepted, Some(tally.messages + tally.lost));
}
