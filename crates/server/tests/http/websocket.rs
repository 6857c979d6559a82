//! Tests WebSocket with correct clients: the handshake and the framing of RFC 6455, the meta subprotocol, and how a client resumes.
//! `ws_violations` has the incorrect clients.

use serde_json::{Value, json};

use crate::support::http::{Conn, info, once, publish};
use crate::support::ws::{
    ACCEPT, BINARY, CLOSE, CONTINUATION, FIN, Frame, KEY, PING, PONG, TEXT, Ws, handshake, line,
    masked,
};
use crate::support::{Server, connect};

#[test]
fn handshake_follows_rfc_6455() {
    let server = Server::start();
    let ws = Ws::open(&server, "/sub/news", &[]);
    assert_eq!(
        ws.head.header("sec-websocket-accept").as_deref(),
        Some(ACCEPT)
    );
    assert!(ws.head.lists("connection", "upgrade"), "{:?}", ws.head);
    assert_eq!(
        ws.head
            .header("upgrade")
            .map(|value| value.to_lowercase())
            .as_deref(),
        Some("websocket")
    );
    assert_eq!(
        ws.head.header("sec-websocket-protocol"),
        None,
        "none was offered"
    );
    assert_eq!(
        ws.head.header("sec-websocket-extensions"),
        None,
        "none was offered"
    );
    // Browsers send lists of values, and names in any case.
    let accepted_forms = [
        ("Connection", "keep-alive, UPGRADE"),
        ("Upgrade", "WebSocket"),
    ];
    let mut conn = Conn::open(&server);
    let headers = [&accepted_forms[..], &handshake(&[])[2..]].concat();
    conn.ask("GET", "/sub/news", &headers, "");
    assert_eq!(conn.head().status, 101);
    // RFC 6455 section 4.1: the server selects only what was offered.
    let unknown = Ws::open(
        &server,
        "/sub/news",
        &[("Sec-WebSocket-Protocol", "chat, superchat")],
    );
    assert_eq!(unknown.head.header("sec-websocket-protocol"), None);
    let offered_with_others = Ws::open(
        &server,
        "/sub/news",
        &[("Sec-WebSocket-Protocol", "chat, ws+meta.nchan")],
    );
    assert_eq!(
        offered_with_others
            .head
            .header("sec-websocket-protocol")
            .as_deref(),
        Some("ws+meta.nchan")
    );
}

#[test]
fn a_wrong_handshake_is_refused_in_http() {
    let server = Server::start();
    let without_header = |name: &str| {
        handshake(&[])
            .into_iter()
            .filter(|(other, _)| *other != name)
            .collect::<Vec<_>>()
    };
    let with_header = |name: &'static str, value: &'static str| {
        [without_header(name), vec![(name, value)]].concat()
    };
    for headers in [
        without_header("Sec-WebSocket-Key"),
        with_header("Sec-WebSocket-Key", "short"),
        with_header("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ"),
        with_header(
            "Sec-WebSocket-Key",
            "dGhlIHNhbXBsZSBub25jZSBpcyB0b28gbG9uZw==",
        ),
        [
            handshake(&[]),
            vec![("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ==")],
        ]
        .concat(),
    ] {
        let mut conn = Conn::open(&server);
        conn.ask("GET", "/sub/news", &headers, "");
        assert_eq!(conn.head().status, 400, "{headers:?}");
    }
    for version in ["8", "12", "14", "x"] {
        let headers = with_header("Sec-WebSocket-Version", version);
        let mut conn = Conn::open(&server);
        conn.ask("GET", "/sub/news", &headers, "");
        let head = conn.head();
        // RFC 6455 section 4.2.2: the answer names the version that the server speaks.
        assert_eq!(head.status, 426, "{head:?}");
        assert_eq!(
            head.header("sec-websocket-version").as_deref(),
            Some("13"),
            "{head:?}"
        );
    }
    let mut conn = Conn::open(&server);
    conn.ask("POST", "/pubsub/news", &handshake(&[]), "");
    assert_eq!(conn.head().status, 405);
}

#[test]
fn content_type_decides_between_text_and_binary() {
    let server = Server::start();
    let mut ws = Ws::open(&server, "/sub/news", &[]);
    server.await_subscribers("news", 1);
    let table: [(&str, &[u8], u8); 6] = [
        ("text/plain", b"text", TEXT),
        ("application/json", b"{}", TEXT),
        ("application/octet-stream", b"text", BINARY),
        ("text/plain", b"\xff\xfe", BINARY),
        ("image/png", b"\x89PNG", BINARY),
        ("text/plain", "caf\u{e9}".as_bytes(), TEXT),
    ];
    for (kind, body, opcode) in table {
        Conn::open(&server).request("POST", "/pub/news", &[("Content-Type", kind)], body);
        assert_eq!(
            ws.message(),
            Frame {
                first: FIN | opcode,
                payload: body.to_vec()
            },
            "{kind}"
        );
    }
}

