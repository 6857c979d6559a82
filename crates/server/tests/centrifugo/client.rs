//! A client of the protocol in JSON. It sends what a test tells it to, valid or not.

use std::collections::VecDeque;

use serde_json::{Value, json};

use crate::support::Server;
use crate::support::ws::{BINARY, CLOSE, FIN, PING, PONG, TEXT, Ws};

pub const PATH: &str = "/connection/websocket";
pub const ON: &str = "[centrifugo]\nenabled = true\n";

pub struct Client {
    pub ws: Ws,
    id: u32,
    /// Replies and pushes that came before the ones that were waited for.
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

    /// Sends a frame as it is.
    pub fn frame(&mut self, text: &str) {
        self.ws.send(FIN | TEXT, text);
    }

    /// A command with the next id.
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

    /// The reply to the command with this id.
    pub fn reply(&mut self, id: u32) -> Value {
        self.first(|item| item["id"] == id)
    }

    /// The reply to the command with this id, if it comes before the server closes the connection.
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

    /// What comes next.
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

    /// Whether the server answers a ping, so that the connection goes on. What came before stays unread.
    pub fn goes_on(&mut self) -> bool {
        self.ask("ping", json!({})).get("ping").is_some()
    }

    /// The code and the reason with which the server closes the connection. Replies and pushes before it are dropped.
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

    /// Subscribes after this position, which a reply or a push named.
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

    /// The code of the error with which this command is answered.
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
