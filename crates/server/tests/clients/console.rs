//! Tests the console in headless Chromium.

use crate::client::{Client, curl, publish};
use crate::proxy::Proxy;
use crate::support::Server;
use crate::support::state::State;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::PathBuf;

/// A browser that carries out one command after another.
pub struct Browser(Client);

impl Browser {
    /// Opens the console of `server` at `place` (the part after `#`).
    pub fn on(server: &Server, page: &str) -> Browser {
        Browser::at(&url(server, page), "")
    }

    /// Opens the page at `url`. `names` maps host names to other addresses.
    pub fn at(url: &str, names: &str) -> Browser {
        let client = Client::node("console.mjs", &[names]);
        client.next("ready");
        let mut browser = Browser(client);
        browser.tell(json!({ "do": "open", "url": url }));
        browser
    }

    pub fn tell(&mut self, command: Value) -> Value {
        self.0.tell(&command);
        self.0.at_once("done")["value"].take()
    }

    /// Waits until the text of the element `at` matches the regular expression `like`. Returns the text.
    pub fn expect(&mut self, selector: &str, pattern: &str) -> String {
        let text = self.tell(json!({ "do": "expect", "at": selector, "like": pattern }));
        text.as_str().expect("a text").to_string()
    }

    pub fn texts(&mut self, selector: &str) -> Vec<String> {
        let texts = self.tell(json!({ "do": "texts", "at": selector }));
        serde_json::from_value(texts).expect("texts")
    }

    pub fn fill(&mut self, selector: &str, text: &str) {
        self.tell(json!({ "do": "fill", "at": selector, "text": text }));
    }

    pub fn click(&mut self, selector: &str) {
        self.tell(json!({ "do": "click", "at": selector }));
    }

    pub fn manners(&mut self) -> Value {
        self.tell(json!({ "do": "manners" }))
    }

    pub fn expect_no_complaints(&mut self) {
        assert_eq!(self.tell(json!({ "do": "complaints" })), json!([]));
    }
}

pub fn url(server: &Server, page: &str) -> String {
    format!("http://{}/#{page}", server.admin())
}

/// Subscribers that hold their connections and do nothing else.
fn subscribers(server: &Server, count: usize) -> Vec<TcpStream> {
    let open = |_| {
        let mut stream = TcpStream::connect(server.address()).expect("a connection");
        let head =
            "GET /sub/crowd HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n";
        stream.write_all(head.as_bytes()).expect("a request");
        assert!(stream.read(&mut [0; 512]).expect("an answer") > 0);
        stream
    };
    (0..count).map(open).collect()
}