#[test]
fn frame_lengths_are_sent_in_their_shortest_form() {
    let server = Server::start();
    let mut ws = Ws::open(&server, "/pubsub/news", &[]);
    server.await_subscribers("news", 1);
    for length in [0, 1, 125, 126, 127, 65_535, 65_536, 300_000, 1 << 20] {
        let payload: Vec<u8> = (0..length).map(|index| b'a' + (index % 23) as u8).collect();
        ws.send(FIN | TEXT, &payload);
        let message = ws.message();
        assert!(
            message.payload == payload,
            "{length}: {} bytes came",
            message.payload.len()
        );
    }
}

#[test]
fn meta_subprotocol_has_position_and_type() {
    let server = Server::start();
    let mut ws = Ws::meta(&server, "/sub/news");
    server.await_subscribers("news", 1);
    publish(&server, "news", "one\n\ntwo");
    let (lines, data) = ws.meta_message();
    assert_eq!(data, b"one\n\ntwo");
    assert_eq!(line(&lines, "content-type"), "text/plain");
    assert_eq!(lines[0].0, "id", "as with Nchan");
    assert_eq!(line(&lines, "id"), info(&server, "news")["last_message_id"]);
}

#[test]
fn position_resumes_after_its_message() {
    let server = Server::start();
    let mut ws = Ws::meta(&server, "/sub/news");
    server.await_subscribers("news", 1);
    for number in 0..5 {
        publish(&server, "news", number.to_string());
    }
    let ids: Vec<String> = (0..5)
        .map(|_| line(&ws.meta_message().0, "id").to_string())
        .collect();
    drop(ws);
    publish(&server, "news", "5");
    for (number, id) in ids.iter().enumerate() {
        let expected: Vec<String> = (number + 1..6).map(|number| number.to_string()).collect();
        for query in ["since", "last_event_id"] {
            let mut resumed = Ws::open(&server, &format!("/sub/news?{query}={id}"), &[]);
            assert_eq!(
                resumed.texts(expected.len()),
                expected,
                "{query} of {number}"
            );
        }
    }
    let mut oldest = Ws::open(&server, "/sub/news?since=oldest", &[]);
    assert_eq!(oldest.texts(6), ["0", "1", "2", "3", "4", "5"]);
    let mut newest = Ws::open(&server, "/sub/news?since=-2", &[]);
    assert_eq!(newest.texts(2), ["4", "5"]);
}

#[test]
fn first_envelope_has_the_position_before_the_first_message() {
    let server = Server::with_shards(2, "");
    publish(&server, "old", "kept");
    let object =
        |ws: &mut Ws| -> Value { serde_json::from_str(&ws.message().text()).expect("JSON") };
    for target in [
        "/sub/new?envelope=json",
        "/sub/old?envelope=json&since=live",
        "/pubsub/new?envelope=json",
        "/sub?topic=new&topic=other&envelope=json",
        "/sub?filter=%23&envelope=json",
    ] {
        let topic = if target.contains("old") { "old" } else { "new" };
        let mut ws = Ws::open(&server, target, &[]);
        let beginning = object(&mut ws);
        let id = beginning["id"].as_str().expect("a position").to_string();
        assert_eq!(beginning, json!({ "id": id }), "{target}");
        // The client is cut off before its first message, and resumes with the position of the first object.
        drop(ws);
        let data = format!("missed by {target}");
        publish(&server, topic, &data);
        let path = target.replace("&since=live", "");
        let mut ws = Ws::open(&server, &format!("{path}&since={id}"), &[]);
        assert_eq!(object(&mut ws)["data"], data, "{target}");
    }
    // If a message comes at once, it carries its own position. Without envelopes there is no place for a position before it.
    let mut ws = Ws::open(&server, "/sub/old?envelope=json&since=oldest", &[]);
    assert_eq!(object(&mut ws)["data"], "kept");
    let opens: [fn(&Server, &str) -> Ws; 2] =
        [|server, target| Ws::open(server, target, &[]), Ws::meta];
    for open in opens {
        let mut ws = open(&server, "/sub/quiet?since=live");
        server.await_subscribers("quiet", 1);
        publish(&server, "quiet", "first");
        assert!(ws.message().text().ends_with("first"));
        drop(ws);
        server.await_subscribers("quiet", 0);
    }
}

