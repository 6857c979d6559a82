//! Tests permissions: tokens, clients without a token, and what ends when a token expires.

use std::time::{SystemTime, UNIX_EPOCH};

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};

use crate::client::{Client, ON, PATH};
use crate::support::http::once;
use crate::support::port::ask;
use crate::support::{Server, until};

pub const SECRET: &str = "a secret that only this test and its server know";

/// A token of this user, who may publish, with more claims.
pub fn with_claims(user: &str, more: &Value) -> String {
    let mut claims = json!({"sub": user, "exp": LATER_S, "publish": ["#"]});
    let all = claims.as_object_mut().expect("an object");
    all.extend(more.as_object().expect("an object").clone());
    token(&claims)
}

pub fn closed(more: &str) -> Server {
    Server::with_admin(&format!("{ON}{}", access(more)))
}

/// A server with these settings and with access control (`[access]`).
pub fn closed_with(settings: &str) -> Server {
    Server::with_admin(&format!("{settings}{}", access("")))
}

fn access(more: &str) -> String {
    let key = format!("[[access.key]]\nalg = 'HS256'\nsecret = '{SECRET}'\n");
    format!("[access]\nleeway_s = 0\n{more}{key}")
}

pub fn token(claims: &Value) -> String {
    let key = EncodingKey::from_secret(SECRET.as_bytes());
    encode(&Header::new(Algorithm::HS256), claims, &key).expect("a token")
}

/// Calls `attempt` with an expiry time (Unix seconds) in the near future. If it returns `None` because it took too long, tries again with a later one.
pub fn before_the_end<T>(mut attempt: impl FnMut(u64) -> Option<T>) -> T {
    let now_s = || {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        now.expect("a time").as_secs()
    };
    let mut lives_s = (1..8).map(|power| 1 << power);
    let found = lives_s.find_map(|life_s: u64| attempt(now_s() + life_s));
    found.expect("it is done in time")
}

/// A time in the far future, in Unix seconds.
pub const LATER_S: u64 = 4_000_000_000;

#[test]
fn token_grants_only_its_named_channels() {
    let server = closed("");
    let claims = json!({"sub": "ann", "exp": LATER_S, "subscribe": ["a", "b"], "publish": ["b"]});
    let mut client = Client::with_token(&server, &token(&claims));
    client.subscribe("a");
    client.subscribe("b");
    assert_eq!(client.error("subscribe", json!({"channel": "c"})), 103);
    assert_eq!(client.error("history", json!({"channel": "c"})), 103);
    assert_eq!(
        client.error("publish", json!({"channel": "a", "data": 1})),
        103
    );
    client.publish("b", json!(1));
    assert_eq!(client.data("b"), json!(1));
}

#[test]
fn publication_names_the_user_if_the_rule_says_so() {
    let server = closed_with(&format!("{ON}[[rule]]\nmatch = 'a'\npublisher = true\n"));
    let claims = json!({"sub": "ann", "exp": LATER_S, "subscribe": ["#"], "publish": ["#"]});
    let mut client = Client::with_token(&server, &token(&claims));
    for channel in ["a", "b"] {
        client.ask("subscribe", json!({"channel": channel, "delta": "fossil"}));
        client.publish(channel, json!({"n": 1}));
        client.publish(channel, json!({"n": 2}));
    }
    let named = json!({"user": "ann", "client": ""});
    let info_of = |publication: &Value| publication.get("info").cloned();
    for (channel, expected) in [("a", Some(named)), ("b", None)] {
        for _ in 0..2 {
            let push = client.push();
            assert_eq!(push["channel"], channel);
            assert_eq!(info_of(&push["pub"]), expected, "{push}");
        }
        let page = client.ask("history", json!({"channel": channel, "limit": -1}));
        let kept = &page["history"]["publications"];
        assert_eq!(info_of(&kept[0]), expected, "{kept}");
    }
}

