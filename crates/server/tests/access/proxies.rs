//! Tests connections of a proxy, which carry the requests of several users. Each request has only the rights of its own user.

use crate::support::Server;
use crate::support::http::Conn;
use crate::tokens::{key_settings, now_s, token};
use serde_json::json;

fn bearer(user: &str) -> String {
    let own_topics = format!("users/{user}/#");
    let claims =
        json!({"sub": user, "exp": now_s() + 600, "publish": own_topics, "subscribe": own_topics});
    format!("Bearer {}", token(claims))
}

#[test]
fn rights_of_one_request_do_not_hold_for_the_next_on_its_connection() {
    let server = Server::with(&format!("[access]\n{}", key_settings()));
    let (ann, bob) = (bearer("ann"), bearer("bob"));
    let table: [(Option<&str>, &str, u16); 7] = [
        (Some(&ann), "users/ann/1", 202),
        (Some(&bob), "users/ann/1", 403),
        (Some(&bob), "users/bob/1", 202),
        (Some(&ann), "users/bob/1", 403),
        (None, "users/ann/1", 401),
        (Some("Bearer eyJ0.e30.x"), "users/ann/1", 401),
        (Some(&ann), "users/ann/2", 202),
    ];
    // Sends the requests one after the other, and then all at once. They have no bodies, since the server does not read on after a refused
    // body.
    for pipelined in [false, true] {
        let mut conn = Conn::open(&server);
        let requests: Vec<Vec<u8>> = table
            .iter()
            .map(|(authorization, topic, _)| {
                let headers: Vec<_> = authorization
                    .iter()
                    .map(|it| ("Authorization", *it))
                    .collect();
                conn.request_bytes("POST", &format!("/pub/{topic}"), &headers, b"")
            })
            .collect();
        if pipelined {
            conn.send(requests.concat());
        }
        for (request, (authorization, topic, expected)) in requests.iter().zip(table) {
            if !pipelined {
                conn.send(request);
            }
            let status = conn.response().status;
            assert_eq!(
                status, expected,
                "{authorization:?} to {topic}, pipelined {pipelined}"
            );
        }
    }
}

#[test]
fn request_after_a_poll_has_only_the_rights_of_its_own_user() {
    let server = Server::with(&format!("[access]\n{}", key_settings()));
    let (ann, bob) = (bearer("ann"), bearer("bob"));
    let mut conn = Conn::open(&server);
    conn.ask("GET", "/sub/users/ann/poll", &[("Authorization", &ann)], "");
    let mut publisher = Conn::open(&server);
    // The poll either waits for this message, or arrives later and reads the message from the log.
    let published = publisher.request(
        "POST",
        "/pub/users/ann/poll",
        &[("Authorization", &ann)],
        "for ann",
    );
    assert!([201, 202].contains(&published.status));
    assert_eq!(conn.response().body, b"for ann");
    let response = conn.get("/sub/users/ann/poll", &[("Authorization", &bob)]);
    assert_eq!(response.status, 403);
    let response = conn.get("/sub/users/ann/poll", &[]);
    assert_eq!(response.status, 401);
}

#[test]
fn late_body_belongs_to_the_user_of_its_head() {
    let server = Server::with(&format!("[access]\n{}", key_settings()));
    let ann = bearer("ann");
    for (topic, expected) in [("users/ann/1", 202), ("users/bob/1", 403)] {
        for chunked in [false, true] {
            let mut conn = Conn::open(&server);
            let (length, body) = match chunked {
                false => ("Content-Length: 5", "hello"),
                true => ("Transfer-Encoding: chunked", "5\r\nhello\r\n0\r\n\r\n"),
            };
            conn.send(format!("POST /pub/{topic} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: {ann}\r\n{length}\r\n\r\n"));
            conn.dribble(body);
            assert_eq!(
                conn.response().status,
                expected,
                "{topic} chunked {chunked}"
            );
        }
    }
}

#[test]
fn client_that_ends_its_side_after_one_request_gets_the_answer() {
    let server = Server::with(&format!("[access]\n{}", key_settings()));
    for (user, expected) in [("ann", 202), ("bob", 403)] {
        let mut conn = Conn::open(&server);
        let text = conn.request_bytes(
            "POST",
            "/pub/users/ann/1",
            &[("Authorization", &bearer(user))],
            b"x",
        );
        conn.send(text);
        conn.stream()
            .shutdown(std::net::Shutdown::Write)
            .expect("half a close");
        assert_eq!(conn.response().status, expected);
        assert!(conn.ends());
    }
}
