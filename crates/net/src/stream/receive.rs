//! Receives the bytes of connections: recognises TLS by the first byte of a connection, and opens records.

use super::cipher::{HEADER_BYTES, SEALED_MAX};
use super::handshake::INCOMING_MAX;
use super::keys::{DIRECTION_CLOSED, HAS_PARTIAL, KeyPlace};
use super::messages::spell_out;
use super::proxy_header::{HeaderPart, ProxyHeader};
use super::record::{self, AfterOpen, Alert};
use super::state::{PlainReceived, StreamState, TlsStreams, partial_records};
use super::stats::TlsFailure;
use super::table::Entry;
use crate::transport::{Link, Received, Transport};

/// The first byte that a TLS client sends: the type of a handshake record.
const HANDSHAKE: u8 = 22;

/// The minimum size of the buffer for [`TlsStreams::receive`]: enough for the bytes that a handshake holds, and for a partial record with the
/// bytes that follow.
pub const BUFFER_MIN: usize = INCOMING_MAX;
const _: () = assert!(BUFFER_MIN >= 2 * (HEADER_BYTES + SEALED_MAX));

/// The table of incomplete PROXY headers keeps memory for this many entries.
const PREFACES: usize = 64;

/// The answer to a plain HTTP client on a port that is only for TLS.
const PLAIN_REFUSED: &[u8] = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: 51\r\n\r\nthis port speaks TLS only: use https:// or wss://.\n";

impl TlsStreams {
    /// Must be called for each accepted connection. The first bytes will show whether it uses TLS.
    pub fn opened(&mut self, link: Link) {
        self.fresh.set(link.0);
    }

    /// Receives available bytes, and puts the plain bytes at the beginning of `buffer`.
    ///
    /// # Panics
    /// If `buffer` has less than [`BUFFER_MIN`] bytes.
    pub fn receive<T: Transport>(
        &mut self,
        transport: &mut T,
        link: Link,
        token: u64,
        buffer: &mut [u8],
    ) -> PlainReceived {
        assert!(buffer.len() >= BUFFER_MIN, "a record must fit twice");
        match self.table.get(link.0) {
            Entry::Plain => {
                let received = transport.receive(link, buffer);
                if self.fresh.take(link.0) {
                    self.first(transport, link, token, received, buffer)
                } else {
                    PlainReceived::of(received)
                }
            }
            Entry::UnfinishedHandshake => self.receive_early(transport, link, token, buffer),
            Entry::Sealed(place) => self.receive_sealed(transport, link, place, buffer),
        }
    }

    /// Handles the first receive of a connection.
    fn first<T: Transport>(
        &mut self,
        transport: &mut T,
        link: Link,
        token: u64,
        received: Received,
        buffer: &[u8],
    ) -> PlainReceived {
        match received {
            Received::Bytes(len) if self.limits.proxied => {
                self.preface(transport, link, token, &buffer[..len])
            }
            Received::Bytes(len) => self.sniff(transport, link, token, &buffer[..len], 0),
            Received::Again => {
                self.fresh.set(link.0);
                PlainReceived::NOTHING
            }
            _ => PlainReceived::of(received),
        }
    }

    /// Passes a PROXY header to the caller, and handles the first bytes after it.
    fn preface<T: Transport>(
        &mut self,
        transport: &mut T,
        link: Link,
        token: u64,
        bytes: &[u8],
    ) -> PlainReceived {
        let mut preface = self.take_preface(link);
        match preface.take(bytes) {
            HeaderPart::End(count) if count < bytes.len() => {
                self.sniff(transport, link, token, bytes, count)
            }
            // The bytes are no header: the caller gets them and refuses the connection.
            HeaderPart::Other => PlainReceived::of(Received::Bytes(bytes.len())),
            HeaderPart::Header | HeaderPart::End(_) => {
                self.prefaces.insert(link.0, preface);
                self.fresh.set(link.0);
                PlainReceived::of(Received::Bytes(bytes.len()))
            }
        }
    }

    pub(super) fn take_preface(&mut self, link: Link) -> ProxyHeader {
        let preface = self.prefaces.remove(&link.0).unwrap_or_default();
        if self.prefaces.is_empty() {
            // Releases the memory of a table that was large.
            self.prefaces.shrink_to(PREFACES);
        }
        preface
    }

    /// Recognises TLS by the first byte after a header of `before` bytes.
    fn sniff<T: Transport>(
        &mut self,
        transport: &mut T,
        link: Link,
        token: u64,
        bytes: &[u8],
        before: usize,
    ) -> PlainReceived {
        let begin = &bytes[before..];
        if begin[0] == HANDSHAKE {
            self.begin(transport, link, token, begin);
            return PlainReceived {
                plain: before,
                ..PlainReceived::NOTHING
            };
        }
        if !self.limits.required {
            return PlainReceived::of(Received::Bytes(bytes.len()));
        }
        self.count_trouble(TlsFailure::Plain, "it does not begin with TLS");
        if begin[0].is_ascii_uppercase() {
            let _ = transport.send(link, &[PLAIN_REFUSED]);
        }
        PlainReceived::CLOSED
    }

