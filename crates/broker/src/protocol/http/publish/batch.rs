//! Publishes batches over HTTP: lines of JSON, each a message. A turn publishes as many lines as its budget allows, and the rest
//! waits.

use alloc::borrow::Cow;
use alloc::boxed::Box;
use alloc::format;
use alloc::vec::Vec;

use crore_wire::json;
use crore_wire::ndjson::{self, LineError};

use crate::base::ids::ShardId;
use crate::base::position;
use crate::base::reason::Reason;
use crate::base::settings::Settings;
use crate::base::turn_limits::PREFETCH_ROWS;
use crate::base::work::STEP_BYTES;
use crate::budget::stats::Transport;
use crate::client::asking::{prefetch_topics, publish_as};
use crate::client::credit::{must_stall, stall_if_needed};
use crate::client::publishing::PublishRefusal;
use crate::home::Home;
use crate::io::Io;
use crate::mail::fields::{check_fields, check_idempotency_key};
use crate::mail::message::{Headers, Publish};
use crate::mail::{Ask, Outcome, ReplyTo, WantedAnswer};
use crate::protocol::front::{
    Clients, Connections, Context, Front, Lanes, Matching, Meter, Queues, Subscriptions,
};
use crate::protocol::http::answer::{INTERNAL, answer_waiting};
use crate::protocol::http::publish::{self, wait_for_answer};
use crate::protocol::http::state::{Batch, PendingAnswer};
use crate::protocol::http::suggestions::{hint_for_line, quoted};
use crate::protocol::http::task::Flow;
use crate::store::slab::NONE;

/// The lines up to this number get an exact text if they are refused. The texts take memory, and the client chooses the number of lines.
const EXACT_LINES_MAX: u32 = 100;

/// The text about an unknown field.
fn unknown_field(error: LineError, name: &[u8]) -> Cow<'static, str> {
    format!(
        "{} is {}{}",
        quoted(name),
        error.reason(),
        hint_for_line(name)
    )
    .into()
}

/// The text about data that exceed the size limit of a message.
fn long_data(len: usize, max: usize) -> Cow<'static, str> {
    format!("the data has {len} bytes, more than limits.message_bytes allows ({max})").into()
}

/// The text about a line of this number: exact for the first lines, else plain.
fn line_text(
    number: u32,
    plain: &'static str,
    exact: impl FnOnce() -> Cow<'static, str>,
) -> Cow<'static, str> {
    match number <= EXACT_LINES_MAX {
        true => exact(),
        false => plain.into(),
    }
}

impl Batch {
    /// The heap bytes of the list of refused lines. The lines that wait are counted elsewhere.
    pub fn own_bytes(&self) -> usize {
        self.failures.capacity() * size_of_val(&(0_u32, Cow::Borrowed("")))
    }

    /// Records the outcome of a line that was handed to a home (a part of a shard that keeps topics).
    pub(super) fn note_outcome_of_line(
        &mut self,
        number: u32,
        outcome: Outcome,
        meter: &mut Meter,
        settings: &Settings,
    ) {
        self.replayed_lines += u32::from(matches!(outcome, Outcome::Replayed(_)));
        if let Some(reason) = outcome.refusal() {
            self.accepted_lines -= 1;
            let words = line_text(number, reason.text(), || reason.text_with_limit(settings));
            self.note_refused_line(meter, number, (reason, words));
        }
    }

