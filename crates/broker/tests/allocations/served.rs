//! Checks that a connection keeps nothing of the requests that it has served. Clients repeat requests, each on an open connection.
//! Afterwards all shards have the same side rows (entries for a connection's temporary state), memory account and heap as before.

use crore_broker::access::{Grants, Right, VerifiedClient};
use crore_broker::account::MemoryPart;
use crore_broker::settings::{Rule, Settings};
use crore_broker::{Accounts, Input, ShardId, TurnLimits, Verdict};

use crate::counting::grown_bytes;
use crate::support::{self, NOW, TestServer};
use crate::test_server::{TURNS_UNDER_WAY, keeping};

/// Number of clients that send the same requests.
const CLIENTS: usize = 16;
/// The allowed growth of the heap for each client. In each of two shards a list of 584 bytes may double: 1168 bytes, or 73 bytes for each of 16 clients.
const GROWTH_MAX_BYTES_PER_CLIENT: i64 = 80;
/// A placeholder for the number of the client, which is also the name of its topic.
const NUMBER_PLACEHOLDER: &[u8] = b"####";
/// Seconds after which a long-poll ends without a message.
pub const POLL_S: u32 = 3;

/// A part of an exchange.
pub enum Step {
    /// The client sends these bytes.
    Say(Vec<u8>),
    /// The client sends these bytes one by one.
    Drip(Vec<u8>),
    /// Another client publishes to this client's topic.
    Publish,
    /// Time passes.
    Seconds(u32),
}

/// The requests and answers of a client on a connection that stays open.
pub struct Exchange {
    pub name: &'static str,
    pub steps: Vec<Step>,
    /// The bytes that the client receives contain these parts, in this order.
    pub expected_parts: &'static [&'static str],
}

/// An exchange without bytes. It lasts until the sweep (the regular check of all connections) has visited each connection.
fn nothing() -> Exchange {
    Exchange {
        name: "nothing",
        steps: vec![Step::Seconds(2)],
        expected_parts: &[],
    }
}

/// A client: its number, and its connection.
type Client = (usize, usize);

/// A server whose clients have all sent `opening` first.
struct Scene {
    server: TestServer,
    opening: Vec<u8>,
    /// A publishing client for each shard.
    publishers: Vec<usize>,
}

/// The bytes, with the client's number in place of `NUMBER_PLACEHOLDER`.
fn numbered(bytes: &[u8], n: usize) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    let number = format!("{n:04}");
    for offset in 0..bytes.len().saturating_sub(NUMBER_PLACEHOLDER.len() - 1) {
        if bytes[offset..].starts_with(NUMBER_PLACEHOLDER) {
            bytes[offset..offset + NUMBER_PLACEHOLDER.len()].copy_from_slice(number.as_bytes());
        }
    }
    bytes
}

impl Scene {
    fn new(shards: ShardId, change_settings: fn(&mut Settings), opening: &[u8]) -> Scene {
        let mut settings = Settings {
            rules: vec![Rule {
                poll_timeout_s: POLL_S,
                ..keeping(2)
            }],
            ..Settings::default()
        };
        change_settings(&mut settings);
        let turn_limits = TurnLimits {
            backpressure_turns: TURNS_UNDER_WAY,
            ..TurnLimits::default()
        };
        let world = support::world(settings, shards, shards);
        let mut server = TestServer::new(&world, turn_limits, NOW);
        for io in &mut server.io {
            io.sockets.reserve(8 * CLIENTS);
            io.mail.reserve(64);
        }
        let publishers = (0..usize::from(shards))
            .map(|shard| server.open(shard))
            .collect();
        Scene {
            server,
            opening: opening.to_vec(),
            publishers,
        }
    }

    /// Runs turns (runs of the event loops) until nothing is left to do. All credentials are valid.
    fn settle(&mut self) {
        loop {
            self.server.settle();
            let take_questions =
                |shard: usize| (shard, std::mem::take(&mut self.server.io[shard].questions));
            let questions_by_shard: Vec<_> =
                (0..self.server.shards.len()).map(take_questions).collect();
            let mut has_questions = false;
            for (shard, questions) in questions_by_shard {
                for (conn, question) in questions {
                    has_questions = true;
                    let rights = [Right::Subscribe, Right::Publish];
                    let grants = Grants::new("", rights.map(|right| (right, "#")));
                    let client = VerifiedClient {
                        grants: grants.expect("grants").into(),
                        until_unix_s: u32::MAX,
                    };
                    let verdict = Verdict {
                        digest: question.digest,
                        found: Ok(client),
                        believed_until_s: u32::MAX,
                        settings_generation: question.settings_generation,
                    };
                    self.server.handle(shard, Input::Verdict(conn, verdict));
                }
            }
            if !has_questions {
                return;
            }
        }
    }