#[test]
fn resume_during_publishes_loses_and_repeats_no_message() {
    let server = Server::with("[[rule]]\nmatch = \"#\"\nlog_messages = 1000\n");
    let address = server.address();
    let publisher = std::thread::spawn(move || {
        let stream = connect(address);
        let mut ws = PublisherOnly(stream);
        ws.publish_numbers(400);
    });
    let mut received = Vec::new();
    let mut since = "oldest".to_string();
    while received.len() < 400 {
        let mut ws = Ws::meta(&server, &format!("/sub/news?since={since}"));
        for _ in 0..37.min(400 - received.len()) {
            let (lines, data) = ws.meta_message();
            since = line(&lines, "id").to_string();
            received.push(String::from_utf8(data).expect("a number"));
        }
    }
    publisher.join().expect("the publisher");
    let expected: Vec<String> = (0..400).map(|number| number.to_string()).collect();
    assert_eq!(received, expected);
}

/// A keep-alive connection that publishes a number every few milliseconds.
struct PublisherOnly(std::net::TcpStream);

impl PublisherOnly {
    fn publish_numbers(&mut self, count: usize) {
        use std::io::{Read, Write};
        let host = self.0.peer_addr().expect("a peer");
        for number in 0..count {
            let body = number.to_string();
            let length = body.len();
            let text = format!(
                "POST /pub/news HTTP/1.1\r\nHost: {host}\r\nContent-Length: {length}\r\n\r\n{body}"
            );
            self.0.write_all(text.as_bytes()).expect("it is sent");
            let mut answer = [0; 2048];
            assert!(self.0.read(&mut answer).expect("an answer") > 0);
            std::thread::sleep(std::time::Duration::from_millis(2)); // the pace of the load
        }
    }
}

#[test]
fn frames_are_published_on_paths_for_both_directions() {
    let server = Server::start();
    let mut subscriber = Ws::open(&server, "/sub/news", &[]);
    let mut pubsub = Ws::open(&server, "/pubsub/news", &[]);
    let mut publisher = Ws::open(&server, "/pub/news", &[]);
    server.await_subscribers("news", 2);
    publisher.send(FIN | TEXT, "from pub");
    assert_eq!(
        (subscriber.texts(1), pubsub.texts(1)),
        (vec!["from pub".into()], vec!["from pub".into()])
    );
    pubsub.send(FIN | BINARY, "from pubsub");
    assert_eq!(
        subscriber.message(),
        Frame {
            first: FIN | BINARY,
            payload: b"from pubsub".to_vec()
        }
    );
    assert_eq!(pubsub.message().payload, b"from pubsub");
    assert_eq!(info(&server, "news")["messages"], 2);
}

#[test]
fn meta_subprotocol_acknowledges_publishes() {
    let server = Server::start();
    let mut ws = Ws::meta(&server, "/pub/news");
    for number in 1..=3 {
        ws.send(FIN | TEXT, "x");
        assert!(!ws.message().payload.is_empty(), "an acknowledgement");
        assert_eq!(
            info(&server, "news")["messages"],
            number,
            "it is in the log when it is acknowledged"
        );
    }
}

#[test]
fn slow_fragments_are_one_message() {
    let server = Server::start();
    let mut ws = Ws::open(&server, "/pubsub/news", &[]);
    server.await_subscribers("news", 1);
    let text = "caf\u{e9} \u{1f600}".as_bytes();
    for split in 1..text.len() {
        // A text may be split within a character (RFC 6455 section 5.6).
        let frames = [
            masked(TEXT, &text[..split]),
            masked(CONTINUATION, b""),
            masked(FIN | CONTINUATION, &text[split..]),
        ];
        if split == 4 {
            ws.conn.dribble(frames.concat());
        } else {
            ws.conn.send(frames.concat());
        }
        assert_eq!(
            ws.message(),
            Frame {
                first: FIN | TEXT,
                payload: text.to_vec()
            },
            "split at {split}"
        );
    }
    assert_eq!(info(&server, "news")["messages"], text.len() - 1);
}

#[test]
fn control_frames_are_accepted_between_fragments() {
    let server = Server::start();
    let mut ws = Ws::open(&server, "/pubsub/news", &[]);
    server.await_subscribers("news", 1);
    ws.send(TEXT, "be");
    ws.send(FIN | PING, "payload");
    assert_eq!(
        ws.frame(),
        Frame {
            first: FIN | PONG,
            payload: b"payload".to_vec()
        }
    );
    ws.send(FIN | PONG, "nobody asked");
    ws.send(FIN | CONTINUATION, "fore");
    assert_eq!(ws.message().text(), "before");
    ws.send(FIN | PING, "");
    assert_eq!(
        ws.frame(),
        Frame {
            first: FIN | PONG,
            payload: Vec::new()
        }
    );
}

