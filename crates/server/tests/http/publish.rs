//! Tests publishes of messages and batches, and the info about a topic in the format of Nchan.

use crate::support::Server;
use crate::support::http::{Conn, info, once, publish};
use crate::support::ws::{Ws, line};

/// The names and values of the four lines of a topic's info, in Nchan's text format.
fn fields(text: &str) -> Vec<(String, String)> {
    let lines = text.lines().map(|line| {
        line.split_once(": ")
            .unwrap_or_else(|| panic!("{line:?} in {text:?}"))
    });
    lines
        .map(|(name, value)| (name.to_string(), value.to_string()))
        .collect()
}

#[test]
fn publish_is_202_without_and_201_with_a_subscriber() {
    let server = Server::start();
    assert_eq!(publish(&server, "news", "kept").status, 202);
    let mut subscriber = Ws::open(&server, "/sub/news", &[]);
    server.await_subscribers("news", 1);
    assert_eq!(publish(&server, "news", "live").status, 201);
    assert_eq!(subscriber.message().text(), "live");
}

#[test]
fn waiting_long_poll_counts_as_a_live_subscriber() {
    let server = Server::start();
    let mut poll = Conn::open(&server);
    poll.ask("GET", "/sub/news", &[], "");
    server.await_subscribers("news", 1);
    assert_eq!(publish(&server, "news", "now").status, 201);
    assert_eq!(poll.response().text(), "now");
}

#[test]
fn answered_long_poll_is_no_live_subscriber() {
    let server = Server::start();
    for round in 0..50 {
        let topic = format!("t/{round}");
        publish(&server, &topic, "kept");
        assert_eq!(
            once(&server, "GET", &format!("/sub/{topic}"), &[], "").text(),
            "kept"
        );
        assert_eq!(
            publish(&server, &topic, "kept too").status,
            202,
            "round {round}"
        );
    }
}

#[test]
fn publish_answer_has_the_topic_info_as_text() {
    let server = Server::start();
    let response = publish(&server, "news", "one");
    assert!(
        response
            .header("content-type")
            .is_some_and(|kind| kind.starts_with("text/plain")),
        "{response:?}"
    );
    let fields = fields(response.text());
    let names: Vec<&str> = fields.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(
        names,
        [
            "queued messages",
            "last requested",
            "active subscribers",
            "last message id"
        ]
    );
    assert_eq!(fields[0].1, "1");
    assert_eq!(fields[2].1, "0");
    assert!(!fields[3].1.is_empty());
    // A GET answers the same text as the POST.
    let topic_info = once(&server, "GET", "/pub/news", &[], "");
    assert_eq!(
        (topic_info.status, topic_info.text()),
        (200, response.text())
    );
}

#[test]
fn publish_answer_has_the_topic_info_as_json() {
    let server = Server::start();
    for accept in [
        "application/json",
        "text/json",
        "text/html;q=0.5, application/json",
    ] {
        let response = once(&server, "POST", "/pub/news", &[("Accept", accept)], "x");
        let kind = response.header("content-type").unwrap_or_default();
        assert!(kind.contains("json"), "{accept}: {kind}");
        let json = response.json();
        let object = json.as_object().expect("an object");
        let mut names: Vec<&str> = object.keys().map(String::as_str).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            ["last_message_id", "messages", "requested", "subscribers"]
        );
        assert!(
            json["messages"].is_u64() && json["subscribers"].is_u64() && json["requested"].is_i64(),
            "{json}"
        );
        assert!(json["last_message_id"].is_string(), "{json}");
    }
    assert_eq!(info(&server, "news")["messages"], 3);
}

#[test]
fn the_last_message_id_is_a_position() {
    let server = Server::start();
    publish(&server, "news", "one");
    let id = info(&server, "news")["last_message_id"]
        .as_str()
        .expect("a position")
        .to_string();
    publish(&server, "news", "two");
    let next_message = once(
        &server,
        "GET",
        &format!("/sub/news?last_event_id={id}"),
        &[],
        "",
    );
    assert_eq!((next_message.status, next_message.text()), (200, "two"));
}

#[test]
fn put_creates_a_topic_and_get_answers_its_info() {
    let server = Server::start();
    assert_eq!(once(&server, "GET", "/pub/news", &[], "").status, 404);
    assert_eq!(once(&server, "PUT", "/pub/news", &[], "").status, 201);
    assert_eq!(once(&server, "PUT", "/pub/news", &[], "").status, 200);
    assert_eq!(once(&server, "GET", "/pub/news", &[], "").status, 200);
    assert_eq!(info(&server, "news")["messages"], 0);
}