#[test]
fn commands_behind_a_connect_wait_for_the_verdict() {
    let server = closed("");
    let claims = json!({"sub": "ann", "exp": LATER_S, "subscribe": ["#"], "publish": ["#"]});
    let mut client = Client::open(&server);
    let commands = [
        client.command("connect", json!({"token": token(&claims)})),
        client.command("subscribe", json!({"channel": "a"})),
        client.command("publish", json!({"channel": "b", "data": 1})),
    ];
    for command in commands {
        client.frame(&command.to_string());
    }
    for (id, kind) in [(1, "connect"), (2, "subscribe"), (3, "publish")] {
        let reply = client.reply(id);
        assert!(reply.get(kind).is_some(), "{reply}");
    }
}

#[test]
fn a_bad_token_ends_the_connection_and_an_expired_one_gets_109() {
    let server = closed("");
    let mut client = Client::open(&server);
    client.send("connect", json!({"token": "no token"}));
    assert_eq!(client.closed().0, 3500);
    let expired = token(&json!({"sub": "ann", "exp": 1_000, "subscribe": ["a"]}));
    let mut client = Client::open(&server);
    // The remaining commands of the frame are not executed, and the client may reconnect.
    let commands = [
        client.command("connect", json!({"token": expired})),
        client.command("subscribe", json!({"channel": "a"})),
    ];
    client.frame(&commands.map(|command| command.to_string()).join("\n"));
    assert_eq!(client.reply(1)["error"]["code"], 109);
    assert_eq!(client.closed().0, 3005);
}

#[test]
fn token_of_a_subscription_is_no_token_of_a_connection() {
    let server = closed("");
    let of_subscription = subscription_token("ann", "room", LATER_S);
    let mut client = Client::open(&server);
    client.send("connect", json!({"token": of_subscription}));
    assert_eq!(client.closed().0, 3500);
    let own = token(&json!({"sub": "ann", "exp": LATER_S}));
    let mut client = Client::with_token(&server, &own);
    client.send("refresh", json!({"token": of_subscription}));
    assert_eq!(client.closed().0, 3500);
    // A subscription token is refused as the credential of the WebSocket's request, too. Such a credential lets a client connect without a token in its
    // connect command.
    let bearer = format!("Bearer {of_subscription}");
    let response = once(&server, "GET", PATH, &[("Authorization", &bearer)], "");
    assert_eq!(response.status, 401);
    assert!(response.text().contains("it names a channel"));
}

#[test]
fn subscriptions_that_a_new_connection_token_does_not_grant_end() {
    let server = closed("");
    let of = |channels: Value| {
        token(&json!({"sub": "ann", "exp": LATER_S, "subscribe": channels, "publish": ["#"]}))
    };
    for both in [false, true] {
        let mut client = Client::with_token(&server, &of(json!(["a", "b"])));
        client.subscribe("a");
        if both {
            client.subscribe("b");
        }
        let by_token = subscription_token("ann", "room", LATER_S);
        client.ask("subscribe", json!({"channel": "room", "token": by_token}));
        let reply = client.ask("refresh", json!({"token": of(json!(["b"]))}));
        assert!(reply.get("refresh").is_some(), "{reply}");
        let push = client.push();
        assert_eq!(
            (&push["channel"], &push["unsubscribe"]["code"]),
            (&json!("a"), &json!(2501))
        );
        client.publish("a", json!(1));
        client.publish("room", json!(2));
        assert_eq!(client.data("room"), json!(2));
        if both {
            client.publish("b", json!(3));
            assert_eq!(client.data("b"), json!(3));
        }
    }
}

#[test]
fn client_without_a_token_has_only_anonymous_rights() {
    let server = closed("anonymous = { subscribe = [\"open/#\"] }\n");
    let mut client = Client::connected(&server);
    client.subscribe("open/a");
    assert_eq!(client.error("subscribe", json!({"channel": "a"})), 103);
    let server = closed("");
    let mut client = Client::open(&server);
    client.send("connect", json!({}));
    assert_eq!(client.closed().0, 3507);
}

fn subscription_token(user: &str, channel: &str, exp: u64) -> String {
    token(&json!({"sub": user, "channel": channel, "exp": exp}))
}

