//! Counts the messages, latencies, losses and connections of a subscribing tool. In a grid the clients also publish, and their requests are
//! counted. A loss shows as a gap between the number of a message and that of the last message of its topic.

use serde_json::{Value, json};

use super::add_counters::add_counters;
use super::payload::Header;
use super::stats::Latency;

/// The known reason why messages are missing before a received message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GapReason {
    /// There is no known reason.
    Unexplained,
    /// The client had no connection when the missing messages were published.
    Away,
    /// The server has announced that messages are lost.
    Announced,
}

/// The counters of one worker (a thread with a part of the connections). All except `connections` start at zero in each measured window.
#[derive(Clone, Default)]
pub struct Tally {
    /// Latencies of the messages that have a header.
    pub latency: Latency,
    /// Received messages, with and without a header.
    pub messages: u64,
    /// Messages without a header, or with a send time in the future.
    pub unmeasured: u64,
    /// Messages that did not arrive, for no known reason, although a later message of the same topic did.
    pub lost: u64,
    /// Messages that arrived again, or after a later message of the same topic.
    pub doubled: u64,
    /// Received messages of a topic to which the connection is not subscribed.
    pub misdelivered: u64,
    /// Missing messages that were published while the client had no connection.
    pub missed_away: u64,
    /// Missing messages for which the server announced a gap, because its log no longer had them.
    pub announced_lost: u64,
    /// When the first message of the window arrived; 0 if none has arrived.
    pub first_arrival_ns: u64,
    /// When the last message of the window arrived; 0 if none has arrived.
    pub last_arrival_ns: u64,
    /// The publishes of the clients themselves, if they form a grid.
    pub grid_requests: RequestCounts,
    /// Counters of connections, over all windows.
    pub connections: ConnectionCounts,
}

/// Counters of connections since the start of the tool, over all windows.
#[derive(Clone, Default, serde::Serialize)]
pub struct ConnectionCounts {
    /// Bytes received.
    pub bytes: u64,
    /// Reads that returned data.
    pub chunks: u64,
    /// Connections that were opened. A long-poll counts when its request is sent, any other connection when its answer arrives.
    pub opened: u64,
    /// Open connections that the server closed.
    pub closed: u64,
    /// Answered long-polls.
    pub completed: u64,
    /// Failed attempts.
    pub failed: u64,
    /// Connections given up after too many failures.
    pub given_up: u64,
    /// The first failure, in words.
    pub first_failure: Option<String>,
}

impl Tally {
    /// Starts a new window.
    pub fn start_window(&mut self) {
        *self = Tally {
            connections: std::mem::take(&mut self.connections),
            ..Tally::default()
        };
    }

    /// Adds the counts of another worker.
    pub fn merge(&mut self, other: &Tally) {
        self.latency.merge(&other.latency);
        add_counters!(
            self, other;
            messages, unmeasured, lost, doubled, misdelivered, missed_away, announced_lost
        );
        if self.first_arrival_ns == 0
            || (other.first_arrival_ns != 0 && other.first_arrival_ns < self.first_arrival_ns)
        {
            self.first_arrival_ns = other.first_arrival_ns;
        }
        self.last_arrival_ns = self.last_arrival_ns.max(other.last_arrival_ns);
        self.grid_requests.merge(&other.grid_requests);
        let (own_counts, other_counts) = (&mut self.connections, &other.connections);
        add_counters!(own_counts, other_counts; bytes, chunks, opened, closed, completed, failed, given_up);
        if own_counts.first_failure.is_none() {
            own_counts
                .first_failure
                .clone_from(&other_counts.first_failure);
        }
    }

    /// Counts a message and returns its header.
    pub fn record_message(&mut self, payload: &[u8], now_ns: u64) -> Option<Header> {
        self.messages += 1;
        if self.first_arrival_ns == 0 {
            self.first_arrival_ns = now_ns;
        }
        self.last_arrival_ns = now_ns;
        let header = Header::decode(payload);
        match header.and_then(|header| now_ns.checked_sub(header.sent_ns)) {
            Some(latency_ns) => self.latency.add(latency_ns),
            None => self.unmeasured += 1,
        }
        header
    }

