//! Tokens of MQTT sessions and wills that have ended a short time ago, in a cluster. A token identifies a session or a will in the keys of its messages,
//! by which homes recognise a second copy of a message (`unreleased.rs`).
//!
//! The log may store a copy up to a minute after the session or the will has ended: the copy comes from a node that was cut off, or from a steward that
//! has died. (The steward is the node that ends sessions and publishes wills for the partition.) So the keys stay for that minute, and then nodes
//! *release* the token: they append a record that removes its keys. The steward releases it first. The other nodes do so half a minute later, in case
//! the steward has died; normally no key is left then.
//!
//! The table is derived from the records of the sessions' partition, so it is the same at all nodes. Snapshots contain it.
//!
//! If a claim (a connection that takes the session) makes a will due, the token stays ten minutes longer, with the will. If a limit refuses the will, the
//! steward publishes it again some seconds later. A new steward publishes all wills again; the key of a will prevents a second message. So a will is lost
//! only if no steward can publish it within ten minutes. A node that is cut off publishes no will (`shard/session_replicas.rs`).

use alloc::boxed::Box;
use alloc::collections::VecDeque;

use crate::base::ids::PartitionId;
use crate::base::snapshot::{Block, Damaged, FieldReader, kind};
use crate::budget::admission::{Client, Counts, Party};
use crate::mail::session::Will;

/// The steward releases a token this many seconds after the end.
const STEWARD_RELEASE_S: u32 = 60;
/// The other nodes release a token this many seconds after the end.
const OTHERS_RELEASE_S: u32 = 90;
/// A process that only reads the log, such as one that makes a checkpoint, releases no tokens: it forgets a token after this many seconds of the log. A
/// node that serves clients forgets a token when it releases it, which may be late, since all nodes may have been cut off for minutes.
const FORGET_S: u32 = 120;

/// A will that is due is published again and again for this many seconds while a limit refuses it.
pub(crate) const WILL_KEPT_S: u32 = 600;
/// Seconds until a refused will is published again.
pub(crate) const WILL_RETRY_S: u32 = 5;

/// A session or a will that has ended.
struct RetiredToken {
    /// The second of the log in which the session or the will ended.
    end_s: u32,
    token: u64,
    /// The will, if the steward must publish it.
    will: Option<Box<Will>>,
    /// The charge for the will and for the token's keys. `None` if restored from a snapshot of an earlier build.
    charge: Option<Charge>,
    /// Whether this node, as the steward, has published the will or is doing so.
    is_published: bool,
}

/// Bytes that a party (an address or a user) is charged.
#[derive(Clone, Copy)]
pub(crate) struct Charge {
    pub party: Party,
    pub bytes: usize,
}

/// A token as read from a snapshot.
pub(crate) struct SavedToken {
    /// The second of the log in which the session or the will ended.
    pub end_s: u32,
    pub token: u64,
    pub will: Option<Box<Will>>,
    /// The charge for the token's keys, to the party of the session. `None` in a snapshot of an earlier build.
    pub key_charge: Option<Charge>,
}

/// Flags of a token in a snapshot.
const HAS_WILL: u8 = 1;
const HAS_CHARGE: u8 = 2;

/// The work of a node for a token.
pub(crate) enum DueToken {
    /// The steward publishes this will. If a limit refuses the will, the steward passes this number to [`RetiredTokens::publish_later`].
    Publish(Box<Will>, u64),
    /// Every node releases the keys with this token.
    Release(u64),
}

impl RetiredToken {
    fn will_bytes(&self) -> usize {
        self.will.as_ref().map_or(0, |will| will.bytes())
    }
}

/// The tokens in the order in which their sessions and wills ended.
#[derive(Default)]
pub(crate) struct RetiredTokens {
    tokens: VecDeque<RetiredToken>,
    /// The number of tokens that were removed: the first token has this number.
    removed_count: u64,
    /// Seconds by which all tokens of the table stay longer than [`STEWARD_RELEASE_S`] or [`OTHERS_RELEASE_S`].
    kept_longer_s: u32,
    /// This node, as the steward, has examined the first `examined_count` tokens for wills to publish.
    examined_count: usize,
    /// The second in which the steward examines all tokens again, because a will was refused; `None` if none was.
    retry_s: Option<u32>,
    /// Whether this process releases keys.
    pub releases_keys: bool,
    will_bytes: usize,
}

