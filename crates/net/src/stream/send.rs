//! Sends on connections: seals records, and keeps the rest of a record that the socket takes only in part.

use super::cipher::PLAIN_MAX;
use super::keys::{DIRECTION_CLOSED, HAS_PARTIAL, KeyPlace, RETRY_EXPECTED};
use super::record::Alert;
use super::state::{TlsStreams, records_of};
use super::stats::TlsFailure;
use super::table::Entry;
use crate::transport::{Link, Sent, Transport};

/// Bytes of content of a record while many sealed bytes wait for sockets. A small record adds only a few bytes to those.
const SMALL_RECORD_BYTES: usize = 1 << 10;

impl TlsStreams {
    /// Sends the parts in order, as many bytes as the socket takes. Returns the number of bytes. For a connection without TLS returns
    /// `None`, and sends nothing.
    pub fn send<T: Transport, P: AsRef<[u8]>>(
        &mut self,
        transport: &mut T,
        link: Link,
        parts: &[P],
    ) -> Option<usize> {
        match self.table.get(link.0) {
            Entry::Plain => None,
            // The bytes are discarded: during the handshake the client could not read them.
            Entry::UnfinishedHandshake => Some(total_bytes(parts)),
            Entry::Sealed(place) => Some(self.send_sealed(transport, link, place, parts)),
        }
    }

    fn send_sealed<T: Transport, P: AsRef<[u8]>>(
        &mut self,
        transport: &mut T,
        link: Link,
        place: KeyPlace,
        parts: &[P],
    ) -> usize {
        let total_bytes = total_bytes(parts);
        if total_bytes == 0
            || (self.crypto.keys.sending(place).has(HAS_PARTIAL)
                && !self.send_kept(transport, link, place))
        {
            return 0;
        }
        let mut direction = self.crypto.keys.sending(place);
        if direction.has(DIRECTION_CLOSED) {
            // After our alert the peer cannot read more, so the bytes are discarded. If they were reported as not taken, the sender would
            // try again for ever.
            return total_bytes;
        }
        let mut taken_bytes = usize::from(direction.has(RETRY_EXPECTED));
        direction.clear(RETRY_EXPECTED);
        while taken_bytes < total_bytes {
            let length = self.record_bytes().min(total_bytes - taken_bytes);
            self.scratch.clear();
            let write = |out: &mut Vec<u8>| append_range(parts, taken_bytes, length, out);
            if !self.crypto.seal_data(place, &mut self.scratch, write) {
                self.end_for_used_up_key(transport, link);
                return total_bytes;
            }
            taken_bytes += length;
            let sent = match transport.send(link, &[&self.scratch]) {
                Sent::Bytes(sent) => sent,
                Sent::Again => 0,
                // The poller reports the failure too, and then the connection ends.
                Sent::Failed(_) => return taken_bytes - length,
            };
            if sent < self.scratch.len() {
                let rest = self.scratch[sent..].to_vec();
                self.keep_sealed_and_retry(link, place, rest);
                return taken_bytes - 1;
            }
        }
        taken_bytes
    }

    /// The maximum content of the next record, in bytes.
    fn record_bytes(&self) -> usize {
        if self.records.sealed_bytes > self.limits.send_bytes_max {
            SMALL_RECORD_BYTES
        } else {
            PLAIN_MAX
        }
    }

    /// Ends a connection whose key may seal no more records and cannot be changed.
    fn end_for_used_up_key<T: Transport>(&mut self, transport: &mut T, link: Link) {
        self.count_failure(TlsFailure::Key, "its key has sealed all that it may");
        // A reset would lose bytes in flight. Instead the sending side is closed, so that the peer closes too, which the poller reports.
        // Until then all sends are discarded, as on a broken connection. The client reconnects with its last position.
        self.shutdown(transport, link);
    }

    /// Keeps the sealed bytes that the socket did not take. The caller must report the last byte of their content as not taken, so that the
    /// sender tries again.
    fn keep_sealed_and_retry(&mut self, link: Link, place: KeyPlace, rest: Vec<u8>) {
        self.keep_sealed(link, place, rest);
        self.crypto.keys.sending(place).set(RETRY_EXPECTED);
    }

