//! Encodes the messages of the current run (live messages that are delivered together) once for all connections that get the same
//! bytes.

use alloc::borrow::Cow;
use alloc::vec::Vec;

use crate::base::planted::{self, Fault};
use crate::base::position::{self, Position};
use crate::client::delivery::FilterMessage;
use crate::mail::Frames;
use crate::protocol::centrifugo::names::channel_names;
use crate::protocol::encode::{Encoding, Message};
use crate::protocol::front::{Clients, Context, Feed, Matching, Topics};

/// A capacity that suffices for most positions by filter with 16 partitions.
const ID_BYTES: usize = 96;

/// Encodes the run, unless it was encoded for another subscriber.
pub(crate) fn encode_once(
    topics: &Topics,
    feed: &mut Feed,
    clients: &mut Clients,
    encoding: Encoding,
    topic: u32,
    frames: &Frames,
) {
    if !feed.run.encoded(encoding).is_empty() {
        return;
    }
    // Reading the name would cost a cache miss in each delivery, so it is read only if it is written.
    let name = match (encoding.names_channel(), encoding.names_topic()) {
        (true, _) => channel_names(&clients.ctx.world).exchange_bytes(topics.name(topic)),
        (false, true) => Cow::Borrowed(topics.name(topic)),
        (false, false) => Cow::Borrowed(&b""[..]),
    };
    for n in 0..feed.run.all_records().len() {
        let record = feed.run.all_records()[n];
        let id = &mut clients.scratch.position;
        id.clear();
        if encoding.names_position() {
            position::write(id, Position::new(clients.ctx.world.epoch, record.offset));
        }
        let message = Message {
            topic: &name,
            id,
            frames,
            record: &record,
            now_s: clients.ctx.now.unix_s,
        };
        feed.run
            .encoded(encoding)
            .push(|rope| message.encode(encoding, &mut clients.encodings, rope));
    }
}

/// Encodes all messages of the run, each with the position of a connection that is live in all partitions.
pub(crate) fn encode_run(
    matching: &Matching,
    feed: &mut Feed,
    clients: &mut Clients,
    encoding: Encoding,
    messages: &[FilterMessage],
    frames: &Frames,
) {
    if encoding == Encoding::PlainFrame || !feed.run.encoded(encoding).is_empty() {
        return;
    }
    let mut seen_offsets = matching.seen.clone();
    for message in messages {
        if planted::is(Fault::StaleVector) {
            seen_offsets.clone_from(&matching.seen);
        }
        if let Some(seen_offsets) = seen_offsets.get_mut(usize::from(message.partition)) {
            *seen_offsets = message.record.offset;
        }
        let mut id = Vec::with_capacity(ID_BYTES);
        write_live_id(&clients.ctx, &seen_offsets, &mut id);
        let message = Message {
            topic: frames.name(message.name),
            id: &id,
            frames,
            record: &message.record,
            now_s: clients.ctx.now.unix_s,
        };
        feed.run
            .encoded(encoding)
            .push(|rope| message.encode(encoding, &mut clients.encodings, rope));
    }
}

/// Writes the position of a connection that is live in all partitions and has seen them up to `seen`.
fn write_live_id(ctx: &Context, seen_offsets: &[u64], out: &mut Vec<u8>) {
    let epoch = ctx.world.epoch;
    let seen_offsets = seen_offsets
        .iter()
        .map(|offset| Position::new(epoch, *offset));
    position::write_partitions(out, ctx.world.partitions, seen_offsets);
}
