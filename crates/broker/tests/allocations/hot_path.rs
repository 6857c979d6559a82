//! Tests the allocations of publishes and deliveries in the steady state, when tables, logs and buffers have reached their size.

use crore_broker::{ConnId, ShardId, TurnLimits};

use crate::counting::allocations;
use crate::test_server::{
    MESSAGE_BYTES, TURNS_UNDER_WAY, TestServer, Transport, keeping, post, subscribe,
};

/// One request that publishes a message to each of the topics.
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
/// Number of messages that are published in one turn (one run of a shard's event loop).
const TOGETHER: usize = 250;
/// Number of publishing rounds until all tables have their final size: more turns than a shard keeps frames in flight.
const WARM_UP: usize = TURNS_UNDER_WAY + 4;

/// Numbers of shards, and numbers of messages that a topic keeps.
const WORLDS: [(ShardId, u32); 3] = [(1, 0), (1, 2), (2, 2)];

/// All combinations in which a delivery must not allocate.
fn worlds() -> impl Iterator<Item = (ShardId, u32, Transport)> {
    WORLDS
        .into_iter()
        .flat_map(|(shards, keep)| Transport::ALL.map(|transport| (shards, keep, transport)))
}

/// Subscribers, with the requests that they have sent.
struct Crowd {
    members: Vec<(usize, ConnId)>,
    requests: Vec<String>,
    by: Transport,
}

impl Crowd {
    /// A subscriber for each of these topics, distributed over the shards.
    fn new(
        server: &mut TestServer,
        transport: Transport,
        topics: impl Iterator<Item = String>,
    ) -> Crowd {
        let requests: Vec<String> = topics.map(|topic| subscribe(transport, &topic)).collect();
        let open = |(n, request): (usize, &String)| {
            let shard = n % server.shards();
            (shard, server.open(shard, request))
        };
        Crowd {
            members: requests.iter().enumerate().map(open).collect(),
            requests,
            by: transport,
        }
    }

    /// The clients of answered long-polls send their request again on the same connection.
    fn ask_again(&self, server: &mut TestServer) {
        if self.by != Transport::LongPoll {
            return;
        }
        for ((shard, conn), request) in self.members.iter().zip(&self.requests) {
            server.receive(*shard, *conn, request.as_bytes());
        }
        server.settle();
    }
}

/// The maximum of allocations for one message to this number of subscribers of one topic.
fn fan_out(shards: ShardId, keep: u32, transport: Transport, members: usize) -> u64 {
    let mut server = TestServer::new(shards, keeping(keep));
    let crowd = Crowd::new(
        &mut server,
        transport,
        (0..members).map(|_| "news".to_owned()),
    );
    let publisher = server.open(0, "");
    let request = post("news");
    let message = |server: &mut TestServer| {
        let before = server.writes();
        let count = allocations(|| {
            server.receive(0, publisher, &request);
            server.settle();
        });
        assert_eq!(
            server.writes() - before,
            members as u64 + 1,
            "to each, and to the publisher"
        );
        crowd.ask_again(server);
        count
    };
    for _ in 0..WARM_UP {
        message(&mut server);
    }
    (0..3)
        .map(|_| message(&mut server))
        .max()
        .expect("three messages")
}

/// The allocations for one message to each of the topics, with a subscriber for each topic or with none.
fn unicast(shards: ShardId, keep: u32, transport: Option<Transport>, one: bool) -> u64 {
    let mut server = TestServer::new(shards, keeping(keep));
    let topics = transport.map_or(0..0, |_| 0..TOPICS);
    let transport = transport.unwrap_or(Transport::WebSocket);
    let crowd = Crowd::new(&mut server, transport, topics.map(own_topic));
    let publisher = server.open(0, "");
    let requests: Vec<Vec<u8>> = if one {
        (0..TOPICS).map(|n| post(&own_topic(n))).collect()
    } else {
        (0..TOPICS)
            .step_by(TOGETHER)
            .map(|n| batch(n..n + TOGETHER))
            .collect()
    };
    let round = |server: &mut TestServer| {
        let before = server.writes();
        let count = allocations(|| {
            for request in &requests {
                server.receive(0, publisher, request);
                server.settle();
            }
        });
        let writes = crowd.members.len() + requests.len();
        assert_eq!(server.writes() - before, writes as u64);
        crowd.ask_again(server);
        count
    };
    // After two rounds a log is full, so the third round replaces messages.
    for _ in 0..3 {
        round(&mut server);
    }
    round(&mut server)
}

/// Allowed allocations for a publish (read the request, answer it, and make the turn's mail between shards), whoever receives it.
/// Measured: 5 to 10.
const PER_MESSAGE_MAX: u64 = 16;

