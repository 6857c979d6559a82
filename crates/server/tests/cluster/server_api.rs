//! Tests Centrifugo's server API in a cluster: its methods for clients reach those of all nodes, and its lists are of all nodes.

use jsonwebtoken::{Algorithm, EncodingKey, Header, encode};
use serde_json::{Value, json};

use crate::servers::Servers;
use crate::support::port::{ask, get};
use crate::support::ws::{CLOSE, FIN, Frame, TEXT, Ws};
use crate::support::{Server, until};

const SECRET: &str = "a secret that only this test and its servers know";

/// Connects as `ann`. Also returns the id of the client.
fn connect(server: &Server) -> (Ws, String) {
    let key = EncodingKey::from_secret(SECRET.as_bytes());
    let claims = json!({"sub": "ann", "exp": 4_000_000_000_u64});
    let token = encode(&Header::new(Algorithm::HS256), &claims, &key).expect("a token");
    let mut client = Ws::open(server, "/connection/websocket", &[]);
    let command = json!({"id": 1, "connect": {"token": token}});
    client.send(FIN | TEXT, command.to_string());
    let reply = json_of(&client.frame());
    let id = reply["connect"]["client"].as_str();
    (client, id.expect("an id").to_string())
}

fn json_of(frame: &Frame) -> Value {
    serde_json::from_str(&frame.text()).expect("JSON")
}

fn call(server: &Server, method: &str, body: &Value) -> Value {
    let line = format!("POST /api/{method}");
    ask(server.admin(), &line, Some(&body.to_string())).json()
}

#[test]
fn server_api_reaches_the_clients_of_all_nodes() {
    let Some(servers) = Servers::start(3) else {
        return;
    };
    let settings = format!(
        "{}[centrifugo]\nenabled = true\n[[access.key]]\nalg = 'HS256'\nsecret = '{SECRET}'\n",
        crate::settings(&servers)
    );
    let (node_a, node_b) = (Server::with_admin(&settings), Server::with_admin(&settings));
    until("both nodes at each", || {
        let nodes = |server| get(Server::admin(server), "cluster")["nodes"].clone();
        let is_whole = |server| nodes(server).as_array().is_some_and(|it| it.len() == 2);
        [&node_a, &node_b].into_iter().all(is_whole)
    });
    let (mut client_a, id_a) = connect(&node_a);
    let (mut client_b, id_b) = connect(&node_b);
    assert_ne!(id_a, id_b);
    let done = json!({"result": {}});
    let body = json!({"user": "ann", "channel": "a"});
    assert_eq!(call(&node_a, "subscribe", &body), done);
    for client in [&mut client_a, &mut client_b] {
        let push = json_of(&client.frame());
        assert!(push["push"]["subscribe"].is_object(), "{push}");
    }
    let published = call(&node_a, "publish", &json!({"channel": "a", "data": 1}));
    assert!(published["result"]["offset"].is_u64(), "{published}");
    for client in [&mut client_a, &mut client_b] {
        assert_eq!(json_of(&client.frame())["push"]["pub"]["data"], 1);
    }
    let both = json!({"channels": {"a": {"num_clients": 2}}});
    assert_eq!(call(&node_a, "channels", &json!({}))["result"], both);
    let users = |server: &Server| {
        let nodes = call(server, "info", &json!({}))["result"]["nodes"].take();
        let nodes = nodes.as_array().expect("nodes").clone();
        let users = nodes.iter().map(|node| node["num_users"].as_u64());
        users.collect::<Vec<_>>()
    };
    assert_eq!(users(&node_a), [Some(1), Some(1)]);
    // A client is named at any node.
    let body = json!({"client": id_b, "disconnect": {"code": 4_100, "reason": "bye"}});
    assert_eq!(call(&node_a, "disconnect", &body), done);
    let end = client_b.frame();
    assert_eq!((end.opcode(), end.close_code()), (CLOSE, Some(4_100)));
    assert_eq!(
        call(
            &node_a,
            "unsubscribe",
            &json!({"user": "ann", "channel": "a"})
        ),
        done
    );
    assert_eq!(
        json_of(&client_a.frame())["push"]["unsubscribe"]["code"],
        2000
    );
    // A stopped node cannot do it, and the backend is told so.
    node_b.signal("STOP");
    let answer = call(&node_a, "disconnect", &json!({"user": "ann"}));
    assert_eq!(answer["error"]["code"], 100, "{answer}");
    assert_eq!(client_a.frame().close_code(), Some(3503));
    let answer = call(&node_a, "channels", &json!({}));
    assert_eq!(answer["error"]["code"], 100, "{answer}");
    // Its users are not known, and after some seconds it is not listed any more.
    let known_users: Vec<_> = users(&node_a).into_iter().flatten().collect();
    assert_eq!(known_users, [0]);
    node_b.signal("CONT");
}
