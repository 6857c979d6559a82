//! The keys of established connections: the secrets and record counts of both directions.
//!
//! There are two tables, by the length of the secrets. A connection takes 80 bytes if its secrets have at most 32 bytes (AES-128, and
//! ChaCha20 of TLS 1.3), and otherwise 112 bytes. Both tables grow in chunks, so that a row never moves.
//!
//! Invariant: a free row holds zeros and, in `send_count`, the number of the next free row.

use zeroize::Zeroize as _;

use super::cipher::{Cipher, DirectionStart, SECRET_MAX};

/// Number of rows of a chunk. A chunk takes a few pages, little compared with the memory of its connections.
const CHUNK_ROWS: usize = 256;
/// Bytes of a short secret.
const SHORT_SECRET_BYTES: usize = 32;
const NO_ROW: u32 = u32::MAX;

/// The lower bits of `Direction::count` are the record count. The bits above are the flags of the direction and two small counts.
const FLAGS_SHIFT: u32 = 48;

/// This direction has an entry in `Records::by_link`: a record that was sent or received in part.
pub const HAS_PARTIAL: u16 = 1;
/// This direction is closed: we sent an alert, or received `close_notify`.
pub const DIRECTION_CLOSED: u16 = 2;
/// The peer has asked for a new key, which must be sent before the next data.
pub const KEY_UPDATE_DUE: u16 = 4;
/// The caller was told that the last sealed byte was not taken, so that the caller tries again.
pub const RETRY_EXPECTED: u16 = 8;
/// The position, above the flags, of the peer's key updates as counted by [`Direction::count_update`].
const UPDATES_SHIFT: u32 = FLAGS_SHIFT + 4;
/// The position, above the key updates, of the peer's consecutive empty records as counted by [`Direction::count_content`].
const EMPTY_RECORDS_SHIFT: u32 = UPDATES_SHIFT + 6;
/// The maximum number of a peer's key updates, if too few other records come between them. It is also the maximum number of consecutive
/// empty records: data records without a byte, and alerts without effect. BoringSSL has the same limit for key updates and for data records.
pub const IDLE_RECORDS_MAX: u64 = 32;
/// This many other records compensate for one key update: its cost is small compared with theirs.
const RECORDS_PER_UPDATE: u64 = 16;

/// One direction of a connection.
pub struct Direction<'a> {
    /// The secret of this direction.
    pub secret: &'a mut [u8],
    count: &'a mut u64,
}

impl Direction<'_> {
    /// The sequence number of the next record.
    pub fn seq(&self) -> u64 {
        *self.count & ((1 << FLAGS_SHIFT) - 1)
    }

    /// Counts a record.
    pub fn advance(&mut self) {
        *self.count += 1;
    }

    /// Resets the record count, because the direction has a new key.
    pub fn reset_seq(&mut self) {
        *self.count &= !((1 << FLAGS_SHIFT) - 1);
    }

    /// Counts a key update. `other_records` is the number of other records since the last one. Returns true if there are too many key
    /// updates.
    pub fn count_update(&mut self, other_records: u64) -> bool {
        let mask = (1 << EMPTY_RECORDS_SHIFT) - (1 << UPDATES_SHIFT);
        let earlier_updates = (*self.count & mask) >> UPDATES_SHIFT;
        let updates = earlier_updates.saturating_sub(other_records / RECORDS_PER_UPDATE) + 1;
        if updates > IDLE_RECORDS_MAX {
            return true;
        }
        *self.count = *self.count & !mask | updates << UPDATES_SHIFT;
        false
    }

    /// Counts consecutive empty records, given the bytes of content of the next record. An alert without effect counts as empty. Returns
    /// true if there are too many.
    pub fn count_content(&mut self, bytes: usize) -> bool {
        if bytes > 0 {
            *self.count &= (1 << EMPTY_RECORDS_SHIFT) - 1;
            return false;
        }
        let empty_records = *self.count >> EMPTY_RECORDS_SHIFT;
        if empty_records < IDLE_RECORDS_MAX {
            *self.count += 1 << EMPTY_RECORDS_SHIFT;
        }
        empty_records >= IDLE_RECORDS_MAX
    }

    pub fn has(&self, flag: u16) -> bool {
        *self.count >> FLAGS_SHIFT & u64::from(flag) != 0
    }

    pub fn set(&mut self, flag: u16) {
        *self.count |= u64::from(flag) << FLAGS_SHIFT;
    }

    pub fn clear(&mut self, flag: u16) {
        *self.count &= !(u64::from(flag) << FLAGS_SHIFT);
    }
}

struct Row<const N: usize> {
    send_secret: [u8; N],
    receive_secret: [u8; N],
    send_count: u64,
    receive_count: u64,
}

