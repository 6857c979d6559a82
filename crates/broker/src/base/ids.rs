//! How shards and connections are named.

/// A shard's number.
pub type ShardId = u16;

/// A partition's number.
pub type PartitionId = u16;

/// The transport's number of a connection: small, and used again once the connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link(pub u32);

/// A connection of one shard, as long as it lasts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnId {
    /// Its row.
    pub slot: u32,
    /// Tells apart the connections that have used the row.
    pub generation: u16,
}

impl ConnId {
    /// As one number, for a poller to carry.
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

/// Identifies an order, so that its report finds the sender. The sender chooses it; the shard only returns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket(pub u64);

/// Bits of an offset for the place of a record in its batch, where the log gives offsets: no batch has more records.
pub const OFFSET_BITS: u32 = 12;
/// Offsets of a batch in such a log.
pub(crate) const OFFSETS_PER_BATCH: u64 = 1 << OFFSET_BITS;
