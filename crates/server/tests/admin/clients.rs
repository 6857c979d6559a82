//! Tests what the admin API says about MQTT clients.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;

use argon2::password_hash::PasswordHasher as _;
use argon2::{Algorithm, Argon2, Params};
use crore_wire::mqtt::{PropertyWriter, Version};
use serde_json::{Value, json};

use crate::support::broker::Broker;
use crate::support::mqtt::{Conn, message, plain_connect, will};
use crate::support::port::{ask, get, stream};
use crate::support::program::output;
use crate::support::{Server, connect, until};

/// An MQTT 3.1.1 client with a clean session that has sent its CONNECT, with or without a user's name and password.
fn client(server: &Server, id: &str, user: Option<(&str, &str)>) -> TcpStream {
    let mut body = b"\0\x04MQTT\x04".to_vec();
    body.push(if user.is_some() { 0xc2 } else { 2 });
    body.extend([0, 60]);
    let with_name = user
        .into_iter()
        .flat_map(|(name, password)| [name, password]);
    for text in [id].into_iter().chain(with_name) {
        body.extend((text.len() as u16).to_be_bytes());
        body.extend(text.as_bytes());
    }
    let mut stream = connect(server.address());
    let head = [0x10, u8::try_from(body.len()).expect("a short one")];
    stream
        .write_all(&[&head, &body[..]].concat())
        .expect("sent");
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(answer, [0x20, 2, 0, 0], "CONNACK");
    stream
}

/// The client ids that the API lists for connections with this transport.
fn ids(server: &Server, transport: &str) -> BTreeSet<Option<String>> {
    let page = get(
        server.admin(),
        &format!("connections?transport={transport}"),
    );
    let list = page["connections"].as_array().expect("a list");
    list.iter()
        .map(|one| one["client_id"].as_str().map(str::to_string))
        .collect()
}

#[test]
fn absent_sessions_are_listed_by_the_tool() {
    // The clients are on two shards, so there are at least two pages.
    let broker = Broker::Crore(Server::with_admin(""));
    let mut present_client = Conn::open(&broker, Version::V5);
    present_client.resume("here");
    for id in ["away-1", "away-2", "away-3"] {
        Conn::open(&broker, Version::V5).resume(id);
    }
    let without_expiry = |it: &mut PropertyWriter| {
        it.session_expiry_interval_s(u32::MAX);
    };
    drop(Conn::with_properties(
        &broker,
        "away-4",
        true,
        without_expiry,
    ));
    let Broker::Crore(server) = &broker else {
        unreachable!("it was just made");
    };
    let tool = |args: &[&str]| {
        let url = format!("http://{}", server.admin());
        let mut command = Command::new(env!("CARGO_BIN_EXE_crore"));
        command
            .args(["admin", "sessions", "--url", &url])
            .args(args);
        let output = output(&mut command);
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).expect("text")
    };
    let ids = |text: &str| -> BTreeSet<String> {
        let words = text.split(|c: char| c.is_whitespace() || c == '"');
        let ids = words.filter(|word| word.starts_with("away-") || *word == "here");
        ids.map(str::to_string).collect()
    };
    let expected: BTreeSet<_> = (1..=4).map(|n| format!("away-{n}")).collect();
    until("all are away", || ids(&tool(&[])) == expected);
    let table = tool(&[]);
    assert!(
        table.starts_with("client_id  user  expires_in_s  bytes\n"),
        "{table}"
    );
    let answer: Value = serde_json::from_str(&tool(&["--json"])).expect("JSON");
    let sessions = answer["sessions"].as_array().expect("a list");
    assert_eq!((sessions.len(), &answer["next"]), (4, &Value::Null));
    let first_page = tool(&["--limit", "3"]);
    assert!(
        ids(&first_page).len() == 3 && first_page.ends_with("... and more: raise --limit\n"),
        "{first_page}"
    );
}

