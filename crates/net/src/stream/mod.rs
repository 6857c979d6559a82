//! Connections with TLS, beside those without, on the same port: the first byte says which.
//!
//! `rustls` does the handshakes. What it leaves of a connection are two secrets and two counts (80 or 112 bytes,
//! `keys`) and 4 bytes by descriptor (`table`); from then on records are sealed and opened here (`record`, as the
//! kernel's TLS does where it is configured). A connection without TLS has nothing but a bit until its first bytes.
//!
//! Invariants:
//! * Bytes of a connection are held only while they are under way: a record that has come in part, and one whose
//!   sealed form the socket has refused in part. Both are counted and bounded.
//! * What was sealed goes out before anything else is sealed. Until it is out its last byte counts as not taken, so that
//!   whoever sends comes back for it; that byte is then not sealed again.
//! * Handshakes have a share of each turn, in time, and wait in the order in which they came. Past the number that may be under
//!   way, the oldest ends.
//!
//! Deliberately not here: how long a handshake may take (the broker's first deadline ends it).

mod cache;
mod cipher;
mod config;
mod early;
mod handshake;
mod keys;
mod out;
mod preface;
mod record;
mod stats;
mod table;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

pub use config::{Clients, Error as ConfigError, Handle, Source};
pub use stats::{Stats, Trouble, Usage};

use crate::{Driver, Fd, Received, Sent, socket};
use cipher::{HEADER_BYTES, SEALED_MAX};
use config::Current;
use early::Early;
use handshake::INCOMING_MAX;
use keys::{BUSY, HELD, OVER, Place};
use preface::{Part, Preface};
use record::{After, Alert, Crypt};
use table::{Entry, Fresh, Table};

/// The first byte of whoever wants TLS: a record of a handshake.
const HANDSHAKE: u8 = 22;

/// The bytes that a buffer for [`Streams::receive`] must have room for: what is held of a handshake, and a record that came
/// in part with the next bytes.
pub const BUFFER_MIN: usize = INCOMING_MAX;
const _: () = assert!(BUFFER_MIN >= 2 * (HEADER_BYTES + SEALED_MAX));

/// Connections within their PROXY headers for which there is always room.
const PREFACES: usize = 64;

/// What bounds a shard.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Handshakes under way.
    pub handshakes_max: usize,
    /// Bytes of records that have come in part.
    pub receive_bytes_max: usize,
    /// Sealed bytes that wait for sockets; past it records are made small, so that little more can wait.
    pub send_bytes_max: usize,
    /// Whether connections without TLS are refused.
    pub required: bool,
    /// Whether a PROXY header comes before all else, in the plain.
    pub proxied: bool,
}

/// What came: so many bytes at the beginning of the buffer, and then.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Taken {
    /// Bytes for whoever listens.
    pub plain: usize,
    /// What follows them.
    pub then: Then,
}

/// What follows the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Then {
    /// More may come.
    Open,
    /// The peer sends no more.
    End,
    /// The connection is over.
    Closed,
}

impl Taken {
    const NOTHING: Taken = Taken {
        plain: 0,
        then: Then::Open,
    };
    const CLOSED: Taken = Taken {
        plain: 0,
        then: Then::Closed,
    };

    fn of(received: Received) -> Taken {
        let (plain, then) = match received {
            Received::Bytes(plain) => (plain, Then::Open),
            Received::Again => (0, Then::Open),
            Received::End => (0, Then::End),
            Received::Failed(_) => (0, Then::Closed),
        };
        Taken { plain, then }
    }
}

/// The bytes of a connection that are under way.
#[derive(Default)]
struct Busy {
    /// A record that has come in part.
    partial: Vec<u8>,
    /// Sealed bytes, of which the first `sent` are out.
    sealed: Vec<u8>,
    sent: usize,
    /// What was last asked for: whether it is not read, and whether somebody waits to write.
    unread: bool,
    waits: bool,
}

/// All connections of a shard that have TLS.
pub struct Streams {
    current: Current,
    limits: Limits,
    table: Table,
    fresh: Fresh,
    /// Fresh connections whose PROXY header has come in part, or alone.
    prefaces: HashMap<u32, Preface>,
    early: HashMap<u32, Early>,
    /// Handshakes that can go on.
    due: VecDeque<(u32, u64)>,
    /// Handshakes in the order in which they began, and some that are over.
    begun: VecDeque<(u32, u64)>,
    under_way: usize,
    /// The most that were under way since memory was given back.
    rush: usize,
    turn_ns: u64,
    crypt: Crypt,
    busy: HashMap<u32, Busy>,
    /// What is allocated for records that came in part, for sealed ones that wait, and for handshakes.
    partial_bytes: usize,
    sealed_bytes: usize,
    early_bytes: usize,
    scratch: Vec<u8>,
    /// Connections that are over without anything having come of them.
    ended: Vec<u64>,
    stats: Stats,
    /// Why connections were ended, the first for each reason since it was last asked for.
    told: [Option<String>; Trouble::COUNT],
    troubled: bool,
}

