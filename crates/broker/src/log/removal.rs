//! Removal: what a limit takes, what a newer message of its key supersedes, and chains that go as a whole.
//!
//! Invariant: only the oldest entry of a chain is ever lost.

use core::cmp::Reverse;

use super::*;
use crate::log::entry::ORPHANED;

/// How many of the oldest entries of each rule are compared when the byte budget is spent, to find a topic that is far
/// over its share: one step, since they are the same ones each time.
const VICTIMS_COMPARED: usize = 16;

/// How early a chain of a list makes room: how far it is over its share, then the age of its message, then the list's number.
type Urgency = (usize, Reverse<u32>, Reverse<u8>);

/// The list in which a chain was found to make room, and the urgency of the most urgent chain of all others. Removing a message of
/// that list changes nothing in the others.
type Found = (u8, Option<Urgency>);

/// Messages of a rule that go at once, before the oldest of all rules are compared again.
const RUN: usize = 64;

/// How far the search for a message that may go has come.
pub enum Search {
    /// A message is removed.
    Removed,
    /// The steps are done.
    Spent,
    /// There is no such message.
    Ended,
}

/// Why an entry is removed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// Removed by a limit: a reader that has not seen it misses it.
    Lost,
    /// Superseded or expired: no reader misses it.
    Unneeded,
}

impl Log {
    /// Whether no further message may find a place, however few bytes are kept.
    pub fn is_full(&self) -> bool {
        self.blobs.is_full()
    }

    /// Whether it has messages of another rule than this one.
    pub fn has_besides(&self, number: u8) -> bool {
        let mut others = (0..=self.lists.retained()).filter(|other| *other != number);
        others.any(|other| self.lists.oldest(other) != NONE)
    }

    /// Removes messages until `budget_bytes` are kept at most: first those of orphaned chains, then the oldest of the topic that is
    /// furthest over its share, among topics with the oldest messages; messages of rule `last` only when there are no
    /// others. It ends early behind the step `until`, with one message removed at least; then the next call goes on. It ends also before a
    /// message that is spared among `all_bytes`, and says so: then [`remove_of_large`] goes on. `emptied` gets the topic and rule of each chain
    /// that has become empty, and the topic's chain from now on.
    pub fn enforce_budget(
        &mut self,
        (budget_bytes, until, all_bytes): (usize, u64, usize),
        now_s: u32,
        last: u8,
        mut emptied: impl FnMut(u32, u8, u32),
    ) -> bool {
        let share = budget_bytes / self.chains.len().max(1) as usize;
        let mut found = None;
        while self.bytes() > budget_bytes || self.blobs.is_full() {
            if self.clear_orphans(1) == 0 {
                let Some(chain) = victim(self, share, last, &mut found) else {
                    return false;
                };
                if is_spared(self, self.chains.get(chain).oldest(), all_bytes) {
                    return true;
                }
                let (topic, number) = (self.chains.get(chain).topic, self.chains.get(chain).rule);
                let chain = self.drop_oldest(chain, now_s);
                if self.count(chain) == 0 {
                    emptied(topic, number, chain);
                }
            }
            if self.steps.count() >= until && !self.blobs.is_full() {
                return false;
            }
        }
        false
    }

    /// Removes the oldest messages, of whatever topics, until its chunks have `bytes_max` at most: messages of rule `last` only when
    /// there are no others. Chunks are filled in the order of arrival, so that they come free in that order. Removes at most `limit`
    /// messages and returns how many, and whether it ended before a message that is spared among `all_bytes`; `emptied` as in
    /// [`enforce_budget`](Self::enforce_budget).
    pub fn empty_chunks(
        &mut self,
        (bytes_max, limit, all_bytes): (usize, usize, usize),
        now_s: u32,
        last: u8,
        mut emptied: impl FnMut(u32, u8, u32),
    ) -> (usize, bool) {
        let mut gone = 0;
        while gone < limit && self.held().chunks > bytes_max {
            if self.clear_orphans(1) > 0 {
                gone += 1;
                continue;
            }
            let Some(number) = rule_of_oldest(self, last) else {
                break;
            };
            for _ in 0..RUN {
                let oldest = self.lists.oldest(number);
                if oldest == NONE || gone == limit || self.held().chunks <= bytes_max {
                    break;
                }
                if is_spared(self, oldest, all_bytes) {
                    return (gone, true);
                }
                // The oldest entry of a rule is the oldest of its chain.
                let chain = self.entries.get(oldest).chain;
                let topic = self.chains.get(chain).topic;
                let chain = self.drop_oldest(chain, now_s);
                if self.count(chain) == 0 {
                    emptied(topic, number, chain);
                }
                gone += 1;
            }
        }
        (gone, false)
    }

