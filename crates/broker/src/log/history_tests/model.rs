//! The model of a log's kept and lost messages: one list of all messages, which is always searched from the beginning.

use alloc::vec::Vec;

use crate::base::rules::Rules;
use crate::base::settings::RetentionMode;

pub(super) const TOPICS: usize = 4;

/// A kept message.
#[derive(Clone, Debug)]
pub(super) struct ModelMessage {
    pub offset: u64,
    pub topic: usize,
    pub retained: bool,
    pub key: u8,
    pub time_s: u32,
    pub ttl_s: Option<u32>,
}

/// The kept and the lost messages.
pub(super) struct Model {
    pub rules: Rules,
    pub rule_numbers: [u8; TOPICS],
    pub now_s: u32,
    pub offset: u64,
    pub kept: Vec<ModelMessage>,
    pub last: [u64; TOPICS],
    pub lost: [u64; TOPICS],
    pub watches_losses: bool,
    /// The last loss of each topic, and its number, once losses are remembered.
    pub losses: [Option<(u64, u64)>; TOPICS],
    pub count: u64,
    pub superseded: u64,
    pub expired: u64,
}

impl Model {
    /// A model without messages.
    pub fn new(rules: Rules, rule_numbers: [u8; TOPICS]) -> Model {
        Model {
            rules,
            rule_numbers,
            now_s: 100,
            offset: 0,
            kept: Vec::new(),
            last: [0; TOPICS],
            lost: [0; TOPICS],
            watches_losses: false,
            losses: [None; TOPICS],
            count: 0,
            superseded: 0,
            expired: 0,
        }
    }

    pub fn rule_number_of(&self, kept: &ModelMessage) -> u8 {
        match kept.retained {
            true => self.rules.retained(),
            false => self.rule_numbers[kept.topic],
        }
    }

    pub fn is_expired(&self, kept: &ModelMessage) -> bool {
        let rule_ttl_s = self.rules.get(self.rule_number_of(kept)).ttl_s;
        let age_s = self.now_s - kept.time_s;
        rule_ttl_s > 0 && age_s >= rule_ttl_s || kept.ttl_s.is_some_and(|ttl_s| age_s >= ttl_s)
    }

    pub fn record_loss(&mut self, topic: usize, offset: u64) {
        self.lost[topic] = offset;
        if self.watches_losses {
            self.count += 1;
            self.losses[topic] = Some((offset, self.count));
        }
    }

    /// Removes a message because of a limit.
    pub fn drop(&mut self, at: usize) {
        let kept = self.kept.remove(at);
        if self.is_expired(&kept) {
            self.expired += 1;
        } else if !kept.retained {
            self.record_loss(kept.topic, kept.offset);
        }
    }

    /// The indexes of the messages of a topic's log, or of its retained message.
    pub fn indexes_in_chain(&self, topic: usize, retained: bool) -> Vec<usize> {
        let is = |kept: &ModelMessage| (kept.topic, kept.retained) == (topic, retained);
        (0..self.kept.len())
            .filter(|at| is(&self.kept[*at]))
            .collect()
    }

    pub fn offsets(&self, topic: usize, retained: bool) -> Vec<u64> {
        let all = self.indexes_in_chain(topic, retained);
        all.iter().map(|at| self.kept[*at].offset).collect()
    }

    pub fn supersede(&mut self, topic: usize, retained: bool, key: u8) {
        let all = self.indexes_in_chain(topic, retained);
        if let Some(at) = all.into_iter().find(|at| self.kept[*at].key == key) {
            self.kept.remove(at);
            self.superseded += 1;
        }
    }

    pub fn append(&mut self, new: ModelMessage) {
        let (topic, retained) = (new.topic, new.retained);
        let rule = self.rules.get(self.rule_number_of(&new)).clone();
        if rule.keep == RetentionMode::Latest {
            self.supersede(topic, retained, new.key);
        }
        loop {
            let all = self.indexes_in_chain(topic, retained);
            if all.is_empty() || all.len() < rule.messages_max() as usize {
                break;
            }
            let has_ended = |kept: &ModelMessage| {
                let age_s = self.now_s - kept.time_s;
                kept.ttl_s.is_some_and(|ttl_s| age_s >= ttl_s)
            };
            let ended = all.iter().filter(|at| has_ended(&self.kept[**at]));
            let ended: Vec<usize> = ended.copied().collect();
            match ended.is_empty() {
                true => self.drop(all[0]),
                false => ended.into_iter().rev().for_each(|at| self.drop(at)),
            }
        }
        self.kept.push(new);
    }

    pub fn remove_all_expired(&mut self, topic: usize) {
        let age_s = self.rules.get(self.rule_numbers[topic]).log_age_s;
        while let Some(at) = self.indexes_in_chain(topic, false).first().copied() {
            let oldest = &self.kept[at];
            if self.now_s - oldest.time_s < age_s && !self.is_expired(oldest) {
                break;
            }
            self.drop(at);
        }
        for at in self.indexes_in_chain(topic, false).into_iter().rev() {
            if self.is_expired(&self.kept[at]) {
                self.drop(at);
            }
        }
    }

    /// Removes up to `limit` messages of a rule that are too old or have expired, from the oldest on.
    pub fn expire(&mut self, number: u8, limit: usize) {
        let age_s = self.rules.get(number).log_age_s;
        for _ in 0..limit {
            let of_rule = |kept: &ModelMessage| self.rule_number_of(kept) == number;
            let Some(at) = self.kept.iter().position(of_rule) else {
                return;
            };
            let oldest = &self.kept[at];
            if self.now_s - oldest.time_s < age_s && !self.is_expired(oldest) {
                return;
            }
            self.drop(at);
        }
    }

    /// Changes the rules of the topics. A topic that begins to keep latest values keeps the newest message of each key.
    pub fn change(&mut self, rules: Rules, rule_numbers: [u8; TOPICS]) {
        for (topic, number) in rule_numbers.into_iter().enumerate() {
            let former = self.rules.get(self.rule_numbers[topic]).keep;
            if former == RetentionMode::Latest || rules.get(number).keep != RetentionMode::Latest {
                continue;
            }
            let all = self.indexes_in_chain(topic, false);
            for at in all.iter().rev() {
                let key = self.kept[*at].key;
                let newer = |other: &usize| other > at && self.kept[*other].key == key;
                if self.indexes_in_chain(topic, false).iter().any(newer) {
                    self.kept.remove(*at);
                    self.superseded += 1;
                }
            }
        }
        (self.rules, self.rule_numbers) = (rules, rule_numbers);
    }
}
