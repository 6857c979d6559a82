//! Tests absent sessions, which have no connection. The account of their memory matches the allocator, and no client can fill the memory
//! with them.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use crore_broker::account::MemoryPart;
use crore_broker::settings::Settings;
use crore_broker::{TurnLimits, World};
use crore_wire::mqtt::{
    self, Connect, Packet, PacketId, Properties, PropertyWriter, Qos, ReasonCode, SubscribeOptions,
    Version, Will, encode,
};

use crate::counting::grown_bytes;
use crate::support::{self, NOW, TestServer};

const MIB: usize = 1 << 20;
/// Bytes of all logs, which keep published wills.
const LOG_BYTES: usize = 2 * MIB;
/// Bytes of table rows and of a shard's buffers.
const TABLES_BYTES: usize = 2 * MIB;
/// Allowed difference between the account and the allocated bytes: a seventh of the account, or this number of bytes.
const APART_PART: usize = 7;
const BLOCK_ALLOWANCE_BYTES: usize = MIB;
/// Bytes of a topic's rows at its home (the part of a shard that keeps topics). Their number is limited, so they are not charged.
const TOPIC_BYTES: usize = 40 + 24 + 4;

/// A client that leaves a session behind.
#[derive(Clone, Default)]
struct Guest {
    client: String,
    will_bytes: usize,
    filters: Vec<String>,
}

impl Guest {
    fn connect(&self) -> Vec<u8> {
        let (mut set, mut of_will, mut out) =
            (PropertyWriter::new(), PropertyWriter::new(), Vec::new());
        set.session_expiry_interval_s(3600);
        of_will.will_delay_interval_s(3600);
        let payload = vec![b'w'; self.will_bytes];
        let will = Will {
            qos: Qos::AtMostOnce,
            retain: false,
            properties: of_will.properties(),
            topic: "wills",
            payload: &payload,
        };
        let packet = Connect {
            version: Version::V5,
            bridge: false,
            clean_start: false,
            keep_alive_s: 0,
            properties: set.properties(),
            client_id: &self.client,
            will: (self.will_bytes > 0).then_some(will),
            user_name: None,
            password: None,
        };
        encode::connect(&mut out, &packet);
        out
    }

    fn subscribe(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let options = SubscribeOptions::of(Qos::AtLeastOnce);
        let filters = self.filters.iter().map(|filter| (&filter[..], options));
        let (id, nothing) = (PacketId::new(1).expect("not 0"), Properties::NONE);
        encode::subscribe(&mut out, Version::V5, id, &nothing, filters);
        out
    }
}

/// A server whose shards are all homes (keep topics and sessions), with a memory limit.
struct Hall {
    server: TestServer,
    world: Arc<World>,
}

impl Hall {
    fn new(shards: u16, memory_bytes: usize) -> Hall {
        let mut settings = Settings::default();
        settings.limits.memory_bytes = memory_bytes;
        settings.limits.log_bytes = LOG_BYTES;
        settings.limits.message_bytes = 256 << 10;
        settings.limits.topics_per_connection = 1_000;
        let world = support::world(settings, shards, shards);
        let mut server = TestServer::new(&world, TurnLimits::default(), NOW);
        for io in &mut server.io {
            io.sockets.reserve(100_000);
        }
        Hall { server, world }
    }

    /// Bytes of these parts in the accounts of all shards.
    fn charged(&self, parts: &[MemoryPart]) -> usize {
        let bytes_of = |shard: &crore_broker::Shard| {
            let held = shard.accounts().parts;
            parts.iter().map(|part| held[*part as usize]).sum::<usize>()
        };
        self.server.shards.iter().map(bytes_of).sum()
    }

    /// Connects a client, sends its packets, and cuts the connection. Returns the reason code and the session flag of the CONNACK.
    fn visit(&mut self, guest: &Guest, from: IpAddr) -> (ReasonCode, bool) {
        let shard = guest.client.len() % self.server.shards.len();
        let conn = self.server.open_from(shard, from);
        self.server.send(conn, guest.connect());
        self.server.settle();
        let connack = self.connack(conn);
        if self.server.is_open(conn) {
            if !guest.filters.is_empty() {
                self.server.send(conn, guest.subscribe());
                self.server.settle();
            }
            if self.server.is_open(conn) {
                self.server.cut(conn);
            }
        }
        self.server.settle();
        let socket = self.server.socket(conn);
        socket.received = Vec::new();
        connack
    }

    fn connack(&mut self, conn: usize) -> (ReasonCode, bool) {
        let bytes = self.server.received(conn);
        let (header, len) = mqtt::fixed_header(bytes, MIB)
            .expect("a packet")
            .expect("a whole one");
        let body = &bytes[len..len + header.body_bytes()];
        match mqtt::decode(Version::V5, header, body).expect("a packet") {
            Packet::ConnAck(ack) => (ack.reason, ack.session_present),
            other => panic!("{other:?} instead of a CONNACK"),
        }
    }
}

fn address(n: u32) -> IpAddr {
    Ipv4Addr::from_bits(0x0A00_0000 + n).into()
}

/// A long unique filter.
fn filter(n: usize, part: usize) -> String {
    let levels = (0..13).map(|level| format!("{n:x}.{part:x}.{level:x}"));
    format!("{}/+", levels.collect::<Vec<_>>().join("/"))
}

