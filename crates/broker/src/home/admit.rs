//! Admits facts (publishes, and changes of topics) at their topic's home, the part of a shard that keeps the topic. Admission checks a fact
//! against all limits of this process, so no limit refuses the fact when it is applied later (`apply.rs`).
//!
//! Invariant: from its admission until it is applied, a fact that is sent to the engine (which writes the log) has room reserved for it. The
//! reservation is released exactly once.

use crore_wire::topic;

use super::Home;
use super::context::{Admitted, HomeContext};
use super::reservations::Reservation;
use super::topic_row::{HAS_QOS_SUBSCRIPTION, HAS_RETAINED, TopicRow};
use crate::base::notices::Notice;
use crate::base::reason::Reason;
use crate::base::rules::Rules;
use crate::base::settings::{RetentionMode, Settings};
use crate::base::time::Now;
use crate::base::work::FILTERS_PER_STEP;
use crate::budget::admission::Client;
use crate::mail::message::Publish;
use crate::mail::{Fact, FactTopic, Outcome};
use crate::store::index::Chained as _;
use crate::store::slab::{NONE, SlabRow as _};

/// Whether the message is of QoS 2: then its session and packet id tell a retry, and not an idempotency key.
fn is_qos2_publish(message: &Publish<'_>) -> bool {
    message
        .dedup
        .is_some_and(|it| it.publisher.is_qos2_publisher())
}

/// While the table has room, only a topic that has been idle for this many seconds is evicted, so that a new topic is not evicted before its first use.
/// If the table is full, any idle topic may be evicted.
const IDLE_BEFORE_EVICTION_S: u32 = 60;

impl Home {
    /// Admits a fact if there is room for its topic, if the client may keep as many more bytes, and if the message is no retry.
    ///
    /// # Errors
    /// The outcome of a fact that is not admitted: a refusal, or for a retry the answer to the first publish.
    #[inline(always)] // the call would cost as much as the body
    pub(crate) fn admit(
        &mut self,
        fact: &Fact<'_>,
        context: &HomeContext<'_>,
    ) -> Result<Admitted, Outcome> {
        let (settings, rules, now) = (context.settings, context.rules, context.now);
        let mut key = None;
        if let Fact::Publish(message) = fact {
            key = match self.check_retry(message, settings, now, 0) {
                // Perhaps this is no retry, but a new message with a packet id that the client uses again: the log may already contain the release of the
                // earlier message, although this node has not read it. So the message is appended, and is judged when it is applied.
                Err(Outcome::Replayed(_))
                    if self.logs.is_replicated() && is_qos2_publish(message) =>
                {
                    None
                }
                new_key => new_key?,
            };
            let data = message.data.len();
            if let Err(reached) = self.admission.check_kept_bytes(message.client, data)
                && self.would_keep(message, settings, rules)
            {
                return Err(Outcome::NoRoom(reached));
            }
        }
        let FactTopic { hash, name, client } = fact.topic();
        let topic_id = match fact.creates_topic() {
            true => self.admit_topic(hash, name, client, now),
            false => Ok(self.topics.find(hash, name)),
        };
        let topic_id = topic_id.map_err(Outcome::NoRoom)?;
        Ok(Admitted { topic_id, key })
    }

    /// Admits a fact that will be sent to the engine, and reserves room for its topic, bytes and key.
    ///
    /// # Errors
    /// See [`Home::admit`].
    pub(crate) fn reserve(
        &mut self,
        fact: &Fact<'_>,
        context: &HomeContext<'_>,
    ) -> Result<Reservation, Outcome> {
        let FactTopic { hash, name, client } = fact.topic();
        if fact.creates_topic()
            && let Err(reached) = self.admission.check_disk_share(client, context.now.unix_s)
        {
            // A retry needs no room, since the log has the message already.
            match fact {
                Fact::Publish(message) => self.admit_retry(message, context, reached)?,
                Fact::Topic { .. } => return Err(Outcome::NoRoom(reached)),
            }
        }
        let admitted = self.admit(fact, context)?;
        if let Some(key) = &admitted.key
            && let Some(answers) = &mut self.retries.answers
            && !answers.reserve(key.group, context.settings.publish.idempotency_keys)
        {
            self.reports.notices.note(Notice::Keys, name);
            return Err(Outcome::NoRoom(Reason::KeysFull));
        }
        let mut bytes = 0;
        if let Fact::Publish(message) = fact
            && self.admission.counts_kept_bytes()
            && client.is_known()
            && self.would_keep(message, context.settings, context.rules)
        {
            bytes = message.data.len();
        }
        self.admission.add_kept(client, bytes);
        if let Fact::Publish(message) = fact {
            self.admission.add_written(client, message.data.len());
        }
        self.topics
            .reservations
            .add(hash, fact.creates_topic() && admitted.topic_id.is_none());
        Ok(Reservation {
            topic_hash: hash,
            client,
            kept_bytes: bytes,
            key_group: admitted.key.map(|key| key.group as u8),
        })
    }

