//! Whatever connections do, in any order: no more are in than may be, those who are in are served, and when all are
//! gone every counter stands where it began.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crore_broker::admission::Admission;
use crore_broker::rules::Rules;
use crore_broker::settings::Settings;
use crore_broker::{Close, ConnId, Input, Io, Link, Mail, Now, Shard, ShardId, World};
use crore_wire::http::forwarded::is_trusted;
use proptest::prelude::*;

const CONNECTIONS_MAX: usize = 6;
const PER_ADDRESS_MAX: u32 = 3;
const PER_SHARD_MAX: usize = 5;
/// Peers: two clients and two trusted proxies.
const ADDRESSES: [&str; 4] = ["192.0.2.1", "2001:db8::1", "10.0.0.1", "::ffff:10.9.9.9"];
const CLIENTS: [&str; 3] = ["192.0.2.1", "2001:db8::1", "198.51.100.7"];

/// Sockets that take everything.
#[derive(Default)]
struct Sockets {
    open: BTreeMap<u32, Option<ConnId>>,
    sent: BTreeMap<u32, Vec<u8>>,
}

impl Io for Sockets {
    fn open(&mut self, link: Link, conn: ConnId) {
        self.open.insert(link.0, Some(conn));
    }
    fn send(&mut self, link: Link, parts: &[&[u8]]) -> usize {
        assert!(self.open.contains_key(&link.0), "{link:?} is closed");
        let sent = self.sent.entry(link.0).or_default();
        parts.iter().for_each(|part| sent.extend_from_slice(part));
        parts.iter().map(|part| part.len()).sum()
    }
    fn interest(&mut self, _: Link, _: ConnId, _: bool, _: bool) {}
    fn close(&mut self, link: Link, how: Close) {
        if how != Close::Drain {
            assert!(self.open.remove(&link.0).is_some(), "{link:?} closed twice");
        }
    }
    fn post(&mut self, _: ShardId, _: Mail) {}
}

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

struct Town {
    shards: Vec<Shard>,
    sockets: Vec<Sockets>,
    world: Arc<World>,
    now: Now,
    links: u32,
}

impl Town {
    /// Two shards, each a home of its own for what is asked here: mail between them goes nowhere.
    fn new(proxy_protocol: bool) -> Town {
        let mut settings = Settings::default();
        settings.limits.connections_max = CONNECTIONS_MAX;
        settings.limits.connections_per_address_max = PER_ADDRESS_MAX;
        settings.limits.connections_per_shard = PER_SHARD_MAX;
        settings.http.trusted_proxies = vec![("10.0.0.0".parse().unwrap(), 8)];
        settings.http.proxy_protocol = proxy_protocol;
        let admission = Admission::new(&settings, 9);
        let world = Arc::new(World {
            rules: Rules::new(&settings.rules),
            admission,
            settings,
            shards: 1,
            homes: 1,
            epoch: 7,
            seed: 42,
        });
        let now = Now {
            s: 1,
            unix_s: 1_800_000_000,
        };
        Town {
            // Both call themselves the first: they share the counters and nothing else.
            shards: (0..2)
                .map(|_| Shard::new(0, Arc::clone(&world), now))
                .collect(),
            sockets: (0..2).map(|_| Sockets::default()).collect(),
            world,
            now,
            links: 0,
        }
    }

    fn handle(&mut self, at: usize, input: Input<'_>) {
        let (shard, io) = (&mut self.shards[at], &mut self.sockets[at]);
        shard.handle(input, self.now, io);
        while shard.flush(self.now, io) {}
    }

    /// The open connections of both shards.
    fn conns(&self) -> Vec<(usize, ConnId, u32)> {
        let all = self.sockets.iter().enumerate();
        all.flat_map(|(at, io)| io.open.iter().map(move |(link, conn)| (at, conn, link)))
            .filter_map(|(at, conn, link)| Some((at, (*conn)?, *link)))
            .collect()
    }

    fn accept(&mut self, peer: IpAddr) {
        let link = self.links;
        self.links += 1;
        let at = link as usize % 2;
        self.sockets[at].open.insert(link, None);
        self.handle(at, Input::Accepted(Link(link), peer));
        let http = &self.world.settings.http;
        if http.proxy_protocol && !is_trusted(peer, &http.trusted_proxies) {
            let open = self.sockets[at].open.contains_key(&link);
            assert!(!open, "{peer} may not say who its clients are");
        }
    }

    fn request(&mut self, conn: usize, kind: usize, client: usize) {
        let conns = self.conns();
        let Some((at, conn, link)) = conns.get(conn % conns.len().max(1)).copied() else {
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
        self.sockets[at].sent.remove(&link);
        self.handle(at, Input::Received(conn, &mut bytes));
    }

    fn step(&mut self, step: &Step) {
        match *step {
            Step::Accept(peer) => self.accept(ADDRESSES[peer].parse().unwrap()),
            Step::Request { conn, kind, client } => self.request(conn, kind, client),
            Step::Close(conn) => {
                let conns = self.conns();
                if let Some((at, conn, _)) = conns.get(conn % conns.len().max(1)).copied() {
                    self.handle(at, Input::Closed(conn));
                }
            }
            Step::Tick(seconds) => {
                for _ in 0..seconds {
                    self.now.s += 1;
                    self.now.unix_s += 1;
                    (0..2).for_each(|at| self.handle(at, Input::Tick));
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
        let mut town = Town::new(proxy_protocol);
        for step in &steps {
            town.step(step);
            let entered = town.world.admission.connections() as usize;
            prop_assert!(entered <= CONNECTIONS_MAX, "{entered} are in");
            prop_assert!(entered <= town.conns().len());
            for client in CLIENTS {
                let client = town.world.admission.client(client.parse().unwrap());
                // Room or not, asking leaves nothing behind.
                if town.world.admission.enter_client(client).is_ok() {
                    town.world.admission.leave_client(client);
                }
            }
        }
        while let Some((at, conn, _)) = town.conns().pop() {
            town.handle(at, Input::Closed(conn));
        }
        prop_assert_eq!(town.world.admission.connections(), 0);
        for client in CLIENTS {
            let client = town.world.admission.client(client.parse().unwrap());
            let enters = (0..10)
                .take_while(|_| town.world.admission.enter_client(client).is_ok())
                .count();
            prop_assert_eq!(enters, PER_ADDRESS_MAX as usize);
            (0..enters).for_each(|_| town.world.admission.leave_client(client));
        }
        // And everybody is let in and served again.
        let peer = if proxy_protocol { "10.0.0.1" } else { "203.0.113.5" };
        town.accept(peer.parse().unwrap());
        town.request(0, 0, CLIENTS.len());
        let link = town.links - 1;
        let sent = &town.sockets[link as usize % 2].sent[&link];
        let served = [b"HTTP/1.1 200".as_slice(), b"HTTP/1.1 404"];
        prop_assert!(
            served.iter().any(|status| sent.starts_with(status)),
            "{}",
            String::from_utf8_lossy(sent)
        );
    }
}
