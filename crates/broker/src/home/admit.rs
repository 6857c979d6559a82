//! Admission of facts: whatever depends on this process's limits. Applying an admitted fact does not refuse it (`apply.rs`).
//!
//! Invariant: what is reserved for a fact in flight to the engine is released once, when the fact is applied.

use crore_wire::topic;

use super::Home;
use super::context::{Found, HomeContext};
use super::interest::TopicInterest;
use super::logs::Logs;
use super::reservations::Reserved;
use super::subscriptions::Subscriptions;
use super::topic_row::{KEEPS, RETAINS, TopicRow};
use super::topics::TopicTable;
use crate::base::notices::Notice;
use crate::base::reason::Reason;
use crate::base::rules::Rules;
use crate::base::settings::{Keep, Settings};
use crate::base::time::Now;
use crate::base::work::FILTERS_PER_STEP;
use crate::budget::admission::Client;
use crate::mail::message::Publish;
use crate::mail::{Fact, Outcome};
use crate::store::index::Chained as _;
use crate::store::slab::{NONE, Vacant as _};

/// A client at its share of all topics evicts another client's topic only if that is idle for this many seconds: longer than a client takes
/// from making a topic to using it.
const IDLE_S: u32 = 60;

impl Home {
    /// Admits a fact if there is room for its topic, its client may keep its message, and its idempotency key is new.
    ///
    /// # Errors
    /// The outcome, if the fact is not admitted.
    #[inline(always)] // a call costs as much as it does
    pub(crate) fn admit(
        &mut self,
        fact: &Fact<'_>,
        context: &HomeContext<'_>,
    ) -> Result<Found, Outcome> {
        let (settings, rules, now) = (context.settings, context.rules, context.now);
        let mut key = None;
        if let Fact::Publish(message) = fact {
            let (topics, logs) = (&self.topics, &self.logs);
            key = (self.retries).recognise(topics, logs, message, settings, now, 0)?;
            let data = message.data.len();
            if let Err(reached) = self.admission.may_keep(message.client, data)
                && (self.subscriptions).would_keep(topics, message, settings, rules)
            {
                return Err(Outcome::Full(reached));
            }
        }
        let (hash, name, client) = fact.topic();
        let row = match fact.makes() {
            true => {
                self.topics
                    .admit_topic(&mut self.logs, &mut self.interest, hash, name, client, now)
            }
            false => Ok(self.topics.find(hash, name)),
        };
        let row = row.map_err(Outcome::Full)?;
        Ok(Found { row, key })
    }

    /// Admits a fact that goes to the engine, and reserves what it will need.
    ///
    /// # Errors
    /// The outcome, if the fact is not admitted.
    pub(crate) fn reserve(
        &mut self,
        fact: &Fact<'_>,
        context: &HomeContext<'_>,
    ) -> Result<Reserved, Outcome> {
        if fact.makes() {
            let (_, _, client) = fact.topic();
            self.admission
                .may_write(client, context.now.unix_s)
                .map_err(Outcome::Full)?;
        }
        let found = self.admit(fact, context)?;
        if let Some(key) = &found.key
            && let Some(answers) = &mut self.retries.answers
            && !answers.reserve(key.group, context.settings.publish.idempotency_keys)
        {
            self.reports.notices.met(Notice::Keys, fact.topic().1);
            return Err(Outcome::Full(Reason::KeysFull));
        }
        let (hash, _, client) = fact.topic();
        let mut bytes = 0;
        if let Fact::Publish(message) = fact
            && self.admission.counts_logs()
            && client.is_known()
            && (self.subscriptions).would_keep(
                &self.topics,
                message,
                context.settings,
                context.rules,
            )
        {
            bytes = message.data.len();
        }
        self.admission.keep(client, bytes);
        if let Fact::Publish(message) = fact {
            self.admission.write(client, message.data.len());
        }
        self.topics
            .reservations
            .add(hash, fact.makes() && found.row.is_none());
        Ok(Reserved {
            topic: hash,
            kept: (client, bytes),
            key: found.key.map(|key| key.group as u8),
        })
    }

