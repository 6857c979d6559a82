//! The engine (the log that commits batches) as in a real server: the log of `crore-disk`, shared by all partitions, on a disk in memory.
//! The engine loses no batch while its process runs. A crash can come before a batch is in a group, before a written group is synced, and
//! before a synced batch is reported.
//!
//! The *base* is the checkpoint from which a new process starts. The process then reads the batches after the base.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use crore_broker::batch::Header;
use crore_broker::{Batch, Committed, PartitionId};
use crore_disk::simulated::{Disk, Fault};
use crore_disk::{
    BatchPlace, CommitError, Damage, DamageKind, Identity, Log, LogEnd, Options, ScanEvent,
    Storage as _, scan, segment_number,
};
use crore_rng::Rng;

use crate::truth::Violation;

/// Bytes of a batch.
type Bytes = Arc<[u8]>;

const IDENTITY: Identity = Identity { log: 7, seed: 8 };
/// Slightly more than the number of disk calls of a commit that begins a segment, so that a crash can come at each of them.
const CALLS: usize = 10;

/// A batch, and the number of its group.
type Stored = (u64, Bytes);

/// The log and its disk.
pub struct DiskLog {
    disk: Disk,
    segment_bytes: u64,
    log: Option<Log<Disk>>,
    /// Appended batches that are in no group yet.
    waiting: VecDeque<Batch>,
    /// Synced batches that are not reported yet.
    stored: Vec<Committed>,
    /// For each partition the number of the last appended batch.
    appended: BTreeMap<PartitionId, u64>,
    /// All synced batches, in order.
    synced: Vec<Stored>,
    /// The batches of the group that was being written when the process ended.
    unfinished: Vec<Bytes>,
    /// The end of the part of the log that the base contains.
    base_end: LogEnd,
    /// By partition the writer and number of the last batch after `base_end` that a replaced document of the base contains.
    contained: BTreeMap<PartitionId, (u64, u64)>,
    /// The damage to the disk that the next process must report.
    damage: Option<InjectedDamage>,
}

/// Damage to synced groups.
#[derive(Clone, Copy)]
enum InjectedDamage {
    /// A byte of this group changes.
    Group(u64),
    /// The newest segment is deleted or cut: this group and all later ones are lost.
    End(u64),
}

impl InjectedDamage {
    /// Whether the group is lost.
    fn hits(self, group: u64) -> bool {
        match self {
            InjectedDamage::Group(damaged) => group == damaged,
            InjectedDamage::End(first) => group >= first,
        }
    }
}

/// The log as a new process finds it.
pub struct Start {
    /// The batches after the base.
    pub batches: Vec<Bytes>,
    /// The number of batches at the end of `batches` whose commit was not reported before the crash.
    pub unreported: usize,
    /// Batches that are lost because of damage, without those that a document of the base contains.
    pub lost: Vec<Bytes>,
    /// The damage, if there is any.
    pub damage: Option<ReportedDamage>,
}

/// Damage as the log of `crore-disk` reports it.
#[derive(Clone, Copy, Debug)]
pub struct ReportedDamage {
    /// The number of batches before the damage.
    pub at: usize,
    /// The number of missing batches, if it is known.
    pub missing: Option<u64>,
}

impl DiskLog {
    /// An empty log. `seed` determines the bytes that a power cut loses.
    pub fn new(seed: u64, segment_bytes: u64) -> DiskLog {
        let mut disk_log = DiskLog {
            disk: Disk::new(seed, Fault::None),
            segment_bytes,
            log: None,
            waiting: VecDeque::new(),
            stored: Vec::new(),
            appended: BTreeMap::new(),
            synced: Vec::new(),
            unfinished: Vec::new(),
            base_end: LogEnd::default(),
            contained: BTreeMap::new(),
            damage: None,
        };
        disk_log.open(|_| {}).expect("the disk is empty");
        disk_log
    }