impl RetiredTokens {
    /// A table for tokens with wills.
    pub fn for_wills() -> RetiredTokens {
        RetiredTokens {
            kept_longer_s: WILL_KEPT_S,
            ..RetiredTokens::default()
        }
    }

    /// Heap bytes.
    pub fn bytes(&self) -> usize {
        self.tokens.capacity() * size_of::<RetiredToken>() + self.will_bytes
    }

    /// Adds the token of a session or a will that ended in second `end_s` of the log; `token` is 0 if there is none. Until the token is released, the party
    /// of `key_charge` is charged for the will and for these bytes of keys.
    pub fn insert(
        &mut self,
        token: u64,
        will: Option<Box<Will>>,
        end_s: u32,
        key_charge: Option<Charge>,
        counts: &Counts,
    ) {
        let forgotten_s = FORGET_S + self.kept_longer_s;
        let is_old = |it: &RetiredToken| it.end_s.saturating_add(forgotten_s) <= end_s;
        while !self.releases_keys && self.tokens.front().is_some_and(is_old) {
            self.pop(counts);
        }
        if token != 0 || will.is_some() {
            let mut retired = RetiredToken {
                end_s,
                token,
                will,
                charge: None,
                is_published: false,
            };
            let will_bytes = retired.will_bytes();
            self.will_bytes += will_bytes;
            if let Some(mut charge) = key_charge {
                charge.bytes += will_bytes;
                retired.charge = Some(charge);
                counts.change_absent(charge.party, 0, charge.bytes);
            }
            self.tokens.push_back(retired);
        }
    }

    fn pop(&mut self, counts: &Counts) -> Option<RetiredToken> {
        let first = self.tokens.pop_front()?;
        self.will_bytes -= first.will_bytes();
        if let Some(charge) = first.charge {
            counts.change_absent(charge.party, charge.bytes, 0);
        }
        self.removed_count += 1;
        self.examined_count = self.examined_count.saturating_sub(1);
        if self.tokens.is_empty() {
            self.tokens = VecDeque::new();
        }
        Some(first)
    }

    /// Makes a new steward publish all wills, since the last steward may not have published them.
    pub fn publish_all_again(&mut self) {
        self.examined_count = 0;
        self.tokens
            .iter_mut()
            .for_each(|it| it.is_published = false);
    }

    /// Makes the steward publish the will with this number again some seconds later, since a limit has refused it.
    pub fn publish_later(&mut self, number: u64, now_s: u32) {
        let index = number
            .checked_sub(self.removed_count)
            .map(|index| index as usize);
        if let Some(refused) = index.and_then(|index| self.tokens.get_mut(index)) {
            refused.is_published = false;
            self.retry_s
                .get_or_insert(now_s.saturating_add(WILL_RETRY_S));
        }
    }

    /// The first second in which this node has something to do.
    pub fn next_due_s(&self, is_steward: bool) -> u32 {
        let Some(first) = self.tokens.front() else {
            return u32::MAX;
        };
        let release_s = first.end_s.saturating_add(self.release_s(is_steward));
        match self.retry_s {
            _ if is_steward && self.examined_count < self.tokens.len() => 0,
            Some(again_s) if is_steward => release_s.min(again_s),
            _ => release_s,
        }
    }