/// Compares the account with the bytes that many guests of one kind allocate.
fn compare(kind: &str, shards: u16, many: usize, topics: usize, guest: impl Fn(usize) -> Guest) {
    let mut hall = Hall::new(shards, 4 << 30);
    for n in 0..64 {
        hall.visit(&guest(n), address(0));
    }
    let parts = [MemoryPart::Sessions, MemoryPart::Subscriptions];
    let before = hall.charged(&parts);
    let grown = grown_bytes(|| {
        for n in 64..64 + many {
            assert_eq!(
                hall.visit(&guest(n), address(n as u32 % 7)).0,
                ReasonCode::SUCCESS
            );
        }
    });
    let (grown, charged) = (grown as usize, hall.charged(&parts) - before);
    let rows = many * topics;
    let apart = (grown / APART_PART).max(BLOCK_ALLOWANCE_BYTES);
    assert!(
        (charged + rows).abs_diff(grown) <= apart,
        "{kind}, {shards} shards: {} charged and {} of topics, {} in use for each",
        charged / many,
        topics,
        grown / many
    );
    // All sessions have expired, and nothing is charged any more.
    hall.server.advance_and_tick_s(4000);
    hall.server.settle();
    assert_eq!(hall.charged(&[MemoryPart::Sessions]), 0, "{kind}");
    assert_eq!(hall.charged(&parts), 0, "{kind}");
    assert!(hall.world.admission.has_no_absent(), "{kind}");
}

fn client(n: usize) -> String {
    format!("guest-{n:08}{}", if n.is_multiple_of(2) { "" } else { "." })
}

#[test]
fn wills_filters_and_groups_of_absent_sessions_are_charged_until_they_end() {
    for shards in [1, 2] {
        let plain = |n| Guest {
            client: client(n),
            ..Guest::default()
        };
        compare("nothing", shards, 4_000, 0, plain);
        compare("wills", shards, 300, 0, |n| Guest {
            will_bytes: 20_000,
            ..plain(n)
        });
        compare("topics", shards, 500, 8 * (TOPIC_BYTES + 40), |n| Guest {
            filters: (0..8).map(|part| format!("{n:08}/{part:024}")).collect(),
            ..plain(n)
        });
        compare("filters", shards, 200, 0, |n| Guest {
            filters: (0..32).map(|part| filter(n, part)).collect(),
            ..plain(n)
        });
        compare("shares", shards, 200, 0, |n| Guest {
            filters: (0..16)
                .map(|part| format!("$share/g{part}/{}", filter(n, part)))
                .collect(),
            ..plain(n)
        });
        compare("shares of one filter", shards, 200, 0, |n| Guest {
            filters: (0..16)
                .map(|part| format!("$share/{n}.{part}/one/+"))
                .collect(),
            ..plain(n)
        });
    }
}

/// Guests from one address connect until their sessions would need several times the memory limit. Guests from other addresses connect
/// before them and meanwhile, and must be served.
fn flood(kind: &str, shards: u16, many: usize, guest: impl Fn(usize) -> Guest) {
    let limit = 16 * MIB;
    let mut hall = Hall::new(shards, limit);
    let honest = |n: usize| Guest {
        client: format!("honest-{n}"),
        will_bytes: 100,
        filters: vec![format!("honest/{n}/+"), format!("honest/{n}")],
    };
    assert_eq!(hall.visit(&honest(0), address(1)).0, ReasonCode::SUCCESS);
    let mut refused = 0;
    let mut most = 0;
    for n in 0..many {
        let grown = grown_bytes(|| {
            let (reason, _) = hall.visit(&guest(n), address(9));
            refused += usize::from(reason == ReasonCode::QUOTA_EXCEEDED);
            assert!(
                [ReasonCode::SUCCESS, ReasonCode::QUOTA_EXCEEDED].contains(&reason),
                "{kind}: {reason:?}"
            );
        });
        most += grown;
        assert!(
            most <= (limit + LOG_BYTES + TABLES_BYTES) as i64,
            "{kind}, {shards} shards: {most} bytes after {n} guests"
        );
        if n % (many / 8) == 0 {
            let honest = honest(n + 1);
            assert_eq!(
                hall.visit(&honest, address(2)),
                (ReasonCode::SUCCESS, false)
            );
            let again = hall.visit(&honest, address(2));
            assert_eq!(again, (ReasonCode::SUCCESS, true), "{kind}: {n}");
        }
    }
    let evicted: u64 = hall
        .server
        .shards
        .iter()
        .map(|it| it.stats().sessions_evicted)
        .sum();
    assert!(
        refused > 0 || evicted > 0,
        "{kind}: some were refused or ended"
    );
    // The guest that connected first still has its session.
    let again = hall.visit(&honest(0), address(1));
    assert_eq!(again, (ReasonCode::SUCCESS, true), "{kind}");
}

#[test]
#[ignore = "takes a minute without optimisation; `cargo xtask test` runs it optimised"]
fn client_with_many_absent_sessions_is_refused_or_loses_them_before_others() {
    for shards in [1, 2] {
        let plain = |n| Guest {
            client: client(n),
            ..Guest::default()
        };
        flood("wills", shards, 800, |n| Guest {
            will_bytes: 60_000,
            ..plain(n)
        });
        flood("filters", shards, 1_000, |n| Guest {
            filters: (0..32).map(|part| filter(n, part)).collect(),
            ..plain(n)
        });
        flood("shares", shards, 600, |n| Guest {
            filters: (0..32)
                .map(|part| format!("$share/g{part}/{}", filter(n, part)))
                .collect(),
            ..plain(n)
        });
    }
}
