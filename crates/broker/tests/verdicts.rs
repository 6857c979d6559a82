//! Tests that verdicts about credentials are cached, but not beyond a change of the settings.

use std::sync::Arc;

use crore_broker::Verdict;
use crore_broker::access::{Grants, Known};
use crore_broker::settings::Settings;
use crore_broker::{Input, TurnLimits, World};
use support::{NOW, TestServer};

mod support;

fn world() -> Arc<World> {
    let mut settings = Settings::default();
    settings.access.closed = true;
    support::world(settings, 1, 1)
}

/// Connects a client with the token. Returns whether the shard asked the verifier.
fn comes(server: &mut TestServer) -> bool {
    let before = server.io[0].asked.len();
    let conn = server.open(0);
    server.say(
        conn,
        b"GET /sub/a HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer t\r\n\r\n",
    );
    server.flush(0);
    server.io[0].asked.len() > before
}

/// Answers the shard's last question: the token is valid for an hour.
fn answer(server: &mut TestServer) {
    let (conn, question) = server.io[0].asked.last().expect("a question");
    let known = Known {
        grants: Arc::new(Grants::default()),
        until_unix_s: u32::MAX,
    };
    let verdict = Verdict {
        digest: question.digest,
        found: Ok(known),
        believed_until_s: NOW.unix_s + 3600,
        settings_generation: question.settings_generation,
    };
    let conn = *conn;
    server.handle(0, Input::Verdict(conn, verdict));
    server.flush(0);
}

#[test]
fn verdict_asked_for_before_a_reload_is_not_remembered_after_it() {
    let mut server = TestServer::new(&world(), TurnLimits::default(), NOW);
    assert!(comes(&mut server));
    answer(&mut server);
    assert!(!comes(&mut server), "it is remembered");
    server.shards[0].change(world());
    assert!(comes(&mut server), "all is forgotten");
    // The answer is in flight while the settings change again.
    server.shards[0].change(world());
    answer(&mut server);
    assert!(comes(&mut server), "by the keys of before");
    answer(&mut server);
    assert!(!comes(&mut server));
}