const CONNECTIONS: &str = "[data-tile=connections] .value";

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn numbers_of_the_console_follow_connections_and_messages() {
    let server = Server::with_admin("");
    let mut browser = Browser::on(&server, "/");
    browser.expect(".link", "live");
    browser.expect(CONNECTIONS, "^0$");
    let crowd = subscribers(&server, 25);
    browser.expect(CONNECTIONS, "^25$");
    browser.expect("[data-tile=connections] .note", "25 SSE");
    publish(&server, "crowd", "to all of them");
    browser.expect("[data-tile=in] .note", r"\b1 since start");
    browser.expect("[data-tile=out] .note", r"\b25 since start");
    drop(crowd);
    browser.expect(CONNECTIONS, "^0$");
    assert_eq!(
        browser
            .texts("section[aria-labelledby=shards] tbody tr")
            .len(),
        2
    );
    browser.expect_no_complaints();
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn message_published_in_the_console_comes_back_as_text() {
    let server = Server::with_admin("");
    publish(&server, "a/b", "before");
    let mut browser = Browser::on(&server, "/topic/a%2Fb");
    browser.expect(".tail [role=status]", "live");
    let text =
        "<script>document.title = 'taken'</script><img src=x onerror=\"document.title = 'taken'\">";
    browser.fill("textarea[name=data]", text);
    browser.fill("input[name=event]", "<b>goal</b>");
    browser.click("form button[type=submit]");
    browser.expect(
        "form [role=status]",
        "^Published at offset .*, to 0 subscribers.$",
    );
    browser.expect(".tail .messages pre", "taken");
    assert_eq!(browser.texts(".tail .messages pre"), [text]);
    browser.expect(".kept li:nth-child(2) pre", "taken");
    assert_eq!(
        browser.texts(".messages b, .messages img, .messages script"),
        [""; 0]
    );
    assert_eq!(browser.manners()["title"], "a/b \u{b7} Crore");
    // A message that another client publishes appears too, and the topic's info changes.
    publish(&server, "a/b", "from outside");
    browser.expect(".tail .messages li:nth-child(2) pre", "^from outside$");
    browser.expect(".kept li:nth-child(3) pre", "^from outside$");
    browser.expect(".facts", "Messages kept3");
    // The page itself does not count as a subscriber.
    browser.expect(".facts", "Subscribers0");
    browser.expect_no_complaints();
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn kept_messages_are_shown_and_purged_after_a_question() {
    let server = Server::with_admin("[[rule]]\nmatch = \"#\"\nlog_messages = 100\n");
    for i in 1..=60 {
        publish(&server, "a/b", &format!("<b>message {i}</b>"));
    }
    let mut browser = Browser::on(&server, "/topic/a%2Fb");
    let (last, row) = (".kept li:nth-child(50) pre", ".kept li:first-child pre");
    browser.expect(row, "^<b>message 1</b>$");
    browser.expect(last, "^<b>message 50</b>$");
    browser.click(".kept nav button:last-child");
    browser.expect(row, "^<b>message 51</b>$");
    // A new message appears while the page is shown.
    publish(&server, "a/b", "the newest");
    browser.expect(".kept li:nth-child(11) pre", "^the newest$");
    browser.click(".kept .row button");
    browser.expect(".kept [role=alertdialog]", "61 kept messages");
    // A user who answers the question with "keep" loses nothing.
    browser.click(".kept [role=alertdialog] button.quiet");
    browser.expect(".facts", "Messages kept61");
    browser.click(".kept .row button");
    browser.click(".kept [role=alertdialog] button.danger");
    browser.expect(".kept [role=status]", "^61 messages removed.$");
    browser.expect(".kept", "No messages are kept.$");
    browser.expect(".facts", "Messages kept0");
    publish(&server, "a/b", "afterwards");
    browser.expect(row, "^afterwards$");
    browser.expect_no_complaints();
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn console_shows_exact_counts_and_one_memory_figure() {
    let server = Server::with_admin("");
    let _crowd = subscribers(&server, 3);
    let mut browser = Browser::on(&server, "/");
    browser.expect(CONNECTIONS, "^3$");
    publish(&server, "crowd", "one");
    browser.expect("[data-tile=in] .note", r"\b1 since start");
    for text in browser.texts("[data-tile=connections] *, .chart:first-child .legend b") {
        assert!(!text.contains('.'), "{text}");
    }
    let mut is_same = false;
    for _ in 0..20 {
        let tile = browser.texts("[data-tile=pss] .value").concat();
        browser.click("header nav a[href='#/limits']");
        let row = ".limits li:has(code:text-is('memory')) .of";
        let of = browser.expect(row, " of ");
        browser.click("header nav a[href='#/']");
        browser.expect(CONNECTIONS, "^3$");
        // The server may have a new figure between the two reads, so one match is enough.
        is_same |= of.starts_with(&format!("{tile} of "));
    }
    assert!(is_same, "the tile and the limit differ");
    browser.expect_no_complaints();
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn disk_use_is_shown_with_durable_messages() {
    let server = Server::with_admin("");
    let mut browser = Browser::on(&server, "/");
    browser.expect(CONNECTIONS, "^0$");
    assert_eq!(browser.texts("[data-tile=disk]"), [""; 0]);
    let state = State::new();
    let server = Server::with_admin(&state.settings());
    let mut browser = Browser::on(&server, "/");
    browser.expect("[data-tile=disk] .value", "MiB$");
    browser.expect("[data-tile=disk] .note", " live · read in .* at the start$");
    browser.expect("[data-tile=sync] .note", "^nothing written yet$");
    publish(&server, "a", "on disk");
    browser.expect("[data-tile=sync] .value", "s$");
    browser.expect_no_complaints();
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn topics_are_listed_by_filter_and_page_and_a_filter_is_tailed() {
    let server = Server::with_admin("");
    for i in 0..60 {
        publish(&server, &format!("many/{i}"), "x");
    }
    publish(&server, "few/one", "x");
    let mut browser = Browser::on(&server, "/topics");
    browser.expect("tbody tr:nth-child(50)", ".");
    let rows = "section[aria-labelledby=topics] tbody th";
    let first = browser.texts(rows);
    browser.click("nav.pages button:last-child");
    browser.expect("nav.pages span", "Page 2");
    browser.expect("tbody tr:nth-child(11)", ".");
    let mut all_rows = [first, browser.texts(rows)].concat();
    assert_eq!(all_rows[..3], ["few/one", "many/0", "many/1"]);
    assert_eq!(
        all_rows[59..],
        ["many/58", "many/59"],
        "by name, numbers as such"
    );
    all_rows.sort();
    all_rows.dedup();
    assert_eq!(all_rows.len(), 61, "each topic on one page");

    browser.fill("input[name=filter]", "few/+");
    browser.click("form button[type=submit]");
    browser.expect("nav.pages span", "^Page 1 of 1$");
    assert_eq!(browser.texts(rows), ["few/one"]);
    browser.click("button[aria-pressed=false]");
    browser.expect(".tail [role=status]", "live");
    publish(&server, "few/two", "by filter");
    browser.expect(".messages b", "^few/two$");
    browser.expect_no_complaints();
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn console_asks_for_the_token_and_keeps_it_out_of_urls() {
    let token = "a-token-of-the-operator";
    let server = Server::with_admin(&format!("[admin]\ntoken = \"{token}\"\n"));
    let mut browser = Browser::on(&server, "/");
    browser.expect("h2", "needs a token");
    browser.fill("input[name=token]", "another");
    browser.click("form button[type=submit]");
    browser.expect("[role=alert]", "not the server's token");
    browser.fill("input[name=token]", token);
    browser.click("form button[type=submit]");
    browser.expect(".link", "live");
    browser.expect(CONNECTIONS, "^0$");
    browser.tell(json!({ "do": "reload" }));
    browser.expect(".link", "live");
    let seen = browser.manners();
    for page in ["address", "kept"] {
        assert!(!seen[page].to_string().contains(token), "{seen}");
    }
    assert!(!server.log().contains(token));
    // Without the token the API answers nothing.
    let body = curl(&[
        "-w",
        "%{http_code}",
        "-o",
        "/dev/null",
        &format!("http://{}/api/v1/tail?filter=%23", server.admin()),
    ]);
    assert_eq!(body, "401");
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn console_shows_a_lost_connection_and_reconnects() {
    let server = Server::with_admin("[admin]\nhosts = [\"admin.test\"]\n");
    let proxy = Proxy::to(server.admin());
    let names = proxy.url("").replace("http://", "MAP admin.test:80 ");
    let mut browser = Browser::at("http://admin.test/", &names);
    browser.expect(".link", "live");
    proxy.cut();
    browser.expect(
        ".banner",
        "^The server does not answer. Trying again in [0-9]+ s. The numbers below are from before.$",
    );
    browser.expect(".link", "disconnected");
    // A view that is opened while the server is away shows no error, and fills when the server is back.
    browser.click("header nav a[href='#/topics']");
    browser.expect(".link", "disconnected");
    assert_eq!(browser.texts("[role=alert]").len(), 1);
    proxy.mend();
    browser.expect(".link", "live");
    browser.expect("main", "There are no topics yet");
    browser.click("header nav a[href='#/']");
    let crowd = subscribers(&server, 3);
    browser.expect(CONNECTIONS, "^3$");
    drop(crowd);
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn slow_consumer_is_listed_and_can_be_disconnected() {
    let server = Server::with_admin("[limits]\nsend_buffer_bytes = \"4 KiB\"\n");
    let slow = subscribers(&server, 1);
    let mut browser = Browser::on(&server, "/slow");
    browser.expect(".panel", "No connection is slow");
    let large = "x".repeat(100_000);
    for _ in 0..40 {
        publish(&server, "crowd", &large);
    }
    browser.expect("tbody tr", "SSE.*crowd");
    browser.click("tbody button");
    browser.expect("[role=alertdialog]", "SSE, 127.0.0.1");
    browser.click("[role=alertdialog] button.quiet");
    browser.expect("tbody tr", "SSE.*crowd");
    browser.click("tbody button");
    browser.click("[role=alertdialog] button.danger");
    browser.expect(".panel", "No connection is slow");
    browser.expect_no_complaints();
    drop(slow);
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn connections_are_found_and_ended_after_a_question() {
    let server = Server::with_admin("");
    let crowd = subscribers(&server, 60);
    let mut browser = Browser::on(&server, "/connections");
    let rows = ".connections tbody tr";
    browser.expect(
        ".connections tbody tr:nth-child(50)",
        "SSE.*127.0.0.1.*crowd",
    );
    browser.click(".connections nav button:last-child");
    browser.expect(".connections nav span", "^Page 2$");
    browser.expect(".connections tbody tr:nth-child(10)", "crowd");
    assert_eq!(browser.texts(rows).len(), 10);
    browser.fill("input[name=address]", "127.0.0.9");
    browser.click("form button[type=submit]");
    browser.expect(".connections", "No connection matches.$");
    browser.fill("input[name=address]", "127.0.0.1");
    browser.fill("input[name=filter]", "crowd");
    browser.tell(json!({ "do": "select", "at": "select[name=transport]", "value": "sse" }));
    browser.click("form button[type=submit]");
    browser.expect(".connections tbody tr:nth-child(50)", "crowd");
    browser.click("form button:text-is('Disconnect these')");
    browser.expect(
        ".connections [role=alertdialog]",
        "filter crowd and address 127.0.0.1 and transport sse",
    );
    browser.click(".connections [role=alertdialog] button.danger");
    browser.expect(".connections", "No connection matches.$");
    browser.expect_no_complaints();
    drop(crowd);
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn an_empty_server_shows_how_to_publish_and_its_name_and_version() {
    let server = Server::with_admin("");
    let mut browser = Browser::on(&server, "/");
    let command = format!("curl -d 'first message' {}", server.url("/pub/hello"));
    browser.expect(".first pre", &command.replace('.', r"\."));
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("a name");
    let name = format!("^{} on {}$", env!("CARGO_PKG_VERSION"), host.trim());
    browser.expect("h1 small", &name);
    publish(&server, "hello", "first message");
    browser.expect("[data-tile=in] .note", r"\b1 since start");
    assert_eq!(browser.texts(".first"), [""; 0]);
    browser.expect_no_complaints();
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn refusals_are_counted_by_reason() {
    let server = Server::with_admin("[access]\n");
    let mut browser = Browser::on(&server, "/");
    browser.expect(".refusals", "No request was refused");
    for _ in 0..3 {
        let status = curl(&["-d", "x", &server.url("/pub/a")]);
        assert!(!status.is_empty());
    }
    browser.expect(".refusals tbody tr", "^no right to do this3");
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn reload_and_drain_need_a_confirmation() {
    let server = Server::with_admin("[heartbeat]\ninterval_s = 50\n");
    let mut browser = Browser::on(&server, "/");
    let settings = std::fs::read_to_string(server.settings_file()).expect("settings");
    let changed = settings.replace("interval_s = 50", "interval_s = 40");
    std::fs::write(server.settings_file(), changed).expect("a file");
    browser.click(".server button:text-is('Reload settings')");
    browser.click(".server [role=alertdialog] button.quiet");
    browser.click(".server button:text-is('Reload settings')");
    browser.click(".server [role=alertdialog] button.danger");
    browser.expect(".server [role=status]", "^Changed: heartbeat.interval_s.$");
    browser.click(".server button:text-is('Drain')");
    browser.expect(".server [role=alertdialog]", "Close 0 connections");
    browser.click(".server [role=alertdialog] button.quiet");
    browser.expect(".link", "live");
    browser.expect_no_complaints();
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn unknown_console_page_is_reported() {
    let server = Server::with_admin("");
    let mut browser = Browser::on(&server, "/nothing");
    browser.expect("main", "There is no such page.*#/nothing");
}

/// Writes pictures of every view to the directory that `CRORE_SHOTS` names, or to a temporary one, so that a person can look at them.
#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn console_is_readable_in_light_and_dark_and_on_a_phone() {
    let server = Server::with_admin("");
    let shots = std::env::var_os("CRORE_SHOTS").map_or_else(
        || std::env::temp_dir().join(format!("crore-shots-{}", std::process::id())),
        PathBuf::from,
    );
    std::fs::create_dir_all(&shots).expect("a directory for pictures");
    let _crowd = subscribers(&server, 40);
    publish(&server, "crowd", "a first message");
    let deep = "sensors/building-17/floor-3/room_312/temperature.celsius";
    publish(&server, deep, "21.5");
    let mut browser = Browser::on(&server, "/");
    let mut backgrounds = Vec::new();
    for (name, size, colors) in [
        ("light", [1280, 900], "light"),
        ("dark", [1280, 900], "dark"),
        ("phone", [390, 844], "dark"),
    ] {
        for (view, page, ready_text) in [
            ("overview", "/", "[data-tile=connections]"),
            ("topics", "/topics", "tbody tr"),
            ("topic", "/topic/crowd", ".kept li"),
            ("connections", "/connections", "tbody tr"),
            ("slow", "/slow", ".facts"),
            ("limits", "/limits", ".limits li"),
            ("settings", "/settings", ".settings tbody tr"),
        ] {
            browser.tell(
                json!({ "do": "open", "url": url(&server, page), "size": size, "colors": colors }),
            );
            browser.expect(ready_text, ".");
            let path = shots.join(format!("{name}-{view}.png"));
            browser.tell(json!({ "do": "shot", "path": path }));
            let seen = browser.manners();
            assert_eq!(seen["nameless"], json!([]), "{name} {view}");
            assert_eq!(seen["broken"], json!([]), "{name} {view}");
            assert!(
                seen["overflow_px"].as_i64().is_some_and(|px| px <= 0),
                "{name} {view}: {seen}"
            );
            backgrounds.push(seen["background"].clone());
            browser.expect_no_complaints();
        }
    }
    let (light, dark, phone) = (0, backgrounds.len() / 3, backgrounds.len() * 2 / 3);
    assert_ne!(backgrounds[light], backgrounds[dark], "light is not dark");
    assert_eq!(
        backgrounds[dark], backgrounds[phone],
        "dark is dark on a phone too"
    );
    // The button changes the theme from the system's (dark here) to dark, and then to light.
    browser.click("header .tools button");
    assert_eq!(browser.manners()["background"], backgrounds[dark]);
    browser.click("header .tools button");
    assert_eq!(browser.manners()["background"], backgrounds[light]);
    if std::env::var_os("CRORE_SHOTS").is_none() {
        let _ = std::fs::remove_dir_all(&shots);
    }
}
