//! The outgoing mail of a turn (a pass of the shard's loop): a *lane* (a queue of mail) for each shard, itself included, and the frames
//! that all tells of the turn share. *Asks* are requests to a home, the part of a shard that keeps topics. *Tells* are messages and
//! answers of a home to a *carrier*, a shard with connections.
//!
//! Invariants: during a turn only this shard refers to `frames`. Frames that were mailed are reused only when the last receiver has dropped
//! them.
//!
//! A *party* is an address or a user, and gets a fair share of the work.

#[cfg(test)]
mod tests;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::base::ids::{ShardId, Ticket};
use crate::base::planted::{self, Fault};
use crate::base::turn_limits::TurnLimits;
use crate::budget::admission::valve::{StoppedGroups, Valve};
use crate::mail::orders::Report;
use crate::mail::presence::PresencePage;
use crate::mail::{Ask, FRAMES_KEPT_BYTES, Frames, Mail, Record, ReplyTo, Tell};

/// Buffers for asks of a shard to itself are kept for reuse if they have room for at most this many asks and `ASK_BYTES_KEPT` bytes.
const ASKS_KEPT: usize = 1 << 11;
const ASK_BYTES_KEPT: usize = 64 << 10;

/// The mail to one shard, and the waiting asks from it.
#[derive(Default)]
pub struct Lane {
    /// Asks to the peer as a home.
    pub asks: Vec<Ask>,
    /// The bytes that the asks' spans refer to.
    pub bytes: Vec<u8>,
    /// The number of publishes among the asks.
    pub publishes: usize,
    /// Tells to the peer as a carrier.
    pub tells: Vec<Tell>,
    /// The weight of the peer's asks that are handled, and whose credit this shard has not returned to the peer yet.
    pub credit_bytes: usize,
    /// The weight of the asks to the peer whose credit the peer has not returned yet.
    pub in_flight_bytes: usize,
    /// The peer's asks that wait for a later turn, in order. Credit bounds the publishes among them.
    pub waiting: VecDeque<WaitingAsks>,
}

/// The asks of one mail that are not handled yet.
pub struct WaitingAsks {
    /// The bytes of the sender's credit that the asks use.
    pub weight: usize,
    /// The asks.
    pub asks: VecDeque<Ask>,
    /// The bytes that the asks' spans refer to.
    pub bytes: Vec<u8>,
    /// When the sender read the messages that the asks publish.
    pub stamp: u64,
}

const NS_PER_S: u64 = 1_000_000_000;
/// With `backpressure_turns` turns in flight, the parties that caused most of the work must wait. With this many times as many turns in
/// flight, all parties must wait.
const ALL_WAIT_FACTOR: usize = 4;
/// The messages in flight to members of shared subscriptions are limited to the number that all carriers deliver in this many turns.
const GROUP_TURNS: usize = 2;
/// A large page (a page whose first message exceeds the page size) may be sent while the large pages in flight have fewer bytes than this
/// many full pages. A carrier needs 1 to 6 ms to encode a megabyte for its protocols, and the tells of other clients wait meanwhile.
const LARGE_PAGES_MAX: usize = 8;

/// Pages of members are sent to watchers while such pages in flight have fewer bytes than this many full pages.
const MEMBER_PAGES_MAX: usize = 64;

/// All lanes of a shard.
pub struct Lanes {
    /// The shard's own number.
    pub me: ShardId,
    /// One lane for each shard.
    pub to: Vec<Lane>,
    /// The frames of this turn.
    frames: Arc<Frames>,
    /// The frames of earlier turns, which receivers may still refer to.
    sent_frames: Vec<Arc<Frames>>,
    /// This turn's stamp.
    pub stamp: u64,
    /// When the message of the present publish was read: the stamp of the turn that sent the ask.
    pub read_at: u64,
    /// The lane whose waiting asks are handled next.
    pub next: usize,
    /// The parties that must wait until the carriers of this home have caught up.
    stopped: StoppedGroups,
    /// Reports to send to the operator.
    pub reports: Vec<(Ticket, Report)>,
    /// An upper bound of the messages for members of shared subscriptions in the turns in flight. Turns that carriers have finished are
    /// subtracted later.
    group_messages: usize,
    /// An upper bound of the bytes of the large pages in the turns in flight.
    large_page_bytes: usize,
    /// The limits of a turn's work.
    pub turn_limits: TurnLimits,
}

