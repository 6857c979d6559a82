//! The positions of subscribers by filter, and the check whether a message reaches a connection by a filter.

use alloc::vec::Vec;

use crate::base::ids::PartitionId;
use crate::base::position::{self, Position};
use crate::client::joining;
use crate::client::parts::{Clients, Context, Deliveries, Matching};
use crate::client::types::ProtocolTypes;
use crate::filters::matching::FilterPart;

/// The offset up to which a connection has seen a partition, if its filters are live there (get messages when they are published).
/// Between two turns, some connections may have received messages that others have not.
pub(crate) fn seen_offset(
    matching: &Matching,
    deliveries: &Deliveries,
    ctx: &Context,
    slot: u32,
    partition: PartitionId,
) -> u64 {
    let seen = matching.seen[usize::from(partition)];
    let home = ctx.world.placement().home_of(partition);
    let newest_visited = deliveries.ordered_under_way(home).and_then(|d| {
        let until = d.run.last_message_visited(slot)?;
        let mut back = (0..=until).rev().map(|n| d.filter_message(n));
        back.find(|message| message.partition == partition)
    });
    newest_visited.map_or(seen, |message| message.record.offset.max(seen))
}

impl<P: ProtocolTypes> Clients<P> {
    /// Writes the position of a connection's only group of filters. `just`: the offsets that the message at hand reaches in live
    /// partitions.
    pub(crate) fn write_filter_position(
        &self,
        matching: &Matching,
        deliveries: &Deliveries,
        slot: u32,
        new_offsets: &[(PartitionId, u64)],
        out: &mut Vec<u8>,
    ) {
        let group =
            joining::filter_subscriptions(&self.conns, slot).and_then(|all| all.groups().first());
        let positions = group.map_or(&[][..], |group| group.positions());
        let position_in = |partition: PartitionId| match positions.get(usize::from(partition)) {
            Some(at) if !at.is_live => Position::new(at.epoch, at.offset),
            at => {
                let (epoch, own) = at.map_or((self.ctx.world.epoch, 0), |at| (at.epoch, at.offset));
                let just = new_offsets.iter().find(|just| just.0 == partition);
                let offset = match just {
                    Some((_, offset)) => *offset,
                    None => own.max(seen_offset(
                        matching, deliveries, &self.ctx, slot, partition,
                    )),
                };
                Position { epoch, offset }
            }
        };
        let partitions = 0..self.ctx.world.partitions;
        position::write_partitions(out, self.ctx.world.partitions, partitions.map(position_in));
    }

    /// Whether one of the connection's filters matches the topic and is live in its partition. The message then reaches the
    /// connection by that filter, and must not reach it a second time by a subscription to the topic.
    pub(crate) fn has_live_match(&self, matching: &Matching, slot: u32, topic: &[u8]) -> bool {
        let Some(subscriptions) = joining::filter_subscriptions(&self.conns, slot) else {
            return false;
        };
        let rows = matching.matching_rows(topic);
        if rows.is_empty() {
            return false;
        }
        let partition = self.ctx.partition_of(topic);
        let matches = |(at, part): (u32, &FilterPart)| {
            rows.binary_search(&part.row).is_ok() && subscriptions.is_live(at, partition)
        };
        subscriptions.parts().any(matches)
    }
}
