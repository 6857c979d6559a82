//! Implements [`SubscriptionHandler`] for Pusher's protocol.

use crore_wire::pusher::{ChannelKind, EventData};

use crate::base::ids::PartitionId;
use crate::base::position::Position;
use crate::base::pusher::channel_of;
use crate::base::reason::Reason;
use crate::client::codec::{Message, OfferOutcome, SubscriptionHandler};
use crate::client::list::name_of;
use crate::client::outbox::Packets;
use crate::client::row::Row;
use crate::client::send;
use crate::io::Io;
use crate::mail::{Frames, LatestValues, Page, Record};
use crate::protocol::encode::{Encoding, write_pusher_frame, write_pusher_position};
use crate::protocol::front::{AllProtocols, Clients, Deliveries, Queues, Subscriptions};
use crate::protocol::pusher::event::{POSITION, position_data};
use crate::protocol::pusher::options::POSITIONS;
use crate::protocol::pusher::reply::{refuse_subscription, write_event};
use crate::protocol::pusher::state::{origin_of, pending_subscribe, take_pending_subscribe};
use crate::protocol::pusher::subscribe::drop_subscription;

/// The codec of Pusher's protocol.
pub(crate) struct PusherCodec;

/// Whether the connection must not get this message, because it published it.
pub(super) fn is_excluded(clients: &Clients, slot: u32, record: &Record, frames: &Frames) -> bool {
    let origin = frames.origin(record);
    origin != 0 && origin == origin_of(clients, slot)
}

/// Whether the client is told the position after each message.
pub(super) fn tells_positions(clients: &Clients, slot: u32) -> bool {
    clients.conns.get(slot).has_option(POSITIONS)
}

impl SubscriptionHandler<AllProtocols> for PusherCodec {
    /// A message may exclude a connection, so each delivery looks for that first ([`Protocol::deliver_live`](crate::client::protocols::Protocol::deliver_live)).
    fn shared_encoding(_row: &Row) -> Option<Encoding> {
        None
    }

    /// The channel's name is needed, so [`SubscriptionHandler::take_retained`] tells the client.
    fn tell_granted<I: Io>(_clients: &mut Clients, _slot: u32, _sub_index: u32, _io: &mut I) {}

    /// Tells the client that the subscription has begun. A client of a cache channel then gets the retained message, or is told that there is none.
    fn take_retained<I: Io>(
        clients: &mut Clients,
        subs: &Subscriptions,
        _queues: &mut Queues,
        (slot, sub_index): (u32, u32),
        page: &Page,
        (records, frames): (&[Record], &Frames),
        io: &mut I,
    ) {
        let Some(pending) = take_pending_subscribe(clients, slot, sub_index) else {
            return;
        };
        let topic = name_of(&clients.conns, subs, slot, sub_index);
        let channel = &*channel_of(&topic);
        let kind = ChannelKind::of(channel);
        // A client of a presence channel is told later, together with the members.
        if !kind.is_presence {
            write_event(
                clients,
                b"pusher_internal:subscription_succeeded",
                Some(channel),
                EventData::Text(b"{}"),
            );
            clients.send_reply(slot, io);
        }
        if pending.is_lost && !page.gap {
            tell_gap(clients, slot, channel);
            clients.send_reply(slot, io);
        }
        // The messages of the page are followed by their positions, and so is a gap.
        let has_messages = page.count as usize > records.len();
        if tells_positions(clients, slot) && !has_messages && !page.gap {
            let data = position_data(Position::new(page.epoch, page.head));
            write_event(clients, POSITION, Some(channel), EventData::Text(&data));
            clients.send_reply(slot, io);
        }
        if !kind.is_cache {
            return;
        }
        let mut out = Packets::default();
        for record in records {
            let encodings = &mut clients.encodings;
            write_pusher_frame(&topic, (record, frames), encodings, &mut out.bytes);
            out.ends.push(out.bytes.len());
        }
        match records {
            // With `keep = "latest"` there may be values, which are not requested.
            [] if page.values == LatestValues::MustRequest => {}
            // The retained message may be among those that the client has missed.
            [] if has_messages => {}
            [] => {
                let data = EventData::Value(b"{}");
                write_event(clients, b"pusher:cache_miss", Some(channel), data);
                clients.send_reply(slot, io);
            }
            _ => clients.send_messages(slot, &out.bytes, &out.ends, io),
        }
    }

