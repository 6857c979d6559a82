//! Followers: connections that are told which topics have subscribers.
//!
//! A topic *has interest* from its first subscriber on until it has had none for `interest.debounce_s`.
//! Followers are told the changes of that and of nothing else, so that the snapshot and what comes after it
//! speak of the same thing.
//!
//! The snapshot is a cursor over the table of topics, and each page looks at a bounded number of rows.
//! Invariant: a follower has been told of exactly those topics with interest whose rows lie before its cursor.
//! A row before the cursor that changes is told at once; one behind it is not, since the cursor will find it as
//! it is by then. Rows never move, and interest ends before its row is freed: so whatever topic is made or
//! emptied while a cursor walks is told once, on whichever side it lies.
//!
//! Nothing here touches the turn's frames: a subscriber may leave amid a delivery, while they are shared. News waits
//! with the follower until the shard asks for it, at most one turn. Without followers all this is one look at an empty
//! list.

use super::Home;
use crate::base::ids::ShardId;
use crate::base::time::Now;
use crate::mail::ReplyTo;
use crate::mail::lanes::Lanes;
use crate::store::slab::NONE;

/// Ends of interest told at once, each to all followers: when a crowd leaves, they hear of it over some turns.
const ENDS_AT_ONCE: usize = 64;

impl Home {
    /// A connection wants to follow; the first page of the snapshot is the answer.
    pub fn follow(&mut self, shard: ShardId, to: ReplyTo, filter: &[u8]) {
        self.followers.add(shard, to, filter);
        self.follow_on(shard, to);
    }

    /// The next page of a snapshot that is not whole.
    pub fn follow_on(&mut self, shard: ShardId, to: ReplyTo) {
        match self.must_queue() {
            true => self.owe_interest(shard, to),
            false => self.next_page(shard, to),
        }
    }

    /// A follower is gone.
    pub fn unfollow(&mut self, shard: ShardId, to: ReplyTo) {
        self.followers.remove(shard, to);
    }

    /// The next page, unless the follower has gone meanwhile.
    pub(super) fn next_page(&mut self, shard: ShardId, to: ReplyTo) {
        let limits = (
            self.rows.end(),
            self.pace.interest_rows,
            self.pace.page_bytes,
        );
        let (rows, names, steps) = (&self.rows, &self.names, &self.steps);
        let is_watched = |id| {
            steps.add(1);
            rows.get(id).carrier != NONE
        };
        let name_of = |id| names.get(rows.get(id).name);
        self.followers
            .next_page((shard, to), limits, is_watched, name_of);
    }

    /// A topic has its first subscriber.
    pub(super) fn interest_begins(&mut self, id: u32) {
        if !self.followers.stop_lingering(id) {
            let name = self.names.get(self.rows.get(id).name);
            self.followers.tell(id, name, true);
        }
    }

    /// A topic has no subscriber any more.
    pub(super) fn interest_pauses(&mut self, id: u32, now: Now) {
        if !self.followers.linger(id, now) {
            let name = self.names.get(self.rows.get(id).name);
            self.followers.tell(id, name, false);
        }
    }

    /// Ends a topic's interest that outlived its subscribers: its time is over, or the topic is about to be forgotten and its row
    /// may be given to another.
    pub(super) fn interest_is_forgotten(&mut self, id: u32) {
        if self.followers.stop_lingering(id) {
            let name = self.names.get(self.rows.get(id).name);
            self.followers.tell(id, name, false);
        }
    }

    /// Whether there is anything to tell followers.
    pub fn has_news(&self) -> bool {
        self.followers.has_news()
    }

    /// Tells followers what is new; says whether more is due already.
    pub fn tell_followers(&mut self, now: Now, lanes: &mut Lanes) -> bool {
        if self.followers.is_empty() {
            return false;
        }
        let more = self.end_interest(now);
        self.followers.tell_news(lanes);
        more
    }

    fn end_interest(&mut self, now: Now) -> bool {
        for _ in 0..ENDS_AT_ONCE {
            self.steps.add(1 + self.followers.len() as usize);
            match self.followers.next_end(now) {
                Some(id) => self.interest_is_forgotten(id),
                None => return false,
            }
        }
        true
    }
}

#[cfg(test)]
mod tests;