    /// Keeps sealed bytes that no sender will send again.
    pub(super) fn keep_sealed(&mut self, link: Link, place: KeyPlace, rest: Vec<u8>) {
        self.crypto.keys.sending(place).set(HAS_PARTIAL);
        self.records.sealed_bytes += rest.capacity();
        let records = self.records.by_link.entry(link.0).or_default();
        (records.sealed, records.sent_bytes) = (rest, 0);
    }

    /// Sends the kept sealed bytes. Returns whether all are sent.
    pub(super) fn send_kept<T: Transport>(
        &mut self,
        transport: &mut T,
        link: Link,
        place: KeyPlace,
    ) -> bool {
        let records = records_of(&mut self.records.by_link, link);
        if let Sent::Bytes(sent) = transport.send(link, &[&records.sealed[records.sent_bytes..]]) {
            records.sent_bytes += sent;
        }
        if records.sent_bytes < records.sealed.len() {
            return false;
        }
        self.records.sealed_bytes -= records.sealed.capacity();
        (records.sealed, records.sent_bytes) = (Vec::new(), 0);
        self.crypto.keys.sending(place).clear(HAS_PARTIAL);
        self.remove_if_complete(link);
        true
    }

    /// Sends a `close_notify` and closes our sending side.
    pub fn shutdown<T: Transport>(&mut self, transport: &mut T, link: Link) {
        match self.table.get(link.0) {
            Entry::Sealed(place) => self.send_alert(transport, link, place, Alert::CloseNotify),
            Entry::UnfinishedHandshake => self.end_as_slow(link),
            Entry::Plain => {}
        }
        transport.shut_down(link);
    }

    /// Forgets a connection that the caller is about to close. With `sends_notify` the peer gets a `close_notify` first, if possible.
    pub fn forget<T: Transport>(&mut self, transport: &mut T, link: Link, sends_notify: bool) {
        if self.silent_links.take(link.0) && self.limits.proxied {
            self.take_proxy_header(link);
        }
        match self.table.get(link.0) {
            Entry::Plain => return,
            Entry::UnfinishedHandshake => {
                self.end_as_slow(link);
                self.remove_handshake(link);
            }
            Entry::Sealed(place) => {
                if sends_notify {
                    self.send_alert(transport, link, place, Alert::CloseNotify);
                }
                if let Some(records) = self.records.by_link.remove(&link.0) {
                    self.records.partial_bytes -= records.partial.capacity();
                    self.records.sealed_bytes -= records.sealed.capacity();
                }
                self.crypto.remove(place);
            }
        }
        self.table.set(link.0, Entry::Plain);
    }

    /// Sends an alert, unless an alert was sent before or other sealed bytes still wait for the socket.
    pub(super) fn send_alert<T: Transport>(
        &mut self,
        transport: &mut T,
        link: Link,
        place: KeyPlace,
        alert: Alert,
    ) {
        let direction = self.crypto.keys.sending(place);
        if direction.has(DIRECTION_CLOSED) || direction.has(HAS_PARTIAL) {
            return;
        }
        self.scratch.clear();
        self.crypto.seal_alert(place, alert, &mut self.scratch);
        // A failure is ignored: the peer does not read then, and the connection ends anyway.
        let _ = transport.send(link, &[&self.scratch]);
    }

    /// The interest to register when the broker wants to `read` and to `write`: writing is added while sealed bytes wait.
    pub fn socket_interest(&mut self, link: Link, read: bool, write: bool) -> (bool, bool) {
        let Entry::Sealed(place) = self.table.get(link.0) else {
            return (read, write);
        };
        if !self.crypto.keys.sending(place).has(HAS_PARTIAL) {
            return (read, write);
        }
        let records = records_of(&mut self.records.by_link, link);
        (records.reading_paused, records.wants_write) = (!read, write);
        (read, true)
    }

