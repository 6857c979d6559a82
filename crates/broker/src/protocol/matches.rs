//! Positions and encodings of messages for subscribers by filter.

use alloc::vec::Vec;

use crate::base::ids::ShardId;
use crate::base::position::{self, Position};
use crate::filters::matching::Part;
use crate::mail::Frames;
use crate::protocol::delivery::Matched;
use crate::protocol::encode::{Encoding, Message};
use crate::protocol::front::Front;

impl Front {
    /// Whether one of the connection's filters matches the topic and is live at its home: then the message comes
    /// by that filter, and not a second time by a subscription to the topic.
    pub(crate) fn has_match(&self, slot: u32, topic: &[u8]) -> bool {
        let (_, home) = self.place_of(topic);
        let Some(filtered) = self.filtered(slot) else {
            return false;
        };
        let rows = self.matching.rows(topic);
        let matches =
            |(at, part): (u32, &Part)| rows.contains(&part.row) && filtered.is_live(at, home);
        !rows.is_empty() && filtered.parts().any(matches)
    }

    /// All messages of the run in one encoding, with the position of a connection that is live at all homes.
    pub(crate) fn encode_run(
        &mut self,
        encoding: Encoding,
        home: ShardId,
        messages: &[Matched],
        frames: &Frames,
    ) {
        if encoding == Encoding::Frame || !self.run.encoded(encoding).is_empty() {
            return;
        }
        for message in messages {
            let mut id = Vec::with_capacity(48);
            self.write_live_id(home, message.record.offset, &mut id);
            let message = Message {
                topic: frames.name(message.name),
                id: &id,
                frames,
                record: &message.record,
                now_s: self.now.unix_s,
            };
            self.run
                .encoded(encoding)
                .push(&message, encoding, &mut self.forms);
        }
    }

    /// The offset up to which a connection has seen a home where it is live. Between two turns some connections may have got a run
    /// and others not.
    pub(crate) fn seen_by(&self, slot: u32, home: ShardId) -> u64 {
        let seen = self.matching.seen[home as usize];
        let front = self.deliveries.front().filter(|d| d.home == home);
        let visited = front.and_then(|d| Some(d.matched(d.run.visited(slot)?).record.offset));
        visited.map_or(seen, |offset| offset.max(seen))
    }

    /// The position of a connection that is live at all homes and has just seen `offset` of one.
    fn write_live_id(&self, home: ShardId, offset: u64, out: &mut Vec<u8>) {
        let epoch = self.world.epoch;
        let seen = self.matching.seen.iter().enumerate().map(|(n, seen)| {
            let offset = if n == home as usize { offset } else { *seen };
            Position { epoch, offset }
        });
        position::write_set(out, self.set_of_homes(), seen);
    }

    /// The position of a connection's only group, which has just seen `offset` of this home.
    pub(crate) fn write_matched_id(
        &self,
        slot: u32,
        just: Option<(ShardId, u64)>,
        out: &mut Vec<u8>,
    ) {
        let group = self.filtered(slot).and_then(|all| all.groups().first());
        let homes = group.map_or(&[][..], |group| group.homes());
        let epoch = self.world.epoch;
        let at = |n: ShardId| match (just, homes.get(usize::from(n))) {
            (Some((home, offset)), at) if home == n => Position {
                epoch: at.map_or(epoch, |at| at.epoch),
                offset,
            },
            (_, Some(at)) => Position {
                epoch: at.epoch,
                offset: if at.live {
                    at.offset.max(self.seen_by(slot, n))
                } else {
                    at.offset
                },
            },
            (_, None) => Position {
                epoch,
                offset: self.seen_by(slot, n),
            },
        };
        position::write_set(out, self.set_of_homes(), (0..self.world.homes).map(at));
    }

    /// The set number in positions by filter: it is the same for all filters, and depends on the number of homes.
    pub(crate) fn set_of_homes(&self) -> u32 {
        u32::from_be_bytes(*b"fil\0") | u32::from(self.world.homes)
    }
}
