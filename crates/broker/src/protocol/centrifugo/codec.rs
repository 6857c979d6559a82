//! What clients are told of their subscriptions.

use alloc::vec::Vec;

use crore_wire::centrifugo::{Answer, Payload, Publication, SubscribeResult};

use crate::base::ids::PartitionId;
use crate::base::position::Position;
use crate::base::reason::Reason;
use crate::client::codec::{Message, OfferOutcome, SubscriptionHandler};
use crate::client::outbox::Packets;
use crate::client::row::Row;
use crate::client::send;
use crate::io::Io;
use crate::mail::{Frames, Page, Record};
use crate::protocol::centrifugo::delta::{has_deltas, note_sent, text_of, write_delta_push};
use crate::protocol::centrifugo::options::{DELTA, format_of, pushes_of};
use crate::protocol::centrifugo::publication::{Data, Form};
use crate::protocol::centrifugo::reply::{Refused, write_error, write_reply};
use crate::protocol::centrifugo::server_side::begins_now;
use crate::protocol::centrifugo::state::{epoch_text, is_subscribing};
use crate::protocol::centrifugo::subscribe::{
    leave_part, messages_lost, note_lost, take_subscribing,
};
use crate::protocol::encode::{Encoding, write_push};
use crate::protocol::front::{AllProtocols, Clients, Deliveries, Queues, Subscriptions};
use crate::store::slab::NONE;

/// The codec.
pub(crate) struct CentrifugoCodec;

impl SubscriptionHandler<AllProtocols> for CentrifugoCodec {
    fn shared_encoding(row: &Row) -> Option<Encoding> {
        (!row.has_option(DELTA)).then(|| pushes_of(row))
    }

    fn tell_granted<I: Io>(_clients: &mut Clients, _slot: u32, _part: u32, _io: &mut I) {}

    /// The reply has the messages of the first page. If the client has named a position, the reply tells whether they are all since then.
    fn send_first_page<I: Io>(
        clients: &mut Clients,
        (slot, part): (u32, u32),
        page: &Page,
        (records, frames): (&[Record], &Frames),
        io: &mut I,
    ) -> bool {
        let Some(waits) = take_subscribing(clients, slot, part) else {
            begins_now(clients, slot, part);
            return false;
        };
        let format = format_of(clients.conns.get(slot));
        let data = records
            .iter()
            .map(|it| (Data::of(format, frames.data(it)), it.offset));
        let data: Vec<_> = data.collect();
        let is_delta = has_deltas(&clients.conns, slot, part);
        let texts: Vec<_> = match is_delta {
            true => data.iter().map(|(data, _)| text_of(data)).collect(),
            false => Vec::new(),
        };
        let publications: Vec<Publication<'_>> = match is_delta {
            true => {
                let each = data.iter().zip(&texts);
                let each = each.map(|((data, offset), text)| {
                    data.publication_in(format, *offset, Form::Text(text))
                });
                each.collect()
            }
            false => {
                let each = data.iter();
                each.map(|(data, offset)| data.publication(*offset))
                    .collect()
            }
        };
        if let Some(last) = records.last() {
            note_sent(&mut clients.conns, slot, part, last.offset);
        }
        let result = SubscribeResult {
            ttl: waits.ttl,
            recoverable: true,
            epoch: &epoch_text(page.epoch),
            publications: &publications,
            recovered: waits.recovers && !waits.is_lost && !page.gap,
            offset: page.head,
            positioned: true,
            data: Payload::Value(b""),
            was_recovering: waits.recovers,
            delta: is_delta,
        };
        let before = clients.scratch.reply.len();
        write_reply(clients, slot, waits.id, Answer::Subscribe(result));
        let bytes = clients.scratch.reply.len() - before;
        clients.meter.stats.sent(records.len(), bytes);
        clients.send_reply(slot, io);
        true
    }

    /// A subscription that was granted before is refused if its topic was deleted and cannot be made again.
    fn refused<I: Io>(
        clients: &mut Clients,
        subs: &mut Subscriptions,
        _queues: &mut Queues,
        (slot, part): (u32, u32),
        reason: Reason,
        io: &mut I,
    ) {
        match take_subscribing(clients, slot, part) {
            Some(waits) => {
                leave_part(clients, subs, slot, part);
                if let Refused::Error(code, words) = Refused::for_reason(clients, slot, reason) {
                    write_error(clients, slot, waits.id, code, &words);
                }
            }
            None => return messages_lost(clients, subs, (slot, part), io),
        }
        clients.send_reply(slot, io);
    }

    fn message(
        clients: &mut Clients,
        _subs: &Subscriptions,
        _deliveries: &Deliveries,
        (slot, part): (u32, u32),
        message: &Message<'_>,
        out: &mut Packets,
    ) -> OfferOutcome {
        let (record, frames) = (message.record, message.frames);
        let row = clients.conns.get(slot);
        let (waits, encoding) = (row.link.outbox != NONE, pushes_of(row));
        let bytes = out.bytes.len() + frames.frame(record).len();
        let bounds = || {
            clients
                .ctx
                .bounds_for_topic(message.name)
                .after(out.ends.len())
        };
        if record.latest && waits || !send::fits(&clients.conns, slot, bytes, bounds) {
            return OfferOutcome::Full;
        }
        let before = out.bytes.len();
        let of = (slot, part);
        if !write_delta_push(clients, of, message.name, (record, frames), &mut out.bytes) {
            write_push(encoding, message.name, (record, frames), &mut out.bytes);
        }
        clients.meter.stats.sent(1, out.bytes.len() - before);
        if clients.ctx.world.rules.count_waiting() {
            out.ends.push(out.bytes.len());
        }
        OfferOutcome::Done
    }

    /// The subscription ends, or the connection if the server began it. The client begins again and recovers, and learns from the reply that messages are lost.
    fn gap<I: Io>(
        clients: &mut Clients,
        subs: &mut Subscriptions,
        (slot, part): (u32, u32),
        _from: (PartitionId, Position),
        io: &mut I,
    ) {
        if !is_subscribing(clients, slot, part) && !begins_now(clients, slot, part) {
            messages_lost(clients, subs, (slot, part), io);
        }
    }

    /// The deleted messages after the client's position are lost. The reply to the subscribe tells it, or the subscription ends, as for a gap.
    fn ended<I: Io>(
        clients: &mut Clients,
        subs: &mut Subscriptions,
        (slot, part): (u32, u32),
        _from: (PartitionId, u64),
        io: &mut I,
    ) {
        if !note_lost(clients, slot, part) && !begins_now(clients, slot, part) {
            messages_lost(clients, subs, (slot, part), io);
        }
    }
}
