//! The state of a client. An idle client costs only a row of fixed size. Address and port are computed from the client's index. The few
//! clients that are not idle have a row in the table of `crore-tcp`, too.

use std::net::Ipv4Addr;

use crore_tcp::{Conn, End, Parked};

/// The number of ports of one address that clients use, and the first of these ports. Services use lower ports.
const PORTS: u32 = 60_000;
const PORT_FIRST: u32 = 2_048;
/// In place of the index of an incomplete unit: the client has none.
pub const NO_UNIT: u32 = u32::MAX;

/// The state of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The client has no connection, or one that is over but for the last segments.
    Closed,
    /// The SYN was sent.
    Dialing,
    /// The request was sent.
    Requested,
    /// The server has answered the request: messages are expected.
    Open,
    /// The client has sent its FIN and waits for the server's. Data is acknowledged and ignored.
    Closing,
    /// The client has failed too often to try again.
    GivenUp,
}

/// Where a client's connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// There is none. Segments that still arrive are answered with a reset.
    None,
    /// In the table of connections.
    Active(Conn),
    /// Here, since it is idle.
    Parked(Parked),
}

/// Flags of a row.
pub mod mark {
    /// No message has arrived since the connection opened.
    pub const FIRST: u8 = 1;
    /// The client is a slow reader.
    pub const SLOW: u8 = 2;
    /// The body is chunked.
    pub const CHUNKED: u8 = 4;
    /// The timer of a slow reader is set.
    pub const HAS_TIMER: u8 = 8;
    /// The client is in the list of those whose connection may be idle.
    pub const LISTED: u8 = 16;
}

/// The state of one client.
#[derive(Clone, Copy, Debug)]
pub struct ClientRow {
    /// The client's connection.
    pub link: Link,
    /// The index of the client's incomplete unit, or [`NO_UNIT`].
    pub incomplete: u32,
    /// The number of the last message. 0 before the first one.
    pub last: u32,
    /// The number of the last message that had been published to the client's topic when the client's connection opened.
    pub published: u32,
    /// When the client sent its SYN, in microseconds. The value wraps after an hour.
    pub dialed_us: u32,
    /// Bytes still missing from the current chunk.
    pub chunk_left: u32,
    /// The state.
    pub state: State,
    /// Flags, see [`mark`].
    pub marks: u8,
    /// Failed attempts to connect since the client was last open.
    pub failures: u8,
}

/// The maximum size of a client's row, in bytes. The server's end of a connection costs some 4,400 bytes, so the server decides how many
/// connections fit into the memory.
const ROW_BYTES_MAX: usize = 40;
const _: () = assert!(size_of::<ClientRow>() <= ROW_BYTES_MAX);

impl ClientRow {
    /// A client that has never connected.
    pub fn new() -> ClientRow {
        ClientRow {
            link: Link::None,
            incomplete: NO_UNIT,
            last: 0,
            published: 0,
            dialed_us: 0,
            chunk_left: 0,
            state: State::Closed,
            marks: 0,
            failures: 0,
        }
    }

    /// Whether this flag is set.
    pub fn is(&self, mark: u8) -> bool {
        self.marks & mark != 0
    }

    /// Sets or clears a flag.
    pub fn mark(&mut self, mark: u8, on: bool) {
        self.marks = if on {
            self.marks | mark
        } else {
            self.marks & !mark
        };
    }
}

/// Addresses and ports of a device's clients. Clients use all ports of one address before the next address.
#[derive(Clone, Copy, Debug)]
pub struct ClientAddresses {
    /// The first address.
    pub first: u32,
    /// The number of clients.
    pub count: u32,
}

impl ClientAddresses {
    /// Address and port of client `index`.
    pub fn end(&self, index: u32) -> End {
        let address = Ipv4Addr::from(self.first + index / PORTS);
        End::new(address, (PORT_FIRST + index % PORTS) as u16)
    }

    /// The client with this address and port.
    pub fn index(&self, end: End) -> Option<u32> {
        let address = u32::from(end.address.to_ipv4_mapped()?).checked_sub(self.first)?;
        let port = u32::from(end.port).checked_sub(PORT_FIRST)?;
        let index = address.checked_mul(PORTS)?.checked_add(port)?;
        (port < PORTS && index < self.count).then_some(index)
    }

