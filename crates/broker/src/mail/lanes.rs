//! The outgoing mail of a turn: one lane per peer, the shard itself included, and the frames that all tells of the turn
//! share.
//!
//! Invariants: within a turn the shard alone holds `frames`; once mailed, they are reused only after the last receiver
//! has dropped them.

#[cfg(test)]
mod tests;

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::base::ids::{ShardId, Ticket};
use crate::base::pace::Pace;
use crate::base::planted::{self, Fault};
use crate::budget::admission::valve::{Heavy, Valve};
use crate::mail::orders::Report;
use crate::mail::{Ask, FRAMES_KEPT_BYTES, Frames, Mail, Record, ReplyTo, Tell};

/// Room for asks of a shard to itself that is kept from turn to turn: for so many, and their bytes.
const ASKS_KEPT: usize = 1 << 11;
const ASK_BYTES_KEPT: usize = 64 << 10;

/// Mail to one peer, and asks from it.
#[derive(Default)]
pub struct Lane {
    /// Asks to the peer as a home.
    pub asks: Vec<Ask>,
    /// The bytes that the asks' spans refer to.
    pub bytes: Vec<u8>,
    /// How many of the asks are publishes.
    pub publishes: usize,
    /// Tells to the peer as a carrier.
    pub tells: Vec<Tell>,
    /// The weight of the peer's asks that were handled, while their credit was not given back yet.
    pub credit_bytes: usize,
    /// The weight of asks sent to the peer, until their credit comes back.
    pub under_way_bytes: usize,
    /// The peer's asks that wait for a later turn, in order. Its publishes are within the credit.
    pub waiting: VecDeque<WaitingAsks>,
}

/// The unhandled asks of one mail.
pub struct WaitingAsks {
    /// Their weight against the credit of their sender.
    pub weight: usize,
    /// The asks.
    pub asks: VecDeque<Ask>,
    /// The bytes that their spans refer to.
    pub bytes: Vec<u8>,
    /// When the messages that they publish were read.
    pub stamp: u64,
}

/// Parties with little under way go on while fewer than so many times as many turns are under way as those with much wait for.
const TURNS_OF_LIGHT: usize = 4;
/// Turns of all carriers' visits which messages for members of groups may fill.
const TURNS_OF_MEMBERS: usize = 2;
/// Large pages are under way while they have fewer bytes than so many full pages. A carrier turns a megabyte into the forms of its protocols in 1
/// to 6 ms, and the tells of other clients wait behind it.
const FULL_PAGES: usize = 8;

/// All lanes of a shard.
pub struct Lanes {
    /// The shard's own number.
    pub me: ShardId,
    /// One for each shard.
    pub to: Vec<Lane>,
    frames: Arc<Frames>,
    under_way: Vec<Arc<Frames>>,
    /// This turn's stamp.
    pub stamp: u64,
    /// When the message being published was read.
    pub read_at: u64,
    /// The lane whose asks go on next.
    pub next: usize,
    /// Who waits until the carriers of this home have caught up.
    heavy: Heavy,
    /// Answers to the operator that are due.
    pub reports: Vec<(Ticket, Report)>,
    /// How many messages of the turns under way members of groups are told; more than that, where carriers have let go of some turns.
    group_messages: usize,
    /// Bytes of the large pages of these turns, likewise.
    large_pages: usize,
    /// How much is done at once.
    pub pace: Pace,
}

impl Lanes {
    /// Empty lanes to `shards` shards.
    pub fn new(me: ShardId, shards: usize) -> Self {
        Lanes {
            me,
            to: (0..shards).map(|_| Lane::default()).collect(),
            frames: Arc::default(),
            under_way: Vec::new(),
            stamp: 0,
            read_at: 0,
            next: 0,
            heavy: Heavy::default(),
            reports: Vec::new(),
            group_messages: 0,
            large_pages: 0,
            pace: Pace::default(),
        }
    }

    /// The weight of so many publishes, and of asks with these bytes in all, against the credit of their sender.
    pub fn weight(&self, publishes: usize, bytes: usize) -> usize {
        publishes * self.pace.ask_bytes + bytes
    }

    /// Whether asks that weigh more than this are under way to a peer.
    pub fn exceeds(&self, limit: usize) -> bool {
        self.to.iter().any(|lane| {
            lane.under_way_bytes + self.weight(lane.publishes, lane.bytes.len()) > limit
        })
    }

    /// The frames of this turn.
    #[inline]
    pub fn frames(&mut self) -> &mut Frames {
        Arc::get_mut(&mut self.frames).expect("a turn's frames are shared only when it ends")
    }

