//! Tests connect, ping, several commands in a frame, unsubscribe and history.

use serde_json::{Value, json};

use crate::client::{Client, ON, data_of, server};
use crate::support::http::publish;
use crate::support::ws::Ws;
use crate::support::{Server, until};

#[test]
fn connect_reply_has_the_client_id_and_the_ping_interval() {
    let server = Server::with(&format!("{ON}ping_interval_s = 7\n"));
    let reply = Client::open(&server).ask("connect", json!({}));
    let connect = &reply["connect"];
    assert_eq!(
        (&connect["ping"], &connect["pong"]),
        (&json!(7), &json!(true))
    );
    let version = connect["version"].as_str().expect("a version");
    assert!(version.starts_with("crore "), "{version}");
    let other = Client::open(&server).ask("connect", json!({}));
    assert_ne!(connect["client"], other["connect"]["client"]);
}

#[test]
fn several_commands_of_one_frame_are_answered() {
    let server = server();
    let mut client = Client::open(&server);
    let commands = [
        client.command("connect", json!({})),
        client.command("subscribe", json!({"channel": "a"})),
        client.command("subscribe", json!({"channel": "b"})),
        client.command("ping", json!({})),
    ];
    let lines = commands.map(|command| command.to_string());
    client.frame(&lines.join("\n"));
    for (id, kind) in [
        (1, "connect"),
        (2, "subscribe"),
        (3, "subscribe"),
        (4, "ping"),
    ] {
        let reply = client.reply(id);
        assert!(reply.get(kind).is_some(), "{reply}");
    }
    // A line end after the last command begins no further command.
    client.frame("{\"id\":9,\"ping\":{}}\n");
    assert!(client.reply(9).get("ping").is_some());
}

#[test]
fn an_unsubscribed_client_gets_nothing_more() {
    let server = server();
    let mut client = Client::connected(&server);
    client.subscribe("a");
    client.subscribe("b");
    let reply = client.ask("unsubscribe", json!({"channel": "a"}));
    assert_eq!(reply["unsubscribe"], json!({}));
    server.await_subscribers("a", 0);
    publish(&server, "a", "1");
    publish(&server, "b", "2");
    assert_eq!(client.data("b"), json!(2));
    // The channel has no subscribers now, and the client may subscribe again.
    client.subscribe("a");
    publish(&server, "a", "3");
    assert_eq!(client.data("a"), json!(3));
    let reply = client.ask("unsubscribe", json!({"channel": "never"}));
    assert_eq!(reply["unsubscribe"], json!({}));
}

#[test]
fn history_is_read_from_either_end_and_after_a_position() {
    let server = server();
    let mut client = Client::connected(&server);
    for n in 1..=5 {
        client.publish("a", json!(n));
    }
    let mut ask = |body: Value| {
        let mut reply = client.ask("history", body);
        assert!(reply.get("history").is_some(), "{reply}");
        reply["history"].take()
    };
    let all = ask(json!({"channel": "a", "limit": -1}));
    assert_eq!(data_of(&all), [1, 2, 3, 4, 5].map(|n| json!(n)));
    let first = ask(json!({"channel": "a", "limit": 2}));
    assert_eq!(data_of(&first), [json!(1), json!(2)]);
    // The offset is the channel's newest, even if the reply does not contain the newest message.
    assert_eq!(first["offset"], all["publications"][4]["offset"]);
    let newest = ask(json!({"channel": "a", "limit": 2, "reverse": true}));
    assert_eq!(data_of(&newest), [json!(5), json!(4)]);
    let position = ask(json!({"channel": "a"}));
    assert_eq!(data_of(&position), Vec::<Value>::new());
    let last = &all["publications"][4]["offset"];
    assert_eq!(
        (&position["offset"], &position["epoch"]),
        (last, &all["epoch"])
    );
    let since = json!({"offset": all["publications"][2]["offset"], "epoch": all["epoch"]});
    let rest = ask(json!({"channel": "a", "limit": -1, "since": since}));
    assert_eq!(data_of(&rest), [json!(4), json!(5)]);
    let none = ask(json!({"channel": "nothing", "limit": -1}));
    assert_eq!(data_of(&none), Vec::<Value>::new());
}

#[test]
fn too_long_history_is_truncated_at_its_newer_end_or_refused() {
    let rule = "[[rule]]\nmatch = '#'\nlog_bytes = 67108864\n";
    let server = Server::with(&format!("{ON}{rule}"));
    let mut client = Client::connected(&server);
    let text = "x".repeat(10_000);
    for n in 0..100 {
        client.publish("a", json!([n, text]));
    }
    let forward = client.ask("history", json!({"channel": "a", "limit": -1}));
    let found = data_of(&forward["history"]);
    assert!(
        !found.is_empty() && found.len() < 100,
        "{} messages",
        found.len()
    );
    assert_eq!(found[0][0], 0);
    let body = json!({"channel": "a", "limit": -1, "reverse": true});
    assert_eq!(client.error("history", body), 106);
    let newest = client.ask(
        "history",
        json!({"channel": "a", "limit": 2, "reverse": true}),
    );
    let newest: Vec<Value> = data_of(&newest["history"])
        .iter()
        .map(|it| it[0].clone())
        .collect();
    assert_eq!(newest, [json!(99), json!(98)]);
}