#[test]
fn a_subscription_token_grants_its_channel_to_its_user() {
    let server = closed("");
    let mut client = Client::with_token(&server, &token(&json!({"sub": "ann", "exp": LATER_S})));
    let mut error = |token: &str| {
        let body = json!({"channel": "room", "token": token});
        client.error("subscribe", body)
    };
    assert_eq!(error(""), 103);
    assert_eq!(error("no token"), 103);
    assert_eq!(error(&subscription_token("bob", "room", LATER_S)), 103);
    assert_eq!(error(&subscription_token("ann", "rooms", LATER_S)), 103);
    assert_eq!(error(&token(&json!({"sub": "ann", "exp": LATER_S}))), 103);
    assert_eq!(error(&subscription_token("ann", "room", 1_000)), 109);
    let good = subscription_token("ann", "room", LATER_S);
    let reply = client.ask("subscribe", json!({"channel": "room", "token": good}));
    assert_eq!(reply["subscribe"]["expires"], true, "{reply}");
    assert!(reply["subscribe"]["ttl"].as_u64() > Some(1_000), "{reply}");
    // The token allows only the subscription to this channel.
    assert_eq!(
        client.error("publish", json!({"channel": "room", "data": 1})),
        103
    );
    assert_eq!(client.error("subscribe", json!({"channel": "other"})), 103);
    let publisher = token(&json!({"exp": LATER_S, "publish": ["#"]}));
    Client::with_token(&server, &publisher).publish("room", json!(1));
    assert_eq!(client.data("room"), json!(1));
    // A refused command does not pass its token on to later commands.
    let spare = subscription_token("ann", "spare", LATER_S);
    let body = json!({"channel": "room", "token": spare});
    assert_eq!(client.error("subscribe", body), 105);
    assert_eq!(client.error("subscribe", json!({"channel": "spare"})), 103);
    // Our own claims grant a channel, too.
    let own = token(&json!({"sub": "ann", "subscribe": ["own/+"]}));
    let reply = client.ask("subscribe", json!({"channel": "own/a", "token": own}));
    assert!(reply.get("subscribe").is_some(), "{reply}");
    assert_eq!(reply["subscribe"].get("expires"), None);
}

#[test]
fn a_subscription_ends_with_its_token_unless_it_is_renewed() {
    let server = closed("");
    let publisher = token(&json!({"exp": LATER_S, "publish": ["#"]}));
    let mut publisher = Client::with_token(&server, &publisher);
    let mut client = before_the_end(|end| {
        let own = token(&json!({"sub": "ann", "exp": LATER_S}));
        let mut client = Client::with_token(&server, &own);
        for channel in ["ends", "goes on"] {
            let token = subscription_token("ann", channel, end);
            let reply = client.ask("subscribe", json!({"channel": channel, "token": token}));
            reply.get("subscribe")?;
        }
        let token = subscription_token("ann", "goes on", LATER_S);
        let body = json!({"channel": "goes on", "token": token});
        let reply = client.ask("sub_refresh", body);
        reply.get("sub_refresh").map(|renewed| {
            assert_eq!(renewed["expires"], true, "{renewed}");
            client
        })
    });
    let push = client.push();
    let ended = json!({"code": 2501, "reason": "subscription expired"});
    assert_eq!(
        (&push["channel"], &push["unsubscribe"]),
        (&json!("ends"), &ended)
    );
    publisher.publish("ends", json!(1));
    publisher.publish("goes on", json!(2));
    assert_eq!(client.data("goes on"), json!(2));
    let unknown = json!({"channel": "ends", "token": subscription_token("ann", "ends", LATER_S)});
    assert_eq!(client.error("sub_refresh", unknown), 103);
    let foreign = subscription_token("bob", "goes on", LATER_S);
    let body = json!({"channel": "goes on", "token": foreign});
    assert_eq!(client.error("sub_refresh", body), 103);
}