#[test]
fn log_keeps_as_many_messages_as_its_rule_allows() {
    let server = Server::with(
        "[[rule]]\nmatch = \"few/#\"\nlog_messages = 3\n[[rule]]\nmatch = \"none\"\nlog_messages = 0\n",
    );
    for number in 0..12 {
        for topic in ["many", "few/x", "none"] {
            publish(&server, topic, number.to_string());
        }
    }
    assert_eq!(info(&server, "many")["messages"], 12, "the default");
    assert_eq!(info(&server, "few/x")["messages"], 3);
    assert_eq!(info(&server, "none")["messages"], 0);
    assert_eq!(
        once(&server, "GET", "/sub/few/x", &[], "").text(),
        "9",
        "the oldest that is kept"
    );
}

#[test]
fn a_message_expires_with_its_age() {
    let server = Server::with("[[rule]]\nmatch = \"#\"\nlog_age_s = 1\n");
    publish(&server, "news", "old");
    server.await_kept("news", 0);
    let mut poll = Conn::open(&server);
    poll.ask("GET", "/sub/news", &[], "");
    server.await_subscribers("news", 1);
    publish(&server, "news", "new");
    assert_eq!(poll.response().text(), "new");
}

#[test]
fn every_byte_and_the_content_type_are_delivered() {
    let server = Server::start();
    let bytes: Vec<u8> = (0..=255).cycle().take(70_000).collect();
    let mut conn = Conn::open(&server);
    let sent = conn.request(
        "POST",
        "/pub/bytes",
        &[("Content-Type", "image/x-all; a=\"b\"")],
        &bytes,
    );
    assert_eq!(sent.status, 202);
    let received = conn.get("/sub/bytes", &[]);
    assert_eq!(
        received.header("content-type").as_deref(),
        Some("image/x-all; a=\"b\"")
    );
    assert!(received.body == bytes, "{} bytes", received.body.len());
}

#[test]
fn batch_publishes_its_lines_and_reports_failures_by_line() {
    let server = Server::start();
    let batch = concat!(
        r#"{"topic":"raw","data":"plain \u0041"}"#,
        "\n",
        r#"{"topic":"json","data":{"a":[1,2]},"content_type":"application/json"}"#,
        "\n",
        r#"{"topic":"bytes","data_base64":"AAH/","content_type":"application/octet-stream"}"#,
        "\n",
        r#"{"topic":"event","data":"x","event":"tick"}"#,
        "\n",
        "this is no JSON\n",
        r#"{"topic":"a\u0000b","data":"x"}"#,
        "\n",
        r#"{"topic":"raw","data":"x","content_type":"a\r\nX-Evil: 1"}"#,
        "\n",
        r#"{"topic":"raw","data":"x","event":"a\nid: 1"}"#,
        "\n",
        r#"{"topic":"$sys/x","data":"x"}"#,
        "\n",
        r#"{"data":"no topic"}"#,
        "\n",
        r#"{"topic":"last","data":"no line break follows"}"#,
    );
    let response = once(
        &server,
        "POST",
        "/pub",
        &[("Content-Type", "application/x-ndjson")],
        batch,
    );
    assert_eq!(response.status, 200, "{response:?}");
    let text = response.json().to_string();
    for line in 5..=10 {
        assert!(
            text.contains(&line.to_string()),
            "line {line} failed and is not named in {text}"
        );
    }
    assert_eq!(once(&server, "GET", "/sub/raw", &[], "").text(), "plain A");
    let json = once(&server, "GET", "/sub/json", &[], "");
    assert_eq!(json.json(), serde_json::json!({"a": [1, 2]}));
    assert_eq!(
        json.header("content-type").as_deref(),
        Some("application/json")
    );
    assert_eq!(
        once(&server, "GET", "/sub/bytes", &[], "").body,
        [0, 1, 255]
    );
    assert_eq!(info(&server, "raw")["messages"], 1);
    assert_eq!(
        once(&server, "GET", "/sub/last", &[], "").text(),
        "no line break follows"
    );
}

