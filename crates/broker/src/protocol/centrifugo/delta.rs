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
use crate::client::run::Encodings;
use crate::mail::{Frames, Record};
use crate::protocol::centrifugo::options::{DELTA, format_of, pushes_of};
use crate::protocol::centrifugo::publication::{
    Data, DeltaForm, MessageContent, Tags, write_delta_form,
};
use crate::protocol::centrifugo::state::{DeltaBase, state, state_mut};
use crate::protocol::encode::{share_if_large, write_push_by};
use crate::protocol::front::{Clients, Connections};
use crate::store::rope::Rope;
use crate::store::shared::Form;

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
    tags: Tags,
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

    /// The delta of the message at `offset` for a client that has the one at `base`, with the tags of the message. `read` reads the message; it is called once
    /// for each message that `bytes_max` allows to keep.
    ///
    /// The order of messages on this shard decides which message a delta changes. The previous message of a reader may be another one: its page lacks messages that
    /// are superseded or have expired meanwhile.
    fn delta(
        &mut self,
        (format, name): (Format, &[u8]),
        (offset, base): (u64, u64),
        bytes_max: usize,
        read: impl FnOnce() -> (Box<[u8]>, Tags),
    ) -> Option<DeltaForm<'_>> {
        let form = usize::from(format == Format::Protobuf);
        let stored = self.by_form[form].get(name);
        if stored.is_none_or(|it| it.offset < offset) {
            let (text, tags) = read();
            let delta = stored.and_then(|it| shorter_delta(it, &text, &mut self.table));
            let latest = LatestMessage {
                offset,
                text,
                tags,
                delta,
            };
            self.store(form, name, latest, bytes_max);
        }
        let latest = self.by_form[form].get(name);
        let latest = latest.filter(|it| it.offset == offset)?;
        let delta = latest.delta.as_ref().filter(|it| it.base == base)?;
        Some(DeltaForm::Delta(&delta.bytes, latest.tags))
    }

    /// Drops all messages, so that the next message of each topic is sent whole.
    fn clear(&mut self) {
        self.by_form = Default::default();
        self.latest_bytes = 0;
    }

    fn store(&mut self, form: usize, name: &[u8], latest: LatestMessage, bytes_max: usize) {
        if let Some(old) = self.by_form[form].remove(name) {
            self.latest_bytes -= old.bytes() + name.len();
        }
        let bytes = latest.bytes() + name.len();
        if bytes > bytes_max {
            // A message that is too large costs the other topics nothing.
            return;
        }
        if self.latest_bytes + bytes > bytes_max {
            self.clear();
        }
        self.latest_bytes += bytes;
        self.by_form[form].insert(name.into(), latest);
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
    let bytes_max = clients.ctx.world.settings.centrifugo.delta_bytes;
    let steps = &clients.meter.work.steps;
    let read = || {
        let content = MessageContent::of(format, (record, frames));
        let text = text_of(&content.data).into_owned();
        steps.add_bytes(3 * text.len());
        (text.into_boxed_slice(), content.data.tags())
    };
    let offsets = (record.offset, sent_before);
    let latest = &mut clients.protocol_state.latest_messages;
    let delta = if clients.conns.level() >= MemoryLevel::Full {
        latest.clear();
        None
    } else if frames.data(record).len() > bytes_max {
        None
    } else {
        latest.delta((format, name), offsets, bytes_max, read)
    };
    if let Some(delta @ DeltaForm::Delta(bytes, _)) = delta {
        steps.add_bytes(bytes.len());
        let content = MessageContent::without_data((record, frames));
        write_push_by(encoding, out, |format, is_one_way, out| {
            write_delta_form(format, is_one_way, name, (&content, delta), out);
        });
        return true;
    }
    let form = Form::WholeWithoutDelta(encoding.number() as u8);
    share_if_large(form, (record, frames), &mut clients.encodings, out, |out| {
        let content = MessageContent::of(format, (record, frames));
        let text = text_of(&content.data);
        steps.add_bytes(text.len());
        write_push_by(encoding, out, |format, is_one_way, out| {
            let form = DeltaForm::Text(&text);
            write_delta_form(format, is_one_way, name, (&content, form), out);
        });
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
        // Whether the client gets a delta, and whether the message was read for it.
        let mut delta = |offsets, n| {
            let mut is_read = false;
            let delta = latest.delta((Format::Json, b"a"), offsets, 1_000, || {
                is_read = true;
                (text(n).into(), &[])
            });
            let has_delta = delta.is_some();
            (has_delta, is_read)
        };
        assert_eq!(delta((3, 0), 1), (false, true));
        assert_eq!(delta((5, 3), 2), (true, true));
        assert_eq!(delta((5, 3), 2), (true, false), "for the next subscriber");
        assert_eq!(
            delta((3, 0), 1),
            (false, false),
            "an older message, for a client that is behind"
        );
        assert_eq!(
            delta((9, 3), 3),
            (false, true),
            "a client whose page lacks a superseded message"
        );
        assert_eq!(delta((9, 5), 3), (true, false));
    }

    #[test]
    fn kept_bytes_are_bounded() {
        let mut latest = LatestMessages::default();
        let text = |len| move || (alloc::vec![b'x'; len].into(), &[][..]);
        for n in 1..100_u64 {
            let name = alloc::format!("{n}");
            let subscription = (Format::Protobuf, name.as_bytes());
            latest.delta(subscription, (n, 0), 1_000, text(100));
            assert!(latest.latest_bytes <= 1_000);
        }
        let kept_bytes = latest.latest_bytes;
        let delta = latest.delta((Format::Json, b"a"), (3, 0), 1_000, text(2_000));
        assert!(delta.is_none() && latest.by_form[0].is_empty());
        assert_eq!(
            latest.latest_bytes, kept_bytes,
            "it costs the others nothing"
        );
    }
}
