//! Tests of limits: the bytes of a log, the topic that loses messages when the budget is exceeded, and the length of pages.

use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::*;
use crate::base::settings::Settings;
use crate::log::snapshot::ChainState;
use crate::mail::Frames;
use crate::mail::message::Headers;
use crate::store::blobs::occupied_blob_bytes;

const NOW_S: u32 = 1000;
/// Seed of the hash of keys.
const SEED: u64 = 7;
/// The argument `last_rule` of `enforce_budget` in tests in which all rules are equal.
const NO_RULE: u8 = u8::MAX;

fn log(rules: &[Rule]) -> Log {
    let settings = Settings {
        rules: rules.to_vec(),
        ..Settings::default()
    };
    let admission = Admission::new(&settings, SEED);
    Log::new(
        &Rules::new(&settings.rules),
        SEED,
        admission,
        HomeCounts::default(),
        Steps::default(),
    )
}

fn rule() -> Rule {
    Rule {
        log_messages: 1000,
        ..Rule::default()
    }
}

fn message_at<'a>(offset: u64, key: &'a [u8], frame: &'a [u8]) -> NewMessage<'a> {
    NewMessage {
        topic: 0,
        offset,
        previous: offset - 1,
        owner: Client::NOBODY,
        time_s: NOW_S,
        latest: false,
        headers: Headers {
            key,
            ..Headers::default()
        },
        frame,
        whole: None,
    }
}

/// The offsets of a page, and whether it is the last one.
fn page(log: &mut Log, chain: u32, messages_max: usize, bytes_max: usize) -> (Vec<u64>, bool) {
    let mut frames = Frames::default();
    let is_last_page = log.read_oldest(chain, messages_max, bytes_max, &mut frames);
    (
        frames.pages.iter().map(|record| record.offset).collect(),
        is_last_page,
    )
}

fn offsets(log: &mut Log, chain: u32) -> Vec<u64> {
    page(log, chain, usize::MAX, usize::MAX).0
}

/// A length that fills its size class.
fn full_len() -> usize {
    (100..)
        .find(|len| occupied_blob_bytes(*len) == *len)
        .expect("each class has one")
}

#[test]
fn bytes_are_those_of_messages_rows_and_keys() {
    let rule = Rule {
        keep: RetentionMode::Latest,
        ..rule()
    };
    let mut log = log(core::slice::from_ref(&rule));
    let (mut chain, mut blobs) = (NONE, 0);
    for (n, key) in [&b"a"[..], b"bb", b"ccc"].into_iter().enumerate() {
        let frame = alloc::vec![1; 50 * (n + 1)];
        chain = log
            .append(
                chain,
                0,
                &rule,
                rule.messages_max(),
                usize::MAX,
                &message_at(n as u64 + 1, key, &frame),
            )
            .0;
        blobs += occupied_blob_bytes(key.len() + frame.len());
        let rows = size_of::<Entry>() + size_of::<Key>();
        assert_eq!(log.bytes(), blobs + (n + 1) * rows);
        assert_eq!((log.len(), log.key_count()), (n as u32 + 1, n as u32 + 1));
    }
    let before = log.bytes();
    log.remove_key(NONE, b"a");
    log.remove_key(chain, b"d");
    assert_eq!(log.bytes(), before, "there is none");
    log.remove_key(chain, b"bb");
    assert_eq!(offsets(&mut log, chain), [1, 3]);
    assert_eq!(log.last_lost_offset(chain), Some(0), "nobody misses it");
    assert_eq!((log.key_count(), log.removal_counts.superseded), (2, 1));
    log.clear(chain);
    assert_eq!(log.bytes(), 0);
}

