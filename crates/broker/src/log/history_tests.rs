//! Compares a log of several topics with a plain list: the messages that readers by filter find in the order of arrival, and the last lost
//! offset of each topic, also after a change of rules and after a restart.

mod checks;
mod model;

use alloc::format;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::base::settings::Settings;
use crate::log::arrival::Arrival;
use crate::log::entry::MARKED;
use crate::log::lists::MARK_EVERY;
use crate::log::seek::{SeekBackResult, SeekResult};
use crate::log::snapshot::ChainState;
use crate::mail::Frames;
use crate::mail::message::Headers;
use model::{Model, ModelMessage, TOPICS};

/// Rules of the operator; the default rule and that of retained messages follow them.
const RULES: usize = 3;

/// The plain list and a log with the same messages, and the log's chains by topic.
struct Fixture {
    model: Model,
    log: Log,
    chains: [u32; TOPICS],
    retained: [u32; TOPICS],
}

/// The client that is charged for a message; one message in four has none.
fn owner(offset: u64) -> Client {
    match offset as u8 % 4 {
        0 => Client::NOBODY,
        n => Client::from_address([127, 0, 0, n].into(), 7),
    }
}

fn admission() -> Admission {
    let mut settings = Settings::default();
    // The log only counts the bytes of clients in `Admission`: the limit refuses nothing here. It is large, since a small limit has large tables
    // of counters, and each test case creates them.
    settings.limits.log_bytes_per_address_max = settings.limits.log_bytes;
    Admission::new(&settings, 7)
}

fn frame(offset: u64) -> Vec<u8> {
    let data = format!("{offset:05}");
    [b"\x81\x05", data.as_bytes()].concat()
}

fn message_of<'a>(
    kept: &ModelMessage,
    key: &'a [u8],
    frame: &'a [u8],
    previous: u64,
    latest: bool,
) -> NewMessage<'a> {
    NewMessage {
        topic: kept.topic as u32,
        offset: kept.offset,
        previous,
        owner: owner(kept.offset),
        time_s: kept.time_s,
        latest,
        headers: Headers {
            key,
            ttl_s: kept.ttl_s,
            retain: kept.retained,
            ..Headers::default()
        },
        frame,
        whole: None,
    }
}

const KEYS: [&[u8]; 3] = [b"", b"a", b"bb"];

impl Fixture {
    fn new(rules: Rules, rule_numbers: [u8; TOPICS]) -> Fixture {
        Fixture {
            log: Log::new(
                &rules,
                7,
                admission(),
                HomeCounts::default(),
                Steps::default(),
            ),
            model: Model::new(rules, rule_numbers),
            chains: [NONE; TOPICS],
            retained: [NONE; TOPICS],
        }
    }

    /// Removes the message of a key, if the topic keeps latest values.
    fn remove(&mut self, topic: usize, key: u8) {
        if self.model.rules.get(self.model.rule_numbers[topic]).keep == RetentionMode::Latest {
            self.log.remove_key(self.chains[topic], KEYS[key as usize]);
            self.model.supersede(topic, false, key);
        }
    }

    /// Removes up to `limit` messages of a rule that are older than its age or whose time to live is over.
    fn expire(&mut self, number: u8, limit: usize) {
        let Fixture {
            model, log, chains, ..
        } = self;
        model.expire(number, limit);
        let age_s = model.rules.get(number).log_age_s;
        log.expire(number, age_s, model.now_s, limit, |topic, left| {
            chains[topic as usize] = left;
        });
    }

