//! Tests a wall clock that is set ahead and back while the server runs (by the library of `faketime`). Only the dates in responses follow
//! it; times to live and timeouts do not.

use crate::support::clock::Clock;
use crate::support::http::{Conn, Response, info, once, publish};
use crate::support::state::State;
use crate::support::stream::Stream;
use crate::support::{Server, mqtt, until};
use crore_wire::mqtt::{Packet, Version};

/// Sets the clock, and waits until the server's dates show it.
fn set_clock(clock: &Clock, server: &Server, ahead_s: i64) {
    let date_before = date(&once(server, "GET", "/pub/none", &[], ""), "date");
    clock.set(ahead_s);
    until("another date", || {
        let answer = once(server, "GET", "/pub/none", &[], "");
        date(&answer, "date").abs_diff(date_before) > u64::from(DAY_S as u32) / 2
    });
}

const DAY_S: i64 = 86_400;
const SHORT_POLLS: &str = "[[rule]]\nmatch = \"#\"\npoll_timeout_s = 1\n";

fn date(answer: &Response, name: &str) -> u64 {
    let date = answer.header(name).unwrap_or_else(|| panic!("no {name}"));
    crore_wire::http::date::parse_date(date.as_bytes()).expect("a date")
}

/// Reads the oldest message, and checks that its date is not later than that of the answer.
fn oldest(server: &Server, topic: &str) -> Response {
    let answer = once(
        server,
        "GET",
        &format!("/sub/{topic}?since=oldest"),
        &[],
        "",
    );
    if answer.status == 200 {
        assert!(date(&answer, "last-modified") <= date(&answer, "date"));
    }
    answer
}

#[test]
fn messages_expire_after_the_wall_clock_was_set_back() {
    let Some(clock) = Clock::new("back", DAY_S) else {
        return;
    };
    let rules = "[[rule]]\nmatch = \"rule\"\nttl_s = 1\npoll_timeout_s = 1\n\
         [[rule]]\nmatch = \"age\"\nlog_age_s = 1\npoll_timeout_s = 1\n";
    let server = clock.server(&format!("{rules}{SHORT_POLLS}"));
    let mortal = [("Crore-TTL", "1")];
    assert_eq!(once(&server, "POST", "/pub/own", &mortal, "x").status, 202);
    publish(&server, "rule", "x");
    publish(&server, "age", "x");
    set_clock(&clock, &server, 0);
    for topic in ["own", "rule", "age"] {
        until("the message is gone", || {
            oldest(&server, topic).status == 204
        });
    }
}

#[test]
fn wall_clock_set_ahead_expires_nothing_early() {
    let Some(clock) = Clock::new("ahead", 0) else {
        return;
    };
    let server = clock.server(SHORT_POLLS);
    let mortal = [("Crore-TTL", "3600")];
    assert_eq!(
        once(&server, "POST", "/pub/a", &mortal, "first").status,
        202
    );
    let key = [("Idempotency-Key", "\"k\"")];
    Conn::open(&server).request("POST", "/pub/i", &key, b"once");
    let first_date = date(&oldest(&server, "a"), "last-modified");

    set_clock(&clock, &server, 2 * DAY_S);
    let answer = oldest(&server, "a");
    assert_eq!(answer.text(), "first");
    let remaining_s: u64 = answer
        .header("crore-ttl")
        .expect("it")
        .parse()
        .expect("a number");
    assert!((1..=3600).contains(&remaining_s));
    assert!(
        date(&answer, "last-modified") > first_date,
        "it is as old as before"
    );
    let retry = Conn::open(&server).request("POST", "/pub/i", &key, b"once");
    assert_eq!(
        retry.header("idempotency-replayed").as_deref(),
        Some("true")
    );

    // An answer that was read while the clock was ahead has a date in the future after the clock is set right.
    let last_modified = answer.header("last-modified").expect("a date");
    set_clock(&clock, &server, 0);
    publish(&server, "a", "second");
    let since = [("If-Modified-Since", last_modified.as_str())];
    let answer = once(&server, "GET", "/sub/a", &since, "");
    assert!(
        ["first", "second"].contains(&answer.text()),
        "{}",
        answer.status
    );
    assert!(date(&answer, "last-modified") <= date(&answer, "date"));
    assert_eq!(info(&server, "a")["messages"], 2);
}

#[test]
fn time_to_live_continues_over_a_planned_restart_with_the_clock_set_back() {
    let Some(clock) = Clock::new("restart", DAY_S) else {
        return;
    };
    let state = State::new();
    let settings = format!("{SHORT_POLLS}{}", state.settings());
    let server = clock.server(&settings);
    let mortal = [("Crore-TTL", "2")];
    assert_eq!(
        once(&server, "POST", "/pub/a", &mortal, "mortal").status,
        202
    );
    publish(&server, "b", "kept");
    server.stop();
    clock.set(0);
    let server = clock.server(&settings);
    assert_eq!(oldest(&server, "b").text(), "kept");
    until("the message is gone", || oldest(&server, "a").status == 204);
}

/// The latest value of a key is state. Unlike a history, it is not removed by the age or bytes of its rule.
#[test]
fn latest_values_stay_when_history_of_their_age_is_gone() {
    let Some(clock) = Clock::new("latest", 0) else {
        return;
    };
    for state in State::of_both_kinds() {
        clock.set(0);
        let rules = "[[rule]]\nmatch = \"scores/#\"\nkeep = \"latest\"\n";
        let settings = format!("{rules}{SHORT_POLLS}{}", state.settings());
        let server = clock.server(&settings);
        // Two values are larger than the default `log_bytes` of a topic.
        let large = "x".repeat(200 << 10);
        for (topic, key, data) in [
            ("scores/1", "home", &large[..]),
            ("scores/1", "away", &large[1..]),
            ("scores/2", "", "2:1"),
            ("news", "", "old"),
        ] {
            let keyed = [("Crore-Key", key)];
            let headers = if key.is_empty() { &[][..] } else { &keyed };
            let target = format!("/pub/{topic}");
            assert_eq!(once(&server, "POST", &target, headers, data).status, 202);
        }
        let mortal = [("Crore-Key", "brief"), ("Crore-TTL", "60")];
        once(&server, "POST", "/pub/scores/2", &mortal, "0:0");
        server.stop();
        clock.set(2 * 3600);
        let server = clock.server(&settings);
        until("history is gone", || oldest(&server, "news").status == 204);
        let mut stream = Stream::open(&server, "/sub?filter=scores/%23", &[]);
        let mut lengths: Vec<usize> = stream.data(3).iter().map(String::len).collect();
        lengths.sort_unstable();
        assert_eq!(lengths, [3, large.len() - 1, large.len()]);
        assert_eq!(info(&server, "scores/2")["messages"], 1);
        let mut devices = mqtt::Conn::to_server(&server, Version::V5);
        devices.connect(&mqtt::plain_connect(Version::V5, "it"));
        devices.send_subscribe("scores/2", 0);
        let received = loop {
            let got = devices.packet();
            if let Packet::Publish(publish) = got.packet() {
                break (publish.payload.to_vec(), publish.retain);
            }
        };
        assert_eq!(received, (b"2:1".to_vec(), true));
    }
}
