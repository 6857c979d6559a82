//! The writer set of a partition in a cluster, where several processes write to the partition's log. The writer set decides which batches are valid,
//! and which writer is the steward: the node that runs wills, expiry and checkpoints for the partition.
//!
//! Invariant: the writer set depends only on the records of the partition in the order of the log, so it is the same in all processes whose log is
//! whole.

use alloc::vec::Vec;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::base::ids::PartitionId;
use crate::base::planted::{self, Fault};
use crate::base::snapshot::{Damaged, FieldReader, FieldWriter};

/// The maximum number of writers of a set. If the set is full, a new writer replaces a dead one: the one whose last change is the oldest. If none is
/// dead, it replaces the living one whose last change is the oldest. Then data is lost: that writer still acknowledges its next publishes, but for
/// the other nodes its batches are void.
const WRITERS_MAX: usize = 256;

/// Batch numbers are below this.
pub(crate) const NUMBER_MAX: u64 = 1 << 62;

#[derive(Clone, Copy)]
struct Writer {
    id: u64,
    /// The number of the writer's last valid batch.
    last_batch: u64,
    /// The writer was declared dead: its later batches are void.
    is_dead: bool,
}

/// The writer set of a partition.
#[derive(Default)]
pub(crate) struct WriterSet {
    /// In the order of their last changes, the newest last.
    writers: Vec<Writer>,
    /// The writer that is the steward; `None` from its death until another writer claims the stewardship.
    pub steward: Option<u64>,
    /// The offset of the last record.
    pub last_offset: u64,
    /// The beginning of the log is lost. So the first batch that is read of each writer is valid, whatever its number.
    is_beginning_lost: bool,
}

impl WriterSet {
    fn find(&self, id: u64) -> Writer {
        let found = self.writers.iter().rfind(|it| it.id == id);
        found.copied().unwrap_or(Writer {
            id,
            last_batch: 0,
            is_dead: false,
        })
    }

    /// Changes a writer, which becomes the newest. Must not be called for a void batch. The node that wrote that batch does not read it back, so only
    /// the other nodes would make the change.
    fn update_as_newest(&mut self, writer: Writer) {
        if let Some(at) = self.writers.iter().rposition(|it| it.id == writer.id) {
            self.writers.remove(at);
        }
        if self.writers.len() == WRITERS_MAX {
            let oldest_dead = self.writers.iter().position(|it| it.is_dead);
            self.writers.remove(oldest_dead.unwrap_or(0));
        }
        self.writers.push(writer);
    }

    /// Takes the next batch of the log, and returns whether the batch is valid. A batch is void if it is a duplicate, if it follows a gap in the numbers of its
    /// writer, or if its writer is dead.
    pub fn accept(&mut self, id: u64, number: u64) -> bool {
        let writer = self.find(id);
        let is_alive = !writer.is_dead || planted::is(Fault::DeadAccepted);
        let is_next = match planted::is(Fault::GapAccepted) {
            true => number > writer.last_batch,
            false => number == writer.last_batch + 1,
        };
        let is_first_after_loss = self.is_beginning_lost && writer.last_batch == 0;
        let is_valid = is_alive && (is_next || is_first_after_loss);
        if is_valid {
            self.update_as_newest(Writer {
                last_batch: number,
                ..writer
            });
        }
        is_valid
    }

    /// Records that the beginning of the log is lost. Called before the first batch is read.
    pub fn set_beginning_lost(&mut self) {
        self.is_beginning_lost = true;
    }

    pub fn is_beginning_lost(&self) -> bool {
        self.is_beginning_lost
    }

    pub fn living(&self) -> impl Iterator<Item = u64> {
        let writers = self.writers.iter().filter(|it| !it.is_dead);
        writers.map(|it| it.id)
    }

    /// Declares a writer dead from this point of the log on. Returns whether the writer was alive.
    pub fn declare_dead(&mut self, id: u64) -> bool {
        let writer = self.find(id);
        self.update_as_newest(Writer {
            is_dead: true,
            ..writer
        });
        if self.steward == Some(id) {
            self.steward = None;
        }
        !writer.is_dead
    }

    pub fn dead(&self) -> impl Iterator<Item = u64> {
        let writers = self.writers.iter().filter(|it| it.is_dead);
        writers.map(|it| it.id)
    }

