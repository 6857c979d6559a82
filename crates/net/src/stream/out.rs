//! The way out: what is sealed, and what becomes of it when the socket takes only a part.

use super::cipher::PLAIN_MAX;
use super::keys::{BUSY, HELD, OVER, Place};
use super::table::Entry;
use super::{Sent, Streams, Trouble};
use crate::{Fd, socket};

/// Content of a record while much waits already: what a socket refuses of it is little.
const SMALL_RECORD: usize = 1 << 10;

impl Streams {
    /// Sends the parts in order as far as the socket takes them; says how many bytes that were.
    pub fn send(&mut self, fd: Fd, parts: &[&[u8]]) -> Option<usize> {
        match self.table.get(fd.0) {
            Entry::Plain => None,
            // Nobody could read it.
            Entry::Early => Some(parts.iter().map(|part| part.len()).sum()),
            Entry::Sealed(place) => Some(self.send_sealed(fd, place, parts)),
        }
    }

    fn send_sealed(&mut self, fd: Fd, place: Place, parts: &[&[u8]]) -> usize {
        let total: usize = parts.iter().map(|part| part.len()).sum();
        if total == 0 || (self.crypt.keys.to(place).is(BUSY) && !self.flush(fd, place)) {
            return 0;
        }
        let mut half = self.crypt.keys.to(place);
        if half.is(OVER) {
            // Nobody hears it: if it were refused, whoever sends would come back for it at once and for ever.
            return total;
        }
        let mut taken = usize::from(half.is(HELD));
        half.clear(HELD);
        while taken < total {
            let length = self.record_bytes().min(total - taken);
            self.scratch.clear();
            let write = |out: &mut Vec<u8>| copy(parts, taken, length, out);
            if !self.crypt.seal_data(place, &mut self.scratch, write) {
                self.failed(fd);
                return total;
            }
            taken += length;
            let sent = match socket::send(fd, &self.scratch) {
                Sent::Bytes(sent) => sent,
                Sent::Again => 0,
                // The poller reports it as well, and then the connection ends.
                Sent::Failed(_) => return taken - length,
            };
            if sent < self.scratch.len() {
                let rest = self.scratch[sent..].to_vec();
                self.keep_sealed(fd, place, rest);
                return taken - 1;
            }
        }
        taken
    }

    fn record_bytes(&self) -> usize {
        if self.sealed_bytes > self.limits.send_bytes_max {
            SMALL_RECORD
        } else {
            PLAIN_MAX
        }
    }

    /// A key that may seal no more, and cannot be changed.
    fn failed(&mut self, fd: Fd) {
        self.met(Trouble::Key, "its key has sealed all that it may");
        // A reset would lose what is under way; the poller reports the end when the peer closes. Until then what is
        // sent goes nowhere, as on a connection that has broken: the peer comes again with the position that it has.
        self.shutdown(fd);
    }

    /// Keeps what the socket refused; the sender must come back for its last byte.
    fn keep_sealed(&mut self, fd: Fd, place: Place, rest: Vec<u8>) {
        self.keep(fd, place, rest);
        self.crypt.keys.to(place).set(HELD);
    }

    /// Keeps sealed bytes for which nobody comes back.
    pub(super) fn keep(&mut self, fd: Fd, place: Place, rest: Vec<u8>) {
        self.crypt.keys.to(place).set(BUSY);
        self.sealed_bytes += rest.capacity();
        let busy = self.busy.entry(fd.0).or_default();
        (busy.sealed, busy.sent) = (rest, 0);
    }

    /// Sends what waits; whether it is out.
    pub(super) fn flush(&mut self, fd: Fd, place: Place) -> bool {
        let busy = self.busy.get_mut(&fd.0).expect("what is busy has an entry");
        if let Sent::Bytes(sent) = socket::send(fd, &busy.sealed[busy.sent..]) {
            busy.sent += sent;
        }
        if busy.sent < busy.sealed.len() {
            return false;
        }
        self.sealed_bytes -= busy.sealed.capacity();
        (busy.sealed, busy.sent) = (Vec::new(), 0);
        self.crypt.keys.to(place).clear(BUSY);
        self.forget_idle(fd);
        true
    }
}

/// Appends `length` bytes of the parts, from the byte `from` on.
fn copy(parts: &[&[u8]], mut from: usize, mut length: usize, out: &mut Vec<u8>) {
    for part in parts {
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

    use super::super::cipher::{Cipher, Secret};
    use super::super::{Handle, Limits, Source};
    use super::*;

    #[test]
    fn a_key_of_tls_12_that_is_used_up_ends_the_connection_once_and_nobody_comes_back_for_the_rest()
    {
        let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).unwrap();
        let source = Source {
            certificate: made.cert.pem().into_bytes(),
            key: made.signing_key.serialize_pem().into_bytes(),
            clients: None,
            only_13: false,
        };
        let limits = Limits {
            handshakes_max: 1,
            receive_bytes_max: 1 << 20,
            send_bytes_max: 1 << 20,
            required: false,
            proxied: false,
        };
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let fd = Fd(ours.into_raw_fd() as u32);
        let mut streams = Streams::new(Handle::new(source).unwrap(), limits);
        let secret = Secret::of(&[&[7; 28]]);
        let cipher = Cipher::Old128;
        let last = cipher.records_max() - 1;
        let place = streams
            .crypt
            .keys
            .insert(cipher, (&secret, last), (&secret, 0));
        streams.table.set(fd.0, Entry::Sealed(place));
        assert_eq!(streams.send(fd, &[b"the last"]), Some(8));
        for _ in 0..3 {
            let sent = streams.send(fd, &[b"too", b" late"]);
            assert_eq!(sent, Some(8), "who sends has nothing to come back for");
            assert_eq!(streams.stats().of(Trouble::Key), 1, "it is ended once");
        }
        let mut heard = Vec::new();
        std::io::Read::read_to_end(&mut theirs, &mut heard).unwrap();
        // A record of data, then an alert: header, explicit nonce, tag.
        assert_eq!(heard.len(), (29 + 8) + (29 + 2));
        assert_eq!((heard[0], heard[37]), (23, 21));
        streams.closing(fd, true);
        socket::close(fd);
    }
}
