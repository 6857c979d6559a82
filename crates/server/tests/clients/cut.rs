//! Tests clients that reconnect by themselves while messages go on. Every connection is cut in the middle of a message, and each client
//! receives exactly what was published, from the first message to the last.

use crate::browser;
use crate::client::{Client, publish};
use crate::proxy::Proxy;
use crate::support::Server;
use serde_json::json;
use std::process::Command;

/// Number of messages in a run.
const MESSAGES: usize = 60;
/// The minimum of cuts in a run.
const CUTS_MIN: usize = 8;
/// The server keeps all messages, and browsers reconnect soon.
const RULE: &str = "[[rule]]\nmatch = \"#\"\nlog_messages = 1000\nsse_retry_ms = 60\n";

/// Queries of the URL. An event source sends the same query again when it reconnects, but its Last-Event-ID has precedence.
const QUERIES: [&str; 3] = ["", "?since=oldest", "?since=live"];

/// Texts of different lengths, so that a cut falls anywhere in a message.
fn text(number: usize) -> String {
    format!(
        "message {number} \u{2713} {}",
        "x".repeat(number * 37 % 500)
    )
}

/// Publishes while the connections of `client` are cut again and again. The client must receive everything.
fn gets_everything(server: &Server, proxy: &Proxy, client: &Client) {
    server.await_subscribers("news", 1);
    let (got, expected) = std::thread::scope(|scope| {
        scope.spawn(|| (0..MESSAGES).for_each(|number| publish(server, "news", &text(number))));
        let expected: Vec<String> = (0..MESSAGES).map(text).collect();
        (client.messages(MESSAGES).0, expected)
    });
    assert_eq!(got, expected);
    client.expect_quiet();
    assert!(proxy.cuts() >= CUTS_MIN, "{} cuts", proxy.cuts());
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_browsers_event_source() {
    for query in QUERIES {
        let (server, _, mut browser) = browser::visit(RULE);
        let proxy = Proxy::chopping(server.address());
        let url = proxy.url(&format!("/sub/news{query}"));
        browser.tell(&json!({ "do": "eventsource", "url": url }));
        gets_everything(&server, &proxy, &browser);
    }
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn node_eventsource() {
    for query in QUERIES {
        let server = Server::with(RULE);
        let proxy = Proxy::chopping(server.address());
        let url = proxy.url(&format!("/sub/news{query}"));
        let client = Client::node("eventsource_client.mjs", &[&url]);
        gets_everything(&server, &proxy, &client);
    }
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn python_websockets_with_since() {
    let server = Server::with(RULE);
    let proxy = Proxy::chopping(server.address());
    let client = Client::python("websockets_resume.py", &[&proxy.url("/sub/news")]);
    gets_everything(&server, &proxy, &client);
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn curl_with_if_none_match() {
    let server = Server::with(RULE);
    let proxy = Proxy::chopping(server.address());
    let url = proxy.url("/sub/news");
    let (mut got, mut tag, mut failures) = (Vec::new(), None::<String>, 0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            (0..MESSAGES).for_each(|number| publish(&server, "news", &text(number).repeat(4)));
        });
        while got.len() < MESSAGES {
            let mut curl = Command::new("curl");
            curl.args(["-sSi", "--max-time", "30"]);
            if let Some(tag) = &tag {
                curl.args(["-H", &format!("If-None-Match: {tag}")]);
            }
            let output = curl.arg(&url).output().expect("curl starts");
            if !output.status.success() {
                // The request was cut off, so curl asks again with the tag that it had.
                failures += 1;
                assert!(failures < 10 * MESSAGES, "{output:?}");
                continue;
            }
            let answer = String::from_utf8(output.stdout).expect("text");
            let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
            assert!(
                head.starts_with("HTTP/1.1 200") && !head.contains("Crore-Gap"),
                "{head}"
            );
            let field = head.lines().find_map(|line| line.strip_prefix("ETag: "));
            tag = Some(field.expect("an ETag").trim().to_string());
            got.push(body.to_string());
        }
    });
    let expected: Vec<String> = (0..MESSAGES).map(|number| text(number).repeat(4)).collect();
    assert_eq!(got, expected);
    assert!(failures >= CUTS_MIN, "{failures} were cut off");
}
