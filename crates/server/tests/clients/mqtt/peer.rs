//! Controls a third-party library in its own process, which holds many clients by name. The commands are the same for all libraries, so
//! each scenario is written once.

use crate::client::Client;
use crate::support::PATIENCE;
use crate::support::broker::Broker;
use serde_json::{Value, json};
use std::cell::RefCell;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Time without a message after which no more are expected.
const QUIET: Duration = Duration::from_millis(400);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Library {
    Paho,
    MqttJs,
}

/// A way to speak MQTT: a library, a transport and a version.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    pub library: Library,
    /// The transport: `tcp` or `ws`.
    pub door: &'static str,
    /// The protocol level of the CONNECT: 4 is MQTT 3.1.1, 5 is MQTT 5.
    pub version: u8,
}

pub struct Peer {
    pub way: Way,
    pub broker: Arc<Broker>,
    client: Client,
    /// The library's events that no test has asked for yet.
    said: RefCell<Vec<Value>>,
}

/// A message as a client received it.
#[derive(Clone, Debug, PartialEq)]
pub struct Message {
    pub topic: String,
    pub data: String,
    pub qos: u64,
    pub retain: bool,
    pub dup: bool,
    pub mid: u64,
    pub properties: Value,
}

impl Peer {
    pub fn start(way: Way, broker: &Arc<Broker>) -> Peer {
        Peer {
            way,
            broker: Arc::clone(broker),
            client: process(way.library),
            said: RefCell::default(),
        }
    }

    pub fn is_five(&self) -> bool {
        self.way.version == 5
    }

    /// A name that no other run of the scenario uses.
    pub fn own(&self, name: &str) -> String {
        format!(
            "{:?}-{}-{}/{name}",
            self.way.library, self.way.door, self.way.version
        )
    }

    /// Sends a command to the library. `how` may override every field.
    pub fn tell(&mut self, action: &str, client: &str, how: Value) {
        let mut command = json!({ "do": action, "client": client, "version": self.way.version });
        for (name, value) in how.as_object().expect("an object") {
            command[name] = value.clone();
        }
        self.client.tell(&command);
    }

    /// Connects without waiting. `how` has the options that differ from the default (a clean session without a will).
    pub fn connecting(&mut self, client: &str, how: Value) {
        let port = match self.way.door {
            "tcp" => self.broker.tcp_port(),
            _ => self.broker.ws_port(),
        };
        let mut all = json!({
            "id": self.own(client),
            "clean": true,
            "door": self.way.door,
            "port": port,
        });
        for (name, value) in how.as_object().expect("an object") {
            all[name] = value.clone();
        }
        self.tell("connect", client, all);
    }

    /// Connects and returns what the CONNACK said, which must be success.
    pub fn connect(&mut self, client: &str, how: Value) -> Value {
        self.connecting(client, how);
        let connack = self.next(client, "connack");
        assert_eq!(connack["reason"], 0, "{}: {connack}", self.whose(client));
        connack
    }

    /// Connects with a session that outlives its connection, in MQTT 5 by this many seconds. Returns whether a session was present.
    pub fn connect_session(&mut self, client: &str, clean: bool, expiry_s: u32) -> bool {
        let how = json!({ "clean": clean, "properties": { "session_expiry_s": expiry_s } });
        self.connect(client, how)["session_present"] == true
    }

    /// Subscribes to filters below this run's own name, and returns the reason codes.
    pub fn subscribe(&mut self, client: &str, filters: &[(&str, u8)]) -> Vec<u64> {
        let filters: Vec<Value> = filters
            .iter()
            .map(|(filter, qos)| json!({ "filter": filter, "qos": qos }))
            .collect();
        self.subscribe_with(client, json!({ "filters": filters }))
    }

    /// Subscribes with options and properties, and returns the reason codes.
    pub fn subscribe_with(&mut self, client: &str, mut how: Value) -> Vec<u64> {
        for it in how["filters"].as_array_mut().expect("filters") {
            it["filter"] = self
                .own_filter(it["filter"].as_str().expect("a filter"))
                .into();
        }
        self.tell("subscribe", client, how);
        numbers(&self.next(client, "suback")["reasons"])
    }

    pub fn unsubscribe(&mut self, client: &str, filters: &[&str]) -> Vec<u64> {
        let filters: Vec<String> = filters.iter().map(|it| self.own_filter(it)).collect();
        self.tell("unsubscribe", client, json!({ "filters": filters }));
        numbers(&self.next(client, "unsuback")["reasons"])
    }

    /// The filter with this run's own name in it, after `$share/GROUP/` if there is one.
    fn own_filter(&self, filter: &str) -> String {
        match filter
            .strip_prefix("$share/")
            .and_then(|rest| rest.split_once('/'))
        {
            Some((group, filter)) => format!("$share/{group}/{}", self.own(filter)),
            None => self.own(filter),
        }
    }

