//! Counts in the steady state, when tables, logs and buffers have reached their size.

use crore_broker::{ConnId, Pace, ShardId};

use crate::counting::allocations;
use crate::town::{MESSAGE_BYTES, TURNS_UNDER_WAY, Town, Transport, keeping, post, subscribe};

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

const TOPICS: usize = 1_000;
/// Messages that wait in one turn.
const TOGETHER: usize = 250;
/// Rounds of publishing until nothing grows any more: more turns than a shard keeps frames under way.
const WARM_UP: usize = TURNS_UNDER_WAY + 4;

/// One shard or mail between two, a log of so many messages or none.
const WORLDS: [(ShardId, u32); 3] = [(1, 0), (1, 2), (2, 2)];

/// Every world in which a delivery must cost nothing.
fn worlds() -> impl Iterator<Item = (ShardId, u32, Transport)> {
    WORLDS
        .into_iter()
        .flat_map(|(shards, keep)| Transport::ALL.map(|by| (shards, keep, by)))
}

/// Subscribers, with the request of each.
struct Crowd {
    members: Vec<(usize, ConnId)>,
    requests: Vec<String>,
    by: Transport,
}

impl Crowd {
    /// One for each of these topics, on one shard after the other.
    fn new(town: &mut Town, by: Transport, topics: impl Iterator<Item = String>) -> Crowd {
        let requests: Vec<String> = topics.map(|topic| subscribe(by, &topic)).collect();
        let open = |(n, request): (usize, &String)| {
            let at = n % town.shards();
            (at, town.open(at, request))
        };
        Crowd {
            members: requests.iter().enumerate().map(open).collect(),
            requests,
            by,
        }
    }

    /// A long-poll is over with its message; its client asks again on the same connection.
    fn ask_again(&self, town: &mut Town) {
        if self.by != Transport::LongPoll {
            return;
        }
        for ((at, conn), request) in self.members.iter().zip(&self.requests) {
            town.receive(*at, *conn, request.as_bytes());
        }
        town.settle();
    }
}

/// The most allocations for one message to so many subscribers of its topic.
fn fan_out(shards: ShardId, keep: u32, by: Transport, members: usize) -> u64 {
    let mut town = Town::new(shards, keeping(keep));
    let crowd = Crowd::new(&mut town, by, (0..members).map(|_| "news".to_owned()));
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
        crowd.ask_again(town);
        count
    };
    for _ in 0..WARM_UP {
        message(&mut town);
    }
    (0..3)
        .map(|_| message(&mut town))
        .max()
        .expect("three messages")
}

/// The allocations for a message to each of the topics, with one subscriber for each or without.
fn unicast(shards: ShardId, keep: u32, by: Option<Transport>, one: bool) -> u64 {
    let mut town = Town::new(shards, keeping(keep));
    let topics = by.map_or(0..0, |_| 0..TOPICS);
    let by = by.unwrap_or(Transport::WebSocket);
    let crowd = Crowd::new(&mut town, by, topics.map(own_topic));
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
        let writes = crowd.members.len() + requests.len();
        assert_eq!(town.writes() - before, writes as u64);
        crowd.ask_again(town);
        count
    };
    // A log is full after two rounds, and replaces messages in the third.
    for _ in 0..3 {
        round(&mut town);
    }
    round(&mut town)
}

/// A published message may cost this much (its request is read, its outcome answered, the mail of the
/// turn made), whoever receives it. Measured: 5 to 10.
const PER_MESSAGE_MAX: u64 = 16;

/// Allocations that deliveries add beyond those: none, unless they end long-polls. The connections that may go on are a list of each
/// turn, and their leaving is mail to the home; both grow by doubling.
fn lists_of_turns(by: Transport, deliveries: usize) -> u64 {
    let turns = deliveries as u64 / u64::from(Pace::default().visits_per_turn);
    match by {
        Transport::LongPoll => 4 * (turns + u64::from(deliveries.ilog2())),
        _ => 0,
    }
}

/// A fan-out that takes several turns is a flow of its own in each shard: its tells, their keys, its place among the flows, and the walk with the
/// messages that go round. These are for the fan-out, not for a receiver.
const FLOW_MAX: u64 = 12;

#[test]
fn ten_thousand_subscribers_of_a_topic_cost_no_more_than_one() {
    for (shards, keep, by) in worlds() {
        let one = fan_out(shards, keep, by, shards as usize);
        assert!(
            one <= PER_MESSAGE_MAX,
            "{shards} shards, {keep} kept, {by:?}: {one} a message"
        );
        let members = 10_000;
        let many = fan_out(shards, keep, by, members);
        assert!(
            many <= one + lists_of_turns(by, members) + FLOW_MAX * u64::from(shards),
            "{shards} shards, {keep} kept, {by:?}, {members} subscribers: {many} a message, not {one}"
        );
    }
}

/// A turn may make this many lists, however much it delivers: the list of its tells, grown by doubling to [`TOGETHER`],
/// and the mail between two shards. Measured: 1, and 15.
const PER_TURN_MAX: u64 = 24;

#[test]
fn a_delivery_to_a_topic_of_its_own_costs_nothing_beyond_its_turn() {
    for (shards, keep) in WORLDS {
        let nobody = [true, false].map(|one| unicast(shards, keep, None, one));
        for by in Transport::ALL {
            let world = format!("{shards} shards, {keep} kept, {by:?}");
            // A turn for each message: the cost of a turn is paid for each message.
            let everybody = unicast(shards, keep, Some(by), true);
            assert!(
                everybody <= TOPICS as u64 * PER_MESSAGE_MAX,
                "{world}: {everybody} for {TOPICS} messages"
            );
            let lists = everybody.saturating_sub(nobody[0]);
            // The list of the turn's tells; a long-poll that ends adds mail to the home, or the list of those that go
            // on.
            let allowed = if by == Transport::LongPoll { 3 } else { 1 };
            // Mail between shards that is cut differently may need some lists more.
            assert!(
                lists <= TOPICS as u64 * (allowed * 100 + 2) / 100,
                "{world}: {lists} for {TOPICS} deliveries, one a turn"
            );
            // Many messages in a turn: none has a cost of its own.
            let lists = unicast(shards, keep, Some(by), false).saturating_sub(nobody[1]);
            let turns = (TOPICS / TOGETHER) as u64;
            assert!(
                lists <= turns * (PER_TURN_MAX + lists_of_turns(by, TOGETHER)),
                "{world}: {lists} for {TOPICS} deliveries in {turns} turns"
            );
        }
    }
}

/// The bytes of a message to a crowd show that its members get what they asked for.
#[test]
fn every_transport_is_the_one_that_is_meant() {
    const MEMBERS: usize = 100;
    let bytes = Transport::ALL.map(|by| {
        let mut town = Town::new(1, keeping(0));
        Crowd::new(&mut town, by, (0..MEMBERS).map(|_| "news".to_owned()));
        let publisher = town.open(0, "");
        let before = town.bytes();
        town.receive(0, publisher, &post("news"));
        town.settle();
        (town.bytes() - before) as usize / MEMBERS
    });
    let [plain, events, polls, deflated, meta, envelope] = bytes;
    // Each has more around the message than the one before it, and the compressed one is far shorter.
    assert!(deflated < MESSAGE_BYTES / 4, "{bytes:?}");
    assert!(MESSAGE_BYTES < plain && plain < meta, "{bytes:?}");
    assert!(
        meta < events && events < envelope && envelope < polls,
        "{bytes:?}"
    );
}
