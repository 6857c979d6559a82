//! The format of a snapshot: the state that a home (the part of a shard that keeps topics) leaves to the homes of the next process
//! at a planned restart. It has the offsets and logs of topics, retained messages, groups, and MQTT sessions, so that clients with
//! a position or a session continue as if there had been no restart.
//!
//! A snapshot is a sequence of blocks, each with its length and a checksum. The first block is the [`Head`]. The last block has the number of records.
//! The snapshot is written and read block by block, so that writer and reader hold only one block in memory.
//!
//! Each record names a partition, or a topic that determines the partition, so a server with another number of homes can read the
//! snapshots. A home reads the snapshots of all homes that had one of its partitions, and skips the records of other partitions.
//!
//! Invariants: a snapshot is written when no connection is left and nothing is in flight ([`Settled`](crate::Settled)). It is valid as a whole or not at
//! all: damaged bytes are refused. A session is written as in `mail/session/stored.rs`. A change of that encoding needs a new [`FORMAT`].
//!
//! Deliberately not here: files, and the removal of unused snapshots.

mod bytes;

use alloc::vec::Vec;

use xxhash_rust::xxh3::xxh3_64_with_seed;

pub(crate) use bytes::{FieldReader, FieldWriter};

use crate::base::ids::{PartitionId, ShardId};
use crate::base::placement::{Placement, SLOTS};

/// The first bytes of every snapshot.
pub const MAGIC: &[u8; 12] = b"crore state\n";
/// The version of the format. Other versions are refused.
pub const FORMAT: u16 = 9;
/// Bytes before the first block.
pub const PREAMBLE_BYTES: usize = MAGIC.len() + 2;
/// Bytes before each block: its length and its checksum.
pub const BLOCK_HEAD_BYTES: usize = 12;
/// A block ends with the record that reaches this length.
pub(crate) const BLOCK_BYTES: usize = 256 << 10;
/// Longest block: `BLOCK_BYTES` and the longest message.
const BLOCK_BYTES_MAX: usize = 512 << 20;

/// Why a snapshot is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged(pub &'static str);

impl core::fmt::Display for Damaged {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.0)
    }
}

/// The first block of a snapshot. A stop of the server writes one snapshot for each home. Their heads differ only in `home`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Identifies the stop of the server.
    pub stop_id: u64,
    /// The epoch of the logs.
    pub epoch: u32,
    /// The seed of the hashes.
    pub seed: u64,
    /// Number of partitions.
    pub partitions: PartitionId,
    /// Number of homes.
    pub homes: ShardId,
    /// The home that wrote this snapshot.
    pub home: ShardId,
    /// The time of the snapshot as [`Now::unix_s`](crate::Now::unix_s), like all times in the snapshot.
    pub unix_s: u32,
    /// The wall clock at the time of the snapshot: the only clock that outlives the process.
    pub wall_s: u32,
}

impl Head {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let mut out = FieldWriter(out);
        out.word(self.stop_id);
        out.number(u64::from(self.epoch));
        out.word(self.seed);
        out.number(u64::from(self.partitions));
        out.number(u64::from(self.homes));
        out.number(u64::from(self.home));
        out.number(u64::from(self.unix_s));
        out.number(u64::from(self.wall_s));
    }

    /// Reads the first block of a snapshot.
    ///
    /// # Errors
    /// If the block is not a valid head.
    pub fn read(block: &[u8]) -> Result<Head, Damaged> {
        let mut block = FieldReader(block);
        let (stop_id, epoch, seed) = (block.word()?, block.number32()?, block.word()?);
        let (partitions, homes) = (block.number16()?, block.number16()?);
        if homes == 0 {
            return Err(INVALID_HEAD);
        }
        let head = Head {
            stop_id,
            epoch,
            seed,
            partitions,
            homes,
            home: block.number16()?,
            unix_s: block.number32()?,
            wall_s: block.number32()?,
        };
        let is_placed = head.homes <= head.partitions && usize::from(head.partitions) <= SLOTS;
        match block.is_empty() && head.home < head.homes && is_placed {
            true => Ok(head),
            false => Err(INVALID_HEAD),
        }
    }

    /// The home that wrote this snapshot.
    pub(crate) fn origin(&self) -> Origin {
        Origin {
            placement: Placement::new(self.partitions, self.homes),
            home: self.home,
            epoch: self.epoch,
            restores_local: true,
        }
    }
}

const INVALID_HEAD: Damaged = Damaged("its head is not valid");

/// The home that wrote a snapshot, as seen by the home that reads it.
pub(crate) struct Origin {
    pub placement: Placement,
    pub home: ShardId,
    /// The epoch of the logs when the snapshot was written.
    pub epoch: u32,
    /// Whether to restore local state: sessions, groups, and filters that keep messages.
    pub restores_local: bool,
}

impl Origin {
    /// The slots that `home` takes over, under this placement, from the home that wrote the snapshot.
    pub fn slots(&self, placement: Placement, home: ShardId) -> impl Iterator<Item = u8> {
        let (former_placement, former_home) = (self.placement, self.home);
        let takes_over = move |slot: &u8| {
            let partition = placement.partition_of_slot(*slot);
            former_placement.home_of(partition) == former_home
                && placement.home_of(partition) == home
        };
        (0..=u8::MAX).filter(takes_over)
    }

