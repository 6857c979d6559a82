//! `[state]`: the log of durable messages on disk, and the state files of a planned restart.

use std::path::PathBuf;

use crore_disk::{FileSystem, Options};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

/// Less would not hold the names of a few topics.
const MIN_BYTES: usize = 1 << 20;
/// The default of `bytes_max` as a multiple of `limits.log_bytes`: room for a base, the log after it, and what is written while the next base
/// is written.
const FILES_TIMES: usize = 4;

/// If `bytes_max` is below this multiple of `limits.log_bytes`, the logs may fill it.
const FILES_TIMES_LEAST: usize = 3;

/// The smallest default of `bytes_max`.
const LEAST_BYTES: usize = 4 << 30;

/// Ten minutes; a supervisor kills a service that takes longer to stop.
const MAX_DEADLINE_S: u32 = 600;

/// A day.
const ERASE_WITHIN_S: u32 = 86_400;
/// A month, the time limit of the GDPR for an erasure.
const MAX_ERASE_WITHIN_S: u32 = 30 * 86_400;

/// The section `[state]`.
#[derive(Clone, Debug, PartialEq, SmartDefault, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct State {
    /// Where the log is kept, and at a planned restart topics and sessions. Empty: nothing is kept, and clients get a gap after a
    /// restart.
    ///
    /// One server uses it at a time. Nobody but the server should be able to read it.
    #[schemars(extend("x-changes" = "restart", "format" = "a directory"))]
    pub directory: PathBuf,
    /// With a directory: a publish is answered, and its message delivered, after it is on disk ([what survives
    /// what](DURABILITY.md)). `false`: messages are in memory, and kept across a planned restart only.
    #[default(true)]
    #[schemars(extend("x-changes" = "restart"))]
    pub durable: bool,
    /// Bytes of all files together. At the limit, publishes are refused until there is room ([a full disk](DURABILITY.md#a-full-disk)).
    /// [Shared](#shares).
    ///
    /// With some three times `limits.log_bytes` this does not happen; with less the log warns at the start. The base that is being written,
    /// the file that keeps room for it, and the files that a stop writes need further space. With `state.durable = false` nothing is
    /// refused: a stop leaves the oldest messages behind, and subscribers get a gap.
    #[schemars(range(min = MIN_BYTES, max = isize::MAX as usize), extend("x-changes" = "restart", "x-zero" = "four times `limits.log_bytes`, 4 GiB at least, and no more than the file system has"))]
    #[schemars(extend("x-share" = "of an address: eight times as many as are free, by what it keeps or has written since room came free"))]
    pub bytes_max: usize,
    /// Deleted, expired and replaced messages are removed from the files within this number of seconds ([how](DURABILITY.md#deleted-data)).
    /// The base is written at least once in this time.
    ///
    /// A regulation may ask for a certain time. What goes sooner depends on how much is deleted.
    #[default(ERASE_WITHIN_S)]
    #[schemars(range(min = 1, max = MAX_ERASE_WITHIN_S), extend("x-changes" = "restart"))]
    pub erase_within_s: u32,
    /// How long a stop may take to write. After that, everything that is not in the log is lost, as in a crash.
    #[default(30)]
    #[schemars(range(min = 1, max = MAX_DEADLINE_S))]
    pub deadline_s: u32,
}

impl State {
    /// Sets the default of `bytes_max`, and limits `bytes_max` to the size of the file system. Returns this size if the setting is larger.
    pub fn resolve_bytes_max(&mut self, log_bytes: usize) -> Option<usize> {
        let configured = self.bytes_max;
        if configured == 0 {
            self.bytes_max = log_bytes.saturating_mul(FILES_TIMES).max(LEAST_BYTES);
        }
        let existing = self.directory()?.ancestors().find(|path| path.exists())?;
        let disk = FileSystem::of(existing).ok()?.all_bytes;
        let disk = usize::try_from(disk).unwrap_or(usize::MAX).max(MIN_BYTES);
        self.bytes_max = self.bytes_max.min(disk);
        (disk < configured).then_some(disk)
    }

    /// Whether logs of this size may fill `bytes_max`, so that publishes are refused although the logs are within their limit.
    pub fn is_scarce(&self, log_bytes: usize) -> bool {
        self.is_durable() && self.bytes_max / FILES_TIMES_LEAST < log_bytes
    }

    /// The directory, if one is set.
    pub fn directory(&self) -> Option<&std::path::Path> {
        (!self.directory.as_os_str().is_empty()).then_some(self.directory.as_path())
    }

    /// Whether publishes are answered only after they are on disk.
    pub fn is_durable(&self) -> bool {
        self.durable && self.directory().is_some()
    }

    /// Size of a segment of the log.
    pub fn segment_bytes(&self) -> u64 {
        /// `bytes_max` has room for at least this number of segments, the prepared ones and a checkpoint included.
        const SEGMENTS: u64 = 16;
        let default = Options::default().segment_bytes;
        (self.bytes_max as u64 / SEGMENTS).clamp(64 << 10, default)
    }
}