#[test]
fn operator_inspects_and_ends_an_absent_session() {
    // There are two shards, and either may be the home (the keeper) of the session.
    let broker = Broker::Crore(Server::with_admin(""));
    let server = broker.server();
    let mut heir = Conn::connected(&broker, Version::V5, "heir");
    heir.subscribe("left", 0);
    let (mut later, mut without_expiry) = (PropertyWriter::new(), PropertyWriter::new());
    later.will_delay_interval_s(600);
    without_expiry.session_expiry_interval_s(u32::MAX);
    let mut connect = plain_connect(Version::V5, "hall/sensor 7");
    connect.properties = without_expiry.properties();
    connect.will = Some(will("left"));
    if let Some(will) = &mut connect.will {
        will.properties = later.properties();
    }
    let mut client = Conn::open(&broker, Version::V5);
    client.connect(&connect);
    client.subscribe("doors/+", 1);
    client.subscribe("news", 0);
    let tool = |flags: &[&str]| {
        let url = format!("http://{}", server.admin());
        let mut command = Command::new(env!("CARGO_BIN_EXE_crore"));
        command.args([
            "admin",
            "sessions",
            "hall/sensor 7",
            "--url",
            &url,
            "--json",
        ]);
        output(command.args(flags))
    };
    let connected = tool(&["--end"]);
    assert_eq!(connected.status.code(), Some(1), "{connected:?}");
    drop(client);
    until("it is away", || tool(&[]).status.success());
    let rows = tool(&[]).stdout;
    let rows: Value = serde_json::from_slice(&rows).expect("JSON");
    assert_eq!(rows["client_id"], "hall/sensor 7");
    let subscriptions = rows["subscriptions"].as_array().expect("a list").iter();
    let mut subscriptions: Vec<_> = subscriptions
        .map(|one| (one["filter"].as_str(), one["qos"].as_u64()))
        .collect();
    subscriptions.sort_unstable();
    let all = [(Some("doors/+"), Some(1)), (Some("news"), Some(0))];
    assert_eq!(subscriptions, all);
    assert!(tool(&["--end"]).status.success());
    // The server publishes the will now, since no client can resume the ended session.
    assert_eq!(heir.packet().publish().topic, "left");
    let empty = tool(&[]);
    assert_eq!(empty.status.code(), Some(1), "{empty:?}");
    let mut returned = Conn::open(&broker, Version::V5);
    assert!(!returned.resume("hall/sensor 7"), "it has no session");
}

#[test]
fn mqtt_connection_is_shown_with_its_state() {
    let broker = Broker::Crore(Server::with_admin(""));
    let server = broker.server();
    let mut properties = PropertyWriter::new();
    properties.session_expiry_interval_s(600).receive_maximum(2);
    let mut connect = plain_connect(Version::V5, "sensor-7");
    connect.keep_alive_s = 60;
    connect.properties = properties.properties();
    let mut client = Conn::open(&broker, Version::V5);
    client.connect(&connect);
    client.subscribe("news", 1);
    // The client receives two messages and acknowledges none.
    let mut publisher = Conn::connected(&broker, Version::V5, "publisher");
    for id in 1..=3 {
        publisher.deliver(&message("news", 1, id, b"x"));
    }
    for _ in 0..2 {
        client.packet().publish();
    }
    let client_of = |id: &str| {
        let page = get(server.admin(), "connections?transport=mqtt");
        let list = page["connections"].as_array().expect("a list");
        let one = list.iter().find(|one| one["client_id"] == id);
        let id = one.expect("a connection")["id"].as_str().expect("an id");
        get(server.admin(), &format!("connections/{id}"))
    };
    let rows = client_of("sensor-7");
    assert_eq!(
        (&rows["tls"], &rows["topics"][0]),
        (&false.into(), &"news".into())
    );
    let mqtt = &rows["mqtt"];
    assert_eq!(mqtt["version"], "5.0");
    for (field, value) in [
        ("keep_alive_s", 60),
        ("in_flight", 2),
        ("in_flight_max", 2),
        ("session_expiry_s", 600),
    ] {
        assert_eq!(mqtt[field], value, "{field} in {rows}");
    }
    let _old = Conn::connected(&broker, Version::V311, "old");
    assert_eq!(client_of("old")["mqtt"]["version"], "3.1.1");
    let _reader = stream(server.address(), "/sub/x");
    let page = get(server.admin(), "connections?transport=sse");
    assert_eq!(page["connections"][0]["mqtt"], Value::Null);
}

