//! Tests centrifuge-js, the client library of Centrifugo for JavaScript, in both forms of the protocol.

use serde_json::{Value, json};

use crate::client::{Client, publish};
use crate::support::Server;
use crate::support::state::State;

const ON: &str = "[centrifugo]\nenabled = true\n";

fn start(server: &Server, form: &str, channels: &[&str]) -> Client {
    let address = server.address().to_string();
    let args = [&[address.as_str(), form, ""], channels].concat();
    Client::node("centrifuge_client.mjs", &args)
}

fn data(client: &Client) -> Value {
    client.next("message")["data"].take()
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn centrifuge_js_subscribes_publishes_and_asks_for_history() {
    let server = Server::with(ON);
    for form in ["json", "protobuf"] {
        let (one, two) = (format!("{form}/one"), format!("{form}/two"));
        let mut client = start(&server, form, &[&one, &two]);
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

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn centrifuge_js_recovers_from_a_crash_without_a_loss() {
    let state = State::new();
    let settings = format!("{ON}{}", state.settings());
    for form in ["json", "protobuf"] {
        let mut server = Server::with(&settings);
        let address = server.address();
        let channel = format!("{form}/a");
        let client = start(&server, form, &[&channel]);
        client.next("subscribed");
        for round in 0..3 {
            publish(&server, &channel, &format!("[{round},1]"));
            assert_eq!(data(&client), json!([round, 1]));
            server.crash();
            client.next("connecting");
            server = Server::of_at(&crate::support::program(), &settings, address);
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
