//! Counts of the steady state: tables, logs and buffers have the size that the work needs.

use crore_broker::ShardId;

use crate::counting::allocations;
use crate::town::{MESSAGE_BYTES, Town, Transport, keeping, post, subscribe};

/// A message to each of the topics as one request.
fn batch(topics: std::ops::Range<usize>) -> Vec<u8> {
    let data = "x".repeat(MESSAGE_BYTES);
    let line = |n| format!("{{\"topic\":\"{}\",\"data\":\"{data}\"}}\n", own_topic(n));
    let lines: String = topics.map(line).collect();
    let head = "POST /pub HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\n";
    format!("{head}Content-Length: {}\r\n\r\n{lines}", lines.len()).into_bytes()
}

fn own_topic(n: usize) -> String {
    format!("own/{n}")
}

const TOPICS: usize = 10_000;
/// Messages that wait in one turn.
const TOGETHER: usize = 1_000;
/// What is published again and again until nothing grows any more: more turns than a shard keeps
/// frames under way.
const WARM_UP: usize = 70;

const TRANSPORTS: [Transport; 2] = [Transport::WebSocket, Transport::Events];

/// Every world in which a delivery must cost nothing: one shard or mail between two, a log of so many
/// messages or none.
fn worlds() -> impl Iterator<Item = (ShardId, u32, Transport)> {
    [(1, 0), (1, 2), (2, 2)]
        .into_iter()
        .flat_map(|(shards, keep)| TRANSPORTS.map(|by| (shards, keep, by)))
}

/// What one message to so many subscribers of its topic costs, at most.
fn fan_out(shards: ShardId, keep: u32, by: Transport, members: usize) -> u64 {
    let mut town = Town::new(shards, keeping(keep));
    for n in 0..members {
        town.open(n % shards as usize, &subscribe(by, "news"));
    }
    let publisher = town.open(0, "");
    let request = post("news");
    let message = |town: &mut Town| {
        let before = town.writes();
        let count = allocations(|| {
            town.receive(0, publisher, &request);
            town.settle();
        });
        assert_eq!(
            town.writes() - before,
            members as u64 + 1,
            "to each, and to the publisher"
        );
        count
    };
    for _ in 0..WARM_UP {
        message(&mut town);
    }
    (0..10)
        .map(|_| message(&mut town))
        .max()
        .expect("ten messages")
}

/// What a message to each of the topics costs, at most, with one subscriber for each or without.
fn unicast(shards: ShardId, keep: u32, by: Transport, one: bool, subscribed: bool) -> u64 {
    let mut town = Town::new(shards, keeping(keep));
    if subscribed {
        for n in 0..TOPICS {
            town.open(n % shards as usize, &subscribe(by, &own_topic(n)));
        }
    }
    let publisher = town.open(0, "");
    let requests: Vec<Vec<u8>> = if one {
        (0..TOPICS).map(|n| post(&own_topic(n))).collect()
    } else {
        (0..TOPICS)
            .step_by(TOGETHER)
            .map(|n| batch(n..n + TOGETHER))
            .collect()
    };
    let round = |town: &mut Town| {
        let before = town.writes();
        let count = allocations(|| {
            for request in &requests {
                town.receive(0, publisher, request);
                town.settle();
            }
        });
        let deliveries = if subscribed { TOPICS } else { 0 };
        assert_eq!(town.writes() - before, (deliveries + requests.len()) as u64);
        count
    };
    for _ in 0..4 {
        round(&mut town);
    }
    round(&mut town)
}

/// A published message may cost this much (its request is read, its outcome answered, the mail of the
/// turn made), whoever receives it. Measured: 5 to 11.
const PER_MESSAGE_MAX: u64 = 24;
/// How many visits of a walk over subscribers fit into a turn, at least: an event is encoded again
/// when the walk goes on in the next.
const VISITS_PER_TURN_MIN: usize = 2_000;
/// An event is encoded once, however many get it; its position is written first.
const PER_ENCODING_MAX: u64 = 1;

#[test]
fn ten_thousand_subscribers_of_a_topic_cost_no_more_than_one() {
    for (shards, keep, by) in worlds() {
        let one = fan_out(shards, keep, by, shards as usize);
        assert!(
            one <= PER_MESSAGE_MAX,
            "{shards} shards, {keep} kept, {by:?}: {one} a message"
        );
        for members in [1_000, 10_000] {
            let again = members / shards as usize / VISITS_PER_TURN_MIN;
            let encodings = match by {
                Transport::WebSocket => 0,
                _ => (again * shards as usize) as u64 * PER_ENCODING_MAX,
            };
            let many = fan_out(shards, keep, by, members);
            assert!(
                many <= one + encodings,
                "{shards} shards, {keep} kept, {by:?}, {members} subscribers: {many} a message, not {one}"
            );
        }
    }
}

/// A turn may make this many lists, however much it delivers: what all tells of the turn stand in,
/// grown by doubling to [`TOGETHER`], and the mail between two shards. Measured: 1, and 17.
const PER_TURN_MAX: u64 = 32;

#[test]
fn a_delivery_to_a_topic_of_its_own_costs_nothing_beyond_its_turn() {
    for (shards, keep, by) in worlds() {
        let cost = |one, subscribed| unicast(shards, keep, by, one, subscribed);
        // A turn for each message: what is paid a turn is paid a message.
        let (nobody, everybody) = (cost(true, false), cost(true, true));
        assert!(
            everybody <= TOPICS as u64 * PER_MESSAGE_MAX,
            "{shards} shards, {keep} kept, {by:?}: {everybody} for {TOPICS} messages"
        );
        let lists = everybody.saturating_sub(nobody);
        let allowed = match by {
            Transport::WebSocket => 1,
            _ => 1 + PER_ENCODING_MAX,
        };
        // Mail between shards that is cut differently may need a list more here or there.
        assert!(
            lists <= TOPICS as u64 * (allowed * 100 + 1) / 100,
            "{shards} shards, {keep} kept, {by:?}: {lists} for {TOPICS} deliveries, one a turn"
        );
        // Many in a turn: nothing is paid a message.
        let (nobody, everybody) = (cost(false, false), cost(false, true));
        let lists = everybody.saturating_sub(nobody);
        let encodings = match by {
            Transport::WebSocket => 0,
            _ => TOPICS as u64 * PER_ENCODING_MAX,
        };
        let turns = (TOPICS / TOGETHER) as u64;
        assert!(
            lists <= turns * PER_TURN_MAX + encodings,
            "{shards} shards, {keep} kept, {by:?}: {lists} for {TOPICS} deliveries in {turns} turns"
        );
    }
}
