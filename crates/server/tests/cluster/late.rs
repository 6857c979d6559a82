//! Tests a node that is cut off from NATS. If the outcome of a publish was reported as unknown, the message must not appear in the log
//! after newer ones.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::time::Duration;

use crore_wire::mqtt::{Packet, Publish, ReasonCode, Version};

use crate::faults::{log_of, publish_surely};
use crate::servers::Servers;
use crate::support::http::{Conn, once};
use crate::support::mqtt;
use crate::support::{PATIENCE, Server, port, until};
use crate::{node, settings_at};

/// A TCP relay between a node and a server of NATS. A test can close it.
struct Relay {
    address: SocketAddr,
    state: Arc<RelayState>,
}

#[derive(Default)]
struct RelayState {
    /// While it is true, the relay delays all bytes.
    is_closed: AtomicBool,
    /// By how many seconds the relay moves the times of NATS ahead, in the messages that the node reads.
    ahead_s: AtomicI64,
}

/// Moves the times of stream messages ahead. The time is in the subject for the acknowledgement: `$JS.ACK.(tokens).(nanoseconds).(tokens)`.
fn set_ahead(bytes: &mut [u8], ahead_s: i64) {
    const BEGIN: &[u8] = b"$JS.ACK.";
    let mut position = 0;
    while let Some(subject_start) = bytes[position..]
        .windows(BEGIN.len())
        .position(|it| it == BEGIN)
    {
        position += subject_start + BEGIN.len();
        let subject = bytes[position..].split_mut(|it| b" \r".contains(it)).next();
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

impl Relay {
    fn open(to: SocketAddr) -> Relay {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let relay = Relay {
            address: listener.local_addr().expect("an address"),
            state: Arc::default(),
        };
        let state = relay.state.clone();
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
                    let state = state.clone();
                    std::thread::spawn(move || forward(from, to, &state));
                }
            }
        });
        relay
    }

    fn close(&self, is_closed: bool) {
        self.state.is_closed.store(is_closed, Ordering::SeqCst);
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, state: &RelayState) {
    let mut bytes = [0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        while state.is_closed.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        set_ahead(&mut bytes[..len], state.ahead_s.load(Ordering::SeqCst));
        if to.write_all(&bytes[..len]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

fn node_behind_relay(servers: &Servers) -> (Relay, Server) {
    let nats = servers.urls()[0].replace("nats://", "");
    let relay = Relay::open(nats.parse().expect("an address"));
    let url = format!("nats://{}", relay.address);
    let node = Server::with_admin(&settings_at(servers, &[url]));
    (relay, node)
}

fn client(node: &Server, name: &str) -> mqtt::Conn {
    let mut client = mqtt::Conn::to_server(node, Version::V5);
    client.connect(&mqtt::plain_connect(Version::V5, name));
    client
}

/// The retained message of a topic, as a client of this node reads it.
fn retained(node: &Server, topic: &str) -> String {
    let mut reader = client(node, "reader");
    reader.subscribe(topic, 0);
    let received = reader.packet();
    let publish = received.publish();
    assert!(publish.retain, "{publish:?}");
    String::from_utf8_lossy(publish.payload).into_owned()
}

#[test]
fn messages_with_an_unknown_outcome_never_follow_newer_ones_after_a_cut() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let (relay, near_node) = node_behind_relay(&servers);
    let far_node = node(&servers);
    let is_ready = || port::ask(near_node.admin(), "GET /readyz", None).status == 200;
    let retain = |id, payload| Publish {
        retain: true,
        ..mqtt::message("state", 1, id, payload)
    };
    let mut remote_client = client(&near_node, "publisher");
    remote_client.deliver(&retain(1, b"v0"));
    until("the first value", || {
        once(&far_node, "GET", "/history/state", &[], "")
            .text()
            .contains("v0")
    });

    relay.close(true);
    remote_client.publish(&retain(2, b"v1"));
    let key = [("Idempotency-Key", "\"k\"")];
    let mut http = Conn::open(&near_node);
    let timeout = http.stream().set_read_timeout(Some(PATIENCE));
    timeout.expect("a timeout");
    let answer = http.request("POST", "/pub/state", &key, "v2");
    assert_eq!(answer.status, 503, "{answer:?}");
    let last = remote_client.packet_or_end();
    let is_acknowledged = last.is_some_and(|it| matches!(it.packet(), Packet::PubAck(_)));
    assert!(!is_acknowledged, "the client was closed");
    client(&far_node, "publisher").deliver(&retain(1, b"v5"));
    until("not ready", || !is_ready());
    relay.close(false);
    until("ready", is_ready);

    publish_surely(&near_node, "state", "v6");
    let all = |server| {
        let all = log_of(server, "state", 3).into_iter();
        all.map(|(_, data)| data).collect::<Vec<_>>()
    };
    for server in [&near_node, &far_node] {
        assert_eq!(all(server), ["v0", "v5", "v6"]);
        assert_eq!(retained(server, "state"), "v5");
    }
    // The publish never took effect, so its key is free.
    let repeated = once(&far_node, "POST", "/pub/state", &key, "v2");
    assert!([201, 202].contains(&repeated.status), "{repeated:?}");
    assert_eq!(repeated.header("idempotency-replayed"), None);
}

/// A client publishes at another node after its connection here has ended. Its earlier publish must not overwrite the later one.
#[test]
fn mqtt_client_is_disconnected_only_when_its_publish_can_no_longer_take_effect() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let (relay, near_node) = node_behind_relay(&servers);
    let far_node = node(&servers);
    let retain = |id, payload| Publish {
        retain: true,
        ..mqtt::message("state", 1, id, payload)
    };
    let mut remote_client = client(&near_node, "publisher");
    remote_client.deliver(&retain(1, b"v0"));
    let mut idle = client(&near_node, "idle");

    relay.close(true);
    remote_client.publish(&retain(2, b"v1"));
    assert_eq!(idle.end(), Some(ReasonCode::SERVER_BUSY));
    // The server would answer this publish before the log has it, so it disconnects the client instead.
    remote_client.publish(&retain(3, b"v2"));
    assert_eq!(remote_client.end(), Some(ReasonCode::SERVER_BUSY));
    relay.close(false);
    client(&far_node, "publisher").deliver(&retain(1, b"v5"));

    until("ready", || {
        port::ask(near_node.admin(), "GET /readyz", None).status == 200
    });
    publish_surely(&near_node, "state", "v6");
    for server in [&near_node, &far_node] {
        assert_eq!(retained(server, "state"), "v5");
    }
}

/// The clock of NATS steps, for example because the stream has a leader with another clock, or because the machine of the node was paused.
#[test]
fn node_follows_a_step_of_the_clock_of_nats() {
    let Some(servers) = Servers::start(1) else {
        return;
    };
    let (relay, node) = node_behind_relay(&servers);
    publish_surely(&node, "a", "before");
    for (ahead_s, text) in [(600, "ahead"), (-600, "behind")] {
        relay.state.ahead_s.store(ahead_s, Ordering::SeqCst);
        // The node notices the step by the heartbeats, one each second. Otherwise it would take all later messages as void.
        publish_surely(&node, "a", text);
        let answer = once(&node, "POST", "/pub/b", &[], text);
        assert!([201, 202].contains(&answer.status), "{answer:?}");
    }
    let all = log_of(&node, "a", 3).into_iter().map(|(_, data)| data);
    assert_eq!(all.collect::<Vec<_>>(), ["before", "ahead", "behind"]);
    node.await_log("the clock of NATS differs from that of this node");
}
