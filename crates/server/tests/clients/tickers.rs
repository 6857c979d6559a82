//! Tests a page with centrifuge-js in headless Chromium: fifty tickers over one connection, of which a user sees others with each scroll.

use serde_json::{Value, json};

use crate::browser::page;
use crate::client::Client;
use crate::proxy::Proxy;
use crate::support::http::Conn;
use crate::support::state::State;
use crate::support::{Server, program, until};

/// The tickers of the page, and those that a user sees at once.
const TICKERS: usize = 120;
const SEEN: usize = 50;

fn name(ticker: usize) -> String {
    format!("ticker/{ticker}")
}

/// Publishes this number to every ticker.
fn publish_all(server: &Server, number: u32) {
    let mut conn = Conn::open(server);
    for ticker in 0..TICKERS {
        let target = format!("/pub/{}", name(ticker));
        let response = conn.request("POST", &target, &[], number.to_string());
        assert!(response.status < 300, "{}", response.status);
    }
}

/// The tickers from this one on come into view.
fn scroll(browser: &mut Client, first: usize) {
    let names: Vec<String> = (first..first + SEEN).map(name).collect();
    browser.tell(&json!({ "show": names }));
}

fn await_shown(browser: &Client) {
    while browser.next("shown")["count"] != SEEN {}
}

/// What came for each ticker, when the last number has come for all that are seen.
fn report(browser: &mut Client, first: usize, last: u32) -> Value {
    let mut messages = Value::Null;
    until("the last number at all tickers", || {
        browser.tell(&json!({ "report": true }));
        messages = browser.next("report")["messages"].take();
        let newest = |ticker| messages[name(ticker)].as_array().and_then(|all| all.last());
        (first..first + SEEN).all(|ticker| newest(ticker) == Some(&json!(last)))
    });
    messages
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn page_of_fifty_tickers_gets_each_message_once() {
    let (origin, state) = (page(None), State::new());
    let settings = format!(
        "[http]\nallowed_origins = [\"{origin}\"]\n[centrifugo]\nenabled = true\n{}",
        state.settings()
    );
    let mut server = Server::with(&settings);
    let (address, proxy) = (server.address(), Proxy::to(server.address()));
    let args = [origin.as_str(), &proxy.address().to_string()];
    let mut browser = Client::node("ticker_page.mjs", &args);
    browser.next("ready");
    scroll(&mut browser, 0);
    await_shown(&browser);
    let mut number = 0;
    let mut publish = |server: &Server| {
        number += 1;
        publish_all(server, number);
        number
    };
    publish(&server);
    for round in 0..3 {
        // Messages come while the page subscribes, loads, and connects again.
        for first in [20, 70, 35 + round] {
            scroll(&mut browser, first);
            publish(&server);
        }
        browser.tell(&json!({ "reload": true }));
        publish(&server);
        proxy.cut();
        publish(&server);
        proxy.mend();
        publish(&server);
        server.crash();
        server = Server::from_build_at(&program(), &settings, address);
        publish(&server);
        scroll(&mut browser, 0);
        publish(&server);
    }
    let last = publish(&server);
    let messages = report(&mut browser, 0, last);
    for ticker in 0..TICKERS {
        let numbers = messages[name(ticker)]
            .as_array()
            .cloned()
            .unwrap_or_default();
        let first = numbers.first().and_then(Value::as_u64).unwrap_or(1);
        let expected: Vec<Value> = (first..).take(numbers.len()).map(Value::from).collect();
        assert_eq!(numbers, expected, "ticker {ticker}");
        assert!(
            ticker >= SEEN || first == 1,
            "ticker {ticker} was seen from the beginning"
        );
    }
}