impl<const N: usize> Row<N> {
    const EMPTY: Self = Row {
        send_secret: [0; N],
        receive_secret: [0; N],
        send_count: 0,
        receive_count: 0,
    };
}

impl<const N: usize> Drop for Row<N> {
    fn drop(&mut self) {
        self.send_secret.zeroize();
        self.receive_secret.zeroize();
    }
}

const _: () = assert!(
    IDLE_RECORDS_MAX < 1 << (EMPTY_RECORDS_SHIFT - UPDATES_SHIFT)
        && IDLE_RECORDS_MAX < 1 << (u64::BITS - EMPTY_RECORDS_SHIFT)
);
const _: () =
    assert!(size_of::<Row<SHORT_SECRET_BYTES>>() == 80 && size_of::<Row<SECRET_MAX>>() == 112);

struct Table<const N: usize> {
    chunks: Vec<Box<[Row<N>]>>,
    first_free: u32,
    used_rows: u32,
}

impl<const N: usize> Table<N> {
    const fn new() -> Self {
        Table {
            chunks: Vec::new(),
            first_free: NO_ROW,
            used_rows: 0,
        }
    }

    fn row(&mut self, id: u32) -> &mut Row<N> {
        &mut self.chunks[id as usize / CHUNK_ROWS][id as usize % CHUNK_ROWS]
    }

    fn insert(&mut self) -> u32 {
        if self.first_free == NO_ROW {
            let first = (self.chunks.len() * CHUNK_ROWS) as u32;
            let mut chunk: Vec<Row<N>> = (0..CHUNK_ROWS).map(|_| Row::EMPTY).collect();
            for (n, row) in chunk.iter_mut().enumerate() {
                row.send_count = u64::from(first) + n as u64 + 1;
            }
            chunk[CHUNK_ROWS - 1].send_count = u64::from(NO_ROW);
            self.chunks.push(chunk.into_boxed_slice());
            self.first_free = first;
        }
        self.used_rows += 1;
        let id = self.first_free;
        let row = self.row(id);
        let next = row.send_count as u32;
        row.send_count = 0;
        self.first_free = next;
        id
    }

    fn remove(&mut self, id: u32) {
        let first_free = self.first_free;
        let row = self.row(id);
        row.send_secret.zeroize();
        row.receive_secret.zeroize();
        (row.send_count, row.receive_count) = (u64::from(first_free), 0);
        self.first_free = id;
        self.used_rows -= 1;
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
    short: Table<SHORT_SECRET_BYTES>,
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
        self.short.used_rows + self.long.used_rows
    }

    /// Bytes that the tables occupy.
    pub fn bytes(&self) -> usize {
        self.short.chunks.len() * CHUNK_ROWS * size_of::<Row<SHORT_SECRET_BYTES>>()
            + self.long.chunks.len() * CHUNK_ROWS * size_of::<Row<SECRET_MAX>>()
    }

    /// Stores the keys of a connection.
    pub fn insert(
        &mut self,
        cipher: Cipher,
        sending: &DirectionStart,
        receiving: &DirectionStart,
    ) -> KeyPlace {
        let row = if cipher.secret_bytes() <= SHORT_SECRET_BYTES {
            self.short.insert()
        } else {
            self.long.insert()
        };
        let place = KeyPlace { cipher, row };
        set_direction(self.sending(place), sending);
        set_direction(self.receiving(place), receiving);
        place
    }

    pub fn remove(&mut self, place: KeyPlace) {
        if place.cipher.secret_bytes() <= SHORT_SECRET_BYTES {
            self.short.remove(place.row);
        } else {
            self.long.remove(place.row);
        }
    }

    /// The direction in which we send, to the peer.
    pub fn sending(&mut self, place: KeyPlace) -> Direction<'_> {
        let bytes = place.cipher.secret_bytes();
        let (secret, count) = if bytes <= SHORT_SECRET_BYTES {
            let row = self.short.row(place.row);
            (&mut row.send_secret[..bytes], &mut row.send_count)
        } else {
            let row = self.long.row(place.row);
            (&mut row.send_secret[..bytes], &mut row.send_count)
        };
        Direction { secret, count }
    }

    /// The direction in which we receive, from the peer.
    pub fn receiving(&mut self, place: KeyPlace) -> Direction<'_> {
        let bytes = place.cipher.secret_bytes();
        let (secret, count) = if bytes <= SHORT_SECRET_BYTES {
            let row = self.short.row(place.row);
            (&mut row.receive_secret[..bytes], &mut row.receive_count)
        } else {
            let row = self.long.row(place.row);
            (&mut row.receive_secret[..bytes], &mut row.receive_count)
        };
        Direction { secret, count }
    }
}

fn set_direction(direction: Direction<'_>, start: &DirectionStart) {
    direction.secret.copy_from_slice(start.secret.bytes());
    *direction.count = start.seq;
}
