//! A subscriber over HTTP or WebSocket. The subscriber remembers the last position that it received, if its transport has positions, and
//! resumes from that position after a reconnect.
//!
//! A *gap* is the notice that messages are lost.

mod deliveries;
mod read;

use crore_broker::settings::StartPosition;
use crore_rng::Rng;
use crore_wire::topic;
use crore_wire::websocket::receive::Partial;

use super::http::{self, Head};
use super::track::{KnownOffsets, Start, Track};
use crate::coverage::Coverage;
use crate::truth::{Truth, Violation};

/// The transport of a subscriber.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// Event stream.
    Sse,
    /// Event stream over HTTP/1.0.
    Sse10,
    /// WebSocket with data only. The subscriber receives no positions.
    Plain,
    /// WebSocket with `ws+meta.nchan`.
    Meta,
    /// WebSocket with `envelope=json`. If the plan of a run has envelopes, subscribers use this in place of [`Transport::Meta`].
    Envelope,
    /// Long-poll: one message per request.
    Poll,
}

/// The transports from which a random one is drawn.
pub const TRANSPORTS: [Transport; 5] = [
    Transport::Sse,
    Transport::Sse10,
    Transport::Plain,
    Transport::Meta,
    Transport::Poll,
];

impl Transport {
    fn is_socket(self) -> bool {
        matches!(
            self,
            Transport::Plain | Transport::Meta | Transport::Envelope
        )
    }
}

/// A connection of a subscriber.
#[derive(Default)]
struct Conn {
    /// Received bytes that are not parsed yet.
    bytes: Vec<u8>,
    head: Option<Head>,
    /// The body of the event stream that is not parsed yet.
    body: Vec<u8>,
    partial: Option<Box<Partial>>,
    /// Whether a request or a stream is in progress.
    is_requesting: bool,
    /// Whether the stream has ended. Only the end of the connection may follow.
    stream_ended: bool,
    /// The step and the second of the last request.
    request_step: u32,
    request_s: u32,
    /// The step in which the client read the response head of its stream.
    established_step: Option<u32>,
    /// The number of messages received since the sockets that the simulation had stalled work again.
    received_after_unstall: u32,
}

/// The filters of a subscriber that subscribes by filters and not by names of topics. The server's positions have one offset for each partition.
struct FilterSubscription {
    filters: Vec<String>,
    partitions: usize,
}

/// The subscriber.
pub struct Subscriber {
    /// The subscriber's transport.
    pub transport: Transport,
    deflate: bool,
    /// The filters; `None` if the subscriber subscribes to topics by name.
    filtered: Option<FilterSubscription>,
    /// For each of the subscriber's topics the received messages.
    pub tracks: Vec<Track>,
    /// The last received position, in its text form. The next request resumes from this position.
    position: Option<Vec<u8>>,
    /// The link of the subscriber's connection.
    pub link: Option<u32>,
    conn: Conn,
    /// Bytes to send.
    pub out: Vec<u8>,
    /// Whether the subscriber closes its connection when `out` is sent.
    pub must_close: bool,
}

impl Subscriber {
    /// A subscriber of these topics.
    pub fn new(transport: Transport, topics: &[usize], deflate: bool) -> Self {
        Subscriber {
            transport,
            deflate,
            filtered: None,
            tracks: topics.iter().map(|topic| Track::new(*topic)).collect(),
            position: None,
            link: None,
            conn: Conn::default(),
            out: Vec::new(),
            must_close: false,
        }
    }

    /// Changes [`Transport::Meta`] to envelopes.
    pub fn with_envelopes(mut self) -> Self {
        if self.transport == Transport::Meta {
            self.transport = Transport::Envelope;
        }
        self
    }

    /// Subscribes by filter instead of to its topics.
    pub fn subscribe_by_filter(&mut self, filters: Vec<String>, partitions: usize, truth: &Truth) {
        let matches = |name: &str| {
            let mut filters = filters.iter();
            filters.any(|filter| topic::matches(filter.as_bytes(), name.as_bytes()))
        };
        let topics = (0..truth.topics.len()).filter(|n| matches(&truth.topics[*n].name));
        self.tracks = topics.map(Track::by_filter).collect();
        self.filtered = Some(FilterSubscription {
            filters,
            partitions,
        });
    }

    /// Whether the subscriber may connect or send its next request.
    pub fn may_request(&self) -> bool {
        self.link.is_none() || (self.transport == Transport::Poll && !self.conn.is_requesting)
    }

    /// Whether the subscriber is subscribed, as far as it knows.
    pub fn is_established(&self) -> bool {
        self.link.is_some()
            && match self.transport {
                Transport::Poll => self.conn.is_requesting,
                _ => self.conn.head.is_some(),
            }
    }