#[test]
fn frames_in_one_segment_with_the_handshake_are_read() {
    let server = Server::start();
    let mut conn = Conn::open(&server);
    let mut bytes = conn.request_bytes("GET", "/pub/news", &handshake(&[]), b"");
    for text in ["one", "two", "three"] {
        bytes.extend(masked(FIN | TEXT, text.as_bytes()));
    }
    bytes.extend(masked(FIN | PING, b"done"));
    conn.send(bytes);
    assert_eq!(conn.head().status, 101);
    let mut ws = Ws {
        head: once(&server, "GET", "/pub/x", &[], ""),
        conn,
    };
    assert_eq!(
        ws.frame(),
        Frame {
            first: FIN | PONG,
            payload: b"done".to_vec()
        }
    );
    let mut oldest = Ws::open(&server, "/sub/news?since=oldest", &[]);
    assert_eq!(oldest.texts(3), ["one", "two", "three"]);
}

#[test]
fn a_close_is_answered_with_its_code() {
    let server = Server::start();
    for code in [1000_u16, 1001, 1003, 1011, 3000, 4999] {
        let mut ws = Ws::open(&server, "/sub/news", &[]);
        ws.send(FIN | CLOSE, [&code.to_be_bytes()[..], b"bye"].concat());
        assert_eq!(ws.frame().close_code(), Some(code));
        assert!(ws.conn.ends(), "{code}");
    }
    let mut ws = Ws::open(&server, "/sub/news", &[]);
    ws.send(FIN | CLOSE, "");
    assert_eq!(ws.frame().opcode(), CLOSE);
    assert!(ws.conn.ends());
    server.await_subscribers("news", 0);
}

#[test]
fn silent_client_gets_pings_and_is_closed_if_it_does_not_answer() {
    let server = Server::with("[heartbeat]\ninterval_s = 5\njitter_percent = 0\n");
    let mut silent_client = Ws::open(&server, "/sub/news", &[]);
    let mut answering_client = Ws::open(&server, "/sub/news", &[]);
    assert_eq!(silent_client.frame().opcode(), PING);
    let ping = answering_client.frame();
    assert_eq!(ping.opcode(), PING);
    answering_client.send(FIN | PONG, &ping.payload);
    assert_eq!(silent_client.frame().opcode(), PING);
    // After the third interval without a pong the server ends the connection, with or without a Close frame.
    let read = silent_client.conn.fill();
    assert!(read == 0 || silent_client.conn.take()[0] == FIN | CLOSE);
    let mut next = answering_client.frame();
    while next.opcode() == PING {
        answering_client.send(FIN | PONG, &next.payload);
        publish(&server, "news", "still here");
        next = answering_client.frame();
    }
    assert_eq!(next.text(), "still here");
}

#[test]
fn handshake_key_is_that_of_rfc_6455() {
    // Checks the constants of this test.
    assert_eq!((KEY.len(), ACCEPT.len()), (24, 28));
}

/// Nchan's own client reads `id`, perhaps `content-type`, and an empty line. Any other line breaks it.
#[test]
fn topic_is_named_only_if_there_are_several() {
    let server = Server::start();
    for text in ["one", "two", "three"] {
        publish(&server, "news", text);
    }
    for target in [
        "/sub/news?since=oldest",
        "/sub?topic=news&since=oldest",
        "/sub?topic=news&topic=news&since=oldest",
        "/pubsub/news?since=oldest",
    ] {
        let mut ws = Ws::meta(&server, target);
        for text in ["one", "two", "three"] {
            let (lines, data) = ws.meta_message();
            let names: Vec<&str> = lines.iter().map(|(name, _)| name.as_str()).collect();
            assert_eq!(names, ["id", "content-type"], "{target}");
            assert_eq!(data, text.as_bytes(), "{target}");
        }
    }
    // Live messages take another path through the server than messages of the log.
    let mut ws = Ws::meta(&server, "/sub/news");
    server.await_subscribers("news", 1);
    once(
        &server,
        "POST",
        "/pub/news",
        &[("Content-Type", "")],
        "live",
    );
    let (lines, data) = ws.meta_message();
    let names: Vec<&str> = lines.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!((names, &data[..]), (vec!["id"], &b"live"[..]));
    // A gap (the notice of missed messages) names no topic either.
    let mut ws = Ws::meta(&server, "/sub/news?since=1a-0");
    let (lines, _) = ws.meta_message();
    let names: Vec<&str> = lines.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["gap", "id"]);
    for target in ["/sub?topic=news&topic=b", "/sub?filter=news"] {
        let mut ws = Ws::meta(&server, &format!("{target}&since=1a-0"));
        let mut gaps = 0;
        while let (lines, data) = ws.meta_message()
            && data.is_empty()
        {
            assert_eq!(lines[0].0, "gap", "{target}");
            assert!(["news", "b"].contains(&line(&lines, "topic")), "{target}");
            gaps += 1;
        }
        assert!(gaps > 0, "{target}");
        let (lines, _) = ws.meta_message();
        assert_eq!(line(&lines, "topic"), "news", "{target}");
        assert_eq!(lines[0].0, "id");
    }
}
