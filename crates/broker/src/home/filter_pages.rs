//! Reads a page (a bounded run of past messages) for a subscriber by filter: messages of many topics in the order of arrival, from the log
//! of one partition.
//!
//! Invariants: a page examines a bounded number of entries. A gap (the notice that messages are lost) comes before the messages of its page. If the
//! first message of a page exceeds the page size, the page waits in the queue of such pages (`page_queue.rs`) before any part of it is sent or
//! counted.
//!
//! A *chain* is the list of a topic's messages.

use alloc::collections::VecDeque;
use alloc::vec::Vec;

use crore_wire::topic;

use super::Home;
use super::context::HomeContext;
use super::page_queue::{PageQueue, Reader};
use super::reports::Reports;
use crate::base::planted::{self, Fault};
use crate::base::position::Since;
use crate::base::rules::Rules;
use crate::base::settings::RetentionMode;
use crate::base::time::Now;
use crate::base::turn_limits::TurnLimits;
use crate::filters::overlap;
use crate::log::Log;
use crate::log::arrival::{Arrival, ArrivalCursor};
use crate::mail::{AttachFilters, AttachOutcome, FilterPage, Frames};

/// The number of rows that are read for each message of a page: its entry, its chain, its topic, and the topic's name.
pub(super) const ROWS_PER_MESSAGE: usize = 4;

impl Home {
    /// Reads the next page of a subscriber by filter from one partition; `None` if the page must wait in the queue of pages with large messages.
    pub(super) fn read_filter_page(
        &mut self,
        ask: &AttachFilters,
        filters: &[&[u8]],
        reader: Reader,
        context: &mut HomeContext<'_>,
    ) -> Option<FilterPage> {
        let (rules, now) = (context.rules, context.now);
        let partition_index = self.logs.placement.index_at_home(reader.partition);
        self.remove_expired_before_page(partition_index, rules, now);
        let matching_rules = matching_rules(filters, rules);
        let partition = &self.logs.partitions[partition_index];
        let log = &partition.log;
        let (mut cursor, losses_after) = open_cursor(log, &matching_rules, reader, rules);
        let must_large_wait = self
            .page_queue
            .must_wait_as_large(usize::MAX, context.lanes);
        let frames = context.lanes.frames();
        let (first, names) = (frames.pages.len() as u32, frames.names.len() as u32);
        let forgotten = partition.forgotten.losses_after(
            losses_after,
            reader.losses_before,
            &matching_rules,
            filters,
        );
        self.steps.add(forgotten.len() + matching_rules.len());
        let mut draft = UnfinishedPage::new(ask, filters, reader, forgotten, must_large_wait);
        let (mut read_to, mut visits) = (reader.start, 0);
        let steps_before = self.steps.count();
        let at_head = loop {
            if self
                .page_queue
                .is_page_spent(&self.turn_limits, visits, steps_before, reader)
            {
                // The next page continues after the last entry examined.
                read_to += u64::from(planted::is(Fault::LostSeam));
                break false;
            }
            // The topic's name may be compared with each filter, so an entry counts as one visit for each filter.
            visits += filters.len();
            self.steps.add(filters.len());
            let arrival = log.next_arrival(&mut cursor);
            let offset = arrival.as_ref().map_or(u64::MAX, Arrival::offset);
            if !draft.take_forgotten_losses(offset) {
                break false;
            }
            let Some(arrival) = arrival else { break true };
            self.steps.add(ROWS_PER_MESSAGE);
            match self.read_arrival(log, &arrival, &mut draft, rules, now, frames) {
                ReadResult::Passed => {}
                ReadResult::Lost if draft.count == 0 => draft.gap = true,
                ReadResult::Lost | ReadResult::Full => break false,
                ReadResult::Large => return None,
            }
            read_to = offset;
        };
        let (gap, count, lossy_topic, bytes) =
            (draft.gap, draft.count, draft.lossy_topic, draft.bytes);
        context.lanes.count_page(bytes);
        if at_head {
            read_to = partition.sequence;
        }
        if let Some(topic) = lossy_topic.filter(|_| gap) {
            self.count_gap(topic, rules);
        }
        self.reports.count_page(ask, reader, gap);
        Some(FilterPage {
            attached: AttachOutcome::Yes,
            partition: reader.partition,
            first,
            count: count as u32,
            first_name: names,
            head: read_to,
            snapshot_end: reader.snapshot_end,
            losses_before: reader.losses_before,
            epoch: self.logs.epoch,
            at_head,
            gap,
        })
    }

