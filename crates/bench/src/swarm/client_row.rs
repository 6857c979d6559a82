//! The state of a client. An idle client costs only a row of fixed size. Address and port are computed from the client's index. The few
//! clients with unacknowledged or incomplete data have buffers, too.

use super::packet::End;

/// The number of ports of one address that clients use, and the first of these ports. Services use lower ports.
const PORTS: u32 = 60_000;
const PORT_FIRST: u32 = 2_048;
/// In place of the index of buffers: the client has none.
pub const NO_BUFFERS: u32 = u32::MAX;

/// The connection state of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// No connection. Segments that still arrive are answered with a reset.
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

/// Flags of a row.
pub mod mark {
    /// No message has arrived since the connection opened.
    pub const FIRST: u8 = 1;
    /// The client is a slow reader.
    pub const SLOW: u8 = 2;
    /// An acknowledgement is due at the end of the turn.
    pub const ACK_PENDING: u8 = 4;
    /// The body is chunked.
    pub const CHUNKED: u8 = 8;
    /// The timer of a slow reader is set.
    pub const HAS_TIMER: u8 = 16;
}

/// The state of one client.
#[derive(Clone, Copy, Debug)]
pub struct ClientRow {
    /// The next sequence number expected from the server.
    pub receive_next: u32,
    /// The sequence number of the first unacknowledged byte.
    pub send_first: u32,
    /// The sequence number of the next byte to send.
    pub send_next: u32,
    /// The number of the last message. 0 before the first one.
    pub last: u32,
    /// The number of the last message that had been published to the client's topic when the client's connection opened.
    pub published: u32,
    /// When the client sent its SYN, in microseconds. The value wraps after an hour.
    pub dialed_us: u32,
    /// The index of the client's buffers, or [`NO_BUFFERS`].
    pub buffers: u32,
    /// Bytes still missing from the current chunk.
    pub chunk_left: u32,
    /// The receive window. A timer refills the window of a slow reader.
    pub window: u16,
    /// The connection state.
    pub state: State,
    /// Flags, see [`mark`].
    pub marks: u8,
    /// Failed attempts to connect since the client was last open.
    pub failures: u8,
}

/// The maximum size of a client's row, in bytes. The server's end of a connection costs some 4,400 bytes, so the server decides how many
/// connections fit into the memory.
const ROW_BYTES_MAX: usize = 128;
const _: () = assert!(size_of::<ClientRow>() <= 40 && size_of::<ClientRow>() <= ROW_BYTES_MAX);

impl ClientRow {
    /// A client that has never connected.
    pub fn new(number: u32) -> ClientRow {
        ClientRow {
            receive_next: 0,
            send_first: number,
            send_next: number,
            last: 0,
            published: 0,
            dialed_us: 0,
            buffers: NO_BUFFERS,
            chunk_left: 0,
            window: u16::MAX,
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
        End {
            address: self.first + index / PORTS,
            port: (PORT_FIRST + index % PORTS) as u16,
        }
    }

    /// The client with this address and port.
    pub fn index(&self, end: End) -> Option<u32> {
        let address = end.address.checked_sub(self.first)?;
        let port = u32::from(end.port).checked_sub(PORT_FIRST)?;
        let index = address.checked_mul(PORTS)?.checked_add(port)?;
        (port < PORTS && index < self.count).then_some(index)
    }
}

/// Data of a client that does not fit into its row. Few clients have such data.
#[derive(Clone, Debug, Default)]
pub struct ClientBuffers {
    /// Bytes that are sent and not yet acknowledged.
    pub unacknowledged: Vec<u8>,
    /// The received part of an incomplete answer, frame, event or line.
    pub held: Vec<u8>,
    /// If the body is chunked: the length of the part of `held` that is already decoded.
    pub decoded: usize,
}

/// The buffers of clients. Free buffers keep their capacity.
#[derive(Default)]
pub struct BufferPool {
    rows: Vec<ClientBuffers>,
    free: Vec<u32>,
}

impl BufferPool {
    /// The buffers of a client. Allocates them if the client has none.
    pub fn of(&mut self, row: &mut ClientRow) -> &mut ClientBuffers {
        if row.buffers == NO_BUFFERS {
            row.buffers = self.free.pop().unwrap_or_else(|| {
                self.rows.push(ClientBuffers::default());
                self.rows.len() as u32 - 1
            });
        }
        &mut self.rows[row.buffers as usize]
    }

    /// The buffers of a client, if it has some.
    pub fn get(&mut self, row: &ClientRow) -> Option<&mut ClientBuffers> {
        self.rows.get_mut(row.buffers as usize)
    }

    /// Frees a client's buffers if they are empty.
    pub fn tidy(&mut self, row: &mut ClientRow) {
        let is_empty = self
            .get(row)
            .is_some_and(|buffers| buffers.unacknowledged.is_empty() && buffers.held.is_empty());
        if is_empty {
            self.release(row);
        }
    }

    /// Frees a client's buffers.
    pub fn release(&mut self, row: &mut ClientRow) {
        if let Some(buffers) = self.get(row) {
            buffers.unacknowledged.clear();
            buffers.held.clear();
            buffers.decoded = 0;
            self.free.push(row.buffers);
            row.buffers = NO_BUFFERS;
        }
    }

    /// The number of buffers in use or free. This is the maximum number that was ever in use at the same time.
    pub fn allocated(&self) -> usize {
        self.rows.len()
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
            addresses.end(4_300_000),
        ];
        assert!(strangers.iter().all(|end| addresses.index(*end).is_none()));
    }
}
