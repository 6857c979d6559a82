//! Tests a wall clock that jumps ahead and back. Durations stay the same, and only dates change.

use crore_broker::settings::{Rule, Settings};
use crore_broker::{Input, Now, TurnLimits};
use crore_wire::mqtt::{
    Connect, PacketId, Properties, PropertyWriter, Publish, Qos, SubscribeOptions, Version, Will,
    encode,
};
use support::{NOW, TestServer};

mod support;

const DAY_S: i32 = 86_400;
/// Offsets of the wall clock in seconds, one after another. Each test case has its own list.
const STEPS: [&[i32]; 6] = [
    &[0],
    &[DAY_S],
    &[-DAY_S],
    &[DAY_S, 0, DAY_S, -DAY_S],
    &[-3, 5, -1],
    // A machine that gets the right date only after the server has started.
    &[1_700_000_000],
];

/// A shard whose wall clock jumps before each event, by these offsets in a cycle.
struct Stepped {
    server: TestServer,
    steps: std::iter::Cycle<std::slice::Iter<'static, i32>>,
    ahead_s: i32,
}

impl Stepped {
    fn new(settings: Settings, steps: &'static [i32]) -> Stepped {
        let world = support::world(settings, 1, 1);
        Stepped {
            server: TestServer::new(&world, TurnLimits::default(), NOW),
            steps: steps.iter().cycle(),
            ahead_s: 0,
        }
    }

    fn step(&mut self) {
        self.ahead_s = *self.steps.next().expect("a cycle");
        self.server.shards[0].set_wall_clock_offset(self.ahead_s);
    }

    /// Time passes.
    fn advance_s(&mut self, seconds: u32) {
        for _ in 0..seconds {
            self.step();
            let Now { s, unix_s } = self.server.now;
            (self.server.now.s, self.server.now.unix_s) = (s + 1, unix_s + 1);
            self.server.handle(0, Input::Tick);
            self.server.settle();
        }
    }

    /// The answer to a request without its dates, and its `Last-Modified`.
    fn ask(&mut self, line: &str, fields: &str, body: &str) -> (String, Option<String>) {
        self.step();
        let conn = self.server.open(0);
        let length = body.len();
        self.server.send(
            conn,
            format!(
                "{line} HTTP/1.1\r\nHost: localhost\r\n{fields}Content-Length: {length}\r\n\r\n{body}"
            ),
        );
        self.server.settle();
        let answer = String::from_utf8(self.server.received(conn).to_vec()).expect("text");
        let field = |name| {
            let found = answer.lines().find_map(|line| line.strip_prefix(name));
            found.map(|date: &str| date.trim().to_string())
        };
        let second = |date: &String| crore_wire::http::date::parse_date(date.as_bytes());
        let (date, modified) = (field("Date:"), field("Last-Modified:"));
        let wall_s = (i64::from(self.server.now.unix_s) + i64::from(self.ahead_s)) as u64;
        if let Some(date) = date.as_ref().and_then(second) {
            assert_eq!(date, wall_s);
            let modified = modified.as_ref().and_then(second);
            assert!(modified.is_none_or(|modified| modified <= date), "{answer}");
        }
        if self.server.is_open(conn) {
            self.server.cut(conn);
            self.server.settle();
        }
        let dated = |line: &&str| line.starts_with("Date:") || line.starts_with("Last-Modified:");
        let rest: Vec<_> = answer.lines().filter(|line| !dated(line)).collect();
        (rest.join("\n"), modified)
    }

    fn publish(&mut self, topic: &str, fields: &str, body: &str) -> String {
        self.ask(&format!("POST /pub/{topic}"), fields, body).0
    }

    fn oldest(&mut self, topic: &str) -> String {
        self.ask(&format!("GET /sub/{topic}?since=oldest"), "", "")
            .0
    }

    fn info(&mut self, topic: &str) -> String {
        self.ask(&format!("GET /pub/{topic}"), "", "").0
    }

