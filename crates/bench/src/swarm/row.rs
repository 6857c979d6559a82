//! The row of a client, all that an idle one costs; where each client's end of its connection is; and the bytes that few
//! clients have beside their row: those that are not acknowledged, and a part of a unit.

use super::packet::End;

/// Local ports of one address. Below are the ports that services use.
const PORTS: u32 = 60_000;
const PORT_FIRST: u32 = 2_048;
/// No side row.
pub const NO_SIDE: u32 = u32::MAX;

/// How far a client is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No connection. Segments that still come for one are answered with a reset.
    Closed,
    /// A SYN is out.
    Dialing,
    /// The request is out.
    Asked,
    /// The server has answered the request: messages are expected.
    Open,
    /// A FIN is out, and the server's is awaited. Data is acknowledged and not looked at.
    Closing,
    /// Failed too often to be tried again.
    GivenUp,
}

/// Marks of a row.
pub mod mark {
    /// No message has come since the connection opened.
    pub const FIRST: u8 = 1;
    /// A slow reader.
    pub const SLOW: u8 = 2;
    /// An acknowledgement is owed at the end of the turn.
    pub const OWES_ACK: u8 = 4;
    /// The body is chunked.
    pub const CHUNKED: u8 = 8;
    /// A slow reader has an alarm set.
    pub const HAS_ALARM: u8 = 16;
}

/// A client.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The number of the next byte of the server.
    pub receive_next: u32,
    /// The first byte of ours that is not acknowledged.
    pub send_first: u32,
    /// The number of our next byte.
    pub send_next: u32,
    /// The sequence of the last message; 0 before the first one.
    pub last: u32,
    /// Messages that were published to its topic when it opened.
    pub published: u32,
    /// When it was dialed, in microseconds of a clock that goes round in an hour.
    pub dialed_us: u32,
    /// Its side row.
    pub side: u32,
    /// Bytes of the current chunk that are still to come.
    pub chunk_left: u32,
    /// Bytes that a slow reader takes until its next alarm.
    pub window: u16,
    /// How far it is.
    pub state: State,
    /// Its marks.
    pub marks: u8,
    /// Attempts that failed since it was open.
    pub failures: u8,
}

/// A client may cost 128 bytes, so that the server's end of a connection, some 4,400, decides how many fit.
const ROW_BYTES_MAX: usize = 128;
const _: () = assert!(size_of::<Row>() <= 40 && size_of::<Row>() <= ROW_BYTES_MAX);

impl Row {
    /// A client that has never connected.
    pub fn new(number: u32) -> Row {
        Row {
            receive_next: 0,
            send_first: number,
            send_next: number,
            last: 0,
            published: 0,
            dialed_us: 0,
            side: NO_SIDE,
            chunk_left: 0,
            window: u16::MAX,
            state: State::Closed,
            marks: 0,
            failures: 0,
        }
    }

    /// Whether it has this mark.
    pub fn is(&self, mark: u8) -> bool {
        self.marks & mark != 0
    }

    /// Sets or takes a mark.
    pub fn mark(&mut self, mark: u8, on: bool) {
        self.marks = if on {
            self.marks | mark
        } else {
            self.marks & !mark
        };
    }
}

/// The addresses of a device's clients, in order: each has all its ports before the next one begins.
#[derive(Clone, Copy, Debug)]
pub struct Places {
    /// The first address.
    pub first: u32,
    /// How many clients there are.
    pub count: u32,
}

impl Places {
    /// The end of client `index`.
    pub fn end(&self, index: u32) -> End {
        End {
            address: self.first + index / PORTS,
            port: (PORT_FIRST + index % PORTS) as u16,
        }
    }

    /// The client of this end.
    pub fn index(&self, end: End) -> Option<u32> {
        let address = end.address.checked_sub(self.first)?;
        let port = u32::from(end.port).checked_sub(PORT_FIRST)?;
        let index = address.checked_mul(PORTS)?.checked_add(port)?;
        (port < PORTS && index < self.count).then_some(index)
    }
}

/// The bytes of a client beside its row; few clients have some.
#[derive(Clone, Debug, Default)]
pub struct Side {
    /// Bytes that were sent and are not acknowledged.
    pub unacknowledged: Vec<u8>,
    /// A part of a unit that has come.
    pub held: Vec<u8>,
    /// How many bytes of it are content already, where the body is chunked.
    pub decoded: usize,
}

/// Side rows; free ones keep their room.
#[derive(Default)]
pub struct Sides {
    rows: Vec<Side>,
    free: Vec<u32>,
}

impl Sides {
    /// The side row of a client, made when it has none.
    pub fn of(&mut self, row: &mut Row) -> &mut Side {
        if row.side == NO_SIDE {
            row.side = self.free.pop().unwrap_or_else(|| {
                self.rows.push(Side::default());
                self.rows.len() as u32 - 1
            });
        }
        &mut self.rows[row.side as usize]
    }

    /// The side row of a client that has one.
    pub fn get(&mut self, row: &Row) -> Option<&mut Side> {
        self.rows.get_mut(row.side as usize)
    }

    /// Frees a client's side row when it holds nothing.
    pub fn tidy(&mut self, row: &mut Row) {
        let is_empty = self
            .get(row)
            .is_some_and(|side| side.unacknowledged.is_empty() && side.held.is_empty());
        if is_empty {
            self.release(row);
        }
    }

    /// Frees a client's side row.
    pub fn release(&mut self, row: &mut Row) {
        if let Some(side) = self.get(row) {
            side.unacknowledged.clear();
            side.held.clear();
            side.decoded = 0;
            self.free.push(row.side);
            row.side = NO_SIDE;
        }
    }

    /// How many there are, in use or free: the most that were ever needed at once.
    pub fn most(&self) -> usize {
        self.rows.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_client_has_an_end_of_its_own() {
        let places = Places {
            first: 0x0a40_0100,
            count: 4_300_000,
        };
        for index in [0, 1, 59_999, 60_000, 4_299_999] {
            assert_eq!(places.index(places.end(index)), Some(index));
        }
        let end = places.end(0);
        let strangers = [
            End {
                port: end.port - 1,
                ..end
            },
            End {
                port: u16::MAX,
                ..end
            },
            End {
                address: end.address - 1,
                ..end
            },
            places.end(4_300_000),
        ];
        assert!(strangers.iter().all(|end| places.index(*end).is_none()));
    }
}
