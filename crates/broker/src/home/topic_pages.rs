//! Reads the page (a bounded run of past messages) by which a topic answers an attach (a request to subscribe): finds the first message, finds out whether
//! messages are lost, and copies messages.
//!
//! Invariants: a page examines a bounded number of entries; a longer search continues in a later turn (a pass of the shard's loop). If the first
//! message of a page exceeds the page size, the page waits in the queue of such pages (`page_queue.rs`) before any message is copied or counted.
//!
//! Words: a *home* is the part of a shard that keeps topics; a *gap* is the notice that messages are lost.

use super::Home;
use super::attach::first_position;
use super::context::HomeContext;
use super::logs::Logs;
use super::page_queue::{DeferredPage, PageStart, SearchProgress};
use crate::base::position::{Position, Since};
use crate::base::rules::Rules;
use crate::base::settings::RetentionMode;
use crate::log::seek::{SeekBackResult, SeekResult};
use crate::mail::{Attach, LatestValues, Page};
use crate::store::slab::NONE;

impl Home {
    /// Reads the page of a topic.
    ///
    /// # Errors
    /// The page must be queued; the error has the progress of the search for its first message.
    pub(super) fn try_read_page(
        &mut self,
        id: u32,
        ask: &Attach,
        progress: SearchProgress,
        context: &mut HomeContext<'_>,
    ) -> Result<Page, DeferredPage> {
        let (rules, now) = (context.rules, context.now);
        let limit = self.turn_limits.page_entries;
        let partition_index = self.topic_partition_index(id);
        let row = self.topics.rows.get_mut(id);
        let rule = rules.get(row.rule);
        let log = &mut self.logs.partitions[partition_index].log;
        let (chain, are_all_removed) =
            log.remove_expired(row.chain, rule.log_age_s, now.unix_s, limit);
        row.chain = chain;
        if !are_all_removed {
            return Err(progress.into());
        }
        let since = first_position(ask, rule);
        let mut start = self.find_start(id, since, progress, limit)?;
        let keeps_latest = rule.keep == RetentionMode::Latest;
        if keeps_latest && ask.reads_values() {
            // This subscriber needs only the latest values, so it loses nothing if a newer value has replaced an older one.
            (start.gap, start.has_position) = (false, false);
        }
        let last = self.topics.rows.get(id).last_offset();
        let log = &mut self.logs.partitions[partition_index].log;
        let last_lost = log.last_lost_offset(chain).unwrap_or(last);
        let is_short = start.has_position && start.offset < last_lost;
        start.gap |= is_short;
        start.offset = start.offset.max(last_lost);
        let first_entry = match log.seek(chain, start.offset, limit) {
            SeekResult::Found(entry) => entry,
            SeekResult::Continue(offset) => {
                return Err(SearchProgress::Found(PageStart { offset, ..start }).into());
            }
        };
        let bytes = self.first_message_bytes(id, ask, first_entry);
        if self.page_queue.must_wait_as_large(bytes, context.lanes) {
            return Err(DeferredPage {
                progress,
                is_large: true,
            });
        }
        context.lanes.count_page(bytes);
        if is_short {
            self.count_gap(id, rules);
        }
        if start.gap {
            self.reports.stats.gaps += 1;
        } else if matches!(since, Since::At(_)) && !ask.is_next_page {
            self.reports.stats.resumes += 1;
        }
        let page = self.read_page(id, ask, first_entry, start.offset, keeps_latest, context);
        Ok(Page {
            gap: start.gap,
            ..page
        })
    }