    /// Begins a connection.
    pub fn connect(&mut self, link: u32, truth: &mut Truth, rng: &mut Rng) {
        self.link = Some(link);
        self.conn = Conn::default();
        self.must_close = false;
        self.send_request(truth, rng);
    }

    /// Sends a request that begins at the subscriber's position, or at a random start if it has no position.
    pub fn send_request(&mut self, truth: &mut Truth, rng: &mut Rng) {
        let mut target = self.target(truth);
        let mut fields = String::new();
        match &self.position {
            Some(position) => {
                let position = String::from_utf8_lossy(position);
                match self.transport {
                    // Like a browser, the client sends an old `since` in the URL again. The server must prefer the header.
                    Transport::Poll => {
                        fields = format!("If-None-Match: \"{position}\"\r\n");
                        target.push_str("since=live");
                    }
                    Transport::Sse if rng.chance(50) => {
                        fields = format!("Last-Event-ID: {position}\r\n");
                        target.push_str("since=oldest");
                    }
                    _ => target.push_str(&format!("since={position}")),
                }
            }
            None => target.push_str(self.begin_stretches(truth, rng)),
        }
        if self.transport == Transport::Envelope {
            target.push_str("&envelope=json");
        }
        let version = if self.transport == Transport::Sse10 {
            "1.0"
        } else {
            "1.1"
        };
        self.push_fields(&mut fields);
        let text = format!("GET {target} HTTP/{version}\r\nHost: localhost\r\n{fields}\r\n");
        let (link, kind) = (self.link, self.transport);
        let first = fields.lines().next().unwrap_or_default();
        truth.note(|| format!("{link:?} {kind:?} asks {target} {first}"));
        self.out.extend_from_slice(text.as_bytes());
        self.conn.is_requesting = true;
        (self.conn.request_step, self.conn.request_s) = (truth.step, truth.now_s);
    }

    /// The path, and the query without its `since`.
    fn target(&self, truth: &Truth) -> String {
        let mut target = String::from("/sub?");
        match &self.filtered {
            Some(filtered) => {
                for filter in &filtered.filters {
                    let filter = filter.replace('+', "%2B").replace('#', "%23");
                    target.push_str(&format!("filter={filter}&"));
                }
            }
            None => {
                for track in &self.tracks {
                    target.push_str(&format!("topic={}&", truth.topics[track.topic].name));
                }
            }
        }
        target
    }

