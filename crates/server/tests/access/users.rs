//! Tests users with hashed passwords, and floods of wrong passwords.

use std::sync::LazyLock;
use std::thread;

use argon2::password_hash::PasswordHasher;
use argon2::{Algorithm, Argon2, Params, Version};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use crore_wire::mqtt::{self, Packet, ReasonCode, encode};

use crate::support::broker::Broker;
use crate::support::http::{Conn, once};
use crate::support::mqtt::{self as packets, plain_connect};
use crate::support::{Server, connect_from};
use crate::tokens::{everything, key_settings, token};

/// The entry of a user who may do everything below `doors`, with a hash that is cheap to verify.
pub fn entry(name: &str, password: &str) -> String {
    entry_of(name, &hash(password, 8, 1))
}

fn entry_of(name: &str, hash: &str) -> String {
    let rights = "publish = ['doors/#']\nsubscribe = ['doors/#']\nmanage = ['doors/#']\ninfo = ['doors/#']\ninterest = ['doors/#']\n";
    format!("[[access.user]]\nname = '{name}'\npassword = '{hash}'\n{rights}")
}

fn hash(password: &str, memory_kib: u32, passes: u32) -> String {
    let params = Params::new(memory_kib, passes, 1, None).expect("parameters");
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    argon2
        .hash_password(password.as_bytes())
        .expect("a hash")
        .to_string()
}

/// The entry of a user whose password takes a while to verify.
static EXPENSIVE_ENTRY: LazyLock<String> =
    LazyLock::new(|| entry_of("ann", &hash("right", 4 << 10, 1)));

pub fn basic(user: &str, password: &str) -> String {
    format!("Basic {}", STANDARD.encode(format!("{user}:{password}")))
}

fn publish(server: &Server, authorization: &str) -> u16 {
    once(
        server,
        "POST",
        "/pub/doors/users",
        &[("Authorization", authorization)],
        "x",
    )
    .status
}

#[test]
fn user_is_accepted_with_the_right_password_over_http_and_mqtt() {
    let broker = Broker::with(&format!("[access]\n{}", entry("ann", "right:with colon")));
    let Broker::Crore(server) = &broker else {
        return;
    };
    let table = [
        ("ann", "right:with colon", 202, ReasonCode::SUCCESS),
        ("ann", "right", 401, ReasonCode::BAD_USER_NAME_OR_PASSWORD),
        ("ann", "", 401, ReasonCode::BAD_USER_NAME_OR_PASSWORD),
        (
            "bob",
            "right:with colon",
            401,
            ReasonCode::BAD_USER_NAME_OR_PASSWORD,
        ),
        ("", "", 401, ReasonCode::BAD_USER_NAME_OR_PASSWORD),
    ];
    for round in 0..2 {
        for (user, password, status, reason) in table {
            assert_eq!(
                publish(server, &basic(user, password)),
                status,
                "{round}: {user} {password}"
            );
            let mut conn = packets::Conn::open(&broker, mqtt::Version::V5);
            let mut connect = plain_connect(mqtt::Version::V5, "");
            (connect.user_name, connect.password) = (Some(user), Some(password.as_bytes()));
            conn.write(|out| encode::connect(out, &connect));
            match conn.packet().packet() {
                Packet::ConnAck(connack) => assert_eq!(connack.reason, reason, "{round}: {user}"),
                other => panic!("a CONNACK is due, {other:?} came"),
            }
        }
    }
}

#[test]
fn flood_of_passwords_delays_no_token_and_no_message() {
    let settings = format!(
        "[access]\nquestions_max = 8\npassword_threads = 1\ncache_s = 0\n{}{}",
        key_settings(),
        *EXPENSIVE_ENTRY
    );
    let server = Server::with(&settings);
    let bearer = format!("Bearer {}", token(everything()));
    let headers = [
        ("Authorization", bearer.as_str()),
        ("Accept", "text/event-stream"),
    ];
    let mut subscriber = Conn::open(&server);
    subscriber.ask("GET", "/sub/doors/users", &headers, "");
    assert_eq!(subscriber.head().status, 200);
    subscriber.chunk();

    let mut storm: Vec<Conn> = (0..60).map(|_| Conn::open(&server)).collect();
    for (n, conn) in storm.iter_mut().enumerate() {
        let authorization = basic("ann", &format!("wrong-{n}"));
        conn.ask(
            "POST",
            "/pub/doors/users",
            &[("Authorization", &authorization)],
            "x",
        );
    }
    // During the flood, other clients are served.
    assert_eq!(publish(&server, &bearer), 201);
    while !String::from_utf8_lossy(&subscriber.chunk()).contains("data: x") {}
    let (mut refused_count, mut busy_count) = (0, 0);
    for conn in &mut storm {
        match conn.response().status {
            401 => refused_count += 1,
            503 => busy_count += 1,
            other => panic!("{other}"),
        }
    }
    assert!(
        // At least four are refused, since one address may have four of the eight verifications at a time.
        refused_count >= 4 && busy_count > 0,
        "{refused_count} refused, {busy_count} told to come back"
    );
    // After the flood a client with the right password gets in.
    assert_eq!(publish(&server, &basic("ann", "right")), 201);
}

#[test]
fn wrong_passwords_of_one_address_do_not_delay_a_right_one_of_another() {
    let settings = format!(
        "[access]\nquestions_max = 8\npassword_threads = 1\ncache_s = 0\n{}",
        *EXPENSIVE_ENTRY
    );
    let server = Server::with(&settings);
    for round in 0..3 {
        let mut storm: Vec<Conn> = (0..60)
            .map(|_| Conn::from_stream(connect_from(2, server.address()), &server))
            .collect();
        for (n, conn) in storm.iter_mut().enumerate() {
            let authorization = basic("ann", &format!("wrong-{round}-{n}"));
            let headers = [("Authorization", authorization.as_str())];
            conn.ask("POST", "/pub/doors/users", &headers, "x");
        }
        assert_eq!(publish(&server, &basic("ann", "right")), 202);
    }
}

#[test]
fn password_is_verified_once_for_all_requests_that_wait_for_it() {
    let settings = format!(
        "[access]\nquestions_max = 1\npassword_threads = 1\n{}",
        *EXPENSIVE_ENTRY
    );
    let server = Server::with(&settings);
    let clients: Vec<_> = (0..16)
        .map(|n| {
            let authorization = basic("ann", "right");
            let mut conn = Conn::open(&server);
            let mut text = Vec::new();
            for step in 0..3 {
                let target = format!("/pub/doors/{n}-{step}");
                text.extend(conn.request_bytes(
                    "POST",
                    &target,
                    &[("Authorization", &authorization)],
                    b"x",
                ));
            }
            conn.send(text);
            thread::spawn(move || (0..3).map(|_| conn.response().status).collect::<Vec<_>>())
        })
        .collect();
    for client in clients {
        // The settings allow one verification at a time, so all requests shared it.
        assert_eq!(client.join().expect("a client"), [202, 202, 202]);
    }
}

#[test]
fn client_that_leaves_before_its_verdict_leaves_nothing_behind() {
    let server = Server::with(&format!(
        "[access]\npassword_threads = 1\n{}",
        *EXPENSIVE_ENTRY
    ));
    for n in 0..10 {
        let authorization = basic("ann", &format!("wrong-{n}"));
        let mut conn = Conn::open(&server);
        conn.ask(
            "POST",
            "/pub/doors/users",
            &[("Authorization", &authorization)],
            "x",
        );
    }
    assert_eq!(publish(&server, &basic("ann", "right")), 202);
}
