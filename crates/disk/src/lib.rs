//! A log on disk. It takes *batches*, opaque runs of bytes, and returns them after a crash: each batch that was answered, once
//! and in order.
//!
//! * [`Log`] is the log itself: segments, groups, checksums, recovery. It works over [`Storage`], so that tests can tear its writes.
//! * [`Directory`] is the storage of a real server: files in a locked directory.
//! * [`Engine`] is the thread that commits: it writes and syncs one group while the next one fills.
//! * [`scan()`] reads a log without changing it, and [`Reader`] single batches of it once more.
//!
//! Invariants: a batch is answered only after a sync that covers it; a group is written only after the group before it is synced;
//! a group comes back as a whole or not at all; bytes that the log did not write are never returned as a batch. A failed write
//! or sync is final: the log takes nothing more, since the kernel may have dropped the bytes.
//!
//! Deliberately not here: the meaning of a batch, and checkpoints: a caller that has the content of old segments elsewhere removes them. `docs/internals/LOG-FORMAT.md` describes the format byte by byte.
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
mod storage;
#[cfg(feature = "torn")]
pub mod torn;

pub use damage::{Damage, DamageKind};
pub use directory::{Directory, FileSystem, OpenError, may_write};
pub use engine::{Engine, Room, SYNC_TIMES, State};
pub use format::{Identity, VERSION};
pub use log::{CommitError, End, Figures, Log, Options};
pub use reader::Reader;
pub use scan::{Found, Place, Recovered, ScanError, Torn, identity, number_of, scan};
pub use storage::{Entry, File, Storage};