    /// Refuses the subscription. One that had begun, and whose topic was deleted and cannot be made again, ends with the same events.
    fn refused<I: Io>(
        clients: &mut Clients,
        subs: &mut Subscriptions,
        _queues: &mut Queues,
        (slot, sub_index): (u32, u32),
        reason: Reason,
        io: &mut I,
    ) {
        let topic = name_of(&clients.conns, subs, slot, sub_index);
        drop_subscription(clients, subs, slot, sub_index);
        let text = reason.text_with_limit(&clients.ctx.world.settings);
        refuse_subscription(clients, slot, &channel_of(&topic), reason, &text);
        clients.send_reply(slot, io);
    }

    fn message(
        clients: &mut Clients,
        _subs: &Subscriptions,
        _deliveries: &Deliveries,
        (slot, _): (u32, u32),
        message: &Message<'_>,
        out: &mut Packets,
    ) -> OfferOutcome {
        let (record, frames) = (message.record, message.frames);
        let is_excluded = is_excluded(clients, slot, record, frames);
        let tells_position = tells_positions(clients, slot);
        if is_excluded && !tells_position {
            return OfferOutcome::Done;
        }
        // Each client that is told positions costs a copy of its own.
        (clients.meter.work.steps).add_bytes(frames.data(record).len());
        send::append_if_it_fits(clients, slot, message, out, |clients, bytes| {
            if !is_excluded {
                let encodings = &mut clients.encodings;
                write_pusher_frame(message.name, (record, frames), encodings, bytes);
            }
            if tells_position {
                let position = Position::new(clients.ctx.world.epoch, record.offset);
                write_pusher_position(message.name, position, bytes);
            }
        })
    }

    /// Tells the client if it knows positions. The protocol itself cannot, and the home has counted the gap.
    fn gap<I: Io>(
        clients: &mut Clients,
        subs: &mut Subscriptions,
        (slot, sub_index): (u32, u32),
        (_, from): (PartitionId, Position),
        io: &mut I,
    ) {
        if tells_positions(clients, slot) {
            let topic = name_of(&clients.conns, subs, slot, sub_index);
            let channel = &*channel_of(&topic);
            tell_gap(clients, slot, channel);
            // Only now: a client that is cut off before must be told again.
            let position = position_data(from);
            write_event(clients, POSITION, Some(channel), EventData::Text(&position));
            clients.send_reply(slot, io);
        }
    }

    /// The subscription outlives the topic, but the deleted messages after the client's position are lost. A client that subscribes is told after the
    /// answer to that.
    fn ended<I: Io>(
        clients: &mut Clients,
        subs: &mut Subscriptions,
        subscription: (u32, u32),
        (partition, deleted_until): (PartitionId, u64),
        io: &mut I,
    ) {
        clients.meter.stats.gaps += 1;
        let (slot, sub_index) = subscription;
        if let Some(pending) = pending_subscribe(clients, slot, sub_index) {
            pending.is_lost = true;
            return;
        }
        let from = Position::new(clients.ctx.world.epoch, deleted_until);
        Self::gap(clients, subs, subscription, (partition, from), io);
    }
}

/// Tells a client that knows positions that messages of a channel are lost.
fn tell_gap(clients: &mut Clients, slot: u32, channel: &str) {
    if tells_positions(clients, slot) {
        write_event(
            clients,
            b"pusher:gap",
            Some(channel),
            EventData::Text(b"{}"),
        );
    }
}