    /// The next work of this node; `None` if nothing is due. For the steward also `Some(None)`: it has examined a token that has no will to publish, and
    /// must call this again.
    pub fn next_due(
        &mut self,
        is_steward: bool,
        now_s: u32,
        counts: &Counts,
    ) -> Option<Option<DueToken>> {
        let first = self.tokens.front()?;
        if first.end_s.saturating_add(self.release_s(is_steward)) <= now_s {
            let first = self.pop(counts);
            return Some(first.map(|first| DueToken::Release(first.token)));
        }
        if !is_steward {
            return None;
        }
        if self.retry_s.is_some_and(|again_s| again_s <= now_s) {
            (self.retry_s, self.examined_count) = (None, 0);
        }
        let number = self.removed_count + self.examined_count as u64;
        let next = self.tokens.get_mut(self.examined_count)?;
        self.examined_count += 1;
        // The log may store a copy of the will a minute later, when its key must still be in the table. So it is too late to publish the will.
        let is_late = next
            .end_s
            .saturating_add(self.kept_longer_s.max(STEWARD_RELEASE_S))
            <= now_s;
        if core::mem::replace(&mut next.is_published, true) || is_late {
            return Some(None);
        }
        let will = next.will.clone();
        Some(will.map(|will| DueToken::Publish(will, number)))
    }

    /// The number of tokens.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    fn release_s(&self, is_steward: bool) -> u32 {
        let release_s = match is_steward {
            true => STEWARD_RELEASE_S,
            false => OTHERS_RELEASE_S,
        };
        release_s + self.kept_longer_s
    }

    /// Writes the tokens from index `from` on. Returns the index to continue with, if any are left.
    pub fn save(
        &self,
        partition: PartitionId,
        from: usize,
        block: &mut Block<'_>,
    ) -> Option<usize> {
        for (n, retired) in self.tokens.iter().enumerate().skip(from) {
            if block.is_full() {
                return Some(n);
            }
            let flag = |set, flag| if set { flag } else { 0 };
            let (will, charge) = (retired.will.as_ref(), retired.charge);
            let mut out = block.record(kind::RETIRED_TOKEN);
            out.number(partition.into());
            out.number(retired.end_s.into());
            out.word(retired.token);
            out.byte(flag(will.is_some(), HAS_WILL) | flag(charge.is_some(), HAS_CHARGE));
            if let Some(will) = will {
                will.write(&mut out);
            }
            if let Some(Charge { party, bytes }) = charge {
                let client = will.map_or(Client::NOBODY, |will| will.client);
                out.number(client.number().into());
                out.word(party.number());
                out.number((bytes - retired.will_bytes()) as u64);
            }
        }
        None
    }

    /// Reads a token.
    ///
    /// # Errors
    /// The record is malformed.
    pub fn read(from: &mut FieldReader<'_>) -> Result<SavedToken, Damaged> {
        let (end_s, token, flags) = (from.number32()?, from.word()?, from.byte()?);
        if flags & !(HAS_WILL | HAS_CHARGE) != 0 {
            return Err(Damaged("a token has an unknown form"));
        }
        let mut will = match flags & HAS_WILL {
            0 => None,
            _ => Some(Box::new(Will::read(from)?)),
        };
        let mut key_charge = None;
        if flags & HAS_CHARGE != 0 {
            let client = Client::from_number(from.number32()?);
            will.iter_mut().for_each(|will| will.client = client);
            key_charge = Some(Charge {
                party: Party::from_number(from.word()?),
                bytes: from.number32()? as usize,
            });
        }
        Ok(SavedToken {
            end_s,
            token,
            will,
            key_charge,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::settings::Settings;
    use crate::budget::admission::Admission;

    #[test]
    fn token_in_a_form_of_a_later_build_is_refused() {
        let mut tokens = RetiredTokens::default();
        let counts = Admission::new(&Settings::default(), 1);
        tokens.insert(7, None, 9, None, &counts);
        let mut bytes = alloc::vec::Vec::new();
        let mut block = Block {
            bytes: &mut bytes,
            records: 0,
        };
        assert_eq!(tokens.save(0, 0, &mut block), None);
        // The kind and the partition come before the token.
        let read = |bytes: &[u8]| RetiredTokens::read(&mut FieldReader(&bytes[2..])).is_ok();
        assert!(read(&bytes));
        let flags = bytes.last_mut().expect("the flags are the end");
        *flags |= HAS_CHARGE << 1;
        assert!(!read(&bytes));
    }
}