    /// Appends a batch. Returns false if it was appended before.
    ///
    /// # Errors
    /// If a number was skipped.
    pub fn append(&mut self, batch: Batch) -> Result<bool, Violation> {
        let Header {
            partition, number, ..
        } = batch.header;
        let last = self.appended.entry(partition).or_default();
        if number <= *last {
            return Ok(false);
        }
        if number != *last + 1 {
            return Err(format!(
                "batch {number} of partition {partition} comes behind {last}"
            ));
        }
        *last = number;
        self.waiting.push_back(batch);
        Ok(true)
    }

    /// Writes and syncs at most `batches_max` batches as one group. Returns the batches.
    ///
    /// # Errors
    /// If the log fails. The disk itself does not fail here.
    pub fn commit(&mut self, batches_max: usize, rng: &mut Rng) -> Result<Vec<Batch>, Violation> {
        let group = self.take_waiting(batches_max);
        self.write(&group).map_err(|error| error.to_string())?;
        if rng.chance(50) {
            let prepared = self.log().make_spares();
            prepared.map_err(|error| error.to_string())?;
        }
        Ok(group)
    }

    /// Reports the synced batches of these partitions, in order.
    pub fn report(&mut self, partitions: &[PartitionId]) -> Vec<Committed> {
        let is_reported = |it: &Committed| partitions.contains(&it.header.partition);
        let stored = std::mem::take(&mut self.stored);
        let (reported, left) = stored.into_iter().partition(is_reported);
        self.stored = left;
        reported
    }

    /// Whether the log can write or report something for one of these partitions.
    pub fn has_work(&self, mut partitions: impl Iterator<Item = PartitionId>) -> bool {
        let stored = |partition| {
            self.stored
                .iter()
                .any(|it| it.header.partition == partition)
        };
        partitions.any(|partition| !self.waiting.is_empty() || stored(partition))
    }

    /// Number of batches that are in no group yet.
    pub fn waiting(&self) -> usize {
        self.waiting.len()
    }

    /// The end of the log.
    pub fn end(&mut self) -> LogEnd {
        self.log().end()
    }

    /// Ends the process before, during or after a commit. With `is_power_cut` the power fails. Returns the batches that this commit has
    /// synced.
    pub fn crash(&mut self, is_power_cut: bool, rng: &mut Rng) -> Vec<Batch> {
        let mut group = self.take_waiting(rng.range(0, 4));
        self.disk.cut_power_after(rng.below(CALLS));
        if self.write(&group).is_err() {
            self.unfinished = group.drain(..).map(|batch| batch.bytes).collect();
        }
        self.log = None;
        match is_power_cut {
            true => self.disk.restore_power(),
            false => self.disk.restart_process(),
        }
        if rng.chance(10) {
            // The next process crashes in turn, while it opens the log.
            self.disk.cut_power_after(rng.below(2 * CALLS));
            let _ = self.open(|_| {});
            self.log = None;
            self.disk.restore_power();
        }
        group
    }

    /// Ends the process as planned. The caller makes sure that everything is synced and reported.
    pub fn stop(&mut self) {
        self.log = None;
    }

