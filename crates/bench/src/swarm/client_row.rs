//! The state of a client. An idle client costs only a row of fixed size. Address and port are computed from the client's index. The few
//! clients that are not idle have a row in the table of `crore-tcp`, too.

use std::net::Ipv4Addr;

use crore_tcp::{Conn, End, Parked};

/// The number of ports of one address that clients use, and the first of these ports. Services use lower ports.
const PORTS_PER_ADDRESS: u32 = 60_000;
const FIRST_PORT: u32 = 2_048;
/// In place of the index of an incomplete unit: the client has none.
pub const NO_UNIT: u32 = u32::MAX;

/// The state of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The client has no connection, or one that has ended except for its last segments.
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
    /// Parked in this row, because the connection is idle.
    Parked(Parked),
}

/// Flags of a row.
pub mod flag {
    /// No message has arrived since the client's connection opened.
    pub const AWAITS_FIRST: u8 = 1;
    /// The client is a slow reader.
    pub const SLOW: u8 = 2;
    /// The body is chunked.
    pub const CHUNKED: u8 = 4;
    /// The timer of a slow reader is set.
    pub const HAS_TIMER: u8 = 8;
    /// The client is in the worker's list of connections that may be idle.
    pub const IN_PARK_LIST: u8 = 16;
}

/// The state of one client.
#[derive(Clone, Copy, Debug)]
pub struct ClientRow {
    /// The client's connection.
    pub link: Link,
    /// The index of the client's incomplete unit, or [`NO_UNIT`].
    pub incomplete_unit: u32,
    /// The number of the newest message that was received, or that was counted as missed. 0 before the first one.
    pub last_received: u32,
    /// The number of the newest message that had been published to the client's topic when its connection opened.
    pub published_at_open: u32,
    /// When the client sent its SYN, in microseconds. The value wraps after an hour.
    pub dialed_us: u32,
    /// Bytes still missing from the current chunk.
    pub chunk_left: u32,
    /// The state.
    pub state: State,
    /// Flags, see [`flag`].
    pub flags: u8,
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
            incomplete_unit: NO_UNIT,
            last_received: 0,
            published_at_open: 0,
            dialed_us: 0,
            chunk_left: 0,
            state: State::Closed,
            flags: 0,
            failures: 0,
        }
    }

    /// Whether this flag is set.
    pub fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Sets or clears a flag.
    pub fn set_flag(&mut self, flag: u8, value: bool) {
        self.flags = if value {
            self.flags | flag
        } else {
            self.flags & !flag
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
    pub fn endpoint(&self, index: u32) -> End {
        let address = Ipv4Addr::from(self.first + index / PORTS_PER_ADDRESS);
        End::new(address, (FIRST_PORT + index % PORTS_PER_ADDRESS) as u16)
    }

    /// The client with this address and port.
    pub fn index_of(&self, endpoint: End) -> Option<u32> {
        let address = u32::from(endpoint.address.to_ipv4_mapped()?).checked_sub(self.first)?;
        let port = u32::from(endpoint.port).checked_sub(FIRST_PORT)?;
        let index = address.checked_mul(PORTS_PER_ADDRESS)?.checked_add(port)?;
        (port < PORTS_PER_ADDRESS && index < self.count).then_some(index)
    }

    /// The first endpoint of each address.
    pub fn address_endpoints(&self) -> impl Iterator<Item = End> {
        let addresses = *self;
        let first_clients = (0..self.count).step_by(PORTS_PER_ADDRESS as usize);
        first_clients.map(move |index| addresses.endpoint(index))
    }
}

/// The received part of an incomplete answer, frame, event or line.
#[derive(Clone, Debug, Default)]
struct IncompleteUnit {
    bytes: Vec<u8>,
    /// If the body is chunked: the length of the part of `bytes` that is already decoded.
    decoded: usize,
}

/// The incomplete units of clients. Free entries keep their capacity.
#[derive(Default)]
pub struct IncompleteUnits {
    units: Vec<IncompleteUnit>,
    free_indices: Vec<u32>,
}

impl IncompleteUnits {
    /// Keeps the bytes of a client that has no incomplete unit. The first `decoded` bytes are already decoded.
    pub fn keep(&mut self, row: &mut ClientRow, bytes: &[u8], decoded: usize) {
        if bytes.is_empty() {
            return;
        }
        row.incomplete_unit = self.free_indices.pop().unwrap_or_else(|| {
            self.units.push(IncompleteUnit::default());
            self.units.len() as u32 - 1
        });
        let unit = &mut self.units[row.incomplete_unit as usize];
        unit.bytes.extend_from_slice(bytes);
        unit.decoded = decoded;
    }

    /// Appends the kept bytes of a client to `out`, and removes them here. Returns how many of them are already decoded.
    pub fn take(&mut self, row: &mut ClientRow, out: &mut Vec<u8>) -> usize {
        let Some(unit) = self.units.get_mut(row.incomplete_unit as usize) else {
            return 0;
        };
        self.free_indices
            .push(std::mem::replace(&mut row.incomplete_unit, NO_UNIT));
        out.append(&mut unit.bytes);
        unit.decoded
    }

    /// Discards the kept bytes of a client.
    pub fn discard(&mut self, row: &mut ClientRow) {
        if let Some(unit) = self.units.get_mut(row.incomplete_unit as usize) {
            self.free_indices
                .push(std::mem::replace(&mut row.incomplete_unit, NO_UNIT));
            unit.bytes.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_client_has_its_own_endpoint() {
        let addresses = ClientAddresses {
            first: 0x0a40_0100,
            count: 4_300_000,
        };
        for index in [0, 1, 59_999, 60_000, 4_299_999] {
            assert_eq!(addresses.index_of(addresses.endpoint(index)), Some(index));
        }
        let endpoint = addresses.endpoint(0);
        let before = Ipv4Addr::from(addresses.first - 1);
        let unknown_endpoints = [
            End {
                port: endpoint.port - 1,
                ..endpoint
            },
            End {
                port: u16::MAX,
                ..endpoint
            },
            End::new(before, endpoint.port),
            addresses.endpoint(4_300_000),
        ];
        assert!(
            unknown_endpoints
                .iter()
                .all(|endpoint| addresses.index_of(*endpoint).is_none())
        );
    }

    #[test]
    fn every_client_has_a_listed_address() {
        let addresses = ClientAddresses {
            first: 0x0a40_0100,
            count: 60_001,
        };
        let known_addresses: Vec<_> = addresses
            .address_endpoints()
            .map(|endpoint| endpoint.address)
            .collect();
        assert_eq!(known_addresses.len(), 2);
        for index in [0, 59_999, 60_000] {
            assert!(known_addresses.contains(&addresses.endpoint(index).address));
        }
    }

    #[test]
    fn incomplete_unit_is_taken_once_and_its_entry_is_used_again() {
        let mut units = IncompleteUnits::default();
        let mut rows = [ClientRow::new(); 3];
        units.keep(&mut rows[0], b"", 0);
        units.keep(&mut rows[1], b"one", 1);
        units.keep(&mut rows[2], b"two", 2);
        let mut out = b"-".to_vec();
        assert_eq!(units.take(&mut rows[0], &mut out), 0);
        assert_eq!(units.take(&mut rows[1], &mut out), 1);
        assert_eq!(units.take(&mut rows[1], &mut out), 0);
        units.discard(&mut rows[2]);
        units.keep(&mut rows[0], b"three", 0);
        units.keep(&mut rows[1], b"four", 0);
        assert_eq!(units.take(&mut rows[0], &mut out), 0);
        assert_eq!((&out[..], units.units.len()), (&b"-onethree"[..], 2));
    }
}
