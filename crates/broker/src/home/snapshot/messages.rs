//! The messages in a snapshot: partition by partition, in the order of arrival.

use crore_wire::websocket::frame;

use super::row_here;
use crate::base::planted::{self, Fault};
use crate::base::rules::Rules;
use crate::base::settings::{RetentionMode, Settings};
use crate::base::snapshot::{Block, Damaged, FieldReader, Origin, kind};
use crate::base::time::Now;
use crate::budget::admission::Client;
use crate::home::Home;
use crate::home::compression::opcode_of;
use crate::home::logs::Logs;
use crate::home::topic_row::RestoredTopic;
use crate::log::Log;
use crate::log::arrival::{Arrival, ArrivalCursor};
use crate::mail::fields::check_stored_message;
use crate::mail::message::{Headers, NewMessage};
use crate::store::slab::NONE;

/// Flags of a message's record. `RETAINED`: it is its topic's retained message. `HAS_TTL`: it has a time to live. `RETAIN`: its publisher
/// has set the retain flag. `HAS_OWNER`: a client is charged for it. The QoS is in two bits from `QOS_SHIFT` on.
const RETAINED: u8 = 1;
const BINARY: u8 = 2;
const HAS_TTL: u8 = 4;
const RETAIN: u8 = 8;
const QOS_SHIFT: u8 = 4;
const HAS_OWNER: u8 = 64;
const IMPOSSIBLE: Damaged = Damaged("a message is impossible");

impl Logs {
    /// Writes messages from this cursor on; returns the cursor to continue with, if any are left.
    pub(crate) fn save_messages(
        &self,
        from: Option<(usize, ArrivalCursor)>,
        rules: &Rules,
        block: &mut Block<'_>,
    ) -> Option<(usize, ArrivalCursor)> {
        let all_arrivals = |log: &Log| {
            let lists = (0..rules.count()).map(|number| (number as u8, 0));
            log.arrivals(lists, u64::MAX)
        };
        let (first, mut arrivals) =
            from.unwrap_or_else(|| (0, all_arrivals(&self.partitions[0].log)));
        for (partition_index, log) in self.iter().enumerate().skip(first) {
            if partition_index > first {
                arrivals = all_arrivals(log);
            }
            if Self::save_log(log, &mut arrivals, rules, block) {
                return Some((partition_index, arrivals));
            }
        }
        None
    }

    /// Writes messages of a log; returns whether more are left.
    fn save_log(
        log: &Log,
        cursor: &mut ArrivalCursor,
        rules: &Rules,
        block: &mut Block<'_>,
    ) -> bool {
        loop {
            if block.is_full() {
                return true;
            }
            let Some(arrival) = log.next_arrival(cursor) else {
                return false;
            };
            let (id, topic, rule) = match arrival {
                Arrival::Kept {
                    id, topic, rule, ..
                } => (id, topic, rule),
                Arrival::Lost { .. } | Arrival::Orphaned { .. } => continue,
            };
            let message = log.message(id);
            let flag = |set, flag| if set { flag } else { 0 };
            let flags = flag(rule == rules.retained(), RETAINED)
                | flag(message.headers.binary, BINARY)
                | flag(message.headers.ttl_s.is_some(), HAS_TTL)
                | flag(message.headers.retain, RETAIN)
                | flag(message.owner.is_known(), HAS_OWNER)
                | message.headers.qos << QOS_SHIFT;
            let mut out = block.record(kind::MESSAGE);
            out.byte(flags);
            out.number(u64::from(topic));
            out.number(message.offset);
            out.number(message.previous);
            out.number(u64::from(message.time_s));
            if let Some(ttl_s) = message.headers.ttl_s {
                out.number(u64::from(ttl_s));
            }
            if message.owner.is_known() {
                out.number(u64::from(message.owner.number()));
            }
            for field in [
                message.headers.key,
                message.headers.content_type,
                message.headers.event,
                message.headers.attributes,
                message.frame,
            ] {
                out.field(field);
            }
        }
    }
}