    fn receive_sealed<T: Transport>(
        &mut self,
        transport: &mut T,
        link: Link,
        place: KeyPlace,
        buffer: &mut [u8],
    ) -> PlainReceived {
        let direction = self.crypt.keys.from(place);
        if direction.has(DIRECTION_CLOSED) {
            // Bytes after the peer's last record are ignored; only the end of the stream matters.
            return PlainReceived {
                plain: 0,
                ..PlainReceived::of(transport.receive(link, buffer))
            };
        }
        let kept = if direction.has(HAS_PARTIAL) {
            self.records.by_link[&link.0].partial.len()
        } else {
            0
        };
        match transport.receive(link, &mut buffer[kept..]) {
            Received::Bytes(len) if kept > 0 => {
                let bytes = &mut buffer[..kept + len];
                if let Some(fits) = self.grow_partial(link, &bytes[kept..]) {
                    return if fits {
                        PlainReceived::NOTHING
                    } else {
                        self.no_room()
                    };
                }
                bytes[..kept].copy_from_slice(&self.records.by_link[&link.0].partial);
                self.open(transport, link, place, bytes)
            }
            Received::Bytes(len) => self.open(transport, link, place, &mut buffer[..len]),
            other => PlainReceived::of(other),
        }
    }

    /// Opens the records in `bytes`, and keeps the partial record at their end. `bytes` begins with the partial record that was kept
    /// before.
    pub(super) fn open<T: Transport>(
        &mut self,
        transport: &mut T,
        link: Link,
        place: KeyPlace,
        bytes: &mut [u8],
    ) -> PlainReceived {
        let opened = self.crypt.open(place, bytes);
        let rest = match opened.after {
            AfterOpen::Open => &bytes[opened.rest..],
            _ => &[],
        };
        let fits = self.keep_partial(link, place, rest);
        let state = match opened.after {
            AfterOpen::Open if fits => StreamState::Open,
            AfterOpen::Open => self.no_room().state,
            AfterOpen::End => StreamState::End,
            AfterOpen::Aborted => StreamState::Closed,
            AfterOpen::Violation(alert) => {
                let trouble = match alert {
                    Alert::NoRenegotiation => TlsFailure::Renegotiation,
                    _ => TlsFailure::Record,
                };
                self.count_trouble(
                    trouble,
                    &format!("the peer is told of a fault: {}", spell_out(&alert)),
                );
                self.alert(transport, link, place, alert);
                StreamState::Closed
            }
        };
        PlainReceived {
            plain: opened.plain,
            state,
        }
    }

    fn no_room(&mut self) -> PlainReceived {
        self.count_trouble(
            TlsFailure::Room,
            "there is no room for more partial records",
        );
        PlainReceived::CLOSED
    }

    /// Appends these bytes to the kept partial record. Returns whether there was room, or `None` without appending if the bytes may
    /// complete the record. A record may arrive in sixteen thousand pieces, so the kept bytes must not be copied for each piece.
    fn grow_partial(&mut self, link: Link, bytes: &[u8]) -> Option<bool> {
        let records = partial_records(&mut self.records.by_link, link);
        let partial = &mut records.partial;
        let before = partial.capacity();
        let record_len = record::length(partial)?;
        let needed = partial.len() + bytes.len();
        if needed >= record_len {
            return None;
        }
        if needed > before {
            partial.reserve_exact((2 * before).clamp(needed, record_len) - partial.len());
        }
        partial.extend_from_slice(bytes);
        self.records.partial_bytes += partial.capacity() - before;
        Some(self.records.partial_bytes <= self.limits.receive_bytes_max)
    }

    /// Keeps a partial record instead of the previous one; returns false if there is no room.
    fn keep_partial(&mut self, link: Link, place: KeyPlace, rest: &[u8]) -> bool {
        let mut direction = self.crypt.keys.from(place);
        if direction.has(HAS_PARTIAL) {
            let records = partial_records(&mut self.records.by_link, link);
            self.records.partial_bytes -= records.partial.capacity();
            records.partial = Vec::new();
        }
        if rest.is_empty() {
            if direction.has(HAS_PARTIAL) {
                direction.clear(HAS_PARTIAL);
                self.forget_idle(link);
            }
            return true;
        }
        direction.set(HAS_PARTIAL);
        let partial = rest.to_vec();
        self.records.partial_bytes += partial.capacity();
        self.records.by_link.entry(link.0).or_default().partial = partial;
        self.records.partial_bytes <= self.limits.receive_bytes_max
    }
}
