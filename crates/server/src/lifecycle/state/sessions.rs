//! The note that tells whether the log has all changes of MQTT sessions: a small file in `state.directory`. It contains the epoch of the run of the server
//! that records them. (Each start has its own epoch.)
//!
//! A later run may serve clients without recording their sessions, with `state.durable_sessions = false` or as an earlier version. Then the sessions in the
//! base and in the log are out of date. If that run crashes, the next start must not restore them. (If it stops as planned, it writes its sessions itself.)

use std::io;
use std::path::Path;

use super::files;

/// The epochs of this run and of the one before, if that is known.
pub struct Epochs {
    pub own: u32,
    pub previous: Option<u32>,
}

/// The file of the note.
const SESSIONS: &str = "sessions";

/// Whether the run before this one has recorded all changes of sessions. `previous_epoch` is that run's. If it is unknown, the note of any run is accepted.
///
/// # Errors
/// The note cannot be read.
pub fn are_recorded(directory: &Path, previous_epoch: Option<u32>) -> io::Result<bool> {
    let note = files::read_note(directory, SESSIONS)?;
    Ok(note.is_some_and(|text| {
        let mut epochs = text.split_whitespace();
        previous_epoch.is_none_or(|previous| epochs.any(|epoch| epoch == hex(previous)))
    }))
}

/// Notes that this run records sessions from now on; `None`: it does not. The previous epoch is noted too, since this run may end before its own epoch is
/// noted elsewhere, and then the next start takes the previous epoch for the last one. Call it when the sessions of the previous run are restored or ended.
///
/// # Errors
/// The note cannot be changed.
pub fn write_note(directory: &Path, epochs: Option<Epochs>) -> io::Result<()> {
    let Some(Epochs { own, previous }) = epochs else {
        return files::remove_note(directory, SESSIONS);
    };
    let text = [own, previous.unwrap_or(own)].map(hex).join(" ");
    files::write_or_overwrite_note(directory, SESSIONS, &text, text.len())
}

fn hex(epoch: u32) -> String {
    format!("{epoch:08x}")
}