#[test]
fn topic_keeps_the_bytes_that_its_rule_allows() {
    let frame = alloc::vec![1; full_len()];
    let len = occupied_bytes(frame.len());
    for (log_bytes, kept) in [(3 * len - 1, 2), (3 * len, 3), (3 * len + 1, 3), (1, 1)] {
        let rule = Rule {
            log_bytes,
            ..rule()
        };
        let mut log = log(core::slice::from_ref(&rule));
        let mut chain = NONE;
        for offset in 1..=8 {
            chain = log
                .append(
                    chain,
                    0,
                    &rule,
                    rule.messages_max(),
                    usize::MAX,
                    &message_at(offset, b"", &frame),
                )
                .0;
            let kept = kept.min(offset as u32);
            assert_eq!(log.count(chain), kept, "{log_bytes} bytes");
            assert_eq!(log.chain_bytes(chain), kept * len as u32);
            assert_eq!(log.last_lost_offset(chain), Some(offset - u64::from(kept)));
        }
    }
}

#[test]
fn page_has_at_most_its_bytes_and_at_least_one_message() {
    let rule = rule();
    let mut log = log(core::slice::from_ref(&rule));
    let mut chain = NONE;
    for offset in 1..=5 {
        chain = log
            .append(
                chain,
                0,
                &rule,
                rule.messages_max(),
                usize::MAX,
                &message_at(offset, b"", &[1; 10]),
            )
            .0;
    }
    for (messages, bytes, expected) in [
        (9, 0, 1),
        (9, 19, 1),
        (9, 20, 2),
        (9, 29, 2),
        (9, 49, 4),
        (9, 50, 5),
        (3, 50, 3),
        (5, 50, 5),
    ] {
        let (offsets, is_last_page) = page(&mut log, chain, messages, bytes);
        assert_eq!(
            offsets.len(),
            expected,
            "{messages} messages, {bytes} bytes"
        );
        assert_eq!(is_last_page, expected == 5);
    }
}

/// Tests that a topic with a flood of messages loses some of them, and topics with a few old messages lose none.
#[test]
fn topic_furthest_over_its_share_loses_messages_first() {
    let rule = rule();
    let mut log = log(core::slice::from_ref(&rule));
    let mut chains = [NONE; 2];
    let message = [1; 100];
    for offset in 1..=3 {
        chains[0] = log
            .append(
                chains[0],
                0,
                &rule,
                rule.messages_max(),
                usize::MAX,
                &message_at(offset, b"", &message),
            )
            .0;
    }
    for offset in 4..=400 {
        let new = NewMessage {
            topic: 1,
            time_s: NOW_S + offset as u32,
            ..message_at(offset, b"", &message)
        };
        chains[1] = log
            .append(chains[1], 0, &rule, rule.messages_max(), usize::MAX, &new)
            .0;
        log.enforce_budget(
            20 * 1024,
            u64::MAX,
            usize::MAX,
            NOW_S,
            NO_RULE,
            |topic, _, _| panic!("{topic} has lost everything"),
        );
        assert!(log.bytes() <= 20 * 1024);
    }
    assert_eq!(log.count(chains[0]), 3);
    assert_eq!(offsets(&mut log, chains[1]).last(), Some(&400));
}

/// Tests that the oldest message is removed if no topic is over its share. The messages of rule `last_rule` go only when no others are left. The broker
/// passes the rule of retained messages.
#[test]
fn among_equal_topics_the_oldest_message_is_removed() {
    for (times, last_rule, expected) in [
        ([10, 20], NO_RULE, [0, 1]),
        ([20, 10], NO_RULE, [1, 0]),
        ([20, 10], 1, [0, 1]),
    ] {
        let rules = [rule(), rule()];
        let mut log = log(&rules);
        for (number, time_s) in times.into_iter().enumerate() {
            let new = NewMessage {
                topic: number as u32,
                time_s,
                ..message_at(number as u64 + 1, b"", &[1; 100])
            };
            log.append(NONE, number as u8, &rules[number], 1000, usize::MAX, &new);
        }
        let mut emptied_topics = Vec::new();
        for budget in [log.bytes() - 1, 0] {
            log.enforce_budget(
                budget,
                u64::MAX,
                usize::MAX,
                30,
                last_rule,
                |topic, rule_number, chain| {
                    assert_eq!((u32::from(rule_number), chain), (topic, NONE));
                    emptied_topics.push(topic);
                },
            );
        }
        assert_eq!(emptied_topics, expected, "{times:?} {last_rule}");
        assert_eq!(log.bytes(), 0);
    }
}

