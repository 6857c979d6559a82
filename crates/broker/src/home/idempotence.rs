//! Idempotency keys: the first answer to a publish with a key is kept, so that a retry publishes nothing and gets the same answer
//! (draft-ietf-httpapi-idempotency-key-header).
//!
//! Answers are kept at the topic's home (the part of a shard that keeps the topic). A retry may arrive while the first publish is in flight to the engine,
//! which writes the log. Then the home recognises the retry when it applies it, since the first publish is applied before.
//!
//! User, topic and key are stored as one keyed 64-bit hash, and the message as another. If two keys have the same hash, the later publish is refused
//! as if its key had been used for another message (422). With a million keys kept, this happens to one publish in 10^13. A publish is mistaken for a
//! retry only if both hashes, 128 bits, are equal.
//!
//! Each user has a key space of its own. All publishers without a user name share one key space, since a retry may come from another
//! address.
//!
//! Invariant: the table of answers exists only while it has answers or reservations.

use alloc::vec::Vec;

use crore_wire::topic;
use xxhash_rust::xxh3::Xxh3;

use super::Home;
use super::answers::{Answer, AnswerCursor, Answers, IdempotencyKey, Retries};
use crate::base::placement::{Placement, SlottedOffset};
use crate::base::settings::Settings;
use crate::base::snapshot::{Block, Damaged, FieldReader, Origin};
use crate::base::time::Now;
use crate::budget::admission::Party;
use crate::budget::admission::keys::{GROUPS, group};
use crate::budget::world::World;
use crate::mail::message::{DedupKey, Publish, Release, SessionKey};
use crate::mail::{Outcome, TopicInfo};
use crate::store::slab::NONE;

/// The maximum number of expired answers that one publish drops: more than it adds, so that the table does not grow without bound.
const EXPIRED_PER_PUBLISH: usize = 4;
/// The maximum number of expired answers that one tick of the clock drops. This takes some hundred microseconds.
const EXPIRED_PER_TICK: usize = 4096;

impl Home {
    /// Checks whether a message is a retry: by its idempotency key or, for a QoS 2 message of a recorded session, by session and packet id. Returns the
    /// idempotency key of a new message. A message that comes later may be up to `disorder_max_s` seconds older than this message.
    ///
    /// # Errors
    /// The outcome of a publish whose key was used: the answer to the first publish, or a refusal if the key was used for another message.
    #[inline(always)] // most messages have no key
    pub(super) fn check_retry(
        &mut self,
        message: &Publish<'_>,
        settings: &Settings,
        now: Now,
        disorder_max_s: u32,
    ) -> Result<Option<IdempotencyKey>, Outcome> {
        match message.dedup {
            None => Ok(None),
            Some(dedup) => match dedup.session_key() {
                Some((key, claim)) => {
                    let partition_index = self.partition_index_of_slot(topic::slot(message.name));
                    let time_s = self.logs.partitions[partition_index].newest_time_s;
                    let retries = &self.retries;
                    if retries
                        .newest_claims
                        .claims_of(partition_index)
                        .is_outdated(key.session, claim, time_s)
                    {
                        return Err(Outcome::Unknown);
                    }
                    let partition_index_by_slot = &self.logs.partition_index_by_slot;
                    let is_here = |slot: u8| {
                        usize::from(partition_index_by_slot[usize::from(slot)]) == partition_index
                    };
                    match retries.unreleased.has(key, is_here) {
                        true => Err(Outcome::Replayed(TopicInfo::default())),
                        false => Ok(None),
                    }
                }
                None => self
                    .check_idempotency_key(message, &dedup, settings, now, disorder_max_s)
                    .map(Some),
            },
        }
    }