#[test]
fn a_connection_ends_with_its_token_unless_it_is_renewed() {
    let server = closed("");
    let (mut ends, mut renewed) = before_the_end(|end| {
        let own = token(&json!({"sub": "ann", "exp": end}));
        let mut clients = [(); 2].map(|()| Client::open(&server));
        for client in &mut clients {
            let reply = client.ask("connect", json!({"token": own}));
            let connect = reply.get("connect")?;
            assert_eq!(connect["expires"], true);
            assert!(connect["ttl"].as_u64() >= Some(1), "{connect}");
        }
        let [ends, mut renewed] = clients;
        let later = token(&json!({"sub": "ann", "exp": LATER_S, "subscribe": ["later"]}));
        let reply = renewed.ask("refresh", json!({"token": later}));
        reply.get("refresh").map(|refresh| {
            assert_eq!(refresh["expires"], true, "{refresh}");
            (ends, renewed)
        })
    });
    assert_eq!(ends.closed().0, 3005);
    assert!(renewed.goes_on());
    // The client has the rights of the new token.
    renewed.subscribe("later");
    let foreign = token(&json!({"sub": "bob", "exp": LATER_S}));
    renewed.send("refresh", json!({"token": foreign}));
    assert_eq!(renewed.closed().0, 3500);
    let own = token(&json!({"sub": "ann", "exp": LATER_S}));
    let mut client = Client::with_token(&server, &own);
    client.send(
        "refresh",
        json!({"token": token(&json!({"sub": "ann", "exp": 1_000}))}),
    );
    assert_eq!(client.closed().0, 3005);
}

#[test]
fn end_of_what_a_token_grants_is_its_claim_expire_at() {
    let server = closed("");
    // The token is valid only until `exp`, but what it grants does not expire.
    let own = token(&json!({"sub": "ann", "exp": LATER_S, "expire_at": 0}));
    let mut client = Client::open(&server);
    let reply = client.ask("connect", json!({"token": own}));
    assert!(reply["connect"]["client"].is_string(), "{reply}");
    assert_eq!(reply["connect"].get("expires"), None, "{reply}");
    let in_room = |expire_at: u64| {
        let claims =
            json!({"sub": "ann", "channel": "room", "exp": LATER_S, "expire_at": expire_at});
        json!({"channel": "room", "token": token(&claims)})
    };
    assert_eq!(client.error("subscribe", in_room(1_000)), 109);
    let reply = client.ask("subscribe", in_room(0));
    assert_eq!(reply["subscribe"].get("expires"), None, "{reply}");
    let reply = client.ask("sub_refresh", in_room(LATER_S - 1));
    assert_eq!(reply["sub_refresh"]["expires"], true, "{reply}");
    let gone = token(&json!({"sub": "ann", "expire_at": 1_000}));
    client.send("refresh", json!({"token": gone}));
    assert_eq!(client.closed().0, 3005);
    let mut client = Client::open(&server);
    assert_eq!(client.error("connect", json!({"token": gone})), 109);
    let mut ends = before_the_end(|end| {
        let own = token(&json!({"sub": "ann", "exp": LATER_S, "expire_at": end}));
        let mut client = Client::open(&server);
        let reply = client.ask("connect", json!({"token": own}));
        (reply.get("connect")?["expires"] == true).then_some(client)
    });
    assert_eq!(ends.closed().0, 3005);
}

#[test]
fn claims_of_this_protocol_that_are_malformed_are_refused() {
    let server = closed("");
    for wrong in [
        json!({"expire_at": "soon"}),
        json!({"expire_at": -1}),
        json!({"info": [7]}),
        json!({"b64info": "?"}),
        json!({"subs": {"a": {"b64data": "?"}}}),
    ] {
        let mut client = Client::open(&server);
        let token = with_claims("ann", &wrong);
        client.send("connect", json!({"token": token}));
        assert_eq!(client.closed().0, 3500, "{wrong}");
        let mut client = Client::with_token(&server, &with_claims("ann", &json!({})));
        client.send("refresh", json!({"token": token}));
        let has_subs = wrong.get("subs").is_some();
        // A refresh does not read the channels' data.
        if !has_subs {
            assert_eq!(client.closed().0, 3500, "{wrong}");
        }
    }
    let mut client = Client::with_token(&server, &with_claims("ann", &json!({})));
    for wrong in [json!({"expire_at": "soon"}), json!({"b64data": "?"})] {
        let mut claims = json!({"sub": "ann", "channel": "room", "exp": LATER_S});
        let all = claims.as_object_mut().expect("an object");
        all.extend(wrong.as_object().expect("an object").clone());
        let body = json!({"channel": "room", "token": token(&claims)});
        assert_eq!(client.error("subscribe", body), 103, "{wrong}");
    }
    assert!(client.goes_on());
}

