//! Tests the paths of the transports. The response of a disabled one names the setting that enables it.

use serde_json::json;

use crate::client::{Client, ON, PATH, server};
use crate::support::Server;
use crate::support::http::Conn;
use crate::support::ws::{Ws, handshake};

#[test]
fn disabled_protocol_answers_404_with_the_setting() {
    let server = Server::start();
    let paths = [PATH, "/connection/sse", "/connection/uni_sse", "/emulation"];
    for path in paths {
        let mut conn = Conn::open(&server);
        let answer = conn.request("GET", path, &handshake(&[]), "");
        assert_eq!(answer.status, 404);
        assert!(answer.text().contains("centrifugo.enabled"), "{answer:?}");
    }
}

#[test]
fn other_transports_are_not_built() {
    let server = server();
    let mut conn = Conn::open(&server);
    let answer = conn.get("/connection/uni_grpc", &[]);
    assert_eq!(answer.status, 404);
    assert!(answer.text().contains("/websocket"), "{answer:?}");
    assert_eq!(conn.get(PATH, &[]).status, 426);
}

#[test]
fn the_path_is_a_setting() {
    let server = Server::with(&format!("{ON}path = \"/app/live\"\n"));
    let mut ws = Ws::open(&server, "/app/live/websocket", &[]);
    ws.send(0x81, "{\"id\":1,\"connect\":{}}");
    assert!(ws.message().text().contains("\"client\""));
    assert_eq!(Conn::open(&server).get(PATH, &handshake(&[])).status, 404);
    let server = Server::with(&format!("{ON}emulation_path = \"/app/post\"\n"));
    let mut conn = Conn::open(&server);
    let answer = conn.request("POST", "/app/post", &[], "{}");
    assert!(answer.text().contains("another node"), "{answer:?}");
    assert_eq!(conn.request("POST", "/emulation", &[], "{}").status, 404);
}

#[test]
fn stopping_server_asks_its_clients_to_reconnect() {
    let server = Server::with(ON);
    let mut client = Client::connected(&server);
    client.subscribe("a");
    server.signal("TERM");
    assert_eq!(client.closed(), (3001, "shutdown".to_string()));
    server.await_end();
}

#[test]
fn a_client_that_answers_no_ping_is_disconnected() {
    let server = Server::with(&format!("{ON}ping_interval_s = 5\npong_timeout_s = 1\n"));
    let mut silent = Client::connected(&server);
    assert_eq!(silent.closed(), (3012, "no pong".to_string()));
    // A client that answers pings stays connected for several of them.
    let mut client = Client::connected(&server);
    for _ in 0..2 {
        while client.ws.message().text() != "{}" {}
        client.frame("{}");
    }
    assert_eq!(client.ask("ping", json!({}))["ping"], json!({}));
}
