//! Receives the bytes of connections: recognises TLS by the first byte of a connection, and opens records.

use super::cipher::{HEADER_BYTES, SEALED_MAX};
use super::handshake::INCOMING_MAX;
use super::keys::{DIRECTION_CLOSED, HAS_PARTIAL, KeyPlace};
use super::messages::spell_out;
use super::proxy_header::{HeaderPart, ProxyHeader};
use super::record::{self, AfterOpen, Alert};
use super::state::{PlainReceived, StreamState, TlsStreams, records_of};
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
const KEPT_PROXY_HEADERS: usize = 64;

/// The answer to a plain HTTP client on a port that is only for TLS.
const PLAIN_REFUSED: &[u8] = b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Type: text/plain\r\nContent-Length: 51\r\n\r\nthis port speaks TLS only: use https:// or wss://.\n";

impl TlsStreams {
    /// Adds an accepted connection. Its first bytes will show whether it uses TLS.
    pub fn add_connection(&mut self, link: Link) {
        self.silent_links.set(link.0);
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
                if self.silent_links.take(link.0) {
                    self.receive_first(transport, link, token, received, buffer)
                } else {
                    PlainReceived::from_transport(received)
                }
            }
            Entry::UnfinishedHandshake => self.receive_handshake(transport, link, token, buffer),
            Entry::Sealed(place) => self.receive_sealed(transport, link, place, buffer),
        }
    }

    /// Handles the first receive of a connection.
    fn receive_first<T: Transport>(
        &mut self,
        transport: &mut T,
        link: Link,
        token: u64,
        received: Received,
        buffer: &[u8],
    ) -> PlainReceived {
        match received {
            Received::Bytes(len) if self.limits.proxied => {
                self.receive_proxy_header(transport, link, token, &buffer[..len])
            }
            Received::Bytes(len) => self.sniff(transport, link, token, &buffer[..len], 0),
            Received::Again => {
                self.silent_links.set(link.0);
                PlainReceived::NOTHING
            }
            _ => PlainReceived::from_transport(received),
        }
    }

    /// Passes a PROXY header to the caller, and handles the first bytes after it.
    fn receive_proxy_header<T: Transport>(
        &mut self,
        transport: &mut T,
        link: Link,
        token: u64,
        bytes: &[u8],
    ) -> PlainReceived {
        let mut proxy_header = self.take_proxy_header(link);
        match proxy_header.read(bytes) {
            HeaderPart::End(count) if count < bytes.len() => {
                self.sniff(transport, link, token, bytes, count)
            }
            // The bytes are no header: the caller gets them and refuses the connection.
            HeaderPart::NoHeader => PlainReceived::from_transport(Received::Bytes(bytes.len())),
            HeaderPart::Header | HeaderPart::End(_) => {
                self.proxy_headers.insert(link.0, proxy_header);
                self.silent_links.set(link.0);
                PlainReceived::from_transport(Received::Bytes(bytes.len()))
            }
        }
    }

    pub(super) fn take_proxy_header(&mut self, link: Link) -> ProxyHeader {
        let proxy_header = self.proxy_headers.remove(&link.0).unwrap_or_default();
        if self.proxy_headers.is_empty() {
            // Releases the memory of a table that was large.
            self.proxy_headers.shrink_to(KEPT_PROXY_HEADERS);
        }
        proxy_header
    }

    /// Recognises TLS by the first byte after a header of `header_bytes` bytes.
    fn sniff<T: Transport>(
        &mut self,
        transport: &mut T,
        link: Link,
        token: u64,
        bytes: &[u8],
        header_bytes: usize,
    ) -> PlainReceived {
        let first_bytes = &bytes[header_bytes..];
        if first_bytes[0] == HANDSHAKE {
            self.begin_handshake(transport, link, token, first_bytes);
            return PlainReceived {
                plain_bytes: header_bytes,
                ..PlainReceived::NOTHING
            };
        }
        if !self.limits.required {
            return PlainReceived::from_transport(Received::Bytes(bytes.len()));
        }
        self.count_failure(TlsFailure::Plain, "it does not begin with TLS");
        if first_bytes[0].is_ascii_uppercase() {
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
        let direction = self.crypto.keys.receiving(place);
        if direction.has(DIRECTION_CLOSED) {
            // Bytes after the peer's last record are ignored; only the end of the stream matters.
            return PlainReceived {
                plain_bytes: 0,
                ..PlainReceived::from_transport(transport.receive(link, buffer))
            };
        }
        let partial_bytes = if direction.has(HAS_PARTIAL) {
            self.records.by_link[&link.0].partial.len()
        } else {
            0
        };
        match transport.receive(link, &mut buffer[partial_bytes..]) {
            Received::Bytes(len) if partial_bytes > 0 => {
                let bytes = &mut buffer[..partial_bytes + len];
                if let Some(has_room) = self.grow_partial(link, &bytes[partial_bytes..]) {
                    return if has_room {
                        PlainReceived::NOTHING
                    } else {
                        self.refuse_for_room()
                    };
                }
                bytes[..partial_bytes].copy_from_slice(&self.records.by_link[&link.0].partial);
                self.open_records(transport, link, place, bytes)
            }
            Received::Bytes(len) => self.open_records(transport, link, place, &mut buffer[..len]),
            other => PlainReceived::from_transport(other),
        }
    }

    /// Opens the records in `bytes`, and keeps the partial record at their end. `bytes` begins with the partial record that was kept
    /// before.
    pub(super) fn open_records<T: Transport>(
        &mut self,
        transport: &mut T,
        link: Link,
        place: KeyPlace,
        bytes: &mut [u8],
    ) -> PlainReceived {
        let opened = self.crypto.open(place, bytes);
        let rest = match opened.after {
            AfterOpen::Open => &bytes[opened.rest_offset..],
            _ => &[],
        };
        let has_room = self.keep_partial(link, place, rest);
        let state = match opened.after {
            AfterOpen::Open if has_room => StreamState::Open,
            AfterOpen::Open => self.refuse_for_room().state,
            AfterOpen::End => StreamState::End,
            AfterOpen::Aborted => StreamState::Closed,
            AfterOpen::Violation(alert) => {
                let failure = match alert {
                    Alert::NoRenegotiation => TlsFailure::Renegotiation,
                    _ => TlsFailure::Record,
                };
                self.count_failure(
                    failure,
                    &format!("the peer is told of a fault: {}", spell_out(&alert)),
                );
                self.send_alert(transport, link, place, alert);
                StreamState::Closed
            }
        };
        PlainReceived {
            plain_bytes: opened.plain_bytes,
            state,
        }
    }

    fn refuse_for_room(&mut self) -> PlainReceived {
        self.count_failure(
            TlsFailure::Room,
            "there is no room for more partial records",
        );
        PlainReceived::CLOSED
    }

    /// Appends these bytes to the kept partial record. Returns whether there was room, or `None` without appending if the bytes may
    /// complete the record. A record may arrive in sixteen thousand pieces, so the kept bytes must not be copied for each piece.
    fn grow_partial(&mut self, link: Link, bytes: &[u8]) -> Option<bool> {
        let records = records_of(&mut self.records.by_link, link);
        let partial = &mut records.partial;
        let old_capacity = partial.capacity();
        let record_len = record::record_length(partial)?;
        let needed = partial.len() + bytes.len();
        if needed >= record_len {
            return None;
        }
        if needed > old_capacity {
            partial.reserve_exact((2 * old_capacity).clamp(needed, record_len) - partial.len());
        }
        partial.extend_from_slice(bytes);
        self.records.partial_bytes += partial.capacity() - old_capacity;
        Some(self.records.partial_bytes <= self.limits.receive_bytes_max)
    }

    /// Keeps a partial record instead of the previous one; returns false if there is no room.
    fn keep_partial(&mut self, link: Link, place: KeyPlace, rest: &[u8]) -> bool {
        let mut direction = self.crypto.keys.receiving(place);
        if direction.has(HAS_PARTIAL) {
            let records = records_of(&mut self.records.by_link, link);
            self.records.partial_bytes -= records.partial.capacity();
            records.partial = Vec::new();
        }
        if rest.is_empty() {
            if direction.has(HAS_PARTIAL) {
                direction.clear(HAS_PARTIAL);
                self.remove_if_complete(link);
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