#[test]
fn fields_of_a_message_are_text_without_control_characters() {
    let server = Server::start();
    let mut reader = Ws::meta(&server, "/sub/news");
    server.await_subscribers("news", 1);
    let headers: [(&[u8], &str); 8] = [
        (b"Content-Type: text/pl\xe9in", "content type is not UTF-8"),
        (
            b"Content-Type: text/plain;\tcharset=utf-8",
            "content type holds a control",
        ),
        (b"X-EventSource-Event: a\xff", "event name is not UTF-8"),
        (b"X-EventSource-Event: a\tb", "event name holds a control"),
        (
            b"X-EventSource-Event: a\xc2\x85b",
            "event name holds a control",
        ),
        (b"Crore-Key: \xe9", "key is not UTF-8"),
        (b"Crore-Key: a\tb", "key holds a control"),
        (
            &[b"Crore-Key: ", &b"x"[..].repeat(256)[..]].concat(),
            "key is longer than 255 bytes",
        ),
    ];
    let mut conn = Conn::open(&server);
    for (header, reason) in headers {
        let start = b"POST /pub/news HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n";
        conn.send([start, header, b"\r\n\r\nx"].concat());
        let answer = conn.response();
        let shown = String::from_utf8_lossy(header);
        assert_eq!(answer.status, 400, "{shown}");
        assert!(answer.text().contains(reason), "{shown}: {}", answer.text());
    }
    for field in ["content_type", "event", "key"] {
        let line = format!("{{\"topic\":\"news\",\"data\":1,\"{field}\":\"a\\tb\"}}");
        let ndjson = [("Content-Type", "application/x-ndjson")];
        let answer = conn.request("POST", "/pub", &ndjson, line).json();
        let reason = answer["failed"][0]["reason"].as_str().expect("a reason");
        assert!(
            reason.contains("holds a control character"),
            "{field}: {reason}"
        );
    }
    // Whitespace around a header's value is not part of the value (RFC 9110 section 5.5).
    let around = [
        ("Content-Type", "\ttext/pl\u{e4}in\t"),
        ("Crore-Key", "\u{e9}"),
    ];
    assert_eq!(conn.request("POST", "/pub/news", &around, "x").status, 201);
    let (lines, data) = reader.meta_message();
    assert_eq!(
        (line(&lines, "content-type"), &data[..]),
        ("text/pl\u{e4}in", &b"x"[..])
    );
}

#[test]
fn batch_with_no_published_line_is_an_error() {
    let server = Server::start();
    let publish = |batch: &str| {
        let headers = [("Content-Type", "application/x-ndjson")];
        once(&server, "POST", "/pub", &headers, batch)
    };
    let refused = publish("{\"channel\":\"news\",\"data\":1}\nno JSON\n");
    assert_eq!(refused.status, 400, "{refused:?}");
    let answer = refused.json();
    assert_eq!(answer["published"], 0, "{answer}");
    assert_eq!(answer["failed"][1]["line"], 2, "{answer}");
    let partly_published = publish("{\"topic\":\"news\",\"data\":1}\nno JSON\n");
    assert_eq!(partly_published.status, 200, "{partly_published:?}");
    assert_eq!(
        partly_published.json()["published"],
        1,
        "{partly_published:?}"
    );
    assert_eq!(publish("").status, 200, "no line is no fault");
}

#[test]
fn refused_batch_line_names_the_same_remedy_as_a_refused_message() {
    let headers = [("Content-Type", "application/x-ndjson")];
    let line = r#"{"topic":"news","data":1}"#;
    let server = Server::with("[limits]\npublishes_per_s = 1\n");
    let mut conn = Conn::open(&server);
    let refused = (0..100).find_map(|_| {
        let answer = conn.request("POST", "/pub", &headers, line);
        (answer.status != 200).then_some(answer)
    });
    let refused = refused.expect("past the rate");
    assert_eq!(refused.status, 503, "{refused:?}");
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    let server = Server::with("[access]\n");
    let refused = once(&server, "POST", "/pub", &headers, line);
    assert_eq!(refused.status, 401, "{refused:?}");
    assert!(refused.header("www-authenticate").is_some(), "{refused:?}");
}

#[test]
fn a_batch_of_one_topic_keeps_its_order() {
    let server = Server::with("[[rule]]\nmatch = \"#\"\nlog_messages = 10000\n");
    let mut subscriber = Ws::open(&server, "/sub/news", &[]);
    server.await_subscribers("news", 1);
    let lines: Vec<String> = (0..5000)
        .map(|number| format!("{{\"topic\":\"news\",\"data\":\"{number}\"}}\n"))
        .collect();
    let response = once(
        &server,
        "POST",
        "/pub",
        &[("Content-Type", "application/x-ndjson")],
        &lines.concat(),
    );
    assert_eq!(response.status, 200, "{response:?}");
    let expected: Vec<String> = (0..5000).map(|number| number.to_string()).collect();
    assert_eq!(subscriber.texts(5000), expected);
}

