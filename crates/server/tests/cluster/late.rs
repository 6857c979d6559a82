//! A node that is cut off from the log: what its publishers were told is not known does not come behind newer messages.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crore_wire::mqtt::{Packet, Version};

use crate::faults::{log, publish_surely};
use crate::servers::Servers;
use crate::support::http::{Conn, once};
use crate::support::mqtt;
use crate::support::{PATIENCE, Server, port, until};
use crate::{node, settings_at};

/// The way to a server of NATS. While it is closed, bytes wait in it, and all of them come later.
struct Gate {
    address: SocketAddr,
    is_closed: Arc<AtomicBool>,
}

impl Gate {
    fn open(to: SocketAddr) -> Gate {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let gate = Gate {
            address: listener.local_addr().expect("an address"),
            is_closed: Arc::default(),
        };
        let is_closed = gate.is_closed.clone();
        // The thread ends with the tests.
        std::thread::spawn(move || {
            for node in listener.incoming() {
                let node = node.expect("a connection");
                let Ok(nats) = TcpStream::connect(to) else {
                    continue;
                };
                let ends = [node, nats].map(|it| (it.try_clone().expect("a socket"), it));
                let [(node_in, node_out), (nats_in, nats_out)] = ends;
                for (from, to) in [(node_in, nats_out), (nats_in, node_out)] {
                    let is_closed = is_closed.clone();
                    std::thread::spawn(move || forward(from, to, &is_closed));
                }
            }
        });
        gate
    }

    fn close(&self, is_closed: bool) {
        self.is_closed.store(is_closed, Ordering::SeqCst);
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, is_closed: &AtomicBool) {
    let mut bytes = [0; 64 << 10];
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        while is_closed.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        if to.write_all(&bytes[..len]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}

fn client(at: &Server, name: &str) -> mqtt::Conn {
    let mut client = mqtt::Conn::at(at, Version::V5);
    client.connect(&mqtt::plain(Version::V5, name));
    client
}

/// The retained message of a topic at a node.
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
    let nats = servers.urls()[0].replace("nats://", "");
    let gate = Gate::open(nats.parse().expect("an address"));
    let near = Server::with_admin(&settings_at(
        &servers,
        &[format!("nats://{}", gate.address)],
    ));
    let far = node(&servers);
    let is_ready = || port::ask(near.admin(), "GET /readyz", None).status == 200;
    let retain = |id, payload| mqtt::message("state", 1, id, payload);
    let retain = |id, payload| crore_wire::mqtt::Publish {
        retain: true,
        ..retain(id, payload)
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
    // It never took effect, so its key is free.
    let again = once(&far, "POST", "/pub/state", &key, "v2");
    assert!([201, 202].contains(&again.status), "{again:?}");
    assert_eq!(again.header("idempotency-replayed"), None);
}
