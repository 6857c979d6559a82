//! Changes settings and rules of a home (the part of a shard that keeps topics) while it runs.
//!
//! A reload that changes only values of the rules is cheap. But if other rules may govern the topics afterwards, every topic's name must be matched with
//! the rules. With a million topics this takes too long for one turn (a pass of the shard's loop). So the home gets the planned rules before the change,
//! and matches some rows in each turn. The change itself then only writes one byte into each row. If a rule only gets another number, the log keeps the
//! rule's list of messages.
//!
//! Invariants: after the change every topic has the number of its rule, even if topics were created and forgotten meanwhile. The preparation changes
//! nothing that others can see.

use alloc::sync::Arc;

use super::Home;
use super::budget::steps_for_making_room;
use super::partition::Partition;
use super::planned_rules::PlannedRules;
use super::topics::TopicTable;
use crate::base::rules::Rules;
use crate::base::settings::Settings;
use crate::base::time::Now;
use crate::budget::world::World;
use crate::store::blobs::Blob;

impl TopicTable {
    /// Matches some more rows with the planned rules of `world`. Returns whether more are left.
    pub(crate) fn prepare_rules(&mut self, world: &Arc<World>) -> bool {
        let prepared = self
            .planned_rules
            .take()
            .filter(|known| known.is_for(world));
        let mut planned_rules = prepared.unwrap_or_else(|| PlannedRules::new(world));
        let name_of = |id| match self.rows.get(id).name {
            Blob::NONE => None,
            name => Some(self.names.get(name)),
        };
        let has_more = planned_rules.match_rows(self.rows.end(), name_of);
        self.planned_rules = Some(planned_rules);
        has_more
    }
}

impl Home {
    fn change_rules(&mut self, old_rules: &Rules, rules: &Rules) {
        let planned_rules = self
            .topics
            .planned_rules
            .take()
            .expect("all rows were matched before");
        for (id, number) in (0..).zip(planned_rules.into_rule_by_row()) {
            if self.topics.rows.get(id).name != Blob::NONE {
                self.topics.rows.get_mut(id).rule = number;
            }
        }
        let rows = &self.topics.rows;
        let rule_of = |topic| rows.get(topic).rule;
        for Partition { log, forgotten, .. } in &mut self.logs.partitions {
            log.change_rules(rules, rule_of);
            forgotten.change_rules(old_rules, rules);
        }
        self.topics.idle_topics.change_rules(rules.count(), rule_of);
    }

    /// Replaces settings and rules by those of `world`; `old_rules` are the present rules.
    pub fn change_settings(&mut self, world: &Arc<World>, old_rules: &Rules, now: Now) {
        let (settings, rules): (&Settings, &Rules) = (&world.settings, &world.rules);
        let homes = usize::from(self.logs.placement.homes());
        self.topics.topics_max = settings.limits.topics_per_home(homes);
        self.logs.budget.bytes_max = settings.limits.log_bytes / homes;
        self.interest.followers.debounce_s = settings.interest.debounce_s;
        if let Some(answers) = &mut self.retries.answers {
            answers.window_s = settings.publish.idempotency_window_s;
        }
        if old_rules.assigns_same_numbers(rules) {
            for partition in &mut self.logs.partitions {
                partition.log.change_times(rules);
            }
        } else {
            // Matches the rows that are left.
            while self.topics.prepare_rules(world) {}
            self.change_rules(old_rules, rules);
        }
        self.topics.planned_rules = None;
        // The budget may be smaller now. If this call leaves messages beyond it, later turns remove them before the next publish.
        let steps_max = steps_for_making_room(&self.turn_limits);
        self.enforce_budget(rules, now, steps_max);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::base::placement::Placement;
    use crate::base::settings::Rule;
    use crate::budget::admission::Client;

    fn world(filters: &[&str]) -> Arc<World> {
        let rule = |filter: &&str| Rule {
            filter: (*filter).into(),
            position_age_s: 0,
            ..Rule::default()
        };
        let settings = Settings {
            rules: filters.iter().map(rule).collect(),
            ..Settings::default()
        };
        World::for_tests(settings, 1)
    }

    const FILTERS: [&[&str]; 4] = [&["#"], &["a/#", "#"], &["b/+", "a/1", "a/#"], &[]];

    #[derive(Clone, Debug)]
    enum ReloadStep {
        Create(u8, u8),
        Forget(usize),
        Turn,
        PrepareRules,
        Change(usize),
    }

    fn step() -> impl Strategy<Value = ReloadStep> {
        prop_oneof![
            6 => (0u8..3, 0u8..6).prop_map(|(first, second)| ReloadStep::Create(first, second)),
            2 => any::<usize>().prop_map(ReloadStep::Forget),
            1 => Just(ReloadStep::Turn),
            3 => Just(ReloadStep::PrepareRules),
            1 => (0..FILTERS.len()).prop_map(ReloadStep::Change),
        ]
    }

    proptest! {
        #[test]
        fn topics_that_come_and_go_during_the_preparation_have_their_rule_afterwards(
            steps in prop::collection::vec((step(), 0..FILTERS.len()), 1..80),
        ) {
            let now = Now { s: 0, unix_s: 0 };
            let worlds = FILTERS.map(world);
            let mut current_world = worlds[0].clone();
            let mut home = Home::new(&current_world.settings, &current_world.rules, current_world.admission.clone(), 7, Placement::new(1, 1), 0, 42);
            home.turn_limits.removals_per_turn = 1;
            // The steps are like an operator's reloads: one change is prepared at a time, and may be made before all rows are matched.
            for (step, next) in steps {
                match step {
                    ReloadStep::Create(first, second) => {
                        let name = alloc::format!("{}/{second}", ["a", "b", "c"][usize::from(first)]);
                        let hash = home.topics.hash_of(name.as_bytes());
                        if home.topics.find(hash, name.as_bytes()).is_none() {
                            let room = home.make_room_for_topic(Client::NOBODY, now);
                            prop_assert!(room.is_ok());
                            home.insert_topic(hash, name.as_bytes(), Client::NOBODY, &current_world.rules, now);
                        }
                    }
                    ReloadStep::Forget(any) if home.topics.rows.end() > 0 => {
                        let id = (any % home.topics.rows.end() as usize) as u32;
                        if home.topics.rows.get(id).name != Blob::NONE {
                            home.queue_if_idle(id, now);
                            prop_assert!(home.evict_idle_topic(Client::NOBODY, u32::MAX));
                        }
                    }
                    ReloadStep::Forget(_) => {}
                    ReloadStep::Turn => {
                        for id in 0..home.topics.rows.end() {
                            if home.topics.rows.get(id).name != Blob::NONE {
                                home.queue_if_idle(id, now);
                            }
                        }
                        home.tick(now.unix_s);
                        home.remove_expired(&current_world.rules, now);
                    }
                    ReloadStep::PrepareRules => drop(home.topics.prepare_rules(&worlds[next])),
                    ReloadStep::Change(to) => {
                        home.change_settings(&worlds[to], &current_world.rules, now);
                        current_world = worlds[to].clone();
                    }
                }
                for id in 0..home.topics.rows.end() {
                    let row = home.topics.rows.get(id);
                    if row.name != Blob::NONE {
                        let number = current_world.rules.number_for(home.topics.names.get(row.name));
                        prop_assert_eq!(row.rule, number);
                    }
                }
            }
        }
    }
}
