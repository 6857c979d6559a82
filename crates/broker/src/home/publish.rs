//! Publishes a message at its home, the part of a shard that keeps the topic. The home stores it if the topic's rule says so, and sends it
//! to the carriers (the shards with subscribers). The caller has chosen its offset.
//!
//! Invariant: a publish is atomic. No attach (a request to subscribe) and no other publish runs in the middle of it.

use crore_wire::websocket::frame;

use super::Home;
use super::budget::steps_for_making_room;
use super::compression::opcode_of;
use super::context::HomeContext;
use super::logs::UntrimmedTopic;
use super::subscribers::Recipients;
use super::topic_row::{CREATED, DELETED};
use crate::base::settings::RetentionMode;
use crate::base::work::STEP_BYTES;
use crate::budget::admission::Party;
use crate::log::encode_shared;
use crate::mail::TopicInfo;
use crate::mail::message::{NewMessage, Publish};
use crate::store::shared::SHARED_MIN;
use crate::store::slab::NONE;

impl Home {
    /// Appends a message and sends it to its subscribers. `topic_id` is the topic's row, or `None` if the topic does not exist yet.
    #[inline]
    pub(super) fn publish(
        &mut self,
        message: &Publish<'_>,
        topic_id: Option<u32>,
        partition_index: usize,
        offset: u64,
        context: &mut HomeContext<'_>,
    ) -> TopicInfo {
        // One step for the message, one for an older message that it may replace, and one for each `STEP_BYTES` of data.
        self.steps.add(2 + message.data.len() / STEP_BYTES);
        let (rules, now) = (context.rules, context.now);
        let id = topic_id.unwrap_or_else(|| {
            self.insert_topic(message.hash, message.name, message.client, rules, now)
        });
        self.logs.partitions[partition_index].sequence = offset;
        let row = self.topics.rows.get_mut(id);
        let previous = row.last_offset();
        row.set_last_offset(offset);
        row.flags = (row.flags | CREATED) & !DELETED;
        let rule = rules.get(row.rule);
        let new_message = NewMessage {
            topic: id,
            offset,
            previous,
            owner: message.client,
            time_s: now.unix_s,
            latest: rule.keep == RetentionMode::Latest,
            headers: message.headers,
            frame: &[],
            whole: None,
        };
        let (name, local_filters, me) = (message.name, context.local_filters, context.lanes.me);
        let recipients = self.find_subscribers(id, name, local_filters, me);
        let messages_max = match recipients.needs_log {
            true => rule
                .messages_max()
                .max(context.settings.mqtt.session_messages),
            false => rule.messages_max(),
        };
        let is_kept = messages_max > 0;
        if !is_kept {
            // An earlier subscription may have left a log. This message will be missing in that log, so the log is dropped.
            let chain = core::mem::replace(&mut self.topics.rows.get_mut(id).chain, NONE);
            let log = &mut self.logs.partitions[partition_index].log;
            let last_before = match chain {
                NONE => previous,
                chain => log.discard(chain, now.unix_s).unwrap_or(previous),
            };
            log.losses.add(id, last_before, offset);
        }
        if is_kept || message.headers.retain || !recipients.is_empty() {
            self.store_and_deliver(message, &new_message, messages_max, &recipients, context);
        }
        if is_kept || message.headers.retain {
            let steps_max = steps_for_making_room(&self.turn_limits);
            self.count_growth(partition_index, rules, now, steps_max);
        }
        if !is_kept || message.headers.retain {
            self.queue_if_idle(id, now);
        }
        let mut info = self.topic_info(id, now);
        info.subscribers += recipients.matching_shards + u32::from(recipients.has_groups);
        info.needs_log = recipients.needs_log;
        info
    }

    /// Builds the message's frame once, appends it to the topic's log (which keeps at most `messages_max` messages), keeps it as the retained message,
    /// and sends it to the recipients.
    fn store_and_deliver(
        &mut self,
        message: &Publish<'_>,
        new_message: &NewMessage<'_>,
        messages_max: u32,
        recipients: &Recipients,
        context: &mut HomeContext<'_>,
    ) {
        let HomeContext {
            settings,
            rules,
            ref mut lanes,
            ..
        } = *context;
        let id = new_message.topic;
        let read_at = lanes.read_at;
        let frames = lanes.frames();
        let opcode = opcode_of(message.headers.binary);
        let (header, header_len) = frame::header(opcode, false, message.data.len());
        let header = &header[..header_len];
        let is_large = header_len + message.data.len() >= SHARED_MIN;
        let shared_frame =
            is_large.then(|| encode_shared(new_message, [header, message.data], &self.admission));
        let frame_range = match &shared_frame {
            Some(frame) => frames.push_shared(frame.clone()),
            None => frames.push_frame(header, message.data),
        };
        let stored = NewMessage {
            frame: frames.frame_at(frame_range),
            whole: shared_frame,
            ..*new_message
        };
        if messages_max > 0 {
            let partition_index = self.topic_partition_index(id);
            let row = self.topics.rows.get_mut(id);
            let rule = rules.get(row.rule);
            let log = &mut self.logs.partitions[partition_index].log;
            let steps_max = steps_for_making_room(&self.turn_limits);
            let (chain, must_trim) =
                log.append(row.chain, row.rule, rule, messages_max, steps_max, &stored);
            row.chain = chain;
            if must_trim {
                self.logs.budget.untrimmed = Some(UntrimmedTopic {
                    topic: id,
                    messages_max,
                    frame_bytes: stored.frame.len(),
                    time_s: stored.time_s,
                });
            }
        }
        if message.headers.retain {
            self.set_retained(id, &stored, message.data.is_empty(), rules);
        }
        let visits = 1 + self.topics.subscriber_count(id) + recipients.matching_shards;
        let publisher = Party::of_address(message.client);
        frames.visits_by_group.add(publisher, visits);
        if !recipients.is_empty() {
            frames.record_read_time(read_at);
            let record = self.compressor.push_record(
                &self.topics,
                id,
                frames,
                frame_range,
                new_message,
                settings,
            );
            self.send_to_subscribers(id, message.name, record, recipients, lanes);
        }
    }
}

#[cfg(test)]
mod tests;
