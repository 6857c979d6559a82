//! The TLS state of a shard: its connections, their memory, and the reasons why connections were ended.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::sync::Arc;

use super::config::{Handle, ShardSettings};
use super::handshake::Handshake;
use super::proxy_header::ProxyHeader;
use super::ready::{QueuedLink, ReadyHandshakes};
use super::record::RecordCrypto;
use super::stats::{Stats, TlsFailure, Usage};
use super::table::{Entry, SilentLinks, Table};
use crate::transport::{Link, Received};

/// The TLS limits and options of a shard.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The maximum number of unfinished handshakes.
    pub handshakes_max: usize,
    /// The maximum size of all partial received records, in bytes.
    pub receive_bytes_max: usize,
    /// While more sealed bytes than this wait for sockets, records are small, so that only a few more bytes can wait.
    pub send_bytes_max: usize,
    /// Whether connections without TLS are refused.
    pub required: bool,
    /// Whether each connection begins with an unencrypted PROXY header.
    pub proxied: bool,
}

/// The result of [`TlsStreams::receive`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PlainReceived {
    /// Plain bytes for the caller, at the beginning of the buffer.
    pub plain_bytes: usize,
    /// The state of the connection after those bytes.
    pub state: StreamState,
}

/// The state of a connection after the received bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum StreamState {
    /// The peer may send more.
    Open,
    /// The peer has ended its stream.
    End,
    /// The connection is over.
    Closed,
}

impl PlainReceived {
    pub(super) const NOTHING: PlainReceived = PlainReceived {
        plain_bytes: 0,
        state: StreamState::Open,
    };
    pub(super) const CLOSED: PlainReceived = PlainReceived {
        plain_bytes: 0,
        state: StreamState::Closed,
    };

    pub(super) fn from_transport(received: Received) -> PlainReceived {
        let (plain_bytes, state) = match received {
            Received::Bytes(count) => (count, StreamState::Open),
            Received::Again => (0, StreamState::Open),
            Received::End => (0, StreamState::End),
            Received::Failed(_) => (0, StreamState::Closed),
        };
        PlainReceived { plain_bytes, state }
    }
}

/// The partial records of a connection that has some.
#[derive(Default)]
pub struct PartialRecords {
    /// A partial received record.
    pub partial: Vec<u8>,
    /// Sealed bytes, of which the first `sent_bytes` are sent.
    pub sealed: Vec<u8>,
    pub sent_bytes: usize,
    /// The interest that the broker wanted last: `reading_paused` means not to read, `wants_write` means to write.
    pub reading_paused: bool,
    pub wants_write: bool,
}

/// A connection whose handshake is not finished.
pub struct UnfinishedHandshake {
    pub token: u64,
    /// The address of its peer.
    pub peer: IpAddr,
    /// `None` if the handshake has failed or was ended. Then received bytes are ignored.
    pub handshake: Option<Box<Handshake>>,
    /// The part of `held_bytes` that belongs to this connection.
    pub held_bytes: usize,
    /// Whether the next step of the handshake is queued.
    pub is_queued: bool,
    /// Whether reading is paused until that step is done.
    pub is_paused: bool,
}

impl UnfinishedHandshake {
    /// Whether this belongs to the connection with this token, and its handshake is not finished.
    pub fn is_unfinished(&self, token: u64) -> bool {
        self.token == token && self.handshake.is_some()
    }
}

/// The connections whose handshakes are not finished.
#[derive(Default)]
pub(super) struct Handshakes {
    /// The connections, by link.
    pub by_link: HashMap<u32, UnfinishedHandshake>,
    /// Handshakes that can continue.
    pub ready: ReadyHandshakes,
    /// The connections in the order in which their handshakes began. Some handshakes may be finished.
    pub start_order: VecDeque<QueuedLink>,
    /// Number of unfinished handshakes.
    pub unfinished_count: usize,
    /// The largest `unfinished_count` since freed memory was returned to the kernel.
    pub unfinished_count_max: usize,
    /// The time spent on handshakes in this round of the shard's loop.
    pub turn_ns: u64,
    /// Bytes allocated for handshakes.
    pub held_bytes: usize,
}

/// The partial records of established connections.
#[derive(Default)]
pub(super) struct Records {
    /// The connections that have such records, by link.
    pub by_link: HashMap<u32, PartialRecords>,
    /// Bytes allocated for partial received records, and for sealed bytes that wait.
    pub partial_bytes: usize,
    pub sealed_bytes: usize,
}

/// The partial records of a connection that has some.
pub(super) fn records_of(
    all: &mut HashMap<u32, PartialRecords>,
    link: Link,
) -> &mut PartialRecords {
    all.get_mut(&link.0)
        .expect("a connection with partial records has an entry")
}

/// Why connections were ended.
#[derive(Default)]
pub(super) struct FailureRecords {
    pub stats: Stats,
    /// The first message for each reason since the last [`take_failures`](TlsStreams::take_failures).
    messages: [Option<String>; TlsFailure::COUNT],
    has_messages: bool,
}