    /// An end of each address.
    pub fn addresses(&self) -> impl Iterator<Item = End> {
        let addresses = *self;
        let firsts = (0..self.count).step_by(PORTS as usize);
        firsts.map(move |index| addresses.end(index))
    }
}

/// The received part of an incomplete answer, frame, event or line.
#[derive(Clone, Debug, Default)]
struct Incomplete {
    held: Vec<u8>,
    /// If the body is chunked: the length of the part of `held` that is already decoded.
    decoded: usize,
}

/// The incomplete units of clients. Free places keep their capacity.
#[derive(Default)]
pub struct IncompleteUnits {
    places: Vec<Incomplete>,
    free: Vec<u32>,
}

impl IncompleteUnits {
    /// Keeps bytes of a client, which has kept none, and the length of their part that is already decoded.
    pub fn keep(&mut self, row: &mut ClientRow, bytes: &[u8], decoded: usize) {
        if bytes.is_empty() {
            return;
        }
        row.incomplete = self.free.pop().unwrap_or_else(|| {
            self.places.push(Incomplete::default());
            self.places.len() as u32 - 1
        });
        let place = &mut self.places[row.incomplete as usize];
        place.held.extend_from_slice(bytes);
        place.decoded = decoded;
    }

    /// Appends the bytes that were kept of a client to `out`. Returns the length of their part that is already decoded.
    pub fn take(&mut self, row: &mut ClientRow, out: &mut Vec<u8>) -> usize {
        let Some(place) = self.places.get_mut(row.incomplete as usize) else {
            return 0;
        };
        self.free
            .push(std::mem::replace(&mut row.incomplete, NO_UNIT));
        out.append(&mut place.held);
        place.decoded
    }

    /// Forgets the bytes that were kept of a client.
    pub fn forget(&mut self, row: &mut ClientRow) {
        if let Some(place) = self.places.get_mut(row.incomplete as usize) {
            self.free
                .push(std::mem::replace(&mut row.incomplete, NO_UNIT));
            place.held.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_client_has_an_end_of_its_own() {
        let addresses = ClientAddresses {
            first: 0x0a40_0100,
            count: 4_300_000,
        };
        for index in [0, 1, 59_999, 60_000, 4_299_999] {
            assert_eq!(addresses.index(addresses.end(index)), Some(index));
        }
        let end = addresses.end(0);
        let before = Ipv4Addr::from(addresses.first - 1);
        let strangers = [
            End {
                port: end.port - 1,
                ..end
            },
            End {
                port: u16::MAX,
                ..end
            },
            End::new(before, end.port),
            addresses.end(4_300_000),
        ];
        assert!(strangers.iter().all(|end| addresses.index(*end).is_none()));
    }

    #[test]
    fn every_client_has_an_address_that_the_table_knows() {
        let addresses = ClientAddresses {
            first: 0x0a40_0100,
            count: 60_001,
        };
        let all: Vec<_> = addresses.addresses().map(|end| end.address).collect();
        assert_eq!(all.len(), 2);
        for index in [0, 59_999, 60_000] {
            assert!(all.contains(&addresses.end(index).address));
        }
    }

    #[test]
    fn incomplete_unit_is_given_back_once_and_its_place_is_used_again() {
        let mut units = IncompleteUnits::default();
        let mut rows = [ClientRow::new(); 3];
        units.keep(&mut rows[0], b"", 0);
        units.keep(&mut rows[1], b"one", 1);
        units.keep(&mut rows[2], b"two", 2);
        let mut out = b"-".to_vec();
        assert_eq!(units.take(&mut rows[0], &mut out), 0);
        assert_eq!(units.take(&mut rows[1], &mut out), 1);
        assert_eq!(units.take(&mut rows[1], &mut out), 0);
        units.forget(&mut rows[2]);
        units.keep(&mut rows[0], b"three", 0);
        units.keep(&mut rows[1], b"four", 0);
        assert_eq!(units.take(&mut rows[0], &mut out), 0);
        assert_eq!((&out[..], units.places.len()), (&b"-onethree"[..], 2));
    }
}
