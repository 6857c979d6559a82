//! The way out: what is sealed, and what becomes of it when the socket takes only a part.

use super::cipher::PLAIN_MAX;
use super::keys::{BUSY, HELD, Place};
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
        let mut taken = usize::from(half.is(HELD));
        half.clear(HELD);
        while taken < total {
            let length = self.record_bytes().min(total - taken);
            self.scratch.clear();
            let write = |out: &mut Vec<u8>| copy(parts, taken, length, out);
            if !self.crypt.seal_data(place, &mut self.scratch, write) {
                self.failed(fd);
                return taken;
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
        // A reset would lose what is under way; the poller reports the end when the peer closes.
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
        self.sealed_bytes += rest.len();
        let busy = self.busy.entry(fd.0).or_default();
        (busy.sealed, busy.sent) = (rest, 0);
    }

    /// Sends what waits; whether it is out.
    pub(super) fn flush(&mut self, fd: Fd, place: Place) -> bool {
        let busy = self.busy.get_mut(&fd.0).expect("what is busy has an entry");
        if let Sent::Bytes(sent) = socket::send(fd, &busy.sealed[busy.sent..]) {
            busy.sent += sent;
            self.sealed_bytes -= sent;
        }
        if busy.sent < busy.sealed.len() {
            return false;
        }
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
