//! Tests that verdicts about credentials are cached, but not beyond a change of the settings.

use std::sync::Arc;

use crore_broker::Verdict;
use crore_broker::access::{Grants, VerifiedClient};
use crore_broker::account::MemoryPart;
use crore_broker::settings::Settings;
use crore_broker::{Input, TurnLimits, World, work};
use support::{NOW, TestServer};

mod support;

fn world() -> Arc<World> {
    let mut settings = Settings::default();
    settings.access.closed = true;
    support::world(settings, 1, 1)
}

/// Connects a client with the token. Returns whether the shard asked the verifier.
fn connect_asks_verifier(server: &mut TestServer) -> bool {
    let before = server.io[0].questions.len();
    let conn = server.open(0);
    server.send(
        conn,
        b"GET /sub/a HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer t\r\n\r\n",
    );
    server.flush(0);
    server.io[0].questions.len() > before
}

/// Answers the shard's last question: the token is valid for an hour.
fn answer(server: &mut TestServer) {
    let (conn, question) = server.io[0].questions.last().expect("a question");
    let known = VerifiedClient {
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
    assert!(connect_asks_verifier(&mut server));
    answer(&mut server);
    assert!(!connect_asks_verifier(&mut server), "it is remembered");
    server.shards[0].change_settings(world());
    assert!(connect_asks_verifier(&mut server), "all is forgotten");
    // The answer is in flight while the settings change again.
    server.shards[0].change_settings(world());
    answer(&mut server);
    assert!(connect_asks_verifier(&mut server), "by the keys of before");
    answer(&mut server);
    assert!(!connect_asks_verifier(&mut server));
}

const TOKEN_BYTES: usize = 50_000;

/// Sends a request with a long token, which differs from the tokens of other connections. Returns the steps of the turn.
fn steps_with_long_token(server: &mut TestServer) -> u64 {
    let conn = server.open(0);
    let head = "GET /sub/a HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer ";
    let token = format!("{}{conn}", "t".repeat(TOKEN_BYTES));
    let before = server.shards[0].steps();
    server.send(conn, format!("{head}{token}\r\n\r\n"));
    server.flush(0);
    server.shards[0].steps() - before
}

fn server_with_long_tokens() -> TestServer {
    let mut settings = Settings::default();
    settings.access.closed = true;
    settings.access.token_bytes = 2 * TOKEN_BYTES;
    settings.limits.head_bytes = 2 * TOKEN_BYTES;
    let world = support::world(settings, 1, 1);
    TestServer::new(&world, TurnLimits::default(), NOW)
}

#[test]
fn work_of_hashing_a_long_credential_is_counted() {
    let mut server = server_with_long_tokens();
    let (first, second) = (
        steps_with_long_token(&mut server),
        steps_with_long_token(&mut server),
    );
    // The head is copied and parsed once, and the token in it is hashed and copied.
    let copies = (TOKEN_BYTES / work::STEP_BYTES) as u64;
    assert!(
        first.min(second) >= 4 * copies,
        "{first} and {second} steps"
    );
}

#[test]
fn credentials_that_the_verifier_has_not_answered_are_in_the_account() {
    let mut server = server_with_long_tokens();
    let held =
        |server: &TestServer| server.shards[0].accounts().parts[MemoryPart::Credentials as usize];
    for asked in 1..=3 {
        steps_with_long_token(&mut server);
        assert!(
            held(&server) >= asked * TOKEN_BYTES,
            "{} bytes",
            held(&server)
        );
    }
    server.io[0].questions.clear();
    server.settle();
    server.flush(0);
    assert_eq!(held(&server), 0);
}