#[test]
fn connections_of_a_user_share_one_limit_of_channels() {
    let server = closed_with(&format!("{ON}channels_per_user_max = 3\n"));
    let of = |user: &str| {
        let rights = json!({"subscribe": ["#"], "publish": ["#"]});
        Client::with_token(&server, &with_claims(user, &rights))
    };
    let [mut one, mut other] = [of("ann"), of("ann")];
    one.subscribe("a");
    one.subscribe("b");
    other.subscribe("a");
    let c = json!({"channel": "c"});
    assert_eq!(other.error("subscribe", c.clone()), 106);
    // A refused subscribe does not count, and each user has its own limit.
    let mut bob = of("bob");
    for channel in ["a", "b", "c"] {
        bob.subscribe(channel);
    }
    let too_many = with_claims("bob", &json!({"channels": ["d"]}));
    let mut client = Client::open(&server);
    client.send("connect", json!({"token": too_many}));
    assert_eq!(client.closed().0, 3505);
    one.ask("unsubscribe", json!({"channel": "b"}));
    other.subscribe("c");
    assert_eq!(one.error("subscribe", json!({"channel": "b"})), 106);
    // When a connection ends, its channels no longer count. This includes those that the server subscribed it to.
    drop(other);
    until("the channels of the connection end", || {
        one.ask("subscribe", json!({"channel": "b"}))
            .get("subscribe")
            .is_some()
    });
    let token = with_claims("ann", &json!({"channels": ["d"]}));
    let by_server = Client::with_token(&server, &token);
    assert_eq!(one.error("subscribe", c.clone()), 106);
    drop(by_server);
    until("the channel that the server began ends", || {
        one.ask("subscribe", c.clone()).get("subscribe").is_some()
    });
}

#[test]
fn new_settings_end_only_the_subscriptions_that_they_do_not_grant() {
    let server = closed("anonymous = { subscribe = [\"closed\", \"open\"] }\n");
    let own = token(&json!({"sub": "ann", "exp": LATER_S}));
    let mut client = Client::with_token(&server, &own);
    client.subscribe("closed");
    client.subscribe("open");
    let by_token = subscription_token("ann", "room", LATER_S);
    let reply = client.ask("subscribe", json!({"channel": "room", "token": by_token}));
    assert!(reply.get("subscribe").is_some(), "{reply}");
    let settings = std::fs::read_to_string(server.settings_file()).expect("its settings");
    server.reload(&settings.replace("\"closed\", ", ""));
    let push = client.push();
    assert_eq!(push["channel"], "closed", "{push}");
    assert_eq!(push["unsubscribe"]["code"], 2501, "{push}");
    assert_eq!(client.error("subscribe", json!({"channel": "closed"})), 103);
    for channel in ["open", "room"] {
        let command = json!({"channel": channel});
        assert_eq!(client.error("subscribe", command), 105, "it stays");
    }
}

#[test]
fn subscriptions_of_a_revoked_token_end_and_others_stay() {
    let list = std::env::temp_dir().join(format!("crore-revoked-{}.json", std::process::id()));
    std::fs::write(&list, "[]").expect("a file");
    let server = closed(&format!("revoked = '{}'\n", list.display()));
    let own = token(&json!({"sub": "ann", "exp": LATER_S, "publish": ["#"]}));
    let mut client = Client::with_token(&server, &own);
    for channel in ["leaked", "other"] {
        let claims = json!({"sub": "ann", "channel": channel, "exp": LATER_S, "jti": channel});
        let body = json!({"channel": channel, "token": token(&claims)});
        let reply = client.ask("subscribe", body);
        assert!(reply.get("subscribe").is_some(), "{reply}");
    }
    let revoke = Some(r#"{"jti": "leaked"}"#);
    let answer = ask(server.admin(), "POST /api/v1/revocations", revoke);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let push = client.push();
    let ended = json!({"code": 2000, "reason": "server unsubscribe"});
    assert_eq!(
        (&push["channel"], &push["unsubscribe"]),
        (&json!("leaked"), &ended)
    );
    client.publish("leaked", json!(1));
    client.publish("other", json!(2));
    assert_eq!(client.data("other"), json!(2));
    std::fs::remove_file(&list).expect("its file");
}