    fn check_idempotency_key(
        &mut self,
        message: &Publish<'_>,
        dedup: &DedupKey<&[u8]>,
        settings: &Settings,
        now: Now,
        disorder_max_s: u32,
    ) -> Result<IdempotencyKey, Outcome> {
        let key = self.retries.hash_of_key(message.name, dedup);
        let (group, hash) = (
            group(dedup.publisher),
            self.retries.hash_of_message(message),
        );
        let window_s = settings.publish.idempotency_window_s;
        let admission = &self.retries.admission;
        let answers =
            (self.retries.answers).get_or_insert_with(|| Answers::new(window_s, admission.clone()));
        let oldest_s = match self.topics.reservations.is_empty() && !self.logs.is_replicated() {
            true => now.unix_s - disorder_max_s.min(now.unix_s),
            false => self.retries.oldest_s,
        };
        answers.expire(group, oldest_s, EXPIRED_PER_PUBLISH);
        match answers.find(key, now) {
            Some(answer) if answer.message == hash => Err(Outcome::Replayed(TopicInfo {
                messages: answer.messages,
                requested_s: (answer.request_age_s != NONE).then_some(answer.request_age_s),
                subscribers: answer.subscribers,
                needs_log: false,
                offset: answer.slotted_offset.offset(),
                epoch: self.logs.lives.epoch_of(answer.slotted_offset.offset()),
            })),
            Some(_) => Err(Outcome::OtherMessage),
            None => Ok(IdempotencyKey {
                group,
                key,
                message: hash,
                answers_max: settings
                    .publish
                    .keys_per_home(self.logs.placement.homes().into()),
            }),
        }
    }

    /// Keeps the answer to a message with a key.
    #[inline]
    pub(super) fn keep_answer(
        &mut self,
        key: Option<IdempotencyKey>,
        message: &Publish<'_>,
        info: &TopicInfo,
    ) {
        let Some(dedup) = message.dedup else { return };
        let slot = topic::slot(message.name);
        if let Some((key, _)) = dedup.session_key() {
            return self.retries.unreleased.insert(key, slot);
        }
        let Some(key) = key else { return };
        let partition_index = self.partition_index_of_slot(slot);
        let answer = Answer {
            key: key.key,
            message: key.message,
            slotted_offset: SlottedOffset::new(slot, info.offset),
            messages: info.messages,
            request_age_s: info.requested_s.unwrap_or(NONE),
            subscribers: info.subscribers,
            published_s: self.logs.partitions[partition_index].newest_time_s,
        };
        if let Some(answers) = &mut self.retries.answers {
            answers.add(key.group, answer, key.answers_max);
        }
    }

    /// Restores an answer from a snapshot. After a planned restart the answer's window starts again, since the publisher did not cause the
    /// downtime.
    pub(crate) fn restore_answer(
        &mut self,
        fields: &mut FieldReader<'_>,
        origin: &Origin,
        settings: &Settings,
        now: Now,
    ) -> Result<(), Damaged> {
        let group = fields.number()? as usize;
        if group >= GROUPS {
            return Err(Damaged("an answer is of no group"));
        }
        let (key, hash) = (fields.word()?, fields.word()?);
        let (slot, offset) = (fields.byte()?, fields.number()?);
        let time_s = fields.number32()?;
        let row = Answer {
            key,
            message: hash,
            slotted_offset: SlottedOffset::new(slot, offset),
            messages: fields.number32()?,
            request_age_s: fields.number32()?,
            subscribers: fields.number32()?,
            published_s: match origin.restores_local {
                // If the log is replicated, the time is that of its clock.
                _ if self.logs.is_replicated() => time_s,
                true => now.unix_s,
                false => time_s.min(now.unix_s),
            },
        };
        if self
            .logs
            .placement
            .home_of(self.logs.placement.partition_of_slot(slot))
            != self.logs.me
        {
            return Ok(());
        }
        let window_s = settings.publish.idempotency_window_s;
        let admission = &self.retries.admission;
        let answers =
            (self.retries.answers).get_or_insert_with(|| Answers::new(window_s, admission.clone()));
        answers.add(group, row, u32::MAX);
        Ok(())
    }
}

impl Home {
    fn partition_index_of_slot(&self, slot: u8) -> usize {
        let placement = self.logs.placement;
        placement.index_at_home(placement.partition_of_slot(slot))
    }

    /// Notes the claim of a message that this partition has applied. From now on, records of older claims of the session are void.
    pub(super) fn note_claim(&mut self, message: &Publish<'_>, partition_index: usize) {
        if let Some((key, claim)) = message.dedup.and_then(|dedup| dedup.session_key()) {
            let time_s = self.logs.partitions[partition_index].newest_time_s;
            let claims = &mut self.retries.newest_claims;
            claims.change_claims(partition_index, |claims| {
                claims.note(key.session, claim, time_s)
            });
        }
    }