impl Home {
    pub(crate) fn restore_message(
        &mut self,
        from: &mut FieldReader<'_>,
        origin: &Origin,
        topics: &[RestoredTopic],
        settings: &Settings,
        rules: &Rules,
        now: Now,
    ) -> Result<(), Damaged> {
        let (is_retained, message) = read_message(from, topics)?;
        let (id, offset, previous) = (message.topic, message.offset, message.previous);
        let has_moved = origin.home != self.logs.me;
        if id == NONE || has_moved && planted::is(Fault::LeftBehind) {
            return Ok(());
        }
        let partition_index = self.topic_partition_index(id);
        if offset == 0
            || offset > self.logs.partitions[partition_index].sequence
            || previous >= offset
        {
            return Err(IMPOSSIBLE);
        }
        let row = self.topics.rows.get(id);
        let rule = rules.get(row.rule);
        let message = NewMessage {
            latest: rule.keep == RetentionMode::Latest,
            ..message
        };
        if is_retained {
            // If the rule keeps only the latest messages, the topic's log is the retained state.
            if !message.latest {
                self.set_retained(id, &message, false, rules);
            }
            return Ok(());
        }
        let newest = self.logs.partitions[partition_index]
            .log
            .last_offset(row.chain);
        if offset <= newest || previous < newest {
            return Err(Damaged("messages of a topic are in disorder"));
        }
        let messages_max = match self.is_needed(id) {
            true => rule.messages_max().max(settings.mqtt.session_messages),
            false => rule.messages_max(),
        };
        if messages_max == 0 {
            let log = &mut self.logs.partitions[partition_index].log;
            log.losses.add(id, previous, offset);
            // If newer messages were removed without a loss, an empty chain (list of messages) stores the offset of the last loss.
            let row = self.topics.rows.get_mut(id);
            log.clear(row.chain);
            row.chain = match offset < row.last_offset() {
                true => log.empty_chain(id, row.rule, message.latest, offset),
                false => NONE,
            };
            return Ok(());
        }
        let row = self.topics.rows.get_mut(id);
        let log = &mut self.logs.partitions[partition_index].log;
        row.chain = log
            .append(
                row.chain,
                row.rule,
                rule,
                messages_max,
                usize::MAX,
                &message,
            )
            .0;
        if offset < row.last_offset() {
            // Newer messages may be restored later, or may have been removed without a loss. Without this call all of them would count as lost, if the
            // budget removes this message before they are restored.
            log.note_newest_removed(row.chain);
        }
        self.count_growth(partition_index, rules, now, usize::MAX);
        Ok(())
    }
}

/// Reads a message's record. Returns whether it is the topic's retained message, and the message. The record does not have the field `latest`, which
/// the caller sets by the topic's rule.
fn read_message<'a>(
    from: &mut FieldReader<'a>,
    topics: &[RestoredTopic],
) -> Result<(bool, NewMessage<'a>), Damaged> {
    let flags = from.byte()?;
    let topic = row_here(from.number32()?, topics)?;
    let (offset, previous, time_s) = (from.number()?, from.number()?, from.number32()?);
    let ttl_s = match flags & HAS_TTL != 0 {
        true => Some(from.number32()?),
        false => None,
    };
    let owner = match flags & HAS_OWNER != 0 {
        true => Client::from_number(from.number32()?),
        false => Client::NOBODY,
    };
    let mut fields = [&[][..]; 5];
    for field in &mut fields {
        *field = from.field()?;
    }
    let [key, content_type, event, attributes, frame] = fields;
    let binary = flags & BINARY != 0;
    let data = frame::payload(frame, opcode_of(binary)).ok_or(IMPOSSIBLE)?;
    let message = NewMessage {
        topic,
        offset,
        previous,
        owner,
        time_s,
        latest: false,
        headers: Headers {
            content_type,
            event,
            key,
            attributes,
            ttl_s,
            qos: flags >> QOS_SHIFT & 3,
            retain: flags & RETAIN != 0,
            binary,
        },
        frame,
        whole: None,
    };
    check_stored_message(&message.headers, data, None).map_err(Damaged)?;
    Ok((flags & RETAINED != 0, message))
}
