//! Tests what a request leaves behind. It must not affect the connection's next request, and an idle subscriber must have no side row (an entry for a
//! connection's extra state) that it does not need. Its outcome must be counted.

use super::*;
use crore_broker::Reason;
use crore_broker::position::{Position, Since, parse};
use crore_wire::sse::GAP_EVENT;

/// The answer to the next request on a connection whose last request was refused.
fn polls_again(server: &mut TestServer, link: usize) -> String {
    server.send(
        link,
        format!("GET /sub/full?since=17-1 HTTP/1.1\r\n{GET}\r\n"),
    );
    server.settle();
    take(server, link)
}

#[test]
fn connection_with_a_refused_stream_may_poll() {
    let fields =
        format!("Content-Type: text/plain; charset=utf-8\nETag: \"17-2\"\n{TIME}{CACHING}");
    let two = message(&fields, "two");
    for fields in [GET, EVENTS, UPGRADE] {
        let mut server = server();
        let link = asks(&mut server, "/sub/created/1", fields);
        assert!(take(&mut server, link).starts_with("HTTP/1.1 403 "));
        assert_eq!(polls_again(&mut server, link), two, "{fields}");
    }
    for fields in [GET, UPGRADE] {
        let mut server = server_with(|limits| limits.filters_per_shard = 1);
        let first = asks(&mut server, "/sub?filter=a/%23", GET);
        let link = asks(&mut server, "/sub?filter=b/%23", fields);
        let received = take(&mut server, link);
        let (status, rest) = received
            .split_once("\nRetry-After: ")
            .expect("it may come again");
        assert!(
            status.starts_with("HTTP/1.1 503 Service Unavailable\n"),
            "{received}"
        );
        let reason = format!("{}\n", Reason::FiltersFull.text());
        assert!(
            rest.ends_with(&format!("\nContent-Length: {}\n\n{reason}", reason.len())),
            "{received}"
        );
        assert!(!received.contains("Connection:"), "{received}");
        assert_eq!(polls_again(&mut server, link), two, "{fields}");
        // The refused subscription left nothing, so another client may use the place for a filter.
        server.cut(first);
        let next = asks(&mut server, "/sub?filter=c/%23", GET);
        assert_eq!(take(&mut server, next), "", "it waits");
        assert_eq!(server.accounts().carrier_filters, 1);
    }
    // A stream that ends at once makes a browser reconnect.
    let mut server = server_with(|limits| limits.filters_per_shard = 1);
    asks(&mut server, "/sub?filter=a/%23", GET);
    let link = asks(&mut server, "/sub?filter=b/%23", EVENTS);
    let received = take(&mut server, link);
    assert!(received.starts_with("HTTP/1.1 200 OK\n"), "{received}");
    assert_eq!(received.matches("HTTP/1.1").count(), 1, "{received}");
    assert!(received.contains("retry: "), "{received}");
    // Earlier requests on the same connection are still answered.
    let filters = format!("GET /sub?filter=b/%23 HTTP/1.1\r\n{UPGRADE}\r\n");
    let link = server.connect_and_send(format!(
        "GET /nothing HTTP/1.1\r\n{GET}\r\n{filters}GET /sub/full HTTP/1.1\r\n{GET}\r\n"
    ));
    server.settle();
    let received = take(&mut server, link);
    let places = received.match_indices("HTTP/1.1 ");
    let statuses: Vec<_> = places.map(|(at, _)| &received[at + 9..at + 12]).collect();
    assert_eq!(statuses, ["404", "503", "200"], "{received}");
}

/// A subscriber that only waits for messages of one topic needs no side row.
#[test]
fn an_idle_subscriber_of_one_topic_has_no_side_rows() {
    for fields in [GET, EVENTS, UPGRADE, META] {
        let mut server = server();
        for target in ["/sub/empty", "/sub/full?since=live"] {
            let link = asks(&mut server, target, fields);
            assert!(server.is_open(link));
        }
        let accounts = server.accounts();
        let rows = (accounts.extras, accounts.outboxes, accounts.spills);
        assert_eq!(rows, (0, 0, 0), "{fields}");
    }
}

