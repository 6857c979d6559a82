//! Tests the console's views: a topic that does not exist, subscribers by filter, invalid names, charts, a hidden page, the keyboard, and
//! a phone.

use std::io::Write;
use std::net::TcpStream;
use std::process::Command;

use crore_wire::mqtt::Version;
use serde_json::{Value, json};

use crate::client::{curl, publish};
use crate::console::{Browser, url};
use crate::support::mqtt::Conn;
use crate::support::{Server, until};

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn topic_that_does_not_exist_yet_can_be_published_to_from_the_search() {
    let server = Server::with_admin("");
    let mut browser = Browser::on(&server, "/topics/new%2Fone");
    browser.click("a:text-is('Publish to new/one')");
    browser.fill("textarea[name=data]", "the first");
    browser.click("form button[type=submit]");
    browser.expect(".kept li pre", "^the first$");
    browser.expect(".tail .messages pre", "^the first$");
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn filter_in_the_form_of_another_server_gets_a_suggestion() {
    let server = Server::with_admin("");
    publish(&server, "scores/1", "x");
    let mut browser = Browser::on(&server, "/topics");
    browser.expect("section[aria-labelledby=topics] tbody tr", "^scores/1");
    browser.fill("input[name=filter]", "scores/*");
    browser.click("form button[type=submit]");
    browser.expect(
        ".foreign",
        r"no wildcards in scores/\*.*scores/\+.*or.*scores/#",
    );
    browser.click(".foreign button:text-is('scores/#')");
    browser.expect("section[aria-labelledby=topics] tbody tr", "^scores/1");
    assert!(browser.texts(".foreign").is_empty());
    browser.expect_no_complaints();
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn opening_a_topic_that_does_not_exist_does_not_create_it() {
    let server = Server::with_admin("");
    let topics = || {
        let url = format!("http://{}/api/v1/topics", server.admin());
        let topics: Value = serde_json::from_str(&curl(&[&url])).expect("topics");
        topics["topics"].as_array().expect("a list").len()
    };
    let mut browser = Browser::on(&server, "/topic/typo");
    browser.expect(".tail", "No such topic yet");
    browser.expect(".tail [role=status]", "waiting");
    assert_eq!(topics(), 0);
    // The topic's first message is shown, whoever publishes it.
    publish(&server, "typo", "from elsewhere");
    browser.expect(".tail .messages pre", "^from elsewhere$");
    browser.expect(".tail [role=status]", "live");
    // An operator can listen to a topic before it exists.
    browser.tell(json!({ "do": "open", "url": url(&server, "/topic/wanted") }));
    browser.click(".tail button:text-is('Create it and listen')");
    browser.expect(".tail [role=status]", "live");
    until("the topic", || topics() == 2);
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn chart_lines_with_equal_values_are_distinguishable() {
    let server = Server::with_admin("");
    let mut browser = Browser::on(&server, "/");
    browser.expect("[data-tile=connections] .value", "^0$");
    browser.expect(".chart:first-child h2", "collecting");
    // No transport has a connection, so the four lines of the chart lie on each other.
    until("all lines", || {
        let colors = browser.tell(json!({ "do": "colors", "at": ".chart:first-child canvas" }));
        colors.as_array().expect("colours").len() >= 4
    });
    browser.expect(".chart:first-child h2", "by transport$");
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn each_connection_has_a_page_with_its_protocol_and_subscriptions() {
    let server = Server::with_admin("");
    let mut client = Conn::to_server(&server, Version::V5);
    client.resume("hall/sensor 7");
    client.subscribe("doors/+", 1);
    client.subscribe("news", 0);
    client.subscribe("$share/workers/jobs", 2);
    let mut browser = Browser::on(&server, "/connections");
    browser.click(".connections tbody a");
    for (selector, pattern) in [
        (".facts", "ProtocolMQTT 5.0.*TLSnot at this server"),
        (
            ".facts",
            "Client idhall/sensor 7.*Keep alive1 h.*In flight0 of 100",
        ),
        (".facts", "Session after its end10 min"),
        (
            ".facts",
            "Connected since[0-9]{4}-[0-9]{2}-[0-9]{2} [0-9:]{8}State",
        ),
        (
            ".connection table",
            "QoSdoors/\\+filter1newstopic0\\$share/workers/jobsshared in the group workers2$",
        ),
    ] {
        browser.expect(selector, pattern);
    }
    browser.click(".connection button:text-is('Disconnect')");
    browser.click(".connection [role=alertdialog] button.danger");
    browser.expect(".connection", "There is no such connection");
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn absent_session_is_inspected_and_ended_after_a_confirmation() {
    let server = Server::with_admin("");
    let mut client = Conn::to_server(&server, Version::V5);
    client.resume("hall/sensor 7");
    client.subscribe("doors/+", 1);
    drop(client);
    let mut browser = Browser::on(&server, "/connections");
    browser.expect(".sessions tbody tr", "hall/sensor 7");
    browser.click(".sessions tbody a");
    browser.expect(".session table", "doors/\\+.*1");
    browser.click(".session button:text-is('End this session')");
    browser.click(".session [role=alertdialog] button.quiet");
    browser.click(".session button:text-is('End this session')");
    browser.click(".session [role=alertdialog] button.danger");
    browser.expect(".session", "No session of this client is away");
    let mut reconnected = Conn::to_server(&server, Version::V5);
    assert!(!reconnected.resume("hall/sensor 7"), "it has no session");
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn latency_of_a_single_delivery_is_drawn() {
    let server = Server::with_admin("");
    let mut stream = TcpStream::connect(server.address()).expect("a connection");
    let head = "GET /sub/news HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("a request");
    server.await_subscribers("news", 1);
    let mut browser = Browser::on(&server, "/");
    let p99 = "[data-tile=p99]";
    browser.expect(p99, "no delivery yet");
    let lines = |browser: &mut Browser| {
        let selector = ".chart:nth-child(2) canvas";
        let colors = browser.tell(json!({ "do": "colors", "at": selector }));
        colors.as_array().expect("colours").len()
    };
    let lines_before = lines(&mut browser);
    publish(&server, "news", "alone");
    // The next second has no value, so no line leads to it.
    browser.expect(p99, "no delivery in the last second");
    until("the point", || lines(&mut browser) > lines_before);
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn each_connection_is_a_card_on_a_phone() {
    let server = Server::with_admin("");
    let mut stream = TcpStream::connect(server.address()).expect("a connection");
    let head = "GET /sub/news HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("a request");
    let mut browser = Browser::on(&server, "/");
    let address = url(&server, "/connections");
    browser.tell(json!({ "do": "open", "url": address, "size": [390, 844] }));
    browser.expect(".connections tbody tr", "SSE.*news");
    let hidden = browser.tell(json!({ "do": "hidden", "at": ".connections .scroll" }));
    assert_eq!(hidden, 0, "so many pixels need a scroll bar");
    browser.expect_no_complaints();
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn subscribers_by_filter_are_shown_apart_from_those_by_name() {
    let server = Server::with_admin("");
    publish(&server, "news/1", "x");
    let mut browser = Browser::on(&server, "/topics");
    browser.expect("section[aria-labelledby=topics] tbody tr", "^news/10");
    let hint = "section[aria-labelledby=topics]";
    assert!(!browser.texts(hint).concat().contains("not counted"));
    let mut stream = TcpStream::connect(server.address()).expect("a connection");
    let head =
        "GET /sub?filter=news/%23 HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n";
    stream.write_all(head.as_bytes()).expect("a request");
    browser.expect(hint, "Some clients subscribe by filter");
    browser.click("section[aria-labelledby=topics] .hint a");
    browser.expect(".connections tbody tr", "SSE.*news/#");
    browser.expect_no_complaints();
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn invalid_filter_or_name_is_reported_once_and_not_requested_again() {
    let server = Server::with_admin("");
    let mut browser = Browser::on(&server, "/topics");
    browser.click("button[aria-pressed=false]");
    browser.expect(".tail [role=status]", "live");
    browser.fill("input[name=filter]", "a/#/b");
    browser.click("form button[type=submit]");
    browser.expect("[role=alert]", "is not a filter");
    assert_eq!(browser.texts("[role=alert], .tail").len(), 1);
    browser.click("button[aria-pressed]");
    browser.expect("button[aria-pressed]", ".");
    assert_eq!(browser.texts("[role=alert], .tail").len(), 1);
    let invalid_url = url(&server, "/topic/a%2B");
    browser.tell(json!({ "do": "open", "url": invalid_url, "clock": true }));
    browser.expect("[role=alert]", "is not a topic");
    assert_eq!(browser.texts("[role=alert], .tail, form").len(), 1);
    let complaints = browser.tell(json!({ "do": "complaints" }));
    browser.tell(json!({ "do": "later", "ms": 60_000 }));
    assert_eq!(browser.tell(json!({ "do": "complaints" })), complaints);
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn hidden_page_holds_no_stream_and_misses_no_message() {
    let server = Server::with_admin("");
    let connections = || {
        let url = format!("http://{}/api/v1/stats", server.admin());
        let stats: Value = serde_json::from_str(&curl(&[&url])).expect("stats");
        stats["connections"]["total"].as_u64().expect("a count")
    };
    publish(&server, "news", "before");
    let mut browser = Browser::on(&server, "/topic/news");
    browser.expect(".tail [role=status]", "live");
    until("a tail", || connections() == 1);
    browser.tell(json!({ "do": "hide", "hidden": true }));
    until("no tail", || connections() == 0);
    publish(&server, "news", "meanwhile");
    browser.tell(json!({ "do": "hide", "hidden": false }));
    browser.expect(".tail .messages pre", "^meanwhile$");
    browser.expect(".link", "live");
    browser.expect_no_complaints();
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn keyboard_alone_answers_a_question() {
    let server = Server::with_admin("");
    publish(&server, "a/b", "kept");
    let mut browser = Browser::on(&server, "/topic/a%2Fb");
    browser.expect(".kept li", "kept");
    browser.click(".kept .row button");
    browser.expect(".kept [role=alertdialog]", "1 kept message");
    assert_eq!(browser.manners()["focus"], "Keep them");
    browser.tell(json!({ "do": "press", "keys": "Escape" }));
    assert_eq!(browser.texts(".kept [role=alertdialog]"), [""; 0]);
    assert_eq!(browser.manners()["focus"], "Purge");
    browser.tell(json!({ "do": "press", "keys": "Enter" }));
    browser.expect(".kept [role=alertdialog]", "1 kept message");
    browser.tell(json!({ "do": "press", "keys": "Shift+Tab" }));
    browser.tell(json!({ "do": "press", "keys": "Enter" }));
    browser.expect(".kept [role=status]", "^1 message removed.$");
    browser.expect_no_complaints();
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn settings_are_shown_with_their_source_and_rules_with_what_differs() {
    let server = Server::with_admin(
        "[limits]\ntopics_max = 1234\n[[rule]]\nmatch = \"chat/#\"\nlog_messages = 7\n",
    );
    let mut browser = Browser::on(&server, "/settings");
    for (name, row) in [
        ("limits.topics_max", "^limits.topics_max1234file"),
        ("heartbeat.interval_s", "^heartbeat.interval_s50default"),
        ("limits.connections_max", "chosen by the server"),
    ] {
        browser.fill("input[name=wanted]", name);
        browser.expect(".settings tbody tr", row);
        assert_eq!(browser.texts(".settings tbody tr").len(), 1, "{name}");
    }
    browser.expect(".rules tbody tr", "^chat/#log_messages = 7$");
    browser.expect_no_complaints();
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn absent_mqtt_session_is_listed_until_its_client_reconnects() {
    let server = Server::with_admin("");
    let mut browser = Browser::on(&server, "/connections");
    browser.expect(".connections", "No client is connected.$");
    let port = server.address().port().to_string();
    let subscribe = [
        "-V", "5", "-p", &port, "-c", "-i", "phone-7", "-x", "3600", "-q", "1", "-t", "orders/+",
    ];
    let mosquitto = || Command::new("mosquitto_sub");
    // The client subscribes, and leaves its session behind.
    let status = mosquitto().args(subscribe).arg("-E").status();
    assert!(status.expect("mosquitto_sub starts").success());
    browser.expect(".sessions tbody tr", "^phone-7.*min");
    let mut resumed = mosquitto().args(subscribe).spawn().expect("it starts");
    browser.expect(".connections tbody tr", "phone-7");
    until("no session is away", || {
        browser.texts(".sessions").is_empty()
    });
    browser.expect_no_complaints();
    let _ = resumed.kill();
    let _ = resumed.wait();
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn first_message_is_one_click_away() {
    let server = Server::with_admin("");
    let mut browser = Browser::on(&server, "/");
    browser.click(".first a.button");
    browser.fill("textarea[name=data]", "first message");
    browser.click("form button[type=submit]");
    browser.expect(".tail .messages pre", "^first message$");
}
