//! Tests the log against a list: superseded and expired messages are neither read nor lost. If a limit removes a message, each reader that
//! has not read the message is told of a gap.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;

use proptest::prelude::*;

use super::*;
use crate::base::settings::Settings;
use crate::log::seek::SeekResult;
use crate::mail::Frames;
use crate::mail::message::Headers;

/// Reads at most `messages_max` messages after an offset. Returns true at the end of the chain.
fn read_after(
    log: &mut Log,
    chain: u32,
    offset: u64,
    messages_max: usize,
    frames: &mut Frames,
) -> bool {
    let SeekResult::Found(first) = log.seek(chain, offset, usize::MAX) else {
        unreachable!("without a limit it is found");
    };
    log.read_from(first, offset, messages_max, usize::MAX, frames)
}

/// A message of the model.
#[derive(Clone, Debug)]
struct ModelMessage {
    offset: u64,
    /// The offset at publication. A new epoch changes `offset`, but not `original_offset`.
    original_offset: u64,
    key: String,
    time_s: u32,
    expires_at_s: u64,
    /// The second in which the message's own time to live ends.
    own_end_s: u64,
}

/// A topic in the model: a list, and the last lost offset.
#[derive(Clone, Debug)]
struct Model {
    rule: Rule,
    messages: Vec<ModelMessage>,
    lost: u64,
    last: u64,
}

impl Model {
    fn new(rule: Rule) -> Model {
        Model {
            rule,
            messages: Vec::new(),
            lost: 0,
            last: 0,
        }
    }

    fn is_expired(&self, message: &ModelMessage, now_s: u32) -> bool {
        u64::from(now_s) >= message.expires_at_s
    }

    fn publish(&mut self, offset: u64, key: &str, ttl_s: Option<u32>, now_s: u32) {
        if self.rule.keep == RetentionMode::Latest {
            self.messages.retain(|message| message.key != key);
        }
        while self.messages.len() >= self.rule.messages_max() as usize {
            let before = self.messages.len();
            self.messages
                .retain(|message| u64::from(now_s) < message.own_end_s);
            if self.messages.len() < before {
                continue;
            }
            let oldest = self.messages.remove(0);
            if !self.is_expired(&oldest, now_s) {
                self.lost = oldest.offset;
            }
        }
        let rule_end_s = match self.rule.ttl_s {
            0 => u64::MAX,
            ttl_s => u64::from(now_s) + u64::from(ttl_s),
        };
        let own_end_s = ttl_s.map_or(u64::MAX, |ttl_s| u64::from(now_s) + u64::from(ttl_s));
        self.messages.push(ModelMessage {
            offset,
            original_offset: offset,
            key: key.into(),
            time_s: now_s,
            expires_at_s: rule_end_s.min(own_end_s),
            own_end_s,
        });
        self.last = offset;
    }

    /// Removes messages that are too old or have expired, from the oldest on.
    fn remove_old_from_front(&mut self, now_s: u32) {
        while let Some(oldest) = self.messages.first() {
            let expired = self.is_expired(oldest, now_s);
            if now_s - oldest.time_s < self.rule.log_age_s && !expired {
                return;
            }
            if !expired {
                self.lost = oldest.offset;
            }
            self.messages.remove(0);
        }
    }

    fn remove_all_expired(&mut self, now_s: u32) {
        self.remove_old_from_front(now_s);
        self.messages
            .retain(|message| u64::from(now_s) < message.expires_at_s);
    }
}

#[derive(Clone, Debug)]
enum Op {
    Publish(usize, u8, Option<u32>),
    Check(usize),
    Expire(usize),
    AdvanceClock(u32),
    BeginEpoch,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let ttl_s = prop_oneof![3 => Just(None), 1 => (0u32..12).prop_map(Some)];
    let op = prop_oneof![
        10 => (0usize..3, 0u8..6, ttl_s).prop_map(|(topic, key, ttl_s)| Op::Publish(topic, key, ttl_s)),
        3 => (0usize..3).prop_map(Op::Check),
        1 => (0usize..3).prop_map(Op::Expire),
        3 => (1u32..5).prop_map(Op::AdvanceClock),
        1 => Just(Op::BeginEpoch),
    ];
    prop::collection::vec(op, 1..80)
}

