//! Tests pusher-js, the client library of Pusher, its server libraries for Node, Python and Go, and Laravel Echo in Chromium.

use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command};

use serde_json::{Value, json};

use crate::client::{Client, path_of, tools};
use crate::support::state::State;
use crate::support::ws::{FIN, TEXT, Ws};
use crate::support::{Server, hold_port, until};

pub const SECRET: &str = "7ad3773142a6692b25b8";

/// The file with the secret of the app.
pub fn secret_file(state: &State) -> String {
    std::fs::create_dir_all(&state.directory).unwrap();
    let file = state.directory.join("pusher-secret");
    std::fs::write(&file, SECRET).unwrap();
    file.display().to_string()
}

/// The settings of the app `chat`, with which a lost connection leaves at once.
fn app(state: &State) -> String {
    let file = secret_file(state);
    format!(
        "[presence]\nleave_s = 0\n[[pusher_app]]\nid = 'chat'\nkey = 'chat-key'\nsecret_file = '{file}'\nclient_events = true\n"
    )
}

/// A server with this app.
fn server() -> (Server, State) {
    let state = State::new();
    (Server::with_admin(&app(&state)), state)
}

/// A client of this user, which is connected.
fn client(server: &Server, secret: &str, user: &str) -> Client {
    let (data, admin) = (server.address().to_string(), server.admin().to_string());
    let args = [&data, &admin, "chat", "chat-key", secret, user];
    let client = Client::node("pusher_client.mjs", &args);
    client.next("connected");
    client
}