    /// Whether `home` takes over, under this placement, the topic or session of this name.
    ///
    /// # Errors
    /// If the name does not belong to the home that wrote the snapshot.
    pub fn takes_over(
        &self,
        name: &[u8],
        placement: Placement,
        home: ShardId,
    ) -> Result<bool, Damaged> {
        match self.placement.home_of_name(name) == self.home {
            true => Ok(placement.home_of_name(name) == home),
            false => Err(Damaged("a name belongs elsewhere")),
        }
    }
}

/// The first bytes of every snapshot: the magic and the format.
pub fn preamble() -> [u8; PREAMBLE_BYTES] {
    let mut preamble = [0; PREAMBLE_BYTES];
    preamble[..MAGIC.len()].copy_from_slice(MAGIC);
    preamble[MAGIC.len()..].copy_from_slice(&FORMAT.to_le_bytes());
    preamble
}

/// The format of the snapshot that begins with these bytes.
///
/// # Errors
/// If the bytes are not the beginning of a snapshot.
pub fn format_of(bytes: &[u8; PREAMBLE_BYTES]) -> Result<u16, Damaged> {
    if bytes[..MAGIC.len()] != MAGIC[..] {
        return Err(Damaged("it is no state of a crore"));
    }
    Ok(u16::from_le_bytes([
        bytes[MAGIC.len()],
        bytes[MAGIC.len() + 1],
    ]))
}

/// The head of the block `number` (the first is 0): length and checksum.
pub fn block_head(number: u64, block: &[u8]) -> [u8; BLOCK_HEAD_BYTES] {
    let mut head = [0; BLOCK_HEAD_BYTES];
    head[..4].copy_from_slice(&(block.len() as u32).to_le_bytes());
    head[4..].copy_from_slice(&xxh3_64_with_seed(block, number).to_le_bytes());
    head
}

/// The length of the block after this head.
///
/// # Errors
/// If the length is greater than that of any block.
pub fn block_bytes(head: &[u8; BLOCK_HEAD_BYTES]) -> Result<usize, Damaged> {
    let [a, b, c, d, ..] = *head;
    let bytes = u32::from_le_bytes([a, b, c, d]) as usize;
    match bytes <= BLOCK_BYTES_MAX {
        true => Ok(bytes),
        false => Err(Damaged("a block is too long")),
    }
}

/// Checks that `block` is the `number`th block and undamaged.
///
/// # Errors
/// If the head does not match the block.
pub fn check_block(
    head: &[u8; BLOCK_HEAD_BYTES],
    number: u64,
    block: &[u8],
) -> Result<(), Damaged> {
    match *head == block_head(number, block) {
        true => Ok(()),
        false => Err(Damaged("a checksum is wrong")),
    }
}

/// The kinds of records in a snapshot.
pub(crate) mod kind {
    /// State of the home as a whole.
    pub const HOME: u8 = 1;
    pub const TOPIC: u8 = 2;
    /// A filter whose subscriptions of QoS 1 and 2 make the home keep messages.
    pub const FILTER: u8 = 3;
    /// A shared subscription.
    pub const GROUP: u8 = 4;
    /// The last loss of a topic.
    pub const LOSS: u8 = 5;
    /// The last loss of a forgotten topic, with the topic's name.
    pub const FORGOTTEN: u8 = 6;
    /// For one rule: the last loss of the forgotten topics whose names are not remembered.
    pub const RULE_LOSS: u8 = 7;
    pub const MESSAGE: u8 = 8;
    /// The answer to an idempotency key.
    pub const ANSWER: u8 = 9;
    /// An MQTT session whose client is absent.
    pub const SESSION: u8 = 10;
    /// A row of the session table that has no session of an absent client. The record keeps the row's serial.
    pub const NO_SESSION: u8 = 11;
    /// The end of the snapshot.
    pub const END: u8 = 12;
    /// The partition of the session records that follow.
    pub const SESSIONS: u8 = 13;
    /// The writer set of a partition.
    pub const WRITER_SET: u8 = 14;
    /// A QoS 2 message of an MQTT session that its client has not released.
    pub const UNRELEASED: u8 = 15;
    /// The recorded position of a shared subscription in a partition.
    pub const GROUP_POSITION: u8 = 16;
    /// The newest claim of an MQTT session that a partition's QoS 2 messages have shown.
    pub const NEWEST_CLAIM: u8 = 17;
    /// The token of an MQTT session or a will that has ended a short time ago in a cluster.
    pub const RETIRED_TOKEN: u8 = 18;
}

/// A block that is being written, with the number of records in the snapshot so far.
pub(crate) struct Block<'a> {
    pub bytes: &'a mut Vec<u8>,
    pub records: u64,
}

impl Block<'_> {
    pub fn record(&mut self, kind: u8) -> FieldWriter<'_> {
        self.records += 1;
        self.bytes.push(kind);
        FieldWriter(self.bytes)
    }

    /// Whether the next record should begin a new block.
    pub fn is_full(&self) -> bool {
        self.bytes.len() >= BLOCK_BYTES
    }
}

/// The error for a record that names a topic which the snapshot does not have.
pub(crate) const NO_TOPIC: Damaged = Damaged("a topic is missing");