    /// Admits a message only if it may be a retry, since the limit `reached` refuses new messages.
    ///
    /// # Errors
    /// For a new message the refusal; for a retry that needs no record the answer to the first publish.
    #[cold]
    fn admit_retry(
        &mut self,
        message: &Publish<'_>,
        context: &HomeContext<'_>,
        reached: Reason,
    ) -> Result<(), Outcome> {
        match self.check_retry(message, context.settings, context.now, 0) {
            // It is judged when it is applied (see `admit`).
            Err(Outcome::Replayed(_)) if self.logs.is_replicated() && is_qos2_publish(message) => {
                Ok(())
            }
            Err(first_answer) => Err(first_answer),
            Ok(_) => Err(Outcome::NoRoom(reached)),
        }
    }

    /// Releases the reservation of a fact that is applied now.
    pub(crate) fn release(&mut self, reserved: Reservation, now: Now) {
        self.admission
            .drop_kept(reserved.client, reserved.kept_bytes);
        if let (Some(group), Some(answers)) = (reserved.key_group, &mut self.retries.answers) {
            answers.release(group.into());
        }
        if self.topics.reservations.remove(reserved.topic_hash) {
            let mut id = self.topics.index.first(reserved.topic_hash).unwrap_or(NONE);
            while id != NONE {
                if self.topics.rows.get(id).hash == reserved.topic_hash {
                    self.queue_if_idle(id, now);
                }
                id = self.topics.rows.get(id).next();
            }
        }
    }

    /// Returns the topic's row if the topic exists; otherwise makes room for the topic.
    ///
    /// # Errors
    /// The limit that was reached.
    #[inline]
    pub(super) fn admit_topic(
        &mut self,
        hash: u32,
        name: &[u8],
        client: Client,
        now: Now,
    ) -> Result<Option<u32>, Reason> {
        let topic_id = self.topics.find(hash, name);
        if topic_id.is_none() && !self.topics.reservations.has_room_for(hash) {
            self.make_room_for_topic(client, now)?;
        }
        Ok(topic_id)
    }

    /// Makes room for a new topic of this client: evicts an idle topic if the client has as many topics as its share allows, or if the table is full.
    ///
    /// # Errors
    /// The limit that was reached.
    pub(super) fn make_room_for_topic(&mut self, client: Client, now: Now) -> Result<(), Reason> {
        // The rate is checked before any eviction, since a client that exceeds its rate must not evict topics of others.
        self.topics.admission.count_new_topic(client, now.unix_s)?;
        let topic_count =
            self.topics.rows.len() as usize + self.topics.reservations.topics_to_create();
        let is_below_share =
            self.topics
                .creators
                .may_take(client, topic_count, self.topics.topics_max);
        // See `IDLE_BEFORE_EVICTION_S`.
        let idle_since_s = match topic_count < self.topics.topics_max {
            true => now.unix_s.saturating_sub(IDLE_BEFORE_EVICTION_S),
            false => u32::MAX,
        };
        match is_below_share || self.evict_idle_topic(client, idle_since_s) {
            true => Ok(()),
            false => Err(Reason::TopicsFull),
        }
    }

    /// Whether a message would be kept, in its topic's log or as the retained message.
    fn would_keep(&mut self, message: &Publish<'_>, settings: &Settings, rules: &Rules) -> bool {
        let name = message.name;
        let found = self
            .topics
            .find(message.hash, name)
            .map(|id| self.topics.rows.get(id));
        let rule_number = found.map_or_else(|| rules.number_for(name), |row| row.rule);
        if message.headers.retain && message.data.is_empty() {
            // An empty message removes the retained message and is not kept.
            let removes_retained = found.is_some_and(|row| row.has(HAS_RETAINED));
            if removes_retained || rules.get(rule_number).keep == RetentionMode::Latest {
                return false;
            }
        }
        let is_needed_by_session = found.is_some_and(|row| row.has(HAS_QOS_SUBSCRIPTION))
            || !self.subscriptions.groups.is_empty() && self.subscriptions.groups.find_due(name)
            || self.subscriptions.qos.has_match(name);
        message.headers.retain
            || is_needed_by_session && settings.mqtt.session_messages > 0
            || rules.get(rule_number).messages_max() > 0
    }

    /// Inserts the row of a new topic, for which the caller has made room. Returns the row.
    pub(super) fn insert_topic(
        &mut self,
        hash: u32,
        name: &[u8],
        client: Client,
        rules: &Rules,
        now: Now,
    ) -> u32 {
        let mut row = TopicRow::vacant(NONE);
        row.set_slot(topic::slot(name));
        row.hash = hash;
        self.steps
            .add(self.topics.names.compact(&mut self.topics.rows));
        row.name = self.topics.names.insert(name);
        row.rule = rules.number_for(name);
        self.steps.add(usize::from(row.rule) / FILTERS_PER_STEP);
        row.last_used_s = now.unix_s;
        row.set_last_offset(self.logs.forgotten_max(name, row.rule, rules));
        let id = self.topics.rows.insert(row);
        self.topics.index.insert(&mut self.topics.rows, id);
        self.topics.reservations.release_created(hash);
        let topic_count = self.topics.rows.len() as usize;
        self.topics
            .creators
            .record_row(id, client, topic_count, self.topics.topics_max);
        if let Some(planned_rules) = &mut self.topics.planned_rules {
            planned_rules.add_topic(id, name);
        }
        id
    }
}