    /// Damages the log after the base. Changes a byte of a group that is not the last one, or removes the end of the log.
    pub fn inject_damage(&mut self, rng: &mut Rng) -> Result<(), Violation> {
        let mut places = Vec::new();
        let (checkpoint_group, base) = (self.base_end.group, self.base_end.segment.max(1));
        let found = scan(&self.disk, (Some(base), None), |it| match it {
            ScanEvent::Batch(place, batch) if place.group > checkpoint_group => {
                places.push((place, batch.len()));
            }
            _ => {}
        });
        let last = found.map_err(|error| error.to_string())?.last_group;
        if places.is_empty() {
            return Ok(());
        }
        let (place, len) = places[rng.below(places.len())];
        let files = self.disk.list().map_err(|error| error.to_string())?;
        let newest = files
            .iter()
            .filter_map(|file| segment_number(&file.name))
            .max();
        let newest = newest.unwrap_or(0);
        let is_in_newest = |(it, _): &&(BatchPlace, usize)| it.segment == newest;
        let first = places.iter().find(is_in_newest).map_or(0, |it| it.0.group);
        let name = format!("segment-{:010}.log", place.segment);
        self.damage = match rng.below(3) {
            // The base's own segment is not removed. Without it the log ends before its base, which a server reports for all partitions;
            // this simulated log cannot report that.
            0 if newest == place.segment && newest > base => {
                let removed = self.disk.remove(&name);
                let removed = removed.and_then(|()| self.disk.sync_names());
                removed.map_err(|error| error.to_string())?;
                Some(InjectedDamage::End(first))
            }
            1 if newest == place.segment => {
                self.disk.truncate(&name, place.batch_offset as usize);
                Some(InjectedDamage::End(place.group))
            }
            _ if place.group < last => {
                let at = place.batch_offset as usize + rng.below(4 + len);
                assert!(self.disk.damage(&name, at));
                Some(InjectedDamage::Group(place.group))
            }
            _ => None,
        };
        if matches!(self.damage, Some(InjectedDamage::End(_))) && rng.chance(50) {
            // One process finds the damage, and ends before it has written a base of the remaining batches.
            self.open(|_| {})?;
            self.begin_segment()?;
            self.log = None;
            if rng.chance(50) {
                self.disk.restore_power();
            }
        }
        Ok(())
    }

    /// Reads the log as a new process does.
    ///
    /// # Errors
    /// If a synced batch is missing, if a batch was never written, or if the reported damage is not the injected damage.
    pub fn start(&mut self) -> Result<Start, Violation> {
        let base = self.base_end;
        let checkpoint_group = base.group;
        let (mut found, mut reported): (Vec<Stored>, _) = (Vec::new(), None);
        // A segment before the base was removed. A power cut may bring it back, but the log must not return its batches.
        self.open(|it| match it {
            ScanEvent::Batch(place, batch) => {
                if place.group > checkpoint_group || place.segment != base.segment {
                    found.push((place.group, batch.into()));
                }
            }
            ScanEvent::Damage(it) => {
                reported = Some(ReportedDamage {
                    at: found.len(),
                    missing: it.batches,
                });
            }
        })?;
        let injected = self.damage.take();
        let (damaged, intact): (Vec<Stored>, _) = std::mem::take(&mut self.synced)
            .into_iter()
            .partition(|(group, _)| injected.is_some_and(|it| it.hits(*group)));
        let missing = reported.and_then(|it| it.missing);
        let is_wrong = missing.is_some_and(|it| it != damaged.len() as u64);
        if reported.is_some() != injected.is_some() || is_wrong {
            let count = damaged.len();
            return Err(format!(
                "{count} batches are harmed, and {reported:?} is told"
            ));
        }
        self.waiting.clear();
        self.stored.clear();
        self.appended.clear();
        let unfinished = std::mem::take(&mut self.unfinished);
        let mut rest = found.iter().map(|(_, batch)| batch);
        let due = intact.iter().filter(|(group, _)| *group > checkpoint_group);
        if let Some((group, _)) = due.clone().find(|(_, batch)| rest.next() != Some(batch)) {
            return Err(format!("a batch of group {group} was synced and is lost"));
        }
        let unreported = found.len() - due.count();
        if unreported > 0 && !rest.eq(&unfinished) {
            return Err("batches came back in part, or others than were written".into());
        }
        let batches = found.iter().map(|(_, batch)| batch.clone()).collect();
        self.synced = found;
        Ok(Start {
            batches,
            unreported,
            lost: self.not_contained(damaged)?,
            damage: reported,
        })
    }

    /// Begins a segment after the damage, so that a new base can contain everything before it. Returns the end of the log.
    ///
    /// # Errors
    /// The errors of the disk.
    pub fn begin_segment(&mut self) -> Result<LogEnd, Violation> {
        let begun = self.log().begin_segment();
        begun.map_err(|error| error.to_string())?;
        Ok(self.end())
    }

