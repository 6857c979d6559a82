//! A log on disk. It stores *batches* (opaque bytes) and, after a crash, returns every acknowledged batch once and in order.
//!
//! * [`Log`] is the log itself: segments, groups, checksums, recovery. It writes to a [`Storage`], so that tests can simulate torn writes.
//! * [`Directory`] is the storage of a real server: files in a locked directory.
//! * [`Engine`] is the thread that commits: it writes and syncs a group of batches with one sync, while the next group gathers.
//! * [`scan()`] reads a log without changing it. [`Reader`] reads single batches again.
//!
//! Invariants:
//! * A batch is acknowledged only after the sync that covers it.
//! * A group is written only after the group before it is synced.
//! * A group is recovered completely or not at all.
//! * Bytes that the log did not write are never returned as a batch.
//! * After a failed write or sync the log accepts nothing more, because the kernel may have dropped the bytes.
//!
//! Deliberately not here: the meaning of a batch, and checkpoints. The caller removes old segments when a checkpoint contains their
//! batches. `docs/internals/LOG-FORMAT.md` describes the format byte by byte.
#![forbid(unsafe_code)]

mod damage;
mod directory;
mod engine;
mod format;
mod log;
mod mark;
pub mod planted;
mod reader;
mod scan;
#[cfg(feature = "simulated")]
pub mod simulated;
mod storage;

pub use damage::{Damage, DamageKind};
pub use directory::{Directory, FileSystem, OpenError, exchange, may_write, reserve};
pub use engine::{Engine, EngineState, LogSpace};
pub use format::{Identity, VERSION};
pub use log::{CommitError, Log, LogEnd, LogUsage, Options};
pub use reader::Reader;
pub use scan::{
    BatchPlace, ScanError, ScanEvent, ScanSummary, TornGroup, read_identity, scan, segment_number,
};
pub use storage::{Entry, File, Storage};