    /// Adds an arrival (a message of the log, or the loss of one) to a page, if the subscriber must get it.
    fn read_arrival(
        &self,
        log: &Log,
        arrival: &Arrival,
        draft: &mut UnfinishedPage<'_>,
        rules: &Rules,
        now: Now,
        frames: &mut Frames,
    ) -> ReadResult {
        let reader = draft.reader;
        match *arrival {
            Arrival::Orphaned { .. } => ReadResult::Passed,
            Arrival::Lost {
                offset,
                topic,
                number,
            } => {
                let row = self.topics.rows.get(topic);
                let keeps_latest = reader.newest == 0 && keeps_latest(rules, row.rule);
                let is_wanted = offset > reader.snapshot_end || keeps_latest;
                let causes_gap = number > reader.losses_before && is_wanted;
                draft.loss_if(
                    causes_gap && draft.matches(self.topics.names.get(row.name)),
                    topic,
                )
            }
            Arrival::Kept {
                id,
                offset,
                topic,
                rule,
                time_s,
            } => {
                let row = self.topics.rows.get(topic);
                let name = self.topics.names.get(row.name);
                let is_expired = log.is_expired(id, now.unix_s);
                let is_lost = |lost| offset <= lost;
                let is_readable = rule != rules.retained()
                    || offset <= reader.snapshot_end
                    || log.last_lost_offset(row.chain).is_none_or(is_lost);
                if !is_readable || is_expired || !draft.matches(name) {
                    return ReadResult::Passed;
                }
                let in_snapshot = reader.newest > 0 && offset <= reader.snapshot_end;
                if in_snapshot && !log.is_among_newest(id, reader.newest) {
                    return ReadResult::Passed;
                }
                if now.unix_s.saturating_sub(time_s) >= rules.get(rule).log_age_s {
                    // A message that is too old counts as lost, even if it is still in the log. If the subscriber gave no position, it gets a gap only for
                    // losses after its request (`offset_when_asked`).
                    let causes_gap = reader.losses_before == 0
                        || draft.ask.is_next_page
                        || offset > reader.offset_when_asked;
                    let causes_gap = causes_gap && !in_snapshot;
                    return draft.loss_if(causes_gap, topic);
                }
                let bytes = log.bytes_of(id);
                if draft.must_wait(bytes, &self.turn_limits) {
                    return ReadResult::Large;
                }
                if !draft.count_if_it_fits(bytes, &self.turn_limits) {
                    return ReadResult::Full;
                }
                let record = log.copy(id, frames);
                frames.pages.push(record);
                let name = frames.push_name(name);
                frames.names.push(name);
                ReadResult::Passed
            }
        }
    }

    /// Removes expired messages of a partition before a page is read: at most as many as a page may examine.
    fn remove_expired_before_page(&mut self, partition_index: usize, rules: &Rules, now: Now) {
        let mut limit = self.turn_limits.page_entries;
        for number in 0..rules.retained() {
            limit -= self.expire_rule(partition_index, number, rules, now, limit);
        }
    }
}

impl PageQueue {
    /// Whether a page has examined the maximum number of entries. `steps_before` is the count of steps at the page's beginning. If the reader gets only
    /// the newest messages of each topic, the steps of the search for these messages count, too, since it takes as long as reading them.
    fn is_page_spent(
        &self,
        turn_limits: &TurnLimits,
        visits: usize,
        steps_before: u64,
        reader: Reader,
    ) -> bool {
        let steps = match reader.newest {
            0 => 0,
            _ => (self.steps.count() - steps_before) as usize,
        };
        visits + steps >= turn_limits.page_entries
    }
}

impl Reports {
    /// Counts a gap or a resumption. The subscriber gets a page from each partition. So a resumption, or a gap with which the subscription begins, is
    /// counted only for partition 0. A gap that is found in the log is counted for its partition.
    fn count_page(&mut self, ask: &AttachFilters, reader: Reader, gap: bool) {
        let is_first_partition = reader.partition == 0;
        if gap {
            self.stats.gaps += u64::from(is_first_partition || !reader.has_gap);
        } else if matches!(ask.since, Since::At(_)) && !ask.is_next_page {
            self.stats.resumes += u64::from(is_first_partition);
        }
    }
}

