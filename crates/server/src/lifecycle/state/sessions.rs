//! The file `sessions` in `state.directory`. It tells a start whether the log has all changes of the MQTT sessions, so that the sessions in the base and in
//! the log may be restored. (The base is the snapshot that the log continues.)
//!
//! Each run of the server has its own epoch. A run that records the changes of sessions writes its epoch into the file. A later run may serve clients
//! without recording their sessions: with `state.durable_sessions = false`, or as an earlier version. Then the sessions in base and log are out of date,
//! and if that run crashes, the next start must not restore them. (If that run stops as planned, it writes its sessions into a new base.)

use std::io;
use std::path::Path;

use super::files;

/// The epochs of a run.
pub struct Epochs {
    pub own: u32,
    /// The epoch of the run before, if it is known.
    pub previous: Option<u32>,
}

const SESSIONS: &str = "sessions";

/// Whether the run before this one has recorded all changes of sessions. `previous_epoch` is the epoch of that run. If it is unknown, it is enough that
/// any run has recorded them.
///
/// # Errors
/// The file cannot be read.
pub fn are_recorded(directory: &Path, previous_epoch: Option<u32>) -> io::Result<bool> {
    let text = files::read_note(directory, SESSIONS)?;
    Ok(text.is_some_and(|text| {
        let mut epochs = text.split_whitespace();
        previous_epoch.is_none_or(|previous| epochs.any(|epoch| epoch == hex(previous)))
    }))
}

/// Stores that the run with these epochs records sessions from now on; `None`: this run does not. Called when the sessions of the previous run are
/// restored or ended. The previous epoch is stored, too: if this run ends before its own epoch is in the base, the next start takes the previous epoch for
/// that of the last run.
///
/// # Errors
/// The file cannot be changed.
pub fn set_recorded(directory: &Path, epochs: Option<Epochs>) -> io::Result<()> {
    let Some(Epochs { own, previous }) = epochs else {
        return files::remove_note(directory, SESSIONS);
    };
    let text = [own, previous.unwrap_or(own)].map(hex).join(" ");
    files::write_or_overwrite_note(directory, SESSIONS, &text, text.len())
}

fn hex(epoch: u32) -> String {
    format!("{epoch:08x}")
}
