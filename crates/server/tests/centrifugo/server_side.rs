//! Tests server-side subscriptions: those in a token's claims, and those that the server API begins.

use serde_json::{Value, json};

use crate::api::{call, with_users};
use crate::client::{Client, ON};
use crate::recovery::SLOW;
use crate::rights::{closed, with_claims};
use crate::support::Server;
use crate::support::state::State;

/// Connects. Returns the client and the reply's `subs`.
fn connect(server: &Server, body: Value) -> (Client, Value) {
    let mut client = Client::open(server);
    let mut reply = client.ask("connect", body);
    assert!(reply["connect"]["client"].is_string(), "{reply}");
    let subs = reply["connect"]["subs"].take();
    (client, subs)
}

/// The connect command of a client that recovers a channel from this position.
fn recovering(token: &str, channel: &str, epoch: &Value, offset: &Value) -> Value {
    let sub = json!({"recover": true, "epoch": epoch, "offset": offset});
    json!({"token": token, "subs": {channel: sub}})
}

#[test]
fn channels_of_a_token_are_subscribed_with_the_connect() {
    let server = closed("");
    let claims = json!({"channels": ["a", "b"], "subs": {"b": {}, "c": {"data": {"n": 1}}}});
    let token = with_claims("ann", &claims);
    let mut client = Client::open(&server);
    // The server executes the commands after the connect only when the connect is answered.
    let commands = [
        client.command("connect", json!({"token": token})),
        client.command("publish", json!({"channel": "a", "data": 1})),
        client.command("subscribe", json!({"channel": "c"})),
    ];
    client.frame(&commands.map(|command| command.to_string()).join("\n"));
    let first: Value =
        serde_json::from_str(client.ws.frame().text().lines().next().expect("a line"))
            .expect("JSON");
    let subs = first["connect"]["subs"].as_object().expect("subscriptions");
    let names: Vec<_> = subs.keys().map(String::as_str).collect();
    assert_eq!(names, ["a", "b", "c"]);
    for sub in subs.values() {
        assert_eq!(
            (&sub["recoverable"], &sub["positioned"]),
            (&json!(true), &json!(true)),
            "{sub}"
        );
        assert!(
            sub["epoch"].is_string() && sub.get("recovered").is_none(),
            "{sub}"
        );
    }
    assert_eq!(subs["c"]["data"], json!({"n": 1}));
    assert_eq!(client.data("a"), json!(1));
    let refused = client.reply(3);
    assert_eq!(refused["error"]["code"], 105, "{refused}");
    // The token grants only these channels.
    assert_eq!(client.error("subscribe", json!({"channel": "d"})), 103);
    let mut other = Client::with_token(&server, &with_claims("bob", &json!({})));
    for channel in ["a", "b", "c"] {
        other.publish(channel, json!(channel));
        assert_eq!(client.data(channel), json!(channel));
    }
    let reply = client.ask("unsubscribe", json!({"channel": "a"}));
    assert!(reply.get("unsubscribe").is_some(), "{reply}");
    other.publish("a", json!(2));
    other.publish("b", json!(3));
    assert_eq!(client.data("b"), json!(3));
}

#[test]
fn tokens_have_data_for_their_channels() {
    let server = closed("");
    let claims = json!({
        "subs": {"a": {"data": {"n": 1}}, "b": {"b64data": "eyJuIjoyfQ=="}, "c": {"b64data": "/w=="}}
    });
    let (mut client, subs) = connect(&server, json!({"token": with_claims("ann", &claims)}));
    assert_eq!(subs["a"]["data"], json!({"n": 1}));
    assert_eq!(subs["b"]["data"], json!({"n": 2}));
    // Data that is not JSON reaches a JSON client as Base64.
    assert_eq!(subs["c"]["data"], json!("/w=="));
    for (claim, data) in [("data", json!([1])), ("b64data", json!("WzFd"))] {
        let claims = json!({"channel": claim, claim: data});
        let body = json!({"channel": claim, "token": with_claims("ann", &claims)});
        let reply = client.ask("subscribe", body);
        assert_eq!(reply["subscribe"]["data"], json!([1]), "{reply}");
    }
}

#[test]
fn server_side_subscription_recovers_what_it_missed() {
    let state = State::new();
    let settings = format!("{}{}", settings_of_users(), state.settings());
    let mut server = Server::with(&settings);
    let token = with_claims("ann", &json!({"channels": ["a", "b"]}));
    let (mut client, subs) = connect(&server, json!({"token": token}));
    let epoch = subs["a"]["epoch"].clone();
    let mut other = Client::with_token(&server, &with_claims("bob", &json!({})));
    other.publish("a", json!(0));
    let seen = client.push()["pub"]["offset"].take();
    drop(client);
    // These messages need more than one page.
    for n in 1..300 {
        other.publish("a", json!(n));
    }
    server.crash();
    let server = Server::with(&settings);
    let body = recovering(&token, "a", &epoch, &seen);
    let (mut client, subs) = connect(&server, body);
    let (a, b) = (&subs["a"], &subs["b"]);
    assert_eq!(
        (&a["was_recovering"], &a["recovered"]),
        (&json!(true), &json!(true)),
        "{subs}"
    );
    assert_eq!(
        (&a["offset"], b.get("was_recovering")),
        (&seen, None),
        "{subs}"
    );
    let mut other = Client::with_token(&server, &with_claims("bob", &json!({})));
    other.publish("a", json!(300));
    for n in 1..=300 {
        assert_eq!(client.data("a"), json!(n));
    }
    assert!(client.goes_on());
}