/// The TLS state of all connections of a shard.
pub struct TlsStreams {
    pub(super) settings: ShardSettings,
    pub(super) limits: Limits,
    pub(super) table: Table,
    pub(super) silent_links: SilentLinks,
    /// New connections that have sent only a part of their PROXY header, or the whole header and nothing after it.
    pub(super) proxy_headers: HashMap<u32, ProxyHeader>,
    pub(super) handshakes: Handshakes,
    pub(super) crypto: RecordCrypto,
    pub(super) records: Records,
    pub(super) scratch: Vec<u8>,
    /// Tokens of connections that ended while no call for them was running.
    pub(super) ended_tokens: Vec<u64>,
    pub(super) failures: FailureRecords,
}

impl TlsStreams {
    /// The state of a shard whose handshakes use the settings of `handle`.
    pub fn new(handle: Arc<Handle>, limits: Limits) -> TlsStreams {
        TlsStreams {
            settings: ShardSettings::new(handle),
            limits,
            table: Table::new(),
            silent_links: SilentLinks::new(),
            proxy_headers: HashMap::new(),
            handshakes: Handshakes::default(),
            crypto: RecordCrypto::new(),
            records: Records::default(),
            scratch: Vec::new(),
            ended_tokens: Vec::new(),
            failures: FailureRecords::default(),
        }
    }

    /// Whether this connection has TLS and its handshake is finished.
    pub fn is_sealed(&self, link: Link) -> bool {
        matches!(self.table.get(link.0), Entry::Sealed(_))
    }

    /// Counts since the shard started.
    pub fn stats(&self) -> Stats {
        self.failures.stats
    }

    /// The current sizes.
    pub fn usage(&self) -> Usage {
        Usage {
            connections: self.crypto.keys.len(),
            unfinished_handshakes: self.handshakes.unfinished_count as u32,
            key_bytes: self.crypto.keys.bytes(),
            descriptor_bytes: self.table.bytes(),
            record_bytes: self.records.partial_bytes + self.records.sealed_bytes,
        }
    }

    /// Bytes held for handshakes, partial records, sealed bytes that wait, and the tables of these. Cheap enough to be called often.
    /// [`TlsStreams::usage`] has the keys and the table by link.
    ///
    /// The bytes of one connection are limited:
    /// * During the handshake to `HELD_BYTES`, the bytes that its peer may send before an answer (a record, or 64 KiB if clients send
    ///   certificates; `Handshake::room`), and our outgoing bytes.
    /// * Afterwards to one partial record (`record::checked_record_length` refuses longer ones), and the rest of one sealed record or of the
    ///   handshake's outgoing bytes, because nothing is sealed before that rest is sent.
    pub fn held_bytes(&self) -> usize {
        self.records.partial_bytes
            + self.records.sealed_bytes
            + self.handshakes.held_bytes
            + self.records.by_link.capacity() * size_of::<(u32, PartialRecords)>()
            + self.handshakes.by_link.capacity() * size_of::<(u32, UnfinishedHandshake)>()
            + self.proxy_headers.capacity() * size_of::<(u32, ProxyHeader)>()
            + self.handshakes.start_order.capacity() * size_of::<QueuedLink>()
            + self.handshakes.ready.bytes()
    }

    /// The reasons why connections were ended since the last call, each with its first message.
    pub fn take_failures(&mut self) -> impl Iterator<Item = (TlsFailure, String)> {
        let messages = match std::mem::take(&mut self.failures.has_messages) {
            true => std::mem::replace(
                &mut self.failures.messages,
                [const { None }; TlsFailure::COUNT],
            ),
            false => [const { None }; TlsFailure::COUNT],
        };
        let by_failure = TlsFailure::ALL.iter().copied().zip(messages);
        by_failure.filter_map(|(failure, message)| Some((failure, message?)))
    }

    /// The token of a connection that ended while no call for it was running, if there is one.
    pub fn take_ended(&mut self) -> Option<u64> {
        self.ended_tokens.pop()
    }

    /// Counts an ended connection. Keeps the message if it is the first one with this reason.
    pub(super) fn count_failure(&mut self, failure: TlsFailure, message: &str) {
        self.failures.stats.failures[failure as usize] += 1;
        self.failures.messages[failure as usize].get_or_insert_with(|| message.to_string());
        self.failures.has_messages = true;
    }

    /// Removes the entry of a connection if it has no partial records any more.
    pub(super) fn remove_if_complete(&mut self, link: Link) {
        let records = &self.records.by_link[&link.0];
        if records.partial.is_empty() && records.sealed.is_empty() {
            self.records.by_link.remove(&link.0);
        }
        if self.records.by_link.is_empty() {
            // Frees the memory of a table that has been large.
            self.records.by_link = HashMap::new();
        }
    }
}
