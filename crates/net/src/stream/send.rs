//! Sends on connections: seals records, and keeps the rest of a record that the socket takes only in part.

use super::cipher::PLAIN_MAX;
use super::keys::{DIRECTION_CLOSED, HAS_PARTIAL, KeyPlace, RETRY_EXPECTED};
use super::record::Alert;
use super::state::{TlsStreams, partial_records};
use super::stats::TlsFailure;
use super::table::Entry;
use crate::transport::{Link, Sent, Transport};

/// Bytes of content of a record while many sealed bytes wait for sockets. A small record adds only a few bytes to those.
const SMALL_RECORD: usize = 1 << 10;

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
            Entry::UnfinishedHandshake => Some(total(parts)),
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
        let total = total(parts);
        if total == 0
            || (self.crypt.keys.to(place).has(HAS_PARTIAL) && !self.flush(transport, link, place))
        {
            return 0;
        }
        let mut direction = self.crypt.keys.to(place);
        if direction.has(DIRECTION_CLOSED) {
            // After our alert the peer cannot read more, so the bytes are discarded. If they were reported as not taken, the sender would
            // try again for ever.
            return total;
        }
        let mut taken = usize::from(direction.has(RETRY_EXPECTED));
        direction.clear(RETRY_EXPECTED);
        while taken < total {
            let length = self.record_bytes().min(total - taken);
            self.scratch.clear();
            let write = |out: &mut Vec<u8>| copy(parts, taken, length, out);
            if !self.crypt.seal_data(place, &mut self.scratch, write) {
                self.end_for_used_up_key(transport, link);
                return total;
            }
            taken += length;
            let sent = match transport.send(link, &[&self.scratch]) {
                Sent::Bytes(sent) => sent,
                Sent::Again => 0,
                // The poller reports the failure too, and then the connection ends.
                Sent::Failed(_) => return taken - length,
            };
            if sent < self.scratch.len() {
                let rest = self.scratch[sent..].to_vec();
                self.keep_sealed(link, place, rest);
                return taken - 1;
            }
        }
        taken
    }

    /// The maximum content of the next record, in bytes.
    fn record_bytes(&self) -> usize {
        if self.records.sealed_bytes > self.limits.send_bytes_max {
            SMALL_RECORD
        } else {
            PLAIN_MAX
        }
    }

    /// Ends a connection whose key may seal no more records and cannot be changed.
    fn end_for_used_up_key<T: Transport>(&mut self, transport: &mut T, link: Link) {
        self.count_trouble(TlsFailure::Key, "its key has sealed all that it may");
        // A reset would lose bytes in flight. Instead the sending side is closed, so that the peer closes too, which the poller reports.
        // Until then all sends are discarded, as on a broken connection. The client reconnects with its last position.
        self.shutdown(transport, link);
    }

    /// Keeps the sealed bytes that the socket did not take. The caller must report the last byte of their content as not taken, so that the
    /// sender tries again.
    fn keep_sealed(&mut self, link: Link, place: KeyPlace, rest: Vec<u8>) {
        self.keep(link, place, rest);
        self.crypt.keys.to(place).set(RETRY_EXPECTED);
    }

    /// Keeps sealed bytes that no sender will send again.
    pub(super) fn keep(&mut self, link: Link, place: KeyPlace, rest: Vec<u8>) {
        self.crypt.keys.to(place).set(HAS_PARTIAL);
        self.records.sealed_bytes += rest.capacity();
        let records = self.records.by_link.entry(link.0).or_default();
        (records.sealed, records.sent) = (rest, 0);
    }

    /// Sends the kept sealed bytes. Returns whether all are sent.
    pub(super) fn flush<T: Transport>(
        &mut self,
        transport: &mut T,
        link: Link,
        place: KeyPlace,
    ) -> bool {
        let records = partial_records(&mut self.records.by_link, link);
        if let Sent::Bytes(sent) = transport.send(link, &[&records.sealed[records.sent..]]) {
            records.sent += sent;
        }
        if records.sent < records.sealed.len() {
            return false;
        }
        self.records.sealed_bytes -= records.sealed.capacity();
        (records.sealed, records.sent) = (Vec::new(), 0);
        self.crypt.keys.to(place).clear(HAS_PARTIAL);
        self.forget_idle(link);
        true
    }

    /// Sends a `close_notify` and closes our sending side.
    pub fn shutdown<T: Transport>(&mut self, transport: &mut T, link: Link) {
        match self.table.get(link.0) {
            Entry::Sealed(place) => self.alert(transport, link, place, Alert::CloseNotify),
            Entry::UnfinishedHandshake => self.abandon(link),
            Entry::Plain => {}
        }
        transport.shut_down(link);
    }

    /// Forgets a connection that the caller is about to close. With `orderly` the peer gets a `close_notify` first, if possible.
    pub fn closing<T: Transport>(&mut self, transport: &mut T, link: Link, orderly: bool) {
        if self.fresh.take(link.0) && self.limits.proxied {
            self.take_preface(link);
        }
        match self.table.get(link.0) {
            Entry::Plain => return,
            Entry::UnfinishedHandshake => {
                self.abandon(link);
                self.forget_early(link);
            }
            Entry::Sealed(place) => {
                if orderly {
                    self.alert(transport, link, place, Alert::CloseNotify);
                }
                if let Some(records) = self.records.by_link.remove(&link.0) {
                    self.records.partial_bytes -= records.partial.capacity();
                    self.records.sealed_bytes -= records.sealed.capacity();
                }
                self.crypt.remove(place);
            }
        }
        self.table.set(link.0, Entry::Plain);
    }

    /// Sends an alert, unless an alert was sent before or other sealed bytes still wait for the socket.
    pub(super) fn alert<T: Transport>(
        &mut self,
        transport: &mut T,
        link: Link,
        place: KeyPlace,
        alert: Alert,
    ) {
        let direction = self.crypt.keys.to(place);
        if direction.has(DIRECTION_CLOSED) || direction.has(HAS_PARTIAL) {
            return;
        }
        self.scratch.clear();
        self.crypt.seal_alert(place, alert, &mut self.scratch);
        // A failure is ignored: the peer does not read then, and the connection ends anyway.
        let _ = transport.send(link, &[&self.scratch]);
    }

    /// The interest to register when the broker wants to `read` and to `write`: writing is added while sealed bytes wait.
    pub fn interest(&mut self, link: Link, read: bool, write: bool) -> (bool, bool) {
        let Entry::Sealed(place) = self.table.get(link.0) else {
            return (read, write);
        };
        if !self.crypt.keys.to(place).has(HAS_PARTIAL) {
            return (read, write);
        }
        let records = partial_records(&mut self.records.by_link, link);
        (records.unread, records.waits) = (!read, write);
        (read, true)
    }

    /// Sends the kept sealed bytes when the socket is writable again. Returns whether the caller should send: not while kept bytes still
    /// wait, and not if the caller did not want to write.
    pub fn writable<T: Transport>(&mut self, transport: &mut T, link: Link, token: u64) -> bool {
        match self.table.get(link.0) {
            Entry::Plain => true,
            Entry::UnfinishedHandshake => {
                self.flush_early(transport, link, token);
                false
            }
            Entry::Sealed(place) => {
                let direction = self.crypt.keys.to(place);
                if !direction.has(HAS_PARTIAL) {
                    return true;
                }
                let records = &self.records.by_link[&link.0];
                let (waits, read) = (
                    direction.has(RETRY_EXPECTED) || records.waits,
                    !records.unread,
                );
                if !self.flush(transport, link, place) {
                    return false;
                }
                if !waits && transport.interest(link, token, read, false).is_err() {
                    self.ended.push(token);
                }
                waits
            }
        }
    }
}

