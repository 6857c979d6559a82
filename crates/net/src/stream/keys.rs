//! The keys of established connections: the secrets and record counts of both directions.
//!
//! There are two tables, by the length of the secrets. A connection takes 80 bytes if its secrets have at most 32 bytes (AES-128, and
//! ChaCha20 of TLS 1.3), and otherwise 112 bytes. Both tables grow in chunks, so that a row never moves.
//!
//! Invariant: a free row holds zeros and the number of the next free row.

use zeroize::Zeroize as _;

use super::cipher::{Cipher, DirectionStart, SECRET_MAX};

/// Number of rows of a chunk. A chunk takes a few pages, little compared with the memory of its connections.
const CHUNK_ROWS: usize = 256;
/// Bytes of a short secret.
const SHORT: usize = 32;
const NONE: u32 = u32::MAX;

/// The lower bits of `Direction::count` are the record count. The bits above are the flags of the direction and two small counts.
const FLAGS: u32 = 48;

/// This direction has an entry in `Records::by_link`: a record that was sent or received in part.
pub const HAS_PARTIAL: u16 = 1;
/// This direction is closed: we sent an alert, or received `close_notify`.
pub const DIRECTION_CLOSED: u16 = 2;
/// The peer has asked for a new key, which must be sent before the next data.
pub const KEY_UPDATE_DUE: u16 = 4;
/// The caller was told that the last sealed byte was not taken, so that the caller tries again.
pub const RETRY_EXPECTED: u16 = 8;
/// The position, above the flags, of the peer's key updates as counted by [`Direction::count_update`].
const UPDATES_AT: u32 = FLAGS + 4;
/// The position, above the key updates, of the peer's consecutive empty records as counted by [`Direction::count_content`].
const EMPTY_AT: u32 = UPDATES_AT + 6;
/// The maximum number of a peer's key updates, if too few other records come between them. It is also the maximum number of consecutive
/// empty records: data records without a byte, and alerts without effect. BoringSSL has the same limit for key updates and for data records.
pub const IDLE_RECORDS_MAX: u64 = 32;
/// This many other records before a key update make up for one key update, whose cost is small compared with theirs.
const OTHERS_PER_UPDATE: u64 = 16;

/// One direction of a connection.
pub struct Direction<'a> {
    /// The secret of this direction.
    pub secret: &'a mut [u8],
    count: &'a mut u64,
}

impl Direction<'_> {
    /// The sequence number of the next record.
    pub fn seq(&self) -> u64 {
        *self.count & ((1 << FLAGS) - 1)
    }

    /// Counts a record.
    pub fn advance(&mut self) {
        *self.count += 1;
    }

    /// Resets the record count, because the direction has a new key.
    pub fn restart(&mut self) {
        *self.count &= !((1 << FLAGS) - 1);
    }

    /// Counts a key update. `others` is the number of other records since the last one. Returns true if there are too many key updates.
    pub fn count_update(&mut self, others: u64) -> bool {
        let mask = (1 << EMPTY_AT) - (1 << UPDATES_AT);
        let before = (*self.count & mask) >> UPDATES_AT;
        let updates = before.saturating_sub(others / OTHERS_PER_UPDATE) + 1;
        if updates > IDLE_RECORDS_MAX {
            return true;
        }
        *self.count = *self.count & !mask | updates << UPDATES_AT;
        false
    }

    /// Counts consecutive empty records, given the bytes of content of the next record. An alert without effect counts as empty. Returns
    /// true if there are too many.
    pub fn count_content(&mut self, bytes: usize) -> bool {
        if bytes > 0 {
            *self.count &= (1 << EMPTY_AT) - 1;
            return false;
        }
        let empty = *self.count >> EMPTY_AT;
        if empty < IDLE_RECORDS_MAX {
            *self.count += 1 << EMPTY_AT;
        }
        empty >= IDLE_RECORDS_MAX
    }

    pub fn has(&self, flag: u16) -> bool {
        *self.count >> FLAGS & u64::from(flag) != 0
    }

    pub fn set(&mut self, flag: u16) {
        *self.count |= u64::from(flag) << FLAGS;
    }

    pub fn clear(&mut self, flag: u16) {
        *self.count &= !(u64::from(flag) << FLAGS);
    }
}

struct Row<const N: usize> {
    to: [u8; N],
    from: [u8; N],
    sent: u64,
    received: u64,
}

impl<const N: usize> Row<N> {
    const EMPTY: Self = Row {
        to: [0; N],
        from: [0; N],
        sent: 0,
        received: 0,
    };
}

