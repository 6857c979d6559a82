//! Tests headless Chromium (`WebSocket`, `EventSource` and `fetch`), from a page of another origin unless a test says otherwise.

use crate::client::{Client, curl, publish};
use crate::proxy::{Proxy, pass};
use crate::support::Server;
use serde_json::json;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};

/// Serves an empty page on its own port. Returns the page's origin. If there is a server behind the page, all other requests go to that
/// server, as with a site's proxy. The threads end with the test program.
pub fn page(proxy: Option<SocketAddr>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let origin = format!("http://{}", listener.local_addr().expect("an address"));
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            // Each connection has a thread, since a browser opens connections ahead and sends nothing on them for a while.
            std::thread::spawn(move || match proxy {
                Some(server) if !asks_for_the_page(&stream) => pass(&stream, server),
                _ => give_page(stream),
            });
        }
    });
    origin
}

fn asks_for_the_page(stream: &TcpStream) -> bool {
    let mut start = [0; 6];
    let count = stream.peek(&mut start).unwrap_or(0);
    &start[..count] == b"GET / "
}

fn give_page(mut stream: TcpStream) {
    let html = "<!doctype html><title>test</title>";
    let length = html.len();
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n";
    let _ = stream.read(&mut [0; 4096]); // whatever it asks, it gets the page
    let _ = write!(stream, "{head}Content-Length: {length}\r\n\r\n{html}");
}

/// The settings of most tests: the browser reconnects soon.
const RULE: &str = "[[rule]]\nmatch = \"#\"\nsse_retry_ms = 200\n";

/// A browser on a page of the server's own origin. Returns that origin too.
pub fn visit_own(settings: &str) -> (Server, String, Client) {
    let server = Server::with(settings);
    let origin = page(Some(server.address()));
    let browser = Client::node("browser.mjs", &[&origin]);
    browser.next("ready");
    (server, origin, browser)
}

/// A browser on a page whose origin the server allows, behind a network that can be cut.
pub fn visit(rule: &str) -> (Server, Proxy, Client) {
    let origin = page(None);
    let server = Server::with(&format!("[http]\nallowed_origins = [\"{origin}\"]\n{rule}"));
    let proxy = Proxy::to(server.address());
    let browser = Client::node("browser.mjs", &[&origin]);
    browser.next("ready");
    (server, proxy, browser)
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn an_event_source_reconnects_and_resumes() {
    let (server, proxy, mut browser) = visit(RULE);
    browser.tell(&json!({ "do": "eventsource", "url": proxy.url("/sub/news") }));
    server.await_subscribers("news", 1);
    publish(&server, "news", "one");
    assert_eq!(browser.messages(1).0, ["one"]);
    proxy.cut();
    server.await_subscribers("news", 0);
    publish(&server, "news", "two \u{2713}");
    publish(&server, "news", "three\nlines\nlong");
    proxy.mend();
    assert_eq!(
        browser.messages(2).0,
        ["two \u{2713}", "three\nlines\nlong"]
    );
    server.await_subscribers("news", 1);
    publish(&server, "news", "four");
    assert_eq!(browser.messages(1).0, ["four"]);
    browser.expect_quiet();
    curl(&["-X", "DELETE", &server.url("/pub/news")]);
    browser.next("closed");
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_websocket_resumes_and_publishes() {
    let (server, proxy, mut browser) = visit(RULE);
    let url = proxy.url("/sub/news").replacen("http", "ws", 1);
    let open = |since: &str| json!({ "do": "websocket", "url": format!("{url}?since={since}") });
    browser.tell(&open("live"));
    server.await_subscribers("news", 1);
    // Chromium always offers permessage-deflate. This text is long enough for the server to compress it.
    let large = "words that compress, ".repeat(5000);
    publish(&server, "news", &large);
    let (data, position) = browser.messages(1);
    assert!(data[0] == large, "{} bytes came", data[0].len());
    proxy.cut();
    browser.next("closed");
    publish(&server, "news", "two");
    publish(&server, "news", "three");
    proxy.mend();
    browser.tell(&open(&position));
    assert_eq!(browser.messages(2).0, ["two", "three"]);
    server.await_subscribers("news", 1);
    let door = server.url("/pub/news").replacen("http", "ws", 1);
    browser.tell(&json!({ "do": "publish", "url": door, "data": "from the browser" }));
    assert_eq!(browser.messages(1).0, ["from the browser"]);
    browser.expect_quiet();
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn fetch_in_a_loop_needs_no_code_for_positions() {
    // The browser's cache adds the validators of the last answer to the next request by itself.
    let (server, proxy, mut browser) = visit(RULE);
    for text in ["one", "two", "three"] {
        publish(&server, "news", text);
    }
    for expected in ["one", "two", "three"] {
        browser.tell(&json!({ "do": "poll", "url": proxy.url("/sub/news") }));
        assert_eq!(browser.messages(1).0, [expected]);
    }
    browser.tell(&json!({ "do": "poll", "url": proxy.url("/sub/news") }));
    server.await_subscribers("news", 1);
    publish(&server, "news", "four");
    assert_eq!(browser.messages(1).0, ["four"]);
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_page_of_a_foreign_origin_gets_nothing() {
    let (_server, _proxy, mut browser) = visit(RULE);
    let other = Server::start();
    publish(&other, "news", "private");
    browser.tell(&json!({ "do": "websocket", "url": other.url("/sub/news?since=oldest").replacen("http", "ws", 1) }));
    browser.at_once("closed");
    browser.tell(&json!({ "do": "poll", "url": other.url("/sub/news") }));
    browser.at_once("refused");
    browser.expect_quiet();
}
