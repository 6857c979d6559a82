//! Tests client libraries of Centrifugo in both forms of the protocol, and libraries of its server API. [`crate::centrifugo_suites`] has those that
//! need more than Node and Python, and the libraries' own tests.

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};

use crate::client::{Client, publish};
use crate::support::Server;
use crate::support::state::State;

const ON: &str = "[centrifugo]\nenabled = true\n";

/// A client library of Centrifugo: how its script is started, and the forms of the protocol that it has. The scripts of all libraries have the
/// arguments, the input and the output of `centrifuge_client.mjs`.
pub struct Library {
    pub start: fn(&[&str]) -> Client,
    pub forms: &'static [&'static str],
}

/// Every transport in the forms of the protocol that it has.
const JAVASCRIPT: Library = Library {
    start: |args| Client::node("centrifuge_client.mjs", args),
    forms: &[
        "json",
        "protobuf",
        "json/http_stream",
        "protobuf/http_stream",
        "json/sse",
    ],
};

const PYTHON: Library = Library {
    start: |args| Client::python("centrifuge_client.py", args),
    forms: &["json", "protobuf"],
};

fn data(client: &Client) -> Value {
    client.next("message")["data"].take()
}

impl Library {
    fn start(&self, server: &Server, form: &str, channels: &[&str]) -> Client {
        self.with_token(server, form, "", channels)
    }

    fn with_token(&self, server: &Server, form: &str, token: &str, channels: &[&str]) -> Client {
        let address = server.address().to_string();
        (self.start)(&[&[address.as_str(), form, token], channels].concat())
    }

    pub fn subscribes_publishes_and_asks_for_history(&self) {
        let server = Server::with(ON);
        for form in self.forms {
            let (one, two) = (format!("{form}/one"), format!("{form}/two"));
            let mut client = self.start(&server, form, &[&one, &two]);
            client.next("subscribed");
            client.next("subscribed");
            client.tell(&json!({"publish": one, "data": {"n": 1}}));
            assert_eq!(data(&client), json!({"n": 1}));
            publish(&server, &two, "[2]");
            assert_eq!(data(&client), json!([2]));
            client.tell(&json!({"unsubscribe": one}));
            client.next("unsubscribed");
            server.await_subscribers(&one, 0);
            publish(&server, &one, "3");
            publish(&server, &two, "4");
            assert_eq!(data(&client), json!(4));
            client.tell(&json!({"history": one}));
            assert_eq!(client.next("history")["data"], json!([{"n": 1}, 3]));
            client.tell(&json!({"rpc": "anything"}));
            assert_eq!(client.next("refused")["code"], 108);
        }
    }

    pub fn is_told_of_joins_and_leaves(&self) {
        let presence = "[[rule]]\nmatch = '#'\npresence = true\n[presence]\nleave_s = 0\n";
        let server = Server::with(&format!("{presence}{ON}"));
        for form in self.forms {
            let room = format!("{form}/room");
            let client = self.start(&server, form, &[&room]);
            let own = client.next("join")["client"].take();
            let mut other = self.start(&server, form, &[&room]);
            let id = client.next("join")["client"].take();
            assert_ne!(id, own);
            assert_eq!(other.next("join")["client"], id, "its own");
            other.tell(&json!({"unsubscribe": room}));
            assert_eq!(client.next("leave")["client"], id);
        }
    }

    pub fn recovers_from_a_crash_without_a_loss(&self) {
        let state = State::new();
        let settings = format!("{ON}{}", state.settings());
        for form in self.forms {
            let mut server = Server::with(&settings);
            let address = server.address();
            let channel = format!("{form}/a");
            let client = self.start(&server, form, &[&channel]);
            client.next("subscribed");
            for round in 0..3 {
                publish(&server, &channel, &format!("[{round},1]"));
                assert_eq!(data(&client), json!([round, 1]));
                server.crash();
                client.next("connecting");
                server = Server::from_build_at(&crate::support::program(), &settings, address);
                // Before the client is back, or after.
                publish(&server, &channel, &format!("[{round},2]"));
                let back = client.next("subscribed");
                assert_eq!(
                    (&back["wasRecovering"], &back["recovered"]),
                    (&json!(true), &json!(true)),
                    "{back}"
                );
                assert_eq!(data(&client), json!([round, 2]));
            }
        }
    }
}

/// The course of the libraries of the server API, whose scripts have the arguments, the input and the output of `cent_client.py`.
pub fn backend_library_publishes_reads_and_ends(start: impl FnOnce(&[&str]) -> Client) {
    let (key, secret) = (
        "a-key-of-the-backend",
        "a secret that only this test and its server know",
    );
    let server = Server::with_admin(&format!(
        "{ON}[admin]\napi_key = '{key}'\n[[access.key]]\nalg = 'HS256'\nsecret = '{secret}'\n"
    ));
    let claims = json!({"sub": "ann", "exp": 4_000_000_000_u64, "subscribe": ["#"]});
    let signing = EncodingKey::from_secret(secret.as_bytes());
    let token = encode(&Header::new(Algorithm::HS256), &claims, &signing).expect("a token");
    let client = JAVASCRIPT.with_token(&server, "json", &token, &["a", "b"]);
    client.next("subscribed");
    client.next("subscribed");
    let url = format!("http://{}/api", server.admin());
    let mut cent = start(&[&url, key]);
    let first = cent.next("published");
    assert_eq!(data(&client), json!({"n": 1}));
    assert_eq!(data(&client), json!({"n": 2}));
    assert_eq!(data(&client), json!({"n": 2}));
    let kept = cent.next("history");
    assert_eq!(kept["data"], json!([{"n": 1}, {"n": 2}]));
    assert!(kept["offset"].as_u64() > first["offset"].as_u64(), "{kept}");
    assert_eq!(cent.next("channels")["names"], json!(["a", "b"]));
    assert_eq!(cent.next("info")["nodes"], 1);
    assert_eq!(cent.next("batch")["data"], json!([3]));
    assert_eq!(cent.next("history")["data"], json!([]));
    let ended = client.next("unsubscribed");
    assert_eq!(
        (&ended["channel"], &ended["code"]),
        (&json!("a"), &json!(2000))
    );
    cent.tell(&json!("go on"));
    assert_eq!(client.next("disconnected")["code"], 4500);
    let refused = cent.next("refused");
    assert!(
        refused["code"] == 108 || refused["code"].is_null(),
        "{refused}"
    );
    cent.next("unauthorized");
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn centrifuge_js_subscribes_publishes_and_asks_for_history() {
    JAVASCRIPT.subscribes_publishes_and_asks_for_history();
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn centrifuge_js_is_told_of_joins_and_leaves() {
    JAVASCRIPT.is_told_of_joins_and_leaves();
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn centrifuge_js_recovers_from_a_crash_without_a_loss() {
    JAVASCRIPT.recovers_from_a_crash_without_a_loss();
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn centrifuge_python_subscribes_publishes_and_asks_for_history() {
    PYTHON.subscribes_publishes_and_asks_for_history();
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn centrifuge_python_is_told_of_joins_and_leaves() {
    PYTHON.is_told_of_joins_and_leaves();
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn centrifuge_python_recovers_from_a_crash_without_a_loss() {
    PYTHON.recovers_from_a_crash_without_a_loss();
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn cent_publishes_reads_and_ends_subscriptions_and_clients() {
    backend_library_publishes_reads_and_ends(|args| Client::python("cent_client.py", args));
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn cent_js_publishes_reads_and_ends_subscriptions_and_clients() {
    backend_library_publishes_reads_and_ends(|args| Client::node("cent_client.mjs", args));
}