    /// Records a refused line, and the status that the message would have got alone.
    fn note_refused_line(
        &mut self,
        meter: &mut Meter,
        number: u32,
        (reason, words): (Reason, Cow<'static, str>),
    ) {
        // Only HTTP has batches.
        meter.stats.refusals.add(reason, Transport::Http);
        self.failures.push((number, words));
        self.worst_status = self
            .worst_status
            .max(reason.row().status.unwrap_or(INTERNAL));
    }
}

/// Processes a batch: each line is published by itself, and the answer names those that failed.
pub(crate) fn publish_batch<I: Io>(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    queues: &mut Queues,
    slot: u32,
    body: &[u8],
    home: &mut Option<Home>,
    io: &mut I,
) -> Flow {
    let mut batch = Batch::default();
    // RFC 8259 section 8.1: a reader may ignore a byte order mark.
    let body = body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body);
    let read_bytes = publish_lines(clients, subs, slot, body, &mut batch, home);
    if read_bytes < body.len() {
        batch.unread = body[read_bytes..].to_vec();
        clients.meter.work.steps.add_bytes(batch.unread.len());
        clients.conns.count_held_bytes(batch.unread.capacity());
        queues.resume_later(clients, clients.conns.id_of(slot));
        return wait_for_answer(
            &mut clients.conns,
            slot,
            PendingAnswer::Batch(Box::new(batch)),
        );
    }
    match finish_reading_batch(clients, &mut subs.lanes, slot, &mut batch) {
        true => Flow::Next,
        false => {
            stall_if_needed(clients, &subs.lanes, queues, slot, io);
            wait_for_answer(
                &mut clients.conns,
                slot,
                PendingAnswer::Batch(Box::new(batch)),
            )
        }
    }
}

/// Continues a batch that did not end in its turn, if there is credit (`client/credit.rs`).
pub(crate) fn continue_batch<I: Io>(
    front: &mut Front,
    slot: u32,
    home: &mut Option<Home>,
    io: &mut I,
) {
    let (clients, subs, _, queues) = front.parts();
    if has_batch(&clients.conns, slot) && must_stall(clients, &subs.lanes, slot) {
        return queues.stall(&mut clients.conns, &mut clients.meter.stats, slot, io);
    }
    let Some(mut batch) = take_batch(&mut clients.conns, slot) else {
        return;
    };
    let body = core::mem::take(&mut batch.unread);
    clients.conns.stop_counting_held_bytes(body.capacity());
    let unread_start = batch.unread_start;
    batch.unread_start +=
        publish_lines(clients, subs, slot, &body[unread_start..], &mut batch, home);
    if batch.unread_start < body.len() {
        // The rest is not moved to the front of the buffer, because a turn may process only one line.
        batch.unread = body;
        clients.conns.count_held_bytes(batch.unread.capacity());
        queues.resume_later(clients, clients.conns.id_of(slot));
    } else if finish_reading_batch(clients, &mut subs.lanes, slot, &mut batch) {
        return answer_waiting(clients, queues, slot, io);
    } else {
        stall_if_needed(clients, &subs.lanes, queues, slot, io);
    }
    clients
        .conns
        .ensure_side_row(slot)
        .protocol_state
        .pending_answer = Some(PendingAnswer::Batch(batch));
}

/// Ends a batch because the log does not answer: the remaining lines are not published.
pub(super) fn abandon_batch<I: Io>(
    clients: &mut Clients,
    lanes: &mut Lanes,
    queues: &mut Queues,
    slot: u32,
    io: &mut I,
) {
    let Some(mut batch) = take_batch(&mut clients.conns, slot) else {
        return;
    };
    let rest = core::mem::take(&mut batch.unread);
    clients.conns.stop_counting_held_bytes(rest.capacity());
    let words = "the log has not answered in time; this and the rest were not published";
    let refused = (Reason::OutcomeUnknown, words.into());
    batch.note_refused_line(&mut clients.meter, batch.line_number + 1, refused);
    if finish_reading_batch(clients, lanes, slot, &mut batch) {
        return answer_waiting(clients, queues, slot, io);
    }
    clients
        .conns
        .ensure_side_row(slot)
        .protocol_state
        .pending_answer = Some(PendingAnswer::Batch(batch));
}