    /// Removes a whole chain; a long one is orphaned and goes bit by bit.
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
            self.remove_entry(NONE, oldest, Cause::Unneeded);
        }
    }

    /// Removes a chain whose topic goes on without a log; returns the last lost offset, unless all up to the topic's
    /// last message is lost.
    pub fn discard(&mut self, mut chain: u32, now_s: u32) -> Option<u64> {
        if self.is_long(chain) && !self.may_expire(chain) {
            chain = self.lose_all(chain, now_s);
        }
        // A topic whose rule keeps none has at most the messages that are kept for sessions.
        while self.count(chain) > 0 {
            chain = self.drop_oldest(chain, now_s);
        }
        let lost = self.reaches_back_to(chain);
        self.clear(chain);
        lost
    }

    /// Removes the messages of a chain up to this offset, oldest first and at most `most`, as a limit would. Returns
    /// the chain or `NONE`, and how many were removed.
    pub fn drop_until(&mut self, mut chain: u32, until: u64, most: u32, now_s: u32) -> (u32, u32) {
        if until == u64::MAX && most == u32::MAX && self.is_long(chain) {
            let count = self.count(chain);
            return (self.lose_all(chain, now_s), count);
        }
        let mut dropped = 0;
        while dropped < most && self.count(chain) > 0 {
            let oldest = self.chains.get(chain).oldest();
            if self.entries.get(oldest).offset > until {
                break;
            }
            chain = self.drop_oldest(chain, now_s);
            dropped += 1;
        }
        (chain, dropped)
    }

    /// Removes the oldest message of a chain that has some; returns the chain or `NONE`.
    pub(super) fn drop_oldest(&mut self, chain: u32, now_s: u32) -> u32 {
        let oldest = self.chains.get(chain).oldest();
        if self.is_expired(oldest, now_s) {
            self.unneeded.expired += 1;
            return self.remove_entry(NONE, oldest, Cause::Unneeded);
        }
        self.remove_entry(NONE, oldest, Cause::Lost)
    }

    /// Removes the message with this key from a chain that keeps the latest, if there is one.
    pub fn remove_key(&mut self, chain: u32, key: &[u8]) {
        if chain != NONE {
            self.supersede(chain, key);
        }
    }

    /// Removes the message with this key, if there is one.
    pub(super) fn supersede(&mut self, chain: u32, key: &[u8]) {
        if let Some(row) = self.keys.row(&self.entries, &self.blobs, chain, key) {
            let Key { entry, before, .. } = *self.keys.get(row);
            self.unneeded.superseded += 1;
            self.remove_entry(before, entry, Cause::Unneeded);
        }
    }

    /// Removes the entry behind `before` (`NONE`: the oldest) from its chain; returns the chain, or `NONE` when all up
    /// to the topic's last message is lost.
    pub(super) fn remove_entry(&mut self, before: u32, id: u32, cause: Cause) -> u32 {
        let chain = self.entries.get(id).chain;
        self.steps.add(1);
        let latest = self.chains.get(chain).latest;
        if latest {
            self.keys
                .remove(self.keys.row_of(&self.entries, &self.blobs, id));
        }
        let number = self.chains.get(chain).rule;
        self.lists.remove(&mut self.entries, number, id);
        let entry = self.entries.remove(id);
        if let Some(end_s) = entry.end_s(&self.blobs) {
            self.expiries.remove(&(chain, end_s, id));
        }
        let row = self.chains.get_mut(chain);
        row.count -= 1;
        row.bytes -= occupied_bytes(entry.bytes()) as u32;
        let owner = entry.owner(self.blobs.get(entry.blob));
        self.counts.subtract(owner, occupied_bytes(entry.bytes()));
        self.blobs.remove(entry.blob);
        let retained = number == self.lists.retained();
        let orphaned = row.topic == ORPHANED;
        if cause == Cause::Lost && !retained && !orphaned {
            self.losses.add(row.topic, entry.previous, entry.offset);
        }
        if row.count == 0 {
            let lost = cause == Cause::Lost;
            if orphaned {
                self.orphaned.remove(&chain);
                self.counts.home.orphans.subtract(1);
            }
            if orphaned || lost && !row.newest_removed {
                self.chains.remove(chain);
                return NONE;
            }
            row.has_ttls = false;
            row.set_lost(if lost { entry.offset } else { entry.previous });
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
        if cause == Cause::Unneeded {
            self.entries.get_mut(entry.next).previous = entry.previous;
        }
        if latest {
            let after = self.keys.row_of(&self.entries, &self.blobs, entry.next);
            self.keys.get_mut(after).before = before;
        }
        chain
    }
}