    /// Copies the messages of a page. `first_entry` is the first message after offset `start`. `keeps_latest`: the topic's rule keeps only the
    /// latest messages, so its log is its retained state.
    fn read_page(
        &mut self,
        id: u32,
        ask: &Attach,
        first_entry: u32,
        start: u64,
        keeps_latest: bool,
        context: &mut HomeContext<'_>,
    ) -> Page {
        let (chain, last) = (
            self.topics.rows.get(id).chain,
            self.topics.rows.get(id).last_offset(),
        );
        let partition_index = self.topic_partition_index(id);
        let retained = if ask.retained && !keeps_latest {
            self.read_retained(id, start, context.now, context.lanes)
        } else {
            None
        };
        let frames = context.lanes.frames();
        let first = frames.pages.len() as u32;
        frames.pages.extend(retained);
        let messages_max = match ask.poll {
            true => 1,
            false => self
                .turn_limits
                .page_messages
                .min(ask.messages_max as usize),
        };
        let bytes_max = self.turn_limits.page_bytes;
        let at_head = ask.poll && retained.is_some()
            || self.logs.partitions[partition_index].log.read_from(
                first_entry,
                start,
                messages_max,
                bytes_max,
                frames,
            );
        let count = frames.pages.len() as u32 - first;
        let values = match ask.retained && keeps_latest {
            true if ask.reads_values() => LatestValues::InThisPage,
            // Without a position, the subscriber gets the latest values as the messages of its first pages.
            true if ask.since != Since::Default
                && self.logs.message_count(self.topics.rows.get(id)) > 0 =>
            {
                LatestValues::MustRequest
            }
            _ => LatestValues::None,
        };
        let head = frames
            .pages
            .last()
            .filter(|_| count > 0)
            .map_or(start.max(last), |record| record.offset);
        Page {
            first,
            count,
            head,
            last,
            epoch: self.logs.epoch,
            newest_s: self.logs.partitions[partition_index]
                .log
                .newest_time_s(chain),
            at_head,
            is_next_page: ask.is_next_page,
            retained: u32::from(retained.is_some()),
            values,
            only_retained: ask.is_next_page && ask.retained,
            ..Page::default()
        }
    }

    /// Finds where the page begins.
    ///
    /// # Errors
    /// The search has examined `limit` entries, and must continue from this progress.
    fn find_start(
        &self,
        id: u32,
        since: Since,
        progress: SearchProgress,
        limit: usize,
    ) -> Result<PageStart, SearchProgress> {
        let row = self.topics.rows.get(id);
        let (chain, last) = (row.chain, row.last_offset());
        let partition = &self.logs.partitions[self.logs.partition_index_of(row)];
        let log = &partition.log;
        let last_lost = log.last_lost_offset(chain).unwrap_or(last);
        let start = |offset, gap, has_position| PageStart {
            offset,
            gap,
            has_position,
        };
        let seek_back = match (progress, since) {
            (SearchProgress::Found(start), _) => return Ok(start),
            (SearchProgress::CountingBack { offset, left }, _) => {
                Some(log.seek_back(chain, offset, left, limit))
            }
            (SearchProgress::Unknown, Since::Newest(count)) => log.seek_newest(chain, count, limit),
            (SearchProgress::Unknown, _) => None,
        };
        match seek_back {
            Some(SeekBackResult::Continue(offset, left)) => {
                return Err(SearchProgress::CountingBack { offset, left });
            }
            Some(SeekBackResult::Found(offset)) => return Ok(start(offset, false, false)),
            None => {}
        }
        Ok(match since {
            Since::Default | Since::Live | Since::Newest(_) => start(last, false, false),
            Since::Oldest => start(last_lost, false, false),
            Since::After(time_s) => {
                let offset = log.offset_before_time(chain, time_s).unwrap_or(last);
                start(offset.min(last), false, false)
            }
            Since::Unknown => start(last_lost, true, true),
            Since::Unreadable => start(last, true, false),
            Since::At(Position { epoch, offset }) => {
                let is_known = epoch == self.logs.epoch
                    && offset <= partition.sequence.max(partition.applied_to);
                match is_known {
                    true => start(offset, false, true),
                    false => start(last_lost, true, true),
                }
            }
        })
    }

    /// Bytes of the larger of the page's first message and the topic's retained message.
    fn first_message_bytes(&self, id: u32, ask: &Attach, first_entry: u32) -> usize {
        let log = &self.logs.partitions[self.topic_partition_index(id)].log;
        let first = match first_entry {
            NONE => 0,
            entry => log.bytes_of(entry),
        };
        let retained = self.logs.retained_chains.get(&id).filter(|_| ask.retained);
        first.max(retained.map_or(0, |chain| log.chain_bytes(*chain) as usize))
    }
}

impl Logs {
    /// The page for a subscriber to a topic that does not exist.
    pub(super) fn empty_page(&self, ask: &Attach, name: &[u8], rules: &Rules) -> Page {
        let forgotten_max = self.forgotten_max(name, rules.number_for(name), rules);
        let has_loss = match ask.since {
            Since::At(seen) => seen.epoch != self.epoch || seen.offset < forgotten_max,
            Since::Unknown | Since::Unreadable => true,
            _ => false,
        };
        Page {
            head: forgotten_max,
            epoch: self.epoch,
            at_head: true,
            gap: has_loss,
            is_next_page: true,
            ..Page::default()
        }
    }
}
