//! A client of Centrifugo's protocol, in JSON over WebSocket. It subscribes and unsubscribes while it is connected. It keeps a position (offset and epoch) for
//! each topic as Centrifugo's libraries do, and recovers from that position when it subscribes again.
//!
//! Invariant: a message comes once and in order, or a reply says `recovered: false`.

use std::collections::BTreeMap;

use crore_rng::Rng;
use crore_wire::websocket::frame::{self, Opcode};
use crore_wire::websocket::receive::{Event, Partial};
use serde_json::{Value, json};

use super::http;
use super::track::{Start, Track};
use super::websocket;
use crate::coverage::Coverage;
use crate::truth::{SeenPosition, Truth, Violation, printable};

/// The longest message that the client accepts.
const MESSAGE_BYTES_MAX: usize = 1 << 20;
/// Error codes that a correct client may get: a failure that passes, a limit that is reached, too many requests.
const ERRORS_FOR_ROOM: [u64; 3] = [100, 106, 111];
/// Codes of a Close frame that a correct client may get: it is too slow, the server restarts, the client holds too much memory, messages are lost, no pong,
/// too many frames wait, no connect command in time.
const CLOSES_FOR_ROOM: [u16; 7] = [3000, 3001, 3008, 3010, 3012, 3013, 3502];

/// What the client knows of a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Off,
    /// The subscribe command in flight: whether it recovers, and its step and second.
    Subscribing(bool, u32, u32),
    /// Subscribed, with the step and the second of the command.
    On(u32, u32),
    /// The unsubscribe command is in flight.
    Unsubscribing,
}

struct Subscription {
    track: Track,
    state: State,
    /// The position of the last message, or of the reply to the subscribe if nothing came after it.
    position: Option<(String, u64)>,
}

/// A connection.
#[derive(Default)]
struct Conn {
    /// Received bytes that are not parsed yet.
    bytes: Vec<u8>,
    is_upgraded: bool,
    is_connected: bool,
    partial: Option<Box<Partial>>,
    last_id: u32,
    /// The subscription of each command that is not answered. The connect command has none.
    commands: BTreeMap<u32, Option<usize>>,
}

/// The client.
pub struct CentrifugoClient {
    subscriptions: Vec<Subscription>,
    /// The link of the client's connection.
    pub link: Option<u32>,
    conn: Conn,
    /// Bytes to send.
    pub out: Vec<u8>,
    /// Whether the client closes its connection when `out` is sent.
    pub must_close: bool,
}

impl CentrifugoClient {
    /// A client of these topics.
    pub fn new(topics: &[usize]) -> CentrifugoClient {
        let subscription = |topic: &usize| Subscription {
            track: Track::new(*topic),
            state: State::Off,
            position: None,
        };
        CentrifugoClient {
            subscriptions: topics.iter().map(subscription).collect(),
            link: None,
            conn: Conn::default(),
            out: Vec::new(),
            must_close: false,
        }
    }

    /// The number of topics.
    pub fn topics_count(&self) -> usize {
        self.subscriptions.len()
    }

    /// Whether the client is subscribed to this topic.
    pub fn subscribes_to(&self, topic: usize) -> bool {
        let mut all = self.subscriptions.iter();
        all.any(|it| it.track.topic == topic && matches!(it.state, State::On(..)))
    }

    /// Whether the client is connected, and subscribed to all of its topics.
    pub fn is_established(&self) -> bool {
        let mut all = self.subscriptions.iter();
        self.link.is_some() && all.all(|it| matches!(it.state, State::On(..)))
    }

    /// Whether a command waits for its reply.
    pub fn is_waiting(&self) -> bool {
        self.link.is_some() && (!self.conn.is_connected || !self.conn.commands.is_empty())
    }

    /// Begins a connection. The connect command follows the request at once.
    pub fn connect(&mut self, link: u32) {
        self.link = Some(link);
        self.conn = Conn::default();
        self.must_close = false;
        self.out.extend_from_slice(
            b"GET /connection/websocket HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\n\
              Connection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
              Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n",
        );
        let connect = self.command("connect", json!({}), None);
        self.send_frame(&connect);
    }

    fn command(&mut self, kind: &str, body: Value, subscription: Option<usize>) -> String {
        self.conn.last_id += 1;
        self.conn.commands.insert(self.conn.last_id, subscription);
        json!({"id": self.conn.last_id, kind: body}).to_string()
    }

    fn send_frame(&mut self, text: &str) {
        frame::write_masked(&mut self.out, Opcode::Text, text.as_bytes(), [1, 2, 3, 4]);
    }

