//! A client of Centrifugo's protocol in JSON. It sends whatever a test gives it, valid or not.

use std::collections::VecDeque;

use serde_json::{Value, json};

use crate::support::Server;
use crate::support::ws::{BINARY, CLOSE, FIN, PING, PONG, TEXT, Ws};

pub const PATH: &str = "/connection/websocket";
pub const ON: &str = "[centrifugo]\nenabled = true\n";

pub struct Client {
    pub ws: Ws,
    id: u32,
    /// Replies and pushes that arrived while the test waited for another one.
    early: VecDeque<Value>,
}

/// A server that speaks the protocol.
pub fn server() -> Server {
    Server::with(ON)
}

impl Client {
    /// A WebSocket without a connect command.
    pub fn open(server: &Server) -> Client {
        Client {
            ws: Ws::open(server, PATH, &[]),
            id: 0,
            early: VecDeque::new(),
        }
    }

    pub fn connected(server: &Server) -> Client {
        Client::with_token(server, "")
    }

    pub fn with_token(server: &Server, token: &str) -> Client {
        let mut client = Client::open(server);
        let reply = client.ask("connect", json!({"token": token}));
        assert!(reply["connect"]["client"].is_string(), "{reply}");
        client
    }

    /// Sends a frame unchanged.
    pub fn frame(&mut self, text: &str) {
        self.ws.send(FIN | TEXT, text);
    }

    /// Builds a command with the next id.
    pub fn command(&mut self, request: &str, body: Value) -> Value {
        self.id += 1;
        json!({"id": self.id, request: body})
    }

    /// Sends a command, and returns its id.
    pub fn send(&mut self, request: &str, body: Value) -> u32 {
        let command = self.command(request, body).to_string();
        self.frame(&command);
        self.id
    }

    /// Sends a command, and returns its reply.
    pub fn ask(&mut self, request: &str, body: Value) -> Value {
        let id = self.send(request, body);
        self.reply(id)
    }

    /// Waits for the reply to the command with this id.
    pub fn reply(&mut self, id: u32) -> Value {
        self.first(|item| item["id"] == id)
    }

    /// Waits for the reply to the command with this id. `None` if the server closes the connection first.
    pub fn reply_before_the_end(&mut self, id: u32) -> Option<Value> {
        loop {
            let frame = self.ws.frame();
            if frame.opcode() == CLOSE {
                return None;
            }
            for line in frame.text().lines() {
                self.early
                    .push_back(serde_json::from_str(line).expect("JSON"));
            }
            if self.early.iter().any(|item| item["id"] == id) {
                return Some(self.reply(id));
            }
        }
    }

    /// The next reply or push.
    pub fn next(&mut self) -> Value {
        self.first(|_| true)
    }

    /// The next push.
    pub fn push(&mut self) -> Value {
        self.first(|item| item.get("push").is_some())["push"].take()
    }

    /// The data of the next publication, which must be of this channel.
    pub fn data(&mut self, channel: &str) -> Value {
        let mut push = self.push();
        assert_eq!(push["channel"], channel, "{push}");
        push["pub"]["data"].take()
    }

    fn first(&mut self, wanted: impl Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.early.iter().position(&wanted) {
            return self.early.remove(at).expect("it is there");
        }
        loop {
            let frame = self.ws.frame();
            match frame.opcode() {
                TEXT => {}
                PING => {
                    self.ws.send(FIN | PONG, &frame.payload);
                    continue;
                }
                _ => panic!("{frame:?} instead of a reply"),
            }
            for line in frame.text().lines() {
                self.early
                    .push_back(serde_json::from_str(line).expect("JSON"));
            }
            if let Some(at) = self.early.iter().position(&wanted) {
                return self.early.remove(at).expect("it is there");
            }
        }
    }

    /// Whether the server still answers a ping. Replies and pushes that arrive before the answer stay unread.
    pub fn goes_on(&mut self) -> bool {
        self.ask("ping", json!({})).get("ping").is_some()
    }

    /// Waits until the server closes the connection. Returns the code and the reason, and drops the replies and pushes before them.
    pub fn closed(&mut self) -> (u16, String) {
        loop {
            let frame = self.ws.frame();
            if frame.opcode() == CLOSE {
                let code = frame.close_code().expect("a code");
                let reason = String::from_utf8(frame.payload[2..].to_vec()).expect("a text");
                return (code, reason);
            }
            assert!([TEXT, BINARY].contains(&frame.opcode()), "{frame:?}");
        }
    }

    pub fn subscribe(&mut self, channel: &str) -> Value {
        let mut reply = self.ask("subscribe", json!({"channel": channel}));
        assert!(reply.get("subscribe").is_some(), "{reply}");
        reply["subscribe"].take()
    }

    /// Subscribes and recovers from this position, which came with a reply or a push.
    pub fn recover(&mut self, channel: &str, epoch: &Value, offset: &Value) -> Value {
        let body = json!({"channel": channel, "recover": true, "epoch": epoch, "offset": offset});
        let mut reply = self.ask("subscribe", body);
        assert!(reply.get("subscribe").is_some(), "{reply}");
        reply["subscribe"].take()
    }

    pub fn publish(&mut self, channel: &str, data: Value) {
        let reply = self.ask("publish", json!({"channel": channel, "data": data}));
        assert!(reply.get("publish").is_some(), "{reply}");
    }

    /// Sends a command that the server must refuse. Returns the error code.
    pub fn error(&mut self, request: &str, body: Value) -> u64 {
        let reply = self.ask(request, body);
        reply["error"]["code"]
            .as_u64()
            .unwrap_or_else(|| panic!("{reply} is no error"))
    }
}

/// The data of the publications in a reply.
pub fn data_of(result: &Value) -> Vec<Value> {
    let publications = result["publications"].as_array();
    let all = publications.into_iter().flatten();
    all.map(|publication| publication["data"].clone()).collect()
}
