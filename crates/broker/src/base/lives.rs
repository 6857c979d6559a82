//! The lives of a log: the periods between two starts of a server on it. They show whether a client's position (an epoch and an
//! offset) is still valid after the log was restored from a backup.
//!
//! Each start begins a life with a new epoch, and records where the previous life ended. A log that was restored from a backup
//! knows only the lives up to the backup, and where each of them ended *in this log*. So a position is from another branch of
//! history if its epoch is unknown, or if its offset is beyond the end of its life. The server then tells the client of a gap
//! (messages may be missing), even if the log has assigned this offset again.
//!
//! Invariants: each start draws a random epoch, so an epoch identifies one process. Offsets rise over all lives of a log, and a
//! life begins at the same offset in all partitions. So the offset of a message determines its life ([`Lives::epoch_of`]), and
//! clients get the same position for a message after every restart.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt::Write as _;

use xxhash_rust::xxh3::xxh3_64;

use super::ids::PartitionId;
use super::placement::SlottedOffset;
use super::position::{Position, parse_decimal};

/// The maximum number of past lives that are kept. A client with a position of a life that is not kept is told of a gap.
pub const LIVES_MAX: usize = 1000;
/// The first line of the text that `Lives::text` writes.
const TITLE: &str = "crore lives 1\n";
/// Prefix of the checksum on the last line.
const SUM: &str = "sum ";
/// Digits of the checksum and of an epoch, in hexadecimal, and of an offset.
const SUM_DIGITS: usize = 16;
const EPOCH_DIGITS: usize = 8;
const OFFSET_DIGITS: usize = SlottedOffset::OFFSET_MAX.ilog10() as usize + 1;

/// A life that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Life {
    epoch: u32,
    /// The first offset of the life.
    first_offset: u64,
    /// By partition: the last offset that was assigned in this life or an earlier one.
    ends: Vec<u64>,
}

/// The lives of a log: the past ones, oldest first, and the current one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lives {
    past: Vec<Life>,
    epoch: u32,
    first_offset: u64,
}

/// The text is damaged, or of another format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable;

impl Lives {
    /// The lives of a log whose first known life, the current one, has this epoch.
    pub fn first(epoch: u32) -> Lives {
        Lives {
            past: Vec::new(),
            epoch,
            first_offset: 0,
        }
    }

    /// Ends the current life and begins another. `ends` are the last offsets of the partitions. If a recorded end of an earlier
    /// life is beyond them, it is lowered to them, because a restored log may be shorter than it was. The life with `kept_epoch` is
    /// kept however old it is: the log's base (its last checkpoint) was written in this life, and the next start finds by it that base and lives are
    /// of the same log.
    pub fn begin(&mut self, epoch: u32, ends: &[u64], kept_epoch: u32) {
        for life in &mut self.past {
            let before = life.first_offset.saturating_sub(1);
            let both = life.ends.iter_mut().zip(ends);
            both.for_each(|(end, last)| *end = (*end).min((*last).max(before)));
        }
        // A subscriber may hold the position just before the first message of the life.
        let before = self.first_offset.saturating_sub(1);
        let ends: Vec<_> = ends.iter().map(|end| (*end).max(before)).collect();
        let last_offset = ends.iter().copied().max().unwrap_or(0);
        self.past.push(Life {
            epoch: self.epoch,
            first_offset: self.first_offset,
            ends,
        });
        (self.epoch, self.first_offset) = (epoch, last_offset + 1);
        while self.past.len() > LIVES_MAX {
            self.forget_oldest(kept_epoch);
        }
    }

    /// Forgets the oldest life except the one with this epoch. The offsets of the forgotten life then count as those of the life after it.
    fn forget_oldest(&mut self, kept_epoch: u32) {
        let index = usize::from(
            self.past
                .first()
                .is_some_and(|life| life.epoch == kept_epoch),
        );
        let forgotten = self.past.remove(index);
        if index > 0
            && let Some(next) = self.past.get_mut(index)
        {
            next.first_offset = forgotten.first_offset;
        }
    }

    /// Whether the current life is the only known one.
    pub fn is_first(&self) -> bool {
        self.past.is_empty()
    }

    /// The epoch of the current life.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// The first offset of the current life.
    pub fn first_offset(&self) -> u64 {
        self.first_offset
    }

    /// Whether a known life has this epoch.
    pub fn has_epoch(&self, epoch: u32) -> bool {
        self.epoch == epoch || self.past.iter().any(|life| life.epoch == epoch)
    }

    /// Whether a client's position has the epoch of a past life and is on this branch of history.
    pub fn has_position(&self, partition: PartitionId, position: Position) -> bool {
        let newest = self
            .past
            .iter()
            .rposition(|life| life.epoch == position.epoch);
        let lives = newest.map_or(&[][..], |newest| &self.past[..=newest]);
        // A position of a subscription by filter has one epoch for all partitions, but the offset in a quiet partition may be from
        // an earlier life. So the offset is checked against the life that assigned it. An offset just before the start of a life is
        // checked against that life.
        let started_lives =
            lives.partition_point(|life| life.first_offset <= position.offset.saturating_add(1));
        let life = lives.get(started_lives.saturating_sub(1));
        let end = life.and_then(|life| life.ends.get(usize::from(partition)));
        end.is_some_and(|end| position.offset <= *end)
    }

