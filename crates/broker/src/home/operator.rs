//! Answers the operator's orders about topics and their logs: a page of the list of topics, one topic, or a page of a topic's log.
//!
//! A *page* is a bounded part of a list.

use alloc::vec::Vec;

use crore_wire::topic;

use super::Home;
use super::topic_row::DELETED;
use crate::base::position::{Position, Since};
use crate::base::time::Now;
use crate::log::seek::{SeekBackResult, SeekResult};
use crate::mail::Frames;
use crate::mail::orders::{LogPageRequest, Message, Messages, Page, Topic, TopicsPageRequest};
use crate::store::blobs::Blob;

/// The maximum number of rows that one order examines. This takes some hundred microseconds if few rows match.
const ROWS_PER_ORDER: u32 = 4_096;
/// The maximum bytes of messages that one order reads. A single message may be larger.
const LOG_BYTES_PER_ORDER: usize = 256 << 10;
/// The maximum number of entries that one order searches for the first message of its page. This takes a millisecond or two.
const SEARCH_ENTRIES_PER_ORDER: usize = 16_384;

impl Home {
    /// A page of the list of topics, from a row on.
    pub(crate) fn list_topics(&self, page: &TopicsPageRequest, now: Now) -> Page<Topic> {
        let end = self.topics.rows.end();
        let scan_end = end.min(page.from.saturating_add(ROWS_PER_ORDER));
        let mut topics = Vec::new();
        let mut id = page.from;
        while id < scan_end && topics.len() < page.topics_max as usize {
            let row = self.topics.rows.get(id);
            let exists = row.name != Blob::NONE && !row.has(DELETED);
            if exists && topic::matches(&page.filter, self.topics.names.get(row.name)) {
                topics.push(self.describe_topic(id, now));
            }
            id += 1;
        }
        Page {
            found: topics,
            next: Some(id).filter(|id| *id < end),
        }
    }

    /// Looks up a topic by name.
    pub(crate) fn look_up_topic(&self, name: &[u8], now: Now) -> Option<Topic> {
        let id = self.topics.find(self.topics.hash_of(name), name)?;
        (!self.topics.rows.get(id).has(DELETED)).then(|| self.describe_topic(id, now))
    }

    fn describe_topic(&self, id: u32, now: Now) -> Topic {
        let row = self.topics.rows.get(id);
        Topic {
            name: self.topics.names.get(row.name).into(),
            info: self.topic_info(id, now),
            bytes: self.logs.partitions[self.logs.partition_index_of(row)]
                .log
                .chain_bytes(row.chain),
            rule: row.rule,
        }
    }

    /// A page of a topic's log; `None` if there is no such topic.
    pub(crate) fn read_log(&mut self, page: &LogPageRequest) -> Option<Messages> {
        let id = self
            .topics
            .find(self.topics.hash_of(&page.name), &page.name)?;
        let row = self.topics.rows.get(id);
        if row.has(DELETED) {
            return None;
        }
        let (chain, last) = (row.chain, row.last_offset());
        let partition_index = self.logs.partition_index_of(row);
        let mut frames = Frames::default();
        let messages_max = page.messages_max as usize;
        let log = &mut self.logs.partitions[partition_index].log;
        let before_newest =
            (log.seek_newest(chain, page.messages_max, usize::MAX)).filter(|_| page.newest);
        let after = match before_newest {
            Some(SeekBackResult::Found(before)) => before.max(page.after),
            _ => page.after,
        };
        let next = match log.seek(chain, after, SEARCH_ENTRIES_PER_ORDER) {
            SeekResult::Continue(searched_to) => Some(searched_to),
            SeekResult::Found(first) => {
                let bytes_max = LOG_BYTES_PER_ORDER;
                let is_last_page =
                    log.read_from(first, after, messages_max, bytes_max, &mut frames);
                let last_read = frames.pages.iter().last().map(|record| record.offset);
                last_read.filter(|_| !is_last_page)
            }
        };
        // The newest offset that cannot be read any more. A topic that keeps no messages has lost even its last message.
        let last_lost = log.last_lost_offset(chain).unwrap_or(last);
        let is_position_of_log = |epoch| {
            let seen = Since::At(Position::new(epoch, page.after));
            let current = self.logs.to_current_life(seen, partition_index);
            let partition = &self.logs.partitions[partition_index];
            matches!(current, Since::At(seen) if seen.epoch == self.logs.epoch)
                && page.after <= partition.sequence.max(partition.applied_to)
        };
        let messages = frames.pages.iter().map(|record| Message {
            offset: record.offset,
            time_s: record.time_s,
            data: frames.data(record).to_vec(),
            binary: record.binary,
            content_type: frames.content_type(record).to_vec(),
            event: frames.event(record).to_vec(),
            key: frames.key(record).to_vec(),
        });
        Some(Messages {
            messages: messages.collect(),
            next,
            lost: after > 0 && last_lost > after
                || page.epoch.is_some_and(|epoch| !is_position_of_log(epoch)),
        })
    }
}
