//! Tests streams: how they begin, and how each kind of stream reports a gap (that the client missed messages).

use super::*;
use crore_wire::sse::GAP_EVENT;

#[test]
fn stream_reports_the_position_at_which_it_begins() {
    let begun = |target: &str| answer(target, EVENTS);
    let silent = "9\nid: 17-2\n\n";
    assert_eq!(begun("/sub/full"), format!("{STREAM}{silent}"));
    let standard = format!("{EVENTS}Cache-Control: no-cache\r\n");
    let silent = "a\nid: 17-2\n\n\n";
    assert_eq!(answer("/sub/full", &standard), format!("{STREAM}{silent}"));
    let two = "14\ndata: two\nid: 17-2\n\n\n";
    assert_eq!(begun("/sub/full?since=-1"), format!("{STREAM}{two}"));
    let mut server = server();
    let link = asks_with(&mut server, "GET /sub/full?since=17-1 HTTP/1.0", EVENTS);
    let two = "data: two\nid: 17-2\n\n";
    assert_eq!(take(&mut server, link), format!("{STREAM_OF_1_0}{two}"));
    server.publish([("full", "three".into())]);
    server.settle();
    assert_eq!(take(&mut server, link), "data: three\nid: 17-7\n\n");
    let link = asks_with(&mut server, "GET /sub/empty HTTP/1.0", EVENTS);
    assert_eq!(
        take(&mut server, link),
        format!("{STREAM_OF_1_0}id: 17-0\n")
    );
}

#[test]
fn upgrade_answer_has_the_subprotocol_and_extension_that_the_client_offered() {
    assert_eq!(answer("/sub/full", UPGRADE), format!("{SWITCHING}\n"));
    let protocol = "Sec-WebSocket-Protocol: ws+meta.nchan\n";
    assert_eq!(
        answer("/sub/full", META),
        format!("{SWITCHING}{protocol}\n")
    );
    let other = format!("{UPGRADE}Sec-WebSocket-Protocol: other\r\n");
    assert_eq!(answer("/sub/full", &other), format!("{SWITCHING}\n"));
    let deflate = format!("{UPGRADE}Sec-WebSocket-Extensions: permessage-deflate\r\n");
    let agreed = "Sec-WebSocket-Extensions: permessage-deflate; server_no_context_takeover; \
                  client_no_context_takeover\n";
    assert_eq!(
        answer("/sub/full", &deflate),
        format!("{SWITCHING}{agreed}\n")
    );
    let mut settings = Settings::default();
    settings.deflate.enabled = false;
    let mut server = TestServer::with(settings, TurnLimits::default(), 1);
    let link = asks(&mut server, "/sub/full", &deflate);
    assert_eq!(take(&mut server, link), format!("{SWITCHING}\n"));
}

/// Frames that follow the upgrade request, before its answer, are handled as frames.
#[test]
fn frames_sent_with_the_upgrade_request_are_read_after_the_upgrade() {
    let mut server = server();
    let mut bytes = format!("GET /pub/x HTTP/1.1\r\n{UPGRADE}\r\n");
    // A masked text frame whose mask is all zeros.
    bytes.push_str("\u{1}\u{3}");
    let frame = "\0\0\0\0abc";
    let mut raw = bytes.into_bytes();
    let at = raw.len() - 2;
    (raw[at], raw[at + 1]) = (0x81, 0x83);
    raw.extend_from_slice(frame.as_bytes());
    let link = server.connect_and_send(raw);
    server.settle();
    assert!(take(&mut server, link).starts_with(&format!("{SWITCHING}\n")));
    let link = asks(&mut server, "/sub/x", GET);
    assert!(take(&mut server, link).ends_with("abc"), "it was published");
    // Bytes after the request for an event stream are ignored.
    let link = server.connect_and_send(format!("GET /sub/full HTTP/1.1\r\n{EVENTS}\r\nGET /"));
    server.settle();
    assert!(take(&mut server, link).starts_with(STREAM));
    assert_eq!(server.accounts().receive_bytes, 0);
    assert_eq!(server.accounts().spills, 0);
}

