//! Subscribes connections to filters, and unsubscribes them, for all protocols. The filters are entered in the shard's table, and
//! the homes (the parts of shards that keep topics) are asked for pages (bounded runs of past messages).
//!
//! A protocol calls [`join_filters`] once for the filters of one subscription. It then gets pages by `handle_filter_page`, and live
//! messages (sent when they are published) by `deliver_matched`. After each page it calls [`Clients::record_page`], and [`request_group_page`]
//! when it can take the next page. It must not call `request_group_page` within a delivery, whose frames may belong to the shard's own
//! home, so it queues the connection to continue. At the end it calls [`Clients::leave_group`] or [`Clients::leave_filters`].

use alloc::boxed::Box;
use alloc::vec::Vec;

use crate::base::ids::{PartitionId, ShardId};
use crate::base::position::{Position, Since};
use crate::base::reason::Reason;
use crate::client::parts::{Clients, Connections, Matching, Subscriptions};
use crate::client::types::ProtocolTypes;
use crate::filters::matching::{FilterSubscriptions, GroupPosition, Member, Removal};
use crate::home::SEPARATOR;
use crate::mail::{Ask, AttachFilters, FilterPage, ReplyTo, Span};

/// A group of filters that asks homes for pages. A poll needs only one message.
#[derive(Clone, Copy)]
pub(crate) struct GroupPageRequest {
    pub(crate) slot: u32,
    pub(crate) serial: u32,
    pub(crate) is_poll: bool,
}

/// Subscribes a connection to checked filters, each with the protocol's number, as one group. `since` gives the start in each
/// partition. The homes answer with pages of each partition. Returns the group's serial.
///
/// # Errors
/// Why a filter was refused. Nothing is subscribed then.
pub(crate) fn join_filters<P: ProtocolTypes>(
    clients: &mut Clients<P>,
    subs: &mut Subscriptions,
    slot: u32,
    filters: &[(&[u8], u32)],
    since: &[Since],
    is_poll: bool,
) -> Result<u32, Reason> {
    let subscriptions = clients
        .conns
        .ensure_side_row(slot)
        .filters
        .get_or_insert_with(Box::default);
    let serial = subscriptions.add_group(match since.first() {
        Some(Since::Newest(newest)) => *newest,
        _ => 0,
    });
    for (filter, id) in filters {
        if let Err(reason) = join_filter(clients, &mut subs.matching, slot, serial, filter, *id) {
            clients.leave_group(subs, slot, serial);
            return Err(reason);
        }
    }
    let epoch = clients.ctx.world.epoch;
    let start_position = |since: &Since| match *since {
        Since::At(Position { epoch, offset }) => GroupPosition {
            offset,
            epoch,
            ..GroupPosition::default()
        },
        _ => GroupPosition {
            epoch,
            awaits_first_page: true,
            ..GroupPosition::default()
        },
    };
    let positions = since.iter().map(start_position).collect();
    let Some(subscriptions) = filter_subscriptions_mut(&mut clients.conns, slot) else {
        clients.end_as_broken(slot);
        return Err(Reason::Broken);
    };
    subscriptions.set_positions(serial, positions);
    request_first_pages(
        clients,
        subs,
        GroupPageRequest {
            slot,
            serial,
            is_poll,
        },
        since,
    );
    Ok(serial)
}

/// Asks each home once for the first pages of all its partitions.
fn request_first_pages<P: ProtocolTypes>(
    clients: &mut Clients<P>,
    subs: &mut Subscriptions,
    asking: GroupPageRequest,
    since: &[Since],
) {
    let placement = clients.ctx.world.placement();
    let Some(first) = since.first() else { return };
    let has_one_start = since.iter().all(|since| since == first);
    for home in 0..placement.homes() {
        let since_by_partition = (!has_one_start).then(|| {
            let partitions = placement.of_home(home);
            let since_of = |partition| since.get(usize::from(partition)).copied();
            partitions.filter_map(since_of).collect()
        });
        request_pages_of_home(
            clients,
            subs,
            asking,
            (home, None),
            (*first, since_by_partition),
            false,
        );
    }
}