fn settings_of_users() -> String {
    format!(
        "{ON}[[access.key]]\nalg = 'HS256'\nsecret = '{}'\n",
        crate::rights::SECRET
    )
}

#[test]
fn server_side_subscription_is_told_a_loss() {
    let server = closed("[[rule]]\nmatch = '#'\nlog_messages = 2\n");
    let token = with_claims("ann", &json!({"channels": ["a"]}));
    let (mut client, subs) = connect(&server, json!({"token": token}));
    let mut other = Client::with_token(&server, &with_claims("bob", &json!({})));
    for n in 0..5 {
        other.publish("a", json!(n));
    }
    let seen = client.push()["pub"]["offset"].take();
    for (epoch, offset) in [
        (&subs["a"]["epoch"], &seen),
        (&json!("12345678"), &json!(1)),
    ] {
        let (mut client, subs) = connect(&server, recovering(&token, "a", epoch, offset));
        let a = &subs["a"];
        assert_eq!(a["was_recovering"], true, "{subs}");
        assert_eq!(a.get("recovered"), None, "{subs}");
        assert_eq!([client.data("a"), client.data("a")], [3, 4]);
        assert!(client.goes_on());
    }
}

#[test]
fn slow_client_of_a_server_side_subscription_connects_again_after_a_loss() {
    let rule = "ping_interval_s = 0\n[[rule]]\nmatch = '#'\nlog_messages = 3\n";
    let settings = settings_of_users().replacen('[', &format!("{SLOW}["), 1);
    let settings = settings.replacen("enabled = true\n", &format!("enabled = true\n{rule}"), 1);
    let server = Server::with(&settings);
    let token = with_claims("ann", &json!({"channels": ["a"]}));
    let (mut client, _) = connect(&server, json!({"token": token}));
    let mut other = Client::with_token(&server, &with_claims("bob", &json!({})));
    let text = "x".repeat(20_000);
    for n in 0..1_000 {
        other.publish("a", json!([n, text]));
    }
    assert_eq!(client.closed().0, 3010);
}

#[test]
fn tokens_with_wrong_or_too_many_channels_do_not_connect() {
    let server = closed("[limits]\ntopics_per_connection = 3\n");
    for (claims, code) in [
        (json!({"channels": ["a", "b", "c", "d"]}), 3505),
        (json!({"channels": ["a", 1]}), 3500),
        (json!({"subs": 1}), 3500),
    ] {
        let mut client = Client::open(&server);
        client.send("connect", json!({"token": with_claims("ann", &claims)}));
        assert_eq!(client.closed().0, code, "{claims}");
    }
    let mut client = Client::open(&server);
    let bad = with_claims("ann", &json!({"channels": ["a/#"]}));
    assert_eq!(client.error("connect", json!({"token": bad})), 107);
    let (mut client, _) = connect(
        &server,
        json!({"token": with_claims("ann", &json!({"channels": ["a", "b", "c"]}))}),
    );
    assert!(client.goes_on());
}

#[test]
fn api_subscribes_the_clients_of_a_user() {
    let server = with_users();
    let of = |user| Client::with_token(&server, &with_claims(user, &json!({"subscribe": ["own"]})));
    let (mut ann, mut bob) = (of("ann"), of("bob"));
    call(&server, "publish", json!({"channel": "a", "data": 0}));
    let body = json!({"user": "ann", "channel": "a", "data": {"n": 1}});
    assert_eq!(call(&server, "subscribe", body.clone()), json!({}));
    let push = ann.push();
    let begun = &push["subscribe"];
    assert_eq!(
        (&push["channel"], &begun["data"]),
        (&json!("a"), &json!({"n": 1})),
        "{push}"
    );
    assert_eq!(
        (&begun["recoverable"], &begun["positioned"]),
        (&json!(true), &json!(true))
    );
    // Repeating the call changes nothing. Nor does a call for a channel that the client subscribed to itself.
    call(&server, "subscribe", body);
    ann.subscribe("own");
    call(
        &server,
        "subscribe",
        json!({"user": "ann", "channel": "own"}),
    );
    call(&server, "publish", json!({"channel": "a", "data": 1}));
    let push = ann.push();
    assert_eq!(
        (&push["channel"], &push["pub"]["data"]),
        (&json!("a"), &json!(1))
    );
    call(
        &server,
        "unsubscribe",
        json!({"user": "ann", "channel": "a"}),
    );
    assert_eq!(ann.push()["unsubscribe"]["code"], 2000);
    // The new subscription continues at the position in the call.
    let since = json!({"offset": begun["offset"], "epoch": begun["epoch"]});
    let body = json!({"user": "ann", "channel": "a", "recover_since": since});
    call(&server, "subscribe", body);
    assert_eq!(ann.push()["subscribe"]["offset"], begun["offset"]);
    assert_eq!(ann.data("a"), json!(1));
    // The subscription ends at the time in the call.
    call(
        &server,
        "subscribe",
        json!({"user": "bob", "channel": "b", "expire_at": 1_000}),
    );
    assert_eq!(bob.push()["channel"], "b");
    assert_eq!(
        bob.closed().0,
        3006,
        "a client cannot begin it again, so it connects again"
    );
    assert!(ann.goes_on());
}