#[test]
fn history_of_another_epoch_is_unrecoverable() {
    let server = server();
    let mut client = Client::connected(&server);
    client.publish("a", json!(1));
    for epoch in ["00000001", "another"] {
        let since = json!({"offset": 1, "epoch": epoch});
        let body = json!({"channel": "a", "limit": -1, "since": since});
        assert_eq!(client.error("history", body), 112, "{epoch}");
    }
    // A history request does not subscribe.
    assert_eq!(server.info("a").expect("the topic")["subscribers"], 0);
    assert!(client.goes_on());
}

#[test]
fn presence_lists_subscribers_and_presence_stats_counts_them() {
    let server = Server::with(&format!(
        "[[rule]]\nmatch = 'room'\npresence = true\npresence_max = 400\n{ON}"
    ));
    let mut client = Client::open(&server);
    let id = client.ask("connect", json!({}))["connect"]["client"].clone();
    let id = id.as_str().expect("an id").to_string();
    let reply = client.ask("presence", json!({"channel": "room"}));
    assert_eq!(reply["presence"], json!({"presence": {}}));
    let reply = client.ask("presence_stats", json!({"channel": "room"}));
    let nobody = json!({"num_clients": 0, "num_users": 0});
    assert_eq!(reply["presence_stats"], nobody);
    client.subscribe("room");
    client.subscribe("other");
    let all: Vec<Ws> = (0..399)
        .map(|_| Ws::open(&server, "/sub/room", &[]))
        .collect();
    until("400 members", || {
        let stats = client.ask("presence_stats", json!({"channel": "room"}));
        stats["presence_stats"] == json!({"num_clients": 400, "num_users": 1})
    });
    let reply = client.ask("presence", json!({"channel": "room"}));
    let members = reply["presence"]["presence"].as_object().expect("members");
    assert_eq!(members.len(), 400);
    assert_eq!(members[&id], json!({"user": "", "client": id}));
    drop(all);
    let body = json!({"channel": "room"});
    client.ask("unsubscribe", body);
    until("nobody unless they come back", || {
        let reply = client.ask("presence", json!({"channel": "room"}));
        reply["presence"]["presence"].get(&id).is_none()
    });
    for (channel, code) in [("other", 108), ("a/+", 107)] {
        for request in ["presence", "presence_stats"] {
            assert_eq!(
                client.error(request, json!({ "channel": channel })),
                code,
                "{channel}"
            );
        }
    }
    client.send("presence", json!({}));
    assert_eq!(client.closed().0, 3501);
}

#[test]
fn presence_commands_are_answered_one_after_another() {
    const MEMBERS: usize = 1_050;
    let server = Server::with(&format!(
        "[[rule]]\nmatch = 'room'\npresence = true\npresence_max = 2000\n{ON}[limits]\nconnections_max = 5000\n"
    ));
    let mut client = Client::connected(&server);
    let all: Vec<Ws> = (0..MEMBERS)
        .map(|_| Ws::open(&server, "/sub/room", &[]))
        .collect();
    until("all members", || {
        let stats = client.ask("presence_stats", json!({"channel": "room"}));
        stats["presence_stats"]["num_clients"] == MEMBERS
    });
    // The list of members needs two requests to the home (which keeps the topic), and the counts need one.
    let mut frame = String::new();
    for at in 0..40 {
        let request = ["presence", "presence_stats"][at % 2];
        let command = client.command(request, json!({"channel": "room"}));
        frame.push_str(&format!("{command}\n"));
    }
    client.frame(&frame);
    let mut replies = Vec::new();
    while replies.len() < 40 {
        let reply = client.next();
        match reply.get("presence") {
            Some(members) => assert_eq!(
                members["presence"].as_object().expect("members").len(),
                MEMBERS
            ),
            None => assert_eq!(reply["presence_stats"]["num_clients"], MEMBERS),
        }
        replies.push(reply["id"].as_u64().expect("an id"));
    }
    assert!(replies.is_sorted(), "{replies:?}");
    assert!(client.goes_on());
    drop(all);
}

#[test]
fn command_that_needs_a_backend_gets_not_available() {
    let server = server();
    let mut client = Client::connected(&server);
    for (request, body) in [
        ("rpc", json!({"method": "m", "data": 1})),
        ("presence", json!({"channel": "a"})),
        ("presence_stats", json!({"channel": "a"})),
        ("subscribe", json!({"channel": "a", "type": 1})),
        ("publish", json!({"channel": "a", "data": 1, "type": 1})),
    ] {
        assert_eq!(client.error(request, body), 108, "{request}");
    }
    assert!(client.goes_on());
    // A send has no reply.
    client.frame("{\"send\":{\"data\":1}}");
    assert_eq!(client.closed().0, 3508);
}

#[test]
fn unsubscribe_waits_for_the_answer_to_its_subscribe() {
    let server = server();
    let mut client = Client::connected(&server);
    let mut frame = Vec::new();
    for id in 10..20 {
        let request = match id % 2 {
            0 => "subscribe",
            _ => "unsubscribe",
        };
        frame.push(json!({"id": id, request: {"channel": "a"}}).to_string());
    }
    frame.push(json!({"id": 20, "subscribe": {"channel": "a"}}).to_string());
    client.frame(&frame.join("\n"));
    for id in 10..=20 {
        let reply = client.next();
        assert_eq!(reply["id"], id, "{reply}");
        assert_eq!(reply.get("error"), None, "{reply}");
    }
    client.publish("a", json!(1));
    assert_eq!(client.data("a"), json!(1));
}
