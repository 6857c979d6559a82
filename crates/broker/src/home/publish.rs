//! A publish at its topic's home: the message gets its offset, is kept as its rule says, and is told to its subscribers.
//!
//! Invariant: all of that is one step, so that no attach and no other publish comes between.

use crore_wire::websocket::frame::{self, Opcode};

use super::Home;
use super::context::FactContext;
use super::row::{CREATED, DELETED, WANTS_DEFLATE};
use super::subscribers::Recipients;
use crate::base::settings::{Keep, Settings};
use crate::base::work::STEP_BYTES;
use crate::log::Log;
use crate::mail::message::{New, Publish};
use crate::mail::{Frames, Info, Record};
use crate::store::shared::SHARED_MIN;
use crate::store::slab::NONE;

fn opcode_of(binary: bool) -> Opcode {
    match binary {
        true => Opcode::Binary,
        false => Opcode::Text,
    }
}

/// The most bytes of a message that is compressed at this level, and the bytes that are compressed in the time of a step: one message
/// takes 25 ms at most, whatever its bytes are. At a higher level more places are compared for each byte: some 100 ns for the worst
/// bytes at level 6, 400 at level 9.
const fn packs(level: u8) -> (usize, usize) {
    match level {
        ..=1 => (1 << 20, 32),
        2..=6 => (256 << 10, 2),
        7.. => (64 << 10, 1),
    }
}

impl Home {
    /// Appends a message and sends it to all its subscribers. Its topic has this row, if there is one, and its partition this place.
    #[inline]
    pub(super) fn publish(
        &mut self,
        message: &Publish<'_>,
        (found, at): (Option<u32>, usize),
        offset: u64,
        context: &mut FactContext<'_>,
    ) -> Info {
        // One step for the message, and one for an older message that it displaces.
        self.steps.add(2 + message.data.len() / STEP_BYTES);
        let (rules, now) = (context.rules, context.now);
        let id = found
            .unwrap_or_else(|| self.create(message.hash, message.name, message.client, rules, now));
        self.partitions[at].sequence = offset;
        let row = self.rows.get_mut(id);
        let previous = row.last();
        row.set_last(offset);
        row.flags = (row.flags | CREATED) & !DELETED;
        let rule = rules.get(row.rule);
        let new = New {
            topic: id,
            offset,
            previous,
            owner: self.admission.log_owner(message.client),
            time_s: now.unix_s,
            latest: rule.keep == Keep::Latest,
            headers: message.headers,
            frame: &[],
            whole: None,
        };
        let recipients = self.find_subscribers(id, message.name, context.here, context.lanes.me);
        let most = match recipients.needs_log {
            true => rule
                .messages_max()
                .max(context.settings.mqtt.session_messages),
            false => rule.messages_max(),
        };
        let keep = most > 0;
        if !keep {
            // A log left from a subscriber that needed it is dropped: without this message it would have a hole.
            let log = core::mem::replace(&mut self.rows.get_mut(id).log, NONE);
            let kept = &mut self.partitions[at].log;
            let before = match log {
                NONE => previous,
                log => kept.abandon(log, now.unix_s).unwrap_or(previous),
            };
            kept.losses.add(id, before, offset);
        }
        if keep || message.headers.retain || recipients.is_anybody() {
            self.keep_and_tell(message, &new, most, &recipients, context);
        }
        if keep || message.headers.retain {
            self.log_grew(at, rules, now);
        }
        if !keep || message.headers.retain {
            self.queue_if_idle(id, now);
        }
        let mut info = self.info(id, now);
        info.subscribers += recipients.shards + u32::from(recipients.groups);
        info.wanted = recipients.needs_log;
        info
    }

    /// Builds a message's frame once: for the topic's log, which may have `most` messages, for the retained message, and for whom it is.
    fn keep_and_tell(
        &mut self,
        message: &Publish<'_>,
        new: &New<'_>,
        most: u32,
        recipients: &Recipients,
        context: &mut FactContext<'_>,
    ) {
        let FactContext {
            settings,
            rules,
            ref mut lanes,
            ..
        } = *context;
        let id = new.topic;
        let read_at = lanes.read_at;
        let frames = lanes.frames();
        let opcode = opcode_of(message.headers.binary);
        let (header, header_len) = frame::header(opcode, false, message.data.len());
        let header = &header[..header_len];
        let large = header_len + message.data.len() >= SHARED_MIN;
        let whole = large.then(|| Log::lay_out(new, [header, message.data], &self.admission));
        let span = match &whole {
            Some(frame) => frames.share(frame.clone()),
            None => frames.begin(header, message.data),
        };
        let kept = New {
            frame: frames.frame_at(span),
            whole,
            ..*new
        };
        if most > 0 {
            let at = self.at(id);
            let row = self.rows.get_mut(id);
            let rule = rules.get(row.rule);
            let log = &mut self.partitions[at].log;
            row.log = log.append(row.log, row.rule, rule, most, &kept);
        }
        if message.headers.retain {
            self.retain(id, &kept, message.data.is_empty(), rules);
        }
        if recipients.is_anybody() {
            frames.read_at(read_at);
            let record = self.record(id, frames, span, new, settings);
            self.tell(id, message.name, record, recipients, lanes);
        }
    }

    /// The message as the carriers get it.
    fn record(
        &mut self,
        id: u32,
        frames: &mut Frames,
        span: (u32, u32),
        new: &New<'_>,
        settings: &Settings,
    ) -> Record {
        let mut record = frames.finish(span, new);
        let deflate = &settings.deflate;
        if self.rows.get(id).has(WANTS_DEFLATE) {
            let data = frames.data(&record);
            let (bytes_max, bytes_per_step) = packs(deflate.level);
            if data.len() >= deflate.min_bytes && data.len() <= bytes_max {
                self.steps.add(data.len() / bytes_per_step);
                self.compressed.clear();
                self.compressor
                    .compress(data, deflate.level, &mut self.compressed);
                let opcode = opcode_of(new.headers.binary);
                let (header, len) = frame::header(opcode, true, self.compressed.len());
                frames.pack(
                    &mut record,
                    &header[..len],
                    &self.compressed,
                    &self.admission,
                );
            }
        }
        record
    }
}

#[cfg(test)]
mod tests;
