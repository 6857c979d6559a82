//! MQTT clients as the API tells of them.

use std::collections::BTreeSet;
use std::io::{Read as _, Write as _};
use std::net::TcpStream;

use argon2::password_hash::PasswordHasher as _;
use argon2::{Algorithm, Argon2, Params, Version};

use crate::port::{eventually, get, stream};
use crate::support::Server;

/// An MQTT 3.1.1 client with a clean session that has said CONNECT, with a user's name and password or without.
fn client(server: &Server, id: &str, user: Option<(&str, &str)>) -> TcpStream {
    let mut body = b"\0\x04MQTT\x04".to_vec();
    body.push(if user.is_some() { 0xc2 } else { 2 });
    body.extend([0, 60]);
    let named = user
        .into_iter()
        .flat_map(|(name, password)| [name, password]);
    for text in [id].into_iter().chain(named) {
        body.extend((text.len() as u16).to_be_bytes());
        body.extend(text.as_bytes());
    }
    let mut stream = TcpStream::connect(server.address()).expect("a connection");
    let head = [0x10, u8::try_from(body.len()).expect("a short one")];
    stream
        .write_all(&[&head, &body[..]].concat())
        .expect("sent");
    let mut answer = [0; 4];
    stream.read_exact(&mut answer).expect("an answer");
    assert_eq!(answer, [0x20, 2, 0, 0], "CONNACK");
    stream
}

/// The client ids that are told of connections with this transport.
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
fn a_client_id_is_told_of_mqtt_connections_and_of_no_other() {
    let server = Server::with_admin("");
    // Enough that both shards carry some and are the home of some.
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
    // Who takes a session over has its name; who came later has his own.
    clients[0] = client(&server, "phone-1", None);
    clients.push(client(&server, "late", None));
    let left = names[1..].iter().cloned().chain(["late".to_string()]);
    let left: BTreeSet<_> = left.map(Some).collect();
    eventually("the others", || {
        (ids(&server, "mqtt") == left).then_some(())
    });
}

#[test]
fn a_user_s_client_id_is_told_without_the_user() {
    // Cheap to verify.
    let params = Params::new(8, 1, 1, None).expect("parameters");
    let argon2 = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    let hash = argon2.hash_password(b"secret").expect("a hash");
    let settings = format!(
        "[access]\n[[access.user]]\nname = 'ann'\npassword = '{hash}'\nsubscribe = ['#']\n"
    );
    let server = Server::with_admin(&settings);
    let _client = client(&server, "phone", Some(("ann", "secret")));
    assert_eq!(ids(&server, "mqtt"), [Some("phone".to_string())].into());
}
