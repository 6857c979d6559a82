//! Tests subscribe requests that are refused, whose topic is deleted, or that other requests displace.

use super::*;
use crore_wire::sse::GAP_EVENT;

#[test]
fn bad_position_in_the_query_is_refused_with_a_hint() {
    let bad = "since= and last_event_id= take oldest, live, -N or a position that the server gave";
    for query in ["since=oops", "last_event_id=oops", "since=1a", "since=-x"] {
        for fields in [GET, EVENTS, UPGRADE] {
            if fields == EVENTS && !query.starts_with("since") {
                // A program put this id into the URL. It gets a stream with a gap (the notice that it missed messages), since an
                // EventSource gives up after a 400.
                let received = answer(&format!("/sub/full?{query}"), fields);
                assert!(
                    received.contains(&format!("event: {GAP_EVENT}\n")),
                    "{received}"
                );
                continue;
            }
            let received = answer(&format!("/sub/full?{query}"), fields);
            let (_, value) = query.split_once('=').expect("a value");
            // A value that begins with a digit is probably a date and not a position.
            let tip = match value.as_bytes()[0].is_ascii_digit() {
                true => "; a date is said by the header If-Modified-Since",
                false => "",
            };
            let bad = format!("{bad}, and not `{value}`{tip}");
            assert_eq!(received, refusal("400 Bad Request", &bad), "{query}");
        }
    }
    let bad = "a bad percent escape in the position";
    assert_eq!(
        answer("/sub/full?since=%zz", GET),
        refusal("400 Bad Request", bad)
    );
}

/// A browser sends this header automatically, so the server answers a bad position in it with a gap. A poll with such a position gets no old message: it
/// might get the same one for ever.
#[test]
fn a_bad_position_in_a_header_is_a_gap() {
    let received = answer("/sub/full", &format!("{EVENTS}Last-Event-ID: oops\r\n"));
    let gap = gap_event("17-0", "full");
    let gap = format!("{:x}\n{gap}\n", gap.len());
    assert!(
        received.starts_with(&format!("{STREAM}{gap}")),
        "{received}"
    );
    assert!(
        received.ends_with("data: one\nid: 17-1\n\n\n14\ndata: two\nid: 17-2\n\n\n"),
        "{received}"
    );
    for target in [
        "/sub/full",
        "/sub?topic=full&topic=empty",
        "/sub?filter=full",
    ] {
        let mut server = server();
        let fields = format!("{GET}If-None-Match: \"oops\"\r\n");
        let link = asks(&mut server, target, &fields);
        assert_eq!(take(&mut server, link), "", "{target}");
        server.publish([("full", "three".into())]);
        server.settle();
        let received = take(&mut server, link);
        let lost = "Crore-Gap: messages before this one are lost\n";
        assert!(
            received.contains(lost) && received.ends_with("\n\nthree"),
            "{target}: {received}"
        );
    }
}

#[test]
fn a_bad_upgrade_is_refused() {
    let old = UPGRADE.replace("Version: 13", "Version: 8");
    let reason = "Sec-WebSocket-Version must be 13";
    let received = refusal("426 Upgrade Required", reason).replace(
        "Content-Length",
        "Upgrade: websocket\nSec-WebSocket-Version: 13\nContent-Length",
    );
    assert_eq!(answer("/sub/full", &old), received);
    let short = UPGRADE.replace("dGhl", "");
    let reason = "Sec-WebSocket-Key must be 16 bytes in base64";
    assert_eq!(
        answer("/sub/full", &short),
        refusal("400 Bad Request", reason)
    );
    let reason = "frames can be published to one topic only";
    let received = answer("/pubsub?topic=a&topic=b", UPGRADE);
    assert_eq!(received, refusal("400 Bad Request", reason));
}

#[test]
fn topics_that_publishers_create_have_no_other_subscribers() {
    let reason = "only publishers create topics here, and this topic does not exist";
    for fields in [GET, EVENTS, UPGRADE] {
        assert_eq!(
            answer("/sub/created/1", fields),
            refusal("403 Forbidden", reason)
        );
        let mut server = server();
        server.publish([("created/1", "x".into())]);
        server.settle();
        let link = asks(&mut server, "/sub/created/1", fields);
        assert!(!take(&mut server, link).contains("403"));
    }
}

