//! `[state]`: the log of durable messages on disk, and the state files of a planned restart.

use std::path::PathBuf;

use crore_disk::{FileSystem, Options};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

/// Fewer bytes could not even hold the names of a few topics.
const MIN_BYTES: usize = 1 << 20;
/// The default of `bytes_max` as a multiple of `limits.log_bytes`. There must be room for a base (a file with the whole state), for the log after it, and
/// for the log that grows while the next base is written.
const DEFAULT_FACTOR: usize = 4;

/// If `bytes_max` is below this multiple of `limits.log_bytes`, the logs may fill it.
const SAFE_FACTOR: usize = 3;

/// The smallest default of `bytes_max`.
const MIN_DEFAULT_BYTES: usize = 4 << 30;

/// Ten minutes; a supervisor kills a service that takes longer to stop.
const MAX_DEADLINE_S: u32 = 600;

/// The default, a day.
const ERASE_WITHIN_S: u32 = 86_400;
/// A month, the time limit of the GDPR for an erasure.
const MAX_ERASE_WITHIN_S: u32 = 30 * 86_400;

/// The section `[state]`.
#[derive(Clone, Debug, PartialEq, SmartDefault, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct State {
    /// The directory for the log, and at a planned restart for topics and sessions. Empty: nothing is kept on disk, and clients get a gap after a
    /// restart.
    ///
    /// Only one server may use it at a time. Nobody but the server should be able to read it.
    #[schemars(extend("x-changes" = "restart", "format" = "a directory"))]
    pub directory: PathBuf,
    /// With a directory: a publish is answered, and its message delivered, after it is on disk ([what survives
    /// what](DURABILITY.md)). `false`: messages are only in memory; they survive a planned restart, but no crash.
    #[default(true)]
    #[schemars(extend("x-changes" = "restart"))]
    pub durable: bool,
    /// With `state.durable`: [MQTT sessions](MQTT.md#durable-sessions) are on disk too, so that they survive `kill -9` and a power cut. CONNACK and SUBACK wait
    /// until the session is on disk. `false`: sessions are only in memory; they survive a planned restart, but no crash.
    #[default(true)]
    #[schemars(extend("x-changes" = "restart"))]
    pub durable_sessions: bool,
    /// The maximum size of all files together. At the limit, publishes are refused until there is space ([a full disk](DURABILITY.md#a-full-disk)).
    /// [Shared](#shares).
    ///
    /// With about three times `limits.log_bytes` this does not happen; with less, the server logs a warning at the start. The files need more space than
    /// this for the base (the file with the whole state) that is being written, for the file that reserves space for it, and for the files that a stop
    /// writes. With `state.durable = false` nothing is refused: a stop drops the oldest messages, and subscribers get a gap.
    #[schemars(range(min = MIN_BYTES, max = isize::MAX as usize), extend("x-changes" = "restart", "x-zero" = "four times `limits.log_bytes`, 4 GiB at least, and no more than the file system has"))]
    #[schemars(extend("x-share" = "of an address: eight times as many bytes as are free, by what it keeps or has written since space was last freed"))]
    pub bytes_max: usize,
    /// Deleted, expired and replaced messages are removed from the files within this number of seconds ([how](DURABILITY.md#deleted-data)).
    /// A new base (the file with the whole state) is written at least once in this time.
    ///
    /// A regulation may demand a certain time. Much deleted data is removed sooner.
    #[default(ERASE_WITHIN_S)]
    #[schemars(range(min = 1, max = MAX_ERASE_WITHIN_S), extend("x-changes" = "restart"))]
    pub erase_within_s: u32,
    /// How long a stop may write files. If it takes longer, everything that is not in the log is lost, as in a crash.
    #[default(30)]
    #[schemars(range(min = 1, max = MAX_DEADLINE_S))]
    pub deadline_s: u32,
}

impl State {
    /// Sets the default of `bytes_max`, and limits `bytes_max` to the size of the file system. Returns this size if the setting is larger.
    pub fn resolve_bytes_max(&mut self, log_bytes: usize) -> Option<usize> {
        let configured = self.bytes_max;
        if configured == 0 {
            self.bytes_max = log_bytes
                .saturating_mul(DEFAULT_FACTOR)
                .max(MIN_DEFAULT_BYTES);
        }
        let existing = self.directory()?.ancestors().find(|path| path.exists())?;
        let disk_bytes = FileSystem::of(existing).ok()?.all_bytes;
        let disk_bytes = usize::try_from(disk_bytes)
            .unwrap_or(usize::MAX)
            .max(MIN_BYTES);
        self.bytes_max = self.bytes_max.min(disk_bytes);
        (disk_bytes < configured).then_some(disk_bytes)
    }

    /// Whether logs of this size may fill `bytes_max`. Then publishes can be refused although the logs are within their limit.
    pub fn is_scarce(&self, log_bytes: usize) -> bool {
        self.is_durable() && self.bytes_max / SAFE_FACTOR < log_bytes
    }

    /// The directory, if one is set.
    pub fn directory(&self) -> Option<&std::path::Path> {
        (!self.directory.as_os_str().is_empty()).then_some(self.directory.as_path())
    }

    /// Whether publishes are answered only after they are on disk.
    pub fn is_durable(&self) -> bool {
        self.durable && self.directory().is_some()
    }

    /// Whether MQTT sessions are on disk.
    pub fn has_durable_sessions(&self) -> bool {
        self.is_durable() && self.durable_sessions
    }

    /// The size of a segment of the log.
    pub fn segment_bytes(&self) -> u64 {
        /// `bytes_max` has room for at least this number of segments, the prepared ones and a checkpoint included.
        const MIN_SEGMENTS: u64 = 16;
        let default = Options::default().segment_bytes;
        (self.bytes_max as u64 / MIN_SEGMENTS).clamp(64 << 10, default)
    }
}