    /// Subscribes to one of its topics, or unsubscribes from it. Some unsubscribes are followed by the next subscribe in the same frame.
    pub fn change_subscription(&mut self, truth: &Truth, rng: &mut Rng) {
        let index = rng.below(self.subscriptions.len());
        if !self.conn.is_connected {
            return;
        }
        match self.subscriptions[index].state {
            State::Off => {
                let subscribe = self.subscribe(index, truth, rng.chance(80));
                self.send_frame(&subscribe);
            }
            State::On(..) => {
                let name = &truth.topics[self.subscriptions[index].track.topic].name;
                let body = json!({"channel": name});
                let unsubscribe = self.command("unsubscribe", body, Some(index));
                self.subscriptions[index].state = State::Unsubscribing;
                self.send_frame(&unsubscribe);
            }
            State::Subscribing(..) | State::Unsubscribing => {}
        }
    }

    /// Subscribes to all topics that it has not, in one frame. Returns whether there are any.
    pub fn subscribe_missing(&mut self, truth: &Truth) -> bool {
        if !self.conn.is_connected || self.must_close {
            return false;
        }
        let is_off = |index: &usize| self.subscriptions[*index].state == State::Off;
        let missing: Vec<usize> = (0..self.subscriptions.len()).filter(is_off).collect();
        let commands = missing
            .iter()
            .map(|index| self.subscribe(*index, truth, true));
        let commands: Vec<String> = commands.collect();
        if !commands.is_empty() {
            self.send_frame(&commands.join("\n"));
        }
        !commands.is_empty()
    }

    /// The command to subscribe, from its position if it has one and `recovers`.
    fn subscribe(&mut self, index: usize, truth: &Truth, recovers: bool) -> String {
        let subscription = &mut self.subscriptions[index];
        let name = &truth.topics[subscription.track.topic].name;
        let position = subscription.position.as_ref().filter(|_| recovers);
        let body = match position {
            Some((epoch, offset)) => {
                json!({"channel": name, "recover": true, "epoch": epoch, "offset": offset})
            }
            None => json!({"channel": name}),
        };
        if position.is_none() {
            subscription.track.begin_stretch(Start::FirstReceived);
        }
        subscription.state = State::Subscribing(position.is_some(), truth.step, truth.now_s);
        self.command("subscribe", body, Some(index))
    }

    /// Updates the state after the connection has ended.
    pub fn connection_ended(&mut self) {
        self.link = None;
        self.conn = Conn::default();
        self.out.clear();
        for subscription in &mut self.subscriptions {
            if let State::Subscribing(false, ..) = subscription.state {
                // Nothing is known of the position at which it began.
                subscription.position = None;
            }
            subscription.state = State::Off;
        }
    }

    /// Reads received bytes.
    pub fn read(
        &mut self,
        bytes: &[u8],
        truth: &mut Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        self.conn.bytes.extend_from_slice(bytes);
        if !self.conn.is_upgraded {
            let Some(head) = http::take_head(&mut self.conn.bytes)? else {
                return Ok(());
            };
            match head.status {
                101 => self.conn.is_upgraded = true,
                408 | 429 | 503 => {
                    coverage.refused += 1;
                    self.must_close = true;
                    return Ok(());
                }
                status => return Err(format!("Centrifugo's path was answered {status}")),
            }
        }
        let (mut partial, input) = (
            self.conn.partial.take(),
            std::mem::take(&mut self.conn.bytes),
        );
        websocket::read(&mut partial, input, MESSAGE_BYTES_MAX, false, |event| {
            match event {
                Event::Ping(data) => websocket::pong(&mut self.out, data),
                Event::Pong(_) => {}
                Event::Close { code, reason } => {
                    truth.note(|| format!("{:?} closed with {code:?}", self.link));
                    self.must_close = true;
                    let is_for_room = code.is_some_and(|code| {
                        CLOSES_FOR_ROOM.contains(&code) || websocket::is_for_room(code)
                    });
                    if !is_for_room {
                        return Err(format!("closed with {code:?} {}", printable(reason)));
                    }
                    return Ok(false);
                }
                Event::Binary(data) => return Err(format!("binary {}", printable(data))),
                Event::Text(text) => {
                    for line in text.split(|byte| *byte == b'\n') {
                        self.read_item(line, truth, coverage)?;
                    }
                }
            }
            Ok(true)
        })?;
        self.conn.partial = partial;
        Ok(())
    }

    fn read_item(
        &mut self,
        line: &[u8],
        truth: &mut Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        let item: Value = serde_json::from_slice(line)
            .map_err(|error| format!("{error}: {}", printable(line)))?;
        if item.as_object().is_some_and(serde_json::Map::is_empty) {
            // A ping.
            self.send_frame("{}");
            return Ok(());
        }
        if let Some(push) = item.get("push") {
            return self.read_push(push, truth, coverage);
        }
        let id = item["id"].as_u64().unwrap_or_default() as u32;
        let Some(index) = self.conn.commands.remove(&id) else {
            return Err(format!("a reply to no command: {item}"));
        };
        let Some(index) = index else {
            self.conn.is_connected = item.get("connect").is_some();
            return match self.conn.is_connected {
                true => Ok(()),
                false => Err(format!("no connect: {item}")),
            };
        };
        let state = self.subscriptions[index].state;
        match (state, item.get("subscribe"), item.get("error")) {
            (State::Subscribing(recovers, step, second), Some(reply), None) => {
                self.subscriptions[index].state = State::On(step, second);
                self.read_subscribed(index, reply, recovers, truth, coverage)
            }
            (State::Subscribing(recovers, ..), None, Some(error)) => {
                let code = error["code"].as_u64().unwrap_or_default();
                if !ERRORS_FOR_ROOM.contains(&code) {
                    return Err(format!("a subscribe was answered {error}"));
                }
                coverage.refused += 1;
                let subscription = &mut self.subscriptions[index];
                subscription.state = State::Off;
                if !recovers {
                    subscription.position = None;
                }
                Ok(())
            }
            (State::Unsubscribing, None, None) if item.get("unsubscribe").is_some() => {
                self.subscriptions[index].state = State::Off;
                Ok(())
            }
            _ => Err(format!("{item} in {state:?}")),
        }
    }

