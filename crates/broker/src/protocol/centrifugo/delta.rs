//! Sends messages to subscribers with `delta: "fossil"` as deltas: as the difference from the topic's previous message. The delta of a message is made once,
//! however many subscribers get it.
//!
//! Invariants: a delta goes only to a client that was sent the previous message. Any other client gets the whole message. `centrifugo.delta_bytes` limits the
//! messages that are kept here, and they are charged to the memory account. While memory is short, none are kept, and messages are sent whole.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

use crore_wire::centrifugo::{Format, fossil};
use crore_wire::json;

use crate::budget::account::MemoryLevel;
use crate::client::row::Row;
use crate::mail::{Frames, Record};
use crate::protocol::centrifugo::options::{DELTA, format_of, pushes_of};
use crate::protocol::centrifugo::publication::{Data, DeltaForm, MessageContent, write_delta_form};
use crate::protocol::centrifugo::state::{DeltaBase, state, state_mut};
use crate::protocol::encode::write_push_by;
use crate::protocol::front::{Clients, Connections};
use crate::store::rope::Rope;

/// The latest messages of the topics that have subscribers with deltas on this shard.
#[derive(Default)]
pub(crate) struct LatestMessages {
    /// The messages by topic name, for each format.
    by_form: [BTreeMap<Box<[u8]>, LatestMessage>; 2],
    /// The bytes of all names, texts and deltas.
    latest_bytes: usize,
    /// Working memory of [`fossil::create`].
    table: Vec<u32>,
}

/// The latest message of a topic.
struct LatestMessage {
    offset: u64,
    text: Box<[u8]>,
    /// The delta from the message that was the latest one before; `None` if there was none, or if the whole message is shorter.
    delta: Option<Delta>,
}

struct Delta {
    /// The offset of the message that the delta changes into the latest one.
    base: u64,
    bytes: Box<[u8]>,
}

impl LatestMessage {
    fn bytes(&self) -> usize {
        size_of::<LatestMessage>()
            + self.text.len()
            + self.delta.as_ref().map_or(0, |it| it.bytes.len())
    }
}

impl LatestMessages {
    /// The bytes that this holds in memory.
    pub(crate) fn bytes(&self) -> usize {
        self.latest_bytes + self.table.capacity() * size_of::<u32>()
    }

    /// The delta of the message at `offset` for a client that has the one at `base`, and whether a delta was computed now. `bytes_max` limits the kept bytes.
    ///
    /// The order of messages on this shard decides which message a delta changes. The previous message of a reader may be another one: its page lacks messages that
    /// are superseded or have expired meanwhile.
    fn delta(
        &mut self,
        (format, name): (Format, &[u8]),
        ((offset, base), text): ((u64, u64), &[u8]),
        bytes_max: usize,
    ) -> (Option<&[u8]>, bool) {
        let form = usize::from(format == Format::Protobuf);
        let stored = self.by_form[form].get(name);
        let is_new = stored.is_none_or(|it| it.offset < offset);
        if is_new {
            let delta = stored.and_then(|it| shorter_delta(it, text, &mut self.table));
            let latest = LatestMessage {
                offset,
                text: text.into(),
                delta,
            };
            self.store(form, name, latest, bytes_max);
        }
        let latest = self.by_form[form].get(name);
        let latest = latest.filter(|it| it.offset == offset);
        let delta = latest.and_then(|it| it.delta.as_ref());
        let delta = delta.filter(|it| it.base == base);
        (delta.map(|it| &*it.bytes), is_new)
    }

    fn store(&mut self, form: usize, name: &[u8], latest: LatestMessage, bytes_max: usize) {
        if let Some(old) = self.by_form[form].remove(name) {
            self.latest_bytes -= old.bytes() + name.len();
        }
        let bytes = latest.bytes() + name.len();
        if bytes > bytes_max && bytes_max > 0 {
            // A message that is too large costs the other topics nothing.
            return;
        }
        if self.latest_bytes + bytes > bytes_max {
            // The next message of each topic is sent whole.
            self.by_form = Default::default();
            self.latest_bytes = 0;
        }
        if bytes <= bytes_max {
            self.latest_bytes += bytes;
            self.by_form[form].insert(name.into(), latest);
        }
    }
}

fn shorter_delta(old: &LatestMessage, new: &[u8], table: &mut Vec<u32>) -> Option<Delta> {
    let mut bytes = Vec::new();
    fossil::create(&old.text, new, table, &mut bytes);
    (bytes.len() < new.len()).then(|| Delta {
        base: old.offset,
        bytes: bytes.into(),
    })
}

/// The text of a message from which deltas are made. In JSON it is the text of a JSON value.
pub(super) fn text_of<'a>(data: &Data<'a>) -> Cow<'a, [u8]> {
    let quoted = |text: &[u8]| {
        let mut out = Vec::with_capacity(text.len() + 2);
        json::write_string(&mut out, text);
        Cow::Owned(out)
    };
    match data {
        Data::Value(data) => Cow::Borrowed(*data),
        Data::Text(text) => quoted(text),
        Data::Base64(text) => quoted(text),
    }
}

