//! Tests access in headless Chromium. Cookies: the browser sends them by itself from a page of the server's own origin. Other origins:
//! what a page there must send instead. The tests of MQTT libraries use the same settings and tokens.

use crate::support::Server;
use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use argon2::password_hash::PasswordHasher;
use argon2::{Algorithm, Argon2, Params, Version};
use jsonwebtoken::{EncodingKey, Header};
use serde_json::{Value, json};

use crate::browser::{visit, visit_own};
use crate::client::{Client, curl};

const SECRET: &str = "0123456789abcdef0123456789abcdef";
/// The password of the user `ann`.
pub const PASSWORD: &str = "right";
/// The life of a token that expires within the test: long enough to connect, on a busy machine too.
pub const SOON_S: i64 = 8;
/// A rule that makes the browser reconnect soon.
const RULE: &str = "[[rule]]\nmatch = '#'\nsse_retry_ms = 200\n";

/// A password hash that is cheap to verify.
static HASH: LazyLock<String> = LazyLock::new(|| {
    let params = Params::new(8, 1, 1, None).expect("parameters");
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    let hash = argon2.hash_password(PASSWORD.as_bytes());
    hash.expect("a hash").to_string()
});

/// A key for tokens, a user, and grants for topics `news/...`, also below any first level.
pub fn settings() -> String {
    let grants = "publish = ['news/#', '+/news/#']\nsubscribe = ['news/#', '+/news/#']\n";
    format!(
        "[access]\nleeway_s = 0\n[access.anonymous]\ninfo = ['#']\n[[access.key]]\nalg = 'HS256'\nsecret = '{SECRET}'\n\
         [[access.user]]\nname = 'ann'\npassword = '{}'\n{grants}",
        *HASH
    )
}

/// A token that expires this many seconds from now.
pub fn expiring(in_s: i64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let end = now.expect("a time").as_secs() as i64 + in_s;
    let filters = json!(["news/#", "+/news/#"]);
    let claims = json!({"sub": "bob", "exp": end, "publish": filters, "subscribe": filters});
    let key = EncodingKey::from_secret(SECRET.as_bytes());
    jsonwebtoken::encode(&Header::default(), &claims, &key).expect("a token")
}

/// A token that does not expire during a test.
pub fn token() -> String {
    expiring(600)
}

fn publish(server: &Server, topic: &str, text: &str) {
    let authorization = format!("Authorization: Bearer {}", token());
    let url = server.url(&format!("/pub/{topic}"));
    curl(&["--fail", "-H", &authorization, "--data-binary", text, &url]);
}

fn event_source(base: &str, topic: &str, with_credentials: bool) -> Value {
    let url = format!("{base}/sub/{topic}");
    json!({ "do": "eventsource", "url": url, "withCredentials": with_credentials })
}

fn websocket(base: &str, topic: &str) -> Value {
    let url = format!("{base}/sub/{topic}");
    json!({ "do": "websocket", "url": url.replacen("http", "ws", 1) })
}

fn poll(base: &str, topic: &str, options: Value) -> Value {
    let url = format!("{base}/sub/{topic}");
    json!({ "do": "poll", "url": url, "options": options })
}

/// Sets the page's cookie. Cookies do not depend on the port, so the browser also sends it to the server on another port.
fn set_cookie(browser: &mut Client, token: &str) {
    browser.tell(&json!({ "do": "cookie", "text": format!("crore_token={token}; path=/") }));
    browser.next("done");
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn cookie_authorizes_all_transports_of_a_page_of_the_same_origin() {
    let (server, own_origin, mut browser) = visit_own(&format!("{}{RULE}", settings()));
    for command in [
        event_source(&own_origin, "news/e", false),
        websocket(&own_origin, "news/w"),
    ] {
        browser.tell(&command);
        browser.at_once("closed");
    }
    set_cookie(&mut browser, &token());
    browser.tell(&event_source(&own_origin, "news/e", false));
    browser.tell(&websocket(&own_origin, "news/w"));
    for (topic, text) in [("news/e", "by an event"), ("news/w", "by a frame")] {
        server.await_subscribers(topic, 1);
        publish(&server, topic, text);
        assert_eq!(browser.messages(1).0, [text]);
    }
    browser.tell(&poll(&own_origin, "news/e", json!({})));
    assert_eq!(browser.messages(1).0, ["by an event"]);
    // The cookie opens what its token grants, and nothing else.
    browser.tell(&event_source(&own_origin, "other", false));
    browser.next("closed");
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn page_of_a_listed_origin_needs_a_token_except_for_websockets() {
    let (server, _proxy, mut browser) = visit(&format!("{}{RULE}", settings()));
    let base = server.url("");
    set_cookie(&mut browser, &token());
    publish(&server, "news/e", "kept");
    // The browser sends the request with the cookie, and does not give the answer to the page.
    browser.tell(&event_source(&base, "news/e?since=oldest", true));
    browser.at_once("closed");
    browser.tell(&poll(&base, "news/e", json!({ "credentials": "include" })));
    browser.at_once("refused");
    let authorization = format!("Bearer {}", token());
    let headers = json!({ "headers": { "Authorization": authorization } });
    browser.tell(&poll(&base, "news/e", headers));
    assert_eq!(browser.messages(1).0, ["kept"]);
    let by_query = format!("news/q?token={}", token());
    browser.tell(&event_source(&base, &by_query, false));
    browser.tell(&websocket(&base, "news/w"));
    for (topic, text) in [("news/q", "by an event"), ("news/w", "by a frame")] {
        server.await_subscribers(topic, 1);
        publish(&server, topic, text);
        assert_eq!(browser.messages(1).0, [text]);
    }
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn cookie_gives_a_page_of_another_origin_nothing() {
    let (_server, _proxy, mut browser) = visit(RULE);
    set_cookie(&mut browser, &token());
    for origins in [
        "",
        "allowed_origins = ['*']",
        "allowed_origins = ['http://127.0.0.1:1']",
    ] {
        let other = Server::with(&format!("[http]\n{origins}\n{}{RULE}", settings()));
        let base = other.url("");
        publish(&other, "news/e", "private");
        browser.tell(&event_source(&base, "news/e?since=oldest", true));
        browser.at_once("closed");
        browser.tell(&websocket(&base, "news/e?since=oldest"));
        browser.at_once("closed");
        other.await_subscribers("news/e", 0);
    }
    browser.expect_quiet();
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn stream_of_a_browser_ends_with_its_token() {
    let (server, own_origin, mut browser) = visit_own(&format!("{}{RULE}", settings()));
    set_cookie(&mut browser, &expiring(SOON_S));
    browser.tell(&websocket(&own_origin, "news/w"));
    server.await_subscribers("news/w", 1);
    assert_eq!(browser.at_once("closed")["code"], 4401);
    // An event source reconnects by itself, gets a 401, and gives up.
    set_cookie(&mut browser, &expiring(SOON_S));
    browser.tell(&event_source(&own_origin, "news/e", false));
    server.await_subscribers("news/e", 1);
    browser.at_once("reconnecting");
    browser.at_once("closed");
    server.await_subscribers("news/e", 0);
}
