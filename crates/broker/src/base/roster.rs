//! The writers of a partition whose log several processes write: which of their batches count, and which of them is the steward, which
//! does what one process does for all.
//!
//! Invariant: it is a fold over the records of the partition alone, so that it is alike in all processes.

use alloc::vec::Vec;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::base::ids::PartitionId;
use crate::base::planted::{self, Fault};
use crate::base::snapshot::{Damaged, In, Out};

/// Writers that are remembered: the one whose last batch is the oldest goes first. A batch of one that is forgotten is void, but for its first.
const WRITERS_MAX: usize = 256;

/// No writer numbers its batches so high.
pub(crate) const NUMBER_MAX: u64 = 1 << 62;

#[derive(Clone, Copy)]
struct Writer {
    id: u64,
    /// The number of its last batch that counted.
    number: u64,
    /// Batches behind this point do not count.
    is_dead: bool,
}

/// The writers of a partition.
#[derive(Default)]
pub(crate) struct Roster {
    /// In the order of their last batches, the newest last.
    writers: Vec<Writer>,
    /// The process that does what one does for all, until it is dead.
    pub steward: Option<u64>,
    /// The offset of the last record.
    pub last: u64,
    /// The log has lost its beginning: the first batch of a writer that is found counts.
    has_lost: bool,
}

impl Roster {
    fn find(&self, id: u64) -> Writer {
        let found = self.writers.iter().rfind(|it| it.id == id);
        found.copied().unwrap_or(Writer {
            id,
            number: 0,
            is_dead: false,
        })
    }

    /// Changes a writer, which becomes the newest. A batch that does not count must not, since its own writer does not look at it again.
    fn put(&mut self, writer: Writer) {
        if let Some(at) = self.writers.iter().rposition(|it| it.id == writer.id) {
            self.writers.remove(at);
        }
        if self.writers.len() == WRITERS_MAX {
            self.writers.remove(0);
        }
        self.writers.push(writer);
    }

    /// A batch of this writer comes next in the log: says whether it counts. A duplicate does not, nor does one behind a gap, or of a writer
    /// that is dead.
    pub fn counts(&mut self, id: u64, number: u64) -> bool {
        let writer = self.find(id);
        let is_alive = !writer.is_dead || planted::is(Fault::DeadAccepted);
        let is_next = match planted::is(Fault::GapAccepted) {
            true => number > writer.number,
            false => number == writer.number + 1,
        };
        let is_found = self.has_lost && writer.number == 0;
        let counts = is_alive && (is_next || is_found);
        if counts {
            self.put(Writer { number, ..writer });
        }
        counts
    }

    /// The log has lost its beginning, and nothing of it was read.
    pub fn lose(&mut self) {
        self.has_lost = true;
    }

    /// Whether the log has lost its beginning.
    pub fn has_lost(&self) -> bool {
        self.has_lost
    }

    /// Those that are not known to be dead.
    pub fn living(&self) -> impl Iterator<Item = u64> {
        let writers = self.writers.iter().filter(|it| !it.is_dead);
        writers.map(|it| it.id)
    }

    /// A writer is dead from here on. Says whether it was not before.
    pub fn bury(&mut self, id: u64) -> bool {
        let writer = self.find(id);
        self.put(Writer {
            is_dead: true,
            ..writer
        });
        if self.steward == Some(id) {
            self.steward = None;
        }
        !writer.is_dead
    }

    /// Those that are known to be dead.
    pub fn dead(&self) -> impl Iterator<Item = u64> {
        let writers = self.writers.iter().filter(|it| it.is_dead);
        writers.map(|it| it.id)
    }

    /// Whether a writer is known to be dead.
    pub fn is_dead(&self, id: u64) -> bool {
        self.dead().any(|it| it == id)
    }

    /// A writer wants to be the steward: the first one is, until it is dead.
    pub fn want_steward(&mut self, id: u64) {
        if self.steward.is_none() && !self.is_dead(id) {
            self.steward = Some(id);
        }
    }

    /// All of it, in the same form in all processes.
    pub fn write(&self, out: &mut Out<'_>) {
        out.number(self.last);
        out.word(self.steward.unwrap_or(0));
        out.number(self.writers.len() as u64);
        for writer in &self.writers {
            out.word(writer.id);
            out.number(writer.number);
            out.byte(writer.is_dead.into());
        }
    }

    /// The digest of all of it.
    pub fn digest(&self, partition: PartitionId, seed: u64) -> u64 {
        let mut bytes = Vec::new();
        self.write(&mut Out(&mut bytes));
        xxh3_64_with_seed(&bytes, seed ^ u64::from(partition))
    }

    /// Reads what was written.
    ///
    /// # Errors
    /// When it is none.
    pub fn read(from: &mut In<'_>) -> Result<Roster, Damaged> {
        let (last, steward) = (from.number()?, from.word()?);
        let count = from.number()? as usize;
        if count > WRITERS_MAX {
            return Err(Damaged("a partition has too many writers"));
        }
        let mut writers = Vec::new();
        for _ in 0..count {
            let writer = Writer {
                id: from.word()?,
                number: from.number()?,
                is_dead: from.byte()? != 0,
            };
            if writer.number >= NUMBER_MAX {
                return Err(Damaged("a batch has an impossible number"));
            }
            writers.push(writer);
        }
        Ok(Roster {
            writers,
            steward: (steward != 0).then_some(steward),
            last,
            has_lost: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_of_each_writer_count_in_their_order_until_it_is_dead() {
        let mut roster = Roster::default();
        let of = [(7, 1), (8, 1), (7, 2), (7, 2), (7, 4), (8, 2), (9, 2)];
        let counts = of.map(|(id, number)| roster.counts(id, number));
        assert_eq!(counts, [true, true, true, false, false, true, false]);
        roster.want_steward(7);
        roster.want_steward(8);
        assert_eq!(roster.steward, Some(7));
        assert!(roster.bury(7) && !roster.bury(7) && roster.bury(5));
        assert!(!roster.counts(7, 3) && !roster.counts(5, 1) && roster.counts(8, 3));
        assert_eq!((roster.steward, roster.is_dead(7)), (None, true));
        roster.want_steward(5);
        roster.want_steward(8);
        assert_eq!(roster.steward, Some(8));
    }

    #[test]
    fn it_is_read_as_it_was_written_and_forgets_the_oldest() {
        let mut roster = Roster::default();
        for id in 1..=WRITERS_MAX as u64 + 1 {
            assert!(roster.counts(id, 1));
        }
        roster.bury(3);
        roster.want_steward(4);
        roster.last = 70_000;
        let mut bytes = Vec::new();
        roster.write(&mut Out(&mut bytes));
        let mut read = Roster::read(&mut In(&bytes)).expect("it was written");
        assert!(read.is_dead(3) && read.steward == Some(4) && read.last == 70_000);
        assert!(!read.counts(1, 2) && read.counts(2, 2) && !read.counts(2, 2));
    }
}
