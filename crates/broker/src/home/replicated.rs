//! A home of a node of a cluster: its log has other writers, and its subscribers may come from other nodes.
//!
//! Invariants: whatever changes what the log says is the same at all nodes that have applied the same records; what this process has no
//! room for is forgotten here alone. A position that another node has given is never believed too early: its subscription begins when this
//! node has come as far.

use alloc::boxed::Box;

use super::Home;
use super::interest::TopicInterest;
use super::logs::Logs;
use super::page_queue::{PageQueue, PendingPage};
use super::topics::TopicTable;
use crate::base::ids::OFFSETS_PER_BATCH;
use crate::base::placement::Slotted;
use crate::base::planted::{self, Fault};
use crate::base::position::{Position, Since};
use crate::base::roster::Roster;
use crate::base::snapshot::{Block, Damaged, In, kind};
use crate::budget::admission::Client;

/// Subscriptions that are given up at once, at most.
const GIVEN_UP_MAX: usize = 4096;

impl Home {
    /// Its log has other writers, too.
    pub(crate) fn replicate(&mut self) {
        self.logs.future_pages = Some(Box::default());
        for partition in &mut self.logs.partitions {
            partition.replicate();
            // Readers by filter may have been at other nodes since before.
            partition.log.losses.watch_shared();
        }
    }

    /// A record of the partition at this place is applied that another process wrote. `ends`: it is the last one of its batch.
    pub(crate) fn has_applied(&mut self, at: usize, offset: u64, ends: bool) {
        let Some(future_pages) = &mut self.logs.future_pages else {
            return;
        };
        if !ends {
            return;
        }
        let known_to = offset | (OFFSETS_PER_BATCH - 1);
        self.logs.partitions[at].known_to = known_to;
        while let Some(due) = future_pages.first_until(at, known_to) {
            if let Some(reading) = future_pages.take(&due) {
                self.page_queue.push(reading);
            }
        }
    }

    /// The number of the last page that waits for the log of the partition at this place, if one does.
    pub(crate) fn waits_for_log(&self, at: usize) -> Option<u64> {
        self.logs.future_pages.as_ref()?.last_of(at)
    }

    /// The log of the partition at this place is read up to what this process has written to it behind the page with this number. A position
    /// that it has not come to is none of this log: its subscriber is told a gap.
    pub(crate) fn give_up_positions(&mut self, at: usize, number: u64) {
        let Some(future_pages) = &self.logs.future_pages else {
            return;
        };
        let due = future_pages.up_to(at, number, GIVEN_UP_MAX);
        self.steps.add(due.len());
        for due in due {
            let future_pages = self.logs.future_pages.as_mut();
            let Some(mut reading) = future_pages.and_then(|it| it.take(&due)) else {
                return;
            };
            match &mut reading {
                PendingPage::Topic { ask, .. } => ask.since = Since::Unknown,
                PendingPage::Filters { ask, reader, .. } => {
                    ask.since = Since::Unknown;
                    *reader = self.logs.reader(ask, reader.partition);
                }
                PendingPage::Group(..) | PendingPage::LateGroups | PendingPage::Interest(..) => {}
            }
            self.page_queue.push(reading);
        }
    }
}

impl Logs {
    /// Whether a batch counts that comes next in the log of the partition at this place.
    pub(crate) fn counts(&mut self, at: usize, writer: u64, number: u64) -> bool {
        self.partitions[at].roster.counts(writer, number)
    }

    /// The writers of the partition at this place.
    pub(crate) fn roster(&mut self, at: usize) -> &mut Roster {
        &mut self.partitions[at].roster
    }

    /// The position of a subscription that the log of the partition at this place has not come to, if it has not.
    pub(super) fn ahead(&self, since: Since, at: usize) -> Option<u64> {
        self.future_pages.as_ref()?;
        let partition = &self.partitions[at];
        match since {
            Since::At(Position { epoch, offset }) if epoch == self.epoch => {
                (offset > partition.sequence.max(partition.known_to)).then_some(offset)
            }
            _ => None,
        }
    }

    /// Records to come are of this second or a later one, by the log's clock; none where the log has no clock.
    pub(super) fn oldest_of_log_s(&self) -> Option<u32> {
        self.future_pages.as_ref()?;
        self.partitions.iter().map(|it| it.time_s).min()
    }

    /// Writes who writes to the partitions.
    pub(crate) fn save_rosters(&self, block: &mut Block<'_>) {
        if !self.is_replicated() {
            return;
        }
        let all = self.placement.of_home(self.me);
        for (partition, it) in all.zip(&self.partitions) {
            let mut out = block.record(kind::ROSTER);
            out.number(partition.into());
            out.number(it.time_s.into());
            out.number(it.known_to);
            out.byte(it.roster.has_lost().into());
            it.roster.write(&mut out);
        }
    }

    /// Reads who writes to a partition.
    pub(crate) fn restore_roster(&mut self, from: &mut In<'_>) -> Result<(), Damaged> {
        let (partition, time_s) = (from.number16()?, from.number32()?);
        let (known_to, has_lost) = (from.number()?, from.byte()? != 0);
        let mut roster = Roster::read(from)?;
        if roster.last.max(known_to) > Slotted::OFFSET_MAX {
            return Err(Damaged("an offset is too large"));
        }
        if has_lost {
            roster.lose();
        }
        if partition < self.placement.partitions()
            && let Some(at) = self.place_here(partition)
            && self.is_replicated()
            && !planted::is(Fault::ForgottenWriters)
        {
            let partition = &mut self.partitions[at];
            (partition.time_s, partition.known_to) = (time_s, known_to);
            partition.passes_to = roster.last | (OFFSETS_PER_BATCH - 1);
            partition.roster = roster;
        }
        Ok(())
    }

    /// The digest of what the log says of the writers of its partitions.
    pub(super) fn digest_of_rosters(&self) -> u64 {
        if !self.is_replicated() {
            return 0;
        }
        let all = self.placement.of_home(self.me);
        all.zip(&self.partitions)
            .fold(0, |digest, (partition, it)| {
                digest ^ it.roster.digest(partition, self.seed)
            })
    }
}

impl TopicTable {
    /// Another process has made a topic for which this one may have no room: another one is forgotten, if one is idle.
    pub(crate) fn make_room_for_others(&mut self, logs: &mut Logs, interest: &mut TopicInterest) {
        if self.rows.len() as usize > self.topics_max {
            self.forget_one(logs, interest, Client::NOBODY, u32::MAX);
        }
    }
}

impl PageQueue {
    /// Has a page read once the log of the partition at this place has come to this offset.
    pub(super) fn wait_for_log(
        &mut self,
        logs: &mut Logs,
        reading: PendingPage,
        at: usize,
        offset: u64,
    ) {
        self.waited += 1;
        if let Some(future_pages) = &mut logs.future_pages {
            future_pages.push(reading, at, offset);
        }
    }
}
