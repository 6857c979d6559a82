//! Numbers that identify shards, partitions, connections and orders.

/// A shard's number.
pub type ShardId = u16;

/// A partition's number.
pub type PartitionId = u16;

/// The number by which the transport knows a connection. It is small, and is reused once the connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketId(pub u32);

/// Identifies a connection within its shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnId {
    /// The connection's row in the table of its shard.
    pub slot: u32,
    /// Distinguishes the successive connections of this row.
    pub generation: u16,
}

impl ConnId {
    /// The id as one number, for the poller's event data.
    pub fn token(self) -> u64 {
        u64::from(self.slot) | u64::from(self.generation) << 32
    }

    /// The inverse of [`ConnId::token`].
    pub fn from_token(token: u64) -> Self {
        ConnId {
            slot: token as u32,
            generation: (token >> 32) as u16,
        }
    }
}

/// Identifies an order of the operator to a shard. The sender chooses the number, and the shard repeats it in the report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub u64);

/// In a cluster the log assigns the offsets. This many low bits of an offset are the index of the record in its batch.
pub const OFFSET_BITS: u32 = 12;
/// In a cluster, the offsets reserved for each batch.
pub(crate) const OFFSETS_PER_BATCH: u64 = 1 << OFFSET_BITS;