impl Lanes {
    /// Empty lanes to `shards` shards.
    pub fn new(me: ShardId, shards: usize) -> Self {
        Lanes {
            me,
            to: (0..shards).map(|_| Lane::default()).collect(),
            frames: Arc::default(),
            sent_frames: Vec::new(),
            stamp: 0,
            read_at: 0,
            next: 0,
            stopped: StoppedGroups::default(),
            reports: Vec::new(),
            group_messages: 0,
            large_page_bytes: 0,
            turn_limits: TurnLimits::default(),
        }
    }

    /// The credit that asks with `publishes` publishes and `bytes` bytes use.
    pub fn weight(&self, publishes: usize, bytes: usize) -> usize {
        publishes * self.turn_limits.publish_credit_bytes + bytes
    }

    /// Whether the asks to some peer use more credit than `limit`.
    #[inline]
    pub fn exceeds_credit(&self, limit: usize) -> bool {
        self.to.iter().any(|lane| {
            lane.in_flight_bytes + self.weight(lane.publishes, lane.bytes.len()) > limit
        })
    }

    /// The frames of this turn.
    #[inline]
    pub fn frames(&mut self) -> &mut Frames {
        Arc::get_mut(&mut self.frames).expect("a turn's frames are shared only when it ends")
    }

    /// Drops the messages of this turn if no tell refers to them, so that they do not accumulate.
    pub fn drop_unused_frames(&mut self) {
        if self.to.iter().all(|lane| lane.tells.is_empty()) {
            self.frames().clear();
        }
    }

    /// Adds a tell to one carrier.
    #[inline]
    pub fn tell(&mut self, to: ShardId, tell: Tell) {
        self.to[to as usize].tells.push(tell);
    }

    /// Sends a message of this turn to a member of a shared subscription.
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

    /// Whether more messages may be sent to members of shared subscriptions. Their number in flight is limited ([`GROUP_TURNS`]), because
    /// with too many turns in flight publishers would have to wait.
    pub fn may_tell_group_members(&mut self) -> bool {
        let messages_max = GROUP_TURNS * self.turn_limits.visits_per_turn as usize * self.to.len();
        if self.group_messages + self.frames.group_messages >= messages_max {
            self.group_messages = self
                .frames_in_use()
                .map(|frames| frames.group_messages)
                .sum();
        }
        self.group_messages + self.frames.group_messages < messages_max
    }

    /// Whether another page that begins with a large message may be sent.
    pub fn may_tell_large(&mut self) -> bool {
        let bytes_max = LARGE_PAGES_MAX * self.turn_limits.page_bytes;
        if self.large_page_bytes + self.frames.large_page_bytes >= bytes_max {
            self.large_page_bytes = self
                .frames_in_use()
                .map(|frames| frames.large_page_bytes)
                .sum();
        }
        self.large_page_bytes + self.frames.large_page_bytes < bytes_max
    }

    /// Sends a page of members to a reader or a watcher.
    pub fn tell_members(&mut self, shard: ShardId, to: ReplyTo, page: PresencePage) {
        self.frames().member_bytes += page.changes.len();
        self.tell(shard, Tell::Presence(to, Box::new(page)));
    }

    /// Whether more pages of members may be sent to watchers. Such pages in flight are bounded, as large pages are.
    pub fn may_tell_members(&mut self) -> bool {
        let bytes_max = MEMBER_PAGES_MAX * self.turn_limits.page_bytes;
        let own_bytes = self.frames.member_bytes;
        own_bytes < bytes_max
            && own_bytes
                + self
                    .frames_in_use()
                    .map(|frames| frames.member_bytes)
                    .sum::<usize>()
                < bytes_max
    }

    /// Counts a page of this turn whose first message has `bytes`.
    pub fn count_page(&mut self, bytes: usize) {
        if bytes > self.turn_limits.page_bytes {
            self.frames().large_page_bytes += bytes;
        }
    }