    fn read_subscribed(
        &mut self,
        index: usize,
        reply: &Value,
        recovers: bool,
        truth: &mut Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        truth.note(|| format!("{:?} is subscribed: {reply}", self.link));
        let subscription = &mut self.subscriptions[index];
        let State::On(step, second) = subscription.state else {
            return Err("no subscription".into());
        };
        let is_recovered = reply["recovered"] == true;
        match (recovers, is_recovered) {
            (true, true) => coverage.recovered += 1,
            (true, false) => {
                coverage.unrecovered += 1;
                subscription.track.gap_received(None, truth)?;
            }
            (false, true) => return Err(format!("recovered without a position: {reply}")),
            (false, false) => {}
        }
        let epoch = reply["epoch"].as_str().unwrap_or_default();
        let offset = reply["offset"].as_u64().unwrap_or_default();
        subscription.position = Some((epoch.into(), offset));
        let publications = reply["publications"]
            .as_array()
            .map_or(&[][..], |it| &it[..]);
        for publication in publications {
            self.read_publication(index, publication, truth, coverage)?;
        }
        let track = &mut self.subscriptions[index].track;
        if publications.is_empty() {
            track.position_received(SeenPosition {
                offset,
                step,
                second,
            });
        }
        track.subscription_confirmed(truth.step);
        Ok(())
    }

    fn read_publication(
        &mut self,
        index: usize,
        publication: &Value,
        truth: &mut Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        let data = publication["data"].as_str();
        let data = data.ok_or_else(|| format!("no text: {publication}"))?;
        let number = truth.number_of(data.as_bytes())?;
        let offset = publication["offset"].as_u64();
        let offset = offset.ok_or_else(|| format!("no offset: {publication}"))?;
        let subscription = &mut self.subscriptions[index];
        if truth.messages[number as usize].topic != subscription.track.topic {
            return Err(format!("message {number} of another topic"));
        }
        coverage.messages += 1;
        let link = self.link;
        truth.note(|| format!("{link:?} gets {number} at {offset}"));
        truth.set_offset(number, offset)?;
        if let Some((_, last)) = &mut subscription.position {
            *last = offset;
        }
        if truth.has_copies(number) {
            return Ok(());
        }
        subscription.track.message_received(number, truth)?;
        match subscription.state {
            State::On(step, second) => truth.check_not_stale(number, step, second),
            state => Err(format!("message {number} came in {state:?}")),
        }
    }

    fn read_push(
        &mut self,
        push: &Value,
        truth: &mut Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        let channel = push["channel"].as_str().unwrap_or_default();
        let mut all = self.subscriptions.iter();
        let index = all.position(|it| truth.topics[it.track.topic].name == channel);
        let index = index.ok_or_else(|| format!("a push for no topic: {push}"))?;
        let state = self.subscriptions[index].state;
        match (push.get("pub"), push.get("unsubscribe")) {
            // What comes before the reply to the unsubscribe is not kept, and comes again when the client recovers.
            (Some(_), None) if state == State::Unsubscribing => Ok(()),
            (Some(publication), None) => self.read_publication(index, publication, truth, coverage),
            (None, Some(end)) if end["code"] == 2500 => {
                truth.note(|| format!("{:?} lost its subscription", self.link));
                if let State::On(..) = state {
                    self.subscriptions[index].state = State::Off;
                }
                Ok(())
            }
            _ => Err(format!("{push} in {state:?}")),
        }
    }

    /// Requires that the last stretches reach the newest messages. The caller makes sure that nothing is in flight.
    pub fn require_newest(&mut self) {
        for subscription in &mut self.subscriptions {
            if let State::On(..) = subscription.state {
                subscription.track.require_newest();
            }
        }
    }

    /// Compares all received messages with the published ones.
    pub fn check(
        &self,
        truth: &Truth,
        unplaced: &[crate::truth::UnplacedMessage],
    ) -> Result<(), Violation> {
        for Subscription { track, .. } in &self.subscriptions {
            track.check(truth, unplaced).map_err(|violation| {
                format!("Centrifugo's client of topic {}: {violation}", track.topic)
            })?;
        }
        Ok(())
    }
}
