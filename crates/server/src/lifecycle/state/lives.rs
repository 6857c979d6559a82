//! The file `lives` in `state.directory`. A *life* of the log is the time between two starts of a server on the log. Each start begins a new life and adds
//! it to the file. See [`Lives`].
//!
//! Invariant: clients get positions of a new life only after the file with this life is on disk. If there is no such file, the log has had only
//! one life, whose epoch is in the documents (the snapshots of the base).
//!
//! Words: a *home* is the part of a shard that keeps topics; a *gap* is the notice that messages are lost.

use std::io;
use std::path::Path;

use crore_broker::lives::{Lives, Unreadable};
use crore_broker::{PartitionId, Shard, World};

use super::files;
use super::load::Documents;

const LIVES: &str = "lives";

/// Reads the lives before this start. The inner error is the reason why they are unknown: the file is damaged, or belongs to another log.
///
/// # Errors
/// The file cannot be read.
pub fn read(directory: &Path, documents: &Documents) -> io::Result<Result<Lives, String>> {
    let head = documents.head();
    let Some(text) = files::read_note(directory, LIVES)? else {
        return Ok(Ok(Lives::first(head.epoch)));
    };
    Ok(match Lives::parse(&text, head.partitions) {
        Ok(lives) if lives.has_epoch(head.epoch) => Ok(lives),
        Ok(_) => Err(format!("`{LIVES}` is of another log than the base")),
        Err(Unreadable) => Err(format!("`{LIVES}` is damaged")),
    })
}

/// Adds the life that begins now. In each partition the new life begins at the end of the data that these homes have restored. If no
/// earlier lives are known, the new life is the first one. `base_epoch` is the epoch of the life in which the base was written.
pub fn begin(before: Option<Lives>, homes: &[Shard], world: &World, base_epoch: u32) -> Lives {
    let Some(mut lives) = before else {
        return Lives::first(world.epoch);
    };
    let mut ends = vec![0; world.partitions.into()];
    for (partition, end) in homes.iter().flat_map(Shard::last_offsets) {
        ends[usize::from(partition)] = end;
    }
    lives.begin(world.epoch, &ends, base_epoch);
    lives
}

/// Writes the file for the next start. The text is padded with spaces to the most bytes that it can ever need, so that on a full disk each
/// start can overwrite the old file in place. A power cut at that moment may damage the file. Then all clients get a gap.
///
/// # Errors
/// The errors of the file system. If it is full and the old file is too small, the error names the remedy.
pub fn write(directory: &Path, lives: &Lives, partitions: PartitionId) -> io::Result<()> {
    let mut text = lives.text();
    let len = Lives::text_bytes_max(partitions);
    let bytes = text.len();
    text.extend(std::iter::repeat_n(' ', len.saturating_sub(bytes)));
    files::write_or_overwrite_note(directory, LIVES, &text, bytes)
}

/// Removes the file. The current life then counts as the first life, and the documents have its epoch.
///
/// # Errors
/// The errors of the file system.
pub fn remove(directory: &Path) -> io::Result<()> {
    files::remove_note(directory, LIVES)
}