    /// Publishes and waits until it is acknowledged; returns the reason code.
    pub fn publish(&mut self, client: &str, topic: &str, data: &str, qos: u8) -> u64 {
        self.publish_with(
            client,
            json!({ "topic": topic, "payload": data, "qos": qos }),
        )
    }

    /// Publishes with RETAIN, and waits until it is acknowledged.
    pub fn retain(&mut self, client: &str, topic: &str, data: &str) {
        self.publish_with(
            client,
            json!({ "topic": topic, "payload": data, "qos": 1, "retain": true }),
        );
    }

    /// Publishes with properties, and returns the reason code.
    pub fn publish_with(&mut self, client: &str, how: Value) -> u64 {
        let mut all = json!({ "qos": 1, "retain": false });
        for (name, value) in how.as_object().expect("an object") {
            all[name] = value.clone();
        }
        all["topic"] = self.own(all["topic"].as_str().expect("a topic")).into();
        self.tell("publish", client, all);
        self.next(client, "published")["reason"]
            .as_u64()
            .expect("a code")
    }

    /// A client's next message, with the topic as the test names it, without this run's own name.
    pub fn message(&self, client: &str) -> Message {
        self.read(&self.next(client, "message"))
    }

    fn read(&self, event: &Value) -> Message {
        let text = |name: &str| event[name].as_str().expect("text").to_string();
        let own = self.own("");
        let topic = text("topic");
        Message {
            topic: topic
                .strip_prefix(&own)
                .map_or(topic.clone(), str::to_string),
            data: text("data"),
            qos: event["qos"].as_u64().expect("a number"),
            retain: event["retain"] == true,
            dup: event["dup"] == true,
            mid: event["mid"].as_u64().unwrap_or(0),
            properties: event["properties"].clone(),
        }
    }

    /// The data of the next `count` messages.
    pub fn data(&self, client: &str, count: usize) -> Vec<String> {
        (0..count).map(|_| self.message(client).data).collect()
    }

    /// The data of all messages to this client, until none has come for a while.
    pub fn rest(&self, client: &str) -> Vec<String> {
        let next_message = || self.find(client, "message", QUIET);
        std::iter::from_fn(next_message)
            .map(|event| self.read(&event).data)
            .collect()
    }

    /// The topics of all messages to this client, until none has come for a while.
    pub fn topics(&self, client: &str) -> Vec<String> {
        let next_message = || self.find(client, "message", QUIET);
        std::iter::from_fn(next_message)
            .map(|event| self.read(&event).topic)
            .collect()
    }

    /// Panics if another message comes to this client.
    pub fn expect_quiet(&self, client: &str) {
        if let Some(event) = self.find(client, "message", QUIET) {
            panic!("{}: {event} came too much", self.whose(client));
        }
    }

    /// Ends the connection with a DISCONNECT.
    pub fn disconnect(&mut self, client: &str) {
        self.tell("disconnect", client, json!({}));
        self.next(client, "closed");
    }

    /// Ends the connection without a DISCONNECT.
    pub fn cut(&mut self, client: &str) {
        self.tell("cut", client, json!({}));
        self.next(client, "closed");
    }

    /// Kills the server, as a crash would, and starts another one. No other peer may use the server.
    pub fn crash_server(&mut self, start: impl FnOnce() -> Broker) {
        let broker = Arc::get_mut(&mut self.broker).expect("only this peer uses it");
        broker.replace_after_crash(start);
    }

    /// Kills the process with all its clients, and starts another.
    pub fn kill(&mut self) {
        self.client.kill();
        self.client = process(self.way.library);
        self.said.borrow_mut().clear();
    }

    /// A client's next event of this kind.
    pub fn next(&self, client: &str, kind: &str) -> Value {
        self.find(client, kind, PATIENCE)
            .unwrap_or_else(|| panic!("{}: no {kind}; {:?}", self.whose(client), self.said))
    }

    fn find(&self, client: &str, kind: &str, time: Duration) -> Option<Value> {
        let wanted = |event: &Value| event["client"] == client && event["kind"] == kind;
        let mut held = self.said.borrow_mut();
        if let Some(at) = held.iter().position(wanted) {
            return Some(held.remove(at));
        }
        let started = Instant::now();
        while let Some(left) = time.checked_sub(started.elapsed()) {
            let event = self.client.within(left)?;
            assert_ne!(event["kind"], "error", "{:?}: {event}", self.way);
            if wanted(&event) {
                return Some(event);
            }
            held.push(event);
        }
        None
    }

    fn whose(&self, client: &str) -> String {
        format!("{:?}, client {client}", self.way)
    }
}

fn process(library: Library) -> Client {
    match library {
        Library::Paho => Client::python("paho_client.py", &[]),
        Library::MqttJs => Client::node("mqtt_js_client.mjs", &[]),
    }
}

fn numbers(list: &Value) -> Vec<u64> {
    let list = list.as_array().expect("a list");
    list.iter()
        .map(|it| it.as_u64().expect("a number"))
        .collect()
}