/// The counts of subscriptions: attached to the home (the part of a shard that keeps the topic), resumed, and with a gap (the notice that
/// the client missed messages).
#[test]
fn outcomes_of_subscriptions_are_counted() {
    for (target, fields, expected) in [
        ("/sub/full", GET, (0, 0, 0, 1)),
        ("/sub/full?since=17-1", GET, (0, 1, 0, 1)),
        ("/sub/full?since=17-2", GET, (1, 1, 0, 0)),
        ("/sub/full?since=16-2", GET, (0, 0, 1, 1)),
        ("/sub/full?since=live", GET, (1, 0, 0, 0)),
        ("/sub/full?since=oldest", EVENTS, (1, 0, 0, 2)),
        ("/sub/full?since=17-1", EVENTS, (1, 1, 0, 1)),
        ("/sub/short/1?since=17-0", EVENTS, (1, 0, 1, 1)),
        (
            "/sub?topic=full&topic=short/1&since=oldest",
            META,
            (2, 0, 0, 3),
        ),
        (
            "/sub?topic=full&topic=skips/1&since=17-1",
            META,
            (2, 0, 2, 3),
        ),
        ("/sub?filter=full&since=oldest", META, (0, 0, 0, 2)),
        ("/sub?filter=full&since=17-1", META, (0, 0, 1, 2)),
        ("/sub?filter=short/%2B&since=17-0", META, (0, 0, 1, 1)),
        ("/sub?filter=full", GET, (0, 0, 0, 1)),
    ] {
        let mut server = server();
        let before = server.stats();
        asks(&mut server, target, fields);
        let after = server.stats();
        let counts = (
            after.attaches - before.attaches,
            after.resumes - before.resumes,
            after.gaps - before.gaps,
            after.delivered - before.delivered,
        );
        assert_eq!(counts, expected, "{target} {fields}");
    }
}

/// A stream that continues from the log counts neither as resumed nor as a gap.
#[test]
fn fallback_to_the_log_is_not_counted_as_a_resume() {
    let mut server = server_with(|limits| limits.outbox_bytes = 0);
    let link = asks(&mut server, "/sub/full?since=live", UPGRADE);
    let before = server.stats();
    server.set_window(link, Some(0));
    for n in 0..3 {
        server.publish([("full", format!("{n}"))]);
        server.settle();
    }
    server.set_window(link, None);
    server.settle();
    let after = server.stats();
    let counts = (
        after.fallbacks - before.fallbacks,
        after.resumes - before.resumes,
        after.gaps - before.gaps,
        after.delivered - before.delivered,
    );
    assert_eq!(counts, (1, 0, 0, 3));
}

/// The first of two gaps moves only the position of its own topic. Until the second gap is sent, the position of the set contains the client's own position
/// for the other topic. So a client that is disconnected between the two gaps gets the second one after it reconnects.
#[test]
fn first_of_two_gaps_moves_only_the_position_of_its_own_topic() {
    let target = "/sub?topic=short/1&topic=skips/1";
    for knows in [true, false] {
        let mut server = server();
        let link = asks(&mut server, &format!("{target}&since=live"), EVENTS);
        let id = match knows {
            true => id_of(&take(&mut server, link)),
            false => "oops".to_owned(),
        };
        for data in ["three", "four"] {
            server.publish([("short/1", data.into()), ("skips/1", data.into())]);
            server.settle();
        }
        let mut resumes = |id: &str| {
            let link = asks(
                &mut server,
                target,
                &format!("{EVENTS}Last-Event-ID: {id}\r\n"),
            );
            take(&mut server, link)
        };
        let received = resumes(&id);
        assert_eq!(received.matches(GAP_EVENT).count(), 2, "{received}");
        let first = id_of(&received);
        let again = resumes(&first);
        assert_eq!(again.matches(GAP_EVENT).count(), 1, "{again}");
        let of_skips = gap_event("", "skips/1");
        let (of_skips, _) = of_skips.split_once("id: ").expect("an id");
        assert!(again.contains(of_skips), "{again}");
        assert_eq!(again.matches("data: four\n").count(), 2, "{again}");
        let second = positions(&first)[1];
        if knows {
            assert_eq!(second, positions(&id)[1], "as it came");
        } else {
            assert!(
                !matches!(second, Since::At(Position { epoch: 7, .. })),
                "nobody knows it"
            );
        }
    }
}

