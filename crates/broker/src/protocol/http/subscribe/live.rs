//! Live messages for a stream on several topics: each is encoded for it.

use crate::client::outbox::Bounds;
use crate::client::send::fits;
use crate::io::Io;
use crate::mail::Frames;
use crate::protocol::front::{Clients, Feed, Run, Subscriptions};
use crate::protocol::http::state::Held;
use crate::protocol::http::subscribe::topics::encode_for;
use crate::store::rope::Rope;

/// Live messages of one of the topics of a stream.
pub(crate) fn stream_live_of_part<I: Io>(
    clients: &mut Clients,
    subs: &Subscriptions,
    feed: &mut Feed,
    slot: u32,
    (topic, part): (u32, u32),
    frames: &Frames,
    io: &mut I,
) {
    if clients.conns.extra_of(slot).own.attaching.is_some() {
        let bounds = clients.ctx.bounds_of(subs.topics.name(topic));
        hold_of_set(clients, &feed.run, slot, part, bounds, frames);
        return;
    }
    for n in 0..feed.run.records().len() {
        let record = &feed.run.records()[n].clone();
        let extra_row = clients.conns.extra_mut(slot);
        extra_row.list[part as usize].offset = record.offset;
        let mut bytes = Rope::default();
        encode_for(
            clients,
            subs,
            feed,
            slot,
            topic,
            (record, frames),
            &mut bytes,
        );
        if record.latest {
            if clients.offer(slot, &bytes, &[bytes.len()], io) == 1 {
                continue;
            }
        } else if fits(&clients.conns, slot, bytes.len(), || {
            clients.ctx.bounds_of(subs.topics.name(topic))
        }) {
            clients.put_messages(slot, &bytes, &[bytes.len()], io);
            clients.meter.stats.sent(1, bytes.len());
            continue;
        }
        return clients.fall_back(slot, part, record.previous);
    }
}

/// A stream on several topics that has not begun: its messages wait for the other homes, within the limits of an
/// outbox, unless they may be superseded meanwhile.
fn hold_of_set(
    clients: &mut Clients,
    run: &Run,
    slot: u32,
    part: u32,
    bounds: Bounds,
    frames: &Frames,
) {
    let extra = clients.conns.extra(slot);
    let attaching = extra.own.attaching.as_mut().expect("it is not begun");
    for record in run.records() {
        let (held, bytes) = (attaching.held.len(), attaching.frames.len());
        if !bounds.may_hold(held, bytes, record, frames.frame(record).len()) {
            return clients.fall_back_unsent(slot, part, record.previous);
        }
        let record = attaching.frames.copy(record, frames);
        attaching.held.push(Held::Message(part, record));
    }
}
