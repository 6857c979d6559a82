//! Removes messages: for a limit, because a newer message with the same key supersedes them, or with their whole chain.
//!
//! Invariant: only the oldest entry of a chain is ever lost.
//!
//! Words: a *chain* is the list of a topic's messages; a *turn* is a pass of the shard's loop; a *gap* is the notice that messages are
//! lost.

use core::cmp::Reverse;

use super::*;
use crate::log::entry::ORPHANED;

/// When the byte budget is exceeded, this many of the oldest entries of each rule are compared, to find a topic that is far over its share. The
/// comparison counts as one step of work, since it reads the same entries each time.
const VICTIMS_COMPARED: usize = 16;

/// The order in which chains lose messages: first by the excess over the chain's share, then by the age of the compared message, then by the list's
/// number.
type Urgency = (usize, Reverse<u32>, Reverse<u8>);

/// The list in which the last victim was found. The removal changes no other list, so the other lists need not be compared again each time.
struct VictimList {
    /// The number of the list.
    rule_number: u8,
    /// The urgency of the most urgent chain in all other lists.
    others_urgency: Option<Urgency>,
}

/// After this many removals from one list, the oldest messages of all lists are compared again.
const MESSAGES_PER_RUN: usize = 64;

/// The result of a bounded search for a message that is not spared (`Log::is_spared`).
pub enum SearchOutcome {
    /// A message was removed.
    Removed,
    /// The steps are used up.
    OutOfSteps,
    /// There is no such message.
    NoneLeft,
}

/// Why an entry is removed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum RemovalCause {
    /// A limit removes the message: a reader that has not read it is told of a gap.
    Lost,
    /// The message was superseded, has expired, or its topic is removed: no reader misses it.
    Unneeded,
}

impl Log {
    /// Whether the table of slots may be full for the next message, even if the byte budget has room.
    pub fn is_full(&self) -> bool {
        self.blobs.is_full()
    }

    /// Whether the log has messages of rules other than this one.
    pub fn has_messages_of_other_rules(&self, rule_number: u8) -> bool {
        let mut others = (0..=self.lists.retained()).filter(|other| *other != rule_number);
        others.any(|other| self.lists.oldest(other) != NONE)
    }

    /// Removes messages until at most `budget_bytes` are kept. Messages of orphaned chains are removed first. Then, among the topics with the
    /// oldest messages, the topic that is furthest over its share loses its oldest message. Messages of rule `last` are removed only if there are
    /// no others.
    ///
    /// Stops at step `until`, after at least one removal; the next call continues. If the next message is spared, stops and returns true: then
    /// [`Log::remove_unspared`] continues. `all_bytes` is the byte budget of all logs; `usize::MAX` spares no message. Calls `emptied` for each chain
    /// that has become empty, with its topic, its rule, and the topic's chain from now on.
    pub fn enforce_budget(
        &mut self,
        budget_bytes: usize,
        until_step: u64,
        all_logs_bytes: usize,
        now_s: u32,
        last_rule: u8,
        mut emptied: impl FnMut(u32, u8, u32),
    ) -> bool {
        let share = budget_bytes / self.chains.len().max(1) as usize;
        let mut victim_list = None;
        while self.bytes() > budget_bytes || self.blobs.is_full() {
            if self.clear_orphans(1) == 0 {
                let Some(chain) = self.victim(share, last_rule, &mut victim_list) else {
                    return false;
                };
                if self.is_spared(self.chains.get(chain).oldest(), all_logs_bytes) {
                    return true;
                }
                let (topic, rule_number) =
                    (self.chains.get(chain).topic, self.chains.get(chain).rule);
                let chain = self.drop_oldest(chain, now_s);
                if self.count(chain) == 0 {
                    emptied(topic, rule_number, chain);
                }
            }
            if self.steps.count() >= until_step && !self.blobs.is_full() {
                return false;
            }
        }
        false
    }