    /// Connects an MQTT client that sends these packets, and cuts the connection. Returns the bytes that the client received.
    fn mqtt(&mut self, packets: &[u8]) -> Vec<u8> {
        self.step();
        let conn = self.server.open(0);
        self.server.send(conn, packets);
        self.server.settle();
        let answers = self.server.received(conn).to_vec();
        self.server.cut(conn);
        self.server.settle();
        answers
    }

    /// Connects a client with a session expiry of ten seconds and a will with a delay of five. The third byte of the returned answer says
    /// whether the session was present.
    fn connect_for_a_visit(&mut self) -> Vec<u8> {
        self.mqtt(&connect("c", 10, true))
    }

    /// Publishes a retained message that expires after ten seconds.
    fn publish_retained(&mut self) {
        let mut packets = connect("r", 0, false);
        let mut set = PropertyWriter::new();
        set.message_expiry_interval_s(10);
        let publish = Publish {
            dup: false,
            qos: Qos::AtMostOnce,
            retain: true,
            topic: "kept",
            packet_id: None,
            properties: set.properties(),
            payload: b"retained",
        };
        encode::publish(&mut packets, Version::V5, &publish);
        self.mqtt(&packets);
    }

    /// Connects a client that subscribes to the retained message. Returns what it received.
    fn receive_retained(&mut self) -> Vec<u8> {
        let mut packets = connect("l", 0, false);
        let filters = [("kept", SubscribeOptions::of(Qos::AtMostOnce))];
        let id = PacketId::new(7).expect("not 0");
        let filters = filters.into_iter();
        encode::subscribe(&mut packets, Version::V5, id, &Properties::NONE, filters);
        self.mqtt(&packets)
    }
}

fn connect(client_id: &str, expiry_s: u32, dies: bool) -> Vec<u8> {
    let (mut set, mut of_will) = (PropertyWriter::new(), PropertyWriter::new());
    set.session_expiry_interval_s(expiry_s);
    of_will.will_delay_interval_s(5);
    let will = Will {
        qos: Qos::AtMostOnce,
        retain: false,
        properties: of_will.properties(),
        topic: "will",
        payload: b"gone",
    };
    let connect = Connect {
        version: Version::V5,
        bridge: false,
        clean_start: false,
        keep_alive_s: 0,
        properties: set.properties(),
        client_id,
        will: dies.then_some(will),
        user_name: None,
        password: None,
    };
    let mut packet = Vec::new();
    encode::connect(&mut packet, &connect);
    packet
}

fn settings() -> Settings {
    let mut settings = Settings::default();
    settings.publish.idempotency_window_s = 20;
    settings.limits.publishes_per_address_per_s = 1;
    settings.limits.publishes_per_address_burst = 11;
    let rule = |filter: &str| Rule {
        filter: filter.into(),
        poll_timeout_s: 0,
        ..Rule::default()
    };
    settings.rules = vec![
        Rule {
            ttl_s: 10,
            ..rule("ttl")
        },
        Rule {
            log_age_s: 10,
            position_age_s: 15,
            ..rule("old")
        },
        rule("#"),
    ];
    settings
}

