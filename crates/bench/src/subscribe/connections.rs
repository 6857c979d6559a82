//! The connections of a worker: their rows, and what some of them have beside their row.
//!
//! Invariant: an incomplete unit lies in the connection's spill and nowhere else.

use std::io;

use super::connection::{NO_SPILL, Row};
use crate::client::tls::Tls;
use crate::sys;

/// All connections of a worker.
pub struct Connections {
    /// By number.
    pub rows: Vec<Row>,
    /// Numbers of the last messages, when connections have several topics.
    pub sequences: Vec<u32>,
    /// Of each connection; empty without TLS.
    pub tls: Vec<Option<Box<Tls>>>,
    /// The incomplete units.
    pub spills: Spills,
}

impl Connections {
    /// Sends bytes, through TLS where that is spoken.
    pub fn send(&mut self, row: u32, bytes: &[u8]) -> io::Result<usize> {
        let fd = self.rows[row as usize].fd;
        match self.tls.get_mut(row as usize).and_then(Option::as_mut) {
            Some(tls) => tls.send(fd, bytes),
            None => sys::send(fd, bytes),
        }
    }

    /// Receives bytes, through TLS where that is spoken; see [`sys::receive`].
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
    /// How many of them are moved out of their chunks or frames already.
    decoded: usize,
}

/// The spills; free ones keep their room.
#[derive(Default)]
pub struct Spills {
    all: Vec<Spill>,
    free: Vec<u32>,
}

impl Spills {
    /// Copies the connection's spill to the start of the buffer, which has room for `more` bytes behind it; returns its bytes, and how many of them are
    /// decoded.
    pub fn take(&mut self, row: &mut Row, buffer: &mut Vec<u8>, more: usize) -> (usize, usize) {
        let place = row.spill;
        if place == NO_SPILL {
            return (0, 0);
        }
        self.free(row);
        let spill = &self.all[place as usize];
        let held = spill.bytes.len();
        if buffer.len() < held + more {
            buffer.resize(held + more, 0);
        }
        buffer[..held].copy_from_slice(&spill.bytes);
        (held, spill.decoded)
    }

    /// Keeps the bytes of a connection.
    pub fn keep(&mut self, row: &mut Row, bytes: &[u8], decoded: usize) {
        if bytes.is_empty() {
            return;
        }
        row.spill = self.free.pop().unwrap_or_else(|| {
            self.all.push(Spill::default());
            self.all.len() as u32 - 1
        });
        let spill = &mut self.all[row.spill as usize];
        spill.bytes.clear();
        spill.bytes.extend_from_slice(bytes);
        spill.decoded = decoded;
    }

    /// Forgets the bytes of a connection.
    pub fn free(&mut self, row: &mut Row) {
        if row.spill != NO_SPILL {
            self.free.push(std::mem::replace(&mut row.spill, NO_SPILL));
        }
    }
}