impl<const N: usize> Drop for Row<N> {
    fn drop(&mut self) {
        self.to.zeroize();
        self.from.zeroize();
    }
}

const _: () = assert!(
    IDLE_RECORDS_MAX < 1 << (EMPTY_AT - UPDATES_AT)
        && IDLE_RECORDS_MAX < 1 << (u64::BITS - EMPTY_AT)
);
const _: () = assert!(size_of::<Row<SHORT>>() == 80 && size_of::<Row<SECRET_MAX>>() == 112);

struct Table<const N: usize> {
    chunks: Vec<Box<[Row<N>]>>,
    free: u32,
    used: u32,
}

impl<const N: usize> Table<N> {
    const fn new() -> Self {
        Table {
            chunks: Vec::new(),
            free: NONE,
            used: 0,
        }
    }

    fn row(&mut self, id: u32) -> &mut Row<N> {
        &mut self.chunks[id as usize / CHUNK_ROWS][id as usize % CHUNK_ROWS]
    }

    fn insert(&mut self) -> u32 {
        if self.free == NONE {
            let first = (self.chunks.len() * CHUNK_ROWS) as u32;
            let mut chunk: Vec<Row<N>> = (0..CHUNK_ROWS).map(|_| Row::EMPTY).collect();
            for (n, row) in chunk.iter_mut().enumerate() {
                row.sent = u64::from(first) + n as u64 + 1;
            }
            chunk[CHUNK_ROWS - 1].sent = u64::from(NONE);
            self.chunks.push(chunk.into_boxed_slice());
            self.free = first;
        }
        self.used += 1;
        let id = self.free;
        let row = self.row(id);
        let next = row.sent as u32;
        row.sent = 0;
        self.free = next;
        id
    }

    fn remove(&mut self, id: u32) {
        let free = self.free;
        let row = self.row(id);
        row.to.zeroize();
        row.from.zeroize();
        (row.sent, row.received) = (u64::from(free), 0);
        self.free = id;
        self.used -= 1;
    }
}

/// The place of a connection's keys: the cipher, which selects the table, and the row.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyPlace {
    pub cipher: Cipher,
    pub row: u32,
}

/// The keys of all established connections of a shard.
pub struct Keys {
    short: Table<SHORT>,
    long: Table<SECRET_MAX>,
}

impl Keys {
    pub const fn new() -> Keys {
        Keys {
            short: Table::new(),
            long: Table::new(),
        }
    }

    /// Number of connections in the tables.
    pub fn len(&self) -> u32 {
        self.short.used + self.long.used
    }

    /// Bytes that the tables occupy.
    pub fn bytes(&self) -> usize {
        self.short.chunks.len() * CHUNK_ROWS * size_of::<Row<SHORT>>()
            + self.long.chunks.len() * CHUNK_ROWS * size_of::<Row<SECRET_MAX>>()
    }

    /// Stores the keys of a connection, for sending (`to`) and for receiving (`from`).
    pub fn insert(
        &mut self,
        cipher: Cipher,
        to: &DirectionStart,
        from: &DirectionStart,
    ) -> KeyPlace {
        let row = if cipher.secret_bytes() <= SHORT {
            self.short.insert()
        } else {
            self.long.insert()
        };
        let place = KeyPlace { cipher, row };
        fill(self.to(place), to);
        fill(self.from(place), from);
        place
    }

    pub fn remove(&mut self, place: KeyPlace) {
        if place.cipher.secret_bytes() <= SHORT {
            self.short.remove(place.row);
        } else {
            self.long.remove(place.row);
        }
    }

    /// The direction in which we send, to the peer.
    pub fn to(&mut self, place: KeyPlace) -> Direction<'_> {
        let bytes = place.cipher.secret_bytes();
        let (secret, count) = if bytes <= SHORT {
            let row = self.short.row(place.row);
            (&mut row.to[..bytes], &mut row.sent)
        } else {
            let row = self.long.row(place.row);
            (&mut row.to[..bytes], &mut row.sent)
        };
        Direction { secret, count }
    }

    /// The direction in which we receive, from the peer.
    pub fn from(&mut self, place: KeyPlace) -> Direction<'_> {
        let bytes = place.cipher.secret_bytes();
        let (secret, count) = if bytes <= SHORT {
            let row = self.short.row(place.row);
            (&mut row.from[..bytes], &mut row.received)
        } else {
            let row = self.long.row(place.row);
            (&mut row.from[..bytes], &mut row.received)
        };
        Direction { secret, count }
    }
}

fn fill(direction: Direction<'_>, start: &DirectionStart) {
    direction.secret.copy_from_slice(start.secret.bytes());
    *direction.count = start.seq;
}
