//! Tests topic names in HTTP requests, and the paths that contain them.

use crate::support::Server;
use crate::support::http::{Conn, once, publish};
use crate::support::ws::{Ws, handshake};

#[test]
fn bad_names_are_400_with_the_reason() {
    let server = Server::start();
    let long = format!("/pub/{}", "x".repeat(256));
    let bad_names = [
        "/pub/a%2Fb",
        "/pub/a%2fb",
        "/pub/a%00b",
        "/pub/a%0Ab",
        "/pub/a%0d",
        "/pub/a%7Fb",
        "/pub/a%C2%85b",
        "/pub/a/../b",
        "/pub/./a",
        "/pub/a/..",
        "/pub/%2e%2e/a",
        "/pub/a/%2E",
        "/pub/a//b",
        "/pub/a/",
        "/pub/%zz",
        "/pub/a%",
        "/pub/a%4",
        "/pub/%ff%fe",
        "/pub/%C0%80",
        &long,
        "/pub?topic=",
        "/pub?topic=a%00b",
        "/pub?topic=%zz",
        "/pub?topic=a&channel=",
    ];
    for door in ["/pub", "/sub"] {
        for target in bad_names {
            let target = target.replacen("/pub", door, 1);
            let method = if door == "/pub" { "POST" } else { "GET" };
            let response = once(&server, method, &target, &[], "");
            assert_eq!(response.status, 400, "{method} {target}");
            assert!(
                !response.body.is_empty(),
                "{method} {target} is told no reason"
            );
        }
    }
}

#[test]
fn good_names_reach_the_same_topic_by_every_spelling() {
    let server = Server::start();
    let spellings: &[(&str, &str)] = &[
        ("/pub/a/b", "/sub?topic=a%2Fb"),
        ("/pub/caf%C3%A9", "/sub?topic=caf%c3%a9"),
        ("/pub/%61b%63", "/sub/abc"),
        ("/pub?topic=empty//level", "/sub?topic=empty%2F%2Flevel"),
        ("/pub?channel=old", "/sub/old"),
        ("/pub/once%252F", "/sub?topic=once%252F"),
        ("/pub/a:b@c,d;e=f", "/sub?topic=a:b@c,d;e=f"),
        ("/pub/with%20space", "/sub?channel=with%20space"),
    ];
    for (number, (publish, subscribe)) in spellings.iter().enumerate() {
        let body = format!("message {number}");
        let published = once(&server, "POST", publish, &[], &body);
        assert_eq!(published.status, 202, "{publish}: {published:?}");
        let received = once(&server, "GET", subscribe, &[], "");
        assert_eq!(
            (received.status, received.text()),
            (200, body.as_str()),
            "{publish} {subscribe}"
        );
    }
}

#[test]
fn plus_sign_is_no_space_and_the_answer_gives_the_escape() {
    let server = Server::start();
    publish(&server, "living%20room", "spaced");
    for target in [
        "/pub?topic=living+room",
        "/pub/living+room",
        "/sub?channel=living+room",
        "/sub?filter=living+room/%23",
        "/interest?match=living+room",
    ] {
        let plus = once(&server, "GET", target, &[], "");
        assert_eq!(plus.status, 400, "{target}");
        assert!(plus.text().contains("a space is %20"), "{target}: {plus:?}");
    }
    let space = once(&server, "GET", "/sub?topic=living%20room", &[], "");
    assert_eq!(space.text(), "spaced");
}

#[test]
fn wildcards_of_other_servers_are_refused_with_a_suggested_filter() {
    let server = Server::start();
    for (target, suggested) in [
        ("/sub/scores/*", "`scores/+`"),
        ("/sub/scores.%3E", "`scores/#`"),
        ("/sub/scores/%3E", "`scores/#`"),
        ("/sub/scores/**", "`scores/#`"),
        ("/sub?filter=scores/*", "`scores/+`"),
        ("/history/scores/*", "`scores/+`"),
        ("/interest?match=scores.*", "`scores/+`"),
    ] {
        let answer = once(&server, "GET", target, &[], "");
        assert_eq!(answer.status, 400, "{target}: {answer:?}");
        let text = answer.text();
        assert!(
            text.contains(suggested) && text.contains("?filter="),
            "{target}: {text}"
        );
    }
    assert_eq!(once(&server, "POST", "/pub/scores/*", &[], "x").status, 400);
    // In MQTT `*` is an ordinary character of a topic name, so `?topic=` and `?filter=` accept it.
    let literal = once(&server, "POST", "/pub?topic=scores/*", &[], "a star");
    assert_eq!(literal.status, 202, "{literal:?}");
    for target in [
        "/sub?topic=scores/*",
        "/sub?filter=%2B/*",
        "/sub?filter=scores/%2B",
    ] {
        assert_eq!(
            once(&server, "GET", target, &[], "").text(),
            "a star",
            "{target}"
        );
    }
    assert_eq!(once(&server, "POST", "/pub/a*b", &[], "x").status, 202);
}