    /// Drops the messages of this turn if nobody is told of them, so that they do not pile up within a turn.
    pub fn drop_unused_frames(&mut self) {
        if self.to.iter().all(|lane| lane.tells.is_empty()) {
            self.frames().clear();
        }
    }

    /// Adds a tell for one carrier.
    #[inline]
    pub fn tell(&mut self, to: ShardId, tell: Tell) {
        self.to[to as usize].tells.push(tell);
    }

    /// Tells a member of a group a message of this turn.
    pub fn tell_group_member(
        &mut self,
        (shard, to): (ShardId, ReplyTo),
        group: u64,
        name: &[u8],
        record: Record,
    ) {
        let frames = self.frames();
        frames.group_messages += 1;
        let name = frames.push_name(name);
        let tell = Tell::Shared {
            to,
            group,
            name,
            record,
        };
        self.tell(shard, tell);
    }

    /// Whether members of groups may be told more messages: no more are under way than carriers deliver in a few turns. Else those
    /// messages would hold so many turns that publishers had to wait.
    pub fn may_tell_group_members(&mut self) -> bool {
        let most = TURNS_OF_MEMBERS * self.pace.visits_per_turn as usize * self.to.len();
        if self.group_messages + self.frames.group_messages >= most {
            self.group_messages = self.held().map(|frames| frames.group_messages).sum();
        }
        self.group_messages + self.frames.group_messages < most
    }

    /// Whether another page that begins with a large message may be told.
    pub fn may_tell_large(&mut self) -> bool {
        let most = FULL_PAGES * self.pace.page_bytes;
        if self.large_pages + self.frames.large_pages >= most {
            self.large_pages = self.held().map(|frames| frames.large_pages).sum();
        }
        self.large_pages + self.frames.large_pages < most
    }

    /// This turn tells a page whose first message has so many bytes.
    pub fn count_page(&mut self, bytes: usize) {
        if bytes > self.pace.page_bytes {
            self.frames().large_pages += bytes;
        }
    }

    /// The turns whose frames a receiver still holds.
    fn held(&self) -> impl Iterator<Item = &Frames> {
        let held = |frames: &&Arc<Frames>| Arc::strong_count(frames) > 1;
        self.under_way.iter().filter(held).map(|frames| &**frames)
    }

    /// Number of asks that wait for a later turn.
    pub fn asks_waiting(&self) -> usize {
        let waiting = self.to.iter().flat_map(|lane| &lane.waiting);
        waiting.map(|asked| asked.asks.len()).sum()
    }

    /// Whether asks wait for a later turn, or the shard has asked itself something.
    pub fn has_asks(&self) -> bool {
        self.has_own_asks() || self.to.iter().any(|lane| !lane.waiting.is_empty())
    }

    /// Takes the next waiting asks, lane by lane.
    pub fn next_waiting_asks(&mut self) -> Option<(ShardId, WaitingAsks)> {
        let count = self.to.len();
        for n in 0..count {
            let from = (self.next + n) % count;
            if let Some(asked) = self.to[from].waiting.pop_front() {
                self.next = (from + 1) % count;
                return Some((from as ShardId, asked));
            }
        }
        None
    }

    /// Takes what the shard asks itself.
    pub fn take_own_asks(&mut self) -> Option<WaitingAsks> {
        let lane = &mut self.to[self.me as usize];
        if lane.asks.is_empty() {
            return None;
        }
        let (asks, bytes) = (
            core::mem::take(&mut lane.asks),
            core::mem::take(&mut lane.bytes),
        );
        let weight = core::mem::take(&mut lane.publishes) * self.pace.ask_bytes + bytes.len();
        lane.under_way_bytes += weight;
        Some(WaitingAsks {
            weight,
            asks: asks.into(),
            bytes,
            stamp: self.stamp,
        })
    }

    /// Takes carried-out asks of the shard to itself back for the next ones.
    pub fn recycle_asks(&mut self, mut asked: WaitingAsks) {
        let own = &mut self.to[self.me as usize];
        let kept = asked.asks.capacity() <= ASKS_KEPT && asked.bytes.capacity() <= ASK_BYTES_KEPT;
        if kept && own.asks.is_empty() {
            asked.bytes.clear();
            (own.asks, own.bytes) = (asked.asks.into(), asked.bytes);
        }
    }

    /// Whether the shard has asked itself something that is not carried out yet.
    #[inline]
    pub fn has_own_asks(&self) -> bool {
        let own = &self.to[self.me as usize];
        !(own.asks.is_empty() && own.waiting.is_empty())
    }

    /// Whether the shard has tells for itself.
    pub fn has_own_tells(&self) -> bool {
        !self.to[self.me as usize].tells.is_empty()
    }

