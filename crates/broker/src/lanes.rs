//! What a shard has to say at the end of the turn: one lane per peer, itself included, and the
//! frames that all tells of the turn share.
//!
//! Invariants: within a turn the shard alone holds `frames`; once mailed, they are written again
//! only after the last receiver let go of them.

#[cfg(test)]
mod tests;

use alloc::collections::VecDeque;
use alloc::sync::Arc;
use alloc::vec::Vec;

use crate::mail::{Ask, FRAMES_KEPT_BYTES, Frames, Mail, ShardId, Tell};
use crate::planted::{self, Fault};

/// To one peer.
#[derive(Default)]
pub struct Lane {
    /// To it as a home.
    pub asks: Vec<Ask>,
    /// What the asks' spans mean.
    pub bytes: Vec<u8>,
    /// To it as a carrier.
    pub tells: Vec<Tell>,
    /// Bytes of its asks that were dealt with and not yet given back.
    pub credit_bytes: usize,
    /// Bytes of asks sent to it and not yet given back.
    pub under_way_bytes: usize,
    /// What it has asked and the turns so far had no time for, in order. Its publishes are within the credit.
    pub waiting: VecDeque<Asked>,
}

/// Asks of one mail, as far as they are not done.
pub struct Asked {
    /// Those that are left.
    pub asks: alloc::vec::IntoIter<Ask>,
    /// What their spans mean.
    pub bytes: Vec<u8>,
    /// When what they publish was read.
    pub stamp: u64,
}

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
    /// When what is published at the moment was read.
    pub read_at: u64,
    /// The lane whose asks go on next.
    pub next: usize,
    /// Credit waits until carriers have caught up, which nobody announces.
    pub withholds: bool,
    /// See [`crate::Pace::turns_under_way`].
    pub under_way_max: usize,
}

impl Lanes {
    /// Empty lanes to so many shards.
    pub fn new(me: ShardId, shards: usize) -> Self {
        Lanes {
            me,
            to: (0..shards).map(|_| Lane::default()).collect(),
            frames: Arc::default(),
            under_way: Vec::new(),
            stamp: 0,
            read_at: 0,
            next: 0,
            withholds: false,
            under_way_max: crate::Pace::default().turns_under_way,
        }
    }

    /// The frames of this turn.
    #[inline]
    pub fn frames(&mut self) -> &mut Frames {
        Arc::get_mut(&mut self.frames).expect("a turn's frames are shared only when it ends")
    }

    /// A message, for one carrier.
    #[inline]
    pub fn tell(&mut self, to: ShardId, tell: Tell) {
        self.to[to as usize].tells.push(tell);
    }

    /// Asks that wait for their turn.
    pub fn asks_waiting(&self) -> usize {
        let waiting = self.to.iter().flat_map(|lane| &lane.waiting);
        waiting.map(|asked| asked.asks.len()).sum()
    }

    /// Whether asks wait for their turn.
    pub fn has_asks(&self) -> bool {
        self.to.iter().any(|lane| !lane.waiting.is_empty())
    }

    /// Takes what goes on next of what waits: each lane in its turn.
    pub fn next_asked(&mut self) -> Option<(ShardId, Asked)> {
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

    /// Whether the shard has told itself something.
    pub fn has_own(&self) -> bool {
        !self.to[self.me as usize].tells.is_empty()
    }

    /// What the shard told itself, with the frames that it means.
    pub fn take_own(&mut self) -> Option<(Vec<Tell>, Arc<Frames>)> {
        let me = self.me as usize;
        if self.to[me].tells.is_empty() {
            return None;
        }
        Some((core::mem::take(&mut self.to[me].tells), self.frames.clone()))
    }

    /// Gives an emptied list of tells back for the next turn.
    pub fn recycle(&mut self, mut tells: Vec<Tell>) {
        let own = &mut self.to[self.me as usize].tells;
        if own.capacity() == 0 && tells.capacity() <= 1 << 14 {
            tells.clear();
            *own = tells;
        }
    }

    /// Hands every lane's mail to `post` and readies the frames for the next turn.
    ///
    /// While carriers are behind nobody gets credit back, so that publishers of other shards wait too.
    pub fn flush(&mut self, mut post: impl FnMut(ShardId, Mail)) {
        let pressed = self.is_pressed() && !planted::is(Fault::NoCredit);
        self.withholds = false;
        for id in 0..self.to.len() {
            let lane = &mut self.to[id];
            let credit_bytes = if pressed { 0 } else { lane.credit_bytes };
            self.withholds |= credit_bytes < lane.credit_bytes;
            if id == self.me as usize
                || (lane.asks.is_empty() && lane.tells.is_empty() && credit_bytes == 0)
            {
                continue;
            }
            lane.credit_bytes -= credit_bytes;
            let frames = (!lane.tells.is_empty()).then(|| self.frames.clone());
            lane.under_way_bytes += lane.bytes.len();
            post(
                id as ShardId,
                Mail {
                    from: self.me,
                    asks: core::mem::take(&mut lane.asks),
                    bytes: core::mem::take(&mut lane.bytes),
                    tells: core::mem::take(&mut lane.tells),
                    frames,
                    credit_bytes,
                    stamp: self.stamp,
                },
            );
        }
        // Large frames that nobody holds any more are freed, not kept for another turn.
        self.under_way.retain(|frames| {
            Arc::strong_count(frames) > 1 || frames.own_bytes() <= FRAMES_KEPT_BYTES
        });
        let held = Arc::get_mut(&mut self.frames).is_none();
        if held {
            let next = self.reclaim().unwrap_or_default();
            let sent = core::mem::replace(&mut self.frames, next);
            self.under_way.push(sent);
        } else {
            self.frames().clear();
        }
    }

    /// Frames that everybody let go of; further ones beyond the first are freed.
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

    /// Bytes of all turns that somebody holds, of this one what is more than a shard always has, and of asks that wait.
    pub fn own_bytes(&self) -> usize {
        let held = self
            .under_way
            .iter()
            .filter(|frames| Arc::strong_count(frames) > 1);
        let held = held.map(|frames| frames.own_bytes()).sum::<usize>();
        let waiting = self.to.iter().flat_map(|lane| &lane.waiting);
        let asked =
            waiting.map(|asked| asked.bytes.capacity() + asked.asks.len() * size_of::<Ask>());
        self.frames.own_bytes().saturating_sub(FRAMES_KEPT_BYTES) + held + asked.sum::<usize>()
    }

    /// Turns whose frames somebody still holds.
    pub fn turns_held(&self) -> usize {
        let held = |frames: &&Arc<Frames>| Arc::strong_count(frames) > 1;
        self.under_way.iter().filter(held).count()
    }

    /// Whether carriers are so far behind that publishers must wait.
    pub fn is_pressed(&mut self) -> bool {
        if self.under_way.len() < self.under_way_max {
            return false;
        }
        self.under_way
            .retain_mut(|frames| Arc::get_mut(frames).is_none());
        self.under_way.len() >= self.under_way_max
    }
}