#[test]
fn a_batch_has_limits() {
    let server = Server::with("[limits]\nbatch_lines = 100\nbatch_bytes = 20000\n");
    let lines = r#"{"topic":"t","data":"x"}"#.to_string() + "\n";
    let kind = [("Content-Type", "application/x-ndjson")];
    assert_eq!(
        once(&server, "POST", "/pub", &kind, &lines.repeat(100)).status,
        200
    );
    let batch = once(&server, "POST", "/pub", &kind, &lines.repeat(105));
    let text = batch.json().to_string();
    assert!(
        batch.status == 200 && text.contains("101"),
        "the line past the limit is told: {batch:?}"
    );
    let last_line = "{\"topic\":\"last\",\"data\":\"x\"}";
    assert_eq!(
        once(
            &server,
            "POST",
            "/pub",
            &kind,
            &(lines.repeat(100) + last_line)
        )
        .status,
        200
    );
    assert_eq!(
        once(&server, "GET", "/pub/last", &[], "").status,
        404,
        "line 101 was not published"
    );
    let large = format!("{{\"topic\":\"t\",\"data\":\"{}\"}}\n", "x".repeat(30_000));
    let refusal = once(&server, "POST", "/pub", &kind, &large);
    assert_eq!(refusal.status, 413);
    assert!(refusal.text().contains("limits.batch_bytes"));
}

#[test]
fn many_publishes_to_many_homes_are_answered_in_order() {
    let server = Server::start();
    let mut conn = Conn::open(&server);
    let json = [("Accept", "application/json")];
    let mut text = Vec::new();
    for number in 0..200 {
        // Each topic gets another number of messages, which shows to which request an answer belongs.
        for _ in 0..=number % 3 {
            text.extend(conn.request_bytes(
                "POST",
                &format!("/pub/pipeline/{number}"),
                &json,
                b"x",
            ));
        }
    }
    conn.send(text);
    for number in 0..200 {
        for nth in 0..=number % 3 {
            let response = conn.response();
            assert_eq!(response.status, 202);
            assert_eq!(response.json()["messages"], nth + 1, "topic {number}");
        }
    }
}

#[test]
fn default_content_type_of_curl_counts_as_none() {
    let server = Server::start();
    let form = "application/x-www-form-urlencoded";
    for (sent, received) in [
        (form, "text/plain; charset=utf-8"),
        (
            "Application/X-WWW-Form-URLEncoded",
            "text/plain; charset=utf-8",
        ),
        (
            "application/x-www-form-urlencoded; charset=utf-8",
            "application/x-www-form-urlencoded; charset=utf-8",
        ),
        ("text/html", "text/html"),
    ] {
        let topic = format!("t{}", sent.len());
        let target = format!("/pub/{topic}");
        once(&server, "POST", &target, &[("Content-Type", sent)], "a=1");
        let response = once(&server, "GET", &format!("/sub/{topic}?since=-1"), &[], "");
        assert_eq!(
            response.header("content-type").as_deref(),
            Some(received),
            "{sent}"
        );
        let target = format!("/sub/{topic}?since=-1&envelope=json");
        let envelope = once(&server, "GET", &target, &[], "").text().to_string();
        assert_eq!(
            envelope.contains("content_type"),
            !received.starts_with("text/plain"),
            "{envelope}"
        );
    }
}

#[test]
fn json_object_with_a_topic_gets_the_form_of_a_batch() {
    let server = Server::start();
    let json = [("Content-Type", "application/json")];
    let object = r#"{"topic":"a","data":"x"}"#;
    let answer = once(&server, "POST", "/pub", &json, object);
    assert_eq!(answer.status, 400);
    for words in ["/pub/news", "?topic=news", "application/x-ndjson"] {
        assert!(answer.text().contains(words), "{words}: {}", answer.text());
    }
    let ndjson = [("Content-Type", "application/x-ndjson")];
    let answer = once(&server, "POST", "/pub", &ndjson, object);
    assert_eq!(answer.json()["published"], 1);
}

#[test]
fn unknown_fields_of_a_batch_are_named() {
    let server = Server::start();
    let ndjson = [("Content-Type", "application/x-ndjson")];
    let long = "x".repeat(1000);
    let lines = [
        r#"{"topic":"a","dta":1}"#.to_string(),
        format!(r#"{{"topic":"a","data":1,"{long}":1}}"#),
        r#"{"topic":"a","data":1,"a\u001b[2J":1}"#.to_string(),
    ];
    let answer = once(&server, "POST", "/pub", &ndjson, &lines.join("\n")).json();
    let reason = |n: usize| answer["failed"][n]["reason"].as_str().unwrap().to_string();
    assert!(
        reason(0).starts_with("`dta` is an unknown field; a line has topic"),
        "{}",
        reason(0)
    );
    assert!(
        reason(1).starts_with(&format!("`{}...` is", &long[..40])),
        "{}",
        reason(1)
    );
    assert!(reason(2).starts_with(r"`a\x1b[2J` is"), "{}", reason(2));
}
