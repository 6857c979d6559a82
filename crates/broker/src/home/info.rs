//! The state of a topic, as clients see it.

use super::logs::Logs;
use super::topic_row::{DELETED, KEEPS, REQUESTED};
use super::topics::TopicTable;
use crate::base::pace::Pace;
use crate::base::rules::Rules;
use crate::base::time::Now;
use crate::mail::{Info, Outcome};

impl TopicTable {
    pub(super) fn info(&self, logs: &Logs, id: u32, now: Now) -> Info {
        let row = self.rows.get(id);
        Info {
            messages: logs.messages_of(row),
            requested_s: row
                .has(REQUESTED)
                .then(|| now.unix_s.saturating_sub(row.touched_s)),
            subscribers: self.subscribers(id),
            wanted: row.has(KEEPS),
            offset: row.last(),
            epoch: logs.lives.epoch_of(row.last()),
        }
    }

    /// Describes a topic; `Missing` if there is none.
    pub(crate) fn describe(
        &mut self,
        logs: &mut Logs,
        pace: &Pace,
        hash: u32,
        name: &[u8],
        rules: &Rules,
        now: Now,
    ) -> Outcome {
        let Some(id) = self
            .find(hash, name)
            .filter(|id| !self.rows.get(*id).has(DELETED))
        else {
            return Outcome::Missing;
        };
        let at = logs.at(self, id);
        let (row, log) = (self.rows.get_mut(id), &mut logs.partitions[at].log);
        if log.count(row.log) > 0 {
            // The rest of the expired messages is dropped in later turns.
            (row.log, _) = log.remove_expired(
                row.log,
                rules.get(row.rule).log_age_s,
                now.unix_s,
                pace.forgets_per_turn,
            );
            if log.count(row.log) == 0 {
                self.emptied(logs, id, now);
            }
        }
        Outcome::Done(self.info(logs, id, now))
    }
}