    /// Compares a message's number, `sequence`, with that of the last message of the same topic on the same connection. `gap_reason` tells why
    /// messages between the two may be missing.
    pub fn check_sequence(
        &mut self,
        last_sequence: &mut u32,
        sequence: u32,
        gap_reason: GapReason,
    ) {
        if sequence <= *last_sequence {
            self.doubled += 1;
            return;
        }
        // The first message of a connection may have any number.
        let gap = if *last_sequence == 0 {
            0
        } else {
            u64::from(sequence - *last_sequence - 1)
        };
        match gap_reason {
            GapReason::Unexplained => self.lost += gap,
            GapReason::Away => self.missed_away += gap,
            GapReason::Announced => self.announced_lost += gap,
        }
        *last_sequence = sequence;
    }
}

/// Counts of the publishes of clients that form a grid. With each request, a client publishes one message to each of its neighbours.
#[derive(Clone, Default)]
pub struct RequestCounts {
    /// Requests that were started.
    pub requests: u64,
    /// Messages that the server accepted.
    pub accepted: u64,
    /// Messages that the server refused.
    pub refused: u64,
    /// Messages in requests without an answer.
    pub unanswered: u64,
    /// Refusals because a shard was full (503). The tool repeats these requests.
    pub turned_away: u64,
    /// The longest time by which a request began later than planned.
    pub late_ns_max: u64,
    /// Times from the start of a connect to the answer to the request.
    pub answer_times: Latency,
    /// The first refusal or failure, in words.
    pub first_refusal: Option<String>,
}

impl RequestCounts {
    /// Adds the counts of another worker.
    pub fn merge(&mut self, other: &RequestCounts) {
        add_counters!(self, other; requests, accepted, refused, unanswered, turned_away);
        self.late_ns_max = self.late_ns_max.max(other.late_ns_max);
        self.answer_times.merge(&other.answer_times);
        if self.first_refusal.is_none() {
            self.first_refusal.clone_from(&other.first_refusal);
        }
    }

    /// Keeps the reason of a refusal or failure, if it is the first one.
    pub fn record_failure(&mut self, reason: impl Into<String>) {
        self.first_refusal.get_or_insert_with(|| reason.into());
    }

    /// The counts for the report.
    pub fn json(&self) -> Value {
        json!({
            "requests": self.requests,
            "accepted": self.accepted,
            "refused": self.refused,
            "unanswered": self.unanswered,
            "turned_away": self.turned_away,
            "late_ms_max": self.late_ns_max as f64 / 1e6,
            "answered_ms": self.answer_times.summary().json(),
            "first_refusal": self.first_refusal,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_and_repeats_are_counted() {
        let (mut tally, mut last_sequence) = (Tally::default(), 0);
        for sequence in [5, 6, 9, 9, 8, 10] {
            tally.check_sequence(&mut last_sequence, sequence, GapReason::Unexplained);
        }
        assert_eq!((tally.lost, tally.doubled, last_sequence), (2, 2, 10));
        tally.check_sequence(&mut last_sequence, 14, GapReason::Away);
        assert_eq!((tally.lost, tally.missed_away), (2, 3));
        tally.check_sequence(&mut last_sequence, 20, GapReason::Announced);
        assert_eq!(
            (tally.lost, tally.missed_away, tally.announced_lost),
            (2, 3, 5)
        );
    }

    #[test]
    fn a_new_window_keeps_the_connections_counters() {
        let mut tally = Tally::default();
        tally.record_message(b"hello", 9);
        tally.connections.opened = 3;
        tally.start_window();
        assert_eq!(
            (
                tally.messages,
                tally.last_arrival_ns,
                tally.connections.opened
            ),
            (0, 0, 3)
        );
    }
}
