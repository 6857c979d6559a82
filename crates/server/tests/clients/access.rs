//! Who is let in, in headless Chromium: cookies of a page, which its `EventSource` and `WebSocket` send by themselves. The settings and
//! tokens are those of the MQTT libraries too.

use std::sync::LazyLock;
use std::time::{SystemTime, UNIX_EPOCH};

use argon2::password_hash::PasswordHasher;
use argon2::{Algorithm, Argon2, Params, Version};
use jsonwebtoken::{EncodingKey, Header};
use serde_json::{Value, json};

use crate::browser::visit;
use crate::client::{Client, await_subscribers, curl};
use crate::support::Server;

const SECRET: &str = "0123456789abcdef0123456789abcdef";
/// That of the user `ann`.
pub const PASSWORD: &str = "right";
/// The life of a token that ends within the test: time enough to come in, on a busy machine too.
pub const SOON_S: i64 = 8;
/// A browser that comes back soon.
const RULE: &str = "[[rule]]\nmatch = '#'\nsse_retry_ms = 200\n";

/// Cheap to verify.
static HASH: LazyLock<String> = LazyLock::new(|| {
    let params = Params::new(8, 1, 1, None).expect("parameters");
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    let hash = argon2.hash_password(PASSWORD.as_bytes());
    hash.expect("a hash").to_string()
});

/// A key for tokens, a user, and topics `news/...`, below any first level too.
pub fn settings() -> String {
    let grants = "publish = ['news/#', '+/news/#']\nsubscribe = ['news/#', '+/news/#']\n";
    format!(
        "[access]\nleeway_s = 0\n[access.anonymous]\ninfo = ['#']\n[[access.key]]\nalg = 'HS256'\nsecret = '{SECRET}'\n\
         [[access.user]]\nname = 'ann'\npassword = '{}'\n{grants}",
        *HASH
    )
}

/// A token that ends so many seconds from now.
pub fn expiring(in_s: i64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let end = now.expect("a time").as_secs() as i64 + in_s;
    let filters = json!(["news/#", "+/news/#"]);
    let claims = json!({"sub": "bob", "exp": end, "publish": filters, "subscribe": filters});
    let key = EncodingKey::from_secret(SECRET.as_bytes());
    jsonwebtoken::encode(&Header::default(), &claims, &key).expect("a token")
}

/// One that lasts.
pub fn token() -> String {
    expiring(600)
}

fn publish(server: &Server, topic: &str, text: &str) {
    let authorization = format!("Authorization: Bearer {}", token());
    let url = server.url(&format!("/pub/{topic}"));
    curl(&["--fail", "-H", &authorization, "--data-binary", text, &url]);
}

fn event_source(server: &Server, topic: &str, with_credentials: bool) -> Value {
    let url = server.url(&format!("/sub/{topic}"));
    json!({ "do": "eventsource", "url": url, "withCredentials": with_credentials })
}

fn websocket(server: &Server, topic: &str) -> Value {
    let url = server.url(&format!("/sub/{topic}"));
    json!({ "do": "websocket", "url": url.replacen("http", "ws", 1) })
}

/// The page's cookie from now on. Cookies know no ports: the server on another one gets it as well.
fn set_cookie(browser: &mut Client, token: &str) {
    browser.tell(&json!({ "do": "cookie", "text": format!("crore_token={token}; path=/") }));
    browser.next("done");
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_pages_cookie_lets_its_event_source_and_websocket_in() {
    let (server, _proxy, mut browser) = visit(&format!("{}{RULE}", settings()));
    for ask in [
        event_source(&server, "news/e", true),
        websocket(&server, "news/w"),
    ] {
        browser.tell(&ask);
        browser.at_once("closed");
    }
    set_cookie(&mut browser, &token());
    browser.tell(&event_source(&server, "news/e", true));
    browser.tell(&websocket(&server, "news/w"));
    for (topic, text) in [("news/e", "by an event"), ("news/w", "by a frame")] {
        await_subscribers(&server, topic, 1);
        publish(&server, topic, text);
        assert_eq!(browser.messages(1).0, [text]);
    }
    // Not asked to send it, an event source of another origin does not.
    browser.tell(&event_source(&server, "news/e", false));
    browser.next("closed");
    // And it opens what it grants, and nothing else.
    browser.tell(&event_source(&server, "other", true));
    browser.next("closed");
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn a_page_of_another_origin_gets_nothing_by_its_visitors_cookie() {
    let (_server, _proxy, mut browser) = visit(RULE);
    set_cookie(&mut browser, &token());
    for origins in [
        "",
        "allowed_origins = ['*']",
        "allowed_origins = ['http://127.0.0.1:1']",
    ] {
        let other = Server::with(&format!("[http]\n{origins}\n{}{RULE}", settings()));
        publish(&other, "news/e", "private");
        browser.tell(&event_source(&other, "news/e?since=oldest", true));
        browser.at_once("closed");
        browser.tell(&websocket(&other, "news/e?since=oldest"));
        browser.at_once("closed");
        await_subscribers(&other, "news/e", 0);
    }
    browser.expect_quiet();
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn what_a_browser_holds_open_ends_with_its_token() {
    let (server, _proxy, mut browser) = visit(&format!("{}{RULE}", settings()));
    set_cookie(&mut browser, &expiring(SOON_S));
    browser.tell(&websocket(&server, "news/w"));
    await_subscribers(&server, "news/w", 1);
    assert_eq!(browser.at_once("closed")["code"], 4401);
    // An event source asks again by itself, is told 401, and gives up.
    set_cookie(&mut browser, &expiring(SOON_S));
    browser.tell(&event_source(&server, "news/e", true));
    await_subscribers(&server, "news/e", 1);
    browser.at_once("reconnecting");
    browser.at_once("closed");
    await_subscribers(&server, "news/e", 0);
}