/// Runs a scenario that checks each duration right before and right after its end. Returns what clients observe.
fn results(steps: &'static [i32]) -> Vec<String> {
    let mut it = Stepped::new(settings(), steps);
    let mut results = Vec::new();
    it.publish_retained();
    results.push(it.publish("own", "Crore-TTL: 10\r\n", "mortal"));
    for topic in ["ttl", "old", "own"] {
        results.push(it.publish(topic, "", "ordinary"));
        results.push(it.publish(topic, "Crore-TTL: 10\r\n", "mortal"));
        // These publishes exceed the rate for one topic, but not the burst, which all topics share and which refills each second.
        results.push(it.publish(topic, "Idempotency-Key: \"k\"\r\n", topic));
    }
    results.push(it.publish("own", "", "one too many"));
    results.push(format!("{:?}", it.connect_for_a_visit()));
    for _ in 0..3 {
        it.advance_s(4);
        results.push(it.info("will"));
        it.advance_s(5);
        results.push(String::from_utf8_lossy(&it.receive_retained()).into_owned());
        results.push(it.info("will"));
        for topic in ["ttl", "old", "own"] {
            results.push(it.oldest(topic));
            results.push(it.info(topic));
        }
        it.advance_s(2);
        results.push(String::from_utf8_lossy(&it.receive_retained()).into_owned());
        for topic in ["ttl", "old", "own"] {
            results.push(it.oldest(topic));
            results.push(it.info(topic));
            results.push(it.publish(topic, "Idempotency-Key: \"k\"\r\n", topic));
        }
        results.push(format!("{:?}", it.connect_for_a_visit()));
    }
    it.advance_s(20);
    results.push(format!("{:?}", it.connect_for_a_visit()));
    results
}

#[test]
fn only_dates_depend_on_the_wall_clock() {
    let plain = results(STEPS[0]);
    // The results contain each kind of answer, so the scenario sees each duration both before and after its end.
    for expected in ["ordinary", "mortal", "Idempotency-Replayed", " 429 "] {
        assert!(
            plain.iter().any(|results| results.contains(expected)),
            "{expected}"
        );
    }
    let retained = plain.iter().filter(|results| results.contains("retained"));
    assert_eq!(retained.count(), 1, "before its end alone");
    assert!(
        plain.contains(&String::new()),
        "a poll that finds nothing waits"
    );
    for steps in &STEPS[1..] {
        for (n, (plain, stepped)) in plain.iter().zip(results(steps)).enumerate() {
            assert_eq!(*plain, stepped, "{steps:?}, the {n}th");
        }
    }
}

#[test]
fn position_by_date_is_found_after_the_wall_clock_was_set() {
    for steps in [[0, DAY_S, 0], [0, 0, DAY_S], [0, -DAY_S, 0], [DAY_S, 1, 0]] {
        let mut it = Stepped::new(settings(), &[0]);
        let set = |it: &mut Stepped, n: usize| {
            it.steps = match steps[n] {
                DAY_S => [DAY_S].iter(),
                0 => [0].iter(),
                1 => [1].iter(),
                _ => [-DAY_S].iter(),
            }
            .cycle();
        };
        for n in 0..3 {
            set(&mut it, n);
            it.publish("a", "", &format!("message {n}"));
            let (answer, date) = it.ask("GET /sub/a?since=-1", "", "");
            assert!(answer.ends_with(&format!("message {n}")), "{answer}");
            let date = date.expect("a date");
            it.advance_s(3);
            if n == 2 {
                break;
            }
            // The clock steps, a message is published, and the client asks with its last date.
            set(&mut it, n + 1);
            it.publish("a", "", "between");
            let fields = format!("If-Modified-Since: {date}\r\n");
            let (answer, _) = it.ask("GET /sub/a", &fields, "");
            let is_set_back = steps[n + 1] <= steps[n];
            // If the clock has stepped ahead, the client's date is older than the messages: the client gets all messages since then, some
            // again, and misses none.
            let first = if is_set_back { "between" } else { "message" };
            assert!(answer.contains(first), "{steps:?} {n}: {answer}");
            it.advance_s(3);
        }
    }
}

#[test]
fn a_session_expires_while_the_machine_is_suspended_and_connections_wait() {
    let mut it = Stepped::new(settings(), &[0]);
    it.connect_for_a_visit();
    let waiting = it.server.open(0);
    it.server.settle();
    // The machine was suspended for an hour, so nobody could send anything.
    it.server.now.unix_s += 3600;
    it.advance_s(1);
    assert!(
        it.server.is_open(waiting),
        "a client had no time to send its request"
    );
    assert_eq!(it.connect_for_a_visit()[2] & 1, 0, "no session is present");
}
