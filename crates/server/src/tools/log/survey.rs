//! Reads a log and its base, and reports their content and their faults.
//!
//! Words: a *base* is the snapshot that the log continues; a *document* is the snapshot of one home or partition.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use crore_broker::Placement;
use crore_broker::batch;
use crore_disk::{BatchPlace, ScanEvent, TornGroup};
use serde::Serialize;
use serde_json::{Value, json};

use super::source::{Source, is_missing_file, segments};
use crate::lifecycle::state::{self, Documents};

/// Maximum number of reported faults. Further faults are only counted.
const FAULTS_MAX: usize = 100;

pub const SEGMENT_COLUMNS: &[&str] = &[
    "segment",
    "bytes",
    "first_group",
    "last_group",
    "batches",
    "counts",
];
pub const PARTITION_COLUMNS: &[&str] = &[
    "partition",
    "batches",
    "records",
    "first_offset",
    "last_offset",
    "writers",
];

/// The contents of a log and its base.
#[derive(Debug, Default, Serialize)]
pub struct Survey {
    log: Option<String>,
    /// The random number that identifies the log, chosen when the log was created.
    identity: Option<String>,
    base: Option<BaseFound>,
    segments: Vec<Segment>,
    partitions: Vec<Partition>,
    totals: Totals,
    torn: Option<Value>,
    foreign: Vec<String>,
    damages: Vec<Fault>,
    /// The number of faults beyond [`FAULTS_MAX`].
    more_damages: usize,
}

#[derive(Debug, Default, Serialize)]
struct Totals {
    bytes: u64,
    groups: u64,
    last_group: u64,
    batches: u64,
    records: u64,
}

#[derive(Debug, Serialize)]
struct BaseFound {
    number: u64,
    /// The first segment that a server reads after the base.
    segment: u64,
    /// The last group of batches that the base contains.
    group: u64,
    homes: u16,
    partitions: u16,
    bytes: u64,
    /// Whether the base was written when the server stopped, and no server has served clients since.
    clean: bool,
}

#[derive(Debug, Default, Serialize)]
struct Segment {
    segment: u64,
    bytes: u64,
    first_group: Option<u64>,
    last_group: Option<u64>,
    batches: u64,
    /// Whether a server would read the segment at its start, because the base does not contain all of it.
    counts: bool,
}

#[derive(Debug, Default, Serialize)]
struct Partition {
    partition: u16,
    batches: u64,
    records: u64,
    first_offset: u64,
    last_offset: u64,
    writers: BTreeSet<String>,
}

/// A fault of the log or the base.
#[derive(Debug, Serialize)]
struct Fault {
    #[serde(skip_serializing_if = "Option::is_none")]
    segment: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    byte: Option<u64>,
    message: String,
}

impl Survey {
    /// Reads the whole log and the base. A running server may write and remove files at the same time. So if a fault is found, everything
    /// is read once more.
    pub fn of(directory: &Path) -> anyhow::Result<Survey> {
        match Survey::once(&Source::find(directory)?) {
            Ok(survey) if survey.is_good() => Ok(survey),
            Err(error) if !is_missing_file(&error) => Err(error),
            _ => Survey::once(&Source::find(directory)?),
        }
    }

    fn once(source: &Source) -> anyhow::Result<Survey> {
        let mut survey = Survey::default();
        let partitions = survey.read_base(source);
        if let Some(log) = &source.log {
            survey.log = Some(log.display().to_string());
            let first = source.first_segment().unwrap_or(1);
            survey.segments = segments(log)?
                .into_iter()
                .map(|(segment, bytes)| Segment {
                    segment,
                    bytes,
                    counts: segment >= first,
                    ..Segment::default()
                })
                .collect();
        }
        let mut found = BTreeMap::new();
        let recovered = source.walk(|it| match it {
            ScanEvent::Batch(place, batch) => survey.batch(place, batch, &mut found, partitions),
            ScanEvent::Damage(damage) => {
                survey.fault(Some((damage.segment, damage.offset)), damage.to_string());
            }
        })?;
        survey.partitions = found.into_values().collect();
        survey.identity = recovered.identity.map(|it| hex(it.log));
        survey.foreign = recovered.foreign_files;
        survey.torn = recovered
            .torn_group
            .map(|TornGroup { segment, offset }| json!({ "segment": segment, "byte": offset }));
        survey.totals = Totals {
            bytes: survey.segments.iter().map(|it| it.bytes).sum(),
            groups: recovered.groups,
            last_group: recovered.last_group,
            batches: recovered.batches,
            records: survey.partitions.iter().map(|it| it.records).sum(),
        };
        if let Some(base) = &survey.base
            && !recovered.is_replaced_by_checkpoint
            && recovered.last_group < base.group
        {
            let message = format!(
                "the log ends with group {}, before group {} of its base",
                recovered.last_group, base.group
            );
            let place = recovered.torn_group.map(|torn| (torn.segment, torn.offset));
            survey.fault(place, message);
        }
        Ok(survey)
    }

