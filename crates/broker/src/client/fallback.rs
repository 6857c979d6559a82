//! Lets a slow consumer fall back to the log. If a connection has no room for a message, its subscription is no longer live (it no longer gets
//! messages when they are published). It keeps the offset up to which it has seen the topic, and continues from the log when the connection has room
//! again. All protocols call `fall_back`, `fall_back_unsent` or `fall_back_in_partition`, which count the fallback and record the position.
//! `docs/PROTOCOL-DETAILS.md` describes this for users.
//!
//! Three steps are elsewhere. `send::fits` (in MQTT `outgoing_publish`) checks whether a connection has room. `protocol/stream/catch_up`,
//! `protocol/stream/filtered` and `list/page` read from the log. `protocol/stream/gap` and `protocol/websocket/gap` report lost messages.
//!
//! Two kinds of connections do not fall back here. A stream whose response has not begun has no position yet: messages that do not fit now come with its
//! first page (`http/filter_response.rs`, `stream/stream_pages.rs`). A follower of interest (which topics have subscribers) must see each change, and the
//! changes are in no log. So if its connection has no room, the connection ends (`stream/interest.rs`).

use crate::base::ids::PartitionId;
use crate::client::joining::filter_subscriptions_mut;
use crate::client::parts::{Clients, Matching};
use crate::client::row::{LIVE, SUBSCRIPTION_LIST};
use crate::client::side::BehindSubscription;
use crate::client::types::ProtocolTypes;
use crate::filters::matching::GroupPosition;

impl<P: ProtocolTypes> Clients<P> {
    /// Makes a subscription fall back. It has seen its topic up to `offset`.
    pub(crate) fn fall_back(&mut self, slot: u32, sub_index: u32, offset: u64) {
        self.meter.stats.fallbacks += 1;
        self.continue_from_log(slot, sub_index, offset);
    }

    /// Makes a subscription fall back that still has unsent messages in the server's buffer, up to `offset`. Its next page begins after `offset`, and the
    /// position of the client does not change.
    pub(crate) fn fall_back_unsent(&mut self, slot: u32, sub_index: u32, offset: u64) {
        self.meter.stats.fallbacks += 1;
        schedule_page(self, slot, sub_index, offset);
    }

    /// Continues a subscription from the log after `offset`. The subscription is not live any more.
    pub(crate) fn continue_from_log(&mut self, slot: u32, sub_index: u32, offset: u64) {
        let epoch = self.ctx.world.epoch;
        if self.conns.get(slot).has_option(SUBSCRIPTION_LIST)
            && let Some(sub) = self
                .conns
                .ensure_side_row(slot)
                .list
                .get_mut(sub_index as usize)
        {
            (sub.offset, sub.epoch) = (offset, epoch);
        }
        schedule_page(self, slot, sub_index, offset);
    }

    /// Makes a group of filters fall back in one partition. The group has seen that partition up to `offset`.
    pub(crate) fn fall_back_in_partition(
        &mut self,
        matching: &Matching,
        slot: u32,
        group_serial: u32,
        (partition, offset): (PartitionId, u64),
    ) {
        self.meter.stats.fallbacks += 1;
        let (seen, epoch) = (matching.seen.clone(), self.ctx.world.epoch);
        let Some(subscriptions) = filter_subscriptions_mut(&mut self.conns, slot) else {
            return self.end_as_broken(slot);
        };
        let Some(group) = subscriptions.group(group_serial) else {
            return self.end_as_broken(slot);
        };
        let live_position = |offset| GroupPosition {
            offset,
            epoch,
            is_live: true,
            ..GroupPosition::default()
        };
        let mut positions = match group.positions() {
            [] => seen.into_iter().map(live_position).collect(),
            positions => positions.to_vec(),
        };
        let Some(position) = positions.get_mut(usize::from(partition)) else {
            return self.end_as_broken(slot);
        };
        *position = GroupPosition {
            offset,
            epoch,
            ..GroupPosition::default()
        };
        subscriptions.set_positions(group_serial, positions);
    }
}

/// Records that the next page (a bounded run of past messages) of a topic begins after `offset`.
fn schedule_page<P: ProtocolTypes>(
    clients: &mut Clients<P>,
    slot: u32,
    sub_index: u32,
    offset: u64,
) {
    if clients.conns.get(slot).has_option(SUBSCRIPTION_LIST) {
        let Some(sub) = clients
            .conns
            .ensure_side_row(slot)
            .list
            .get_mut(sub_index as usize)
        else {
            return clients.end_as_broken(slot);
        };
        sub.flags &= !LIVE;
    } else {
        clients.conns.get_mut(slot).consumer.flags &= !LIVE;
    }
    let epoch = clients.ctx.world.epoch;
    let behind = &mut clients.conns.ensure_side_row(slot).behind;
    behind.retain(|behind| behind.sub_index != sub_index);
    behind.push(BehindSubscription::new(sub_index, offset, epoch));
}
