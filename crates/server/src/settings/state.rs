//! Settings of what is kept on disk: the log of durable messages, and the state of a planned restart. The broker knows nothing of files.

use std::path::PathBuf;

use crore_disk::Options;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use smart_default::SmartDefault;

/// Less than this would not hold the names of a few topics.
const MIN_BYTES: usize = 1 << 20;
/// Ten minutes: a supervisor kills a service that takes longer to stop.
const MAX_DEADLINE_S: u32 = 600;

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
    /// Bytes of all files together. Past it publishes are refused until there is room ([a full disk](DURABILITY.md#a-full-disk)).
    ///
    /// Some three times `limits.log_bytes` is enough for that not to happen. A base that is being written comes on top, and so does
    /// what a stop leaves. With `state.durable = false` nothing is refused: a stop leaves the oldest messages behind, and subscribers
    /// get a gap.
    #[default(4 << 30)]
    #[schemars(range(min = MIN_BYTES, max = isize::MAX as usize), extend("x-changes" = "restart"))]
    pub bytes_max: usize,
    /// How long a stop may take to write; past it what is not in the log is lost, as in a crash.
    #[default(30)]
    #[schemars(range(min = 1, max = MAX_DEADLINE_S))]
    pub deadline_s: u32,
}

impl State {
    /// Where, if at all.
    pub fn directory(&self) -> Option<&std::path::Path> {
        (!self.directory.as_os_str().is_empty()).then_some(self.directory.as_path())
    }

    /// Whether messages are on disk before they are answered.
    pub fn is_durable(&self) -> bool {
        self.durable && self.directory().is_some()
    }

    /// Bytes of a segment of the log.
    pub fn segment_bytes(&self) -> u64 {
        /// So many have room for the files that wait as segments, and for a checkpoint.
        const SEGMENTS: u64 = 16;
        let usual = Options::default().segment_bytes;
        (self.bytes_max as u64 / SEGMENTS).clamp(64 << 10, usual)
    }
}