    /// Removes the oldest messages of all topics until the chunks have at most `bytes_max`. Chunks are filled in the order of arrival, so removal in
    /// that order frees them. Messages of rule `last` are removed only if there are no others. Removes at most `limit` messages. Returns the number
    /// of removed messages, and whether the next message is spared. `all_bytes` and `emptied` are those of [`Log::enforce_budget`].
    pub fn empty_chunks(
        &mut self,
        bytes_max: usize,
        limit: usize,
        all_bytes: usize,
        now_s: u32,
        last_rule: u8,
        mut emptied: impl FnMut(u32, u8, u32),
    ) -> (usize, bool) {
        let mut removed = 0;
        while removed < limit && self.bytes_by_kind().chunks > bytes_max {
            if self.clear_orphans(1) > 0 {
                removed += 1;
                continue;
            }
            let Some(rule_number) = self.rule_of_oldest(last_rule) else {
                break;
            };
            for _ in 0..MESSAGES_PER_RUN {
                let oldest = self.lists.oldest(rule_number);
                if oldest == NONE || removed == limit || self.bytes_by_kind().chunks <= bytes_max {
                    break;
                }
                if self.is_spared(oldest, all_bytes) {
                    return (removed, true);
                }
                // The oldest entry of a rule is also the oldest of its chain.
                let chain = self.entries.get(oldest).chain;
                let topic = self.chains.get(chain).topic;
                let chain = self.drop_oldest(chain, now_s);
                if self.count(chain) == 0 {
                    emptied(topic, rule_number, chain);
                }
                removed += 1;
            }
        }
        (removed, false)
    }

    /// Removes a whole chain. A long one is orphaned and removed over several turns.
    pub fn clear(&mut self, chain: u32) {
        if chain == NONE {
            return;
        }
        if self.is_long(chain) {
            return self.orphan(chain);
        }
        loop {
            let oldest = self.chains.get(chain).oldest();
            if oldest == NONE {
                self.chains.remove(chain);
                return;
            }
            self.remove_entry(NONE, oldest, RemovalCause::Unneeded);
        }
    }

    /// Removes the chain of a topic that keeps no messages any more. Returns the last lost offset, or `None` if the topic's last message is
    /// the last lost one.
    pub fn discard(&mut self, mut chain: u32, now_s: u32) -> Option<u64> {
        if self.is_long(chain) && !self.may_expire(chain) {
            chain = self.lose_all(chain, now_s);
        }
        // If the rule keeps no messages, the chain has only messages that are kept for sessions.
        while self.count(chain) > 0 {
            chain = self.drop_oldest(chain, now_s);
        }
        let lost = self.last_lost_offset(chain);
        self.clear(chain);
        lost
    }

    /// Removes at most `limit` messages of a chain up to offset `until`, oldest first. They are lost, unless they have expired. Returns the chain or
    /// `NONE`, and the number of removed messages.
    pub fn drop_until(&mut self, mut chain: u32, until: u64, limit: u32, now_s: u32) -> (u32, u32) {
        if until == u64::MAX && limit == u32::MAX && self.is_long(chain) {
            let count = self.count(chain);
            return (self.lose_all(chain, now_s), count);
        }
        let mut removed = 0;
        while removed < limit && self.count(chain) > 0 {
            let oldest = self.chains.get(chain).oldest();
            if self.entries.get(oldest).offset > until {
                break;
            }
            chain = self.drop_oldest(chain, now_s);
            removed += 1;
        }
        (chain, removed)
    }

    /// Removes the oldest message of a chain with messages; returns the chain or `NONE`. The message is lost, unless it has expired.
    pub(super) fn drop_oldest(&mut self, chain: u32, now_s: u32) -> u32 {
        let oldest = self.chains.get(chain).oldest();
        if self.is_expired(oldest, now_s) {
            self.removal_counts.expired += 1;
            return self.remove_entry(NONE, oldest, RemovalCause::Unneeded);
        }
        self.remove_entry(NONE, oldest, RemovalCause::Lost)
    }

    /// Removes the message with this key from a chain that keeps latest values, if there is one.
    pub fn remove_key(&mut self, chain: u32, key: &[u8]) {
        if chain != NONE {
            self.supersede(chain, key);
        }
    }

