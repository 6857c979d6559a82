//! A client of Pusher's protocol. It sends whatever a test gives it, valid or not.

use aws_lc_rs::hmac;
use serde_json::{Value, json};

use crate::support::Server;
use crate::support::http::Conn;
use crate::support::state::State;
use crate::support::ws::{CLOSE, FIN, TEXT, Ws};

pub const SECRET: &str = "7ad3773142a6692b25b8";
pub const PATH: &str = "/app/chat-key?protocol=7&client=test&version=1";

/// The settings of two apps, `chat` and `shop`. Their secret is in a file of `state`. Only `chat` has client events.
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

/// Signs a text as an app's backend does.
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

    /// Sends a frame unchanged.
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

    /// Waits until the server closes the connection. Returns the close code, which must also be that of the error before it.
    pub fn closed(&mut self) -> u16 {
        let error = self.next();
        assert_eq!(error["event"], "pusher:error", "{error}");
        let frame = self.ws.frame();
        assert_eq!(frame.opcode(), CLOSE, "{frame:?}");
        let code = frame.close_code().expect("a code");
        assert_eq!(error["data"]["code"], code, "{error}");
        code
    }

    /// Requests a subscription, with a signature if the channel needs one.
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

    /// Requests a subscription to a presence channel, with signed member data.
    pub fn ask_to_join(&mut self, channel: &str, channel_data: &Value) {
        let channel_data = channel_data.to_string();
        let signature = sign(&format!("{}:{channel}:{channel_data}", self.socket_id));
        let auth = format!("chat-key:{signature}");
        let data = json!({"channel": channel, "auth": auth, "channel_data": channel_data});
        self.send(json!({"event": "pusher:subscribe", "data": data}));
    }

    /// Subscribes to a presence channel, and returns the members.
    pub fn join(&mut self, channel: &str, channel_data: &Value) -> Value {
        self.ask_to_join(channel, channel_data);
        let (event, mut data) = self.channel_event(channel);
        assert_eq!(event, "pusher_internal:subscription_succeeded");
        data["presence"].take()
    }

    /// The name and the data of the next event, which must be of this channel.
    pub fn channel_event(&mut self, channel: &str) -> (String, Value) {
        let event = self.next();
        assert_eq!(event["channel"], channel, "{event}");
        let data = serde_json::from_str(event["data"].as_str().unwrap()).unwrap();
        (event["event"].as_str().unwrap().to_string(), data)
    }

    pub fn unsubscribe(&mut self, channel: &str) {
        let data = json!({"channel": channel});
        self.send(json!({"event": "pusher:unsubscribe", "data": data}));
    }

    /// The error code of a refused subscription. The server must first send a `subscription_error` to the channel.
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

    /// Checks that the connection is still open, and that no event arrives before the pong.
    pub fn goes_on(&mut self) {
        self.frame(r#"{"event":"pusher:ping","data":{}}"#);
        assert_eq!(self.next()["event"], "pusher:pong");
    }
}

/// Publishes an event to a channel of the app `chat`, as a client of another protocol does.
pub fn publish(server: &Server, channel: &str, event: &str, data: &str) {
    publish_to(server, &format!("pusher/chat/{channel}"), event, data);
}

/// Publishes an event to a topic.
pub fn publish_to(server: &Server, topic: &str, event: &str, data: &str) {
    let target = format!("/pub/{topic}");
    let mut conn = Conn::open(server);
    let headers = [("X-EventSource-Event", event)];
    let answer = conn.request("POST", &target, &headers, data);
    assert!(answer.status < 300, "{answer:?}");
}