#[test]
fn each_transport_reports_a_gap_in_its_own_form() {
    let target = "/sub/short/1?since=17-0";
    let gap = "Crore-Gap: messages before this one are lost\n";
    let fields = |offset| {
        format!(
            "Content-Type: text/plain; charset=utf-8\nETag: \"17-{offset}\"\n{TIME}{CACHING}{gap}"
        )
    };
    assert_eq!(answer(target, GET), message(&fields(4), "two"));
    let event = gap_event("17-3", "short/1");
    let two = "data: two\nid: 17-4\n\n";
    assert_eq!(
        answer(target, EVENTS),
        format!(
            "{STREAM}{:x}\n{event}\n{:x}\n{two}\n",
            event.len(),
            two.len()
        )
    );
    let mut server = server();
    let link = asks_with(&mut server, &format!("GET {target} HTTP/1.0"), EVENTS);
    assert_eq!(
        take(&mut server, link),
        format!("{STREAM_OF_1_0}{event}{two}")
    );
    let notice = meta("gap: messages before this position are lost\nid: 17-3\n\n");
    let two = meta("id: 17-4\n\ntwo");
    let protocol = "Sec-WebSocket-Protocol: ws+meta.nchan\n";
    assert_eq!(
        answer(target, META),
        format!("{SWITCHING}{protocol}\n{notice}{two}")
    );
    let lost = "\"gap\":\"messages before this position are lost\"";
    let notice = meta(&format!("{{{lost},\"topic\":\"short/1\",\"id\":\"17-3\"}}"));
    let two = meta("{\"topic\":\"short/1\",\"id\":\"17-4\",\"time\":1800000000,\"data\":\"two\"}");
    assert_eq!(
        answer(&format!("{target}&envelope=json"), UPGRADE),
        format!("{SWITCHING}\n{notice}{two}")
    );
    // Plain frames cannot report a gap, so the stream is closed, whatever the rule says.
    let end = "messages are lost; resume from 17-";
    let received = answer(target, UPGRADE);
    assert_eq!(
        received,
        format!("{SWITCHING}\n{}", close(4412, &format!("{end}3")))
    );
    let received = answer("/sub/skips/1?since=17-0", UPGRADE);
    assert!(
        received.contains(end) && !received.contains("two"),
        "{received}"
    );
}

/// A stream may fall behind the log's oldest message. By its topic's rule it then gets a gap and continues, or is closed with the position
/// to resume from. A stream of plain frames cannot report a gap, so it is always closed.
#[test]
fn slow_stream_that_lost_messages_is_closed_or_continues_as_its_rule_says() {
    for (topic, skips) in [("short/1", false), ("skips/1", true)] {
        let json = "&envelope=json";
        for (fields, more, is_socket) in [
            (EVENTS, "", false),
            (META, "", true),
            (UPGRADE, "", true),
            (UPGRADE, json, true),
        ] {
            let mut server = server_with(|limits| limits.outbox_bytes = 30);
            let target = format!("/sub/{topic}?since=live{more}");
            let link = asks(&mut server, &target, fields);
            take(&mut server, link);
            server.set_window(link, Some(1));
            for data in ["3", "4", "5"] {
                server.publish([(topic, "x".repeat(100))]);
                server.settle();
                server.publish([(topic, data.into())]);
                server.settle();
            }
            server.set_window(link, None);
            server.settle();
            let received = take(&mut server, link);
            let goes_on = skips && (fields != UPGRADE || more == json);
            let end = match is_socket {
                true => "messages are lost; resume from 17-",
                false => "\n0\n\n",
            };
            let tells = [GAP_EVENT, "gap: messages", "\"gap\":"]
                .iter()
                .any(|way| received.contains(way));
            assert_eq!(tells, goes_on);
            if goes_on {
                let newest = match (is_socket, more == json) {
                    (true, true) => "\"data\":\"5\"}",
                    (true, false) => "5",
                    (false, _) => "data: 5\n",
                };
                let end = received.rfind("id: ").filter(|_| !is_socket);
                let received = &received[..end.unwrap_or(received.len())];
                assert!(
                    received.ends_with(newest),
                    "{topic} {fields} {}",
                    &received[received.len() - 99..]
                );
                server.publish([(topic, "newest".into())]);
                server.settle();
                assert!(take(&mut server, link).contains("newest"));
            } else {
                assert!(
                    received.contains(end),
                    "{}",
                    &received[received.len() - 99..]
                );
                assert!(
                    !received.contains("\n5") && !received.contains("\"5\""),
                    "not beyond the gap"
                );
            }
        }
    }
}

/// The position of a set of topics begins with the positions that the client sent.
#[test]
fn resumed_stream_of_several_topics_continues_each_topic() {
    let mut server = server();
    let target = "/sub?topic=full&topic=x";
    let link = asks(&mut server, &format!("{target}&since=oldest"), META);
    let received = take(&mut server, link);
    let id = |received: &str, data: &str| {
        let end = received.find(&format!("\n\n{data}")).expect("it came");
        let start = received[..end].rfind("id: ").expect("an id") + 4;
        received[start..].lines().next().expect("a line").to_owned()
    };
    let (first, second) = (id(&received, "one"), id(&received, "two"));
    server.publish([("x", "three".into())]);
    server.settle();
    let third = id(&take(&mut server, link), "three");
    for (since, expected) in [
        (&first, &["two", "three"][..]),
        (&second, &["three"]),
        (&third, &[]),
    ] {
        for fields in [META, EVENTS] {
            let link = asks(&mut server, &format!("{target}&since={since}"), fields);
            let received = take(&mut server, link);
            assert!(!received.contains("gap"), "{received}");
            for data in ["one", "two", "three"] {
                let count = received.matches(&format!("\n\n{data}")).count()
                    + received.matches(&format!("data: {data}\n")).count();
                assert_eq!(
                    count,
                    usize::from(expected.contains(&data)),
                    "{data}: {received}"
                );
            }
        }
    }
    // The same topics in another order are a different set.
    let link = asks(
        &mut server,
        &format!("/sub?topic=x&topic=full&since={first}"),
        META,
    );
    assert_eq!(take(&mut server, link).matches("gap: ").count(), 2);
}