    /// Takes the shard's tells for itself, with their frames.
    pub fn take_own_tells(&mut self) -> Option<(Vec<Tell>, Arc<Frames>)> {
        let me = self.me as usize;
        if self.to[me].tells.is_empty() {
            return None;
        }
        Some((core::mem::take(&mut self.to[me].tells), self.frames.clone()))
    }

    /// Takes an emptied list of tells back for the next turn.
    pub fn recycle_tells(&mut self, mut tells: Vec<Tell>) {
        let own = &mut self.to[self.me as usize].tells;
        if own.capacity() == 0 && tells.capacity() <= 1 << 14 {
            tells.clear();
            *own = tells;
        }
    }

    /// Hands every lane's mail to `post` and prepares the frames for the next turn.
    pub fn flush(&mut self, mut post: impl FnMut(ShardId, Mail)) {
        for id in 0..self.to.len() {
            let lane = &mut self.to[id];
            if id == self.me as usize {
                lane.under_way_bytes -= core::mem::take(&mut lane.credit_bytes);
                continue;
            }
            let credit_bytes = core::mem::take(&mut lane.credit_bytes);
            if lane.asks.is_empty() && lane.tells.is_empty() && credit_bytes == 0 {
                continue;
            }
            let frames = (!lane.tells.is_empty()).then(|| self.frames.clone());
            let publishes = core::mem::take(&mut lane.publishes);
            let weight = publishes * self.pace.ask_bytes + lane.bytes.len();
            lane.under_way_bytes += weight;
            post(
                id as ShardId,
                Mail {
                    from: self.me,
                    asks: core::mem::take(&mut lane.asks),
                    bytes: core::mem::take(&mut lane.bytes),
                    weight,
                    tells: core::mem::take(&mut lane.tells),
                    frames,
                    credit_bytes,
                    stamp: self.stamp,
                },
            );
        }
        // Large frames that no receiver holds are freed, not kept for another turn.
        self.under_way.retain(|frames| {
            Arc::strong_count(frames) > 1 || frames.own_bytes() <= FRAMES_KEPT_BYTES
        });
        let held = Arc::get_mut(&mut self.frames).is_none();
        if held {
            let next = self.reclaim().unwrap_or_default();
            let sent = core::mem::replace(&mut self.frames, next);
            self.group_messages += sent.group_messages;
            self.large_pages += sent.large_pages;
            self.under_way.push(sent);
        } else {
            self.frames().clear();
        }
    }

    /// Frames that all receivers have dropped, to be reused; any further ones are freed.
    fn reclaim(&mut self) -> Option<Arc<Frames>> {
        let mut free = None;
        self.under_way
            .retain_mut(|frames| match Arc::get_mut(frames) {
                Some(own) if free.is_none() => {
                    own.clear();
                    free = Some(frames.clone());
                    false
                }
                Some(_) => false,
                None => true,
            });
        free
    }

    /// Bytes of the turns that receivers still hold, of waiting asks, and of this turn beyond what a shard always
    /// keeps.
    pub fn own_bytes(&self) -> usize {
        let held = self.held().map(Frames::own_bytes).sum::<usize>();
        let waiting = self.to.iter().flat_map(|lane| &lane.waiting);
        let asked =
            waiting.map(|asked| asked.bytes.capacity() + asked.asks.len() * size_of::<Ask>());
        self.frames.own_bytes().saturating_sub(FRAMES_KEPT_BYTES) + held + asked.sum::<usize>()
    }

    /// Number of turns whose frames a receiver still holds.
    pub fn turns_held(&self) -> usize {
        self.held().count()
    }

    /// Stops who has much under way while carriers are behind, and lets the others pass.
    #[inline]
    pub fn update_valve(&mut self, valve: &Valve) {
        if self.under_way.len() < self.pace.turns_under_way && !self.is_behind() {
            return;
        }
        let heavy = self.find_heavy();
        valve.change(&self.heavy, &heavy);
        self.heavy = heavy;
    }

    /// Whether somebody waits for the carriers of this home. No event announces that they have caught up.
    pub fn is_behind(&self) -> bool {
        self.heavy.is_any()
    }

    fn find_heavy(&mut self) -> Heavy {
        let most = self.pace.turns_under_way;
        if self.under_way.len() < most || planted::is(Fault::NoCredit) {
            return Heavy::default();
        }
        self.under_way
            .retain_mut(|frames| Arc::get_mut(frames).is_none());
        match self.under_way.len() {
            held if held < most => Heavy::default(),
            held if held >= TURNS_OF_LIGHT * most => Heavy::ALL,
            _ => Heavy::of(self.under_way.iter().map(|turn| &turn.weights)),
        }
    }
}
