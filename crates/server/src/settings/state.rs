//! Settings of what is kept on disk: the log of durable messages, and the state of a planned restart. The broker knows nothing of files.

use std::path::PathBuf;

use crore_disk::Options;
use serde::{Deserialize, Serialize};

use super::problems::{Check, ranges};
use super::units::{seconds, size};

/// Less than this would not hold the names of a few topics.
const MIN_BYTES: usize = 1 << 20;
/// Ten minutes: a supervisor kills a service that takes longer to stop.
const MAX_DEADLINE_S: u32 = 600;

/// The section `[state]`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct State {
    /// Where the log and the state that outlives the process are kept; empty: nothing outlives it.
    pub directory: PathBuf,
    /// Whether a message is on disk before it is answered and delivered.
    pub durable: bool,
    /// Bytes of all files together.
    #[serde(with = "size")]
    pub bytes_max: usize,
    /// Seconds that the writing may take.
    #[serde(with = "seconds")]
    pub deadline_s: u32,
}

impl Default for State {
    fn default() -> Self {
        State {
            directory: PathBuf::new(),
            durable: true,
            bytes_max: 4 << 30,
            deadline_s: 30,
        }
    }
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

    /// What a running server can take of other settings: the log stays where it is.
    pub fn changeable(&self, asked: &State) -> State {
        match self.is_durable() || asked.is_durable() {
            true => State {
                deadline_s: asked.deadline_s,
                ..self.clone()
            },
            false => asked.clone(),
        }
    }

    /// Checks the values.
    pub fn check(&self, check: &mut Check) {
        if self.directory().is_some_and(|path| !path.is_absolute()) {
            let what = format!(
                "`{}` is not an absolute path, so that it would depend on where the server is started; write one such as \"/var/lib/crore\"",
                self.directory.display()
            );
            check.fail("state.directory", what);
        }
        ranges! { check, "state", self;
            bytes_max: MIN_BYTES..=isize::MAX as usize;
            deadline_s: 1..=MAX_DEADLINE_S;
        }
    }
}