fn subscribe(client: &mut Client, channel: &str) -> Value {
    client.tell(&json!({"subscribe": channel}));
    let event = client.next("subscribed");
    assert_eq!(event["channel"], channel, "{event}");
    event
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn pusher_js_gets_what_the_server_library_triggers_in_every_kind_of_channel() {
    let (server, _state) = server();
    let mut client = client(&server, SECRET, "ann");
    for channel in ["news", "private-a", "private-encrypted-a", "presence-a"] {
        subscribe(&mut client, channel);
        client.tell(&json!({"trigger": [channel], "event": "x", "data": {"n": [1, "é"]}}));
        let event = client.next("event");
        assert_eq!(event["channel"], channel);
        assert_eq!(event["data"], json!({"n": [1, "é"]}), "{channel}");
    }
    client.tell(&json!({"batch": [
        {"channel": "news", "name": "one", "data": "1"},
        {"channel": "private-a", "name": "two", "data": "2"},
    ]}));
    // Events of two channels come in any order.
    let mut names =
        [client.next("event"), client.next("event")].map(|event| event["event"].clone());
    names.sort_by_key(Value::to_string);
    assert_eq!(names, ["one", "two"]);
    // The connection that the publisher names does not get the event.
    client.tell(&json!({"trigger": ["news"], "event": "y", "data": 1, "exclude": true}));
    while client.next("triggered")["event"] != "y" {}
    client.tell(&json!({"trigger": ["news"], "event": "z", "data": 2}));
    assert_eq!(client.next("event")["event"], "z");
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn pusher_js_knows_who_is_in_a_presence_channel_and_sends_client_events() {
    let (server, _state) = server();
    let room = "presence-room";
    let mut ann = client(&server, SECRET, "ann");
    assert_eq!(subscribe(&mut ann, room)["members"], json!(["ann"]));
    let mut bob = client(&server, SECRET, "bob");
    let begun = subscribe(&mut bob, room);
    assert_eq!(begun["members"], json!(["ann", "bob"]));
    let added = ann.next("added");
    assert_eq!(
        (&added["id"], &added["info"]),
        (&json!("bob"), &json!({"name": "bob"}))
    );
    bob.tell(&json!({"client": "client-typing", "channel": room, "data": {"on": true}}));
    let event = ann.next("event");
    assert_eq!(event["data"], json!({"on": true}));
    ann.tell(&json!({"get": "/channels/presence-room/users"}));
    let users = json!({"users": [{"id": "ann"}, {"id": "bob"}]});
    assert_eq!(ann.next("got")["body"], users);
    let params = json!({"filter_by_prefix": "presence-", "info": "user_count"});
    ann.tell(&json!({"get": "/channels", "params": params}));
    let channels = json!({"channels": {"presence-room": {"user_count": 2}}});
    assert_eq!(ann.next("got")["body"], channels);
    bob.tell(&json!({"unsubscribe": room}));
    assert_eq!(ann.next("removed")["id"], "bob");
    let params = json!({"info": "user_count,subscription_count"});
    ann.tell(&json!({"get": "/channels/presence-room", "params": params}));
    let info = json!({"occupied": true, "user_count": 1, "subscription_count": 1});
    assert_eq!(ann.next("got")["body"], info);
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn pusher_js_signs_in_and_the_server_library_ends_the_users_connections() {
    let (server, _state) = server();
    let mut ann = client(&server, SECRET, "ann");
    let mut bob = client(&server, SECRET, "bob");
    for client in [&mut ann, &mut bob] {
        client.tell(&json!({"signin": true}));
        client.next("signed_in");
    }
    server.await_subscribers("pusher/chat/user/ann", 1);
    bob.tell(&json!({"send": "hello", "to": "ann", "data": 1}));
    assert_eq!(ann.next("user_event")["event"], "hello");
    bob.tell(&json!({"terminate": "ann"}));
    assert_eq!(bob.next("terminated")["status"], 200);
    assert_eq!(ann.next("refused")["code"], 4009);
    bob.tell(&json!({"subscribe": "news"}));
    bob.next("subscribed");
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn pusher_js_gets_the_last_event_of_a_cache_channel() {
    let (server, _state) = server();
    let mut client = client(&server, SECRET, "ann");
    subscribe(&mut client, "cache-a");
    assert_eq!(client.next("cache_miss")["channel"], "cache-a");
    client.tell(&json!({"trigger": ["cache-a"], "event": "state", "data": {"n": 1}}));
    assert_eq!(client.next("event")["event"], "state");
    client.tell(&json!({"unsubscribe": "cache-a"}));
    server.await_subscribers("pusher/chat/cache-a", 0);
    subscribe(&mut client, "cache-a");
    assert_eq!(client.next("event")["data"], json!({"n": 1}));
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn signature_with_another_secret_opens_neither_a_channel_nor_the_api() {
    let (server, _state) = server();
    let mut client = client(&server, "another secret of the same app", "ann");
    client.tell(&json!({"subscribe": "private-a"}));
    let refused = client.next("not_subscribed");
    assert_eq!(
        (&refused["status"], &refused["type"]),
        (&json!(401), &json!("AuthError"))
    );
    client.tell(&json!({"trigger": ["news"], "event": "x", "data": 1}));
    assert_eq!(client.next("refused_by_api")["status"], 401);
}

pub fn server_library_signs_publishes_and_checks_webhooks(mut library: Client) {
    let state = State::new();
    let port = library.next("listens")["port"].clone();
    let webhook = format!(
        "[[webhook]]\nurl = 'http://127.0.0.1:{port}/'\nprivate = true\nmatch = ['pusher/7/#']\nevents = ['channel_occupied', 'member_added']\n\
         format = 'pusher'\nkey = 'chat-key'\nsecret_file = '{}'\n",
        secret_file(&state)
    );
    // The library for Python accepts ids of digits only.
    let app = app(&state).replace("id = 'chat'", "id = '7'");
    let server = Server::with_admin(&(app + &webhook));
    library.tell(&json!({"server": server.admin().to_string()}));
    let mut ws = Ws::open(&server, "/app/chat-key?protocol=7", &[]);
    let event = |ws: &mut Ws| -> (String, Value) {
        let event: Value = serde_json::from_str(&ws.frame().text()).expect("JSON");
        let data = event["data"].as_str().expect("a string");
        let name = event["event"].as_str().expect("a name");
        (name.into(), serde_json::from_str(data).expect("JSON"))
    };
    let socket = event(&mut ws).1["socket_id"].clone();
    for channel in ["private-a", "presence-a"] {
        library.tell(&json!({"auth": socket, "channel": channel, "user": "ann"}));
        let mut data = library.next("auth");
        data["channel"] = channel.into();
        let subscribe = json!({"event": "pusher:subscribe", "data": data});
        ws.send(FIN | TEXT, subscribe.to_string());
        let (name, _) = event(&mut ws);
        assert_eq!(name, "pusher_internal:subscription_succeeded", "{channel}");
        library.tell(&json!({"trigger": channel, "data": {"n": [1, "é"]}}));
        assert_eq!(event(&mut ws), ("x".into(), json!({"n": [1, "é"]})));
    }
    library.tell(&json!({"batch": "private-a"}));
    for n in [1, 2] {
        let (name, data) = event(&mut ws);
        assert_eq!((name, data), (format!("batch-{n}"), json!({"n": n})));
    }
    library.tell(&json!({"sign_in": socket, "user": "ann"}));
    let signed = library.next("sign_in");
    let sign_in = json!({"event": "pusher:signin", "data": signed});
    ws.send(FIN | TEXT, sign_in.to_string());
    let (name, data) = event(&mut ws);
    assert_eq!(name, "pusher:signin_success");
    assert_eq!(data["user_data"], signed["user_data"]);
    library.tell(&json!({"channels": "presence-"}));
    let channels = library.next("channels")["channels"].clone();
    assert_eq!(channels, json!({"presence-a": {"user_count": 1}}));
    library.tell(&json!({"users": "presence-a"}));
    assert_eq!(library.next("users")["users"], json!([{"id": "ann"}]));
    let wanted = [
        json!({"name": "channel_occupied", "channel": "private-a"}),
        json!({"name": "member_added", "channel": "presence-a", "user_id": "ann"}),
    ];
    until("the library has taken the webhooks", || {
        library.tell(&json!({"webhooks": true}));
        let told = library.next("webhooks");
        assert_eq!(told["are_valid"], true);
        let events = told["events"].as_array().expect("events");
        wanted.iter().all(|wanted| events.contains(wanted))
    });
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn server_library_for_node_signs_publishes_and_checks_webhooks() {
    let library = Client::node("pusher_server.mjs", &["7", "chat-key", SECRET]);
    server_library_signs_publishes_and_checks_webhooks(library);
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn server_library_for_python_signs_publishes_and_checks_webhooks() {
    let library = Client::python("pusher_server.py", &["7", "chat-key", SECRET]);
    server_library_signs_publishes_and_checks_webhooks(library);
}

#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn server_library_for_go_signs_publishes_and_checks_webhooks() {
    let state = State::new();
    std::fs::create_dir_all(&state.directory).expect("a directory");
    let program = state.directory.join("pusher_server");
    // The directory of the tools has the module that names the library's version.
    let mut build = Command::new("go");
    build.args(["build", "-o"]).arg(&program);
    build.arg(path_of("pusher_server.go")).current_dir(tools());
    assert!(build.status().expect("go starts").success());
    let library = Client::start(program, &["7", "chat-key", SECRET]);
    server_library_signs_publishes_and_checks_webhooks(library);
}

/// The pages of `examples/pusher-chat`, which use Laravel Echo, with the example's settings and its backend.
#[test]
#[ignore = "needs what `cargo xtask test` prepares"]
fn pages_with_laravel_echo_see_each_other_and_their_messages() {
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/pusher-chat");
    let state = State::new();
    let secret = secret_file(&state);
    let page = hold_port();
    let settings = std::fs::read_to_string(example.join("crore.toml")).expect("a file");
    let settings = settings.replace("secret.txt", &secret);
    let settings = settings.replace("127.0.0.1:3000", &page.addr().to_string());
    let server = Server::with_admin(&settings);
    let tools = std::env::var("CRORE_CLIENT_TESTS").expect("`cargo xtask test` sets it");
    let mut command = Command::new("node");
    command
        .arg(example.join("server.mjs"))
        .env("CRORE", server.address().to_string())
        .env("CRORE_ADMIN", server.admin().to_string())
        .env("PORT", page.addr().port().to_string())
        .env("SECRET_FILE", &secret)
        .env("PACKAGES", format!("{tools}/package.json"));
    let _backend = Ended(command.spawn().expect("node starts"));
    until("the backend listens", || {
        TcpStream::connect(page.addr()).is_ok()
    });
    let address = format!("http://{}", page.addr());
    let mut pages = Client::node("echo_pages.mjs", &[&address, "ann", "bob"]);
    pages.next("ready");
    let await_text = |pages: &mut Client, by: &str, place: &str, text: &str| {
        pages.tell(&json!({"await": text, "in": place, "by": by}));
        pages.next("shown");
    };
    for user in ["ann", "bob"] {
        await_text(&mut pages, user, "#users", "ann, bob");
    }
    pages.tell(&json!({"type": "hello", "by": "bob"}));
    await_text(&mut pages, "ann", "#typing", "bob is typing");
    pages.tell(&json!({"send": true, "by": "bob"}));
    for user in ["ann", "bob"] {
        await_text(&mut pages, user, "#messages", "bob: hello");
    }
    pages.tell(&json!({"close": "bob"}));
    await_text(&mut pages, "ann", "#users", "ann");
}

/// A process that ends with the test.
pub struct Ended(pub Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