    /// Applies a release from the log of this partition. Returns false if the release is void, because its claim is outdated.
    pub(crate) fn apply_release(&mut self, release: Release, partition_index: usize) -> bool {
        let Release { key, claim } = release;
        if key.packet_id != 0 {
            let time_s = self.logs.partitions[partition_index].newest_time_s;
            let claims = &mut self.retries.newest_claims;
            if claims
                .claims_of(partition_index)
                .is_outdated(key.session, claim, time_s)
            {
                return false;
            }
            claims.change_claims(partition_index, |claims| {
                claims.note(key.session, claim, time_s)
            });
        }
        let partition_index_by_slot = &self.logs.partition_index_by_slot;
        let is_here =
            |slot: u8| usize::from(partition_index_by_slot[usize::from(slot)]) == partition_index;
        self.retries.unreleased.release(key, is_here);
        true
    }

    /// Whether a partition of this home has shown a newer claim of the session than that of this release.
    pub(crate) fn is_release_outdated(&self, release: Release) -> bool {
        let Release { key, claim } = release;
        let mut partitions = self.logs.partitions.iter().enumerate();
        partitions.any(|(at, partition)| {
            let claims = self.retries.newest_claims.claims_of(at);
            claims.is_outdated(key.session, claim, partition.newest_time_s)
        })
    }

    /// The indexes of all partitions.
    pub(crate) fn all_partition_indexes(&self) -> Vec<usize> {
        (0..self.logs.partitions.len()).collect()
    }

    /// The indexes of the partitions that have messages which a release of `key` releases, as far as this home has read the logs.
    pub(crate) fn partitions_of_release(&self, key: SessionKey) -> Vec<usize> {
        let slots = self.retries.unreleased.slots_of(key).into_iter();
        let mut partition_indexes: Vec<usize> = slots
            .map(|slot| self.logs.partition_index_by_slot[usize::from(slot)].into())
            .collect();
        partition_indexes.sort_unstable();
        partition_indexes.dedup();
        partition_indexes
    }

    /// Writes the newest claims, from this partition and after this session. Returns where to continue, if any are left.
    pub(crate) fn save_newest_claims(
        &self,
        (first_partition, mut after): (usize, Option<Party>),
        block: &mut Block<'_>,
    ) -> Option<(usize, Option<Party>)> {
        let partitions = self.logs.placement.of_home(self.logs.me);
        for (at, partition) in partitions.enumerate().skip(first_partition) {
            let time_s = self.logs.partitions[at].newest_time_s;
            let claims = self.retries.newest_claims.claims_of(at);
            if let Some(next) = claims.save(partition, after.take(), time_s, block) {
                return Some((at, next));
            }
        }
        None
    }

    /// Restores a newest claim from a snapshot.
    ///
    /// # Errors
    /// The claim belongs to no session, or to a partition of another home.
    pub(crate) fn restore_newest_claim(
        &mut self,
        fields: &mut FieldReader<'_>,
        origin: &Origin,
        world: &World,
    ) -> Result<(), Damaged> {
        let partition = fields.number16()?;
        let session = Party::from_number(fields.word()?);
        let (claim, since_s) = (fields.number()?, fields.number32()?);
        if !session.is_qos2_publisher() {
            return Err(Damaged("a claim is of no session"));
        }
        if partition >= world.partitions || origin.placement.home_of(partition) != origin.home {
            return Err(Damaged("a claim belongs elsewhere"));
        }
        if world.replicates_sessions()
            && let Some(at) = self.logs.partition_index_here(partition)
        {
            let claims = &mut self.retries.newest_claims;
            claims.change_claims(at, |claims| claims.insert(session, claim, since_s));
        }
        Ok(())
    }