    fn open(&mut self, numbers: std::ops::Range<usize>) -> Vec<Client> {
        let mut all = Vec::new();
        for n in numbers {
            let conn = self.server.open(n % self.publishers.len());
            self.server.send(conn, numbered(&self.opening, n));
            self.settle();
            all.push((n, conn));
        }
        all
    }

    fn play(&mut self, exchange: &Exchange, clients: &[Client]) {
        for step in &exchange.steps {
            if let Step::Seconds(seconds) = step {
                (0..*seconds).for_each(|_| self.server.advance_and_tick_s(1));
                self.settle();
                continue;
            }
            for (n, conn) in clients {
                match step {
                    Step::Say(bytes) => self.server.send(*conn, numbered(bytes, *n)),
                    Step::Drip(bytes) => {
                        for byte in numbered(bytes, *n) {
                            self.server.send(*conn, [byte]);
                            self.settle();
                        }
                    }
                    _ => {
                        let publisher = self.publishers[n / 2 % self.publishers.len()];
                        self.server.send(publisher, numbered(PUBLISH_REQUEST, *n));
                    }
                }
                self.settle();
            }
        }
    }

    /// Plays the exchange, and drops the bytes that the clients receive.
    fn play_and_discard(&mut self, exchange: &Exchange, clients: &[Client]) {
        self.play(exchange, clients);
        for io in &mut self.server.io {
            let sockets = io.sockets.iter_mut();
            sockets.for_each(|socket| socket.received = Vec::new());
            io.delivery_reports = Vec::new();
        }
    }

    /// The numbers of side rows and of charged bytes, summed over all shards.
    fn held(&self) -> [(&'static str, usize); 7] {
        let sum = |of: fn(&Accounts) -> usize| {
            let shards = self.server.shards.iter();
            shards.map(|shard| of(&shard.accounts())).sum::<usize>()
        };
        [
            ("spills", sum(|held| held.spills as usize)),
            ("outboxes", sum(|held| held.outboxes as usize)),
            ("other side rows", sum(|held| held.extras as usize)),
            ("bytes received in part", sum(|held| held.receive_bytes)),
            ("grants", sum(|held| held.identities as usize)),
            ("topics", sum(|held| held.carrier_topics as usize)),
            (
                "charged bytes",
                sum(|held| held.parts[MemoryPart::Connections as usize]),
            ),
        ]
    }
}

const PUBLISH_REQUEST: &[u8] =
    b"POST /pub/#### HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\nother";

/// Checks that connections which have sent `opening` are the same before and after the exchange.
///
/// # Errors
/// What the exchange leaves behind, or what the client did not receive.
fn leaves_nothing(
    shards: ShardId,
    change_settings: fn(&mut Settings),
    opening: &[u8],
    exchange: &Exchange,
) -> Result<(), String> {
    let mut scene = Scene::new(shards, change_settings, opening);
    let first_clients = scene.open(0..CLIENTS);
    let (_, first) = first_clients[0];
    scene.server.socket(first).received.clear();
    scene.play(exchange, &first_clients[..1]);
    let received = String::from_utf8_lossy(scene.server.received(first)).into_owned();
    let mut rest = &received[..];
    for part in exchange.expected_parts {
        let offset = rest.find(part);
        let offset = offset.ok_or_else(|| format!("{part:?} is missing in {received:?}"))?;
        rest = &rest[offset + part.len()..];
    }
    if !scene.server.is_open(first) {
        return Err(format!("the connection ends: {received:?}"));
    }
    // Two warm-up rounds, in which tables, buffers and logs grow to the size that the exchange needs.
    for _ in 0..2 {
        scene.play_and_discard(exchange, &first_clients);
    }
    first_clients
        .iter()
        .for_each(|(_, conn)| scene.server.cut(*conn));
    let clients = scene.open(0..CLIENTS);
    scene.play_and_discard(&nothing(), &clients);
    let before = scene.held();
    let grown = grown_bytes(|| scene.play_and_discard(exchange, &clients));
    let after = scene.held();
    let changed: Vec<_> = after
        .iter()
        .zip(before)
        .filter(|(after, before)| **after != *before)
        .collect();
    match changed.is_empty() && grown <= GROWTH_MAX_BYTES_PER_CLIENT * CLIENTS as i64 {
        true => Ok(()),
        false => Err(format!(
            "{CLIENTS} clients leave {grown} bytes; what differs, now and before: {changed:?}"
        )),
    }
}

/// Checks all exchanges, with a topic's home (the part of a shard that keeps it) at the publisher's shard and at the other shard.
pub fn all_leave_nothing<'a>(
    change_settings: fn(&mut Settings),
    opening: &[u8],
    exchanges: impl IntoIterator<Item = &'a Exchange>,
) {
    let mut failed = Vec::new();
    for exchange in exchanges {
        for shards in [1, 2] {
            if let Err(changed) = leaves_nothing(shards, change_settings, opening, exchange) {
                failed.push(format!("{}, {shards} shards: {changed}", exchange.name));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