/// The only connection that is not closing, from the list of connections and from the request for this one connection.
fn mqtt_connection(server: &Server) -> [Value; 2] {
    let page = get(server.admin(), "connections");
    let list = page["connections"].as_array().expect("a list");
    let mut open = list
        .iter()
        .filter(|connection| connection["transport"] != "closing");
    let (Some(connection), None) = (open.next(), open.next()) else {
        panic!("one connection: {page}");
    };
    let id = connection["id"].as_str().expect("an id");
    let single = get(server.admin(), &format!("connections/{id}"));
    [connection.clone(), single]
}

#[test]
fn mqtt_subscriptions_are_shown_with_their_qos() {
    let broker = Broker::Crore(Server::with_admin(""));
    let server = broker.server();
    let rows = || mqtt_connection(server).map(|one| one["mqtt"]["subscriptions"].clone());
    let (mut client, _) = Conn::with_properties(&broker, "sensor-7", true, |it| {
        it.session_expiry_interval_s(600);
    });
    assert_eq!(rows(), [json!([]), json!([])]);
    let filter_row = |filter: &str, qos| json!({"filter": filter, "qos": qos, "share": null});
    client.subscribe("news", 2);
    assert_eq!(rows(), [(); 2].map(|()| json!([filter_row("news", 2)])));
    client.subscribe("doors/+", 1);
    client.subscribe("$share/workers/jobs/#", 1);
    client.subscribe("clock", 0);
    let mut all = vec![
        filter_row("news", 2),
        filter_row("doors/+", 1),
        json!({"filter": "$share/workers/jobs/#", "qos": 1, "share": "workers"}),
        filter_row("clock", 0),
    ];
    assert_eq!(rows(), [json!(all), json!(all)]);
    // A filter that is subscribed again has the QoS of the last SUBSCRIBE.
    client.subscribe("news", 0);
    all[0] = filter_row("news", 0);
    for n in 4..20 {
        let topic = format!("many/{n}");
        client.subscribe(&topic, 1);
        all.push(filter_row(&topic, 1));
    }
    assert_eq!(rows(), [json!(all[..16]), json!(all)]);
    // The API shows the same subscriptions for the session.
    client.leave();
    let session = || {
        ask(
            server.admin(),
            "GET /api/v1/session?client_id=sensor-7",
            None,
        )
    };
    until("it is away", || session().status == 200);
    assert_eq!(session().json()["subscriptions"], json!(all));
    // A client without a lasting session stores its only topic in its table row and not in a list, so this case is tested apart.
    let mut client = Conn::connected(&broker, Version::V311, "plain");
    client.subscribe("news", 2);
    assert_eq!(rows(), [(); 2].map(|()| json!([filter_row("news", 2)])));
}

