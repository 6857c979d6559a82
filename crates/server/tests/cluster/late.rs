//! Tests a node that is cut off from the log. A publish whose outcome was reported as unknown must not appear in the log after newer
//! messages.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use crore_wire::mqtt::{Packet, Publish, ReasonCode, Version};

use crate::faults::{log, publish_surely};
use crate::servers::Servers;
use crate::support::http::{Conn, once};
use crate::support::mqtt;
use crate::support::{PATIENCE, Server, port, until};
use crate::{node, settings_at};

/// A relay to a server of NATS that can be closed.
struct Gate {
    address: SocketAddr,
    way: Arc<Way>,
}

#[derive(Default)]
struct Way {
    /// While it is closed, bytes wait. They are delivered later.
    is_closed: AtomicBool,
    /// By how many seconds the clock of NATS is ahead, in what the node reads of the log.
    ahead_s: AtomicI64,
}

/// Moves the time of stream messages ahead. The time stands in the subject for the acknowledgement:
/// `$JS.ACK.(tokens).(nanoseconds).(tokens)`.
fn set_ahead(bytes: &mut [u8], ahead_s: i64) {
    const BEGIN: &[u8] = b"$JS.ACK.";
    let mut at = 0;
    while let Some(begin) = bytes[at..].windows(BEGIN.len()).position(|it| it == BEGIN) {
        at += begin + BEGIN.len();
        let subject = bytes[at..].split_mut(|it| b" \r".contains(it)).next();
        let mut tokens = subject.expect("a part").split_mut(|it| *it == b'.');
        let nanoseconds = tokens.find(|it| it.len() == 19 && it.iter().all(u8::is_ascii_digit));
        if let Some(token) = nanoseconds {
            let number: i64 = str::from_utf8(token)
                .expect("digits")
                .parse()
                .expect("digits");
            let ahead = number + ahead_s * 1_000_000_000;
            token.copy_from_slice(ahead.to_string().as_bytes());
        }
    }
}

impl Gate {
    fn open(to: SocketAddr) -> Gate {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let gate = Gate {
            address: listener.local_addr().expect("an address"),
            way: Arc::default(),
        };
        let way = gate.way.clone();
        // This thread ends with the test program.
        std::thread::spawn(move || {
            for node in listener.incoming() {
                let node = node.expect("a connection");
                let Ok(nats) = TcpStream::connect(to) else {
                    continue;
                };
                let ends = [node, nats].map(|it| (it.try_clone().expect("a socket"), it));
                let [(node_in, node_out), (nats_in, nats_out)] = ends;
                for (from, to) in [(node_in, nats_out), (nats_in, node_out)] {
                    let way = way.clone();
                    std::thread::spawn(move || forward(from, to, &way));
                }
            }
        });
        gate
    }

