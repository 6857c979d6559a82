//! The messages in a snapshot: partition by partition, in the order of arrival.

use crore_wire::websocket::frame;

use super::topic_of;
use crate::base::planted::{self, Fault};
use crate::base::rules::Rules;
use crate::base::settings::{RetentionMode, Settings};
use crate::base::snapshot::{Block, Damaged, FieldReader, Origin, kind};
use crate::base::time::Now;
use crate::budget::admission::Client;
use crate::home::Home;
use crate::home::compression::opcode_of;
use crate::home::logs::Logs;
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
        let all = |log: &Log| {
            let lists = (0..rules.count()).map(|number| (number as u8, 0));
            log.arrivals(lists, u64::MAX)
        };
        let (first, mut arrivals) = from.unwrap_or_else(|| (0, all(&self.partitions[0].log)));
        for (at, log) in self.iter().enumerate().skip(first) {
            if at > first {
                arrivals = all(log);
            }
            if Self::save_log(log, &mut arrivals, rules, block) {
                return Some((at, arrivals));
            }
        }
        None
    }

    /// Writes messages of a log; returns whether more are left.
    fn save_log(log: &Log, at: &mut ArrivalCursor, rules: &Rules, block: &mut Block<'_>) -> bool {
        loop {
            if block.is_full() {
                return true;
            }
            let Some(next) = log.next_arrival(at) else {
                return false;
            };
            let (id, topic, rule) = match next {
                Arrival::Kept {
                    id, topic, rule, ..
                } => (id, topic, rule),
                Arrival::Lost { .. } | Arrival::Orphaned { .. } => continue,
            };
            let new = log.message(id);
            let flag = |set, flag| if set { flag } else { 0 };
            let form = flag(rule == rules.retained(), RETAINED)
                | flag(new.headers.binary, BINARY)
                | flag(new.headers.ttl_s.is_some(), HAS_TTL)
                | flag(new.headers.retain, RETAIN)
                | flag(new.owner.is_known(), HAS_OWNER)
                | new.headers.qos << QOS_SHIFT;
            let mut out = block.record(kind::MESSAGE);
            out.byte(form);
            out.number(u64::from(topic));
            out.number(new.offset);
            out.number(new.previous);
            out.number(u64::from(new.time_s));
            if let Some(ttl_s) = new.headers.ttl_s {
                out.number(u64::from(ttl_s));
            }
            if new.owner.is_known() {
                out.number(u64::from(new.owner.number()));
            }
            for field in [
                new.headers.key,
                new.headers.content_type,
                new.headers.event,
                new.headers.attributes,
                new.frame,
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
        topics: &[(u32, u32)],
        settings: &Settings,
        rules: &Rules,
        now: Now,
    ) -> Result<(), Damaged> {
        let (is_retained, new) = read_message(from, topics)?;
        let (id, offset, previous) = (new.topic, new.offset, new.previous);
        let moves = origin.home != self.logs.me;
        if id == NONE || moves && planted::is(Fault::LeftBehind) {
            return Ok(());
        }
        let at = self.topic_partition_index(id);
        if offset == 0 || offset > self.logs.partitions[at].sequence || previous >= offset {
            return Err(IMPOSSIBLE);
        }
        let row = self.topics.rows.get(id);
        let rule = rules.get(row.rule);
        let new = NewMessage {
            latest: rule.keep == RetentionMode::Latest,
            ..new
        };
        if is_retained {
            // Under a rule that keeps the latest, the topic's log is the retained state.
            if !new.latest {
                self.set_retained(id, &new, false, rules);
            }
            return Ok(());
        }
        let newest = self.logs.partitions[at].log.last_offset(row.log);
        if offset <= newest || previous < newest {
            return Err(Damaged("messages of a topic are in disorder"));
        }
        let most = match self.is_needed(id) {
            true => rule.messages_max().max(settings.mqtt.session_messages),
            false => rule.messages_max(),
        };
        if most == 0 {
            let log = &mut self.logs.partitions[at].log;
            log.losses.add(id, previous, offset);
            // If newer messages were removed without a loss, an empty chain (list of messages) keeps the offset of the last loss.
            let row = self.topics.rows.get_mut(id);
            log.clear(row.log);
            row.log = match offset < row.last() {
                true => log.empty_chain(id, row.rule, new.latest, offset),
                false => NONE,
            };
            return Ok(());
        }
        let row = self.topics.rows.get_mut(id);
        let log = &mut self.logs.partitions[at].log;
        row.log = log
            .append(row.log, row.rule, rule, most, usize::MAX, &new)
            .0;
        if offset < row.last() {
            // Newer messages may be restored later, or may have been removed without a loss. If the budget removes this message before, the whole
            // topic would count as lost without this note.
            log.note_newest_removed(row.log);
        }
        self.count_growth(at, rules, now, usize::MAX);
        Ok(())
    }
}

/// Reads a message's record. Returns whether it is the topic's retained message, and the message. Its field `latest` is not in the record:
/// the caller sets it by the topic's rule.
fn read_message<'a>(
    from: &mut FieldReader<'a>,
    topics: &[(u32, u32)],
) -> Result<(bool, NewMessage<'a>), Damaged> {
    let form = from.byte()?;
    let topic = topic_of(from.number32()?, topics)?;
    let (offset, previous, time_s) = (from.number()?, from.number()?, from.number32()?);
    let ttl_s = match form & HAS_TTL != 0 {
        true => Some(from.number32()?),
        false => None,
    };
    let owner = match form & HAS_OWNER != 0 {
        true => Client::from_number(from.number32()?),
        false => Client::NOBODY,
    };
    let mut fields = [&[][..]; 5];
    for field in &mut fields {
        *field = from.field()?;
    }
    let [key, content_type, event, attributes, frame] = fields;
    let binary = form & BINARY != 0;
    let data = frame::payload(frame, opcode_of(binary)).ok_or(IMPOSSIBLE)?;
    let new = NewMessage {
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
            qos: form >> QOS_SHIFT & 3,
            retain: form & RETAIN != 0,
            binary,
        },
        frame,
        whole: None,
    };
    check_stored_message(&new.headers, data, None).map_err(Damaged)?;
    Ok((form & RETAINED != 0, new))
}
