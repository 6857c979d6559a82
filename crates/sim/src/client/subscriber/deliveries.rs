//! Records the messages, positions and gaps that a subscriber receives, and checks each against the earlier ones.

use crore_broker::PartitionId;
use crore_broker::position::{self, Position, Since};
use crore_wire::topic;

use super::Subscriber;
use crate::client::track::Track;
use crate::coverage::Coverage;
use crate::truth::{SeenPosition, Truth, Violation, printable};

impl Subscriber {
    /// The positions in an id, in the order of the subscriber's topics.
    fn positions(&self, id: &[u8], truth: &Truth) -> Result<Vec<Position>, Violation> {
        let all = match &self.filtered {
            Some(filtered) => position::parse_partitions(id, filtered.partitions as PartitionId),
            None => {
                // A position of several topics begins with the hash of the set of topics.
                let set = id[1..].split(|b| *b == b'-').next().unwrap_or_default();
                let set = std::str::from_utf8(set).unwrap_or_default();
                let set = u32::from_str_radix(set, 16).unwrap_or_default();
                position::parse(id, set, self.tracks.len())
            }
        };
        let all = all.map_err(|_| format!("a malformed position: {}", printable(id)))?;
        let position_of = |since: Since| match since {
            Since::At(position) => Ok(position),
            other => Err(format!("{} says {other:?}", printable(id))),
        };
        let all: Vec<Position> = all.into_iter().map(position_of).collect::<Result<_, _>>()?;
        let Some(filtered) = &self.filtered else {
            return Ok(all);
        };
        // The id for a subscriber by filter has one position for each partition.
        let partition = |track: &Track| {
            let name = truth.topics[track.topic].name.as_bytes();
            usize::from(topic::slot(name)) % filtered.partitions
        };
        Ok(self
            .tracks
            .iter()
            .map(|track| all[partition(track)])
            .collect())
    }

    /// Records a position that was received without a message.
    pub(super) fn position_received(
        &mut self,
        id: &[u8],
        truth: &mut Truth,
    ) -> Result<(), Violation> {
        let positions = self.positions(id, truth)?;
        let (mut step, second) = (self.conn.request_step, self.conn.request_s);
        if self.filtered.is_some() {
            // The position may be that of an old message, since the server may still be sending the log. So its step is unknown.
            step = 0;
        }
        for (track, position) in self.tracks.iter_mut().zip(positions) {
            truth.note(|| format!("{:?} is told {position:?}", self.link));
            track.position_received(SeenPosition {
                offset: position.offset,
                step,
                second,
            });
        }
        self.position = Some(id.to_vec());
        Ok(())
    }

    /// Records a message. `id` is its position, if the transport has positions.
    pub(super) fn message_received(
        &mut self,
        data: &[u8],
        id: Option<&[u8]>,
        truth: &mut Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        let number = truth.number_of(data)?;
        let topic = truth.messages[number as usize].topic;
        let at = self.tracks.iter().position(|track| track.topic == topic);
        let at = at.ok_or_else(|| format!("message {number} of another topic"))?;
        coverage.messages += 1;
        truth.note(|| {
            let id = id.map(printable);
            format!(
                "{:?} {:?} gets {number} of topic {topic} at {id:?}",
                self.link, self.transport
            )
        });
        if let Some(id) = id {
            let position = self.positions(id, truth)?[at];
            truth.set_offset(number, position.offset)?;
            self.position = Some(id.to_vec());
        }
        if truth.has_copies(number) {
            // It is unknown which of the copies this is, so nothing can be checked.
            return Ok(());
        }
        self.tracks[at].message_received(number, truth)?;
        truth.check_not_stale(number, self.conn.request_step, self.conn.request_s)?;
        self.check_not_superseded(number, truth)?;
        self.check_not_expired(number, truth)
    }

    /// Checks that no superseded message has waited for the stalled socket. Exceptions are a message that had been sent in part, and the
    /// messages from before the stream began.
    fn check_not_superseded(&mut self, number: u32, truth: &Truth) -> Result<(), Violation> {
        let (Some(stalled), Some(established)) =
            (truth.last_stalled_step, self.conn.established_step)
        else {
            return Ok(());
        };
        self.conn.received_after_unstall += 1;
        let message = &truth.messages[number as usize];
        let is_first = self.conn.received_after_unstall == 1;
        if is_first || established > stalled || message.sent_step <= established {
            return Ok(());
        }
        if !truth.topics[message.topic].keeps_latest() {
            return Ok(());
        }
        truth.check_newest(number, "its socket opened", |other| {
            other.acked_step.is_some_and(|acked| acked <= stalled)
        })
    }

