//! Tests recovery: the reply to a subscribe contains the messages that the client missed, or says that some are lost.

use serde_json::{Value, json};

use crate::client::{Client, ON, data_of, server};
use crate::support::Server;
use crate::support::http::{once, publish};
use crate::support::state::State;

/// Settings with which a client may read nothing for an hour, and few of its messages are queued.
pub const SLOW: &str = "[timeouts]\nbody_s = 3600\n[limits]\noutbox_bytes = 100000\n";

#[test]
fn a_client_that_recovers_gets_what_it_missed() {
    let server = server();
    let mut client = Client::connected(&server);
    let begin = client.subscribe("a");
    assert_eq!(
        (&begin["recoverable"], &begin["positioned"]),
        (&json!(true), &json!(true))
    );
    publish(&server, "a", "1");
    let seen = client.push()["pub"]["offset"].take();
    drop(client);
    for n in 2..=4 {
        publish(&server, "a", n.to_string());
    }
    let mut client = Client::connected(&server);
    let result = client.recover("a", &begin["epoch"], &seen);
    assert_eq!(data_of(&result), [2, 3, 4].map(|n| json!(n)));
    assert_eq!(
        (&result["was_recovering"], &result["recovered"]),
        (&json!(true), &json!(true))
    );
    let publications = result["publications"].as_array().expect("publications");
    assert_eq!(result["offset"], publications[2]["offset"]);
    publish(&server, "a", "5");
    assert_eq!(client.data("a"), json!(5));
}

#[test]
fn client_that_missed_nothing_recovers_without_messages() {
    let server = server();
    let mut client = Client::connected(&server);
    let begin = client.subscribe("a");
    let offset = begin.get("offset").cloned().unwrap_or(json!(0));
    let result = Client::connected(&server).recover("a", &begin["epoch"], &offset);
    assert_eq!(
        (&result["recovered"], data_of(&result)),
        (&json!(true), vec![])
    );
}

#[test]
fn loss_is_reported_by_recovered_false() {
    let server = Server::with(&format!("{ON}[[rule]]\nmatch = '#'\nlog_messages = 2\n"));
    let mut client = Client::connected(&server);
    let begin = client.subscribe("a");
    for n in 1..=5 {
        publish(&server, "a", n.to_string());
    }
    let seen = client.push()["pub"]["offset"].take();
    let mut client = Client::connected(&server);
    let result = client.recover("a", &begin["epoch"], &seen);
    assert_eq!(result.get("recovered"), None, "{result}");
    assert_eq!(result["was_recovering"], true);
    // The reply still contains the messages that the log has.
    assert_eq!(data_of(&result), [json!(4), json!(5)]);
    publish(&server, "a", "6");
    assert_eq!(client.data("a"), json!(6));
}

#[test]
fn a_loss_is_an_error_if_the_subscribe_asks_for_that() {
    let server = Server::with(&format!("{ON}[[rule]]\nmatch = '#'\nlog_messages = 2\n"));
    let mut client = Client::connected(&server);
    let begin = client.subscribe("a");
    let recover = |position: &Value| {
        let (epoch, offset) = (&position["epoch"], position.get("offset"));
        json!({"channel": "a", "recover": true, "epoch": epoch, "offset": offset.unwrap_or(&json!(0)), "flag": 2})
    };
    for n in 1..=5 {
        publish(&server, "a", n.to_string());
    }
    let mut client = Client::connected(&server);
    assert_eq!(client.error("subscribe", recover(&begin)), 112);
    let unknown = json!({"epoch": "xyz", "offset": 1});
    assert_eq!(client.error("subscribe", recover(&unknown)), 112);
    // The refused client is not subscribed. From its new position on, it loses nothing.
    let begin = client.subscribe("a");
    publish(&server, "a", "6");
    assert_eq!(client.data("a"), json!(6));
    let mut client = Client::connected(&server);
    let result = client.ask("subscribe", recover(&begin))["subscribe"].take();
    assert_eq!(
        (&result["recovered"], data_of(&result)),
        (&json!(true), vec![json!(6)])
    );
}

#[test]
fn a_position_of_another_server_is_a_loss() {
    let server = server();
    publish(&server, "a", "1");
    for epoch in ["0000000f", "xyz"] {
        let mut client = Client::connected(&server);
        let result = client.recover("a", &json!(epoch), &json!(1));
        assert_eq!(result.get("recovered"), None, "{epoch}: {result}");
    }
}

#[test]
fn a_client_recovers_from_a_crash_without_a_loss() {
    let state = State::new();
    let settings = format!("{ON}{}", state.settings());
    let mut server = Server::with(&settings);
    let mut client = Client::connected(&server);
    let begin = client.subscribe("a");
    let (mut epoch, mut seen) = (begin["epoch"].clone(), json!(0));
    for round in 0..3 {
        client.publish("a", json!([round, "heard"]));
        seen = client.push()["pub"]["offset"].take();
        let mut publisher = Client::connected(&server);
        publisher.publish("a", json!([round, "missed"]));
        server.kill();
        server = Server::with(&settings);
        client = Client::connected(&server);
        let result = client.recover("a", &epoch, &seen);
        assert_eq!(result["recovered"], true, "{result}");
        assert_eq!(data_of(&result), [json!([round, "missed"])]);
        (epoch, seen) = (result["epoch"].clone(), result["offset"].clone());
    }
    assert!(seen.is_u64());
}

