//! The note that tells whether the log has all changes of MQTT sessions: a small file in `state.directory` with the epoch of the server that records
//! them. (Each start of a server has its own epoch.) If another server has served clients since, one with `state.durable_sessions = false` or an earlier
//! version, then the sessions in the base and in the log are out of date. After a crash of that server they are not restored.

use std::io;
use std::path::Path;

use super::files;

/// The file of the note.
const SESSIONS: &str = "sessions";

/// Whether the server of this epoch, the last one, has recorded all changes of sessions. If the epoch is unknown, the note of any server is accepted.
///
/// # Errors
/// The note cannot be read.
pub fn are_recorded(directory: &Path, last_epoch: Option<u32>) -> io::Result<bool> {
    let note = files::read_note(directory, SESSIONS)?;
    Ok(note.is_some_and(|text| {
        let mut epochs = text.split_whitespace();
        last_epoch.is_none_or(|last| epochs.any(|epoch| epoch == word(last)))
    }))
}

/// Notes that the server of the first epoch records sessions from now on; `None`: it does not. The second epoch is that of the server before, if that is
/// known: this start may end before its own epoch is noted elsewhere. By now the sessions of that server are either restored or ended.
///
/// # Errors
/// The note cannot be changed.
pub fn note(directory: &Path, epochs: Option<(u32, Option<u32>)>) -> io::Result<()> {
    let Some((epoch, last)) = epochs else {
        return files::remove_note(directory, SESSIONS);
    };
    let text = [epoch, last.unwrap_or(epoch)].map(word).join(" ");
    files::write_or_overwrite_note(directory, SESSIONS, &text, text.len())
}

fn word(epoch: u32) -> String {
    format!("{epoch:08x}")
}