#[test]
fn one_long_poll_at_a_time_by_rule() {
    let mut server = server();
    let first = asks(&mut server, "/sub/first/1", GET);
    let reason = "another subscriber waits already";
    for target in ["/sub/first/1", "/sub?topic=first/1&topic=x"] {
        let second = asks(&mut server, target, GET);
        assert_eq!(take(&mut server, second), refusal("409 Conflict", reason));
    }
    assert_eq!(take(&mut server, first), "");
    let stream = asks(&mut server, "/sub/first/1", EVENTS);
    assert!(
        take(&mut server, stream).starts_with(STREAM),
        "streams are no polls"
    );

    let first = asks(&mut server, "/sub/last/1", GET);
    let stream = asks(&mut server, "/sub/last/1", EVENTS);
    take(&mut server, stream);
    let second = asks(&mut server, "/sub/last/1", GET);
    let reason = "a later subscriber took this place";
    assert_eq!(take(&mut server, first), refusal("409 Conflict", reason));
    server.publish([("last/1", "x".into())]);
    server.settle();
    assert!(take(&mut server, second).ends_with("x"));
    assert!(take(&mut server, stream).contains("data: x\n"));

    let many: Vec<usize> = (0..3).map(|_| asks(&mut server, "/sub/y", GET)).collect();
    for link in many {
        assert_eq!(take(&mut server, link), "", "elsewhere many wait");
    }
}

#[test]
fn delete_of_a_topic_is_reported_to_subscribers_and_to_clients_that_resume() {
    let mut server = server();
    let reason = "the topic was deleted";
    let live = "/sub/full?since=live";
    let poll = asks(&mut server, live, GET);
    let events = asks(&mut server, live, EVENTS);
    let old_events = asks_with(&mut server, &format!("GET {live} HTTP/1.0"), EVENTS);
    let socket = asks(&mut server, live, UPGRADE);
    for link in [events, old_events, socket] {
        take(&mut server, link);
    }
    server.connect_and_send(format!("DELETE /pub/full HTTP/1.1\r\n{GET}\r\n"));
    server.settle();
    let end = close(4410, reason);
    assert_eq!(take(&mut server, poll), refusal("410 Gone", reason));
    assert_eq!(take(&mut server, events), "0\n\n");
    assert_eq!(take(&mut server, old_events), "");
    assert_eq!(take(&mut server, socket), end);
    assert!(server.is_open(poll));
    assert_eq!(server.accounts().carrier_topics, 0);

    let resumes = "/sub/full?since=17-1";
    let poll = asks(&mut server, resumes, GET);
    assert_eq!(take(&mut server, poll), refusal("410 Gone", reason));
    let events = asks(&mut server, resumes, EVENTS);
    assert_eq!(take(&mut server, events), "HTTP/1.1 204 No Content\n\n");
    let socket = asks(&mut server, resumes, UPGRADE);
    assert_eq!(take(&mut server, socket), format!("{SWITCHING}\n{end}"));
    // A subscriber without a position begins the topic anew. After that, others may resume again.
    let events = asks(&mut server, live, EVENTS);
    assert!(take(&mut server, events).starts_with(STREAM));
    let poll = asks(&mut server, "/sub/full?since=17-2", GET);
    assert_eq!(take(&mut server, poll), "", "it waits");
}

#[test]
fn subscription_to_a_new_topic_is_refused_when_the_topics_are_full() {
    let mut settings = Settings::default();
    settings.limits.topics_per_shard = 1;
    let mut server = TestServer::with(settings, TurnLimits::default(), 1);
    let first = asks(&mut server, "/sub/a", EVENTS);
    assert!(take(&mut server, first).starts_with(STREAM));
    for fields in [GET, UPGRADE] {
        let link = asks(&mut server, "/sub/b", fields);
        let received = take(&mut server, link);
        assert!(
            received.starts_with("HTTP/1.1 503 Service Unavailable\n"),
            "{received}"
        );
        assert!(received.contains("\nRetry-After: "), "{received}");
    }
    // A browser would not reconnect after a status other than 200.
    let link = asks(&mut server, "/sub/b", EVENTS);
    let received = take(&mut server, link);
    assert!(received.starts_with("HTTP/1.1 200 OK\n"), "{received}");
    assert!(received.contains("retry: "), "{received}");
    assert!(
        !received.contains("Transfer-Encoding") || received.ends_with("0\n\n"),
        "{received}"
    );
    assert_eq!(server.accounts().carrier_topics, 1);
}
