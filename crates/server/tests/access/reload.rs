//! Tests a reload of settings that grant less. A connected client loses the access that the settings no longer grant, and is told why. A
//! client that keeps its rights is not affected.

use crore_wire::mqtt::{PropertyWriter, ReasonCode, Version};

use crate::support::broker::Broker;
use crate::support::http::{Conn, once};
use crate::support::mqtt::{self as packets, message, plain_connect, will};
use crate::support::port::{ask, metric};
use crate::support::ws::Ws;
use crate::support::{Server, until};
use crate::tokens::{everything, key_settings, token};

const NEEDS: &str = "subscribing to this needs credentials";
const EVENTS: (&str, &str) = ("Accept", "text/event-stream");

/// A Crore server with an admin port, as the broker of MQTT clients.
fn start(settings: &str) -> Broker {
    Broker::Crore(Server::with_admin(settings))
}

pub fn reload(server: &Server, settings: &str) {
    let text = format!("shards = 2\n{settings}");
    std::fs::write(server.settings_file(), text).expect("a settings file");
    let answer = ask(server.admin(), "POST /api/v1/reload", Some("{}"));
    assert_eq!(answer.status, 200, "{}", answer.body);
}

/// Waits until `count` connections have lapsed: they lost access and were closed. Checks that no others did. The server updates the counter
/// once a second.
fn await_lapsed(server: &Server, count: f64) {
    let lapsed = || metric(server.admin(), "crore_lapsed_connections_total");
    until("the count", || lapsed() >= Some(count));
    assert_eq!(lapsed(), Some(count));
}

/// Settings that give anonymous clients these rights.
fn access(anonymous: &str) -> String {
    format!(
        "[access]\n[access.anonymous]\n{anonymous}\n{}",
        key_settings()
    )
}

fn bearer() -> String {
    format!("Bearer {}", token(everything()))
}

fn publish(server: &Server, topic: &str, text: &str) {
    let authorization = bearer();
    let headers = [("Authorization", authorization.as_str())];
    let target = format!("/pub/{topic}");
    let status = once(server, "POST", &target, &headers, text).status;
    assert!([201, 202].contains(&status), "{status}");
}

fn events(server: &Server, target: &str, headers: &[(&str, &str)]) -> Conn {
    let mut conn = Conn::open(server);
    conn.ask("GET", target, &[headers, &[EVENTS]].concat(), "");
    assert_eq!(conn.head().status, 200, "{target}");
    conn
}

/// Whether the body of an event stream ends with the last chunk.
fn is_closed(mut stream: Conn) -> bool {
    stream.read_to_end().ends_with(b"0\r\n\r\n")
}

/// The close code and the reason of a WebSocket.
fn closed(mut ws: Ws) -> (u16, String) {
    let mut frame = ws.frame();
    while frame.opcode() != 8 {
        frame = ws.frame();
    }
    let words = frame.payload.get(2..).unwrap_or_default().to_vec();
    let words = String::from_utf8(words).expect("text");
    (frame.close_code().expect("a close frame"), words)
}

#[test]
fn streams_and_polls_without_rights_end_when_access_control_is_added() {
    let server = Server::with_admin("");
    let closed_clients = [
        events(&server, "/sub/doors/a", &[]),
        events(&server, "/sub?topic=doors/open&topic=doors/a", &[]),
        events(&server, "/sub?filter=doors/%23", &[]),
        events(&server, "/interest", &[]),
    ];
    let sockets = [
        "/sub/doors/a",
        "/pubsub/doors/a",
        "/sub?filter=doors/%2B",
        "/interest",
    ];
    let sockets = sockets.map(|target| Ws::open(&server, target, &[]));
    let mut poll = Conn::open(&server);
    poll.ask("GET", "/sub/doors/a", &[], "");
    let mut kept_client = Ws::open(&server, "/sub/doors/open", &[]);
    let mut two_topics = Ws::open(&server, "/sub?topic=doors/open&topic=doors/open/2", &[]);
    server.await_subscribers("doors/a", 5);
    reload(&server, &access("subscribe = ['doors/open/#']"));
    let answer = poll.response();
    assert_eq!(answer.status, 401, "{answer:?}");
    assert!(answer.text().contains(NEEDS), "{answer:?}");
    assert!(answer.header("www-authenticate").is_some(), "{answer:?}");
    for stream in closed_clients {
        assert!(is_closed(stream));
    }
    for (n, socket) in sockets.into_iter().enumerate() {
        let (code, words) = closed(socket);
        assert_eq!(code, 4401, "{n}");
        assert!(words.contains("needs credentials"), "{n}: {words}");
    }
    publish(&server, "doors/open", "still here");
    assert_eq!(kept_client.texts(1), ["still here"]);
    assert_eq!(two_topics.texts(1), ["still here"]);
    await_lapsed(&server, 9.0);
}