#[test]
fn expired_messages_are_counted_and_are_not_lost() {
    let rule = Rule {
        ttl_s: 10,
        ..rule()
    };
    let mut log = log(core::slice::from_ref(&rule));
    let mut chain = NONE;
    for (offset, ttl_s) in [
        (1, None),
        (2, Some(100)),
        (3, Some(1)),
        (4, None),
        (5, Some(2)),
    ] {
        let new = NewMessage {
            headers: Headers {
                ttl_s,
                ..Headers::default()
            },
            time_s: if offset == 1 { NOW_S - 5 } else { NOW_S },
            ..message_at(offset, b"", b"x")
        };
        chain = log
            .append(chain, 0, &rule, rule.messages_max(), usize::MAX, &new)
            .0;
    }
    for (now_s, left, expired) in [
        (NOW_S, &[1, 2, 3, 4, 5][..], 0),
        (NOW_S + 1, &[1, 2, 4, 5], 1),
        (NOW_S + 2, &[1, 2, 4], 2),
        (NOW_S + 5, &[2, 4], 3),
        (NOW_S + 10, &[], 5),
    ] {
        chain = log.remove_all_expired(chain, rule.log_age_s, now_s);
        assert_eq!(offsets(&mut log, chain), left);
        assert_eq!(log.removal_counts.expired, expired);
        assert_eq!(log.last_lost_offset(chain), Some(0));
    }
}

#[test]
fn message_is_read_as_it_was_appended() {
    let rule = rule();
    let mut log = log(core::slice::from_ref(&rule));
    let mut chain = NONE;
    let flags = [false, true];
    let all = flags
        .iter()
        .flat_map(|binary| flags.map(|retain| (*binary, retain)));
    let all: Vec<(bool, bool)> = all.collect();
    for (n, (binary, retain)) in all.iter().enumerate() {
        let new = NewMessage {
            headers: Headers {
                binary: *binary,
                retain: *retain,
                qos: n as u8 % 3,
                ttl_s: (n % 2 == 1).then_some(9),
                ..Headers::default()
            },
            ..message_at(n as u64 + 1, b"", b"x")
        };
        chain = log
            .append(chain, 0, &rule, rule.messages_max(), usize::MAX, &new)
            .0;
    }
    let mut frames = Frames::default();
    assert!(log.read_oldest(chain, 9, 99, &mut frames));
    for (n, record) in frames.pages.iter().enumerate() {
        assert_eq!((record.binary, record.retain), all[n]);
        assert_eq!(record.qos, n as u8 % 3);
        assert_eq!(record.ttl_s(), (n % 2 == 1).then_some(9));
        assert_eq!(frames.frame(record), b"x");
    }
}

/// Tests that the oldest message is removed, and not a message of the largest topic, if every topic has less than its share. All topics can be below
/// their shares while the budget is exceeded, because the budget counts keys and the shares do not.
#[test]
fn topic_below_its_share_loses_messages_by_age_only() {
    let rule = Rule {
        keep: RetentionMode::Latest,
        ..rule()
    };
    let mut log = log(core::slice::from_ref(&rule));
    let mut chains = [NONE; 2];
    for (topic, frame) in [&[1; 1][..], &[1; 10]].into_iter().enumerate() {
        let new = NewMessage {
            topic: topic as u32,
            time_s: NOW_S + topic as u32,
            ..message_at(topic as u64 + 1, b"", frame)
        };
        chains[topic] = log.append(NONE, 0, &rule, 1000, usize::MAX, &new).0;
    }
    let budget = log.bytes() - 1;
    let [one, other] = chains.map(|chain| log.chain_bytes(chain) as usize);
    assert!(one < other && other < budget / 2);
    let mut emptied_topics = Vec::new();
    log.enforce_budget(
        budget,
        u64::MAX,
        usize::MAX,
        NOW_S,
        NO_RULE,
        |topic, _, _| emptied_topics.push(topic),
    );
    assert_eq!(emptied_topics, [0]);
}

