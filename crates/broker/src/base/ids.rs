//! Numbers that identify shards, partitions, connections and orders.

/// A shard's number.
pub type ShardId = u16;

/// A partition's number.
pub type PartitionId = u16;

/// The transport's number of a connection. Small; reused once the connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link(pub u32);

/// Identifies a connection within its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnId {
    /// Its row.
    pub slot: u32,
    /// Distinguishes the connections that used this row.
    pub generation: u16,
}

impl ConnId {
    /// As one number, for the poller's event data.
    pub fn token(self) -> u64 {
        u64::from(self.slot) | u64::from(self.generation) << 32
    }

    /// Back from [`ConnId::token`].
    pub fn from_token(token: u64) -> Self {
        ConnId {
            slot: token as u32,
            generation: (token >> 32) as u16,
        }
    }
}

/// Identifies an order. Its sender chooses the number, and the shard repeats it in the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub u64);

/// In a cluster the log assigns offsets: these low bits are the index of a record in its batch, so no batch has more records.
pub const OFFSET_BITS: u32 = 12;
/// Offsets reserved for a batch in such a log.
pub(crate) const OFFSETS_PER_BATCH: u64 = 1 << OFFSET_BITS;