    /// For each topic, begins a *stretch* (a run of messages without a gap), at a random start. Returns the `since` of the query.
    fn begin_stretches(&mut self, truth: &Truth, rng: &mut Rng) -> &'static str {
        let is_filtered = self.filtered.is_some();
        let mut since = rng.pick(&["", "", "since=oldest", "since=live", "since=-2"]);
        if is_filtered && since == "since=-2" {
            since = "since=oldest";
        }
        if truth.allowed.retains && (since.is_empty() || is_filtered) {
            // Without a start, or by filter, the retained messages would come first, and not in the order of their offsets.
            since = "since=live";
        }
        for track in &mut self.tracks {
            track.begin_stretch(Start::FirstReceived);
            let topic = &truth.topics[track.topic];
            let starts_oldest = match topic.rule.first {
                _ if is_filtered => topic.keeps_latest(),
                StartPosition::ByTransport => topic.keeps_latest(),
                first => first == StartPosition::Oldest,
            };
            if since == "since=oldest" || since.is_empty() && starts_oldest {
                track.require_oldest();
            }
        }
        since
    }

    /// Adds the header fields that choose the transport, and those that offer compression.
    fn push_fields(&self, fields: &mut String) {
        let kind = match self.transport {
            Transport::Sse | Transport::Sse10 => {
                "Accept: text/event-stream\r\nCache-Control: no-cache\r\n"
            }
            Transport::Poll => "",
            Transport::Plain | Transport::Meta | Transport::Envelope => {
                "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n\
                 Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
            }
        };
        fields.push_str(kind);
        if self.transport == Transport::Meta {
            fields.push_str("Sec-WebSocket-Protocol: ws+meta.nchan\r\n");
        }
        if self.deflate && self.transport.is_socket() {
            fields.push_str("Sec-WebSocket-Extensions: permessage-deflate\r\n");
        }
    }

    /// Updates the state after the connection has ended.
    pub fn connection_ended(&mut self) {
        self.link = None;
        self.conn = Conn::default();
        self.out.clear();
        if self.position.is_none() {
            // Without a position the subscriber cannot resume, so the next message begins a new stretch.
            self.tracks.iter_mut().for_each(|track| track.seen = None);
        }
    }

    /// Updates the tracks after a crash that damaged some partitions and may have removed messages of the subscriber's topics.
    pub fn partitions_damaged(&mut self, truth: &Truth) {
        let has_position = self.position.is_some();
        let is_damaged =
            |track: &&mut Track| truth.topics[track.topic].damage_step == truth.crash_step;
        let damaged = self.tracks.iter_mut().filter(is_damaged);
        damaged.for_each(|track| track.partition_damaged(has_position));
    }

    /// Updates the tracks after the log was restored from an older copy. `known` has the offsets of each topic at which the server knows a
    /// position. Returns the number of topics in which the server does not know the subscriber's position.
    pub fn log_restored(
        &mut self,
        truth: &Truth,
        known: &[KnownOffsets],
        is_first_restore: bool,
    ) -> u64 {
        let has_position = self.position.is_some();
        let mut unknown_positions = 0;
        // The client knows the exact offset of its position only if it subscribes to a single topic by name, and only at the first restore. A
        // position that covers several partitions also advances with the messages of other topics.
        let knows_exact_offset =
            is_first_restore && matches!(&self.tracks[..], [track] if !track.by_filter);
        for track in &mut self.tracks {
            if truth.topics[track.topic].damage_step != truth.crash_step {
                continue;
            }
            if knows_exact_offset {
                let known = known[track.topic];
                unknown_positions += u64::from(track.log_restored(has_position, known));
            } else {
                track.partition_damaged(false);
                track.seen = None;
            }
        }
        unknown_positions
    }

    /// Reads received bytes. `end`: these are the last bytes of the connection.
    pub fn read(
        &mut self,
        bytes: &[u8],
        end: bool,
        truth: &mut Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        self.conn.bytes.extend_from_slice(bytes);
        if self.conn.head.is_none() {
            self.conn.head = http::take_head(&mut self.conn.bytes)?;
            let Some(head) = self.conn.head.clone() else {
                return Ok(());
            };
            self.read_response_head(&head, truth, coverage)?;
        }
        if self.link.is_none() || self.must_close {
            return Ok(());
        }
        match self.transport {
            Transport::Sse | Transport::Sse10 => self.read_events(truth, coverage),
            Transport::Plain | Transport::Meta | Transport::Envelope => {
                self.read_frames(truth, coverage)
            }
            Transport::Poll => self.read_poll(end, truth, coverage),
        }
    }

    fn read_response_head(
        &mut self,
        head: &Head,
        truth: &mut Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        let expected = match self.transport {
            Transport::Poll => return Ok(()),
            Transport::Plain | Transport::Meta | Transport::Envelope => 101,
            Transport::Sse | Transport::Sse10 => 200,
        };
        truth.note(|| format!("{:?} begins with {}", self.link, head.status));
        // An event stream with a length is a refusal that tells the client when to reconnect.
        let is_reconnect_hint = head.field("content-length").is_some();
        if head.status == expected && !is_reconnect_hint {
            self.conn.established_step = Some(truth.step);
            for track in &mut self.tracks {
                track.subscription_confirmed(truth.step);
            }
            if self.transport == Transport::Plain {
                // Messages carry no positions, so the next connection cannot resume.
                self.position = None;
            }
            return Ok(());
        }
        self.must_close = true;
        match head.status {
            // The topic was deleted, so the server answers without an event stream.
            204 => self.topic_deleted(coverage),
            200 | 429 | 503 => coverage.refused += 1,
            // The request arrived too slowly, so the server refused it.
            408 => {}
            status => return Err(format!("{:?} was answered {status}", self.transport)),
        }
        Ok(())
    }

    /// Handles the deletion of the topic. The position is no longer valid.
    fn topic_deleted(&mut self, coverage: &mut Coverage) {
        coverage.ended_by_delete += 1;
        self.position = None;
    }

    /// Requires that the last stretches reach the newest messages. The caller makes sure that nothing is in flight.
    pub fn require_newest(&mut self, truth: &Truth) {
        let is_poll = self.transport == Transport::Poll;
        if !self.is_established() {
            return;
        }
        for track in &mut self.tracks {
            let rule = &truth.topics[track.topic].rule;
            // A long-poll need not get the newest message of a topic without a log: what is published between two polls is lost, and the server
            // reports the gap only with the next message.
            if !is_poll || (rule.messages_max() > 0 && truth.allowed.budgets_are_wide) {
                track.require_newest();
            }
        }
    }

    /// Compares all received messages with the published ones.
    pub fn check(
        &self,
        truth: &Truth,
        unplaced: &[crate::truth::UnplacedMessage],
    ) -> Result<(), Violation> {
        for track in &self.tracks {
            track.check(truth, unplaced).map_err(|violation| {
                format!("{:?} of topic {}: {violation}", self.transport, track.topic)
            })?;
        }
        Ok(())
    }
}