/// Asks for the next page of a partition, unless the group is live there or waits for a page already. Returns whether it asked.
pub(crate) fn request_group_page<P: ProtocolTypes>(
    clients: &mut Clients<P>,
    subs: &mut Subscriptions,
    asking: GroupPageRequest,
    partition: PartitionId,
) -> bool {
    let subscriptions = filter_subscriptions_mut(&mut clients.conns, asking.slot);
    let Some(at) = subscriptions.and_then(|all| all.position_mut(asking.serial, partition)) else {
        return false;
    };
    if at.is_live || at.is_requested {
        return false;
    }
    let since = Since::At(Position::new(at.epoch, at.offset));
    let (home, partition) = (
        clients.ctx.world.placement().home_of(partition),
        Some(partition),
    );
    request_pages_of_home(
        clients,
        subs,
        asking,
        (home, partition),
        (since, None),
        true,
    );
    true
}

/// Asks a home for a page of one of its partitions, or of each of them.
fn request_pages_of_home<P: ProtocolTypes>(
    clients: &mut Clients<P>,
    subs: &mut Subscriptions,
    asking: GroupPageRequest,
    (home, partition): (ShardId, Option<PartitionId>),
    (since, each): (Since, Option<Box<[Since]>>),
    is_next_page: bool,
) {
    let GroupPageRequest {
        slot,
        serial,
        is_poll,
    } = asking;
    let placement = clients.ctx.world.placement();
    let to = clients.conns.reply_to(slot, 0);
    let Some(subscriptions) = filter_subscriptions_mut(&mut clients.conns, slot) else {
        return clients.end_as_broken(slot);
    };
    let newest = subscriptions.group(serial).map_or(0, |group| group.newest);
    let (mut snapshot_end, mut losses_before) = (0, 0);
    let partitions = placement.of_home(home);
    for partition in partitions.filter(|it| partition.is_none_or(|one| one == *it)) {
        let Some(at) = subscriptions.position_mut(serial, partition) else {
            return clients.end_as_broken(slot);
        };
        at.is_requested = true;
        (snapshot_end, losses_before) = (at.snapshot_end, at.losses_before);
    }
    let rows: Vec<u32> = subscriptions
        .parts_of(serial)
        .map(|(_, part)| part.row)
        .collect();
    let ask = AttachFilters {
        to,
        serial,
        partition,
        since,
        snapshot_end,
        newest,
        losses_before,
        poll: is_poll,
        is_next_page,
        party: clients.party(slot),
    };
    let names: Vec<Vec<u8>> = rows.iter().map(|row| subs.matching.name(*row)).collect();
    let names = names.join(&SEPARATOR);
    subs.lanes.ask(home, |bytes| {
        Ask::AttachFilters(ask, Span::append(bytes, &names), each)
    });
}

/// The filters of a connection, if it has any.
pub(crate) fn filter_subscriptions<P: ProtocolTypes>(
    conns: &Connections<P>,
    slot: u32,
) -> Option<&FilterSubscriptions> {
    conns.try_get(slot)?;
    conns.find_side_row(slot)?.filters.as_deref()
}

/// The filters of a connection, mutably, if it has any.
pub(crate) fn filter_subscriptions_mut<P: ProtocolTypes>(
    conns: &mut Connections<P>,
    slot: u32,
) -> Option<&mut FilterSubscriptions> {
    conns.try_get(slot)?;
    conns.find_side_row_mut(slot)?.filters.as_deref_mut()
}

pub(crate) fn join_filter<P: ProtocolTypes>(
    clients: &mut Clients<P>,
    matching: &mut Matching,
    slot: u32,
    serial: u32,
    filter: &[u8],
    id: u32,
) -> Result<(), Reason> {
    let filters_max = clients.ctx.world.settings.limits.filters_per_shard;
    let client = clients.conns.get(slot).consumer.client;
    let subscriptions = filter_subscriptions_mut(&mut clients.conns, slot);
    let Some(subscriptions) = subscriptions.filter(|all| all.group(serial).is_some()) else {
        clients.end_as_broken(slot);
        return Err(Reason::Broken);
    };
    let filter_index = subscriptions.next_index();
    let (row, place) = matching.join(filter, Member { slot, filter_index }, client, filters_max)?;
    if let Some(subscriptions) = filter_subscriptions_mut(&mut clients.conns, slot) {
        subscriptions.add(serial, row, place, id);
    }
    Ok(())
}

