//! Tests `curl`, Python's `websockets` and `httpx`, Node's `ws` and `eventsource`. The tests over a network that cuts connections are in
//! `cut`.

use crate::client::{Client, curl, publish};
use crate::proxy::Proxy;
use crate::support::Server;

/// The client receives one message, disconnects, misses two, and connects again with its position. It receives exactly those two and the
/// next one. `start` takes the URL and, the second time, the position.
fn disconnects_and_resumes(start: impl Fn(&str, &[&str]) -> Client) {
    let server = Server::start();
    let url = server.url("/sub/news");
    publish(&server, "news", "before");
    let client = start(&url, &["live"]);
    server.await_subscribers("news", 1);
    publish(&server, "news", "one");
    let (data, position) = client.messages(1);
    assert_eq!(data, ["one"]);
    drop(client);
    server.await_subscribers("news", 0);
    publish(&server, "news", "two \u{2713}");
    publish(&server, "news", "three\nlines\nlong");
    let client = start(&url, &[&position]);
    assert_eq!(client.messages(2).0, ["two \u{2713}", "three\nlines\nlong"]);
    server.await_subscribers("news", 1);
    publish(&server, "news", "four");
    assert_eq!(client.messages(1).0, ["four"]);
    client.expect_quiet();
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn python_websockets() {
    disconnects_and_resumes(|url, extra| {
        Client::python("websockets_client.py", &[&[url], extra].concat())
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn python_httpx_event_stream() {
    disconnects_and_resumes(|url, extra| {
        Client::python("httpx_stream.py", &[&[url], extra].concat())
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn python_httpx_long_poll() {
    disconnects_and_resumes(|url, extra| {
        Client::python("httpx_poll.py", &[&[url], extra].concat())
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn node_ws() {
    disconnects_and_resumes(|url, extra| Client::node("ws_client.mjs", &[&[url], extra].concat()));
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn node_ws_and_python_websockets_publish() {
    let server = Server::start();
    let receiver = Client::node("ws_client.mjs", &[&server.url("/sub/news"), "live"]);
    server.await_subscribers("news", 1);
    let large = "words that compress, ".repeat(5000);
    for (script, python) in [("ws_client.mjs", false), ("websockets_client.py", true)] {
        let url = server.url("/pub/news");
        let mut publisher = if python {
            Client::python(script, &[&url, "live"])
        } else {
            Client::node(script, &[&url, "live"])
        };
        publisher.next("open");
        for text in ["small", large.as_str()] {
            publisher.tell(&serde_json::json!({ "send": text }));
            assert_eq!(receiver.messages(1).0, [text], "from {script}");
        }
    }
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn node_eventsource_reconnects_by_itself() {
    let server = Server::with("[[rule]]\nmatch = \"#\"\nsse_retry_ms = 200\n");
    let proxy = Proxy::to(server.address());
    let client = Client::node("eventsource_client.mjs", &[&proxy.url("/sub/news")]);
    server.await_subscribers("news", 1);
    publish(&server, "news", "one");
    assert_eq!(client.messages(1).0, ["one"]);
    proxy.cut();
    server.await_subscribers("news", 0);
    publish(&server, "news", "two");
    publish(&server, "news", "three\nlines\nlong");
    proxy.mend();
    assert_eq!(client.messages(2).0, ["two", "three\nlines\nlong"]);
    server.await_subscribers("news", 1);
    publish(&server, "news", "four");
    assert_eq!(client.messages(1).0, ["four"]);
    client.expect_quiet();
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn node_eventsource_stops_when_the_topic_is_deleted() {
    let server = Server::with("[[rule]]\nmatch = \"#\"\nsse_retry_ms = 200\n");
    let client = Client::node("eventsource_client.mjs", &[&server.url("/sub/news")]);
    server.await_subscribers("news", 1);
    publish(&server, "news", "one");
    client.messages(1);
    curl(&["-X", "DELETE", &server.url("/pub/news")]);
    client.next("closed");
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn curl_long_polls_with_if_none_match() {
    let server = Server::start();
    let url = server.url("/sub/news");
    for text in ["one", "two", "three"] {
        publish(&server, "news", text);
    }
    let mut tag = None::<String>;
    for expected in ["one", "two", "three"] {
        let condition = tag.as_ref().map(|tag| format!("If-None-Match: {tag}"));
        let with_condition: Vec<&str> = condition
            .iter()
            .flat_map(|field| ["-H", field.as_str()])
            .collect();
        let answer = curl(&[&["-i"], with_condition.as_slice(), &[url.as_str()]].concat());
        let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
        assert_eq!(body, expected);
        let field = head
            .lines()
            .find(|line| line.to_ascii_lowercase().starts_with("etag:"))
            .expect("an ETag");
        tag = Some(field["etag:".len()..].trim().to_string());
    }
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn curl_follows_etags_by_its_own_means() {
    // curl keeps the position (the ETag) in a file, by `--etag-save` and `--etag-compare`.
    let server = Server::start();
    let file = std::env::temp_dir().join(format!("crore-etag-{}", std::process::id()));
    let file = file.to_str().expect("a path in UTF-8");
    let url = server.url("/sub/news");
    for text in ["one", "two"] {
        publish(&server, "news", text);
    }
    for expected in ["one", "two"] {
        assert_eq!(
            curl(&["--etag-compare", file, "--etag-save", file, &url]),
            expected
        );
    }
    let _ = std::fs::remove_file(file);
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn curl_reads_an_event_stream() {
    let server = Server::start();
    for text in ["one", "two"] {
        publish(&server, "news", text);
    }
    let stream = server.url("/sub/news?since=oldest");
    // The stream never ends by itself, so curl is given two seconds and fails by its timeout.
    let output = std::process::Command::new("curl")
        .args([
            "-sSN",
            "--max-time",
            "2",
            "-H",
            "Accept: text/event-stream",
            &stream,
        ])
        .output()
        .expect("curl starts");
    let text = String::from_utf8(output.stdout).expect("UTF-8");
    let data: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .collect();
    assert_eq!(data, ["one", "two"], "{text}");
    let last = text
        .lines()
        .filter_map(|line| line.strip_prefix("id: "))
        .next_back()
        .expect("an id");
    publish(&server, "news", "three");
    let resumed = std::process::Command::new("curl")
        .args(["-sSN", "--max-time", "2", "-H", "Accept: text/event-stream"])
        .args([
            "-H",
            &format!("Last-Event-ID: {last}"),
            &server.url("/sub/news"),
        ])
        .output()
        .expect("curl starts");
    let text = String::from_utf8(resumed.stdout).expect("UTF-8");
    let data: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("data: "))
        .collect();
    assert_eq!(data, ["three"], "{text}");
}