    /// The epoch of the life that assigned this offset, or of the first known life.
    #[inline]
    pub fn epoch_of(&self, offset: u64) -> u32 {
        match offset >= self.first_offset {
            true => self.epoch,
            false => self.past_epoch_of(offset),
        }
    }

    fn past_epoch_of(&self, offset: u64) -> u32 {
        let started_lives = self
            .past
            .partition_point(|life| life.first_offset <= offset);
        let life = self.past.get(started_lives.saturating_sub(1));
        life.map_or(self.epoch, |life| life.epoch)
    }

    /// The lives as text. Each line is a life: its epoch, its first offset and, for a past life, its last offset in each partition.
    pub fn text(&self) -> String {
        let mut text = String::from(TITLE);
        // Writing to a string does not fail.
        for Life {
            epoch,
            first_offset,
            ends,
        } in &self.past
        {
            let _ = write!(text, "{epoch:x} {first_offset}");
            for end in ends {
                let _ = write!(text, " {end}");
            }
            text.push('\n');
        }
        let _ = writeln!(text, "{:x} {}", self.epoch, self.first_offset);
        let sum = xxh3_64(text.as_bytes());
        let _ = writeln!(text, "{SUM}{sum:016x}");
        text
    }

    /// The maximum number of bytes of the text of a log with `partitions` partitions.
    pub fn text_bytes_max(partitions: PartitionId) -> usize {
        let offsets = 1 + usize::from(partitions);
        let line = EPOCH_DIGITS + offsets * (1 + OFFSET_DIGITS) + 1;
        TITLE.len() + (LIVES_MAX + 1) * line + SUM.len() + SUM_DIGITS + 1
    }

    /// Reads the text of a log with `partitions` partitions. Trailing spaces are ignored.
    ///
    /// # Errors
    /// [`Unreadable`].
    pub fn parse(text: &str, partitions: PartitionId) -> Result<Lives, Unreadable> {
        let (body, sum) = text.rsplit_once(SUM).ok_or(Unreadable)?;
        if format!("{:016x}\n", xxh3_64(body.as_bytes())) != sum.trim_end_matches(' ') {
            return Err(Unreadable);
        }
        let mut lines = body.strip_prefix(TITLE).ok_or(Unreadable)?.lines();
        let last = lines.next_back().and_then(parse_life).ok_or(Unreadable)?;
        let past: Option<Vec<_>> = lines.map(parse_life).collect();
        let past = past.ok_or(Unreadable)?;
        let fits = |life: &Life| life.ends.len() == usize::from(partitions);
        match past.iter().all(fits) && last.ends.is_empty() {
            true => Ok(Lives {
                past,
                epoch: last.epoch,
                first_offset: last.first_offset,
            }),
            false => Err(Unreadable),
        }
    }
}