    /// Releases the reservation of a fact that is applied now.
    pub(crate) fn release(&mut self, reserved: Reserved, now: Now) {
        let (owner, bytes) = reserved.kept;
        self.admission.drop_kept(owner, bytes);
        if let (Some(group), Some(answers)) = (reserved.key, &mut self.retries.answers) {
            answers.release(group.into());
        }
        if self.topics.reservations.remove(reserved.topic) {
            let mut id = self.topics.index.first(reserved.topic).unwrap_or(NONE);
            while id != NONE {
                if self.topics.rows.get(id).hash == reserved.topic {
                    self.topics.queue_if_idle(&self.logs, id, now);
                }
                id = self.topics.rows.get(id).next();
            }
        }
    }
}

impl TopicTable {
    /// Makes room for a topic, unless it exists; returns its row if it does.
    ///
    /// # Errors
    /// The limit that was reached.
    #[inline]
    pub(super) fn admit_topic(
        &mut self,
        logs: &mut Logs,
        interest: &mut TopicInterest,
        hash: u32,
        name: &[u8],
        client: Client,
        now: Now,
    ) -> Result<Option<u32>, Reason> {
        let found = self.find(hash, name);
        if found.is_none() && !self.reservations.makes(hash) {
            self.make_room(logs, interest, client, now)?;
        }
        Ok(found)
    }

    /// Makes room for a new topic of this client.
    ///
    /// # Errors
    /// The limit that was reached.
    pub(super) fn make_room(
        &mut self,
        logs: &mut Logs,
        interest: &mut TopicInterest,
        client: Client,
        now: Now,
    ) -> Result<(), Reason> {
        // Before any eviction: a client over its rate must not evict other topics.
        self.admission.make_topic(client, now.unix_s)?;
        let topics = self.rows.len() as usize + self.reservations.to_make();
        let has_share = self.makers.may_take(client, topics, self.topics_max);
        // A client at its share evicts its own idle topics, but none that others have only just left.
        let idle_since_s = match topics < self.topics_max {
            true => now.unix_s.saturating_sub(IDLE_S),
            false => u32::MAX,
        };
        match has_share || self.forget_one(logs, interest, client, idle_since_s) {
            true => Ok(()),
            false => Err(Reason::TopicsFull),
        }
    }
}

impl Subscriptions {
    /// Whether a message would be kept, in its topic's log or as the retained message.
    fn would_keep(
        &mut self,
        topics: &TopicTable,
        message: &Publish<'_>,
        settings: &Settings,
        rules: &Rules,
    ) -> bool {
        let name = message.name;
        let found = topics
            .find(message.hash, name)
            .map(|id| topics.rows.get(id));
        let number = found.map_or_else(|| rules.number_for(name), |row| row.rule);
        if message.headers.retain && message.data.is_empty() {
            // An empty message removes the retained message and is not kept.
            let takes = found.is_some_and(|row| row.has(RETAINS));
            if takes || rules.get(number).keep == Keep::Latest {
                return false;
            }
        }
        let needed = found.is_some_and(|row| row.has(KEEPS))
            || !self.groups.is_empty() && self.groups.find(name)
            || self.qos.has_match(name);
        message.headers.retain
            || needed && settings.mqtt.session_messages > 0
            || rules.get(number).messages_max() > 0
    }
}

impl TopicTable {
    /// Makes a topic, for which there is room.
    pub(super) fn create(
        &mut self,
        logs: &Logs,
        hash: u32,
        name: &[u8],
        client: Client,
        rules: &Rules,
        now: Now,
    ) -> u32 {
        let mut row = TopicRow::vacant(NONE);
        row.set_slot(topic::slot(name));
        row.hash = hash;
        self.steps.add(self.names.gather(&mut self.rows));
        row.name = self.names.insert(name);
        row.rule = rules.number_for(name);
        self.steps.add(usize::from(row.rule) / FILTERS_PER_STEP);
        row.touched_s = now.unix_s;
        row.set_last(logs.floor_of(name, row.rule, rules));
        let id = self.rows.insert(row);
        self.index.insert(&mut self.rows, id);
        self.reservations.made(hash);
        let taken = self.rows.len() as usize;
        self.makers.took(id, client, taken, self.topics_max);
        if let Some(planned_rules) = &mut self.planned_rules {
            planned_rules.created(id, name);
        }
        id
    }
}