    fn publish(&mut self, topic: usize, key: u8, ttl_s: Option<u32>, retain: bool) {
        let model = &mut self.model;
        model.offset += 1;
        let kept = ModelMessage {
            offset: model.offset,
            topic,
            retained: false,
            key,
            time_s: model.now_s,
            ttl_s,
        };
        let number = model.rule_numbers[topic];
        let rule = model.rules.get(number).clone();
        let latest = rule.keep == RetentionMode::Latest;
        let (frame, previous) = (frame(kept.offset), model.last[topic]);
        let new = message_of(&kept, KEYS[key as usize], &frame, previous, latest);
        model.last[topic] = kept.offset;
        let most = rule.messages_max();
        if most == 0 {
            let before = self.log.discard(self.chains[topic], model.now_s);
            self.chains[topic] = NONE;
            self.log
                .losses
                .add(topic as u32, before.unwrap_or(previous), kept.offset);
            while let Some(at) = model.indexes_in_chain(topic, false).first() {
                model.drop(*at);
            }
            model.record_loss(topic, kept.offset);
        } else {
            // For some messages `steps_max` is 0: then `trim` removes the messages later, in small steps.
            let steps_max = match kept.offset.is_multiple_of(2) {
                true => usize::MAX,
                false => 0,
            };
            let chain = self.chains[topic];
            let (chain, mut more) = (self.log).append(chain, number, &rule, most, steps_max, &new);
            while more {
                let (bytes, now_s) = (frame.len(), model.now_s);
                more = (self.log).trim(chain, &rule, most, bytes, now_s, 0);
            }
            self.chains[topic] = chain;
            model.append(kept.clone());
        }
        if retain && !latest {
            let number = model.rules.retained();
            let rule = model.rules.get(number).clone();
            let chain = self.retained[topic];
            self.retained[topic] = self.log.append(chain, number, &rule, 1, usize::MAX, &new).0;
            model.append(ModelMessage {
                retained: true,
                ..kept
            });
        }
    }

    /// Lets the home forget a topic without messages. Another topic reuses the topic's row.
    fn forget(&mut self, topic: usize) {
        let model = &mut self.model;
        if !model.indexes_in_chain(topic, false).is_empty() {
            return;
        }
        let chain = core::mem::replace(&mut self.chains[topic], NONE);
        let lost = self.log.last_lost_offset(chain);
        assert_eq!(lost.unwrap_or(model.last[topic]), model.lost[topic]);
        let told = self
            .log
            .losses
            .forget_topic(topic as u32, model.lost[topic]);
        assert_eq!(told, model.losses[topic].take().map(|loss| loss.1));
        self.log.clear(chain);
        (model.last[topic], model.lost[topic]) = (model.offset, model.offset);
    }

    fn change(&mut self, rules: Rules, rule_numbers: [u8; TOPICS]) {
        self.log
            .change_rules(&rules, |topic| rule_numbers[topic as usize]);
        self.model.change(rules, rule_numbers);
    }

    /// Creates another log from the contents of this one, as a restart does.
    fn restore_from_snapshot(&mut self) {
        let model = &self.model;
        let most =
            |topic: usize| model.rules.get(model.rule_numbers[topic]).messages_max() as usize;
        let fits = |topic| model.indexes_in_chain(topic, false).len() <= most(topic);
        if !(0..TOPICS).all(fits) {
            // After a change of rules a chain may exceed its new limit. `append` would trim it.
            return;
        }
        let mut log = Log::new(
            &model.rules,
            9,
            admission(),
            HomeCounts::default(),
            Steps::default(),
        );
        let mut ended = Vec::new();
        let mut chains = [NONE; TOPICS];
        for (topic, chain) in chains.iter_mut().enumerate() {
            let number = model.rule_numbers[topic];
            let latest = model.rules.get(number).keep == RetentionMode::Latest;
            match self.log.chain_state(self.chains[topic]) {
                ChainState::None => {}
                ChainState::Empty {
                    last_lost_offset: lost,
                    newest_removed: ends,
                } => {
                    *chain = log.empty_chain(topic as u32, number, latest, lost);
                    ended.extend(ends.then_some(topic));
                }
                ChainState::Filled {
                    newest_removed: ends,
                } => ended.extend(ends.then_some(topic)),
            }
        }
        if let Some(count) = self.log.losses.count_if_watched() {
            log.losses.watch_from(count);
            let losses: Vec<_> = self.log.losses.last_losses_from(0).collect();
            for (n, (offset, topic, number)) in losses.iter().enumerate() {
                let rest: Vec<_> = self.log.losses.last_losses_from(*offset).collect();
                assert_eq!(rest, losses[n..]);
                log.losses.restore(*offset, *topic, *number);
            }
        }
        let lists = (0..model.rules.count()).map(|number| (number as u8, 0));
        let mut cursor = self.log.arrivals(lists, u64::MAX);
        let mut retained = [NONE; TOPICS];
        while let Some(arrival) = self.log.next_arrival(&mut cursor) {
            let Arrival::Kept { id, rule, .. } = arrival else {
                continue;
            };
            let new = self.log.message(id);
            assert_eq!(new.owner, owner(new.offset));
            let chain = match rule == model.rules.retained() {
                true => &mut retained[new.topic as usize],
                false => &mut chains[new.topic as usize],
            };
            let rule_settings = model.rules.get(rule);
            assert_eq!(new.latest, rule_settings.keep == RetentionMode::Latest);
            *chain = log
                .append(
                    *chain,
                    rule,
                    rule_settings,
                    rule_settings.messages_max(),
                    usize::MAX,
                    &new,
                )
                .0;
        }
        for topic in ended {
            log.note_newest_removed(chains[topic]);
        }
        (log.removal_counts.superseded, log.removal_counts.expired) = (
            self.log.removal_counts.superseded,
            self.log.removal_counts.expired,
        );
        (self.log, self.chains, self.retained) = (log, chains, retained);
    }
}

