//! Tests join and leave pushes: which clients receive them, about which members, and when they end.

use serde_json::{Value, json};

use crate::client::{Client, ON};
use crate::rights::{LATER_S, SECRET, closed_with, token, with_claims};
use crate::support::ws::Ws;
use crate::support::{Server, until};

const RULES: &str = "[[rule]]\nmatch = 'plain'\n[[rule]]\nmatch = '#'\npresence = true\n";

fn ask_for_pushes(client: &mut Client, channel: &str) {
    let body = json!({"channel": channel, "join_leave": true});
    let reply = client.ask("subscribe", body);
    assert!(reply.get("subscribe").is_some(), "{reply}");
}

/// The next push, which must be of this kind: the channel, the user and the client.
fn next(client: &mut Client, kind: &str) -> (Value, String, String) {
    let push = client.push();
    let info = &push[kind]["info"];
    let text = |name: &str| info[name].as_str().unwrap_or_default().to_string();
    let (user, id) = (text("user"), text("client"));
    assert!(!id.is_empty(), "{push} is no {kind}");
    (push["channel"].clone(), user, id)
}

/// Waits until the list of `room` has this many members. A subscriber may be counted before the list contains it.
fn await_members(client: &mut Client, count: u64) {
    until("the members", || {
        let stats = client.ask("presence_stats", json!({"channel": "room"}));
        stats["presence_stats"]["num_clients"] == count
    });
}

#[test]
fn subscription_gets_joins_and_leaves_if_it_asks() {
    let server = Server::with(&format!("{RULES}{ON}[presence]\nleave_s = 0\n"));
    let _before = Ws::open(&server, "/sub/room", &[]);
    let mut client = Client::connected(&server);
    await_members(&mut client, 1);
    client.subscribe("other");
    for channel in ["room", "plain"] {
        ask_for_pushes(&mut client, channel);
    }
    // The first push is the client's own join, as in Centrifugo. Earlier members are not pushed.
    let own = next(&mut client, "join");
    assert_eq!(own.0, "room");
    let mut second = Client::connected(&server);
    for channel in ["other", "plain", "room"] {
        second.subscribe(channel);
    }
    let (channel, _, id) = next(&mut client, "join");
    assert_eq!(channel, "room");
    assert_ne!(id, own.2);
    second.ask("unsubscribe", json!({"channel": "room"}));
    assert_eq!(next(&mut client, "leave").2, id);
    let ws = Ws::open(&server, "/sub/room", &[]);
    let third = next(&mut client, "join");
    drop(ws);
    assert_eq!(next(&mut client, "leave"), third);
    // After an unsubscribe the client gets no pushes. A new subscription starts again with its own join.
    client.ask("unsubscribe", json!({"channel": "room"}));
    second.subscribe("room");
    await_members(&mut client, 2);
    ask_for_pushes(&mut client, "room");
    assert_eq!(next(&mut client, "join").2, own.2);
    drop(second);
    assert_eq!(next(&mut client, "leave").2, id);
    // A subscription that does not request the pushes gets none.
    let mut silent = Client::connected(&server);
    silent.subscribe("room");
    next(&mut client, "join");
    silent.publish("room", json!(1));
    assert_eq!(silent.data("room"), json!(1));
}

#[test]
fn returning_user_is_a_leave_and_a_join_for_watchers_of_clients() {
    let rights = "[[rule]]\nmatch = '#'\npresence = true\n[access.anonymous]\ninfo = ['#']\n";
    let server = Server::with(&format!(
        "{ON}{rights}[[access.key]]\nalg = 'HS256'\nsecret = '{SECRET}'\n"
    ));
    let ann = token(&json!({"sub": "ann", "exp": LATER_S, "subscribe": ["#"], "presence": ["#"]}));
    let bob = token(&json!({"sub": "bob", "exp": LATER_S, "subscribe": ["#"], "publish": ["#"]}));
    let mut client = Client::with_token(&server, &ann);
    ask_for_pushes(&mut client, "room");
    next(&mut client, "join");
    let mut other = Client::with_token(&server, &bob);
    // Without the right to presence the client gets no pushes.
    ask_for_pushes(&mut other, "room");
    let first = next(&mut client, "join");
    assert_eq!(first.1, "bob");
    drop(other);
    server.await_subscribers("room", 1);
    let mut other = Client::with_token(&server, &bob);
    ask_for_pushes(&mut other, "room");
    assert_eq!(next(&mut client, "leave"), first);
    let second = next(&mut client, "join");
    assert_eq!(second.1, "bob");
    assert_ne!(second.2, first.2);
    other.publish("room", json!(1));
    assert_eq!(other.data("room"), json!(1), "no join before");
}