    /// Removes the message with this key, if there is one.
    pub(super) fn supersede(&mut self, chain: u32, key: &[u8]) {
        if let Some(row) = self
            .keys
            .row_with_key(&self.entries, &self.blobs, chain, key)
        {
            let Key {
                entry,
                previous: before,
                ..
            } = *self.keys.get(row);
            self.removal_counts.superseded += 1;
            self.remove_entry(before, entry, RemovalCause::Unneeded);
        }
    }

    /// Removes an entry from its chain, in which it follows `before` (`NONE` if it is the oldest). Returns the chain, or `NONE` if the
    /// chain is removed too: because it was an orphan, or because even the topic's last message is lost.
    pub(super) fn remove_entry(&mut self, before: u32, id: u32, cause: RemovalCause) -> u32 {
        let chain = self.entries.get(id).chain;
        self.steps.add(1);
        let keeps_latest = self.chains.get(chain).keeps_latest;
        if keeps_latest {
            self.keys
                .remove(self.keys.row_of(&self.entries, &self.blobs, id));
        }
        let rule_number = self.chains.get(chain).rule;
        self.lists.remove(&mut self.entries, rule_number, id);
        let entry = self.entries.remove(id);
        if let Some(end_s) = entry.expires_at_s(&self.blobs) {
            self.expiries.remove(&(chain, end_s, id));
        }
        let row = self.chains.get_mut(chain);
        row.count -= 1;
        row.bytes -= occupied_bytes(entry.bytes()) as u32;
        let owner = entry.owner(self.blobs.get(entry.blob));
        self.counts.subtract(owner, occupied_bytes(entry.bytes()));
        self.blobs.remove(entry.blob);
        let is_retained = rule_number == self.lists.retained();
        let is_orphaned = row.topic == ORPHANED;
        if cause == RemovalCause::Lost && !is_retained && !is_orphaned {
            self.losses.add(row.topic, entry.previous, entry.offset);
        }
        if row.count == 0 {
            let is_lost = cause == RemovalCause::Lost;
            if is_orphaned {
                self.orphans.remove(&chain);
                self.counts.home.orphans.subtract(1);
            }
            if is_orphaned || is_lost && !row.newest_removed {
                self.chains.remove(chain);
                return NONE;
            }
            row.has_ttls = false;
            row.set_last_lost_offset(if is_lost {
                entry.offset
            } else {
                entry.previous
            });
            return chain;
        }
        if before == NONE {
            row.set_oldest(entry.next);
        } else {
            self.entries.get_mut(before).next = entry.next;
        }
        if entry.next == NONE {
            row.set_newest(before);
            row.newest_removed = true;
            return chain;
        }
        if cause == RemovalCause::Unneeded {
            self.entries.get_mut(entry.next).previous = entry.previous;
        }
        if keeps_latest {
            let after = self.keys.row_of(&self.entries, &self.blobs, entry.next);
            self.keys.get_mut(after).previous = before;
        }
        chain
    }

    /// Removes the oldest messages of a chain until the chain is within the limits of its rule. Stops at step `until`, after at least one removal.
    /// Never removes the newest message, whose frame has `frame_bytes`. Returns whether more must be removed.
    pub fn trim(
        &mut self,
        chain: u32,
        rule: &Rule,
        messages_max: u32,
        frame_bytes: usize,
        now_s: u32,
        until: u64,
    ) -> bool {
        while self.count(chain) > 1 {
            let row = self.chains.get(chain);
            let newest = row.newest();
            let newest_bytes = occupied_bytes(self.entries.get(newest).bytes());
            if !row.exceeds_limits(rule, messages_max, frame_bytes, newest_bytes) {
                return false;
            }
            if !self.drop_expired(chain, newest, now_s) {
                self.drop_oldest(chain, now_s);
            }
            if self.steps.count() >= until {
                return true;
            }
        }
        false
    }

    /// Restarts the search of [`Log::remove_unspared`].
    pub fn restart_search(&mut self) {
        self.lists.restart_search();
    }

