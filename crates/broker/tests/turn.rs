//! What bounds a turn: past its share of publishing a shard asks to read no more until it has flushed, and what has grown
//! old goes in as many turns as it takes.

use std::sync::Arc;

use crore_broker::admission::Admission;
use crore_broker::pace::Pace;
use crore_broker::rules::Rules;
use crore_broker::settings::{Rule, Settings};
use crore_broker::{Close, ConnId, Input, Io, Link, Mail, Now, Shard, ShardId, World};
use proptest::prelude::*;

/// One socket that takes everything.
#[derive(Default)]
struct Socket(Option<ConnId>);

impl Io for Socket {
    fn open(&mut self, _: Link, conn: ConnId) {
        self.0 = Some(conn);
    }
    fn send(&mut self, _: Link, parts: &[&[u8]]) -> usize {
        parts.iter().map(|part| part.len()).sum()
    }
    fn interest(&mut self, _: Link, _: ConnId, _: bool, _: bool) {}
    fn close(&mut self, _: Link, _: Close) {}
    fn post(&mut self, _: ShardId, _: Mail) {}
}

const NOW: Now = Now {
    s: 1,
    unix_s: 1_800_000_000,
};

/// A shard that is also the only home, and one connection.
fn connected(settings: Settings, pace: Pace) -> (Shard, Socket, ConnId) {
    let world = World {
        rules: Rules::new(&settings.rules),
        admission: Admission::new(&settings, 9),
        settings,
        shards: 1,
        homes: 1,
        epoch: 7,
        seed: 42,
    };
    let mut shard = Shard::new(0, Arc::new(world), NOW);
    shard.set_pace(pace);
    let mut socket = Socket::default();
    let peer = [127, 0, 0, 1].into();
    shard.handle(Input::Accepted(Link(1), peer), NOW, &mut socket);
    let conn = socket.0.expect("there is room");
    (shard, socket, conn)
}