#[test]
fn time_of_connecting_is_shown_for_the_life_of_a_connection() {
    // There is one shard, so that all dates come from one clock.
    let broker = Broker::Crore(Server::with_shards(1, ""));
    let server = broker.server();
    let now_s = || {
        let message = Some(r#"{"topic":"clock","data":"x"}"#);
        assert_eq!(
            ask(server.admin(), "POST /api/v1/publish", message).status,
            200
        );
        let newest = get(
            server.admin(),
            "topic/messages?name=clock&limit=1&newest=true",
        );
        newest["messages"][0]["published_s"]
            .as_u64()
            .expect("a date")
    };
    let since = || {
        let [listed, single] = mqtt_connection(server).map(|one| one["connected_unix_s"].as_u64());
        assert_eq!(listed, single);
        single.expect("a date")
    };
    let before_s = now_s();
    let mut client = Conn::open(&broker, Version::V5);
    until("it is accepted", || {
        let page = get(server.admin(), "connections");
        page["connections"]
            .as_array()
            .is_some_and(|all| !all.is_empty())
    });
    let connected_s = since();
    assert!((before_s..=now_s()).contains(&connected_s));
    until("another second", || now_s() > connected_s);
    client.resume("sensor-7");
    assert_eq!(since(), connected_s);
    // The connection now stores a list of subscriptions, which it did not before.
    client.subscribe("news", 1);
    client.subscribe("doors/+", 1);
    assert_eq!(since(), connected_s);
    client.leave();
    until("it is gone", || {
        let page = get(server.admin(), "connections");
        page["connections"] == json!([])
    });
    // The next connection reuses the place in the table, and has its own date.
    let _next = Conn::connected(&broker, Version::V311, "next");
    assert!(since() > connected_s);
}

#[test]
fn client_id_is_shown_only_for_mqtt_connections() {
    let server = Server::with_admin("");
    // Enough clients that each shard has connections of some and is the home (the keeper) of some sessions.
    let names: Vec<String> = (0..20).map(|n| format!("phone-{n}")).collect();
    let mut clients: Vec<_> = names.iter().map(|id| client(&server, id, None)).collect();
    let _reader = stream(server.address(), "/sub/x");
    let all: BTreeSet<_> = names.iter().cloned().map(Some).collect();
    assert_eq!(ids(&server, "mqtt"), all);
    assert_eq!(ids(&server, "sse"), [None].into());

    let page = get(server.admin(), "connections?transport=mqtt");
    for one in page["connections"].as_array().expect("a list") {
        let id = one["id"].as_str().expect("an id");
        let alone = get(server.admin(), &format!("connections/{id}"));
        assert_eq!(alone["client_id"], one["client_id"]);
    }
    // A client that takes over a session keeps its name; a new client has its own name.
    clients[0] = client(&server, "phone-1", None);
    clients.push(client(&server, "late", None));
    let expected = names[1..].iter().cloned().chain(["late".to_string()]);
    let expected: BTreeSet<_> = expected.map(Some).collect();
    until("the others", || ids(&server, "mqtt") == expected);
}

#[test]
fn client_id_of_a_user_is_shown_without_the_users_name() {
    // The hash is cheap to verify.
    let params = Params::new(8, 1, 1, None).expect("parameters");
    let argon2 = Argon2::new(Algorithm::Argon2id, argon2::Version::V0x13, params);
    let hash = argon2.hash_password(b"secret").expect("a hash");
    let settings = format!(
        "[access]\n[[access.user]]\nname = 'ann'\npassword = '{hash}'\nsubscribe = ['#']\n"
    );
    let server = Server::with_admin(&settings);
    let _client = client(&server, "phone", Some(("ann", "secret")));
    assert_eq!(ids(&server, "mqtt"), [Some("phone".to_string())].into());
}

/// Opens an event stream whose request begins with these bytes and has this header. Returns when the head of the answer has arrived.
fn proxied(server: &Server, prefix: &[u8], header: &str) -> TcpStream {
    let request = format!(
        "GET /sub/x HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: text/event-stream\r\n{header}\r\n"
    );
    let mut stream = connect(server.address());
    stream
        .write_all(&[prefix, request.as_bytes()].concat())
        .expect("sent");
    let mut status = [0; 12];
    stream.read_exact(&mut status).expect("a head");
    assert_eq!(&status, b"HTTP/1.1 200");
    stream
}

fn addresses(server: &Server) -> Vec<String> {
    let page = get(server.admin(), "connections?transport=sse");
    let list = page["connections"].as_array().expect("a list");
    let text = |one: &Value| one["address"].as_str().map(str::to_string);
    let mut actual: Vec<_> = list.iter().filter_map(text).collect();
    actual.sort();
    actual
}

#[test]
fn address_is_taken_only_from_a_trusted_proxy() {
    let trusting = Server::with_admin("[http]\ntrusted_proxies = ['127.0.0.0/8']\n");
    let with_name = proxied(
        &trusting,
        b"",
        "X-Forwarded-For: 203.0.113.5, 198.51.100.1\r\n",
    );
    let _six = proxied(&trusting, b"", "X-Forwarded-For: 2001:db8::1\r\n");
    let _nobody = proxied(&trusting, b"", "");
    assert_eq!(
        addresses(&trusting),
        ["127.0.0.1", "198.51.100.1", "2001:db8::1"]
    );
    drop(with_name);
    until("its end", || {
        addresses(&trusting) == ["127.0.0.1", "2001:db8::1"]
    });

    let other = Server::with_admin("[http]\ntrusted_proxies = ['10.0.0.0/8']\n");
    let _claims = proxied(&other, b"", "X-Forwarded-For: 198.51.100.1\r\n");
    assert_eq!(addresses(&other), ["127.0.0.1"]);

    let settings = "[http]\nproxy_protocol = true\ntrusted_proxies = ['127.0.0.0/8']\n";
    let proxy_protocol = Server::with_admin(settings);
    let header = b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c\xc0\0\x02\x07\x7f\0\0\x01\x9c\x40\x22\x60";
    let _balanced = proxied(&proxy_protocol, header, "");
    assert_eq!(addresses(&proxy_protocol), ["192.0.2.7"]);
}

#[test]
fn an_ipv4_address_that_is_mapped_into_ipv6_has_one_form() {
    for proxies in [
        "::ffff:127.0.0.0/104",
        "::ffff:7f00:1",
        "::ffff:127.0.0.1/128",
    ] {
        let server = Server::with_admin(&format!("[http]\ntrusted_proxies = ['{proxies}']\n"));
        let _one = proxied(&server, b"", "X-Forwarded-For: ::ffff:198.51.100.1\r\n");
        assert_eq!(addresses(&server), ["198.51.100.1"], "{proxies}");
    }
    let settings = "[http]\nproxy_protocol = true\ntrusted_proxies = ['::ffff:127.0.0.0/104']\n";
    let server = Server::with_admin(settings);
    let mut header = b"\r\n\r\n\0\r\nQUIT\n\x21\x21\0\x24".to_vec();
    let mapped = |v4: [u8; 4]| std::net::Ipv4Addr::from(v4).to_ipv6_mapped().octets();
    header.extend(mapped([192, 0, 2, 7]));
    header.extend(mapped([127, 0, 0, 1]));
    header.extend(b"\x9c\x40\x22\x60");
    let _balanced = proxied(&server, &header, "");
    assert_eq!(addresses(&server), ["192.0.2.7"]);
    for sought in ["192.0.2.7", "::ffff:192.0.2.7", "::ffff:c000:207"] {
        let page = get(server.admin(), &format!("connections?address={sought}"));
        let actual = page["connections"].as_array().map(Vec::len);
        assert_eq!(actual, Some(1), "{sought}");
    }
}

#[test]
fn shown_address_is_that_of_the_last_request() {
    let server = Server::with_admin("[http]\ntrusted_proxies = ['127.0.0.0/8']\n");
    let mut stream = connect(server.address());
    let rows = || {
        let page = get(server.admin(), "connections?transport=http");
        page["connections"][0]["address"].clone()
    };
    for (header, expected) in [
        ("X-Forwarded-For: 198.51.100.1\r\n", "198.51.100.1"),
        ("X-Forwarded-For: 198.51.100.2\r\n", "198.51.100.2"),
        ("", "127.0.0.1"),
    ] {
        let request = format!("GET /pub/x HTTP/1.1\r\nHost: 127.0.0.1\r\n{header}\r\n");
        stream.write_all(request.as_bytes()).expect("sent");
        let mut answer = [0; 1024];
        assert!(stream.read(&mut answer).expect("an answer") > 0);
        assert_eq!(rows(), expected);
    }
}
