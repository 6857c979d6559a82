//! Answers about credentials are remembered, but not past a change of the settings that they were asked under.

use std::sync::Arc;

use crore_broker::access::{Grants, Known, Question, Verdict};
use crore_broker::admission::Admission;
use crore_broker::rules::Rules;
use crore_broker::settings::Settings;
use crore_broker::{Close, ConnId, Input, Io, Link, Mail, Now, Shard, ShardId, World};

const NOW: Now = Now {
    s: 10,
    unix_s: 1_800_000_000,
};

/// Sockets that take everything, and a desk where questions lie.
#[derive(Default)]
struct Sockets {
    last: Option<ConnId>,
    asked: Vec<(ConnId, Question)>,
}

impl Io for Sockets {
    fn open(&mut self, _: Link, conn: ConnId) {
        self.last = Some(conn);
    }
    fn send(&mut self, _: Link, parts: &[&[u8]]) -> usize {
        parts.iter().map(|part| part.len()).sum()
    }
    fn interest(&mut self, _: Link, _: ConnId, _: bool, _: bool) {}
    fn close(&mut self, _: Link, _: Close) {}
    fn post(&mut self, _: ShardId, _: Mail) {}
    fn question(&mut self, conn: ConnId, question: Question) -> bool {
        self.asked.push((conn, question));
        true
    }
}

fn world() -> Arc<World> {
    let mut settings = Settings::default();
    settings.access.closed = true;
    Arc::new(World {
        rules: Rules::new(&settings.rules),
        admission: Admission::new(&settings, 9),
        settings,
        shards: 1,
        homes: 1,
        epoch: 7,
        seed: 42,
    })
}

/// Somebody comes with the token; says whether that was asked about.
fn comes(shard: &mut Shard, sockets: &mut Sockets, link: u32) -> bool {
    let before = sockets.asked.len();
    let accepted = Input::Accepted(Link(link), [127, 0, 0, 1].into());
    shard.handle(accepted, NOW, sockets);
    let conn = sockets.last.expect("there is room");
    let mut request =
        b"GET /sub/a HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer t\r\n\r\n".to_vec();
    shard.handle(Input::Received(conn, &mut request), NOW, sockets);
    shard.flush(NOW, sockets);
    sockets.asked.len() > before
}

/// The last question is answered: the token is good, for an hour.
fn answer(shard: &mut Shard, sockets: &mut Sockets) {
    let (conn, question) = sockets.asked.last().expect("a question");
    let known = Known {
        grants: Arc::new(Grants::default()),
        until_unix_s: u32::MAX,
    };
    let verdict = Verdict {
        digest: question.digest,
        found: Ok(known),
        believed_until_unix_s: NOW.unix_s + 3600,
        round: question.round,
    };
    shard.handle(Input::Verdict(*conn, verdict), NOW, sockets);
    shard.flush(NOW, sockets);
}

#[test]
fn what_was_asked_before_a_change_of_the_settings_is_not_remembered_after_it() {
    let mut sockets = Sockets::default();
    let mut shard = Shard::new(0, world(), NOW);
    assert!(comes(&mut shard, &mut sockets, 1));
    answer(&mut shard, &mut sockets);
    assert!(!comes(&mut shard, &mut sockets, 2), "it is remembered");
    shard.change(world());
    assert!(comes(&mut shard, &mut sockets, 3), "all is forgotten");
    // The answer is under way as the settings change again.
    shard.change(world());
    answer(&mut shard, &mut sockets);
    assert!(comes(&mut shard, &mut sockets, 4), "by the keys of before");
    answer(&mut shard, &mut sockets);
    assert!(!comes(&mut shard, &mut sockets, 5));
}