/// The number of bytes of all parts.
fn total<P: AsRef<[u8]>>(parts: &[P]) -> usize {
    parts.iter().map(|part| part.as_ref().len()).sum()
}

/// Appends `length` bytes of the parts, starting at byte `from` of their concatenation.
fn copy<P: AsRef<[u8]>>(parts: &[P], mut from: usize, mut length: usize, out: &mut Vec<u8>) {
    for part in parts {
        let part = part.as_ref();
        let skipped = from.min(part.len());
        from -= skipped;
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
    fn a_key_of_tls_12_that_is_used_up_ends_the_connection_once_and_nobody_comes_back_for_the_rest()
    {
        let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
        let source = Source {
            certificate: made.cert.pem().into_bytes(),
            key: made.signing_key.serialize_pem().into_bytes(),
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
        let last = cipher.records_max() - 1;
        let place = streams.crypt.keys.insert(cipher, &start(last), &start(0));
        streams.table.set(link.0, Entry::Sealed(place));
        assert_eq!(streams.send(&mut sockets, link, &[b"the last"]), Some(8));
        for _ in 0..3 {
            let sent = streams.send(&mut sockets, link, &[b"too".as_slice(), b" late"]);
            assert_eq!(sent, Some(8), "who sends has nothing to come back for");
            assert_eq!(streams.stats().of(TlsFailure::Key), 1, "it is ended once");
        }
        let mut heard = Vec::new();
        std::io::Read::read_to_end(&mut theirs, &mut heard).unwrap();
        // A record of data, then an alert: header, explicit nonce, tag.
        assert_eq!(heard.len(), (29 + 8) + (29 + 2));
        assert_eq!((heard[0], heard[37]), (23, 21));
        streams.closing(&mut sockets, link, true);
        sockets.close(link);
    }
}
