//! The state that a home leaves for its successors at a planned restart: the epoch and offsets of its topics, their logs and
//! retained messages, groups, and MQTT sessions. Clients with a position or a session go on as if there had been no restart.
//!
//! A snapshot is blocks of bytes, each with its length and a checksum; the first is the [`Head`], the last has the
//! number of records. It is written and read block by block, so that neither side holds more than one block.
//!
//! Each record names its partition, by itself or by its topic, so that a server with another number of homes reads it: each home
//! reads the snapshots of all homes that had one of its partitions, and leaves out what belongs to others.
//!
//! Invariants: a snapshot is taken when no connection is left and nothing is under way ([`Settled`](crate::Settled));
//! it is valid as a whole or not at all. Damaged bytes are refused, never guessed at. A session's state is stored as
//! its carrier wrote it (`protocol/mqtt/kept.rs`): when that form changes, [`FORMAT`] does too.
//!
//! Deliberately not here: files, and what happens to an unused snapshot.

mod bytes;

use alloc::vec::Vec;

use xxhash_rust::xxh3::xxh3_64_with_seed;

pub(crate) use bytes::{In, Out};

use crate::base::ids::{PartitionId, ShardId};
use crate::base::placement::{Placement, SLOTS};

/// The first bytes of every snapshot.
pub const MAGIC: &[u8; 12] = b"crore state\n";
/// The version of the form of the records. No other one is read.
pub const FORMAT: u16 = 9;
/// Bytes before the first block.
pub const PREAMBLE_BYTES: usize = MAGIC.len() + 2;
/// Bytes before each block: its length and its checksum.
pub const BLOCK_HEAD_BYTES: usize = 12;
/// A block is closed at this length; a single message may make it longer.
pub(crate) const BLOCK_BYTES: usize = 256 << 10;
/// No block is longer: the longest message and a full block.
const BLOCK_BYTES_MAX: usize = 512 << 20;

/// Why a snapshot is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged(pub &'static str);

impl core::fmt::Display for Damaged {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.0)
    }
}

/// The numbers that the snapshots of one stop have in common, and the home of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// A different number for each stop.
    pub set: u64,
    /// The epoch of the logs.
    pub epoch: u32,
    /// The seed of the hashes.
    pub seed: u64,
    /// How many partitions there are.
    pub partitions: PartitionId,
    /// How many homes there were.
    pub homes: ShardId,
    /// The number of this home.
    pub home: ShardId,
    /// When the snapshot was taken, as [`Now::unix_s`](crate::Now::unix_s): all times in it are of that count.
    pub unix_s: u32,
    /// The wall clock then. No other clock outlives the process.
    pub wall_s: u32,
}

impl Head {
    pub(crate) fn write(&self, out: &mut Vec<u8>) {
        let mut out = Out(out);
        out.word(self.set);
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
    /// When the block is not a valid head.
    pub fn read(block: &[u8]) -> Result<Head, Damaged> {
        let mut block = In(block);
        let (set, epoch, seed) = (block.word()?, block.number32()?, block.word()?);
        let (partitions, homes) = (block.number16()?, block.number16()?);
        if homes == 0 {
            return Err(NO_HEAD);
        }
        let head = Head {
            set,
            epoch,
            seed,
            partitions,
            homes,
            home: block.number16()?,
            unix_s: block.number32()?,
            wall_s: block.number32()?,
        };
        let placed = head.homes <= head.partitions && usize::from(head.partitions) <= SLOTS;
        match block.is_empty() && head.home < head.homes && placed {
            true => Ok(head),
            false => Err(NO_HEAD),
        }
    }

    /// Where this snapshot comes from.
    pub(crate) fn origin(&self) -> Origin {
        Origin {
            placement: Placement::new(self.partitions, self.homes),
            home: self.home,
            epoch: self.epoch,
            local: true,
        }
    }
}

const NO_HEAD: Damaged = Damaged("its head is none");

/// Where the records come from that are read: the home that wrote them.
pub(crate) struct Origin {
    pub placement: Placement,
    pub home: ShardId,
    /// The life of the logs in which they were written.
    pub epoch: u32,
    /// Whether local state is taken over: sessions, groups, and which filters need messages kept.
    pub local: bool,
}

impl Origin {
    /// The slots of these partitions.
    pub fn slots(&self, now: Placement, me: ShardId) -> impl Iterator<Item = u8> {
        let (former, home) = (self.placement, self.home);
        let is = move |slot: &u8| {
            let partition = now.of_slot(*slot);
            former.home_of(partition) == home && now.home_of(partition) == me
        };
        (0..=u8::MAX).filter(is)
    }

