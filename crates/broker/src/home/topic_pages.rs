//! The page of a topic that answers an attach: where it begins, the messages that it copies, and the losses that it tells.
//!
//! Invariant: a page looks at a bounded number of entries; a search that takes longer goes on in a later turn, from the place that it has come to.
//! A page that begins with a message larger than a page waits for its turn among such pages, before anything is read or reported.

use super::Home;
use super::attach::by_rule;
use super::context::HomeContext;
use super::logs::Logs;
use super::page_queue::{Deferred, SearchProgress};
use super::topics::TopicTable;
use crate::base::pace::Pace;
use crate::base::position::{Position, Since};
use crate::base::rules::Rules;
use crate::base::settings::Keep;
use crate::log::seek::{Back, SeekResult};
use crate::mail::{Attach, Page, Values};
use crate::store::slab::NONE;

impl Home {
    /// The page of a topic; if it cannot be read yet, how far the search has come.
    pub(super) fn page(
        &mut self,
        id: u32,
        ask: &Attach,
        progress: SearchProgress,
        context: &mut HomeContext<'_>,
    ) -> Result<Page, Deferred> {
        let (rules, now) = (context.rules, context.now);
        let limit = self.pace.page_visits;
        let at = self.logs.at(&self.topics, id);
        let row = self.topics.rows.get_mut(id);
        let rule = rules.get(row.rule);
        let log = &mut self.logs.partitions[at].log;
        let (chain, fresh) = log.freshen_some(row.log, rule.log_age_s, now.unix_s, limit);
        row.log = chain;
        if !fresh {
            return Err(progress.into());
        }
        let since = by_rule(ask, rule);
        let (start, mut gap, mut promised) =
            self.logs.begin(&self.topics, id, since, progress, limit)?;
        let latest = rule.keep == Keep::Latest;
        if latest && ask.reads_values() {
            // Values that went meanwhile are no loss: the subscription itself misses nothing.
            (gap, promised) = (false, false);
        }
        let last = self.topics.rows.get(id).last();
        let log = &mut self.logs.partitions[at].log;
        let oldest = log.reaches_back_to(chain).unwrap_or(last);
        let is_short = promised && start < oldest;
        gap |= is_short;
        let start = start.max(oldest);
        let first_entry = match log.seek(chain, start, limit) {
            SeekResult::Found(entry) => entry,
            SeekResult::Further(offset) => {
                let behind = SearchProgress::Behind {
                    offset,
                    gap,
                    promised,
                };
                return Err(behind.into());
            }
        };
        let bytes = first_bytes(&self.logs, (id, at), ask, first_entry);
        if self.page_queue.must_wait(bytes, context.lanes) {
            return Err(Deferred {
                progress,
                is_large: true,
            });
        }
        context.lanes.count_page(bytes);
        if is_short {
            self.reports
                .log_was_short(&self.topics, &self.logs, id, rules);
        }
        if gap {
            self.reports.stats.gaps += 1;
        } else if matches!(since, Since::At(_)) && !ask.again {
            self.reports.stats.resumes += 1;
        }
        let page = self.logs.read_page(
            &mut self.topics,
            &self.pace,
            id,
            ask,
            first_entry,
            start,
            latest,
            context,
        );
        Ok(Page { gap, ..page })
    }
}

impl Logs {
    /// The page of a topic that this home does not know, or not any more.
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
            again: true,
            ..Page::default()
        }
    }

    /// Copies the messages of a page from the entry `first_entry` on, the first one behind `start`; `latest` says that the
    /// topic's log is its retained state.
    #[allow(clippy::too_many_arguments)] // what a request says, and what a home is always given
    fn read_page(
        &mut self,
        topics: &mut TopicTable,
        pace: &Pace,
        id: u32,
        ask: &Attach,
        first_entry: u32,
        start: u64,
        latest: bool,
        context: &mut HomeContext<'_>,
    ) -> Page {
        let (chain, last) = (topics.rows.get(id).log, topics.rows.get(id).last());
        let at = self.at(topics, id);
        let shown = if ask.retained && !latest {
            self.retained(topics, id, start, context.now, context.lanes)
        } else {
            None
        };
        let frames = context.lanes.frames();
        let first = frames.pages.len() as u32;
        frames.pages.extend(shown);
        let messages_max = match ask.poll {
            true => 1,
            false => pace.page_messages.min(ask.most as usize),
        };
        let bytes_max = pace.page_bytes;
        let at_head = ask.poll && shown.is_some()
            || self.partitions[at].log.read_from(
                first_entry,
                start,
                messages_max,
                bytes_max,
                frames,
            );
        let count = frames.pages.len() as u32 - first;
        let values = match ask.retained && latest {
            true if ask.reads_values() => Values::These,
            // Without a place of its own to begin, a subscriber gets them as the messages of its first pages.
            true if ask.since != Since::Default && self.messages_of(topics.rows.get(id)) > 0 => {
                Values::Wait
            }
            _ => Values::None,
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
            epoch: self.epoch,
            newest_s: self.partitions[at].log.newest_time_s(chain),
            at_head,
            again: ask.again,
            retained: u32::from(shown.is_some()),
            values,
            only_retained: ask.again && ask.retained,
            ..Page::default()
        }
    }

    /// Where to begin to read, whether messages before that are lost, and whether a loss behind it would be told.
    fn begin(
        &self,
        topics: &TopicTable,
        id: u32,
        since: Since,
        progress: SearchProgress,
        limit: usize,
    ) -> Result<(u64, bool, bool), SearchProgress> {
        let row = topics.rows.get(id);
        let (chain, last) = (row.log, row.last());
        let partition = &self.partitions[self.place_of(row)];
        let log = &partition.log;
        let oldest = log.reaches_back_to(chain).unwrap_or(last);
        let back = match (progress, since) {
            (
                SearchProgress::Behind {
                    offset,
                    gap,
                    promised,
                },
                _,
            ) => return Ok((offset, gap, promised)),
            (SearchProgress::Back(offset, left), _) => Some(log.back(chain, offset, left, limit)),
            (SearchProgress::Unknown, Since::Newest(count)) => {
                log.before_newest(chain, count, limit)
            }
            (SearchProgress::Unknown, _) => None,
        };
        match back {
            Some(Back::Further(offset, left)) => return Err(SearchProgress::Back(offset, left)),
            Some(Back::Found(offset)) => return Ok((offset, false, false)),
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
                let known =
                    epoch == self.epoch && offset <= partition.sequence.max(partition.known_to);
                match known {
                    true => (offset, false, true),
                    false => (oldest, true, true),
                }
            }
        })
    }
}

/// Bytes of the larger one of two messages, if there are such: the entry that a page of a topic begins with, and the topic's retained message.
fn first_bytes(logs: &Logs, (id, at): (u32, usize), ask: &Attach, first_entry: u32) -> usize {
    let log = &logs.partitions[at].log;
    let first = match first_entry {
        NONE => 0,
        entry => log.bytes_of(entry),
    };
    let retained = logs.retained.get(&id).filter(|_| ask.retained);
    first.max(retained.map_or(0, |chain| log.chain_bytes(*chain) as usize))
}
