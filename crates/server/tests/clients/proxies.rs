//! Tests that all protocols work through the proxies of `docs/proxies` ([`fronts`](crate::fronts)), and that subscriptions survive while
//! the server is down.

use crate::client::{Client, publish};
use crate::fronts::{CLIENT_ADDRESS, Front, HOST_NAME, replace_in_sample, sample, url};
use crate::support::port::metric;
use crate::support::{PATIENCE, Server, until};
use serde_json::{Value, json};
use std::process::Command;

/// The client address of the only connection with this transport, as `crore admin connections` prints it.
fn address(server: &Server, transport: &str) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_crore"))
        .args([
            "admin",
            "--url",
            &format!("http://{}", server.admin()),
            "--json",
        ])
        .args(["connections", "--transport", transport])
        .output()
        .expect("crore starts");
    let report: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let list = report["connections"].as_array().expect("a list");
    assert_eq!(list.len(), 1, "{report}");
    list[0]["address"].as_str().expect("an address").to_string()
}

/// The next line that `curl` prints, which may be JSON.
fn line(client: &Client) -> String {
    match client.within(PATIENCE) {
        Some(Value::String(text)) => text,
        Some(value) => value.to_string(),
        None => panic!("no line came"),
    }
}

/// Clients of every transport talk through the proxy.
fn assert_clients_work(front: &Front, server: &Server) {
    // A POST, and a batch that is larger than proxies accept by default.
    front.curl(&[
        "--fail",
        "-H",
        "Content-Type: text/plain",
        "-d",
        "one",
        &url("/pub/news"),
    ]);
    let data = "x".repeat(1_000);
    let batch: String = (0..3_000)
        .map(|n| json!({ "topic": "batch", "data": format!("{n}{data}") }).to_string() + "\n")
        .collect();
    let file = front.directory.join("batch");
    std::fs::write(&file, batch).expect("a file");
    let body = format!("@{}", file.display());
    let kind = "Content-Type: application/x-ndjson";
    let answer = front.curl(&["--fail", "-H", kind, "--data-binary", &body, &url("/pub")]);
    assert!(answer.contains("3000"), "{answer}");

    // An event stream: each message arrives at once, while the stream goes on.
    let mut stream = front.start_curl(&[
        "-H",
        "Accept: text/event-stream",
        &url("/sub/news?since=oldest"),
    ]);
    while line(&stream) != "data: one" {}
    server.await_subscribers("news", 1);
    assert_eq!(address(server, "sse"), CLIENT_ADDRESS);
    publish(server, "news", "two");
    while line(&stream) != "data: two" {}
    // When a client goes, the connection behind the proxy ends too.
    stream.kill();
    server.await_subscribers("news", 0);

    // A long-poll that gets a message, and one that times out.
    let poll = front.start_curl(&[&url("/sub/poll/a")]);
    server.await_subscribers("poll/a", 1);
    assert_eq!(address(server, "longpoll"), CLIENT_ADDRESS);
    publish(server, "poll/a", "three");
    assert_eq!(line(&poll), "three");
    let status = ["-o", "/dev/null", "-w", "%{http_code}", &url("/sub/short")];
    assert_eq!(front.curl(&status), "204");

    let (to, root) = (
        format!("https://{HOST_NAME}:{}/sub/ws", front.addr().port()),
        front.root_certificate.display().to_string(),
    );
    let socket = Client::node("ws_client.mjs", &[&to, "live", &root, CLIENT_ADDRESS]);
    socket.next("open");
    server.await_subscribers("ws", 1);
    assert_eq!(address(server, "websocket"), CLIENT_ADDRESS);
    publish(server, "ws", "four");
    assert_eq!(socket.messages(1).0, ["four"]);
}

/// The page of the quick start on the proxy's site, which has the same origin as the server behind the proxy.
fn assert_page_works(front: &Front, server: &Server) {
    let map = format!("MAP {HOST_NAME}:443 {}", front.addr());
    let mut browser = Client::node("console.mjs", &[&map, "--ignore-certificate-errors"]);
    browser.next("ready");
    let mut act = |command: Value| {
        browser.tell(&command);
        browser.at_once("done")["value"].clone()
    };
    act(json!({ "do": "open", "url": url(&format!("/?topic=page&server={}", url(""))) }));
    for (transport, name, position) in [("sse", "EventSource", 1), ("ws", "WebSocket", 2)] {
        act(json!({ "do": "select", "at": "#by", "value": transport }));
        act(json!({ "do": "expect", "at": "#state", "like": format!("^connected by {name}$") }));
        server.await_subscribers("page", 1);
        act(json!({ "do": "fill", "at": "#words", "text": name }));
        act(json!({ "do": "click", "at": "#say button" }));
        let item = format!("#heard li:nth-child({position})");
        act(json!({ "do": "expect", "at": item, "like": format!("^{name}$") }));
    }
    assert_eq!(act(json!({ "do": "complaints" })), json!([]));
}

/// A page with an `EventSource` that does not open another one by itself.
const STREAM: &str = r#"<!doctype html><title>stream</title><p id="errors">0</p><p id="state"></p><ul id="heard"></ul><script>
const at = (id) => document.getElementById(id);
const source = new EventSource("/sub/news");
source.onmessage = (event) => (at("heard").innerHTML += `<li>${event.data}</li>`);
source.onerror = () => {
  at("errors").textContent = Number(at("errors").textContent) + 1;
  at("state").textContent = source.readyState === EventSource.CLOSED ? "closed" : "";
};
</script>"#;

