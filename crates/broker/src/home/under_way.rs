//! Publishes and topics whose records are under way to the engine: what is reserved for them, so that applying them refuses nothing.
//!
//! Invariant: what is reserved for a record is released once, when the record is applied or was not kept.

use crore_wire::topic;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::Home;
use super::coming::Reserved;
use super::row::CREATED;
use crate::base::planted::{self, Fault};
use crate::base::rules::Rules;
use crate::base::settings::Settings;
use crate::base::time::Now;
use crate::budget::admission::{Client, Reached};
use crate::filters::matching::Matching;
use crate::mail::lanes::Lanes;
use crate::mail::message::Publish;
use crate::mail::{Outcome, Verb};
use crate::store::index::Chained as _;
use crate::store::slab::NONE;

impl Home {
    /// Admits a message, unless it was published before, and reserves room for it.
    ///
    /// # Errors
    /// How the publish ends at once.
    pub(crate) fn reserve(
        &mut self,
        message: &Publish<'_>,
        settings: &Settings,
        rules: &Rules,
        now: Now,
    ) -> Result<Reserved, Outcome> {
        self.recognise(message, settings, now)?;
        let found = self.admit(message, settings, rules, now);
        let found = found.map_err(Outcome::Full)?;
        let owner = self.admission.log_owner(message.client);
        let bytes = match owner.is_known() && self.would_keep(message, settings, rules) {
            true => message.data.len(),
            false => 0,
        };
        self.admission.keep(owner, bytes);
        self.coming.add(message.hash, found.is_none());
        Ok(Reserved {
            topic: Some(message.hash),
            kept: (owner, bytes),
        })
    }

    /// Reserves room for a topic that a client makes, unless it exists.
    ///
    /// # Errors
    /// The limit that was reached.
    pub(crate) fn reserve_topic(
        &mut self,
        verb: Verb,
        (hash, name): (u32, &[u8]),
        client: Client,
        now: Now,
    ) -> Result<Reserved, Reached> {
        if verb == Verb::Create {
            self.admit_topic(hash, name, client, now)?;
        }
        let makes = verb == Verb::Create && self.find(hash, name).is_none();
        self.coming.add(hash, makes);
        Ok(Reserved {
            topic: Some(hash),
            ..Reserved::default()
        })
    }

    /// The record was applied, or was not kept.
    pub(crate) fn release(&mut self, reserved: Reserved, now: Now) {
        let (owner, bytes) = reserved.kept;
        self.admission.drop_kept(owner, bytes);
        let Some(hash) = reserved.topic else { return };
        if self.coming.remove(hash) {
            let mut id = self.index.first(hash).unwrap_or(NONE);
            while id != NONE {
                if self.rows.get(id).hash == hash {
                    self.queue_if_idle(id, now);
                }
                id = self.rows.get(id).next();
            }
        }
    }

    /// The last offset of the partition at this place.
    pub(crate) fn sequence(&self, at: usize) -> u64 {
        self.partitions[at].sequence
    }

    /// The next thing that happens in the partition of this topic has this offset.
    pub(crate) fn begin_record(&mut self, topic: &[u8], offset: u64) {
        let at = self.place_of_name(topic);
        self.partitions[at].sequence = offset - 1;
    }

    /// A record with this offset was applied; its offset is used up, whether it has changed something or not.
    pub(crate) fn end_record(&mut self, topic: &[u8], offset: u64) {
        let at = self.place_of_name(topic);
        self.partitions[at].sequence = offset;
    }

    /// The digest of what the log says of the topics: which of them publishers have made, with their last offsets.
    pub(crate) fn digest(&self) -> u64 {
        let rows = (0..self.rows.end()).filter_map(|id| self.rows.try_get(id));
        let rows = rows.filter(|row| row.has(CREATED));
        rows.fold(0, |digest, row| {
            let name = xxh3_64_with_seed(self.names.get(row.name), self.seed);
            digest ^ xxh3_64_with_seed(&row.last().to_le_bytes(), name)
        })
    }

    fn place_of_name(&self, topic: &[u8]) -> usize {
        self.places[usize::from(topic::slot(topic))].into()
    }

    /// Applies a message whose record is kept, unless one with the same key was applied before. `now` has the second of its admission.
    pub(crate) fn apply(
        &mut self,
        message: &Publish<'_>,
        settings: &Settings,
        rules: &Rules,
        here: &Matching,
        now: Now,
        lanes: &mut Lanes,
    ) -> Outcome {
        let key = match self.recognise(message, settings, now) {
            Ok(key) => key,
            Err(_) if planted::is(Fault::KeyTwice) => None,
            Err(known) => return known,
        };
        let found = self.find(message.hash, message.name);
        let info = self.publish(message, found, settings, rules, here, now, lanes);
        self.keep_answer(key, message.name, &info, settings);
        Outcome::Done(info)
    }

    /// Applies a verb whose record is kept.
    pub(crate) fn apply_verb(
        &mut self,
        verb: Verb,
        hash: u32,
        name: &[u8],
        rules: &Rules,
        now: Now,
        lanes: &mut Lanes,
    ) -> Outcome {
        match verb {
            Verb::Create => self.make(hash, name, Client::NOBODY, rules, now),
            Verb::Info | Verb::Delete | Verb::Purge => {
                self.verb(verb, hash, name, Client::NOBODY, rules, now, lanes)
            }
        }
    }

    /// The filter and the name of a group.
    pub(crate) fn share_of(&self, group: u64) -> Option<(&[u8], &[u8])> {
        self.groups.share_of(group)
    }
}