    /// Whether a topic or session of this name is to be read at `me`.
    ///
    /// # Errors
    /// When it was not at the home that wrote it.
    pub fn is_for(&self, name: &[u8], now: Placement, me: ShardId) -> Result<bool, Damaged> {
        match self.placement.home_of_name(name) == self.home {
            true => Ok(now.home_of_name(name) == me),
            false => Err(Damaged("a name belongs elsewhere")),
        }
    }
}

/// The first bytes of every snapshot: the magic and the form.
pub fn preamble() -> [u8; PREAMBLE_BYTES] {
    let mut preamble = [0; PREAMBLE_BYTES];
    preamble[..MAGIC.len()].copy_from_slice(MAGIC);
    preamble[MAGIC.len()..].copy_from_slice(&FORMAT.to_le_bytes());
    preamble
}

/// The version of the snapshot that these bytes begin.
///
/// # Errors
/// When they begin something else.
pub fn format_of(bytes: &[u8; PREAMBLE_BYTES]) -> Result<u16, Damaged> {
    if bytes[..MAGIC.len()] != MAGIC[..] {
        return Err(Damaged("it is no state of a crore"));
    }
    Ok(u16::from_le_bytes([
        bytes[MAGIC.len()],
        bytes[MAGIC.len() + 1],
    ]))
}

/// The head of the `number`th block.
pub fn seal(number: u64, block: &[u8]) -> [u8; BLOCK_HEAD_BYTES] {
    let mut head = [0; BLOCK_HEAD_BYTES];
    head[..4].copy_from_slice(&(block.len() as u32).to_le_bytes());
    head[4..].copy_from_slice(&xxh3_64_with_seed(block, number).to_le_bytes());
    head
}

/// Length of the block behind this head, in bytes.
///
/// # Errors
/// When no block is that long.
pub fn block_bytes(head: &[u8; BLOCK_HEAD_BYTES]) -> Result<usize, Damaged> {
    let [a, b, c, d, ..] = *head;
    let bytes = u32::from_le_bytes([a, b, c, d]) as usize;
    match bytes <= BLOCK_BYTES_MAX {
        true => Ok(bytes),
        false => Err(Damaged("a block is too long")),
    }
}

/// Checks that this is the `number`th block, undamaged.
///
/// # Errors
/// When it is not.
pub fn check_block(
    head: &[u8; BLOCK_HEAD_BYTES],
    number: u64,
    block: &[u8],
) -> Result<(), Damaged> {
    match *head == seal(number, block) {
        true => Ok(()),
        false => Err(Damaged("a checksum is wrong")),
    }
}

/// Kinds of records.
pub(crate) mod kind {
    /// The home as a whole.
    pub const HOME: u8 = 1;
    /// A topic.
    pub const TOPIC: u8 = 2;
    /// A filter that keeps the messages of its topics.
    pub const FILTER: u8 = 3;
    /// A shared subscription.
    pub const GROUP: u8 = 4;
    /// The last message that a topic lost.
    pub const LOSS: u8 = 5;
    /// A forgotten topic that had lost messages.
    pub const FORGOTTEN: u8 = 6;
    /// The last loss of a rule's forgotten topics.
    pub const BLAMED: u8 = 7;
    /// A message.
    pub const MESSAGE: u8 = 8;
    /// The first answer to an idempotency key.
    pub const ANSWER: u8 = 9;
    /// A session.
    pub const SESSION: u8 = 10;
    /// A row without a session.
    pub const NO_SESSION: u8 = 11;
    /// The end of the snapshot.
    pub const END: u8 = 12;
    /// The partition of the sessions that follow.
    pub const SESSIONS: u8 = 13;
    /// The writers of a partition.
    pub const ROSTER: u8 = 14;
}

/// Counts the records of a block.
pub(crate) struct Block<'a> {
    pub bytes: &'a mut Vec<u8>,
    pub records: u64,
}

impl Block<'_> {
    /// Begins a record.
    pub fn record(&mut self, kind: u8) -> Out<'_> {
        self.records += 1;
        self.bytes.push(kind);
        Out(self.bytes)
    }

    /// Whether it is time for the next block.
    pub fn is_full(&self) -> bool {
        self.bytes.len() >= BLOCK_BYTES
    }
}

/// Something names a topic that the snapshot does not have.
pub(crate) const NO_TOPIC: Damaged = Damaged("a topic is missing");