/// Tests a topic whose newest messages were removed without being lost, so that the topic's last message is not its last lost one. The log must still
/// know this after a restart, with or without messages.
#[test]
fn removed_newest_messages_are_not_reported_as_lost() {
    let [latest, log] = [RetentionMode::Latest, RetentionMode::Log].map(|keep| {
        let rule = Rule {
            keep,
            keys_max: 10,
            log_age_s: 10,
            ..Rule::default()
        };
        rules_of(&alloc::vec![rule; RULES])
    });
    for restarts in 0..4 {
        let mut fixture = Fixture::new(latest.clone(), [0, 1, 2, 3]);
        for key in 0..3 {
            fixture.publish(0, key, None, false);
        }
        fixture.remove(0, 2);
        // From now on the topic keeps a history, whose messages are removed by age.
        fixture.change(log.clone(), [0, 1, 2, 3]);
        if restarts & 1 > 0 {
            fixture.restore_from_snapshot();
        }
        fixture.model.now_s += 10;
        fixture.expire(0, 9);
        if restarts & 2 > 0 {
            fixture.restore_from_snapshot();
        }
        fixture.check(&[], 0, 0);
        assert_eq!((fixture.model.lost[0], fixture.model.last[0]), (2, 3));
    }
}

/// Tests a restart while a long log is removed in parts, because a change of rules has ended it. A message that arrived meanwhile comes
/// after the orphaned messages, and the restart must find it.
#[test]
fn restart_keeps_messages_after_those_that_are_being_removed() {
    let none = Rule {
        log_messages: 0,
        ..Rule::default()
    };
    let rules = alloc::vec![none; RULES];
    let mut fixture = Fixture::new(rules_of(&rules), [RULES as u8; TOPICS]);
    for _ in 0..3 {
        fixture.publish(1, 0, None, false);
    }
    fixture.change(rules_of(&rules), [0; TOPICS]);
    fixture.publish(1, 0, None, true);
    fixture.restore_from_snapshot();
    fixture.check(&[], 0, 0);
    assert_eq!(fixture.model.offsets(1, true), [4]);
}

#[test]
fn every_nth_message_of_a_list_is_a_mark() {
    let rules = rules_of(&alloc::vec![
        Rule {
            log_messages: 1000,
            ..Rule::default()
        };
        RULES
    ]);
    let mut fixture = Fixture::new(rules, [0; TOPICS]);
    for n in 0..100 {
        let marks = fixture.log.lists.marks(0).count();
        assert_eq!(marks as u32, n / MARK_EVERY);
        fixture.publish(n as usize % TOPICS, 0, None, false);
    }
}

#[derive(Clone, Debug)]
enum Op {
    Publish(usize, u8, Option<u32>, bool),
    RemoveExpired(usize),
    Expire(u8, usize),
    AdvanceClock(u32),
    Remove(usize, u8),
    Forget(usize),
    WatchLosses,
    /// Changes the rules, and the rule of each topic.
    ChangeRules(Vec<Rule>, [u8; TOPICS]),
    /// Changes the times to live.
    ChangeTtls([u32; RULES]),
    Restart,
}

fn rule() -> impl Strategy<Value = Rule> {
    let ttl_s = prop_oneof![2 => Just(0u32), 1 => 1u32..12];
    let age_s = prop_oneof![Just(3600u32), 2u32..12];
    let most = prop_oneof![1 => Just(0u32), 8 => 1u32..40];
    (any::<bool>(), most, ttl_s, age_s).prop_map(|(latest, most, ttl_s, log_age_s)| Rule {
        keep: if latest {
            RetentionMode::Latest
        } else {
            RetentionMode::Log
        },
        log_messages: most,
        keys_max: most,
        ttl_s,
        log_age_s,
        ..Rule::default()
    })
}

