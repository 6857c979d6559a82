//! A client of the protocol. It sends what a test tells it to, valid or not.

use aws_lc_rs::hmac;
use serde_json::{Value, json};

use crate::support::Server;
use crate::support::state::State;
use crate::support::ws::{CLOSE, FIN, TEXT, Ws};

pub const SECRET: &str = "7ad3773142a6692b25b8";
pub const PATH: &str = "/app/chat-key?protocol=7&client=test&version=1";

/// The settings of two apps, `chat` and `shop`, whose secret is in `state`. Client events are on for the first.
pub fn apps(state: &State) -> String {
    std::fs::create_dir_all(&state.directory).unwrap();
    let file = state.directory.join("pusher-secret");
    std::fs::write(&file, format!("{SECRET}\n")).unwrap();
    let app = |id: &str, more: &str| {
        let file = file.display();
        format!("[[pusher_app]]\nid = '{id}'\nkey = '{id}-key'\nsecret_file = '{file}'\n{more}")
    };
    app("chat", "client_events = true\n") + &app("shop", "")
}

/// A server with these apps.
pub fn server() -> (Server, State) {
    let state = State::new();
    (Server::with(&apps(&state)), state)
}

/// The signature that a backend makes.
pub fn sign(text: &str) -> String {
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
    let tag = hmac::sign(&key, text.as_bytes());
    tag.as_ref()
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

pub struct Client {
    pub ws: Ws,
    pub socket_id: String,
}

impl Client {
    pub fn connected(server: &Server) -> Client {
        Client::at(server, PATH)
    }

    pub fn at(server: &Server, path: &str) -> Client {
        let mut client = Client {
            ws: Ws::open(server, path, &[]),
            socket_id: String::new(),
        };
        let event = client.next();
        assert_eq!(event["event"], "pusher:connection_established", "{event}");
        let data: Value = serde_json::from_str(event["data"].as_str().unwrap()).unwrap();
        client.socket_id = data["socket_id"].as_str().unwrap().to_string();
        client
    }

    /// Sends a frame as it is.
    pub fn frame(&mut self, text: &str) {
        self.ws.send(FIN | TEXT, text);
    }

    pub fn send(&mut self, event: Value) {
        self.frame(&event.to_string());
    }

    /// The next event.
    pub fn next(&mut self) -> Value {
        let frame = self.ws.frame();
        assert_eq!(frame.opcode(), TEXT, "{frame:?}");
        serde_json::from_str(&frame.text()).expect("JSON")
    }

    /// The code with which the server closes the connection, after an error with the same code.
    pub fn closed(&mut self) -> u16 {
        let error = self.next();
        assert_eq!(error["event"], "pusher:error", "{error}");
        let frame = self.ws.frame();
        assert_eq!(frame.opcode(), CLOSE, "{frame:?}");
        let code = frame.close_code().expect("a code");
        assert_eq!(error["data"]["code"], code, "{error}");
        code
    }

    /// Asks for a subscription, signed where the channel needs that.
    pub fn ask_for(&mut self, channel: &str) {
        let auth = match channel.starts_with("private-") {
            true => {
                let signature = sign(&format!("{}:{channel}", self.socket_id));
                format!("chat-key:{signature}")
            }
            false => String::new(),
        };
        let data = json!({"channel": channel, "auth": auth});
        self.send(json!({"event": "pusher:subscribe", "data": data}));
    }

    pub fn subscribe(&mut self, channel: &str) {
        self.ask_for(channel);
        let event = self.next();
        let begun = "pusher_internal:subscription_succeeded";
        assert_eq!(event["event"], begun, "{event}");
        assert_eq!(event["channel"], channel, "{event}");
        assert_eq!(event["data"], "{}", "{event}");
    }

    pub fn unsubscribe(&mut self, channel: &str) {
        let data = json!({"channel": channel});
        self.send(json!({"event": "pusher:unsubscribe", "data": data}));
    }

    /// The code of the error with which a subscription is refused. The channel is told too.
    pub fn refused(&mut self, channel: &str) -> Value {
        let event = self.next();
        assert_eq!(event["event"], "pusher:subscription_error", "{event}");
        assert_eq!(event["channel"], channel, "{event}");
        self.error()
    }

    /// The code of the next event, which must be an error.
    pub fn error(&mut self) -> Value {
        let mut event = self.next();
        assert_eq!(event["event"], "pusher:error", "{event}");
        event["data"]["code"].take()
    }

    /// Checks that the connection goes on, and that nothing came before the answer.
    pub fn goes_on(&mut self) {
        self.frame(r#"{"event":"pusher:ping","data":{}}"#);
        assert_eq!(self.next()["event"], "pusher:pong");
    }
}

/// Publishes an event to a channel of the app `chat`, as a client of another protocol does.
pub fn publish(server: &Server, channel: &str, event: &str, data: &str) {
    let target = format!("/pub/pusher/chat/{channel}");
    let mut conn = crate::support::http::Conn::open(server);
    let answer = conn.request("POST", &target, &[("X-EventSource-Event", event)], data);
    assert!(answer.status < 300, "{answer:?}");
}