#[test]
fn slow_client_continues_from_the_log() {
    let rule = "[[rule]]\nmatch = '#'\nlog_bytes = 67108864\n";
    let server = Server::with(&format!("{ON}ping_interval_s = 0\n{SLOW}{rule}"));
    let mut client = Client::connected(&server);
    client.subscribe("a");
    client.subscribe("b");
    let text = "x".repeat(20_000);
    let mut publisher = Client::connected(&server);
    for n in 0..500 {
        publisher.publish("a", json!([n, text]));
    }
    for n in 0..500 {
        assert_eq!(client.data("a")[0], n);
    }
    publisher.publish("b", json!("done"));
    assert_eq!(client.data("b"), json!("done"));
}

#[test]
fn slow_client_that_lost_messages_is_told_and_recovers() {
    let rule = "[[rule]]\nmatch = '#'\nlog_messages = 3\n";
    let server = Server::with(&format!("{ON}ping_interval_s = 0\n{SLOW}{rule}"));
    let mut client = Client::connected(&server);
    let begin = client.subscribe("a");
    let text = "x".repeat(20_000);
    let mut publisher = Client::connected(&server);
    for n in 0..1_000 {
        publisher.publish("a", json!([n, text]));
    }
    let (mut last, mut seen) = (0, json!(0));
    let push = loop {
        let push = client.push();
        let Some(publication) = push.get("pub") else {
            break push;
        };
        last = publication["data"][0].as_u64().expect("a number");
        seen = publication["offset"].clone();
    };
    assert!(last < 999, "the client was not slow");
    let ended = json!({"code": 2500, "reason": "insufficient state"});
    assert_eq!(
        (&push["channel"], &push["unsubscribe"]),
        (&json!("a"), &ended)
    );
    let result = client.recover("a", &begin["epoch"], &seen);
    assert_eq!(result.get("recovered"), None);
    let kept: Vec<Value> = data_of(&result)
        .iter()
        .map(|data| data[0].clone())
        .collect();
    assert_eq!(kept, [json!(997), json!(998), json!(999)]);
}

#[test]
fn position_without_an_epoch_is_one_of_this_server() {
    let server = server();
    for n in 1..=3 {
        publish(&server, "a", n.to_string());
    }
    let mut client = Client::connected(&server);
    let body = json!({"channel": "a", "limit": 1});
    let first = client.ask("history", body)["history"]["publications"][0]["offset"].take();
    let result = client.recover("a", &json!(""), &first);
    assert_eq!(result["recovered"], true, "{result}");
    assert_eq!(data_of(&result), [json!(2), json!(3)]);
    let since = json!({"offset": first});
    let body = json!({"channel": "a", "limit": -1, "since": since});
    let reply = client.ask("history", body);
    assert_eq!(data_of(&reply["history"]), [json!(2), json!(3)]);
}

fn delete(server: &Server, topic: &str) {
    let answer = once(server, "DELETE", &format!("/pub/{topic}"), &[], "");
    assert_eq!(answer.status, 200, "{answer:?}");
}

#[test]
fn deletion_of_missed_messages_is_a_loss() {
    let server = server();
    let mut client = Client::connected(&server);
    let begin = client.subscribe("a");
    publish(&server, "a", "1");
    let seen = client.push()["pub"]["offset"].take();
    publish(&server, "a", "2");
    delete(&server, "a");
    for epoch in [&begin["epoch"], &json!("0000000f")] {
        let mut client = Client::connected(&server);
        let since = json!({"offset": seen, "epoch": epoch});
        let body = json!({"channel": "a", "limit": -1, "since": since});
        assert_eq!(client.error("history", body), 112, "{epoch}");
        let result = client.recover("a", epoch, &seen);
        assert_eq!(
            (&result["was_recovering"], result.get("recovered")),
            (&json!(true), None),
            "{result}"
        );
        // The reply has the position after the deletion, and a client can continue from it.
        let mut other = Client::connected(&server);
        let result = other.recover("a", &result["epoch"], &result["offset"]);
        assert_eq!(result["recovered"], true, "{result}");
        publish(&server, "a", "3");
        assert_eq!([client.data("a"), other.data("a")], [3, 3]);
        delete(&server, "a");
    }
}

#[test]
fn history_after_the_position_of_a_deletion_is_empty() {
    let server = server();
    publish(&server, "a", "1");
    delete(&server, "a");
    let mut client = Client::connected(&server);
    let newest = json!({"channel": "a"});
    let mut position = client.ask("history", newest)["history"].take();
    assert!(position["offset"].is_u64(), "{position}");
    // Reading the history does not change the position, so both replies are equal.
    for _ in 0..2 {
        let since = json!({"offset": position["offset"], "epoch": position["epoch"]});
        let body = json!({"channel": "a", "limit": -1, "since": since});
        let reply = client.ask("history", body);
        assert_eq!(reply["history"], position, "{reply}");
    }
    publish(&server, "a", "2");
    let since = position.take();
    let body = json!({"channel": "a", "limit": -1, "since": since});
    assert_eq!(data_of(&client.ask("history", body)["history"]), [json!(2)]);
}

#[test]
fn slow_client_is_told_of_the_deletion_of_its_unread_messages() {
    let rule = "[[rule]]\nmatch = '#'\nlog_bytes = 67108864\n";
    let server = Server::with(&format!("{ON}ping_interval_s = 0\n{SLOW}{rule}"));
    let mut client = Client::connected(&server);
    client.subscribe("a");
    let text = "x".repeat(20_000);
    let mut publisher = Client::connected(&server);
    for n in 0..1_000 {
        publisher.publish("a", json!([n, text]));
    }
    delete(&server, "a");
    let mut got = 0;
    let push = loop {
        let push = client.push();
        if push.get("pub").is_none() {
            break push;
        }
        got += 1;
    };
    assert!(got < 1_000, "the client was not slow");
    assert_eq!(push["unsubscribe"]["code"], 2500, "{push}");
}