/// Publishes lines, as many as the turn's budget allows. Returns the number of bytes read.
fn publish_lines(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    body: &[u8],
    batch: &mut Batch,
    home: &mut Option<Home>,
) -> usize {
    let mut scratch = core::mem::take(&mut clients.protocol_state.line_scratch);
    let (mut rest, first_line) = (body, batch.line_number);
    while !rest.is_empty() {
        let lines_done = batch.line_number - first_line;
        if lines_done > 0 && clients.meter.work.is_spent() {
            break;
        }
        if (lines_done as usize).is_multiple_of(PREFETCH_ROWS) {
            prefetch_lines(&subs.matching, &clients.ctx, rest, home);
        }
        let (line, next) = ndjson::split_line(rest);
        rest = next;
        batch.line_number += 1;
        let number = batch.line_number;
        clients.meter.work.steps.add(1 + line.len() / STEP_BYTES);
        if line.is_empty() {
            continue;
        }
        let lines_max = clients.ctx.world.settings.limits.batch_lines;
        if number as usize > lines_max {
            let words = format!(
                "more lines than limits.batch_lines allows ({lines_max}); this and the rest were not read"
            );
            let refused = (Reason::BadField, words.into());
            batch.note_refused_line(&mut clients.meter, number, refused);
            rest = b"";
            break;
        }
        match publish_line(clients, subs, slot, line, number, &mut scratch, home) {
            Ok((home_shard, outcome)) => {
                batch.accepted_lines += 1;
                match outcome {
                    Some(outcome) => {
                        let settings = &clients.ctx.world.settings;
                        batch.note_outcome_of_line(number, outcome, &mut clients.meter, settings);
                    }
                    None => {
                        batch.asked_homes[home_shard as usize / 64 % 4] |= 1 << (home_shard % 64)
                    }
                }
            }
            Err(refused) => batch.note_refused_line(&mut clients.meter, number, refused),
        }
    }
    clients.protocol_state.line_scratch = scratch;
    body.len() - rest.len()
}

fn publish_line(
    clients: &mut Clients,
    subs: &mut Subscriptions,
    slot: u32,
    line: &[u8],
    number: u32,
    scratch: &mut ndjson::Scratch,
    home: &mut Option<Home>,
) -> Result<(ShardId, Option<Outcome>), (Reason, Cow<'static, str>)> {
    let bad_field = |words| (Reason::BadField, words);
    let line = match ndjson::parse(line, scratch) {
        Ok(line) => line,
        Err(error @ LineError::UnknownField) => {
            let exact = || unknown_field(error, scratch.unknown_field());
            return Err(bad_field(line_text(number, error.reason(), exact)));
        }
        Err(error) => return Err(bad_field(error.reason().into())),
    };
    let settings = &clients.ctx.world.settings;
    let checked = clients.check_publish(slot, line.topic, line.data.len(), || false);
    checked.map_err(|refused| {
        let reason = refused.reason();
        let exact = || match refused {
            PublishRefusal::Name(error) => format!("the topic {error}").into(),
            PublishRefusal::Other(Reason::MessageTooLong) => {
                long_data(line.data.len(), settings.limits.message_bytes)
            }
            _ => reason.text_with_limit(settings),
        };
        (reason, line_text(number, reason.text(), exact))
    })?;
    if !(line.content_type.is_empty() && line.event.is_empty() && line.key.is_empty()) {
        check_fields(line.content_type, line.event, line.key)
            .map_err(|words| bad_field(words.into()))?;
    }
    let key = line.idempotency_key.map_or(Ok(()), check_idempotency_key);
    key.map_err(|words| bad_field(words.into()))?;
    clients.check_publish_rate(slot).map_err(|reason| {
        let exact = || reason.text_with_limit(settings);
        (reason, line_text(number, reason.text(), exact))
    })?;
    let (hash, home_shard) = clients.ctx.hash_and_home_of(line.topic);
    let message = Publish {
        hash,
        name: line.topic,
        data: line.data,
        headers: Headers {
            content_type: line.content_type,
            event: line.event,
            key: line.key,
            ttl_s: line.ttl_s,
            qos: 1,
            binary: line.binary
                || line
                    .content_type
                    .eq_ignore_ascii_case(b"application/octet-stream"),
            ..Headers::default()
        },
        dedup: publish::dedup_key(clients, slot, line.idempotency_key),
        client: clients.conns.get(slot).consumer.client,
    };
    let answer = WantedAnswer::Failure(clients.conns.reply_to(slot, number));
    let outcome = publish_as(clients, subs, home, slot, home_shard, &message, answer);
    Ok((home_shard, outcome))
}

