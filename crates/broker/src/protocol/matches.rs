//! Positions and encodings of messages for subscribers by filter.

use alloc::vec::Vec;

use crate::base::ids::PartitionId;
use crate::base::planted::{self, Fault};
use crate::base::position::{self, Position};
use crate::filters::matching::Part;
use crate::mail::Frames;
use crate::protocol::delivery::Matched;
use crate::protocol::encode::{Encoding, Message};
use crate::protocol::front::Front;

/// Bytes of a position by filter that need no second allocation: with 16 partitions most have fewer.
const ID_BYTES: usize = 96;

impl Front {
    /// Whether one of the connection's filters matches the topic and is live in its partition: then the message comes
    /// by that filter, and not a second time by a subscription to the topic.
    pub(crate) fn has_match(&self, slot: u32, topic: &[u8]) -> bool {
        let Some(filtered) = self.filtered(slot) else {
            return false;
        };
        let rows = self.matching.rows(topic);
        if rows.is_empty() {
            return false;
        }
        let partition = self.partition_of(topic);
        let matches = |(at, part): (u32, &Part)| {
            rows.binary_search(&part.row).is_ok() && filtered.is_live(at, partition)
        };
        filtered.parts().any(matches)
    }

    /// All messages of the run in one encoding, each with the position of a connection that is live in all partitions.
    pub(crate) fn encode_run(&mut self, encoding: Encoding, messages: &[Matched], frames: &Frames) {
        if encoding == Encoding::Frame || !self.run.encoded(encoding).is_empty() {
            return;
        }
        let mut seen = self.matching.seen.clone();
        for message in messages {
            if planted::is(Fault::StaleVector) {
                seen.clone_from(&self.matching.seen);
            }
            if let Some(seen) = seen.get_mut(usize::from(message.partition)) {
                *seen = message.record.offset;
            }
            let mut id = Vec::with_capacity(ID_BYTES);
            self.write_live_id(&seen, &mut id);
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

    /// The offset up to which a connection has seen a partition where it is live. Between two turns some connections may have got
    /// a run and others not.
    pub(crate) fn seen_by(&self, slot: u32, partition: PartitionId) -> u64 {
        let seen = self.matching.seen[usize::from(partition)];
        let home = self.world.placement().home_of(partition);
        let visited = self.deliveries.under_way(home).and_then(|d| {
            let until = d.run.visited(slot)?;
            let mut back = (0..=until).rev().map(|n| d.matched(n));
            back.find(|message| message.partition == partition)
        });
        visited.map_or(seen, |message| message.record.offset.max(seen))
    }

    /// The position of a connection that is live in all partitions and has seen them up to these offsets.
    fn write_live_id(&self, seen: &[u64], out: &mut Vec<u8>) {
        let epoch = self.world.epoch;
        let seen = seen.iter().map(|offset| Position {
            epoch,
            offset: *offset,
        });
        position::write_partitions(out, self.world.partitions, seen);
    }

    /// The position of a connection's only group; `just` are the offsets that it has reached in partitions where it is live with
    /// the message at hand.
    pub(crate) fn write_matched_id(
        &self,
        slot: u32,
        just: &[(PartitionId, u64)],
        out: &mut Vec<u8>,
    ) {
        let group = self.filtered(slot).and_then(|all| all.groups().first());
        let positions = group.map_or(&[][..], |group| group.positions());
        let at = |partition: PartitionId| match positions.get(usize::from(partition)) {
            Some(at) if !at.live => Position {
                epoch: at.epoch,
                offset: at.offset,
            },
            at => {
                let (epoch, own) = at.map_or((self.world.epoch, 0), |at| (at.epoch, at.offset));
                let just = just.iter().find(|just| just.0 == partition);
                let offset = match just {
                    Some((_, offset)) => *offset,
                    None => own.max(self.seen_by(slot, partition)),
                };
                Position { epoch, offset }
            }
        };
        let all = 0..self.world.partitions;
        position::write_partitions(out, self.world.partitions, all.map(at));
    }
}