    /// Verifies the documents of the base. Returns the number of partitions, if it is known.
    fn read_base(&mut self, source: &Source) -> Option<u16> {
        let (base, directory) = (source.base?, source.state.as_ref()?);
        let documents = match Documents::of(directory, base) {
            Ok(documents) => documents,
            Err(reason) => {
                self.fault(None, format!("the base cannot be used: {reason}"));
                return None;
            }
        };
        let mut bytes = 0;
        for path in base.documents(directory).unwrap_or_default() {
            match state::verify(&path) {
                Ok(of_document) => bytes += of_document,
                Err(reason) => self.fault(None, reason.to_string()),
            }
        }
        let head = documents.head();
        self.base = Some(BaseFound {
            number: base.number,
            segment: base.end.0,
            group: base.end.1,
            homes: head.homes,
            partitions: head.partitions,
            bytes,
            clean: documents.clean,
        });
        Some(head.partitions)
    }

    fn batch(
        &mut self,
        place: BatchPlace,
        bytes: &[u8],
        found: &mut BTreeMap<u16, Partition>,
        partitions: Option<u16>,
    ) {
        if let Some(segment) = self
            .segments
            .iter_mut()
            .find(|it| it.segment == place.segment)
        {
            segment.first_group.get_or_insert(place.group);
            segment.last_group = Some(place.group);
            segment.batches += 1;
        }
        let mut offsets = Vec::new();
        let placement = partitions.map(|partitions| Placement::new(partitions, 1));
        // The same check as when a server starts.
        let read =
            batch::for_each_record(bytes, |offset, _| offsets.push(offset)).and_then(|header| {
                let checked = placement.map(|placement| batch::check(bytes, placement, false));
                checked.unwrap_or(Ok(header))
            });
        let here = Some((place.segment, place.batch_offset));
        let which = format!(
            "a batch in segment {} at byte {}",
            place.segment, place.batch_offset
        );
        let header = match read {
            Ok(header) => header,
            Err(reason) => return self.fault(here, format!("{which} cannot be read: {reason}")),
        };
        let entry = found.entry(header.partition).or_default();
        entry.partition = header.partition;
        let mut last = entry.last_offset;
        let ascends = offsets.iter().all(|offset| {
            let ascends = *offset > last;
            last = *offset;
            ascends
        });
        if entry.batches == 0 {
            entry.first_offset = header.first_offset;
        }
        entry.batches += 1;
        entry.records += u64::from(header.record_count);
        entry.writers.insert(hex(header.writer));
        let before = entry.last_offset;
        entry.last_offset = before.max(last);
        if !ascends {
            let message = format!(
                "{which} has offset {} of partition {}, which had come to {before}",
                header.first_offset, header.partition
            );
            self.fault(here, message);
        }
    }

    fn fault(&mut self, place: Option<(u64, u64)>, message: String) {
        if self.damages.len() == FAULTS_MAX {
            self.more_damages += 1;
            return;
        }
        self.damages.push(Fault {
            segment: place.map(|it| it.0),
            byte: place.map(|it| it.1),
            message,
        });
    }

    /// Whether nothing is damaged. An incomplete group of batches at the end of the log is no damage: a crash leaves one.
    pub fn is_good(&self) -> bool {
        self.damages.is_empty()
    }

    /// The report of `verify` as JSON.
    pub fn verdict(&self) -> Value {
        json!({
            "good": self.is_good(),
            "damages": self.damages,
            "more_damages": self.more_damages,
            "torn": self.torn,
            "foreign": self.foreign,
            "totals": self.totals,
        })
    }

    /// The lines of `inspect` above the tables.
    pub fn headline(&self) -> String {
        let none = || "none".to_string();
        let base = self.base.as_ref().map_or_else(none, |base| {
            let clean = if base.clean { "clean" } else { "not clean" };
            format!(
                "{}: {} homes, {} partitions, {} bytes, {clean}; goes on with segment {}, contains groups up to {}",
                base.number, base.homes, base.partitions, base.bytes, base.segment.max(1), base.group
            )
        });
        format!(
            "log       {}\nidentity  {}\nbase      {base}\n",
            self.log.clone().unwrap_or_else(none),
            self.identity.clone().unwrap_or_else(none),
        )
    }

    /// The faults and the totals as text.
    pub fn faults_text(&self) -> String {
        let mut text = String::new();
        for fault in &self.damages {
            text.push_str(&format!("damage: {}\n", fault.message));
        }
        if self.more_damages > 0 {
            text.push_str(&format!("damage: {} more\n", self.more_damages));
        }
        if let Some(torn) = &self.torn {
            text.push_str(&format!(
                "torn: segment {} at byte {}: a group was being written, and nobody was answered; it is no damage\n",
                torn["segment"], torn["byte"]
            ));
        }
        for name in &self.foreign {
            text.push_str(&format!(
                "left alone: {} is none of the log's files\n",
                name.escape_debug()
            ));
        }
        let Totals {
            bytes,
            groups,
            batches,
            records,
            ..
        } = self.totals;
        let verdict = if self.is_good() { "good" } else { "damaged" };
        text.push_str(&format!(
            "{verdict}: {} segments, {bytes} bytes, {groups} groups, {batches} batches, {records} records\n",
            self.segments.len()
        ));
        text
    }
}

/// A random number in hexadecimal, as text. Readers of JSON would round the number.
pub fn hex(number: u64) -> String {
    format!("{number:016x}")
}