/// A page that is being read.
struct UnfinishedPage<'a> {
    ask: &'a AttachFilters,
    filters: &'a [&'a [u8]],
    reader: Reader,
    /// The offsets of losses of forgotten topics, in ascending order. The reader has got no gap for these losses yet.
    forgotten_losses: VecDeque<u64>,
    gap: bool,
    /// A topic of which this page lacks a lost message.
    lossy_topic: Option<u32>,
    /// The number of messages.
    count: usize,
    bytes: usize,
    /// Whether the page must wait if it begins with a large message.
    must_large_wait: bool,
}

/// The result of reading an arrival.
enum ReadResult {
    /// The message was added to the page, or is not for this subscriber.
    Passed,
    /// The subscriber must get a gap, since it has missed a message.
    Lost,
    /// The page is full.
    Full,
    /// The page begins with this large message, so it must wait in the queue of pages with large messages.
    Large,
}

impl<'a> UnfinishedPage<'a> {
    fn new(
        ask: &'a AttachFilters,
        filters: &'a [&'a [u8]],
        reader: Reader,
        forgotten: VecDeque<u64>,
        large_waits: bool,
    ) -> UnfinishedPage<'a> {
        UnfinishedPage {
            ask,
            filters,
            reader,
            forgotten_losses: forgotten,
            gap: reader.has_gap,
            lossy_topic: None,
            count: 0,
            bytes: 0,
            must_large_wait: large_waits,
        }
    }

    fn loss_if(&mut self, lost: bool, topic: u32) -> ReadResult {
        if !lost {
            return ReadResult::Passed;
        }
        self.lossy_topic = Some(topic);
        ReadResult::Lost
    }

    fn matches(&self, name: &[u8]) -> bool {
        self.filters
            .iter()
            .any(|filter| topic::matches(filter, name))
    }

    /// Makes the page begin with a gap if forgotten topics have lost messages up to this offset. Returns false if the page has messages already: a gap
    /// must come before the messages of its page, so the gap begins the next page.
    fn take_forgotten_losses(&mut self, offset: u64) -> bool {
        let is_due = |lost: &u64| *lost <= offset;
        if !self.forgotten_losses.front().is_some_and(is_due) {
            return true;
        }
        if self.count > 0 {
            return false;
        }
        self.gap = true;
        while self.forgotten_losses.front().is_some_and(is_due) {
            self.forgotten_losses.pop_front();
        }
        true
    }

    /// Whether the page must wait, because it begins with this message and the message is large.
    fn must_wait(&self, bytes: usize, turn_limits: &TurnLimits) -> bool {
        self.must_large_wait && self.count == 0 && bytes > turn_limits.page_bytes
    }

    /// Returns whether the page has room for a message of this size, and counts the message if so. An empty page always has room.
    fn count_if_it_fits(&mut self, bytes: usize, turn_limits: &TurnLimits) -> bool {
        let messages_max = if self.ask.poll {
            1
        } else {
            turn_limits.page_messages
        };
        let fits = self.count < messages_max
            && (self.count == 0 || self.bytes + bytes <= turn_limits.page_bytes);
        if fits {
            (self.count, self.bytes) = (self.count + 1, self.bytes + bytes);
        }
        fits
    }
}

/// Returns a cursor over the messages of these rules and over retained messages, and the offset after which a loss causes a gap.
fn open_cursor(
    log: &Log,
    matching_rules: &[u8],
    reader: Reader,
    rules: &Rules,
) -> (ArrivalCursor, u64) {
    let start = |latest| match latest || reader.newest > 0 {
        true => reader.start,
        false => reader.start.max(reader.snapshot_end),
    };
    let latest = |number: &u8| keeps_latest(rules, *number);
    let lists = matching_rules
        .iter()
        .map(|number| (*number, start(latest(number))));
    // The list of retained messages comes last. A retained message may also be in its topic's log. It is read there, and skipped in this list, even if
    // a page ends between the two.
    let retained = reader
        .gets_retained
        .then_some((rules.retained(), reader.start));
    let losses_after = start(matching_rules.iter().any(latest));
    (
        log.arrivals(lists.chain(retained), losses_after),
        losses_after,
    )
}

/// The rules that may govern topics which match the filters. A rule with the filter `#` also governs topics that begin with `$`, so it is always
/// included.
fn matching_rules(filters: &[&[u8]], rules: &Rules) -> Vec<u8> {
    let may_match = |number: &u8| {
        let rule = rules.get(*number).filter.as_bytes();
        rule == b"#" || filters.iter().any(|filter| overlap(rule, filter))
    };
    (0..rules.retained()).filter(may_match).collect()
}

fn keeps_latest(rules: &Rules, number: u8) -> bool {
    rules.get(number).keep == RetentionMode::Latest
}
