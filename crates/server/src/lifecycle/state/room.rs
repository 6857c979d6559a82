//! Estimates the room that a checkpoint needs on the file system, and chooses how the checkpoint writes the next base (the snapshot that
//! the log continues) with the room that is there.
//!
//! A *document* is the snapshot of one home or partition.

use std::path::Path;

use super::files::{Base, LOG};

/// A base may be larger than it was estimated: 1/8 of the estimate is added to it.
const MARGIN_DIVISOR: u64 = 8;

/// The bytes to reserve for a base or document of about this size.
pub fn with_margin(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / MARGIN_DIVISOR)
}

/// The documents of a base.
pub struct BaseShape {
    /// Whether each document is of one partition. Only then checkpoints can replace single documents. A stop writes a document for each
    /// home.
    pub is_by_partition: bool,
    pub all_bytes: u64,
    pub largest_bytes: u64,
}

impl BaseShape {
    /// The shape of the newest base in this directory. `None` if the base cannot be read.
    pub fn of(directory: &Path, partitions: u16) -> Option<BaseShape> {
        let newest = Base::all(directory).ok()?.pop()?;
        let documents = newest.documents(directory).ok()?;
        let len = |path| std::fs::metadata(path).map(|it| it.len());
        let lens: Result<Vec<u64>, _> = documents.iter().map(len).collect();
        let lens = lens.ok()?;
        Some(BaseShape {
            is_by_partition: lens.len() == usize::from(partitions),
            all_bytes: lens.iter().sum(),
            largest_bytes: lens.iter().copied().max()?,
        })
    }

    /// The bytes that the next checkpoint must have on the file system beside this base, if it keeps as much as this base does.
    pub fn needed_bytes(&self) -> u64 {
        match self.is_by_partition {
            true => self.largest_bytes,
            false => self.all_bytes,
        }
    }
}

/// The next size of the file that reserves room for the next checkpoint. The file has `file` bytes, and should have `wanted` bytes. `free`
/// bytes are free, `for_log` of which are left to the log. If the others are not enough, the file takes them nevertheless: when messages
/// are deleted, the next base needs less room, but another program may have taken what was free.
pub fn next_reserve(file: u64, wanted: u64, free: u64, for_log: u64) -> u64 {
    match (wanted..=wanted.saturating_mul(2)).contains(&file) {
        true => file,
        false => wanted.min(file.saturating_add(free.saturating_sub(for_log))),
    }
}

/// The room that the reserve leaves to the log: the log soon needs two segments.
pub fn room_of_log(segment_bytes: u64) -> u64 {
    2 * segment_bytes
}

/// How a checkpoint writes the next base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BaseWrite {
    /// Writes the next base beside the last one, which is removed afterwards.
    Beside,
    /// Replaces the documents in the last base one by one.
    InPlace,
}

/// The room that a checkpoint finds on the file system.
pub struct CheckpointRoom {
    pub base_write: BaseWrite,
    /// Whether the room is probably not enough, even with that of the reserve file.
    pub is_too_small: bool,
    free: u64,
    needed: u64,
}

impl CheckpointRoom {
    /// The room if `free` bytes are free, the next base needs about `needed` bytes, and the reserve file has `reserve_file` bytes. If the
    /// last checkpoint has failed, the estimate may be too low.
    pub fn of(
        free: u64,
        needed: u64,
        has_failed: bool,
        base: Option<&BaseShape>,
        reserve_file: u64,
    ) -> CheckpointRoom {
        let needs_reserve = free < needed || has_failed;
        let (base_write, least) = match base.filter(|base| needs_reserve && base.is_by_partition) {
            Some(base) => (BaseWrite::InPlace, needed.min(base.largest_bytes)),
            None => (BaseWrite::Beside, needed),
        };
        CheckpointRoom {
            base_write,
            is_too_small: free.saturating_add(reserve_file) < least,
            free,
            needed,
        }
    }