#[test]
fn mqtt_clients_without_rights_lose_subscriptions_when_access_control_is_added() {
    let broker = start("");
    for version in [Version::V311, Version::V5] {
        reload(broker.server(), "");
        let subscribed = |filter: &str| {
            let mut conn = packets::Conn::connected(&broker, version, "");
            assert_eq!(conn.subscribe(filter, 1), ReasonCode::GRANTED_QOS_1);
            conn
        };
        let (mut framed, _) = packets::Conn::websocket(&broker, version, "/", "mqtt");
        framed.connect(&plain_connect(version, ""));
        framed.subscribe("doors/a", 0);
        let closed_clients = [
            subscribed("doors/a"),
            subscribed("doors/#"),
            subscribed("$share/g/doors/a"),
            framed,
        ];
        // The session would outlive its connection, which no session of an anonymous client may do.
        let mut lasting = packets::Conn::open(&broker, version);
        let name = format!("lasting {version:?}");
        lasting.resume(&name);
        let mut mortal = packets::Conn::open(&broker, version);
        let mut connect = plain_connect(version, "");
        connect.will = Some(will("doors/will"));
        mortal.connect(&connect);
        let mut kept_client = subscribed("doors/open");
        reload(
            broker.server(),
            &access("subscribe = ['doors/open', 'doors/will']"),
        );
        let reason = (version == Version::V5).then_some(ReasonCode::NOT_AUTHORIZED);
        for (n, mut conn) in closed_clients
            .into_iter()
            .chain([lasting, mortal])
            .enumerate()
        {
            assert_eq!(conn.end(), reason, "{version:?} {n}");
        }
        publish(broker.server(), "doors/open", "still here");
        assert_eq!(kept_client.packet().publish().payload, b"still here");
        // The session ended with the connection, and so did the will. A token without a user's name does not find them either, although an
        // anonymous client has no name.
        let mut claims = everything();
        claims.as_object_mut().expect("claims").remove("sub");
        let credential = token(claims);
        let mut connect = plain_connect(version, &name);
        (connect.clean_start, connect.user_name) = (false, Some("any"));
        connect.password = Some(credential.as_bytes());
        let mut reconnected = packets::Conn::open(&broker, version);
        assert!(!reconnected.connect(&connect), "a session was there");
        reconnected.subscribe("doors/will", 0);
        publish(broker.server(), "doors/will", "the first");
        assert_eq!(reconnected.packet().publish().payload, b"the first");
        let log = once(
            broker.server(),
            "GET",
            "/sub/doors/will?since=oldest",
            &[],
            "",
        );
        assert_eq!(log.text(), "the first", "no will was published");
        once(
            broker.server(),
            "DELETE",
            "/pub/doors/will",
            &[("Authorization", &bearer())],
            "",
        );
    }
}

#[test]
fn idle_mqtt_client_is_disconnected_when_nothing_is_open_any_more() {
    let broker = start(&access("subscribe = ['doors/open']"));
    let mut conn = packets::Conn::connected(&broker, Version::V5, "idle");
    assert!(conn.is_served());
    reload(broker.server(), &access(""));
    assert_eq!(conn.end(), Some(ReasonCode::NOT_AUTHORIZED));
}

#[test]
fn reload_keeps_the_grants_of_a_token_and_ends_those_of_a_rule() {
    let open = "[[rule]]\nmatch = 'doors/#'\nopen = ['subscribe']\n[[rule]]\nmatch = 'lobby'\nopen = ['subscribe']\n";
    let broker = start(&format!("[access]\n{}{open}", key_settings()));
    let server = broker.server();
    let authorization = bearer();
    let credentials = [("Authorization", authorization.as_str())];
    let mut granted = Ws::open(server, "/sub/doors/a", &credentials);
    let lobby = Ws::open(server, "/sub/lobby", &credentials);
    let nobodys = Ws::open(server, "/sub/doors/a", &[]);
    let credential = token(everything());
    let mut connect = plain_connect(Version::V5, "theirs");
    let mut properties = PropertyWriter::new();
    properties.session_expiry_interval_s(600);
    (connect.user_name, connect.password) = (Some("any"), Some(credential.as_bytes()));
    connect.properties = properties.properties();
    let mut client = packets::Conn::open(&broker, Version::V5);
    client.connect(&connect);
    client.subscribe("doors/a", 0);
    reload(server, &format!("[access]\n{}", key_settings()));
    let (code, words) = closed(lobby);
    assert_eq!(code, 4401);
    assert!(words.contains("do not grant `subscribe`"), "{words}");
    assert_eq!(closed(nobodys).0, 4401);
    publish(server, "doors/a", "still here");
    assert_eq!(granted.texts(1), ["still here"]);
    assert_eq!(client.packet().publish().payload, b"still here");
    client.publish(&message("doors/b", 0, 0, b"x"));
    assert!(client.is_served());
}

#[test]
fn reload_that_removes_no_right_ends_no_client() {
    let opens = |topics: &str| access(&format!("subscribe = [{topics}]"));
    let broker = start(&opens("'doors/open', 'lost'"));
    let server = broker.server();
    let mut ws = Ws::open(server, "/sub/doors/open", &[]);
    let mut client = packets::Conn::connected(&broker, Version::V5, "");
    client.subscribe("doors/open", 0);
    for settings in [
        opens("'doors/#', 'more'"),
        String::new(),
        opens("'doors/open'"),
    ] {
        // Unless everything is open, some client on each shard loses a right. When these clients are closed, both shards have checked all
        // their clients.
        let closed_clients =
            (!settings.is_empty()).then(|| [(); 8].map(|()| Ws::open(server, "/sub/lost", &[])));
        reload(server, &settings);
        for client in closed_clients.into_iter().flatten() {
            assert_eq!(closed(client).0, 4401);
        }
    }
    publish(server, "doors/open", "still here");
    assert_eq!(ws.texts(1), ["still here"]);
    assert_eq!(client.packet().publish().payload, b"still here");
    await_lapsed(server, 16.0);
}