/// Begins the deltas of a subscription.
pub(super) fn begin_deltas(conns: &mut Connections, slot: u32, sub_index: u32) {
    conns.get_mut(slot).consumer.options |= DELTA;
    let base = DeltaBase {
        sub_index,
        sent_offset: 0,
    };
    let deltas = &mut state_mut(conns, slot).deltas;
    if let Err(index) = deltas.binary_search_by_key(&sub_index, |it| it.sub_index) {
        deltas.insert(index, base);
    }
}

/// Ends the deltas of a subscription that ends.
pub(super) fn end_deltas(conns: &mut Connections, slot: u32, sub_index: u32) {
    if let Some(index) = find_delta_base(conns, slot, sub_index) {
        let deltas = &mut state_mut(conns, slot).deltas;
        deltas.remove(index);
        if deltas.is_empty() {
            conns.get_mut(slot).consumer.options &= !DELTA;
        }
    }
}

/// Whether a subscription gets deltas.
pub(super) fn has_deltas(conns: &Connections, slot: u32, sub_index: u32) -> bool {
    find_delta_base(conns, slot, sub_index).is_some()
}

fn find_delta_base(conns: &Connections, slot: u32, sub_index: u32) -> Option<usize> {
    let is_wanted = |row: &Row| row.has_option(DELTA);
    let deltas = &state(conns, slot)
        .filter(|_| is_wanted(conns.get(slot)))?
        .deltas;
    deltas
        .binary_search_by_key(&sub_index, |it| it.sub_index)
        .ok()
}

/// Notes that the client of a subscription with deltas was sent the message at this offset.
pub(super) fn note_sent(conns: &mut Connections, slot: u32, sub_index: u32, offset: u64) {
    if let Some(index) = find_delta_base(conns, slot, sub_index) {
        state_mut(conns, slot).deltas[index].sent_offset = offset;
    }
}

/// Appends the push of a message for a subscription with deltas. False if it has none.
pub(super) fn write_delta_push(
    clients: &mut Clients,
    (slot, sub_index): (u32, u32),
    name: &[u8],
    (record, frames): (&Record, &Frames),
    out: &mut Rope,
) -> bool {
    let Some(index) = find_delta_base(&clients.conns, slot, sub_index) else {
        return false;
    };
    let base = &mut state_mut(&mut clients.conns, slot).deltas[index];
    let sent_before = core::mem::replace(&mut base.sent_offset, record.offset);
    let row = clients.conns.get(slot);
    let (format, encoding) = (format_of(row), pushes_of(row));
    let content = MessageContent::of(format, (record, frames));
    let text = text_of(&content.data);
    let bytes_max = match clients.conns.level() >= MemoryLevel::Full {
        true => 0,
        false => clients.ctx.world.settings.centrifugo.delta_bytes,
    };
    let offsets = (record.offset, sent_before);
    let latest = &mut clients.protocol_state.latest_messages;
    let (delta, is_new) = latest.delta((format, name), (offsets, &text), bytes_max);
    let passes = if is_new { 3 } else { 1 };
    clients.meter.work.steps.add_bytes(passes * text.len());
    let form = match delta {
        Some(delta) => DeltaForm::Delta(delta),
        None => DeltaForm::Text(&text),
    };
    write_push_by(encoding, out, |format, is_one_way, out| {
        write_delta_form(format, is_one_way, name, (&content, form), out);
    });
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delta_is_made_once_and_only_from_the_message_before() {
        let mut latest = LatestMessages::default();
        let text =
            |n: u8| alloc::format!("{{\"a long text that stays the same\":{n}}}").into_bytes();
        let subscription = (Format::Json, &b"a"[..]);
        let (delta, is_new) = latest.delta(subscription, ((3, 0), &text(1)), 1_000);
        assert!(delta.is_none() && is_new);
        let (delta, is_new) = latest.delta(subscription, ((5, 3), &text(2)), 1_000);
        assert!(delta.is_some() && is_new);
        let (delta, is_new) = latest.delta(subscription, ((5, 3), &text(2)), 1_000);
        assert!(delta.is_some() && !is_new, "for the next subscriber");
        let (delta, _) = latest.delta(subscription, ((3, 0), &text(1)), 1_000);
        assert!(
            delta.is_none(),
            "an older message, for a client that is behind"
        );
        let (delta, is_new) = latest.delta(subscription, ((9, 3), &text(3)), 1_000);
        assert!(
            delta.is_none() && is_new,
            "a client whose page lacks a superseded message"
        );
        let (delta, is_new) = latest.delta(subscription, ((9, 5), &text(3)), 1_000);
        assert!(delta.is_some() && !is_new);
    }

    #[test]
    fn kept_bytes_are_bounded() {
        let mut latest = LatestMessages::default();
        for n in 1..100_u64 {
            let name = alloc::format!("{n}");
            let subscription = (Format::Protobuf, name.as_bytes());
            latest.delta(subscription, ((n, 0), &[b'x'; 100]), 1_000);
            assert!(latest.latest_bytes <= 1_000);
        }
        let kept_bytes = latest.latest_bytes;
        let mut store_large = |bytes_max| {
            let (delta, _) =
                latest.delta((Format::Json, b"a"), ((3, 0), &[b'x'; 2_000]), bytes_max);
            assert!(delta.is_none() && latest.by_form[0].is_empty());
            latest.latest_bytes
        };
        assert_eq!(
            store_large(1_000),
            kept_bytes,
            "it costs the others nothing"
        );
        assert_eq!(store_large(0), 0, "while memory is short nothing is kept");
    }
}