    fn close(&self, is_closed: bool) {
        self.way.is_closed.store(is_closed, Ordering::SeqCst);
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, way: &Way) {
    let mut bytes = [0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        while way.is_closed.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        set_ahead(&mut bytes[..len], way.ahead_s.load(Ordering::SeqCst));
        if to.write_all(&bytes[..len]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

fn node_behind_a_gate(servers: &Servers) -> (Gate, Server) {
    let nats = servers.urls()[0].replace("nats://", "");
    let gate = Gate::open(nats.parse().expect("an address"));
    let url = format!("nats://{}", gate.address);
    let node = Server::with_admin(&settings_at(servers, &[url]));
    (gate, node)
}

fn client(at: &Server, name: &str) -> mqtt::Conn {
    let mut client = mqtt::Conn::at(at, Version::V5);
    client.connect(&mqtt::plain(Version::V5, name));
    client
}

/// The retained message of a topic, as a client of this node reads it.
fn retained(at: &Server, topic: &str) -> String {
    let mut reader = client(at, "reader");
    reader.subscribe(topic, 0);
    let got = reader.packet();
    let publish = got.publish();
    assert!(publish.retain, "{publish:?}");
    String::from_utf8_lossy(publish.payload).into_owned()
}

#[test]
fn messages_whose_outcome_was_not_known_do_not_come_behind_newer_ones_when_a_cut_ends() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let (gate, near) = node_behind_a_gate(&servers);
    let far = node(&servers);
    let is_ready = || port::ask(near.admin(), "GET /readyz", None).status == 200;
    let retain = |id, payload| Publish {
        retain: true,
        ..mqtt::message("state", 1, id, payload)
    };
    let mut there = client(&near, "publisher");
    there.deliver(&retain(1, b"v0"));
    until("the first value", || {
        once(&far, "GET", "/history/state", &[], "")
            .text()
            .contains("v0")
    });

    gate.close(true);
    there.publish(&retain(2, b"v1"));
    let key = [("Idempotency-Key", "\"k\"")];
    let mut http = Conn::open(&near);
    let timeout = http.stream().set_read_timeout(Some(PATIENCE));
    timeout.expect("a timeout");
    let answer = http.request("POST", "/pub/state", &key, "v2");
    assert_eq!(answer.status, 503, "{answer:?}");
    let last = there.packet_or_end();
    let is_acknowledged = last.is_some_and(|it| matches!(it.packet(), Packet::PubAck(_)));
    assert!(!is_acknowledged, "the client was closed");
    client(&far, "publisher").deliver(&retain(1, b"v5"));
    until("not ready", || !is_ready());
    gate.close(false);
    until("ready", is_ready);

    publish_surely(&near, "state", "v6");
    let all = |server| {
        let all = log(server, "state", 3).into_iter();
        all.map(|(_, data)| data).collect::<Vec<_>>()
    };
    for server in [&near, &far] {
        assert_eq!(all(server), ["v0", "v5", "v6"]);
        assert_eq!(retained(server, "state"), "v5");
    }
    // The publish never took effect, so its key is free.
    let again = once(&far, "POST", "/pub/state", &key, "v2");
    assert!([201, 202].contains(&again.status), "{again:?}");
    assert_eq!(again.header("idempotency-replayed"), None);
}

/// A client publishes at another node after its connection here has ended. Its earlier publish must not overwrite the later one.
#[test]
fn mqtt_client_is_disconnected_only_when_its_publish_can_no_longer_take_effect() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let (gate, near) = node_behind_a_gate(&servers);
    let far = node(&servers);
    let retain = |id, payload| Publish {
        retain: true,
        ..mqtt::message("state", 1, id, payload)
    };
    let mut there = client(&near, "publisher");
    there.deliver(&retain(1, b"v0"));
    let mut idle = client(&near, "idle");

    gate.close(true);
    there.publish(&retain(2, b"v1"));
    assert_eq!(idle.end(), Some(ReasonCode::SERVER_BUSY));
    // The server would answer this publish before the log has it, so it disconnects the client instead.
    there.publish(&retain(3, b"v2"));
    assert_eq!(there.end(), Some(ReasonCode::SERVER_BUSY));
    gate.close(false);
    client(&far, "publisher").deliver(&retain(1, b"v5"));

    until("ready", || {
        port::ask(near.admin(), "GET /readyz", None).status == 200
    });
    publish_surely(&near, "state", "v6");
    for server in [&near, &far] {
        assert_eq!(retained(server, "state"), "v5");
    }
}

/// The clock of NATS steps, for example because the stream has a leader with another clock, or because the machine of the node was paused.
#[test]
fn node_follows_the_clock_of_nats_when_that_steps() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let (gate, node) = node_behind_a_gate(&servers);
    publish_surely(&node, "a", "before");
    for (ahead_s, text) in [(600, "ahead"), (-600, "behind")] {
        gate.way.ahead_s.store(ahead_s, Ordering::SeqCst);
        // The node sees the step in the heartbeats, which come each second. Without them all later messages would be void.
        publish_surely(&node, "a", text);
        let answer = once(&node, "POST", "/pub/b", &[], text);
        assert!([201, 202].contains(&answer.status), "{answer:?}");
    }
    let all = log(&node, "a", 3).into_iter().map(|(_, data)| data);
    assert_eq!(all.collect::<Vec<_>>(), ["before", "ahead", "behind"]);
    node.await_log("the clock of NATS differs from that of this node");
}