/// The positions in an id of two topics.
fn positions(id: &str) -> Vec<Since> {
    let hex = id[1..].split('-').next().expect("a head");
    let hash = u32::from_str_radix(hex, 16).expect("a hash");
    parse(id.as_bytes(), hash, 2).expect("a position")
}

/// The first id in a stream's text.
fn id_of(received: &str) -> String {
    let (_, rest) = received.split_once("\nid: ").expect("an id");
    rest.lines().next().expect("its line").to_owned()
}

/// A long-poll with a lost position gets the current position together with the gap, and continues from there.
#[test]
fn long_poll_with_a_lost_position_gets_one_gap_and_the_current_position() {
    let gap = "Crore-Gap: messages before this position are lost\n";
    for target in [
        "/sub/empty",
        "/sub?topic=empty&topic=void",
        "/sub?filter=e/%23",
    ] {
        let mut server = server();
        let link = asks(
            &mut server,
            target,
            &format!("{GET}Last-Event-ID: 16-9\r\n"),
        );
        assert_eq!(take(&mut server, link), "", "it waits");
        server.advance_and_tick_s(6);
        let received = take(&mut server, link);
        assert!(received.starts_with("HTTP/1.1 204 "), "{received}");
        assert!(received.contains(gap), "{target}: {received}");
        let (_, rest) = received.split_once("ETag: \"").expect("a position");
        let id = rest.split('"').next().expect("its end").to_owned();
        // From that position on nothing is lost.
        let link = asks(
            &mut server,
            target,
            &format!("{GET}If-None-Match: \"{id}\"\r\n"),
        );
        server.advance_and_tick_s(6);
        let received = take(&mut server, link);
        assert!(received.starts_with("HTTP/1.1 304 "), "{received}");
        assert!(!received.contains("Crore-Gap"), "{received}");
        assert!(
            received.contains(&format!("ETag: \"{id}\"\n")),
            "{received}"
        );
        // New messages are delivered.
        let link = asks(
            &mut server,
            target,
            &format!("{GET}If-None-Match: \"{id}\"\r\n"),
        );
        server.publish([("empty", "one".into()), ("e/1", "one".into())]);
        server.settle();
        assert!(take(&mut server, link).ends_with("\n\none"));
    }
}

/// A position of a single topic is not valid for a filter. When the server gave it, nobody read by the filter, so earlier losses of other topics are
/// unknown.
#[test]
fn position_of_a_topic_is_invalid_for_a_filter() {
    let mut server = server();
    for (target, gaps) in [
        ("/sub/short/1?since=17-0", 1),
        ("/sub?filter=short/%2B&since=17-0", 1),
        ("/sub?filter=short/%2B&since=17-9", 1),
        ("/sub?filter=short/%2B&since=oldest", 0),
    ] {
        let link = asks(&mut server, target, EVENTS);
        let received = take(&mut server, link);
        assert_eq!(
            received.matches(GAP_EVENT).count(),
            gaps,
            "{target}: {received}"
        );
        assert!(received.contains("data: two\n"), "{received}");
    }
    // A position of the filter itself is valid.
    let link = asks(&mut server, "/sub?filter=short/%2B", EVENTS);
    let id = id_of(&take(&mut server, link));
    server.publish([("short/2", "three".into())]);
    server.settle();
    let link = asks(&mut server, &format!("/sub?filter=%23&since={id}"), EVENTS);
    let received = take(&mut server, link);
    assert!(!received.contains(GAP_EVENT), "{received}");
    assert!(
        received.contains("data: three\n") && !received.contains("data: two\n"),
        "{received}"
    );
}