    /// Sends the kept sealed bytes when the socket is writable again. Returns whether the caller should send: not while kept bytes still
    /// wait, and not if the caller did not want to write.
    pub fn handle_writable<T: Transport>(
        &mut self,
        transport: &mut T,
        link: Link,
        token: u64,
    ) -> bool {
        match self.table.get(link.0) {
            Entry::Plain => true,
            Entry::UnfinishedHandshake => {
                self.send_outgoing(transport, link, token);
                false
            }
            Entry::Sealed(place) => {
                let direction = self.crypto.keys.sending(place);
                if !direction.has(HAS_PARTIAL) {
                    return true;
                }
                let records = &self.records.by_link[&link.0];
                let (wants_write, read) = (
                    direction.has(RETRY_EXPECTED) || records.wants_write,
                    !records.reading_paused,
                );
                if !self.send_kept(transport, link, place) {
                    return false;
                }
                if !wants_write && transport.set_interest(link, token, read, false).is_err() {
                    self.ended_tokens.push(token);
                }
                wants_write
            }
        }
    }
}

/// The number of bytes of all parts.
fn total_bytes<P: AsRef<[u8]>>(parts: &[P]) -> usize {
    parts.iter().map(|part| part.as_ref().len()).sum()
}

/// Appends `length` bytes of the parts, starting at byte `start` of their concatenation.
fn append_range<P: AsRef<[u8]>>(
    parts: &[P],
    mut start: usize,
    mut length: usize,
    out: &mut Vec<u8>,
) {
    for part in parts {
        let part = part.as_ref();
        let skipped = start.min(part.len());
        start -= skipped;
        let piece = &part[skipped..];
        let piece = &piece[..piece.len().min(length)];
        out.extend_from_slice(piece);
        length -= piece.len();
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd as _;
    use std::os::unix::net::UnixStream;

    use super::super::cipher::{Cipher, DirectionStart, Secret};
    use super::super::{Handle, Limits, Source};
    use super::*;
    use crate::kernel::{Kernel, acceptor, steering};

    #[test]
    fn used_up_key_of_tls_12_ends_the_connection_once_and_later_sends_are_discarded() {
        let generated = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
        let source = Source {
            certificate: generated.cert.pem().into_bytes(),
            key: generated.signing_key.serialize_pem().into_bytes(),
            clients: None,
            only_13: false,
            h2: false,
        };
        let limits = Limits {
            handshakes_max: 1,
            receive_bytes_max: 1 << 20,
            send_bytes_max: 1 << 20,
            required: false,
            proxied: false,
        };
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let link = Link(ours.into_raw_fd() as u32);
        let mut sockets =
            Kernel::open(&[], acceptor::Limits::default(), &steering::Group::new()).unwrap();
        let mut streams = TlsStreams::new(Handle::new(source).unwrap(), limits);
        let cipher = Cipher::Tls12Aes128;
        let start = |seq| DirectionStart {
            secret: Secret::of(&[&[7; 28]]),
            seq,
        };
        let last_seq = cipher.records_max() - 1;
        let place = streams
            .crypto
            .keys
            .insert(cipher, &start(last_seq), &start(0));
        streams.table.set(link.0, Entry::Sealed(place));
        assert_eq!(streams.send(&mut sockets, link, &[b"the last"]), Some(8));
        for _ in 0..3 {
            let sent = streams.send(&mut sockets, link, &[b"too".as_slice(), b" late"]);
            assert_eq!(sent, Some(8), "the sender must not try again");
            assert_eq!(
                streams.stats().count_of(TlsFailure::Key),
                1,
                "the connection is ended once"
            );
        }
        let mut received = Vec::new();
        std::io::Read::read_to_end(&mut theirs, &mut received).unwrap();
        // A record of data, then an alert: header, explicit nonce, tag.
        assert_eq!(received.len(), (29 + 8) + (29 + 2));
        assert_eq!((received[0], received[37]), (23, 21));
        streams.forget(&mut sockets, link, true);
        sockets.close(link);
    }
}
