//! Other settings while the home is at work.
//!
//! Invariant: afterwards every topic has the number of the rule that governs it. Where only the values of rules
//! changed that costs nothing; where other rules govern, as much as the home has topics and messages.

use alloc::vec::Vec;

use super::Home;
use crate::blobs::Blob;
use crate::rules::Rules;
use crate::settings::Settings;
use crate::time::Now;

impl Home {
    /// From now on by `settings` and `rules` instead of `former`.
    pub fn change(&mut self, settings: &Settings, former: &Rules, rules: &Rules, now: Now) {
        self.topics_max = settings.limits.topics_per_home(self.homes);
        self.log.budget_bytes = settings.limits.log_bytes / self.homes;
        self.followers.debounce_s = settings.interest.debounce_s;
        if let Some(answers) = &mut self.answers {
            answers.window_s = settings.publish.idempotency_window_s;
        }
        if former.govern_alike(rules) {
            self.log.change_times(rules);
        } else {
            self.change_rules(former, rules);
        }
        self.enforce_budget(rules, now);
    }

    fn change_rules(&mut self, former: &Rules, rules: &Rules) {
        for id in 0..self.rows.end() {
            let row = self.rows.get(id);
            if row.name != Blob::NONE {
                let number = rules.number_for(self.names.get(row.name));
                self.rows.get_mut(id).rule = number;
            }
        }
        let rows = &self.rows;
        self.log.change_rules(rules, |topic| rows.get(topic).rule);
        let mut idle: Vec<_> = self.idle.drain(..).flatten().collect();
        idle.sort_by_key(|(_, since_s)| *since_s);
        self.idle.resize_with(rules.count(), Default::default);
        for (id, since_s) in idle {
            let number = self.rows.get(id).rule;
            self.idle[number as usize].push_back((id, since_s));
        }
        self.filters.change_rules(former, rules);
    }
}