/// Records that a home has processed all its lines of a waiting batch. Answers after the last home.
pub(crate) fn handle_batch_fence<I: Io>(
    clients: &mut Clients,
    queues: &mut Queues,
    to: ReplyTo,
    io: &mut I,
) {
    let side_row = clients.conns.ensure_side_row(to.slot);
    let Some(PendingAnswer::Batch(batch)) = &mut side_row.protocol_state.pending_answer else {
        unreachable!("a fence belongs to a batch that waits")
    };
    batch.fences_due -= 1;
    if batch.fences_due > 0 {
        return;
    }
    let Some(PendingAnswer::Batch(mut batch)) = side_row.protocol_state.pending_answer.take()
    else {
        unreachable!("it was just seen")
    };
    respond_batch(clients, to.slot, &mut batch);
    answer_waiting(clients, queues, to.slot, io);
}

/// Whether a batch has lines left.
pub(crate) fn has_batch(conns: &Connections, slot: u32) -> bool {
    let row = conns.get(slot);
    row.side_row() != NONE
        && matches!(&conns.side_row(slot).protocol_state.pending_answer, Some(PendingAnswer::Batch(batch)) if !batch.unread.is_empty())
}

/// Takes a batch that has lines left.
fn take_batch(conns: &mut Connections, slot: u32) -> Option<Box<Batch>> {
    if !has_batch(conns, slot) {
        return None;
    }
    match conns
        .ensure_side_row(slot)
        .protocol_state
        .pending_answer
        .take()
    {
        Some(PendingAnswer::Batch(batch)) => Some(batch),
        _ => None,
    }
}

/// Drops the remaining lines of a batch, because the connection ends.
pub(crate) fn drop_batch(conns: &mut Connections, slot: u32) {
    if let Some(batch) = take_batch(conns, slot) {
        conns.stop_counting_held_bytes(batch.unread.capacity());
    }
}

/// Answers a batch after all lines were read, or sends a fence (a request that is answered after all earlier ones) to each home
/// that must still answer. Returns whether it has answered.
fn finish_reading_batch(
    clients: &mut Clients,
    lanes: &mut Lanes,
    slot: u32,
    batch: &mut Batch,
) -> bool {
    for home in 0..clients.ctx.world.homes.min(256) {
        if batch.asked_homes[home as usize / 64] & (1 << (home % 64)) != 0 {
            batch.fences_due += 1;
            let to = clients.conns.reply_to(slot, 0);
            lanes.ask(home, |_| Ask::Fence(to));
        }
    }
    if batch.fences_due == 0 {
        respond_batch(clients, slot, batch);
    }
    batch.fences_due == 0
}

/// Prefetches the rows of the topics in the next lines.
fn prefetch_lines(matching: &Matching, ctx: &Context, mut rest: &[u8], home: &Option<Home>) {
    prefetch_topics(matching, ctx, home, || {
        let (line, next) = ndjson::split_line(rest);
        let has_line = !core::mem::replace(&mut rest, next).is_empty();
        has_line.then(|| ndjson::leading_topic(line).unwrap_or_default())
    });
}

fn respond_batch(clients: &mut Clients, slot: u32, batch: &mut Batch) {
    batch.failures.sort_unstable();
    let mut body = Vec::with_capacity(64);
    body.extend_from_slice(b"{\"published\": ");
    position::write_decimal(&mut body, u64::from(batch.accepted_lines));
    if batch.replayed_lines > 0 {
        body.extend_from_slice(b", \"replayed\": ");
        position::write_decimal(&mut body, u64::from(batch.replayed_lines));
    }
    body.extend_from_slice(b", \"failed\": [");
    for (n, (line, reason)) in batch.failures.iter().enumerate() {
        body.extend_from_slice(if n == 0 {
            b"{\"line\": "
        } else {
            b", {\"line\": "
        });
        position::write_decimal(&mut body, u64::from(*line));
        body.extend_from_slice(b", \"reason\": ");
        json::write_string(&mut body, reason.as_bytes());
        body.push(b'}');
    }
    body.extend_from_slice(b"]}\n");
    let status = match batch.accepted_lines {
        0 if batch.worst_status > 0 => batch.worst_status,
        _ => 200,
    };
    clients.respond(slot, status, ("application/json", &body), None);
}
