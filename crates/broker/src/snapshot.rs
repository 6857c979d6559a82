//! What a shard leaves behind for its successor at a planned restart: the epoch and offsets of its topics, their logs and
//! retained messages, groups, and MQTT sessions; so that whoever has a position or a session goes on as if nothing had been.
//!
//! A snapshot is blocks of bytes, each with its length and a checksum; the first has the [`Head`], the last says how many
//! records there were. It is made and read block by block, so that neither side holds more than one of them.
//!
//! Invariants: a snapshot is taken when no connection is left and nothing is under way ([`Settled`](crate::Settled)), and is
//! whole or worth nothing. Bytes that are damaged are refused, never guessed at. What a session's carrier wrote down
//! (`connection/mqtt/kept.rs`) stands here as it is: when its form changes, [`FORM`] does too.
//!
//! Deliberately not here: files, and what becomes of a snapshot that is not used.

mod bytes;
pub(crate) mod restore;
pub(crate) mod save;

use alloc::vec::Vec;

use xxhash_rust::xxh3::xxh3_64_with_seed;

pub(crate) use bytes::{In, Out};
pub use restore::Restored;
pub(crate) use save::Saving;

use crate::mail::ShardId;

/// What every snapshot begins with.
pub const MAGIC: &[u8; 12] = b"crore state\n";
/// The form of the records.
pub const FORM: u16 = 3;
/// Bytes before the first block.
pub const PREAMBLE_BYTES: usize = MAGIC.len() + 2;
/// Bytes before each block: its length and its checksum.
pub const BLOCK_HEAD_BYTES: usize = 12;
/// A block is closed when it has so many bytes; a single message may make it longer.
const BLOCK_BYTES: usize = 256 << 10;
/// No block is longer: the longest message and a full block.
const BLOCK_BYTES_MAX: usize = 512 << 20;

/// Why a snapshot is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damaged(pub &'static str);

impl core::fmt::Display for Damaged {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(self.0)
    }
}

/// What all snapshots of one stop have alike, and whose this one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Another number for each stop.
    pub set: u64,
    /// The life of the logs.
    pub epoch: u32,
    /// What keys the hashes.
    pub seed: u64,
    /// How many homes there are.
    pub homes: ShardId,
    /// Which one it is.
    pub home: ShardId,
    /// When it was taken.
    pub unix_s: u32,
}

impl Head {
    fn write(&self, out: &mut Vec<u8>) {
        let mut out = Out(out);
        out.word(self.set);
        out.number(u64::from(self.epoch));
        out.word(self.seed);
        out.number(u64::from(self.homes));
        out.number(u64::from(self.home));
        out.number(u64::from(self.unix_s));
    }

    /// Reads the first block.
    ///
    /// # Errors
    /// When it is no head.
    pub fn read(block: &[u8]) -> Result<Head, Damaged> {
        let mut block = In(block);
        let head = Head {
            set: block.word()?,
            epoch: block.number32()?,
            seed: block.word()?,
            homes: block.number16()?,
            home: block.number16()?,
            unix_s: block.number32()?,
        };
        match block.is_empty() && head.home < head.homes {
            true => Ok(head),
            false => Err(Damaged("its head is none")),
        }
    }
}

/// What every snapshot begins with.
pub fn preamble() -> [u8; PREAMBLE_BYTES] {
    let mut preamble = [0; PREAMBLE_BYTES];
    preamble[..MAGIC.len()].copy_from_slice(MAGIC);
    preamble[MAGIC.len()..].copy_from_slice(&FORM.to_le_bytes());
    preamble
}

/// Whether a snapshot begins here, in a form that can be read.
///
/// # Errors
/// When it is something else, or of another version.
pub fn check_preamble(bytes: &[u8; PREAMBLE_BYTES]) -> Result<(), Damaged> {
    if bytes[..MAGIC.len()] != MAGIC[..] {
        return Err(Damaged("it is no state of a crore"));
    }
    match bytes[MAGIC.len()..] == FORM.to_le_bytes() {
        true => Ok(()),
        false => Err(Damaged("another version has written it")),
    }
}

/// The `number`th block as it is written.
pub fn seal(number: u64, block: &[u8]) -> [u8; BLOCK_HEAD_BYTES] {
    let mut head = [0; BLOCK_HEAD_BYTES];
    head[..4].copy_from_slice(&(block.len() as u32).to_le_bytes());
    head[4..].copy_from_slice(&xxh3_64_with_seed(block, number).to_le_bytes());
    head
}

/// Bytes of the block behind this.
///
/// # Errors
/// When there is none that long.
pub fn block_bytes(head: &[u8; BLOCK_HEAD_BYTES]) -> Result<usize, Damaged> {
    let [a, b, c, d, ..] = *head;
    let bytes = u32::from_le_bytes([a, b, c, d]) as usize;
    match bytes <= BLOCK_BYTES_MAX {
        true => Ok(bytes),
        false => Err(Damaged("a block is too long")),
    }
}

/// Whether this is the `number`th block, as it was written.
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

/// What a record is.
pub(crate) mod kind {
    /// Of the home as a whole.
    pub const HOME: u8 = 1;
    /// A topic.
    pub const TOPIC: u8 = 2;
    /// A filter whose topics' messages are kept.
    pub const FILTER: u8 = 3;
    /// A shared subscription.
    pub const GROUP: u8 = 4;
    /// The last message that a topic lost.
    pub const LOSS: u8 = 5;
    /// A forgotten topic that had lost messages.
    pub const FORGOTTEN: u8 = 6;
    /// What forgotten topics of a rule had lost.
    pub const BLAMED: u8 = 7;
    /// A message.
    pub const MESSAGE: u8 = 8;
    /// The first answer to an idempotency key.
    pub const ANSWER: u8 = 9;
    /// A session.
    pub const SESSION: u8 = 10;
    /// A row without a session.
    pub const NO_SESSION: u8 = 11;
    /// The last one.
    pub const END: u8 = 12;
}