    /// The frames of earlier turns that a receiver still refers to.
    fn frames_in_use(&self) -> impl Iterator<Item = &Frames> {
        let is_in_use = |frames: &&Arc<Frames>| Arc::strong_count(frames) > 1;
        self.sent_frames
            .iter()
            .filter(is_in_use)
            .map(|frames| &**frames)
    }

    /// The number of asks that wait for a later turn.
    pub fn asks_waiting(&self) -> usize {
        let waiting = self.to.iter().flat_map(|lane| &lane.waiting);
        waiting.map(|waiting_asks| waiting_asks.asks.len()).sum()
    }

    /// Whether asks wait for a later turn, or the shard has asks to itself.
    pub fn has_asks(&self) -> bool {
        self.has_own_asks() || self.to.iter().any(|lane| !lane.waiting.is_empty())
    }

    /// Removes and returns the next waiting asks: one mail of each lane after another.
    pub fn next_waiting_asks(&mut self) -> Option<(ShardId, WaitingAsks)> {
        let count = self.to.len();
        for distance in 0..count {
            let from = (self.next + distance) % count;
            if let Some(waiting_asks) = self.to[from].waiting.pop_front() {
                self.next = (from + 1) % count;
                return Some((from as ShardId, waiting_asks));
            }
        }
        None
    }

    /// Removes and returns the asks of the shard to itself.
    pub fn take_own_asks(&mut self) -> Option<WaitingAsks> {
        let lane = &mut self.to[self.me as usize];
        if lane.asks.is_empty() {
            return None;
        }
        let (asks, bytes) = (
            core::mem::take(&mut lane.asks),
            core::mem::take(&mut lane.bytes),
        );
        let weight = core::mem::take(&mut lane.publishes) * self.turn_limits.publish_credit_bytes
            + bytes.len();
        lane.in_flight_bytes += weight;
        Some(WaitingAsks {
            weight,
            asks: asks.into(),
            bytes,
            stamp: self.stamp,
        })
    }

    /// The age of the present ask in seconds.
    pub fn ask_age_s(&self) -> u64 {
        self.stamp.saturating_sub(self.read_at) / NS_PER_S
    }

    /// Keeps the buffers of the shard's handled asks to itself for reuse.
    pub fn recycle_asks(&mut self, mut waiting_asks: WaitingAsks) {
        let own_lane = &mut self.to[self.me as usize];
        let is_reusable = waiting_asks.asks.capacity() <= ASKS_KEPT
            && waiting_asks.bytes.capacity() <= ASK_BYTES_KEPT;
        if is_reusable && own_lane.asks.is_empty() {
            waiting_asks.bytes.clear();
            (own_lane.asks, own_lane.bytes) = (waiting_asks.asks.into(), waiting_asks.bytes);
        }
    }

    /// Whether the shard has unhandled asks to itself.
    #[inline]
    pub fn has_own_asks(&self) -> bool {
        let own_lane = &self.to[self.me as usize];
        !(own_lane.asks.is_empty() && own_lane.waiting.is_empty())
    }

    /// Whether the shard has tells to itself.
    pub fn has_own_tells(&self) -> bool {
        !self.to[self.me as usize].tells.is_empty()
    }

    /// Removes and returns the shard's tells to itself, with their frames.
    pub fn take_own_tells(&mut self) -> Option<(Vec<Tell>, Arc<Frames>)> {
        let me = self.me as usize;
        if self.to[me].tells.is_empty() {
            return None;
        }
        Some((core::mem::take(&mut self.to[me].tells), self.frames.clone()))
    }

    /// Keeps a list of tells for reuse in the next turn.
    pub fn recycle_tells(&mut self, mut tells: Vec<Tell>) {
        let own_lane = &mut self.to[self.me as usize].tells;
        if own_lane.capacity() == 0 && tells.capacity() <= 1 << 14 {
            tells.clear();
            *own_lane = tells;
        }
    }

