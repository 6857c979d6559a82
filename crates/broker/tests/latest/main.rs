//! Tests topics that keep only the newest message of each key. A random run is compared with a list of all published messages. It has
//! several shards in one thread, sockets that stall, mail (messages between shards) in flight, subscribers that resume, and messages that
//! expire.

#[path = "../support/mod.rs"]
mod support;
mod test_server;

use std::collections::BTreeMap;

use proptest::prelude::*;

use test_server::{TestServer, Want};

const KEYS: u8 = 5;

#[derive(Clone, Debug)]
enum Op {
    /// Publishes to one of the topics, with a key and a time to live.
    Publish(usize, u8, Option<u32>),
    /// A turn (one run of the event loop) of a shard.
    Turn(usize),
    /// Runs turns until nothing is left to do.
    Settle,
    /// A subscriber connects, from its last position if it has one.
    Come(usize),
    /// A subscriber's connection fails.
    Cut(usize),
    /// A subscriber's socket accepts this number of bytes, and then none.
    Stall(usize, usize),
    /// A subscriber's socket accepts all bytes again.
    Drain(usize),
    Clock(u32),
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let ttl_s = prop_oneof![4 => Just(None), 1 => (0u32..6).prop_map(Some)];
    let op = prop_oneof![
        12 => (0usize..2, 0..KEYS, ttl_s).prop_map(|(topic, key, ttl_s)| Op::Publish(topic, key, ttl_s)),
        6 => (0usize..2).prop_map(Op::Turn),
        3 => Just(Op::Settle),
        4 => (0usize..6).prop_map(Op::Come),
        1 => (0usize..6).prop_map(Op::Cut),
        4 => (0usize..6, prop_oneof![Just(0usize), 0usize..200]).prop_map(|(n, bytes)| Op::Stall(n, bytes)),
        4 => (0usize..6).prop_map(Op::Drain),
        1 => (1u32..4).prop_map(Op::Clock),
    ];
    prop::collection::vec(op, 1..120)
}

/// A published message.
#[derive(Clone, Copy, Debug)]
struct Message {
    topic: usize,
    key: u8,
    end_s: u64,
}

/// A subscriber and its state.
#[derive(Clone, Debug, Default)]
struct Reader {
    conn: Option<usize>,
    /// The last position that it received.
    id: Option<String>,
    /// The last message of each topic.
    last: [Option<usize>; 2],
    stalled: bool,
}

struct World {
    server: TestServer,
    messages: Vec<Message>,
    readers: Vec<Reader>,
}

/// The topics of a reader.
fn wanted(n: usize) -> Want {
    [Want::First, Want::Second, Want::Both][n % 3]
}

impl World {
    /// The newest message of each key of a topic, of those after `after` that have not expired.
    fn newest(&self, topic: usize, after: Option<usize>) -> Vec<usize> {
        let now_s = u64::from(self.server.now_s());
        let mut newest = BTreeMap::new();
        for (number, message) in self.messages.iter().enumerate() {
            if message.topic == topic {
                newest.insert(message.key, number);
            }
        }
        let live = |n: &usize| self.messages[*n].end_s > now_s && after.is_none_or(|a| *n > a);
        let mut numbers: Vec<_> = newest.into_values().filter(live).collect();
        numbers.sort_unstable();
        numbers
    }

    /// Reads a subscriber's messages, and checks that they are in order, unique, with the right key, and without a gap (a notice of missed
    /// messages).
    fn read(&mut self, n: usize) -> Result<[Vec<usize>; 2], TestCaseError> {
        let mut read = [Vec::new(), Vec::new()];
        let reader = &mut self.readers[n];
        let Some(conn) = reader.conn else {
            return Ok(read);
        };
        for frame in self.server.frames(conn) {
            prop_assert!(!frame.lines.contains_key("gap"), "{frame:?}");
            let number: usize = frame.data.parse().expect("a number");
            let message = self.messages[number];
            let key = frame.lines.get("key").map_or("", String::as_str);
            prop_assert_eq!(key, "k".repeat(message.key.into()));
            // Only a subscription to several topics names the topic.
            let several = matches!(wanted(n), Want::Both);
            let named = several.then_some(test_server::TOPICS[message.topic]);
            prop_assert_eq!(frame.lines.get("topic").map(String::as_str), named);
            let last = &mut reader.last[message.topic];
            prop_assert!(
                last.is_none_or(|last| last < number),
                "{number} after {last:?}"
            );
            *last = Some(number);
            reader.id = Some(frame.lines["id"].clone());
            read[message.topic].push(number);
        }
        Ok(read)
    }

    fn come(&mut self, n: usize) {
        let reader = &mut self.readers[n];
        if reader.conn.is_some() {
            return;
        }
        if reader.id.is_none() {
            reader.last = [None; 2];
        }
        reader.conn = Some(
            self.server
                .subscribe(n % 2, wanted(n), reader.id.as_deref()),
        );
        reader.stalled = false;
    }

    fn cut(&mut self, n: usize) {
        self.readers[n].stalled = false;
        if let Some(conn) = self.readers[n].conn.take() {
            self.server.cut(conn);
        }
    }