#[test]
fn info_of_a_token_is_told_to_others_and_the_publisher_is_named() {
    let settings = format!("{ON}[[rule]]\nmatch = '#'\npresence = true\npublisher = true\n");
    let server = closed_with(&settings);
    let rights = json!({"subscribe": ["#"], "presence": ["#"]});
    let mut ann = Client::with_token(&server, &with_claims("ann", &rights));
    ask_for_pushes(&mut ann, "room");
    next(&mut ann, "join");
    let info = json!({"name": "Bob"});
    let claims = json!({"subscribe": ["#"], "info": info});
    let mut bob = Client::with_token(&server, &with_claims("bob", &claims));
    bob.subscribe("room");
    assert_eq!(ann.push()["join"]["info"]["conn_info"], info);
    let reply = ann.ask("presence", json!({"channel": "room"}));
    let present = reply["presence"]["presence"].as_object().expect("clients");
    let of_bob = present.values().find(|it| it["user"] == "bob");
    assert_eq!(of_bob.expect("he is present")["conn_info"], info);
    bob.publish("room", json!(1));
    let told = json!({"user": "bob", "client": ""});
    assert_eq!(ann.push()["pub"]["info"], told);
    let history = ann.ask("history", json!({"channel": "room", "limit": 1}));
    assert_eq!(history["history"]["publications"][0]["info"], told);
}

#[test]
fn override_of_a_token_tells_of_joins_and_leaves() {
    let settings = format!("{ON}[[rule]]\nmatch = '#'\npresence = true\n");
    let server = closed_with(&settings);
    let over = json!({"force_push_join_leave": {"value": true}});
    let claims = json!({"subs": {"room": {"override": over}, "quiet": {}}});
    // The token grants the pushes, so that the client needs no right.
    let mut by_server = Client::with_token(&server, &with_claims("ann", &claims));
    let mut bob = Client::with_token(&server, &with_claims("bob", &json!({"subscribe": ["#"]})));
    let of_room = json!({"channel": "room", "override": over});
    let body = json!({"channel": "room", "token": with_claims("bob", &of_room)});
    let reply = bob.ask("subscribe", body);
    assert!(reply.get("subscribe").is_some(), "{reply}");
    let mut all = Client::with_token(&server, &with_claims("zoe", &json!({"subscribe": ["#"]})));
    for channel in ["quiet", "room"] {
        all.subscribe(channel);
    }
    for client in [&mut by_server, &mut bob] {
        // Joins of earlier members may arrive first.
        loop {
            let (channel, user, _) = next(client, "join");
            assert_eq!(channel, "room");
            if user == "zoe" {
                break;
            }
        }
    }
}

#[test]
fn watchers_of_this_protocol_count_and_end_with_their_connections() {
    let server = Server::with(&format!("{RULES}{ON}[presence]\nwatchers_max = 1\n"));
    let mut first = Client::connected(&server);
    ask_for_pushes(&mut first, "room");
    next(&mut first, "join");
    // There is no room for another watcher, so this subscription gets no pushes.
    let mut second = Client::connected(&server);
    ask_for_pushes(&mut second, "room");
    next(&mut first, "join");
    drop(first);
    until("the place of the first is free", || {
        let mut third = Client::connected(&server);
        ask_for_pushes(&mut third, "free");
        third.publish("free", json!(1));
        third.push().get("join").is_some()
    });
    second.publish("room", json!(1));
    assert_eq!(second.data("room"), json!(1), "no join before");
}
