//! The fallback of a slow consumer: a subscription whose connection cannot take a message has seen all before it, and reads on from the log when
//! its connection takes messages again. All protocols come here (`fall_back`, `fall_back_unsent`, `fall_back_in`), which count the fallback and note
//! the position. Users read of it in `docs/PROTOCOL-DETAILS.md`.
//!
//! Deliberately not here: the check whether a connection takes a message (`send::fits`, in MQTT `give`), the reading (`subscribe/leave`, `filtered`), and
//! the treatment of messages that the log has no more (`gap` of `http/subscribe` and `websocket`). A stream that has not begun has no position
//! to fall back to: what it cannot hold is left to its first page (`http/opening.rs`, `http/subscribe/stream.rs`). A follower of interest, which can lose nothing, ends
//! instead (`http/interest.rs`).

use crate::base::ids::PartitionId;
use crate::client::joining::filter_subscriptions_mut;
use crate::client::parts::{Clients, Matching};
use crate::client::row::{LIVE, MULTI};
use crate::client::side::Behind;
use crate::client::types::ProtocolTypes;
use crate::filters::matching::GroupPosition;

impl<P: ProtocolTypes> Clients<P> {
    /// A subscription to a topic cannot take its messages: it has seen the topic up to `offset`.
    pub(crate) fn fall_back(&mut self, slot: u32, part: u32, offset: u64) {
        self.meter.stats.fallbacks += 1;
        self.read_on(slot, part, offset);
    }

    /// The same of a stream that has not begun: messages before `offset` are held and not sent yet, so that its position stays behind them.
    pub(crate) fn fall_back_unsent(&mut self, slot: u32, part: u32, offset: u64) {
        self.meter.stats.fallbacks += 1;
        ask_again(self, slot, part, offset);
    }

    /// A subscription to a topic is not live: it has seen the topic up to `offset`, and the next page begins there.
    pub(crate) fn read_on(&mut self, slot: u32, part: u32, offset: u64) {
        let epoch = self.ctx.world.epoch;
        if self.conns.get(slot).wants(MULTI)
            && let Some(sub) = self.conns.extra(slot).list.get_mut(part as usize)
        {
            (sub.offset, sub.epoch) = (offset, epoch);
        }
        ask_again(self, slot, part, offset);
    }

    /// A group of filters cannot take a partition's messages: it has seen the partition up to `offset`.
    pub(crate) fn fall_back_in(
        &mut self,
        matching: &Matching,
        slot: u32,
        serial: u32,
        (partition, offset): (PartitionId, u64),
    ) {
        self.meter.stats.fallbacks += 1;
        let (seen, epoch) = (matching.seen.clone(), self.ctx.world.epoch);
        let Some(subscriptions) = filter_subscriptions_mut(&mut self.conns, slot) else {
            return self.broken(slot);
        };
        let Some(group) = subscriptions.group(serial) else {
            return self.broken(slot);
        };
        let live = |offset| GroupPosition {
            offset,
            epoch,
            live: true,
            ..GroupPosition::default()
        };
        let mut positions = match group.positions() {
            [] => seen.into_iter().map(live).collect(),
            positions => positions.to_vec(),
        };
        let Some(at) = positions.get_mut(usize::from(partition)) else {
            return self.broken(slot);
        };
        *at = GroupPosition {
            offset,
            epoch,
            ..GroupPosition::default()
        };
        subscriptions.set_positions(serial, positions);
    }
}

/// The next page of a topic begins behind `offset`.
fn ask_again<P: ProtocolTypes>(clients: &mut Clients<P>, slot: u32, part: u32, offset: u64) {
    if clients.conns.get(slot).wants(MULTI) {
        let Some(sub) = clients.conns.extra(slot).list.get_mut(part as usize) else {
            return clients.broken(slot);
        };
        sub.flags &= !LIVE;
    } else {
        clients.conns.get_mut(slot).flags &= !LIVE;
    }
    let epoch = clients.ctx.world.epoch;
    let behind = &mut clients.conns.extra(slot).behind;
    behind.retain(|behind| behind.part != part);
    behind.push(Behind::at(part, offset, epoch));
}