    /// The error message if this directory has no room for a base beside the last one, and clients or the log are affected by that.
    pub fn shortage(&self, directory: &Path, shares_disk: bool) -> Option<String> {
        let meanwhile = match shares_disk {
            true => "publishes are refused".to_string(),
            // A checkpoint in place frees space in the log. Publishes are refused only if the log's own file system is full, or `bytes_max`
            // is reached.
            false if !self.is_too_small => return None,
            false => format!(
                "{}, which is on another file system, only grows",
                directory.join(LOG).display()
            ),
        };
        (self.free < self.needed).then(|| {
            format!(
                "the file system of {} has {} MiB free, and the next base needs about {} MiB: {meanwhile} until messages were deleted or have expired, or it has more room",
                directory.display(),
                self.free >> 20,
                (self.needed >> 20) + 1
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BY_PARTITION: BaseShape = BaseShape {
        is_by_partition: true,
        all_bytes: 60 << 20,
        largest_bytes: 10 << 20,
    };
    const OF_A_STOP: BaseShape = BaseShape {
        is_by_partition: false,
        ..BY_PARTITION
    };

    fn room(
        free: u64,
        needed: u64,
        has_failed: bool,
        base: &BaseShape,
        file: u64,
    ) -> CheckpointRoom {
        CheckpointRoom::of(free << 20, needed << 20, has_failed, Some(base), file << 20)
    }

    #[test]
    fn documents_are_replaced_in_place_only_if_there_is_no_room_for_two_bases() {
        let ways = |base| {
            let all = [(7, false), (6, false), (7, true)];
            all.map(|(free, has_failed)| {
                let room = room(free, 7, has_failed, base, 0);
                room.base_write
            })
        };
        let (beside, in_place) = (BaseWrite::Beside, BaseWrite::InPlace);
        assert_eq!(ways(&BY_PARTITION), [beside, in_place, in_place]);
        // The document of a home has several partitions, so it cannot be replaced in place.
        assert_eq!(ways(&OF_A_STOP), [beside, beside, beside]);
    }

    #[test]
    fn reserve_file_is_room_for_one_document_or_for_all_that_a_stop_has_written() {
        for (base, needed) in [(&BY_PARTITION, 60), (&OF_A_STOP, 60)] {
            let file = base.needed_bytes() >> 20;
            assert!(!room(0, needed, false, base, file).is_too_small);
            assert!(room(0, needed, false, base, file - 1).is_too_small);
        }
        // Most messages were deleted, so the next base needs little room.
        assert!(!room(0, 2, false, &BY_PARTITION, 2).is_too_small);
    }

    #[test]
    fn reserve_file_takes_what_there_is_if_the_disk_has_not_enough() {
        let next = [
            (60, 0),
            (120, 9),
            (0, 100),
            (0, 28),
            (10, 28),
            (10, 5),
            (130, 0),
        ]
        .map(|(file, free)| next_reserve(file, 60, free, 8));
        assert_eq!(next, [60, 120, 60, 20, 30, 10, 60]);
    }

    #[test]
    fn publishes_are_refused_for_want_of_a_base_only_if_the_log_shares_its_disk() {
        let lack =
            |shares_disk, base| room(5, 7, false, base, 0).shortage(Path::new("/s"), shares_disk);
        for shares_disk in [true, false] {
            let text = lack(shares_disk, &OF_A_STOP).expect("it is told");
            let begin =
                "the file system of /s has 5 MiB free, and the next base needs about 8 MiB: ";
            assert!(text.starts_with(begin), "{text}");
            let refused = text.contains("publishes are refused");
            assert_eq!(refused, shares_disk, "{text}");
            assert_eq!(text.contains("/s/log"), !shares_disk, "{text}");
        }
        let with_file = |shares_disk| {
            let room = room(0, 7, false, &BY_PARTITION, 10);
            room.shortage(Path::new("/s"), shares_disk).is_some()
        };
        // A log on another disk can continue.
        assert_eq!([true, false].map(with_file), [true, false]);
    }
}