/// Reads the line of one life.
fn parse_life(line: &str) -> Option<Life> {
    let (epoch, numbers) = line.split_once(' ')?;
    let mut numbers = numbers
        .split(' ')
        .map(|number| parse_decimal(number.as_bytes()));
    Some(Life {
        epoch: u32::from_str_radix(epoch, 16).ok()?,
        first_offset: numbers.next()??,
        ends: numbers.collect::<Option<_>>()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Two past lives, and the current one.
    fn lives() -> Lives {
        let mut lives = Lives::first(7);
        lives.begin(9, &[10, 0], 7);
        lives.begin(11, &[25, 14], 7);
        lives
    }

    #[test]
    fn position_behind_the_end_of_its_life_is_of_another_branch() {
        let lives = lives();
        let has_position =
            |partition, epoch, offset| lives.has_position(partition, Position { epoch, offset });
        assert!(
            has_position(0, 7, 10)
                && has_position(0, 9, 25)
                && has_position(1, 9, 14)
                && has_position(1, 7, 0)
        );
        assert!(!has_position(0, 7, 11) && !has_position(0, 9, 26) && !has_position(1, 7, 1));
        // An unknown epoch, and a partition that does not exist.
        assert!(!has_position(0, 8, 1) && !has_position(2, 9, 0));
    }

    #[test]
    fn position_before_the_first_message_of_a_life_is_known() {
        let mut lives = Lives::first(7);
        lives.begin(9, &[10, 0], 7);
        // The second partition assigns no offset in this life.
        lives.begin(11, &[12, 0], 7);
        assert!(lives.has_position(1, Position::new(9, 10)));
        assert!(!lives.has_position(1, Position::new(9, 11)));
    }

    #[test]
    fn offset_of_an_earlier_life_is_of_another_branch_if_that_life_ended_before_it() {
        let mut lives = Lives::first(7);
        // Both partitions had assigned offsets up to 12 when the second life began, and up to 20 in it.
        lives.begin(9, &[12, 12], 7);
        assert!(lives.has_position(1, Position::new(7, 12)));
        // The log is restored from a backup in which the second partition is empty.
        lives.begin(11, &[20, 0], 7);
        for (epoch, offset) in [(7, 12), (9, 5), (9, 11), (9, 13)] {
            let position = Position::new(epoch, offset);
            assert!(!lives.has_position(1, position), "{offset} in {epoch}");
        }
        assert!(
            lives.has_position(1, Position::new(9, 12)),
            "the position before the first message"
        );
        assert!(
            lives.has_position(0, Position::new(9, 5))
                && lives.has_position(0, Position::new(9, 20))
        );
        assert!(
            lives.has_position(1, Position::new(7, 0))
                && lives.has_position(1, Position::new(9, 0))
        );
    }

    #[test]
    fn offset_determines_the_life_that_assigned_it() {
        let lives = lives();
        let epochs = [0, 10, 11, 25, 26, 1 << 50].map(|offset| lives.epoch_of(offset));
        assert_eq!(epochs, [7, 7, 9, 9, 11, 11]);
        assert_eq!((lives.first_offset(), Lives::first(3).epoch_of(5)), (26, 3));
    }

    #[test]
    fn log_that_is_shorter_than_recorded_lowers_the_ends_of_all_lives() {
        let mut lives = Lives::first(7);
        lives.begin(9, &[10, 8], 7);
        lives.begin(11, &[6, 20], 7);
        assert!(!lives.has_position(0, Position::new(7, 7)));
        assert!(
            lives.has_position(0, Position::new(7, 6))
                && lives.has_position(1, Position::new(7, 8))
        );
    }

    #[test]
    fn oldest_lives_are_forgotten() {
        let mut lives = Lives::first(1);
        let last_epoch = LIVES_MAX as u32 + 5;
        (2..=last_epoch).for_each(|epoch| lives.begin(epoch, &[u64::from(epoch)], epoch - 1));
        assert!(!lives.has_epoch(4) && lives.has_epoch(5) && lives.has_epoch(last_epoch));
        assert_eq!(lives.epoch_of(1), 5, "the first one that is known");
    }

    #[test]
    fn life_of_the_base_is_kept_however_many_starts_follow_without_a_checkpoint() {
        let mut lives = Lives::first(1);
        let last_epoch = 2 * LIVES_MAX as u32;
        // Each life assigns 10 offsets. The base was written in the second life.
        for epoch in 2..=last_epoch {
            lives.begin(epoch, &[u64::from(epoch - 1) * 10], 2);
            lives = Lives::parse(&lives.text(), 1).expect("it was written");
        }
        let has_position = |epoch, offset| lives.has_position(0, Position { epoch, offset });
        assert!(lives.has_epoch(2) && has_position(2, 20) && !has_position(2, 21));
        let oldest = last_epoch - LIVES_MAX as u32 + 1;
        assert!(!lives.has_epoch(1) && !lives.has_epoch(3) && !lives.has_epoch(oldest - 1));
        assert!(lives.has_epoch(oldest) && has_position(oldest, u64::from(oldest) * 10));
        // A message of a life that is forgotten has a position that stays valid.
        let forgotten = u64::from(oldest) * 10 / 2;
        assert_eq!(lives.epoch_of(forgotten), oldest);
        assert!(has_position(oldest, forgotten));
        assert_eq!(lives.epoch_of(20), 2);
    }

    #[test]
    fn text_of_a_log_with_many_lives_has_bounded_bytes() {
        let mut lives = Lives::first(u32::MAX);
        for n in 0..LIVES_MAX as u64 + 5 {
            let end = SlottedOffset::OFFSET_MAX - LIVES_MAX as u64 * 2 + n;
            lives.begin(u32::MAX - n as u32, &[end; 16], 1);
        }
        let (bytes, bytes_max) = (lives.text().len(), Lives::text_bytes_max(16));
        // The current life has no ends.
        assert_eq!(bytes + 16 * (1 + OFFSET_DIGITS), bytes_max);
    }

    proptest! {
        #[test]
        fn a_text_is_read_as_it_was_written(
            all in prop::collection::vec((any::<u32>(), prop::array::uniform3(0..u64::MAX / 2)), 0..20), first: u32,
        ) {
            let mut lives = Lives::first(first);
            all.iter().for_each(|(epoch, ends)| lives.begin(*epoch, ends, first));
            prop_assert_eq!(Lives::parse(&lives.text(), 3), Ok(lives.clone()));
            if !all.is_empty() {
                prop_assert_eq!(Lives::parse(&lives.text(), 2), Err(Unreadable));
            }
        }

        #[test]
        fn a_changed_text_is_refused(at: prop::sample::Index, byte in b' '..b'~') {
            let mut text = lives().text().into_bytes();
            let at = at.index(text.len());
            prop_assume!(text[at] != byte);
            text[at] = byte;
            let text = String::from_utf8(text).expect("ASCII");
            prop_assert_eq!(Lives::parse(&text, 2), Err(Unreadable));
        }

        #[test]
        fn any_text_is_read_or_refused(text: String) {
            let _ = Lives::parse(&text, 2);
        }
    }
}