    /// Searches the messages of a rule, oldest first, for one that is not spared, and removes the oldest message of its topic. Stops at step `until`.
    /// Each message is examined only once until [`Log::restart_search`]. So the search finds the messages of a client that holds far more than
    /// others, however many other clients there are. `all_bytes` and `emptied` are those of [`Log::enforce_budget`].
    pub fn remove_unspared(
        &mut self,
        rule_number: u8,
        all_bytes: usize,
        until: u64,
        now_s: u32,
        mut emptied: impl FnMut(u32, u8, u32),
    ) -> SearchOutcome {
        loop {
            let id = self.lists.next_searched(rule_number);
            if id == NONE {
                return SearchOutcome::NoneLeft;
            }
            self.steps.add(1);
            if self.is_spared(id, all_bytes) {
                self.lists.advance_search(&self.entries, rule_number);
                if self.steps.count() >= until {
                    return SearchOutcome::OutOfSteps;
                }
                continue;
            }
            let chain = self.entries.get(id).chain;
            let topic = self.chains.get(chain).topic;
            let chain = self.drop_oldest(chain, now_s);
            if self.count(chain) == 0 {
                emptied(topic, rule_number, chain);
            }
            return SearchOutcome::Removed;
        }
    }

    /// Whether a message is spared: another client holds far more of the budget `all_bytes` than the client that is charged for the message.
    fn is_spared(&self, id: u32, all_bytes: usize) -> bool {
        let entry = self.entries.get(id);
        let owner = entry.owner(self.blobs.get(entry.blob));
        self.counts.home.holdings.is_spared(owner, all_bytes)
    }

    /// The chain whose oldest message is removed next. Each chain's share is `share` bytes. `found` contains the result of the last call: the other
    /// lists are compared again only if one of them may have a more urgent chain now.
    fn victim(
        &self,
        share: usize,
        last_rule: u8,
        victim_list: &mut Option<VictimList>,
    ) -> Option<u32> {
        if let Some(VictimList {
            rule_number,
            others_urgency: others,
        }) = *victim_list
            && let Some((urgency, chain)) = self.most_urgent(rule_number, share)
            && others.is_none_or(|others| urgency > others)
        {
            return Some(chain);
        }
        let (mut most_urgent, mut second): (Option<(Urgency, u32)>, _) = (None, None);
        for rule_number in 0..=self.lists.retained() {
            if rule_number == last_rule && most_urgent.is_some() {
                continue;
            }
            let candidate = self.most_urgent(rule_number, share);
            let urgency = candidate.map(|(urgency, _)| urgency);
            let most = most_urgent.map(|(most, _)| most);
            if urgency > most {
                (most_urgent, second) = (candidate, most);
            } else {
                second = second.max(urgency);
            }
        }
        let ((_, _, Reverse(rule_number)), chain) = most_urgent?;
        *victim_list = Some(VictimList {
            rule_number,
            others_urgency: second,
        });
        Some(chain)
    }

    /// The most urgent of the chains to which the oldest entries of a list belong.
    fn most_urgent(&self, rule_number: u8, share: usize) -> Option<(Urgency, u32)> {
        let mut id = self.lists.oldest(rule_number);
        if id == NONE {
            return None;
        }
        self.steps.add(1);
        let mut best: Option<(Urgency, u32)> = None;
        for _ in 0..VICTIMS_COMPARED {
            if id == NONE {
                break;
            }
            let entry = self.entries.get(id);
            let excess_bytes = (self.chains.get(entry.chain).bytes as usize).saturating_sub(share);
            let urgency = (excess_bytes, Reverse(entry.time_s), Reverse(rule_number));
            if best.is_none_or(|(most, _)| urgency > most) {
                best = Some((urgency, entry.chain));
            }
            id = entry.younger;
        }
        best
    }

    /// The rule with the oldest message; `last` only if no other rule has messages.
    fn rule_of_oldest(&self, last_rule: u8) -> Option<u8> {
        let all = (0..=self.lists.retained())
            .map(|rule_number| (rule_number, self.lists.oldest(rule_number)));
        let all = all.filter(|(_, id)| *id != NONE);
        let age = |(rule_number, id): &(u8, u32)| {
            (*rule_number == last_rule, self.entries.get(*id).offset)
        };
        Some(all.min_by_key(age)?.0)
    }
}