/// Further allocations for deliveries. There are none, unless deliveries end long-polls. Then the turn has a list of connections that may
/// continue, and mail to the home (the part of a shard that keeps topics) that the subscribers leave. Both grow by doubling.
fn lists_of_turns(transport: Transport, deliveries: usize) -> u64 {
    let turns = deliveries as u64 / u64::from(TurnLimits::default().visits_per_turn);
    match transport {
        Transport::LongPoll => 4 * (turns + u64::from(deliveries.ilog2())),
        _ => 0,
    }
}

/// Allowed allocations for a fan-out of several turns, which each shard keeps as a flow: its tells (deliveries to subscribers), their
/// keys, its entry in the queue of flows, and the walk over the members with its messages. They do not depend on the number of receivers.
const FLOW_MAX: u64 = 12;

#[test]
#[ignore = "takes a minute without optimisation; `cargo xtask test` runs it optimised"]
fn allocations_of_a_fan_out_do_not_depend_on_the_number_of_subscribers() {
    for (shards, keep, transport) in worlds() {
        let one = fan_out(shards, keep, transport, shards as usize);
        assert!(
            one <= PER_MESSAGE_MAX,
            "{shards} shards, {keep} kept, {transport:?}: {one} a message"
        );
        let members = 10_000;
        let many = fan_out(shards, keep, transport, members);
        assert!(
            many <= one + lists_of_turns(transport, members) + FLOW_MAX * u64::from(shards),
            "{shards} shards, {keep} kept, {transport:?}, {members} subscribers: {many} a message, not {one}"
        );
    }
}

/// Allowed allocations for a turn, whatever it delivers: the list of its tells, which grows by doubling to [`TOGETHER`] entries, and the
/// mail between two shards. Measured: 1, and 15.
const PER_TURN_MAX: u64 = 24;

#[test]
#[ignore = "takes a minute without optimisation; `cargo xtask test` runs it optimised"]
fn delivery_to_a_single_subscriber_allocates_nothing_beyond_its_turn() {
    for (shards, keep) in WORLDS {
        let nobody = [true, false].map(|one| unicast(shards, keep, None, one));
        for transport in Transport::ALL {
            let world = format!("{shards} shards, {keep} kept, {transport:?}");
            // With one message in a turn, the message bears the cost of the turn.
            let everybody = unicast(shards, keep, Some(transport), true);
            assert!(
                everybody <= TOPICS as u64 * PER_MESSAGE_MAX,
                "{world}: {everybody} for {TOPICS} messages"
            );
            let lists = everybody.saturating_sub(nobody[0]);
            // The list of the turn's tells. A long-poll that ends also adds mail to the home, or an entry in the list of connections that
            // continue.
            let allowed = if transport == Transport::LongPoll {
                3
            } else {
                1
            };
            // If mail between shards is split differently, it may need some more lists.
            assert!(
                lists <= TOPICS as u64 * (allowed * 100 + 2) / 100,
                "{world}: {lists} for {TOPICS} deliveries, one a turn"
            );
            // With many messages in a turn, each further message costs nothing.
            let lists = unicast(shards, keep, Some(transport), false).saturating_sub(nobody[1]);
            let turns = (TOPICS / TOGETHER) as u64;
            assert!(
                lists <= turns * (PER_TURN_MAX + lists_of_turns(transport, TOGETHER)),
                "{world}: {lists} for {TOPICS} deliveries in {turns} turns"
            );
        }
    }
}

/// The sizes of a message in each encoding show that each subscriber has the transport that is meant.
#[test]
fn each_subscriber_of_the_allocation_tests_has_its_transport() {
    const MEMBERS: usize = 100;
    let bytes = Transport::ALL.map(|transport| {
        let mut server = TestServer::new(1, keeping(0));
        Crowd::new(
            &mut server,
            transport,
            (0..MEMBERS).map(|_| "news".to_owned()),
        );
        let publisher = server.open(0, "");
        let before = server.bytes();
        server.receive(0, publisher, &post("news"));
        server.settle();
        (server.bytes() - before) as usize / MEMBERS
    });
    let [plain, events, polls, deflated, meta, envelope] = bytes;
    // Each encoding adds more bytes than the one before it, except the compressed one, which is far shorter.
    assert!(deflated < MESSAGE_BYTES / 4, "{bytes:?}");
    assert!(MESSAGE_BYTES < plain && plain < meta, "{bytes:?}");
    assert!(
        meta < events && events < envelope && envelope < polls,
        "{bytes:?}"
    );
}
