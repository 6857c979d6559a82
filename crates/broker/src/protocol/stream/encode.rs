//! Encodes messages for a stream, with the stream's own position.

use alloc::vec::Vec;

use crate::client::row::SUBSCRIPTION_LIST;
use crate::mail::{Frames, Record};
use crate::protocol::encode::{Encoding, Message};
use crate::protocol::front::{Clients, Feed, Subscriptions};
use crate::protocol::http::options::ENVELOPE;
use crate::store::rope::Rope;

/// Encodes one message for one connection.
pub(crate) fn encode_for(
    clients: &mut Clients,
    subs: &Subscriptions,
    feed: &Feed,
    slot: u32,
    topic: u32,
    (record, frames): (&Record, &Frames),
    out: &mut Rope,
) {
    let row = clients.conns.get(slot);
    let mut id = Vec::with_capacity(32);
    clients.write_position(
        &subs.matching,
        &feed.deliveries,
        slot,
        record.offset,
        &mut id,
    );
    let encoding = match Encoding::of_request(row) {
        // A connection with several topics gets uncompressed plain frames. Only the envelope names the topic.
        Encoding::CompressedFrame if row.has_option(SUBSCRIPTION_LIST) => Encoding::PlainFrame,
        encoding => encoding,
    };
    debug_assert!(row.has_option(ENVELOPE) || encoding != Encoding::EnvelopeFrame);
    Message {
        topic: match encoding.names_topic() || row.has_option(SUBSCRIPTION_LIST) {
            true => subs.topics.name(topic),
            false => b"",
        },
        id: &id,
        frames,
        record,
        now_s: clients.ctx.now.unix_s,
    }
    .encode(encoding, &mut clients.encodings, out);
}