impl Streams {
    /// For a shard whose handshakes are done by `handle`.
    pub fn new(handle: Arc<Handle>, limits: Limits) -> Streams {
        Streams {
            current: Current::new(handle),
            limits,
            table: Table::new(),
            fresh: Fresh::new(),
            prefaces: HashMap::new(),
            early: HashMap::new(),
            due: VecDeque::new(),
            begun: VecDeque::new(),
            under_way: 0,
            rush: 0,
            turn_ns: 0,
            crypt: Crypt::new(),
            busy: HashMap::new(),
            partial_bytes: 0,
            sealed_bytes: 0,
            early_bytes: 0,
            scratch: Vec::new(),
            ended: Vec::new(),
            stats: Stats::default(),
            told: [const { None }; Trouble::COUNT],
            troubled: false,
        }
    }

    /// What it has met.
    pub fn stats(&self) -> Stats {
        self.stats
    }

    /// What it holds.
    pub fn usage(&self) -> Usage {
        Usage {
            connections: self.crypt.keys.len(),
            under_way: self.under_way as u32,
            key_bytes: self.crypt.keys.bytes(),
            descriptor_bytes: self.table.bytes(),
            record_bytes: self.partial_bytes + self.sealed_bytes,
        }
    }

    /// Bytes that are held for what is under way: handshakes, records that came in part, sealed ones that wait, and the rows
    /// of those. It is a sum that is kept, so that it may be asked for in each turn. Keys and descriptors are
    /// in [`Streams::usage`].
    ///
    /// For each connection it is bounded: within its handshake by `HELD_BYTES`, what its peer may say before an answer (a record,
    /// or 64 KiB where clients show certificates; `Handshake::room`) and our flight; then by one record that came in part
    /// (`record::length_of` refuses longer ones) and the rest of one that was sealed, or of our flight (nothing is sealed before it is out).
    pub fn held_bytes(&self) -> usize {
        self.partial_bytes
            + self.sealed_bytes
            + self.early_bytes
            + self.busy.capacity() * size_of::<(u32, Busy)>()
            + self.early.capacity() * size_of::<(u32, Early)>()
            + self.prefaces.capacity() * size_of::<(u32, Preface)>()
            + (self.due.capacity() + self.begun.capacity()) * size_of::<(u32, u64)>()
    }

    /// Why connections were ended: each reason at most once, with the words for the first since it was last asked.
    pub fn take_troubles(&mut self) -> impl Iterator<Item = (Trouble, String)> {
        let told = match std::mem::take(&mut self.troubled) {
            true => std::mem::replace(&mut self.told, [const { None }; Trouble::COUNT]),
            false => [const { None }; Trouble::COUNT],
        };
        let all = Trouble::ALL.into_iter().zip(told);
        all.filter_map(|(trouble, what)| Some((trouble, what?)))
    }

    /// A connection that is over without anything having come of it.
    pub fn take_ended(&mut self) -> Option<u64> {
        self.ended.pop()
    }

    /// A connection was taken in; its first bytes will say what it is.
    pub fn opened(&mut self, fd: Fd) {
        self.fresh.set(fd.0);
    }

    /// Receives what is there; what came of it lies at the beginning of `buffer`.
    ///
    /// # Panics
    /// When `buffer` has less than [`BUFFER_MIN`] bytes.
    pub fn receive(&mut self, fd: Fd, token: u64, buffer: &mut [u8]) -> Taken {
        assert!(buffer.len() >= BUFFER_MIN, "a record must fit twice");
        match self.table.get(fd.0) {
            Entry::Plain => {
                let received = socket::recv(fd, buffer);
                if self.fresh.take(fd.0) {
                    self.first(fd, token, received, buffer)
                } else {
                    Taken::of(received)
                }
            }
            Entry::Early => self.receive_early(fd, token, buffer),
            Entry::Sealed(place) => self.receive_sealed(fd, place, buffer),
        }
    }

    /// The first bytes.
    fn first(&mut self, fd: Fd, token: u64, received: Received, buffer: &[u8]) -> Taken {
        match received {
            Received::Bytes(len) if self.limits.proxied => self.preface(fd, token, &buffer[..len]),
            Received::Bytes(len) => self.sniff(fd, token, &buffer[..len], 0),
            Received::Again => {
                self.fresh.set(fd.0);
                Taken::NOTHING
            }
            _ => Taken::of(received),
        }
    }