fn rule() -> impl Strategy<Value = Rule> {
    (
        any::<bool>(),
        1u32..6,
        prop_oneof![Just(0u32), 1u32..12],
        prop_oneof![Just(3600u32), 1u32..12],
    )
        .prop_map(|(is_latest, messages_max, ttl_s, log_age_s)| Rule {
            keep: if is_latest {
                RetentionMode::Latest
            } else {
                RetentionMode::Log
            },
            log_messages: messages_max,
            keys_max: messages_max,
            ttl_s,
            log_age_s,
            ..Rule::default()
        })
}

/// The attributes of the message at this offset: none, a publisher, or a publisher and properties.
fn attributes(offset: u64) -> &'static [u8] {
    [
        &b""[..],
        b"\x01\0\0\0\0\0\0\x80",
        b"\x02\0\0\0\0\0\0\0\x01\x01",
    ][offset as usize % 3]
}

fn qos(offset: u64) -> u8 {
    (offset / 3 % 3) as u8
}

/// Removes messages that are too old or have expired, from the log and from the models.
fn remove_all_expired_messages(
    log: &mut Log,
    chains: &mut [u32; 3],
    models: &mut [Model],
    now_s: u32,
) {
    for (chain, model) in chains.iter_mut().zip(models) {
        model.remove_all_expired(now_s);
        *chain = log.remove_all_expired(*chain, model.rule.log_age_s, now_s);
    }
}

/// Gives all messages offsets after this one, in their order; returns the last.
fn begin_epoch(models: &mut [Model], base: u64) -> u64 {
    let all = models.iter().flat_map(|model| &model.messages);
    let mut former: Vec<u64> = all.map(|message| message.offset).collect();
    former.sort_unstable();
    let new_offset = |offset| base + 1 + former.partition_point(|other| *other < offset) as u64;
    for model in &mut *models {
        for message in &mut model.messages {
            message.offset = new_offset(message.offset);
        }
        model.lost = base;
        model.last = model.messages.last().map_or(base, |message| message.offset);
    }
    base + former.len() as u64
}

fn check_topic(
    log: &mut Log,
    chain: u32,
    model: &Model,
    page_messages: usize,
) -> Result<(), TestCaseError> {
    let expected: Vec<_> = model
        .messages
        .iter()
        .map(|message| message.offset)
        .collect();
    prop_assert_eq!(log.count(chain) as usize, expected.len());
    let lost = log.last_lost_offset(chain);
    if expected.is_empty() {
        // Without a chain everything is lost.
        prop_assert_eq!(lost.unwrap_or(model.last), model.lost);
    } else {
        prop_assert_eq!(lost, Some(model.lost));
    }
    // A reader that has already read superseded or expired messages continues after them.
    for start in model.lost..=model.last {
        let mut frames = Frames::default();
        let rest = model.messages.iter().filter(|k| k.offset > start).count();
        let is_last_page = read_after(log, chain, start, page_messages, &mut frames);
        prop_assert_eq!(is_last_page, rest <= page_messages);
        let mut read_to = start;
        while let Some(record) = frames.pages.last()
            && frames.pages.len() < rest
        {
            // Page by page.
            read_to = read_to.max(record.offset);
            read_after(log, chain, read_to, page_messages, &mut frames);
        }
        let mut previous = start;
        let rest: Vec<_> = model.messages.iter().filter(|k| k.offset > start).collect();
        prop_assert_eq!(frames.pages.len(), rest.len());
        for (record, message) in frames.pages.iter().zip(rest) {
            prop_assert_eq!(record.offset, message.offset);
            prop_assert_eq!(record.previous, previous);
            prop_assert_eq!(frames.key(record), message.key.as_bytes());
            prop_assert_eq!(frames.content_type(record), b"text/plain");
            prop_assert_eq!(frames.event(record), b"e");
            let attributes = attributes(message.original_offset);
            let origin = attributes
                .first_chunk()
                .map_or(0, |origin| u64::from_le_bytes(*origin));
            prop_assert_eq!(frames.origin(record), origin);
            prop_assert_eq!(
                frames.properties(record),
                attributes.get(8..).unwrap_or(&[])
            );
            prop_assert_eq!(
                (record.qos, record.retain),
                (
                    qos(message.original_offset),
                    message.original_offset % 2 == 1
                )
            );
            let data = format!("d{}", message.original_offset);
            prop_assert_eq!(frames.data(record), data.as_bytes());
            previous = record.offset;
        }
    }
    Ok(())
}