#[test]
fn a_control_character_is_named_by_its_range() {
    let server = Server::start();
    for name in ["a%C2%85b", "a%C2%80", "a%C2%9F", "a%00", "a%7F"] {
        for target in [
            format!("/pub/{name}"),
            format!("/sub?topic={name}"),
            format!("/sub?filter={name}/%23"),
            format!("/interest?match={name}"),
        ] {
            let answer = once(&server, "GET", &target, &[], "");
            assert_eq!(answer.status, 400, "{target}");
            let text = answer.text();
            assert!(text.contains("U+007F to U+009F"), "{target}: {text}");
        }
    }
    assert_eq!(once(&server, "POST", "/pub/a%C2%A0b", &[], "x").status, 202);
}

#[test]
fn a_target_that_is_not_ascii_is_400_with_the_remedy() {
    let server = Server::start();
    publish(&server, "caf%C3%A9", "x");
    let targets: [&[u8]; 6] = [
        b"/pub/caf\xc3\xa9",
        b"/pub/caf\xe9",
        b"/pub?topic=caf\xc3\xa9",
        b"/sub/a?since=\xff",
        b"http://localhost/pub/caf\xc3\xa9",
        b"/nothing/\x80",
    ];
    for target in targets {
        let mut conn = Conn::open(&server);
        conn.send([b"GET ", target, b" HTTP/1.1\r\nHost: localhost\r\n\r\n"].concat());
        let answer = conn.response();
        assert_eq!(answer.status, 400, "{}", target.escape_ascii());
        assert!(answer.text().contains("percent-encode"), "{answer:?}");
    }
    assert_eq!(once(&server, "GET", "/pub/caf%C3%A9", &[], "").status, 200);
}

#[test]
fn no_client_publishes_to_reserved_topics_over_any_protocol() {
    let server = Server::start();
    for name in [
        "/$sys",
        "/$SYS/broker/uptime",
        "/%24y",
        "?topic=$sys",
        "?topic=%24y",
    ] {
        let publish = format!("/pub{name}");
        for (method, body) in [("POST", "x"), ("PUT", ""), ("DELETE", "")] {
            let answer = once(&server, method, &publish, &[], body);
            assert_eq!(answer.status, 403, "{method} {publish}: {answer:?}");
        }
        for door in ["/pub", "/pubsub"] {
            for extra_headers in [&[][..], &[("Sec-WebSocket-Protocol", "ws+meta.nchan")]] {
                let mut conn = Conn::open(&server);
                conn.ask(
                    "GET",
                    &format!("{door}{name}"),
                    &handshake(extra_headers),
                    "",
                );
                assert_eq!(conn.head().status, 403, "upgrade on {door}{name}");
            }
        }
        // Clients may subscribe to these topics, since the server itself publishes to them.
        Ws::open(&server, &format!("/sub{name}"), &[]);
    }
    let batch = "{\"topic\":\"$y\",\"data\":1}\n{\"topic\":\"a\",\"data\":1}\n";
    let ndjson = [("Content-Type", "application/x-ndjson")];
    let answer = once(&server, "POST", "/pub", &ndjson, batch).json();
    assert_eq!(
        (&answer["published"], &answer["failed"][0]["line"]),
        (&1.into(), &1.into())
    );
    assert_eq!(
        once(&server, "POST", "/pub/a/$b", &[], "x").status,
        202,
        "only at the front"
    );
}

#[test]
fn a_request_without_a_topic_is_refused() {
    let server = Server::start();
    for (method, target) in [
        ("POST", "/pub"),
        ("GET", "/pub"),
        ("GET", "/sub"),
        ("GET", "/sub?since=oldest"),
    ] {
        let status = once(&server, method, target, &[], "").status;
        assert_eq!(status, 400, "{method} {target}");
    }
}

#[test]
fn other_paths_are_404() {
    let server = Server::start();
    for target in ["/nothing", "/publish/a", "/subs", "/pubs/a", "/favicon.ico"] {
        assert_eq!(
            once(&server, "GET", target, &[], "").status,
            404,
            "{target}"
        );
    }
}

#[test]
fn path_prefixes_are_settings() {
    let server = Server::with(
        "[http]\npublish_paths = [\"/msgq/post\"]\nsubscribe_paths = [\"/msgq/listen\"]\n",
    );
    let mut conn = Conn::open(&server);
    assert_eq!(
        conn.request("POST", "/msgq/post?channel=pb", &[], "hello")
            .status,
        202
    );
    assert_eq!(conn.get("/msgq/listen?channel=pb", &[]).text(), "hello");
    assert_eq!(conn.get("/msgq/listen/pb", &[]).text(), "hello");
    assert_eq!(conn.get("/sub/pb", &[]).status, 404);
}