    /// Checks that a subscription whose socket was stalled gets no message that expired before the socket opened. If outboxes are small,
    /// such a subscription continues from the log, which has no expired messages. Exceptions are a page that had been sent in part, and the
    /// messages from before the stream began.
    fn check_not_expired(&self, number: u32, truth: &Truth) -> Result<(), Violation> {
        let (Some(stalled), Some(established), Some(page_messages)) = (
            truth.last_stalled_step,
            self.conn.established_step,
            truth.allowed.stalled_messages_max,
        ) else {
            return Ok(());
        };
        let message = &truth.messages[number as usize];
        let may_be_of_page =
            self.conn.received_after_unstall as usize <= 1 + page_messages * self.tracks.len();
        if may_be_of_page || established > stalled || message.sent_step <= established {
            return Ok(());
        }
        let expired = |ttl_s| message.acked_s + ttl_s <= truth.now_s;
        let was_handled = message.acked_step.is_some_and(|acked| acked <= stalled);
        match was_handled && message.ttl_s.is_some_and(expired) {
            true => Err(format!(
                "message {number} had expired when its socket opened"
            )),
            false => Ok(()),
        }
    }

    /// Records a gap (the notice that messages are lost) with the new position. The gap is in the topic `name`; without a name it is in
    /// each topic whose position moved.
    pub(super) fn gap_received(
        &mut self,
        name: Option<&[u8]>,
        id: &[u8],
        truth: &mut Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        coverage.told_gaps += 1;
        truth.note(|| {
            format!(
                "{:?} {:?} is told of a gap: {}",
                self.link,
                self.transport,
                printable(id)
            )
        });
        let positions = self.positions(id, truth)?;
        let name = name.filter(|_| self.filtered.is_none());
        let second = self.conn.request_s;
        let is_only_topic = self.tracks.len() == 1 && self.filtered.is_none();
        let (mut moved, mut lost) = (false, false);
        for (track, position) in self.tracks.iter_mut().zip(positions) {
            let named = name.map(|name| name == truth.topics[track.topic].name.as_bytes());
            let behind = track.seen.is_none_or(|seen| seen.offset < position.offset);
            // A position may move past expired or superseded messages without a loss.
            let reaches_back = track
                .seen
                .is_some_and(|seen| truth.must_reach_back(track.topic, seen));
            moved |= behind;
            if named.unwrap_or(is_only_topic || behind && !reaches_back) {
                lost = true;
                if self.filtered.is_some() && track.seen.is_none() {
                    // The server owes no earlier messages, since the subscriber had no position in this topic.
                    track.may_have_lost();
                    continue;
                }
                // The messages after the gap may have been acknowledged long ago. So the step is unknown, and 0 stands for that.
                let seen = SeenPosition {
                    offset: position.offset,
                    step: 0,
                    second,
                };
                track.gap_received(Some(seen), truth)?;
            }
        }
        if moved && !lost && !self.crash_may_have_removed(truth) {
            return Err("a gap was told although each of the logs reaches back".into());
        }
        self.position = Some(id.to_vec());
        Ok(())
    }

    /// Whether a crash may have removed messages that match the subscriber's filters, perhaps of topics that have no track.
    fn crash_may_have_removed(&self, truth: &Truth) -> bool {
        let filtered = self.filtered.as_ref();
        filtered.is_some_and(|it| truth.may_have_lost_for(&it.filters))
    }

    /// Records a gap that was received with a message of a long-poll.
    pub(super) fn poll_gap_received(
        &mut self,
        truth: &mut Truth,
        coverage: &mut Coverage,
    ) -> Result<(), Violation> {
        coverage.told_gaps += 1;
        // With filters, a crash may also have removed messages of topics that have no track.
        let is_only_topic = self.tracks.len() == 1 && !self.crash_may_have_removed(truth);
        let reaches_back = |track: &Track| {
            let seen = track.seen;
            seen.is_some_and(|seen| truth.must_reach_back(track.topic, seen))
        };
        let no_topic_has_gap = self.filtered.is_some() && self.tracks.iter().all(reaches_back);
        if no_topic_has_gap && !self.crash_may_have_removed(truth) {
            return Err("a gap was told although each of the logs reaches back".into());
        }
        for track in &mut self.tracks {
            if is_only_topic {
                track.gap_received(None, truth)?;
            } else {
                // The gap does not name its topics.
                track.may_have_lost();
            }
        }
        Ok(())
    }
}
