//! Reads the page (a bounded run of past messages) of a topic that answers an attach (a request to subscribe): finds the first message,
//! reports losses, and copies messages.
//!
//! Invariants: a page examines a bounded number of entries; a longer search continues in a later turn (a pass of the shard's loop). If the first
//! message of a page exceeds the page size, the page waits in the queue of such pages (`page_queue.rs`) before any message is copied or counted.
//!
//! Words: a *home* is the part of a shard that keeps topics; a *gap* is the notice that messages are lost.

use super::Home;
use super::attach::first_position;
use super::context::HomeContext;
use super::logs::Logs;
use super::page_queue::{DeferredPage, SearchProgress};
use crate::base::position::{Position, Since};
use crate::base::rules::Rules;
use crate::base::settings::RetentionMode;
use crate::log::seek::{SeekBack, SeekResult};
use crate::mail::{Attach, LatestValues, Page};
use crate::store::slab::NONE;

impl Home {
    /// Reads the page of a topic. If the page cannot be read yet, returns the progress of the search.
    pub(super) fn page(
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
        let (chain, fresh) = log.remove_expired(row.log, rule.log_age_s, now.unix_s, limit);
        row.log = chain;
        if !fresh {
            return Err(progress.into());
        }
        let since = first_position(ask, rule);
        let (start, mut gap, mut promised) = self.begin_page(id, since, progress, limit)?;
        let latest = rule.keep == RetentionMode::Latest;
        if latest && ask.reads_values() {
            // The subscriber wants latest values, so a value that was replaced by a newer one is no loss.
            (gap, promised) = (false, false);
        }
        let last = self.topics.rows.get(id).last();
        let log = &mut self.logs.partitions[partition_index].log;
        let oldest = log.last_lost_offset(chain).unwrap_or(last);
        let is_short = promised && start < oldest;
        gap |= is_short;
        let start = start.max(oldest);
        let first_entry = match log.seek(chain, start, limit) {
            SeekResult::Found(entry) => entry,
            SeekResult::Continue(offset) => {
                let behind = SearchProgress::Behind {
                    offset,
                    gap,
                    promised,
                };
                return Err(behind.into());
            }
        };
        let bytes = self.first_bytes(id, ask, first_entry);
        if self.page_queue.must_wait(bytes, context.lanes) {
            return Err(DeferredPage {
                progress,
                is_large: true,
            });
        }
        context.lanes.count_page(bytes);
        if is_short {
            self.count_short_log(id, rules);
        }
        if gap {
            self.reports.stats.gaps += 1;
        } else if matches!(since, Since::At(_)) && !ask.is_next_page {
            self.reports.stats.resumes += 1;
        }
        let page = self.read_page(id, ask, first_entry, start, latest, context);
        Ok(Page { gap, ..page })
    }

    /// Copies the messages of a page. `first_entry` is the first message after offset `start`. `latest`: the topic's rule keeps the latest,
    /// so its log is its retained state.
    fn read_page(
        &mut self,
        id: u32,
        ask: &Attach,
        first_entry: u32,
        start: u64,
        latest: bool,
        context: &mut HomeContext<'_>,
    ) -> Page {
        let (chain, last) = (
            self.topics.rows.get(id).log,
            self.topics.rows.get(id).last(),
        );
        let partition_index = self.topic_partition_index(id);
        let shown = if ask.retained && !latest {
            self.read_retained(id, start, context.now, context.lanes)
        } else {
            None
        };
        let frames = context.lanes.frames();
        let first = frames.pages.len() as u32;
        frames.pages.extend(shown);
        let messages_max = match ask.poll {
            true => 1,
            false => self.turn_limits.page_messages.min(ask.most as usize),
        };
        let bytes_max = self.turn_limits.page_bytes;
        let at_head = ask.poll && shown.is_some()
            || self.logs.partitions[partition_index].log.read_from(
                first_entry,
                start,
                messages_max,
                bytes_max,
                frames,
            );
        let count = frames.pages.len() as u32 - first;
        let values = match ask.retained && latest {
            true if ask.reads_values() => LatestValues::InThisPage,
            // A subscriber that gave no position gets the latest values as the messages of its first pages.
            true if ask.since != Since::Default
                && self.logs.messages_of(self.topics.rows.get(id)) > 0 =>
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
            retained: u32::from(shown.is_some()),
            values,
            only_retained: ask.is_next_page && ask.retained,
            ..Page::default()
        }
    }

    /// Finds the offset after which the page begins, whether earlier messages are lost (`gap`), and whether later losses will cause a gap
    /// (`promised`).
    fn begin_page(
        &self,
        id: u32,
        since: Since,
        progress: SearchProgress,
        limit: usize,
    ) -> Result<(u64, bool, bool), SearchProgress> {
        let row = self.topics.rows.get(id);
        let (chain, last) = (row.log, row.last());
        let partition = &self.logs.partitions[self.logs.partition_index_of(row)];
        let log = &partition.log;
        let oldest = log.last_lost_offset(chain).unwrap_or(last);
        let back = match (progress, since) {
            (
                SearchProgress::Behind {
                    offset,
                    gap,
                    promised,
                },
                _,
            ) => return Ok((offset, gap, promised)),
            (SearchProgress::Back(offset, left), _) => {
                Some(log.seek_back(chain, offset, left, limit))
            }
            (SearchProgress::Unknown, Since::Newest(count)) => log.seek_newest(chain, count, limit),
            (SearchProgress::Unknown, _) => None,
        };
        match back {
            Some(SeekBack::Continue(offset, left)) => {
                return Err(SearchProgress::Back(offset, left));
            }
            Some(SeekBack::Found(offset)) => return Ok((offset, false, false)),
            None => {}
        }
        Ok(match since {
            Since::Default | Since::Live | Since::Newest(_) => (last, false, false),
            Since::Oldest => (oldest, false, false),
            Since::After(time_s) => {
                let offset = log.before_time(chain, time_s).unwrap_or(last);
                (offset.min(last), false, false)
            }
            Since::Unknown => (oldest, true, true),
            Since::Unreadable => (last, true, false),
            Since::At(Position { epoch, offset }) => {
                let known = epoch == self.logs.epoch
                    && offset <= partition.sequence.max(partition.applied_to);
                match known {
                    true => (offset, false, true),
                    false => (oldest, true, true),
                }
            }
        })
    }

    /// Bytes of the larger of the page's first message and the topic's retained message.
    fn first_bytes(&self, id: u32, ask: &Attach, first_entry: u32) -> usize {
        let log = &self.logs.partitions[self.topic_partition_index(id)].log;
        let first = match first_entry {
            NONE => 0,
            entry => log.bytes_of(entry),
        };
        let retained = self.logs.retained.get(&id).filter(|_| ask.retained);
        first.max(retained.map_or(0, |chain| log.chain_bytes(*chain) as usize))
    }
}

impl Logs {
    /// The page for a subscriber to a topic that has no row at this home.
    pub(super) fn nothing_kept(&self, ask: &Attach, name: &[u8], rules: &Rules) -> Page {
        let floor = self.floor_of(name, rules.number_for(name), rules);
        let lost = match ask.since {
            Since::At(seen) => seen.epoch != self.epoch || seen.offset < floor,
            Since::Unknown | Since::Unreadable => true,
            _ => false,
        };
        Page {
            head: floor,
            epoch: self.epoch,
            at_head: true,
            gap: lost,
            is_next_page: true,
            ..Page::default()
        }
    }
}