/// Removes the oldest messages of a chain that is past the limits of its rule, until it is within them or the step `until` is done: one at
/// least, and never the newest, whose frame has `frame_bytes`. Returns whether more must go.
pub fn trim(
    log: &mut Log,
    chain: u32,
    rule: &Rule,
    (most, frame_bytes): (u32, usize),
    now_s: u32,
    until: u64,
) -> bool {
    while log.count(chain) > 1 {
        let row = log.chains.get(chain);
        let newest = row.newest();
        let newest_bytes = occupied_bytes(log.entries.get(newest).bytes());
        if !row.exceeds_limits(rule, most, frame_bytes, newest_bytes) {
            return false;
        }
        if !log.drop_expired(chain, newest, now_s) {
            log.drop_oldest(chain, now_s);
        }
        if log.steps.count() >= until {
            return true;
        }
    }
    false
}

/// Whether a message stays for now, since another client has far more of `all_bytes` than the one that it is counted for.
fn is_spared(log: &Log, id: u32, all_bytes: usize) -> bool {
    let entry = log.entries.get(id);
    let owner = entry.owner(log.blobs.get(entry.blob));
    log.counts.home.holdings.spares(owner, all_bytes)
}

/// The search for messages that are not spared begins anew.
pub fn search_again(log: &mut Log) {
    log.lists.search_again();
}

/// Goes on through the messages of a rule, the oldest first, to one that is not spared among `all_bytes`, and removes the oldest message of
/// its topic; no further than the step `until`. Each message is passed once, until [`search_again`]: those of the client that has far
/// more than others lie ahead, however many others there are. `emptied` as in [`Log::enforce_budget`].
pub fn remove_of_large(
    log: &mut Log,
    number: u8,
    (all_bytes, until): (usize, u64),
    now_s: u32,
    mut emptied: impl FnMut(u32, u8, u32),
) -> Search {
    loop {
        let id = log.lists.hand(number);
        if id == NONE {
            return Search::Ended;
        }
        log.steps.add(1);
        if is_spared(log, id, all_bytes) {
            log.lists.pass(&log.entries, number);
            if log.steps.count() >= until {
                return Search::Spent;
            }
            continue;
        }
        let chain = log.entries.get(id).chain;
        let topic = log.chains.get(chain).topic;
        let chain = log.drop_oldest(chain, now_s);
        if log.count(chain) == 0 {
            emptied(topic, number, chain);
        }
        return Search::Removed;
    }
}

/// The chain that makes room next, where each has this share. Other lists are compared again only when the list that was found
/// last may have no more urgent one.
fn victim(log: &Log, share: usize, last: u8, found: &mut Option<Found>) -> Option<u32> {
    if let Some((number, others)) = *found
        && let Some((urgency, chain)) = most_urgent(log, number, share)
        && others.is_none_or(|others| urgency > others)
    {
        return Some(chain);
    }
    let (mut best, mut second): (Option<(Urgency, u32)>, _) = (None, None);
    for number in 0..=log.lists.retained() {
        if number == last && best.is_some() {
            continue;
        }
        let of_list = most_urgent(log, number, share);
        let urgency = of_list.map(|(urgency, _)| urgency);
        let most = best.map(|(most, _)| most);
        if urgency > most {
            (best, second) = (of_list, most);
        } else {
            second = second.max(urgency);
        }
    }
    let ((_, _, Reverse(number)), chain) = best?;
    *found = Some((number, second));
    Some(chain)
}

/// The most urgent chain among those of the oldest entries of a list.
fn most_urgent(log: &Log, number: u8, share: usize) -> Option<(Urgency, u32)> {
    let mut id = log.lists.oldest(number);
    if id == NONE {
        return None;
    }
    log.steps.add(1);
    let mut best: Option<(Urgency, u32)> = None;
    for _ in 0..VICTIMS_COMPARED {
        if id == NONE {
            break;
        }
        let entry = log.entries.get(id);
        let over = (log.chains.get(entry.chain).bytes as usize).saturating_sub(share);
        let urgency = (over, Reverse(entry.time_s), Reverse(number));
        if best.is_none_or(|(most, _)| urgency > most) {
            best = Some((urgency, entry.chain));
        }
        id = entry.younger;
    }
    best
}

/// The rule with the oldest message, which is `last` only when no other has any.
fn rule_of_oldest(log: &Log, last: u8) -> Option<u8> {
    let all = (0..=log.lists.retained()).map(|number| (number, log.lists.oldest(number)));
    let all = all.filter(|(_, id)| *id != NONE);
    let age = |(number, id): &(u8, u32)| (*number == last, log.entries.get(*id).offset);
    Some(all.min_by_key(age)?.0)
}