    /// Notes that the documents of these partitions were replaced by ones that contain `batches`. The log still has these batches.
    ///
    /// # Errors
    /// If a batch cannot be read.
    pub fn note_replaced(
        &mut self,
        partitions: &[usize],
        batches: &[Vec<u8>],
    ) -> Result<(), Violation> {
        for batch in batches {
            let header = Header::read(batch).map_err(|why| why.to_string())?;
            if partitions.contains(&header.partition.into()) {
                let last = (header.writer, header.number);
                self.contained.insert(header.partition, last);
            }
        }
        Ok(())
    }

    /// The batches of these that no replaced document contains.
    fn not_contained(&self, batches: Vec<Stored>) -> Result<Vec<Bytes>, Violation> {
        let mut others = Vec::new();
        for (_, batch) in batches {
            let header = Header::read(&batch).map_err(|why| why.to_string())?;
            let last = self.contained.get(&header.partition);
            if last.is_none_or(|last| (header.writer, header.number) > *last) {
                others.push(batch);
            }
        }
        Ok(others)
    }

    /// Removes the segments before `end`, because a new base contains the log up to `end`.
    ///
    /// # Errors
    /// The errors of the disk.
    pub fn set_base(&mut self, end: LogEnd) -> Result<(), Violation> {
        self.base_end = end;
        self.contained.clear();
        let removed = self.log().remove_before(end.segment);
        removed.map_err(|error| error.to_string())
    }

    /// The batches of sealed segments after the base, and the end of a base that contains them.
    ///
    /// # Errors
    /// If the log cannot be read.
    pub fn sealed_batches(&mut self) -> Result<(Vec<Vec<u8>>, LogEnd), Violation> {
        let last = self.log().usage().last_sealed;
        let first = self.base_end.segment.max(1);
        let (checkpoint_group, mut group) = (self.base_end.group, self.base_end.group);
        let mut batches = Vec::new();
        if last >= first {
            let found = scan(&self.disk, (Some(first), Some(last)), |it| {
                if let ScanEvent::Batch(place, batch) = it
                    && place.group > checkpoint_group
                {
                    batches.push(batch.to_vec());
                    group = place.group;
                }
            });
            let found = found.map_err(|error| error.to_string())?;
            if let Some(damage) = found.damages.first() {
                return Err(format!("{damage:?} is told of sealed segments"));
            }
        }
        let segment = first.max(last + 1);
        Ok((batches, LogEnd { segment, group }))
    }

    fn log(&mut self) -> &mut Log<Disk> {
        self.log.as_mut().expect("a process is running")
    }

    fn take_waiting(&mut self, batches_max: usize) -> Vec<Batch> {
        let batches_max = batches_max.min(self.waiting.len());
        self.waiting.drain(..batches_max).collect()
    }

    fn write(&mut self, group: &[Batch]) -> Result<(), CommitError> {
        let log = self.log.as_mut().expect("a process is running");
        log.commit(group.iter().map(|batch| &batch.bytes[..]))?;
        let number = log.end().group;
        for batch in group {
            self.synced.push((number, batch.bytes.clone()));
            self.stored.push(Committed {
                header: batch.header,
                batch: None,
            });
        }
        Ok(())
    }

    fn open(&mut self, each: impl FnMut(ScanEvent<'_>)) -> Result<(), Violation> {
        let options = Options {
            segment_bytes: self.segment_bytes,
            bytes_max: u64::MAX,
            first_segment: self.base_end.segment.max(1),
            checkpoint_group: self.base_end.group,
        };
        let opened = Log::open(self.disk.clone(), options, IDENTITY, each);
        let (log, found) = opened.map_err(|error| error.to_string())?;
        self.log = Some(log);
        let expected = self.damage.map(|damage| match damage {
            InjectedDamage::Group(_) => DamageKind::Bytes,
            InjectedDamage::End(_) => DamageKind::End,
        });
        let is_other = |damage: &&Damage| Some(damage.kind) != expected;
        match found.damages.iter().find(is_other) {
            Some(damage) => Err(format!("{damage:?} is told, and there is none")),
            None => Ok(()),
        }
    }
}