    /// The stalled socket accepts bytes again while nothing is in flight. The client must then receive the rest of a torn frame (one that was partly
    /// written), and after it exactly the newest unseen messages.
    fn drain(&mut self, n: usize) -> Result<(), TestCaseError> {
        self.server.settle();
        if !self.readers[n].stalled {
            return Ok(());
        }
        self.readers[n].stalled = false;
        self.read(n)?;
        let conn = self.readers[n].conn.expect("who stalls is there");
        let torn = self.server.has_partial_frame(conn);
        self.server.set_window(conn, usize::MAX);
        self.server.settle();
        let before = self.readers[n].last;
        let read = self.read(n)?;
        let firsts = read.iter().filter(|read| !read.is_empty()).count();
        // The topic of the torn frame is known only when its rest arrives, so the test tries both topics.
        let mut fits = false;
        for of_torn in 0..2 {
            let mut all = true;
            for topic in 0..2 {
                if ![Want::First, Want::Second, Want::Both][n % 3].has(topic) {
                    continue;
                }
                let mut unread = &read[topic][..];
                let mut newest_seen = before[topic];
                if torn && topic == of_torn && !unread.is_empty() {
                    newest_seen = Some(unread[0]);
                    unread = &unread[1..];
                }
                all &= unread == self.newest(topic, newest_seen);
            }
            fits |= all;
        }
        prop_assert!(
            fits,
            "reader {n}, torn {torn}, {firsts} topics: {read:?} after {before:?}"
        );
        Ok(())
    }

    fn run(&mut self, op: &Op) -> Result<(), TestCaseError> {
        match *op {
            Op::Publish(topic, key, ttl_s) => {
                let number = self.messages.len();
                let end_s = ttl_s.map_or(u64::MAX, |ttl_s| {
                    u64::from(self.server.now_s()) + u64::from(ttl_s)
                });
                self.server
                    .publish(topic, &"k".repeat(key.into()), ttl_s, number);
                self.messages.push(Message { topic, key, end_s });
            }
            Op::Turn(shard) => self.server.run_turn(shard),
            Op::Settle => self.server.settle(),
            Op::Come(n) => self.come(n),
            Op::Cut(n) => {
                self.read(n)?;
                self.cut(n);
            }
            Op::Stall(n, bytes) => {
                // A socket stalls only after its first page (its first past messages), because the server always sends that page completely.
                self.server.settle();
                if let Some(conn) = self.readers[n].conn {
                    self.server.set_window(conn, bytes);
                    self.readers[n].stalled = true;
                }
            }
            Op::Drain(n) => self.drain(n)?,
            Op::Clock(seconds) => {
                // Messages in flight are published first, at the time at which they were sent.
                self.server.settle();
                self.server.advance_and_tick_s(seconds);
            }
        }
        Ok(())
    }

    /// At the end each subscriber must have the newest message of each key, and all memory is released.
    fn end(&mut self) -> Result<(), TestCaseError> {
        for n in 0..self.readers.len() {
            self.drain(n)?;
            self.come(n);
        }
        self.server.settle();
        for n in 0..self.readers.len() {
            self.read(n)?;
            for topic in 0..2 {
                if [Want::First, Want::Second, Want::Both][n % 3].has(topic) {
                    let left = self.newest(topic, self.readers[n].last[topic]);
                    prop_assert!(left.is_empty(), "reader {n} lacks {left:?}");
                }
            }
            self.cut(n);
        }
        self.server.end_and_check_memory();
        Ok(())
    }
}

/// A stream of two topics begins when both homes (the parts of shards that keep topics) have answered. Meanwhile messages of the first
/// topic may be superseded.
#[test]
fn superseded_message_is_not_sent_to_a_stream_that_begins_later() {
    let mut server = TestServer::new(2, 128);
    let home = |topic: usize| crore_wire::topic::slot(test_server::TOPICS[topic].as_bytes()) % 2;
    let near = (0..2).find(|topic| home(*topic) == 0).expect("one is near");
    assert_eq!(home(1 - near), 1, "and one is far");
    let conn = server.subscribe(0, Want::Both, None);
    server.run_turn(0);
    for number in 0..5 {
        server.publish(near, "k", None, number);
        server.run_turn(0);
    }
    assert!(
        server.frames(conn).is_empty(),
        "the far home has not answered"
    );
    server.settle();
    let data: Vec<_> = server
        .frames(conn)
        .into_iter()
        .map(|frame| frame.data)
        .collect();
    assert_eq!(data, ["4"]);
}

proptest! {
    #[test]
    fn each_subscriber_gets_the_newest_messages_once_and_in_order(
        ops in ops(),
        shards in 1u16..3,
        page_messages in prop_oneof![Just(1usize), Just(2), Just(128)],
    ) {
        let readers = vec![Reader::default(); 6];
        let server = TestServer::new(shards, page_messages);
        let mut world = World { server, messages: Vec::new(), readers };
        for op in &ops {
            world.run(op)?;
        }
        world.end()?;
    }
}
