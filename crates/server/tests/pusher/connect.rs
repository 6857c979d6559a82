//! Tests how connections begin and end.

use crate::client::{Client, PATH, apps, server};
use crate::support::Server;
use crate::support::http::Conn;
use crate::support::state::State;
use crate::support::ws::{Ws, handshake};

#[test]
fn client_is_told_its_socket_id_and_pings_are_answered() {
    let (server, _state) = server();
    let mut client = Client::connected(&server);
    let (first, second) = client.socket_id.split_once('.').expect("a dot");
    assert!(first.parse::<u64>().is_ok() && second.parse::<u64>().is_ok());
    client.goes_on();
    let other = Client::connected(&server);
    assert_ne!(client.socket_id, other.socket_id);
}

#[test]
fn unknown_app_path_or_version_ends_with_the_documented_code() {
    let (server, _state) = server();
    for (path, code) in [
        ("/app/other-key?protocol=7", 4001),
        ("/app/?protocol=7", 4001),
        ("/app/chat-key/more?protocol=7", 4005),
        ("/app/chat-key?protocol=x", 4006),
        ("/app/chat-key?protocol=4", 4007),
        ("/app/chat-key?protocol=8", 4007),
        ("/app/chat-key", 4008),
        ("/app/chat-key?protocol=", 4008),
    ] {
        let mut client = Client {
            ws: Ws::open(&server, path, &[]),
            socket_id: String::new(),
        };
        assert_eq!(client.closed(), code, "{path}");
    }
    for protocol in 5..=7 {
        Client::at(&server, &format!("/app/shop-key?protocol={protocol}")).goes_on();
    }
}

#[test]
fn without_an_app_there_is_no_path_and_without_an_upgrade_there_is_an_answer() {
    let server = Server::start();
    let answer = Conn::open(&server).get(PATH, &handshake(&[]));
    assert_eq!(answer.status, 404, "{answer:?}");
    let state = State::new();
    let server = Server::with(&apps(&state));
    let answer = Conn::open(&server).get(PATH, &[]);
    assert_eq!(answer.status, 404);
    assert!(answer.text().contains("WebSocket"), "{answer:?}");
}

#[test]
fn event_that_cannot_be_read_gets_an_error_and_the_connection_goes_on() {
    let (server, _state) = server();
    let mut client = Client::connected(&server);
    for frame in [
        "",
        "{",
        "[]",
        "{}",
        r#"{"event":"pusher:unknown"}"#,
        r#"{"event":"pusher:subscribe","data":{}}"#,
        r#"{"event":"pusher:subscribe","data":"x"}"#,
        r#"{"event":"client-a"}"#,
    ] {
        client.frame(frame);
        assert!(client.error().is_null(), "{frame}");
    }
    client.goes_on();
}

#[test]
fn silent_client_is_asked_and_ended_without_an_answer() {
    let state = State::new();
    let timeouts = "[pusher]\nactivity_timeout_s = 1\npong_timeout_s = 1\n";
    let server = Server::with(&format!("{timeouts}{}", apps(&state)));
    let mut silent = Client::connected(&server);
    assert_eq!(silent.next()["event"], "pusher:ping");
    assert_eq!(silent.closed(), 4201);
    // A client that answers pings stays connected for several of them.
    let mut client = Client::connected(&server);
    for _ in 0..3 {
        assert_eq!(client.next()["event"], "pusher:ping");
        client.frame(r#"{"event":"pusher:pong","data":{}}"#);
    }
}

#[test]
fn stopping_server_tells_its_clients_to_come_back() {
    let (server, _state) = server();
    let mut client = Client::connected(&server);
    client.subscribe("news");
    server.signal("TERM");
    assert_eq!(client.closed(), 4200);
    server.await_end();
}
