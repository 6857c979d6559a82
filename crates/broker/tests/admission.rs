//! Tests the limits of connections while connections open and close in random order. The server admits no more connections than the limits allow, and
//! serves the admitted ones. When all are closed, all counters are back at their first values.

use std::net::IpAddr;
use std::sync::Arc;

use crore_broker::settings::Settings;
use crore_broker::{Shard, World};
use crore_wire::http::forwarded::is_trusted;
use proptest::prelude::*;
use support::NOW;

mod support;

const CONNECTIONS_MAX: usize = 6;
const PER_ADDRESS_MAX: u32 = 3;
const PER_SHARD_MAX: usize = 5;
/// The peers' addresses: two clients and two trusted proxies.
const ADDRESSES: [&str; 4] = ["192.0.2.1", "2001:db8::1", "10.0.0.1", "::ffff:10.9.9.9"];
const CLIENTS: [&str; 3] = ["192.0.2.1", "2001:db8::1", "198.51.100.7"];

#[derive(Clone, Debug)]
enum Step {
    Accept(usize),
    Request {
        conn: usize,
        kind: usize,
        client: usize,
    },
    Close(usize),
    Tick(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..ADDRESSES.len()).prop_map(Step::Accept),
        6 => (0..20_usize, 0..6_usize, 0..=CLIENTS.len())
            .prop_map(|(conn, kind, client)| Step::Request { conn, kind, client }),
        3 => (0..20_usize).prop_map(Step::Close),
        1 => (1..40_u32).prop_map(Step::Tick),
    ]
}

struct TestServer {
    of: support::TestServer,
    world: Arc<World>,
    opened: usize,
}

impl TestServer {
    /// Two shards, each of which handles its own requests. Mail (messages between shards) is not delivered.
    fn new(proxy_protocol: bool) -> TestServer {
        let mut settings = Settings::default();
        settings.limits.connections_max = CONNECTIONS_MAX;
        settings.limits.connections_per_address_max = PER_ADDRESS_MAX;
        settings.limits.connections_per_shard = PER_SHARD_MAX;
        settings.http.trusted_proxies = vec![("10.0.0.0".parse().unwrap(), 8)];
        settings.http.proxy_protocol = proxy_protocol;
        let world = support::world(settings, 1, 1);
        // Both shards have the number of the first one, so they share only the counters.
        let shard = |_| Shard::new(0, Arc::clone(&world), NOW);
        TestServer {
            of: support::TestServer::from_shards((0..2).map(shard).collect(), NOW),
            world,
            opened: 0,
        }
    }

    fn settle(&mut self) {
        (0..2).for_each(|at| self.of.settle_one(at));
    }

    /// The open connections of both shards.
    fn conns(&mut self) -> Vec<usize> {
        let all = 0..self.opened;
        all.filter(|conn| self.of.socket(*conn).conn.is_some())
            .collect()
    }

    /// An open connection.
    fn pick(&mut self, n: usize) -> Option<usize> {
        let conns = self.conns();
        conns.get(n % conns.len().max(1)).copied()
    }

    fn accept(&mut self, peer: IpAddr) -> usize {
        let conn = self.of.open_from(self.opened % 2, peer);
        assert_eq!(conn, self.opened, "they take turns");
        self.opened += 1;
        self.settle();
        let http = &self.world.settings.http;
        if http.proxy_protocol && !is_trusted(peer, &http.trusted_proxies) {
            assert!(
                !self.of.is_open(conn),
                "{peer} may not say who its clients are"
            );
        }
        conn
    }

    fn request(&mut self, conn: usize, kind: usize, client: usize) {
        let Some(conn) = self.pick(conn) else {
            return;
        };
        let forwarded = CLIENTS.get(client).map_or(String::new(), |client| {
            format!("X-Forwarded-For: {client}\r\n")
        });
        let (line, more) = [
            ("GET /pub/a", ""),
            ("POST /pub/a", "Content-Length: 2\r\n"),
            ("GET /sub/a", "Accept: text/event-stream\r\n"),
            (
                "GET /sub/a",
                "Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n\
                 Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
            ),
            ("GET /sub/b", ""),
            ("nonsense", ""),
        ][kind];
        let mut text = format!("{line} HTTP/1.1\r\nHost: localhost\r\n{more}{forwarded}\r\n");
        if kind == 1 {
            text += "xy";
        }
        let mut bytes = text.into_bytes();
        if self.world.settings.http.proxy_protocol {
            let mut header =
                b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x01\x7f\0\0\x01".to_vec();
            header.extend([9, 9, 34, 96]);
            bytes = [header, bytes].concat();
        }
        self.of.socket(conn).received.clear();
        self.of.send(conn, bytes);
        self.settle();
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Accept(peer) => {
                self.accept(ADDRESSES[peer].parse().unwrap());
            }
            Step::Request { conn, kind, client } => self.request(conn, kind, client),
            Step::Close(conn) => {
                if let Some(conn) = self.pick(conn) {
                    self.of.cut(conn);
                    self.settle();
                }
            }
            Step::Tick(seconds) => {
                for _ in 0..seconds {
                    self.of.advance_and_tick_s(1);
                    self.settle();
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn the_counters_hold_and_return(
        proxy_protocol in any::<bool>(),
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut server = TestServer::new(proxy_protocol);
        for step in &steps {
            server.step(step);
            let entered = server.world.admission.connections() as usize;
            prop_assert!(entered <= CONNECTIONS_MAX, "{entered} are in");
            prop_assert!(entered <= server.conns().len());
            for client in CLIENTS {
                let client = server.world.admission.client(client.parse().unwrap());
                // Enter and leave again if there is room: the counters must not change.
                if server.world.admission.enter_client(client).is_ok() {
                    server.world.admission.leave_client(client);
                }
            }
        }
        while let Some(conn) = server.conns().pop() {
            server.of.cut(conn);
            server.settle();
        }
        prop_assert_eq!(server.world.admission.connections(), 0);
        for client in CLIENTS {
            let client = server.world.admission.client(client.parse().unwrap());
            let enters = (0..10)
                .take_while(|_| server.world.admission.enter_client(client).is_ok())
                .count();
            prop_assert_eq!(enters, PER_ADDRESS_MAX as usize);
            (0..enters).for_each(|_| server.world.admission.leave_client(client));
        }
        // When all connections are closed, a new client is admitted and served.
        let peer = if proxy_protocol { "10.0.0.1" } else { "203.0.113.5" };
        let conn = server.accept(peer.parse().unwrap());
        server.request(0, 0, CLIENTS.len());
        let sent = server.of.received(conn);
        let served = [b"HTTP/1.1 200".as_slice(), b"HTTP/1.1 404"];
        prop_assert!(
            served.iter().any(|status| sent.starts_with(status)),
            "{}",
            String::from_utf8_lossy(sent)
        );
    }
}
