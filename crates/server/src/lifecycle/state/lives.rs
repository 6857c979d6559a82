//! Which lives of the log a start knows, and the note that it begins another one. See [`Lives`].
//!
//! Invariants: the note is on disk before a client is given a position of the new life. Where there is none, the log has had one life, that in
//! which its documents were written.

use std::io;
use std::path::Path;

use crore_broker::lives::{Lives, Unreadable};
use crore_broker::{Shard, World};

use super::files;
use super::load::Documents;

/// The file of the note.
const LIVES: &str = "lives";
/// Its bytes are a multiple of this, and spaces stand at its end: later starts may find the disk full.
const RESERVE: usize = 4096;

/// The lives up to the last start, or why nothing is certain of them.
///
/// # Errors
/// When the note cannot be read.
pub fn before(directory: &Path, documents: &Documents) -> io::Result<Result<Lives, String>> {
    let head = documents.head();
    let Some(note) = files::note_before(directory, LIVES)? else {
        return Ok(Ok(Lives::first(head.epoch)));
    };
    Ok(match Lives::parse(&note, head.partitions) {
        Ok(lives) if lives.has(head.epoch) => Ok(lives),
        Ok(_) => Err(format!("`{LIVES}` is of another log than the base")),
        Err(Unreadable) => Err(format!("`{LIVES}` is damaged")),
    })
}

/// The lives with the one that begins behind what these homes have read; without any before it is the first one.
pub fn begin(before: Option<Lives>, homes: &[Shard], world: &World) -> Lives {
    let Some(mut lives) = before else {
        return Lives::first(world.epoch);
    };
    let mut ends = vec![0; world.partitions.into()];
    for (partition, end) in homes.iter().flat_map(Shard::ends) {
        ends[usize::from(partition)] = end;
    }
    lives.begin(world.epoch, &ends);
    lives
}

/// Notes these lives for the next start. On a full disk the note takes the place of the one before, which has room for that: if the power
/// goes meanwhile, it is damaged, and all positions are told a gap.
///
/// # Errors
/// Those of the file system.
pub fn note(directory: &Path, lives: &Lives) -> io::Result<()> {
    let mut text = lives.text();
    let len = (text.len() + RESERVE).next_multiple_of(RESERVE);
    let bytes = text.len();
    text.extend(std::iter::repeat_n(' ', len - bytes));
    match files::note(directory, LIVES, &text) {
        Err(error) if is_full(&error) => {
            let there = files::overwrite(directory, LIVES, text.as_bytes(), bytes);
            there.map_err(|_| io::Error::other(format!("no room for `{LIVES}`: {error}")))
        }
        noted => noted,
    }
}

/// Forgets the note: the life that runs is the first one, and its documents name it.
///
/// # Errors
/// Those of the file system.
pub fn forget(directory: &Path) -> io::Result<()> {
    files::forget_note(directory, LIVES)
}

fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}
