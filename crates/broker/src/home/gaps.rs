//! Logs that no longer had what a subscriber was to get: they are counted, and the operator is told of one, with the setting that
//! made it so short.

use alloc::format;
use alloc::string::String;

use super::logs::Logs;
use super::reports::Reports;
use super::topic_row::KEEPS;
use super::topics::TopicTable;
use crate::base::notices::Notice;
use crate::base::rules::Rules;
use crate::base::settings::Keep;

impl Reports {
    /// A subscriber of this topic is told that messages are lost, since the topic's log no longer has them.
    pub(super) fn log_was_short(
        &mut self,
        topics: &TopicTable,
        logs: &Logs,
        id: u32,
        rules: &Rules,
    ) {
        self.stats.short_logs += 1;
        if self.notices.has(Notice::ShortLog) {
            return;
        }
        let setting = logs.shortened_by(topics, id, rules);
        let name = topics.names.get(topics.rows.get(id).name);
        self.notices.met_since(Notice::ShortLog, &setting, name);
    }

    /// Takes the name of a topic of which the operator is told, if there was one since the last time.
    pub(crate) fn take_notice(&mut self, kind: Notice) -> Option<String> {
        self.notices.take(kind)
    }
}

impl Logs {
    /// The setting that the log of a topic has reached, and its value; or damage, behind which it begins. A log that has reached none was
    /// shortened by age; or it was emptied, which nobody notes.
    fn shortened_by(&self, topics: &TopicTable, id: u32, rules: &Rules) -> String {
        let row = topics.rows.get(id);
        let rule = rules.get(row.rule);
        let partition = &self.partitions[self.place_of(row)];
        let log = &partition.log;
        let begins = log.reaches_back_to(row.log).unwrap_or(row.last());
        if !self.is_replicated() && begins <= partition.known_to {
            return String::from("damage of the log on disk (`crore log check` shows it), topic ");
        }
        let (count, bytes) = (log.count(row.log), log.chain_bytes(row.log) as usize);
        // The next message would have been one too many.
        let next = bytes / count.max(1) as usize;
        let of_rule = format!("(match = \"{}\"), topic ", rule.filter);
        let budget = self.budget.bytes_max;
        match rule.keep {
            Keep::Latest if count >= rule.keys_max => {
                format!("rule.keys_max = {} {of_rule}", rule.keys_max)
            }
            Keep::Log if count >= rule.log_messages && !row.has(KEEPS) => {
                format!("rule.log_messages = {} {of_rule}", rule.log_messages)
            }
            _ if bytes + next > rule.log_bytes => {
                format!("rule.log_bytes = {} {of_rule}", rule.log_bytes)
            }
            _ if self.log_bytes() + next + budget / 64 > budget
                || self.chunk_bytes() + budget / 64 > self.chunk_bytes_max() =>
            {
                String::from("limits.log_bytes, topic ")
            }
            Keep::Latest => format!("a purge {of_rule}"),
            Keep::Log => format!("a purge, or rule.log_age_s = {} {of_rule}", rule.log_age_s),
        }
    }
}