    pub fn is_dead(&self, id: u64) -> bool {
        self.dead().any(|it| it == id)
    }

    /// Makes a living writer the steward, if there is no steward. The steward remains until its death.
    pub fn claim_stewardship(&mut self, id: u64) {
        if self.steward.is_none() && !self.is_dead(id) {
            self.steward = Some(id);
        }
    }

    /// Writes the writer set. All processes write the same bytes.
    pub fn write(&self, out: &mut FieldWriter<'_>) {
        out.number(self.last_offset);
        out.word(self.steward.unwrap_or(0));
        out.number(self.writers.len() as u64);
        for writer in &self.writers {
            out.word(writer.id);
            out.number(writer.last_batch);
            out.byte(writer.is_dead.into());
        }
    }

    /// A digest of the bytes that [`WriterSet::write`] writes.
    pub fn digest(&self, partition: PartitionId, seed: u64) -> u64 {
        let mut bytes = Vec::new();
        self.write(&mut FieldWriter(&mut bytes));
        xxh3_64_with_seed(&bytes, seed ^ u64::from(partition))
    }

    /// Reads the bytes that [`WriterSet::write`] wrote.
    ///
    /// # Errors
    /// When the bytes are damaged.
    pub fn read(reader: &mut FieldReader<'_>) -> Result<WriterSet, Damaged> {
        let (last_offset, steward) = (reader.number()?, reader.word()?);
        let count = reader.number()? as usize;
        if count > WRITERS_MAX {
            return Err(Damaged("a partition has too many writers"));
        }
        let mut writers = Vec::new();
        for _ in 0..count {
            let writer = Writer {
                id: reader.word()?,
                last_batch: reader.number()?,
                is_dead: reader.byte()? != 0,
            };
            if writer.last_batch >= NUMBER_MAX {
                return Err(Damaged("a batch has an impossible number"));
            }
            writers.push(writer);
        }
        Ok(WriterSet {
            writers,
            steward: (steward != 0).then_some(steward),
            last_offset,
            is_beginning_lost: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_of_each_writer_are_valid_in_their_order_until_it_is_dead() {
        let mut writer_set = WriterSet::default();
        let batches = [(7, 1), (8, 1), (7, 2), (7, 2), (7, 4), (8, 2), (9, 2)];
        let is_valid = batches.map(|(id, number)| writer_set.accept(id, number));
        assert_eq!(is_valid, [true, true, true, false, false, true, false]);
        writer_set.claim_stewardship(7);
        writer_set.claim_stewardship(8);
        assert_eq!(writer_set.steward, Some(7));
        assert!(
            writer_set.declare_dead(7) && !writer_set.declare_dead(7) && writer_set.declare_dead(5)
        );
        assert!(!writer_set.accept(7, 3) && !writer_set.accept(5, 1) && writer_set.accept(8, 3));
        assert_eq!((writer_set.steward, writer_set.is_dead(7)), (None, true));
        writer_set.claim_stewardship(5);
        writer_set.claim_stewardship(8);
        assert_eq!(writer_set.steward, Some(8));
    }

    #[test]
    fn quiet_writer_stays_valid_however_many_others_die() {
        let mut writer_set = WriterSet::default();
        assert!(writer_set.accept(7, 1));
        for id in 1_000..1_000 + 3 * WRITERS_MAX as u64 {
            assert!(writer_set.accept(id, 1));
            writer_set.declare_dead(id);
        }
        assert!(writer_set.accept(7, 2));
        assert_eq!(writer_set.living().collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn writer_set_is_read_as_it_was_written_and_forgets_the_oldest() {
        let mut writer_set = WriterSet::default();
        for id in 1..=WRITERS_MAX as u64 + 1 {
            assert!(writer_set.accept(id, 1));
        }
        writer_set.declare_dead(3);
        writer_set.claim_stewardship(4);
        writer_set.last_offset = 70_000;
        let mut bytes = Vec::new();
        writer_set.write(&mut FieldWriter(&mut bytes));
        let mut read = WriterSet::read(&mut FieldReader(&bytes)).expect("it was written");
        assert!(read.is_dead(3) && read.steward == Some(4) && read.last_offset == 70_000);
        assert!(!read.accept(1, 2) && read.accept(2, 2) && !read.accept(2, 2));
    }
}
