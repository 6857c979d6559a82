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
pub struct Variant {
    pub library: Library,
    /// The transport: `tcp` or `ws`.
    pub transport: &'static str,
    /// The protocol level of the CONNECT: 4 is MQTT 3.1.1, 5 is MQTT 5.
    pub version: u8,
}

pub struct Peer {
    pub variant: Variant,
    pub broker: Arc<Broker>,
    client: Client,
    /// The library's events that no test has asked for yet.
    unread_events: RefCell<Vec<Value>>,
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
    pub fn start(variant: Variant, broker: &Arc<Broker>) -> Peer {
        Peer {
            variant,
            broker: Arc::clone(broker),
            client: process(variant.library),
            unread_events: RefCell::default(),
        }
    }

    pub fn is_v5(&self) -> bool {
        self.variant.version == 5
    }

    /// A name that no other run of the scenario uses.
    pub fn unique_name(&self, name: &str) -> String {
        format!(
            "{:?}-{}-{}/{name}",
            self.variant.library, self.variant.transport, self.variant.version
        )
    }

    /// Sends a command to the library. `options` may override every field.
    pub fn send_command(&mut self, action: &str, client: &str, options: Value) {
        let mut command =
            json!({ "do": action, "client": client, "version": self.variant.version });
        for (name, value) in options.as_object().expect("an object") {
            command[name] = value.clone();
        }
        self.client.tell(&command);
    }

    /// Connects without waiting. `options` has the options that differ from the default (a clean session without a will).
    pub fn start_connect(&mut self, client: &str, options: Value) {
        let port = match self.variant.transport {
            "tcp" => self.broker.tcp_port(),
            _ => self.broker.ws_port(),
        };
        let mut arguments = json!({
            "id": self.unique_name(client),
            "clean": true,
            "door": self.variant.transport,
            "port": port,
        });
        for (name, value) in options.as_object().expect("an object") {
            arguments[name] = value.clone();
        }
        self.send_command("connect", client, arguments);
    }

    /// Connects and returns what the CONNACK said, which must be success.
    pub fn connect(&mut self, client: &str, options: Value) -> Value {
        self.start_connect(client, options);
        let connack = self.next_event(client, "connack");
        assert_eq!(
            connack["reason"],
            0,
            "{}: {connack}",
            self.client_label(client)
        );
        connack
    }

    /// Connects with a session that outlives its connection, in MQTT 5 by this many seconds. Returns whether a session was present.
    pub fn connect_session(&mut self, client: &str, clean: bool, expiry_s: u32) -> bool {
        let options = json!({ "clean": clean, "properties": { "session_expiry_s": expiry_s } });
        self.connect(client, options)["session_present"] == true
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
    pub fn subscribe_with(&mut self, client: &str, mut options: Value) -> Vec<u64> {
        for it in options["filters"].as_array_mut().expect("filters") {
            it["filter"] = self
                .own_filter(it["filter"].as_str().expect("a filter"))
                .into();
        }
        self.send_command("subscribe", client, options);
        numbers(&self.next_event(client, "suback")["reasons"])
    }

    pub fn unsubscribe(&mut self, client: &str, filters: &[&str]) -> Vec<u64> {
        let filters: Vec<String> = filters.iter().map(|it| self.own_filter(it)).collect();
        self.send_command("unsubscribe", client, json!({ "filters": filters }));
        numbers(&self.next_event(client, "unsuback")["reasons"])
    }

    /// The filter with this run's own name in it, after `$share/GROUP/` if there is one.
    fn own_filter(&self, filter: &str) -> String {
        match filter
            .strip_prefix("$share/")
            .and_then(|rest| rest.split_once('/'))
        {
            Some((group, filter)) => format!("$share/{group}/{}", self.unique_name(filter)),
            None => self.unique_name(filter),
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
    pub fn publish_with(&mut self, client: &str, options: Value) -> u64 {
        let mut arguments = json!({ "qos": 1, "retain": false });
        for (name, value) in options.as_object().expect("an object") {
            arguments[name] = value.clone();
        }
        arguments["topic"] = self
            .unique_name(arguments["topic"].as_str().expect("a topic"))
            .into();
        self.send_command("publish", client, arguments);
        self.next_event(client, "published")["reason"]
            .as_u64()
            .expect("a code")
    }

    /// A client's next message, with the topic as the test names it, without this run's own name.
    pub fn message(&self, client: &str) -> Message {
        self.to_message(&self.next_event(client, "message"))
    }

    fn to_message(&self, event: &Value) -> Message {
        let text = |name: &str| event[name].as_str().expect("text").to_string();
        let own_topics = self.unique_name("");
        let topic = text("topic");
        Message {
            topic: topic
                .strip_prefix(&own_topics)
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
    pub fn remaining_data(&self, client: &str) -> Vec<String> {
        let next_message = || self.find_event(client, "message", QUIET);
        std::iter::from_fn(next_message)
            .map(|event| self.to_message(&event).data)
            .collect()
    }

    /// The topics of all messages to this client, until none has come for a while.
    pub fn remaining_topics(&self, client: &str) -> Vec<String> {
        let next_message = || self.find_event(client, "message", QUIET);
        std::iter::from_fn(next_message)
            .map(|event| self.to_message(&event).topic)
            .collect()
    }

    /// Panics if another message comes to this client.
    pub fn expect_quiet(&self, client: &str) {
        if let Some(event) = self.find_event(client, "message", QUIET) {
            panic!("{}: {event} came too much", self.client_label(client));
        }
    }

    /// Ends the connection with a DISCONNECT.
    pub fn disconnect(&mut self, client: &str) {
        self.send_command("disconnect", client, json!({}));
        self.next_event(client, "closed");
    }

    /// Ends the connection without a DISCONNECT.
    pub fn cut(&mut self, client: &str) {
        self.send_command("cut", client, json!({}));
        self.next_event(client, "closed");
    }

    /// Kills the server, as a crash would, and starts another one. No other peer may use the server.
    pub fn crash_server(&mut self, start: impl FnOnce() -> Broker) {
        let broker = Arc::get_mut(&mut self.broker).expect("only this peer uses it");
        broker.replace_after_crash(start);
    }

    /// Kills the process with all its clients, and starts another.
    pub fn kill(&mut self) {
        self.client.kill();
        self.client = process(self.variant.library);
        self.unread_events.borrow_mut().clear();
    }

    /// A client's next event of this kind.
    pub fn next_event(&self, client: &str, kind: &str) -> Value {
        self.find_event(client, kind, PATIENCE).unwrap_or_else(|| {
            panic!(
                "{}: no {kind}; {:?}",
                self.client_label(client),
                self.unread_events
            )
        })
    }

    fn find_event(&self, client: &str, kind: &str, time: Duration) -> Option<Value> {
        let is_wanted = |event: &Value| event["client"] == client && event["kind"] == kind;
        let mut events = self.unread_events.borrow_mut();
        if let Some(index) = events.iter().position(is_wanted) {
            return Some(events.remove(index));
        }
        let started = Instant::now();
        while let Some(remaining) = time.checked_sub(started.elapsed()) {
            let event = self.client.within(remaining)?;
            assert_ne!(event["kind"], "error", "{:?}: {event}", self.variant);
            if is_wanted(&event) {
                return Some(event);
            }
            events.push(event);
        }
        None
    }

    fn client_label(&self, client: &str) -> String {
        format!("{:?}, client {client}", self.variant)
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