/// The fields of the message at this offset.
fn headers(offset: u64, key: &str, ttl_s: Option<u32>) -> Headers<&[u8]> {
    Headers {
        content_type: b"text/plain",
        event: b"e",
        key: key.as_bytes(),
        attributes: attributes(offset),
        ttl_s,
        qos: qos(offset),
        retain: offset % 2 == 1,
        binary: false,
    }
}

proptest! {
    #[test]
    fn log_has_the_messages_of_its_model(rules in prop::collection::vec(rule(), 3), ops in ops(), page_messages in 1usize..5) {
        let mut settings = Settings { rules: rules.clone(), ..Settings::default() };
        // The log only counts the bytes of clients in `Admission`: the limit refuses nothing here. It is large, since a small limit has large
        // tables of counters, and each test case creates them.
        settings.limits.log_bytes_per_address_max = settings.limits.log_bytes;
        let admission = Admission::new(&settings, 7);
        let mut log = Log::new(&Rules::new(&settings.rules), 7, admission.clone(), HomeCounts::default(), Steps::default());
        let mut models: Vec<_> = rules.into_iter().map(Model::new).collect();
        let mut chains = [NONE; 3];
        let (mut now_s, mut offset) = (100, 0);
        for op in ops {
            match op {
                Op::AdvanceClock(seconds) => now_s += seconds,
                Op::Publish(topic, key, ttl_s) => {
                    offset += 1;
                    let (key, data) = ("k".repeat(key as usize), format!("d{offset}"));
                    let frame = [b"\x81\x05", data.as_bytes()].concat();
                    let model = &mut models[topic];
                    let message = NewMessage {
                        topic: topic as u32,
                        offset,
                        previous: model.last,
                        owner: Client::from_address([127, 0, 0, offset as u8 % 3].into(), 7),
                        time_s: now_s,
                        latest: false,
                        headers: headers(offset, &key, ttl_s),
                        frame: &frame,
                        whole: None,
                    };
                    chains[topic] = log.append(chains[topic], topic as u8, &model.rule, model.rule.messages_max(), usize::MAX, &message).0;
                    model.publish(offset, &key, ttl_s, now_s);
                }
                Op::Check(topic) => {
                    let model = &mut models[topic];
                    model.remove_all_expired(now_s);
                    chains[topic] = log.remove_all_expired(chains[topic], model.rule.log_age_s, now_s);
                   check_topic(&mut log, chains[topic], model, page_messages)?;
                }
                Op::BeginEpoch => {
                    remove_all_expired_messages(&mut log, &mut chains, &mut models, now_s);
                    offset = begin_epoch(&mut models, offset + 1000);
                    prop_assert_eq!(log.begin_epoch(offset - u64::from(log.len())), offset);
                }
                Op::Expire(topic) => {
                    models[topic].remove_old_from_front(now_s);
                    let age_s = models[topic].rule.log_age_s;
                    log.expire(topic as u8, age_s, now_s, usize::MAX, |topic, left| {
                        chains[topic as usize] = left;
                    });
                }
            }
        }
        remove_all_expired_messages(&mut log, &mut chains, &mut models, now_s);
        for (chain, model) in chains.into_iter().zip(&models) {
           check_topic(&mut log, chain, model, page_messages)?;
            log.clear(chain);
        }
        while log.has_orphans() {
            prop_assert_eq!(log.clear_orphans(1), 1);
        }
        prop_assert_eq!((log.bytes(), log.len(), log.chain_count(), log.key_count()), (0, 0, 0, 0));
        prop_assert!(admission.keeps_nothing());
    }
}