    /// Passes every lane's mail to `post` and prepares the frames for the next turn.
    pub fn flush(&mut self, mut post: impl FnMut(ShardId, Mail)) {
        for id in 0..self.to.len() {
            let lane = &mut self.to[id];
            if id == self.me as usize {
                lane.in_flight_bytes -= core::mem::take(&mut lane.credit_bytes);
                continue;
            }
            let credit_bytes = core::mem::take(&mut lane.credit_bytes);
            if lane.asks.is_empty() && lane.tells.is_empty() && credit_bytes == 0 {
                continue;
            }
            let frames = (!lane.tells.is_empty()).then(|| self.frames.clone());
            let publishes = core::mem::take(&mut lane.publishes);
            let weight = publishes * self.turn_limits.publish_credit_bytes + lane.bytes.len();
            lane.in_flight_bytes += weight;
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
        // Large frames that no receiver refers to are freed, not reused.
        self.sent_frames.retain(|frames| {
            Arc::strong_count(frames) > 1 || frames.own_bytes() <= FRAMES_KEPT_BYTES
        });
        let is_in_use = Arc::get_mut(&mut self.frames).is_none();
        if is_in_use {
            let next = self.take_unused_frames().unwrap_or_default();
            let sent = core::mem::replace(&mut self.frames, next);
            self.group_messages += sent.group_messages;
            self.large_page_bytes += sent.large_page_bytes;
            self.sent_frames.push(sent);
        } else {
            self.frames().clear();
        }
    }

    /// Finds frames that all receivers have dropped: returns one for reuse, and frees the others.
    fn take_unused_frames(&mut self) -> Option<Arc<Frames>> {
        let mut reusable = None;
        self.sent_frames
            .retain_mut(|frames| match Arc::get_mut(frames) {
                Some(unused) if reusable.is_none() => {
                    unused.clear();
                    reusable = Some(frames.clone());
                    false
                }
                Some(_) => false,
                None => true,
            });
        reusable
    }

    /// Bytes of the frames that receivers still refer to, of waiting asks, of pages of members, and of this turn's frames beyond
    /// [`FRAMES_KEPT_BYTES`].
    pub fn own_bytes(&self) -> usize {
        let in_use = self
            .frames_in_use()
            .map(|frames| frames.own_bytes() + frames.member_bytes);
        let in_use_bytes = in_use.sum::<usize>() + self.frames.member_bytes;
        let waiting = self.to.iter().flat_map(|lane| &lane.waiting);
        let waiting_bytes =
            waiting.map(|it| it.bytes.capacity() + it.asks.len() * size_of::<Ask>());
        self.frames.own_bytes().saturating_sub(FRAMES_KEPT_BYTES)
            + in_use_bytes
            + waiting_bytes.sum::<usize>()
    }

    /// The number of turns whose frames a receiver still refers to.
    pub fn turns_held(&self) -> usize {
        self.frames_in_use().count()
    }

    /// Updates the valve, which stops the parties that caused most of the work in flight while carriers are behind.
    #[inline]
    pub fn update_valve(&mut self, valve: &Valve) {
        if self.sent_frames.len() < self.turn_limits.backpressure_turns && !self.is_behind() {
            return;
        }
        let stopped = self.groups_to_stop();
        valve.replace_stopped(&self.stopped, &stopped);
        self.stopped = stopped;
    }

    /// Whether a party waits for the carriers of this home. Then the shard must poll, since no event reports that carriers have caught up.
    #[inline]
    pub fn is_behind(&self) -> bool {
        self.stopped.has_any()
    }

    fn groups_to_stop(&mut self) -> StoppedGroups {
        let turns_max = self.turn_limits.backpressure_turns;
        if self.sent_frames.len() < turns_max || planted::is(Fault::NoCredit) {
            return StoppedGroups::default();
        }
        self.sent_frames
            .retain_mut(|frames| Arc::get_mut(frames).is_none());
        match self.sent_frames.len() {
            in_use if in_use < turns_max => StoppedGroups::default(),
            in_use if in_use >= ALL_WAIT_FACTOR * turns_max => StoppedGroups::ALL,
            _ => StoppedGroups::heaviest(self.sent_frames.iter().map(|turn| &turn.visits_by_group)),
        }
    }
}
