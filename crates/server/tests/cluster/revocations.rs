//! Tests that a token or a user that is revoked at one node is refused at every node.

use jsonwebtoken::{EncodingKey, Header};
use serde_json::{Value, json};

use crate::servers::Servers;
use crate::support::http::{Conn, once};
use crate::support::port::{ask, get};
use crate::support::ws::Ws;
use crate::support::{Server, until};

const SECRET: &str = "0123456789abcdef0123456789abcdef";

fn node(servers: &Servers) -> Server {
    let key = format!("[access]\n[[access.key]]\nalg = 'HS256'\nsecret = '{SECRET}'\n");
    Server::with_admin(&(crate::settings(servers) + &key))
}

fn token(user: &str) -> String {
    let claims = json!({"sub": user, "exp": 4_000_000_000u32, "publish": "#", "subscribe": "#"});
    let key = EncodingKey::from_secret(SECRET.as_bytes());
    jsonwebtoken::encode(&Header::default(), &claims, &key).expect("a token")
}

/// Publishes with this token. Returns the status.
fn publish(server: &Server, token: &str) -> u16 {
    once(server, "POST", &format!("/pub/a?token={token}"), &[], "x").status
}

fn change(server: &Server, line: &str, body: Option<&Value>) -> u16 {
    let body = body.map(Value::to_string);
    ask(server.admin(), line, body.as_deref()).status
}

#[test]
fn revocation_at_one_node_takes_effect_at_all_and_at_later_nodes() {
    let Some(mut servers) = Servers::start(1) else {
        return;
    };
    let (node_a, node_b) = (node(&servers), node(&servers));
    let (ann, bob) = (token("ann"), token("bob"));
    for node in [&node_a, &node_b] {
        assert_eq!(publish(node, &ann), 202);
    }
    let mut open = Ws::open(&node_b, &format!("/sub/a?token={ann}"), &[]);
    let mut poll = Conn::open(&node_b);
    poll.ask("GET", &format!("/sub/b?token={ann}"), &[], "");
    let revoke = "POST /api/v1/revocations";
    assert_eq!(change(&node_a, revoke, Some(&json!({"user": "ann"}))), 200);
    assert_eq!(publish(&node_a, &ann), 401, "at once where it was revoked");
    assert_eq!(open.closed(), Some(4401));
    assert_eq!(poll.response().status, 401);
    assert_eq!(publish(&node_b, &ann), 401);
    assert_eq!(publish(&node_b, &bob), 202);
    let late_node = node(&servers);
    assert_eq!(
        publish(&late_node, &ann),
        401,
        "the first request that it takes"
    );
    let listed = get(late_node.admin(), "revocations");
    assert_eq!(listed["revocations"][0]["id"], "user:ann");
    let undo = "DELETE /api/v1/revocations/user:ann";
    assert_eq!(change(&node_b, undo, None), 200);
    for node in [&node_a, &node_b, &late_node] {
        until("ann is let in again", || publish(node, &ann) == 202);
    }
    servers.kill(0);
    let refused = change(&node_a, revoke, Some(&json!({"user": "bob"})));
    assert_eq!(
        refused, 503,
        "nothing is revoked without NATS, and it is said"
    );
    servers.run(0);
    until("bob is revoked", || {
        change(&node_a, revoke, Some(&json!({"user": "bob"}))) == 200
    });
    until("the other node knows", || publish(&node_b, &bob) == 401);
}
