//! Counts the subscribers that get a gap (the notice that messages are lost) because their topic's log no longer has all messages that they have missed.
//! Shows the operator one such topic, with the setting that limits its log.

use alloc::format;
use alloc::string::String;

use super::Home;
use super::reports::Reports;
use super::topic_row::HAS_QOS_SUBSCRIPTION;
use crate::base::notices::Notice;
use crate::base::rules::Rules;
use crate::base::settings::RetentionMode;

impl Home {
    /// Counts a subscriber that gets a gap because the topic's log is too short.
    pub(super) fn count_gap(&mut self, id: u32, rules: &Rules) {
        self.reports.stats.short_logs += 1;
        if self.reports.notices.has(Notice::ShortLog) {
            return;
        }
        let setting = self.why_log_is_short(id, rules);
        let name = self.topics.names.get(self.topics.rows.get(id).name);
        self.reports
            .notices
            .note_with_reason(Notice::ShortLog, &setting, name);
    }

    /// Text for the operator: why the topic's log is short. The text names damage of the log, or the setting whose limit the log has reached. If no limit
    /// is reached, it names age and a purge, since the log does not record which of the two has shortened it.
    fn why_log_is_short(&self, id: u32, rules: &Rules) -> String {
        let row = self.topics.rows.get(id);
        let rule = rules.get(row.rule);
        let partition = &self.logs.partitions[self.logs.partition_index_of(row)];
        let log = &partition.log;
        let last_lost = log.last_lost_offset(row.chain).unwrap_or(row.last_offset());
        if !self.logs.is_replicated() && last_lost <= partition.applied_to {
            return String::from("damage of the log on disk (`crore log verify` shows it), topic ");
        }
        let (count, bytes) = (log.count(row.chain), log.chain_bytes(row.chain) as usize);
        // A limit counts as reached if one more message would exceed it.
        let average_bytes = bytes / count.max(1) as usize;
        let rule_text = format!("(match = \"{}\"), topic ", rule.filter);
        let budget = self.logs.budget.bytes_max;
        match rule.keep {
            RetentionMode::Latest if count >= rule.keys_max => {
                format!("rule.keys_max = {} {rule_text}", rule.keys_max)
            }
            RetentionMode::Log if count >= rule.log_messages && !row.has(HAS_QOS_SUBSCRIPTION) => {
                format!("rule.log_messages = {} {rule_text}", rule.log_messages)
            }
            _ if bytes + average_bytes > rule.log_bytes => {
                format!("rule.log_bytes = {} {rule_text}", rule.log_bytes)
            }
            _ if self.logs.log_bytes() + average_bytes + budget / 64 > budget
                || self.logs.chunk_bytes() + budget / 64 > self.logs.chunk_bytes_max() =>
            {
                String::from("limits.log_bytes, topic ")
            }
            RetentionMode::Latest => format!("a purge {rule_text}"),
            RetentionMode::Log => format!(
                "a purge, or rule.log_age_s = {} {rule_text}",
                rule.log_age_s
            ),
        }
    }
}

impl Reports {
    /// Takes the notice of this kind, if there is one since the last call.
    pub(crate) fn take_notice(&mut self, kind: Notice) -> Option<String> {
        self.notices.take(kind)
    }
}
