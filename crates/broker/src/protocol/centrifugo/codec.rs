//! Implements [`SubscriptionHandler`] for Centrifugo's protocol: replies to subscribe commands, pushes of messages, and lost messages.

use alloc::vec::Vec;

use crore_wire::centrifugo::{Answer, Publication, SubscribeResult};

use crate::base::ids::PartitionId;
use crate::base::planted::{self, Fault};
use crate::base::position::Position;
use crate::base::reason::Reason;
use crate::client::codec::{Message, OfferOutcome, SubscriptionHandler};
use crate::client::outbox::Packets;
use crate::client::row::Row;
use crate::client::send;
use crate::io::Io;
use crate::mail::{Frames, Page, Record};
use crate::protocol::centrifugo::delta::{has_deltas, note_sent, text_of, write_delta_push};
use crate::protocol::centrifugo::names::channel_names;
use crate::protocol::centrifugo::options::{DELTA, format_of, pushes_of};
use crate::protocol::centrifugo::publication::{Data, DeltaForm, MessageContent};
use crate::protocol::centrifugo::reply::{CommandRefusal, write_error, write_reply};
use crate::protocol::centrifugo::server_side::{end_for_refused_start, take_begin_by_server};
use crate::protocol::centrifugo::state::{epoch_text, is_subscribing};
use crate::protocol::centrifugo::subscribe::{
    drop_subscription, end_for_lost_messages, is_by_server, note_lost, reject_loss,
    take_subscribing,
};
use crate::protocol::encode::{Encoding, write_push};
use crate::protocol::front::{AllProtocols, Clients, Deliveries, Queues, Subscriptions};

/// The codec of Centrifugo's protocol.
pub(crate) struct CentrifugoCodec;

impl SubscriptionHandler<AllProtocols> for CentrifugoCodec {
    fn shared_encoding(row: &Row) -> Option<Encoding> {
        (!row.has_option(DELTA)).then(|| pushes_of(row))
    }

    fn tell_granted<I: Io>(_clients: &mut Clients, _slot: u32, _sub_index: u32, _io: &mut I) {}

    /// Answers the subscribe command with the messages of the first page. If the client has named a position, the reply tells whether messages after it are
    /// lost.
    fn send_first_page<I: Io>(
        clients: &mut Clients,
        (slot, sub_index): (u32, u32),
        page: &Page,
        (records, frames): (&[Record], &Frames),
        io: &mut I,
    ) -> bool {
        let Some(pending) = take_subscribing(clients, slot, sub_index) else {
            take_begin_by_server(clients, slot, sub_index);
            return false;
        };
        let is_planted = planted::is(Fault::SkippedPublication) && pending.wants_recovery;
        let records = &records[usize::from(is_planted).min(records.len())..];
        let format = format_of(clients.conns.get(slot));
        let contents = records.iter();
        let contents = contents.map(|record| MessageContent::of(format, (record, frames)));
        let contents: Vec<_> = contents.collect();
        let is_delta = has_deltas(&clients.conns, slot, sub_index);
        let texts: Vec<_> = match is_delta {
            true => contents.iter().map(|it| text_of(&it.data)).collect(),
            false => Vec::new(),
        };
        let publications: Vec<Publication<'_>> = match is_delta {
            true => {
                let items = contents.iter().zip(&texts);
                let items = items
                    .map(|(content, text)| content.publication_in(format, DeltaForm::Text(text)));
                items.collect()
            }
            false => contents.iter().map(MessageContent::publication).collect(),
        };
        if let Some(last) = records.last() {
            note_sent(&mut clients.conns, slot, sub_index, last.offset);
        }
        let data = Data::optional(format, &pending.data);
        let result = SubscribeResult {
            ttl: pending.ttl,
            recoverable: true,
            epoch: &epoch_text(page.epoch),
            publications: &publications,
            recovered: pending.wants_recovery && !pending.is_lost && !page.gap,
            offset: page.head + u64::from(planted::is(Fault::HighReplyOffset)),
            positioned: true,
            data: data.payload(),
            was_recovering: pending.wants_recovery,
            delta: is_delta,
        };
        let before = clients.scratch.reply.len();
        write_reply(clients, slot, pending.id, Answer::Subscribe(result));
        let bytes = clients.scratch.reply.len() - before;
        // The data is checked twice, and copied to the reply and to the outbox.
        clients.meter.work.steps.add_bytes(3 * bytes);
        clients.meter.stats.sent(records.len(), bytes);
        clients.send_reply(slot, io);
        true
    }

    /// Answers the subscribe command with an error, or ends the connection if the server has begun the subscription. A subscription that was granted before is
    /// refused if its topic was deleted and cannot be made again.
    fn refused<I: Io>(
        clients: &mut Clients,
        subs: &mut Subscriptions,
        _queues: &mut Queues,
        (slot, sub_index): (u32, u32),
        reason: Reason,
        io: &mut I,
    ) {
        match take_subscribing(clients, slot, sub_index) {
            Some(pending) => {
                drop_subscription(clients, subs, slot, sub_index);
                if let CommandRefusal::Error(code, text) =
                    CommandRefusal::for_reason(clients, slot, reason)
                {
                    write_error(clients, slot, pending.id, code, &text);
                }
            }
            None if is_by_server(clients, slot, sub_index) => {
                drop_subscription(clients, subs, slot, sub_index);
                return end_for_refused_start(clients, slot, reason, io);
            }
            None => return end_for_lost_messages(clients, subs, (slot, sub_index), io),
        }
        clients.send_reply(slot, io);
    }

    fn message(
        clients: &mut Clients,
        _subs: &Subscriptions,
        _deliveries: &Deliveries,
        (slot, sub_index): (u32, u32),
        message: &Message<'_>,
        out: &mut Packets,
    ) -> OfferOutcome {
        let (record, frames) = (message.record, message.frames);
        let encoding = pushes_of(clients.conns.get(slot));
        send::append_if_it_fits(clients, slot, message, out, |clients, bytes| {
            let subscription = (slot, sub_index);
            let channel = channel_names(&clients.ctx.world).exchange_bytes(message.name);
            if !write_delta_push(clients, subscription, &channel, (record, frames), bytes) {
                let encodings = &mut clients.encodings;
                write_push(encoding, &channel, (record, frames), encodings, bytes);
            }
        })
    }

    /// Refuses a subscribe whose client wants that. Ends a subscription that has begun, or the connection if the server began the subscription. The client
    /// begins again, and learns from the reply that messages are lost.
    fn gap<I: Io>(
        clients: &mut Clients,
        subs: &mut Subscriptions,
        (slot, sub_index): (u32, u32),
        _from: (PartitionId, Position),
        io: &mut I,
    ) {
        if !reject_loss(clients, subs, (slot, sub_index), io)
            && !is_subscribing(clients, slot, sub_index)
            && !take_begin_by_server(clients, slot, sub_index)
        {
            end_for_lost_messages(clients, subs, (slot, sub_index), io);
        }
    }

    /// Reports that the deleted messages after the client's position are lost: by the reply to the subscribe, by its refusal, or as a gap.
    fn ended<I: Io>(
        clients: &mut Clients,
        subs: &mut Subscriptions,
        (slot, sub_index): (u32, u32),
        _from: (PartitionId, u64),
        io: &mut I,
    ) {
        if !reject_loss(clients, subs, (slot, sub_index), io)
            && !note_lost(clients, slot, sub_index)
            && !take_begin_by_server(clients, slot, sub_index)
        {
            end_for_lost_messages(clients, subs, (slot, sub_index), io);
        }
    }
}