/// The page's `EventSource` goes on when the server is back: the proxy answers it while there is no server.
fn assert_stream_resumes_after_restart(front: &Front, server: Server) {
    std::fs::write(front.directory.join("site/stream.html"), STREAM).expect("a page");
    let map = format!("MAP {HOST_NAME}:443 {}", front.addr());
    let mut browser = Client::node("console.mjs", &[&map, "--ignore-certificate-errors"]);
    browser.next("ready");
    let mut act = |command: Value| {
        browser.tell(&command);
        browser.at_once("done")["value"].clone()
    };
    act(json!({ "do": "open", "url": url("/stream.html") }));
    server.await_subscribers("news", 1);
    publish(&server, "news", "before");
    act(json!({ "do": "expect", "at": "#heard", "like": "^before$" }));
    // The proxy passes the server's refusals on.
    let events = "Accept: text/event-stream";
    let status = |kind: &str, path: &str| {
        let args = [
            "-o",
            "/dev/null",
            "-w",
            "%{http_code} %{content_type}",
            "-H",
            kind,
        ];
        front.curl(&[&args[..], &[&url(path)]].concat())
    };
    assert_eq!(status(events, "/sub/a?since=never")[..3], *"400");
    let address = server.address();
    server.kill();
    assert_eq!(status(events, "/sub/news"), "200 text/event-stream");
    let body = front.curl(&[
        "-H",
        "Accept: text/html, text/event-stream",
        &url("/sub/news"),
    ]);
    assert_eq!(body, "retry: 3000\n\n");
    for path in ["/sub/news", "/pub/news"] {
        assert_eq!(
            status("Accept: */*", path)[..3],
            *front.status_without_server,
            "{path}"
        );
    }
    // At least two errors: the connection that broke, and a request while there was no server.
    act(json!({ "do": "expect", "at": "#errors", "like": "^([2-9]|[0-9]{2,})$" }));
    act(json!({ "do": "expect", "at": "#state", "like": "^$" }));
    let listen = format!("listen = \"{address}\"\n{}", sample("crore.toml"));
    let server = Server::listening(&listen, "127.0.0.1:0");
    server.await_subscribers("news", 1);
    publish(&server, "news", "after");
    act(json!({ "do": "expect", "at": "#heard", "like": "^beforeafter$" }));
}

/// Without `http.hosts` the server refuses the proxy's name.
fn assert_host_name_is_refused_by_default(front: impl Fn(&Server) -> Front) {
    let server = Server::start();
    let status = ["-o", "/dev/null", "-w", "%{http_code}", &url("/pub/news")];
    assert_eq!(front(&server).curl(&status), "403");
}

fn assert_proxy_works(front: impl Fn(&Server) -> Front) {
    let short = "[[rule]]\nmatch = \"short\"\npoll_timeout_s = 1\n";
    let server = Server::with_admin(&(sample("crore.toml") + short));
    let proxy = front(&server);
    assert_clients_work(&proxy, &server);
    assert_page_works(&proxy, &server);
    assert_stream_resumes_after_restart(&proxy, server);
    drop(proxy);
    assert_host_name_is_refused_by_default(front);
}

/// The page's lines with which a proxy speaks HTTP/2 to the server too.
fn assert_proxy_works_over_http2(front: impl Fn(&Server) -> Front) {
    let settings = replace_in_sample(
        sample("crore.toml"),
        "[http]\n",
        "[http]\nh2_cleartext = true\n",
    );
    let short = "[[rule]]\nmatch = \"short\"\npoll_timeout_s = 1\n";
    let server = Server::with_admin(&(settings + short));
    let proxy = front(&server);
    assert_clients_work(&proxy, &server);
    let opened = || metric(server.admin(), "crore_http2_opened_streams_total");
    until("streams of the proxy", || opened() > Some(4.0));
}

const PAGE: &str = include_str!("../../../../docs/PROXIES.md");

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn haproxy_speaks_http2_to_the_server() {
    let line = "server crore 127.0.0.1:8800 proto h2";
    assert!(PAGE.contains(line));
    let settings = replace_in_sample(sample("haproxy.cfg"), "server crore 127.0.0.1:8800", line);
    assert_proxy_works_over_http2(|server| Front::haproxy_with(server, settings.clone()));
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn caddy_speaks_http2_to_the_server() {
    let block = PAGE.split_once("```caddyfile\n").expect("a block").1;
    let block = block.split_once("```").expect("its end").0;
    let sample = sample("Caddyfile");
    let (before, rest) = sample.split_once("\treverse_proxy @crore").expect("a line");
    let (_, after) = rest.split_once("\n\t}\n").expect("its end");
    let site = format!("{before}{block}{after}");
    assert_proxy_works_over_http2(|server| Front::caddy_with(server, site.clone()));
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn the_sample_for_nginx() {
    assert_proxy_works(Front::nginx);
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn the_sample_for_caddy() {
    assert_proxy_works(Front::caddy);
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn the_sample_for_haproxy() {
    assert_proxy_works(Front::haproxy);
}