/// Tests three things: a message that just fits is kept; among messages of one second, the first is removed first; if an operator removes all
/// messages one by one, the chain is freed as it is after removal by a limit.
#[test]
fn first_message_of_a_second_is_removed_and_only_above_the_budget() {
    let rule = rule();
    let mut log = log(core::slice::from_ref(&rule));
    assert_eq!(log.chain_bytes(NONE), 0);
    let mut chains = [NONE; 3];
    for (offset, chain) in (1..).zip(&mut chains) {
        let new = NewMessage {
            topic: offset as u32,
            ..message_at(offset, b"", &[1; 100])
        };
        *chain = log.append(NONE, 0, &rule, 1000, usize::MAX, &new).0;
    }
    assert_eq!(log.chain_count(), 3);
    let mut emptied_topics = Vec::new();
    for (excess_bytes, expected) in [(0, &[][..]), (1, &[1]), (0, &[1]), (1, &[1, 2])] {
        log.enforce_budget(
            log.bytes() - excess_bytes,
            u64::MAX,
            usize::MAX,
            NOW_S,
            NO_RULE,
            |topic, _, _| emptied_topics.push(topic),
        );
        assert_eq!(emptied_topics, expected);
    }
    assert_eq!(log.chain_count(), 1);
    let second = NewMessage {
        topic: 3,
        previous: 3,
        ..message_at(4, b"", &[1; 100])
    };
    let chain = log.append(chains[2], 0, &rule, 1000, usize::MAX, &second).0;
    assert_eq!(log.drop_until(chain, u64::MAX, 1, NOW_S), (chain, 1));
    assert_eq!(log.last_lost_offset(chain), Some(3));
    assert_eq!(log.drop_until(chain, u64::MAX, 1, NOW_S), (NONE, 1));
    assert_eq!((log.chain_count(), log.bytes()), (0, 0));
}

/// Tests that an empty chain stores all 64 bits of its lost offset, since offsets grow for years.
#[test]
fn losses_are_told_beyond_four_billion_messages() {
    let mut log = log(&[rule()]);
    for lost in [7, 7 << 32, 5 << 32 | 7, u64::MAX - 1] {
        let chain = log.empty_chain(0, 0, false, lost);
        assert_eq!(log.last_lost_offset(chain), Some(lost));
        assert!(
            matches!(log.chain_state(chain), ChainState::Empty { last_lost_offset: found, newest_removed: false } if found == lost)
        );
        log.clear(chain);
    }
}

/// Tests that keys with equal hashes are distinguished.
#[test]
fn two_keys_of_one_hash_are_two_keys() {
    let rule = Rule {
        keep: RetentionMode::Latest,
        ..rule()
    };
    let mut log = log(core::slice::from_ref(&rule));
    let append = |log: &mut Log, chain, offset, key: &[u8]| {
        log.append(
            chain,
            0,
            &rule,
            1000,
            usize::MAX,
            &message_at(offset, key, b"x"),
        )
        .0
    };
    let chain = append(&mut log, NONE, 1, b"first");
    let mut seen = BTreeMap::new();
    let seed = SEED + u64::from(chain);
    let (one, other) = (0_u32..)
        .find_map(|n| {
            let hash = xxh3_64_with_seed(&n.to_le_bytes(), seed) as u32;
            Some((seen.insert(hash, n)?, n))
        })
        .expect("there are more keys than hashes");
    for (offset, key, kept) in [
        (2, one, &[1, 2][..]),
        (3, other, &[1, 2, 3]),
        (4, one, &[1, 3, 4]),
        (5, other, &[1, 4, 5]),
    ] {
        append(&mut log, chain, offset, &key.to_le_bytes());
        assert_eq!(offsets(&mut log, chain), kept);
    }
}

/// Tests the maximum number of rules. There is a list for each rule and one more, whose number, 255, is the largest that fits into a byte.
#[test]
fn as_many_rules_as_there_may_be_are_read() {
    let rules = alloc::vec![rule(); crate::base::rules::RULES_MAX];
    let mut log = log(&rules);
    log.append(NONE, 0, &rules[0], 9, usize::MAX, &message_at(5, b"", b"x"));
    assert_eq!(log.last_arrived_by(NOW_S), 5);
}