fn rules() -> impl Strategy<Value = Vec<Rule>> {
    prop::collection::vec(rule(), RULES)
}

fn op() -> impl Strategy<Value = Op> {
    let ttl_s = prop_oneof![4 => Just(None), 1 => (0u32..12).prop_map(Some)];
    let numbers = prop::array::uniform4(0..RULES as u8 + 1);
    prop_oneof![
        30 => (0..TOPICS, 0u8..3, ttl_s, prop::bool::weighted(0.2))
            .prop_map(|(topic, key, ttl_s, retain)| Op::Publish(topic, key, ttl_s, retain)),
        2 => (0..TOPICS).prop_map(Op::RemoveExpired),
        3 => (0..RULES as u8 + 1, 1usize..4).prop_map(|(number, limit)| Op::Expire(number, limit)),
        5 => (1u32..4).prop_map(Op::AdvanceClock),
        2 => (0..TOPICS, 0u8..3).prop_map(|(topic, key)| Op::Remove(topic, key)),
        2 => (0..TOPICS).prop_map(Op::Forget),
        1 => Just(Op::WatchLosses),
        3 => (rules(), numbers).prop_map(|(rules, rule_numbers)| Op::ChangeRules(rules, rule_numbers)),
        1 => prop::array::uniform3(0u32..12).prop_map(Op::ChangeTtls),
        1 => Just(Op::Restart),
    ]
}

fn rules_of(rules: &[Rule]) -> Rules {
    let settings = Settings {
        rules: rules.to_vec(),
        ..Settings::default()
    };
    Rules::new(&settings.rules)
}

proptest! {
    #[test]
    fn reader_by_filter_finds_the_messages_of_a_plain_list(
        rules in rules(),
        rule_numbers in prop::array::uniform4(0..RULES as u8 + 1),
        ops in prop::collection::vec((op(), any::<prop::sample::Index>()), 1..120),
        lists in prop::sample::subsequence((0..RULES as u8 + 2).collect::<Vec<_>>(), 0..RULES + 3),
    ) {
        let (mut rules, made_rules) = (rules.clone(), rules_of(&rules));
        let mut fixture = Fixture::new(made_rules, rule_numbers);
        for (op, at) in ops {
            let now_s = fixture.model.now_s;
            let model = &mut fixture.model;
            match op {
                Op::AdvanceClock(seconds) => model.now_s += seconds,
                Op::Publish(topic, key, ttl_s, retain) => fixture.publish(topic, key, ttl_s, retain),
                Op::RemoveExpired(topic) => {
                    model.remove_all_expired(topic);
                    let age_s = model.rules.get(model.rule_numbers[topic]).log_age_s;
                    fixture.chains[topic] = fixture.log.remove_all_expired(fixture.chains[topic], age_s, now_s);
                }
                Op::Expire(number, limit) => fixture.expire(number, limit),
                Op::Remove(topic, key) => fixture.remove(topic, key),
                Op::Forget(topic) => fixture.forget(topic),
                Op::WatchLosses => {
                    fixture.log.losses.watch();
                    model.watches_losses = true;
                    model.count = model.count.max(1);
                    prop_assert_eq!(fixture.log.losses.watched_count(), model.count);
                    // A second call changes nothing.
                    fixture.log.losses.watch();
                }
                Op::ChangeRules(others, rule_numbers) => {
                    rules = others;
                    fixture.change(rules_of(&rules), rule_numbers);
                }
                Op::ChangeTtls(times_s) => {
                    for (rule, ttl_s) in rules.iter_mut().zip(times_s) {
                        rule.ttl_s = ttl_s;
                    }
                    model.rules = rules_of(&rules);
                    fixture.log.change_times(&model.rules);
                }
                Op::Restart => fixture.restore_from_snapshot(),
            }
            let model = &fixture.model;
            let some = |n: u64| at.index(model.offset as usize + 2) as u64 * n % (model.offset + 2);
            let starts: Vec<_> = lists.iter().map(|number| (*number, some(u64::from(*number) + 1))).collect();
            let time_s = model.now_s - at.index(12) as u32;
            fixture.check(&starts, some(7), time_s);
        }
    }
}
