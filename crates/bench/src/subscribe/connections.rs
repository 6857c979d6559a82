//! The connections of a worker: a row for each, and further state for some of them.
//!
//! Invariant: an incomplete unit (response, frame, event or packet) is kept in the connection's spill and nowhere else.

use std::io;

use super::connection::{ConnectionRow, NO_SPILL};
use crate::client::tls::Tls;
use crate::sys;

/// All connections of a worker.
pub struct Connections {
    /// The rows, by connection.
    pub rows: Vec<ConnectionRow>,
    /// The numbers of the last messages, if connections have several topics.
    pub sequences: Vec<u32>,
    /// The TLS state of each connection; empty without TLS.
    pub tls: Vec<Option<Box<Tls>>>,
    /// The bytes of incomplete units.
    pub spills: Spills,
}

impl Connections {
    /// Sends bytes, through TLS if the connection uses it.
    pub fn send(&mut self, row: u32, bytes: &[u8]) -> io::Result<usize> {
        let fd = self.rows[row as usize].fd;
        match self.tls.get_mut(row as usize).and_then(Option::as_mut) {
            Some(tls) => tls.send(fd, bytes),
            None => sys::send(fd, bytes),
        }
    }

    /// Receives bytes as [`sys::receive`] does, through TLS if the connection uses it.
    pub fn receive(&mut self, row: u32, buffer: &mut [u8]) -> io::Result<Option<usize>> {
        let fd = self.rows[row as usize].fd;
        match self.tls.get_mut(row as usize).and_then(Option::as_mut) {
            Some(tls) => tls.receive(fd, buffer),
            None => sys::receive(fd, buffer),
        }
    }
}

/// The bytes of an incomplete unit.
#[derive(Default)]
struct Spill {
    bytes: Vec<u8>,
    /// The number of bytes at the start that are already unchunked or unframed.
    decoded: usize,
}

/// The spills. Free spills keep their capacity.
#[derive(Default)]
pub struct Spills {
    spills: Vec<Spill>,
    free_indices: Vec<u32>,
}

impl Spills {
    /// Moves the connection's spill to the start of the buffer, and makes room for `free_bytes` bytes after it. Returns the length of the
    /// spill, and how many of its bytes are decoded.
    pub fn take(
        &mut self,
        row: &mut ConnectionRow,
        buffer: &mut Vec<u8>,
        free_bytes: usize,
    ) -> (usize, usize) {
        let index = row.spill;
        if index == NO_SPILL {
            return (0, 0);
        }
        self.free(row);
        let spill = &self.spills[index as usize];
        let spill_bytes = spill.bytes.len();
        if buffer.len() < spill_bytes + free_bytes {
            buffer.resize(spill_bytes + free_bytes, 0);
        }
        buffer[..spill_bytes].copy_from_slice(&spill.bytes);
        (spill_bytes, spill.decoded)
    }

    /// Stores the bytes of an incomplete unit.
    pub fn keep(&mut self, row: &mut ConnectionRow, bytes: &[u8], decoded: usize) {
        if bytes.is_empty() {
            return;
        }
        row.spill = self.free_indices.pop().unwrap_or_else(|| {
            self.spills.push(Spill::default());
            self.spills.len() as u32 - 1
        });
        let spill = &mut self.spills[row.spill as usize];
        spill.bytes.clear();
        spill.bytes.extend_from_slice(bytes);
        spill.decoded = decoded;
    }

    /// Drops the spill of a connection.
    pub fn free(&mut self, row: &mut ConnectionRow) {
        if row.spill != NO_SPILL {
            self.free_indices
                .push(std::mem::replace(&mut row.spill, NO_SPILL));
        }
    }
}