    /// A PROXY header, which is handed on, and then the first bytes.
    fn preface(&mut self, fd: Fd, token: u64, bytes: &[u8]) -> Taken {
        let mut preface = self.take_preface(fd);
        match preface.take(bytes) {
            Part::End(count) if count < bytes.len() => self.sniff(fd, token, bytes, count),
            // Whoever reads it refuses it.
            Part::Other => Taken::of(Received::Bytes(bytes.len())),
            Part::Header | Part::End(_) => {
                self.prefaces.insert(fd.0, preface);
                self.fresh.set(fd.0);
                Taken::of(Received::Bytes(bytes.len()))
            }
        }
    }

    fn take_preface(&mut self, fd: Fd) -> Preface {
        let preface = self.prefaces.remove(&fd.0).unwrap_or_default();
        if self.prefaces.is_empty() {
            // A table that was large once gives its memory back.
            self.prefaces.shrink_to(PREFACES);
        }
        preface
    }

    /// The first of these bytes that is not handed on anyway says what the connection is.
    fn sniff(&mut self, fd: Fd, token: u64, bytes: &[u8], before: usize) -> Taken {
        let begin = &bytes[before..];
        if begin[0] == HANDSHAKE {
            self.begin(fd, token, begin);
            return Taken {
                plain: before,
                ..Taken::NOTHING
            };
        }
        if !self.limits.required {
            return Taken::of(Received::Bytes(bytes.len()));
        }
        self.met(Trouble::Plain, "it does not begin with TLS");
        if begin[0].is_ascii_uppercase() {
            let _ = socket::send(fd, PLAIN_REFUSED);
        }
        Taken::CLOSED
    }

    fn receive_sealed(&mut self, fd: Fd, place: Place, buffer: &mut [u8]) -> Taken {
        let half = self.crypt.keys.from(place);
        if half.is(OVER) {
            // Who has said its last word is not heard; only its end is of interest.
            return Taken {
                plain: 0,
                ..Taken::of(socket::recv(fd, buffer))
            };
        }
        let kept = if half.is(BUSY) {
            self.busy[&fd.0].partial.len()
        } else {
            0
        };
        match socket::recv(fd, &mut buffer[kept..]) {
            Received::Bytes(len) if kept > 0 => {
                let bytes = &mut buffer[..kept + len];
                if let Some(fits) = self.grow_partial(fd, &bytes[kept..]) {
                    return if fits { Taken::NOTHING } else { self.no_room() };
                }
                bytes[..kept].copy_from_slice(&self.busy[&fd.0].partial);
                self.open(fd, place, bytes)
            }
            Received::Bytes(len) => self.open(fd, place, &mut buffer[..len]),
            other => Taken::of(other),
        }
    }

    /// Opens what came, with what was kept before it.
    fn open(&mut self, fd: Fd, place: Place, bytes: &mut [u8]) -> Taken {
        let opened = self.crypt.open(place, bytes);
        let rest = match opened.after {
            After::Open => &bytes[opened.rest..],
            _ => &[],
        };
        let fits = self.keep_partial(fd, place, rest);
        let then = match opened.after {
            After::Open if fits => Then::Open,
            After::Open => self.no_room().then,
            After::End => Then::End,
            After::Aborted => Then::Closed,
            After::Wrong(alert) => {
                let trouble = match alert {
                    Alert::NoRenegotiation => Trouble::Renegotiation,
                    _ => Trouble::Record,
                };
                self.met(trouble, &format!("the peer is told {alert:?}"));
                self.alert(fd, place, alert);
                Then::Closed
            }
        };
        Taken {
            plain: opened.plain,
            then,
        }
    }

    fn no_room(&mut self) -> Taken {
        self.met(Trouble::Room, "there is no room for more partial records");
        Taken::CLOSED
    }

    /// Keeps these bytes behind those of a record that came in part, if it is not whole with them; whether there is room. What came
    /// before is not copied for each piece: a record may come in sixteen thousand.
    fn grow_partial(&mut self, fd: Fd, bytes: &[u8]) -> Option<bool> {
        let busy = self.busy.get_mut(&fd.0).expect("what is busy has an entry");
        let partial = &mut busy.partial;
        let before = partial.capacity();
        let whole = record::length(partial)?;
        let needed = partial.len() + bytes.len();
        if needed >= whole {
            return None;
        }
        if needed > before {
            partial.reserve_exact((2 * before).clamp(needed, whole) - partial.len());
        }
        partial.extend_from_slice(bytes);
        self.partial_bytes += partial.capacity() - before;
        Some(self.partial_bytes <= self.limits.receive_bytes_max)
    }