impl Matching {
    /// Records that all live connections have seen the partition up to `offset`.
    pub(crate) fn record_seen_by_all(&mut self, partition: PartitionId, offset: u64) {
        if let Some(seen) = self.seen.get_mut(usize::from(partition)) {
            *seen = offset.max(*seen);
        }
    }
}

/// Whether the group for which a page arrived still exists.
pub(crate) fn awaits_page<P: ProtocolTypes>(
    conns: &Connections<P>,
    to: ReplyTo,
    serial: u32,
) -> bool {
    conns.is_waiting_for(to)
        && filter_subscriptions(conns, to.slot).is_some_and(|all| all.group(serial).is_some())
}

impl<P: ProtocolTypes> Clients<P> {
    /// Ends the subscription of a group of filters.
    pub(crate) fn leave_group(&mut self, subs: &mut Subscriptions, slot: u32, serial: u32) {
        let Some(subscriptions) = filter_subscriptions(&self.conns, slot) else {
            return;
        };
        let filter_indexes: Vec<u32> = subscriptions.parts_of(serial).map(|(at, _)| at).collect();
        for filter_index in filter_indexes {
            leave_filter(self, subs, slot, filter_index);
        }
        if let Some(subscriptions) = filter_subscriptions_mut(&mut self.conns, slot) {
            // If the group has no filter yet, it still exists here.
            subscriptions.end_group(serial);
        }
    }

    /// Ends all filters of a connection.
    pub(crate) fn leave_filters(&mut self, subs: &mut Subscriptions, slot: u32) {
        let groups =
            filter_subscriptions(&self.conns, slot).map_or(&[][..], FilterSubscriptions::groups);
        let serials: Vec<u32> = groups.iter().rev().map(|group| group.serial).collect();
        for serial in serials {
            self.leave_group(subs, slot, serial);
        }
        if let Some(side_row) = self.conns.find_side_row_mut(slot) {
            side_row.filters = None;
        }
    }

    /// Records that the group has received a page up to `offset`. `is_live`: the group has now received the whole log of the
    /// partition.
    pub(crate) fn record_page(
        &mut self,
        slot: u32,
        serial: u32,
        page: &FilterPage,
        offset: u64,
        is_live: bool,
    ) {
        let Some(subscriptions) = filter_subscriptions_mut(&mut self.conns, slot) else {
            return self.end_as_broken(slot);
        };
        if let Some(at) = subscriptions.position_mut(serial, page.partition) {
            *at = GroupPosition {
                offset,
                snapshot_end: page.snapshot_end,
                losses_before: page.losses_before,
                epoch: page.epoch,
                is_live,
                is_requested: false,
                awaits_first_page: false,
                had_turn: true,
            };
        }
        subscriptions.drop_positions_if_live(serial);
    }
}

pub(crate) fn leave_filter<P: ProtocolTypes>(
    clients: &mut Clients<P>,
    subs: &mut Subscriptions,
    slot: u32,
    filter_index: u32,
) {
    let subscriptions = filter_subscriptions_mut(&mut clients.conns, slot);
    let Some((row, member_index)) = subscriptions.and_then(|all| all.remove(filter_index)) else {
        return clients.end_as_broken(slot);
    };
    let Removal {
        moved_member,
        closed_filter,
    } = subs.matching.leave(row, member_index);
    if let Some(Member { slot, filter_index }) = moved_member {
        match filter_subscriptions_mut(&mut clients.conns, slot) {
            Some(subscriptions) => subscriptions.set_member_index(filter_index, member_index),
            None => clients.end_as_broken(slot),
        }
    }
    let Some(name) = closed_filter else { return };
    for home in 0..clients.ctx.world.homes {
        if home != clients.ctx.own_shard {
            subs.lanes
                .ask(home, |bytes| Ask::LeaveFilter(Span::append(bytes, &name)));
        }
    }
}