/// A message to each of these topics, in one batch.
fn publish<N: std::fmt::Display>(
    shard: &mut Shard,
    socket: &mut Socket,
    conn: ConnId,
    topics: &[N],
    now: Now,
) {
    let line = |name: &N| format!("{{\"topic\":\"{name}\",\"data\":\"x\"}}\n");
    let body: String = topics.iter().map(line).collect();
    let request = format!(
        "POST /pub HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-ndjson\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    );
    shard.handle(
        Input::Received(conn, &mut request.into_bytes()),
        now,
        socket,
    );
}

/// What has expired goes some in a turn while nothing comes, and as fast as it comes otherwise; then the topics.
#[test]
fn what_has_grown_old_goes_in_as_many_turns_as_it_takes() {
    const COUNT: u32 = 100;
    let mut settings = Settings::default();
    settings.rules.push(Rule {
        log_age_s: 3,
        position_age_s: 5,
        ..Rule::default()
    });
    let pace = Pace {
        forgets_per_turn: 7,
        ..Pace::default()
    };
    let (mut shard, mut socket, conn) = connected(settings, pace);
    let names = |from| (from..from + COUNT).collect::<Vec<u32>>();
    publish(&mut shard, &mut socket, conn, &names(0), NOW);
    assert!(!shard.flush(NOW, &mut socket), "nothing is old");
    let at = |passed_s| Now {
        s: NOW.s + passed_s,
        unix_s: NOW.unix_s + passed_s,
    };
    let kept = |shard: &Shard| shard.accounts().log_messages;

    // As many go as come, and some more.
    publish(&mut shard, &mut socket, conn, &names(COUNT)[..20], at(3));
    shard.handle(Input::Tick, at(3), &mut socket);
    assert!(shard.flush(at(3), &mut socket), "more is old");
    assert_eq!(kept(&shard), COUNT - 7);
    let turns = (1..).find(|_| !shard.flush(at(3), &mut socket));
    assert_eq!(turns, Some((COUNT - 27) / 7 + 1));
    assert_eq!(kept(&shard), 20);

    // The topics follow when nobody can come back to them any more.
    let turn = |shard: &mut Shard, passed_s, socket: &mut Socket| {
        shard.handle(Input::Tick, at(passed_s), socket);
        while shard.flush(at(passed_s), socket) {}
        shard.accounts().home_topics
    };
    assert_eq!(turn(&mut shard, 7, &mut socket), COUNT + 20);
    assert_eq!(turn(&mut shard, 8, &mut socket), 20);
    assert_eq!(turn(&mut shard, 20, &mut socket), 0);
}

/// What one request costs, in steps; it is answered within the turn.
fn request(shard: &mut Shard, socket: &mut Socket, conn: ConnId, line: &str) -> u64 {
    let before = shard.steps();
    let mut bytes = format!("{line} HTTP/1.1\r\nHost: localhost\r\n\r\n").into_bytes();
    shard.handle(Input::Received(conn, &mut bytes), NOW, socket);
    shard.steps() - before
}

/// Whoever asks for a place in a long log, or deletes it, costs the others next to nothing: places are found by marks, and what is
/// deleted goes in as many turns as it takes.
#[test]
fn a_long_log_is_walked_in_no_one_step() {
    const COUNT: usize = 20_000;
    const FEW: u64 = 500;
    let mut settings = Settings::default();
    settings.rules.push(Rule {
        log_messages: u32::MAX,
        log_bytes: 1 << 30,
        ..Rule::default()
    });
    let (mut shard, mut socket, conn) = connected(settings, Pace::default());
    for _ in 0..COUNT / 5_000 {
        publish(&mut shard, &mut socket, conn, &["t"; 5_000], NOW);
        while shard.flush(NOW, &mut socket) {}
    }
    assert_eq!(shard.accounts().log_messages as usize, COUNT);
    for query in ["since=-1", "since=-3", "since=oldest"] {
        let line = format!("GET /sub/t?{query}");
        let steps = request(&mut shard, &mut socket, conn, &line);
        assert!(steps < FEW, "{query}: {steps} steps");
        while shard.flush(NOW, &mut socket) {}
    }
    let steps = request(&mut shard, &mut socket, conn, "DELETE /pub/t");
    assert!(steps < FEW, "{steps} steps");
    // Nobody has it any more, and it goes bit by bit.
    let (mut before, mut turns) = (COUNT as u32, 0);
    while shard.flush(NOW, &mut socket) {
        let left = shard.accounts().log_messages;
        // The delete counts as something that came.
        assert!(left < before && before - left <= Pace::default().forgets_per_turn as u32 + 1);
        (before, turns) = (left, turns + 1);
    }
    assert!(turns > 50);
    assert_eq!(shard.accounts().log_messages, 0);
    assert_eq!(shard.accounts().log_bytes, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    /// A batch stops where the turn's share of work is done, and goes on in the turns after it.
    #[test]
    fn a_turn_is_spent_by_what_is_published_and_begins_anew(share in 1u32..60, lines in 1u32..60) {
        let settings = Settings::default();
        let pace = Pace { steps_per_turn: share, ..Pace::default() };
        let (mut shard, mut socket, conn) = connected(settings, pace);
        let (mut turns, mut published) = (0, 0);
        publish(&mut shard, &mut socket, conn, &vec!["t"; lines as usize], NOW);
        loop {
            // A line is four steps at most, and a message more is dropped for it. The end of a turn has half of the share, and
            // three units beside.
            let now = shard.stats().published;
            prop_assert!(now > published, "some go on in each turn");
            prop_assert!(now - published <= u64::from(share) + 8);
            published = now;
            if published == u64::from(lines) {
                break;
            }
            turns += 1;
            let more = shard.flush(NOW, &mut socket);
            prop_assert!(more || shard.stats().published == u64::from(lines));
            prop_assert!(!shard.is_spent());
        }
        prop_assert!(turns <= lines);
        while shard.flush(NOW, &mut socket) {}
        prop_assert_eq!(shard.accounts().waiting, 0);
        prop_assert_eq!(shard.accounts().receive_bytes, 0);
    }
}