    /// Keeps a record that came in part, in place of the one before; false when there is no room.
    fn keep_partial(&mut self, fd: Fd, place: Place, rest: &[u8]) -> bool {
        let mut half = self.crypt.keys.from(place);
        if half.is(BUSY) {
            let busy = self.busy.get_mut(&fd.0).expect("what is busy has an entry");
            self.partial_bytes -= busy.partial.capacity();
            busy.partial = Vec::new();
        }
        if rest.is_empty() {
            if half.is(BUSY) {
                half.clear(BUSY);
                self.forget_idle(fd);
            }
            return true;
        }
        half.set(BUSY);
        let partial = rest.to_vec();
        self.partial_bytes += partial.capacity();
        self.busy.entry(fd.0).or_default().partial = partial;
        self.partial_bytes <= self.limits.receive_bytes_max
    }

    /// Forgets the entry of a connection of which nothing is under way any more.
    fn forget_idle(&mut self, fd: Fd) {
        let busy = &self.busy[&fd.0];
        if busy.partial.is_empty() && busy.sealed.is_empty() {
            self.busy.remove(&fd.0);
        }
        if self.busy.is_empty() {
            // A table that was large once gives its memory back.
            self.busy = HashMap::new();
        }
    }

    /// Ends the sending half, after a `close_notify`.
    pub fn shutdown(&mut self, fd: Fd) {
        match self.table.get(fd.0) {
            Entry::Sealed(place) => self.alert(fd, place, Alert::CloseNotify),
            Entry::Early => self.abandon(fd),
            Entry::Plain => {}
        }
        socket::shutdown_write(fd);
    }

    /// Forgets a connection that the caller closes now; `orderly`: the peer is told first, as far as it listens.
    pub fn closing(&mut self, fd: Fd, orderly: bool) {
        if self.fresh.take(fd.0) && self.limits.proxied {
            self.take_preface(fd);
        }
        match self.table.get(fd.0) {
            Entry::Plain => return,
            Entry::Early => {
                self.abandon(fd);
                self.forget_early(fd);
            }
            Entry::Sealed(place) => {
                if orderly {
                    self.alert(fd, place, Alert::CloseNotify);
                }
                if let Some(busy) = self.busy.remove(&fd.0) {
                    self.partial_bytes -= busy.partial.capacity();
                    self.sealed_bytes -= busy.sealed.capacity();
                }
                self.crypt.remove(place);
            }
        }
        self.table.set(fd.0, Entry::Plain);
    }

    /// Tells the peer, if it was not told before and nothing else is under way to it.
    fn alert(&mut self, fd: Fd, place: Place, alert: Alert) {
        let half = self.crypt.keys.to(place);
        if half.is(OVER) || half.is(BUSY) {
            return;
        }
        self.scratch.clear();
        self.crypt.seal_alert(place, alert, &mut self.scratch);
        // A socket that takes not even this has a peer that does not read; the end of the stream follows.
        let _ = socket::send(fd, &self.scratch);
    }

    /// Counts a connection that is ended, and keeps the words if they are the first.
    fn met(&mut self, trouble: Trouble, what: &str) {
        self.stats.troubles[trouble as usize] += 1;
        self.told[trouble as usize].get_or_insert_with(|| what.to_string());
        self.troubled = true;
    }

    /// What the poller is to be asked for, when the broker asks for this: sealed bytes that wait are ours.
    pub fn interest(&mut self, fd: Fd, read: bool, write: bool) -> (bool, bool) {
        let Entry::Sealed(place) = self.table.get(fd.0) else {
            return (read, write);
        };
        if !self.crypt.keys.to(place).is(BUSY) {
            return (read, write);
        }
        let busy = self.busy.get_mut(&fd.0).expect("what is busy has an entry");
        (busy.unread, busy.waits) = (!read, write);
        (read, true)
    }

    /// The socket takes bytes again: sends what waits. False while that is not out, and when nobody else waits for it.
    pub fn writable(&mut self, fd: Fd, token: u64, driver: &mut Driver) -> bool {
        match self.table.get(fd.0) {
            Entry::Plain => true,
            Entry::Early => {
                self.flush_early(fd, token, driver);
                false
            }
            Entry::Sealed(place) => {
                let half = self.crypt.keys.to(place);
                if !half.is(BUSY) {
                    return true;
                }
                let busy = &self.busy[&fd.0];
                let (waits, read) = (half.is(HELD) || busy.waits, !busy.unread);
                if !self.flush(fd, place) {
                    return false;
                }
                // Who is not read must not be reported as half closed: its last bytes wait to be read.
                let quiet = match (waits, read) {
                    (true, _) => Ok(()),
                    (false, true) => driver.modify(fd, token, true, false),
                    (false, false) => driver.modify_half_closed(fd, token, false, false),
                };
                if quiet.is_err() {
                    self.ended.push(token);
                }
                waits
            }
        }
    }
}

/// What a client of plain HTTP is told on a port that is for TLS alone.
const PLAIN_REFUSED: &[u8] = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: 51\r\n\r\nthis port speaks TLS only: use https:// or wss://.\n";