    /// Restores a key from a snapshot, if sessions are still recorded.
    ///
    /// # Errors
    /// The key belongs to no session, or to a topic of another home.
    pub(crate) fn restore_unreleased(
        &mut self,
        fields: &mut FieldReader<'_>,
        origin: &Origin,
        world: &World,
    ) -> Result<(), Damaged> {
        let session = Party::from_number(fields.word()?);
        let packet_id = fields.number16()?;
        let slot = fields.byte()?;
        if !session.is_qos2_publisher() {
            return Err(Damaged("a QoS 2 message is of no session"));
        }
        let home_of = |placement: &Placement| placement.home_of(placement.partition_of_slot(slot));
        if home_of(&origin.placement) != origin.home {
            return Err(Damaged("a QoS 2 message belongs elsewhere"));
        }
        if home_of(&self.logs.placement) == self.logs.me && world.recovers_sessions() {
            let key = SessionKey { session, packet_id };
            self.retries.unreleased.insert(key, slot);
        }
        Ok(())
    }
}

impl Retries {
    /// Drops a bounded number of answers that have expired by this second. Frees the table if it is empty afterwards.
    pub(super) fn expire_answers(&mut self, oldest_s: u32) {
        if let Some(answers) = &mut self.answers {
            let mut removals_left = EXPIRED_PER_TICK;
            for group in 0..GROUPS {
                removals_left = answers.expire(group, oldest_s, removals_left);
            }
            if answers.is_empty() {
                self.answers = None;
            }
        }
    }

    fn hash_of_key(&self, topic: &[u8], dedup: &DedupKey<&[u8]>) -> u64 {
        let mut hasher = Xxh3::with_seed(self.seed);
        let user = Some(dedup.publisher).filter(|publisher| publisher.is_user());
        let user = user.map_or(0, Party::number).to_le_bytes();
        // A topic contains no NUL byte, so different pairs of topic and key give different bytes.
        for part in [&user[..], topic, &[0], dedup.key] {
            hasher.update(part);
        }
        hasher.digest()
    }

    fn hash_of_message(&self, message: &Publish<'_>) -> u64 {
        let mut hasher = Xxh3::with_seed(!self.seed);
        for part in [
            message.headers.content_type,
            message.headers.event,
            message.headers.key,
        ] {
            hasher.update(&[part.len() as u8]);
            hasher.update(part);
        }
        let ttl_s = message.headers.ttl_s.map_or(u64::MAX, u64::from);
        hasher.update(&ttl_s.to_le_bytes());
        hasher.update(&[
            u8::from(message.headers.binary),
            u8::from(message.headers.retain),
        ]);
        hasher.update(&(message.headers.attributes.len() as u32).to_le_bytes());
        hasher.update(message.headers.attributes);
        hasher.update(message.data);
        hasher.digest()
    }

    /// Writes the answers from the cursor `from` on. Returns the cursor to continue with, if any are left.
    pub(crate) fn save_answers(
        &self,
        from: AnswerCursor,
        block: &mut Block<'_>,
    ) -> Option<AnswerCursor> {
        self.answers.as_ref()?.save(from, block)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::snapshot::kind;

    #[test]
    fn message_and_will_in_a_snapshot_are_recognised_by_the_next_process() {
        let mut settings = Settings::default();
        settings.mqtt.durable_sessions = true;
        let world = World::for_tests(settings, 1);
        let mut home = Home::for_world(&world, 0);
        let keys = [
            SessionKey::new(1, 0),
            SessionKey::new(1, 7),
            SessionKey::new(2, u16::MAX),
        ];
        for key in keys {
            home.retries.unreleased.insert(key, 9);
        }
        let mut bytes = Vec::new();
        let mut block = Block {
            bytes: &mut bytes,
            records: 0,
        };
        assert_eq!(home.retries.unreleased.save(None, &mut block), None);
        let origin = Origin {
            placement: world.placement(),
            home: 0,
            epoch: world.epoch,
            restores_local: false,
        };
        let mut restored = Home::for_world(&world, 0);
        let mut from = FieldReader(&bytes);
        while !from.is_empty() {
            assert_eq!(from.byte(), Ok(kind::UNRELEASED));
            assert_eq!(
                restored.restore_unreleased(&mut from, &origin, &world),
                Ok(())
            );
        }
        let table = &restored.retries.unreleased;
        assert!(keys.iter().all(|key| table.has(*key, |slot| slot == 9)));
    }
}
