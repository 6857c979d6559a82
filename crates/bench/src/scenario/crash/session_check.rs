//! Compares what a durable session received with the logs. This module uses no sockets.
//!
//! * Session Present is 1 from the SUBACK until the client ends the session.
//! * A session of QoS 1 or 2 receives every message of the log after its SUBACK. Messages of one topic and one QoS come in order (MQTT 5 §4.6).
//! * A message of QoS 1 may come again on a later connection, unless the server has certainly handled its acknowledgement and has not
//!   crashed since.
//! * A message of QoS 2 comes once, under a packet id that no other unreleased message has.
//! * A message of QoS 0 comes at most once, or, if subscriptions overlap, at most once for each subscription. It may be missing, because
//!   the client may not have read for a while.
//!
//! A client may subscribe while messages are published. Then the first message of a topic and a QoS shows where the subscription starts. A message that may
//! be the retained one shows nothing, so the check ignores it until the start is known.
//!
//! If the connection ends while the session receives retained messages, the server sends them again on a later connection. So a message that may be the
//! retained one may come before others without a fault.
//!
//! After a crash before the SUBACK, the server may or may not have the session with its subscriptions. The client subscribes again. Messages that were in
//! flight before the crash may come first. The subscription starts with the first message after them, and from then on every message must come.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ops::Range;

use serde::Serialize;

use super::checker::{Checker, Fault};
use super::message;
use super::session::SessionEvent;
use crate::report;

/// The maximum number of descriptions of each kind of tolerated event.
const NOTES_MAX: usize = 10;

/// The counts of all sessions.
#[derive(Clone, Debug, Default, Serialize)]
pub struct SessionCounts {
    /// Clients with a session.
    pub clients: u64,
    /// Connections.
    pub connections: u64,
    /// Connections that found their session.
    pub resumed: u64,
    /// The number of rounds in which a client was away, summed over all clients.
    pub rounds_away: u64,
    /// Received messages, without repetitions.
    pub received: u64,
    /// Messages of QoS 1 that came again.
    pub qos1_repeated: u64,
    /// Wills that were published.
    pub wills: u64,
    /// Wills that were published again.
    pub wills_twice: u64,
    /// Wills that were due but were not published. This is allowed if a crash came shortly after the will was due, or shortly after its connection began.
    pub wills_lost_at_crash: u64,
    /// Wills that were published although the client sent a DISCONNECT. This is allowed if a crash came shortly after the connection began or ended.
    pub wills_after_disconnect: u64,
    /// Descriptions of the first tolerated events of each kind. The server does not promise to prevent these events, so they are no faults, but they should
    /// be rare.
    pub notes: BTreeMap<&'static str, Vec<String>>,
}

impl SessionCounts {
    /// Describes a tolerated event, unless its kind has [`NOTES_MAX`] descriptions.
    pub fn add_note(&mut self, kind: &'static str, describe: impl FnOnce() -> String) {
        let notes = self.notes.entry(kind).or_default();
        if notes.len() < NOTES_MAX {
            notes.push(describe());
        }
    }

    /// Prints the counts and the notes.
    pub fn print(&self) {
        report::say(&format!(
            "{} sessions: {} connections, {} of them resumed, {} rounds away, {} messages received; {} of QoS 1 came again; \
             {} wills published, {} twice; at a crash {} wills lost, {} published after a DISCONNECT",
            self.clients,
            self.connections,
            self.resumed,
            self.rounds_away,
            self.received,
            self.qos1_repeated,
            self.wills,
            self.wills_twice,
            self.wills_lost_at_crash,
            self.wills_after_disconnect,
        ));
        for (kind, notes) in &self.notes {
            for note in notes {
                report::say(&format!("{kind}: {note}"));
            }
        }
    }
}

/// Where a subscription starts in the log of a topic, as an index of a message.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum SubscriptionStart {
    #[default]
    Unknown,
    /// At the first message that the client received.
    FirstMessage(usize),
    /// At the end that the log had when the client subscribed, because nobody published meanwhile.
    LogEnd(usize),
}

/// How a message was received: on which connection, and whether the client acknowledged it.
#[derive(Clone, Copy, Debug)]
struct Receipt {
    connection: u32,
    is_acknowledged: bool,
}

/// What the session has received of one topic with one QoS.
#[derive(Clone, Copy, Debug, Default)]
struct Sequence {
    start: SubscriptionStart,
    /// The index after the newest received message.
    next_index: usize,
    /// Do not report the next missing messages: they may be left from before the crash. The subscription starts after them.
    ignores_next_hole: bool,
}

#[derive(Clone, Debug, Default)]
struct TopicProgress {
    /// By QoS. The server may send a message of QoS 2 after later messages of QoS 1, so each QoS has its own start.
    sequences: [Sequence; 3],
    /// The received messages, by index in the log.
    receipts: HashMap<usize, Receipt>,
}

impl TopicProgress {
    /// The messages in this range of the log that the client has not received.
    fn missing_in(&self, range: Range<usize>) -> impl Iterator<Item = usize> + '_ {
        range.filter(|index| !self.receipts.contains_key(index))
    }
}

/// How far a session has received each topic.
pub struct SessionProgress {
    name: String,
    qos: u8,
    /// Whether the session has several subscriptions, which may overlap.
    may_overlap: bool,
    topics: HashMap<u32, TopicProgress>,
    /// The number of the present connection.
    connection: u32,
    /// Session Present of the present connection.
    is_present: bool,
    /// The connection on which the client sent its SUBSCRIBE, on which retained messages may come.
    subscribe_connection: u32,
    /// Connections that ended with a DISCONNECT that the server has handled.
    disconnected_cleanly: HashSet<u32>,
    /// The last connection before the last crash.
    last_before_crash: u32,
}

impl SessionProgress {
    /// The progress of a session with these topics and this QoS. With `may_overlap` the session has several subscriptions.
    pub fn new(name: String, qos: u8, may_overlap: bool, topics: &[u32]) -> SessionProgress {
        let topics = topics
            .iter()
            .map(|topic| (*topic, TopicProgress::default()));
        SessionProgress {
            name,
            qos,
            may_overlap,
            topics: topics.collect(),
            connection: 0,
            is_present: false,
            subscribe_connection: 0,
            disconnected_cleanly: HashSet::new(),
            last_before_crash: 0,
        }
    }

    /// Records that the client has subscribed while nobody published. Its subscriptions then start at the ends of the logs in `checker`. If the session
    /// already existed (a crash lost only its SUBACK), its subscriptions keep their starts.
    pub fn start_at_log_end(&mut self, checker: &Checker) {
        if self.is_present {
            return;
        }
        for (topic, progress) in &mut self.topics {
            let count = checker.message_count(*topic);
            progress.sequences.fill(Sequence {
                start: SubscriptionStart::LogEnd(count),
                next_index: count,
                ignores_next_hole: false,
            });
        }
    }

    /// Records that the server has crashed after all events so far.
    pub fn record_crash(&mut self) {
        self.last_before_crash = self.connection;
    }

    /// Checks an event that the client recorded before the last start of the server.
    pub fn check(
        &mut self,
        event: SessionEvent,
        checker: &mut Checker,
        counts: &mut SessionCounts,
    ) {
        match event {
            SessionEvent::Connected {
                session_present,
                expected_present,
            } => {
                self.connection += 1;
                self.is_present = session_present;
                counts.connections += 1;
                counts.resumed += u64::from(session_present);
                if expected_present
                    .is_some_and(|expected_present| expected_present != session_present)
                {
                    checker.faults.add(Fault::SessionPresent, || {
                        format!(
                            "{}: {session_present}, connection {}",
                            self.name, self.connection
                        )
                    });
                }
            }
            SessionEvent::Subscribing => {
                self.subscribe_connection = self.connection;
                self.reset_starts(|progress| progress.receipts.clear());
            }
            SessionEvent::Subscribed => self.reset_starts(|_| ()),
            SessionEvent::MaybeUnrecorded => self.record_crash(),
            SessionEvent::Disconnected => drop(self.disconnected_cleanly.insert(self.connection)),
            SessionEvent::IdReused { topic, number } => {
                checker.faults.add(Fault::Protocol, || {
                    let topic = message::topic_name(topic);
                    format!(
                        "{}: {topic} {number:#x} came under the packet id of another message, which is not released",
                        self.name
                    )
                });
            }
            SessionEvent::Message {
                topic,
                number,
                qos,
                is_acknowledged,
            } => {
                let receipt = Receipt {
                    connection: self.connection,
                    is_acknowledged,
                };
                self.check_message(topic, number, qos, receipt, checker, counts);
            }
        }
    }

    /// Makes the starts of all subscriptions unknown, and changes each topic's progress.
    fn reset_starts(&mut self, change_progress: impl Fn(&mut TopicProgress)) {
        let sequence = Sequence {
            ignores_next_hole: self.is_present,
            ..Sequence::default()
        };
        for progress in self.topics.values_mut() {
            progress.sequences.fill(sequence);
            change_progress(progress);
        }
    }

    /// The QoS with which this message must come.
    fn qos_of(&self, number: u32) -> u8 {
        let (publisher, _) = message::origin(number);
        message::qos_of(publisher).min(self.qos)
    }

    fn check_message(
        &mut self,
        topic: u32,
        number: u32,
        qos: u8,
        receipt: Receipt,
        checker: &mut Checker,
        counts: &mut SessionCounts,
    ) {
        let name = format!("{}: {} {number:#x}", self.name, message::topic_name(topic));
        let Some(index) = checker.index_of(topic, number) else {
            return checker.faults.add(Fault::SeenIsLost, || name);
        };
        let expected_qos = self.qos_of(number);
        if qos != expected_qos {
            let describe = || format!("{name} has QoS {qos} instead of {expected_qos}");
            checker.faults.add(Fault::Protocol, describe);
        }
        let may_be_retained = message::is_retained(topic, number);
        let is_subscribing = self.subscribe_connection == self.connection;
        let earlier = self
            .topics
            .get(&topic)
            .and_then(|it| it.receipts.get(&index))
            .copied();
        if let Some(earlier) = earlier {
            // A message may come once from the log and once as the retained message. The retained copy comes on a later connection if the first connection
            // ended early. And if the SUBACK was lost, the client subscribes again, so the old and the new subscription may both deliver the message.
            if may_be_retained || is_subscribing {
                return;
            }
            self.check_repetition(&name, qos, earlier, receipt, checker, counts);
        }
        let mut missing = self.missing_before(topic, index, qos, checker);
        let Some(progress) = self.topics.get_mut(&topic) else {
            return; // The client has checked the topic.
        };
        let sequence = &mut progress.sequences[usize::from(qos)];
        match sequence.start {
            SubscriptionStart::Unknown if may_be_retained => return,
            SubscriptionStart::Unknown => {
                sequence.start = SubscriptionStart::FirstMessage(index);
                sequence.next_index = index;
            }
            SubscriptionStart::FirstMessage(start) | SubscriptionStart::LogEnd(start)
                if index < start =>
            {
                if !may_be_retained && sequence.start == SubscriptionStart::LogEnd(start) {
                    checker.faults.add(Fault::SeenAgain, || {
                        format!(
                            "{name}, message {index}, on connection {}, although the subscription began at message {start} on connection {}",
                            receipt.connection, self.subscribe_connection
                        )
                    });
                }
                return;
            }
            _ if sequence.ignores_next_hole && !missing.is_empty() => {
                *sequence = Sequence {
                    start: SubscriptionStart::FirstMessage(index),
                    next_index: index,
                    ignores_next_hole: false,
                };
                missing.clear();
            }
            _ => {}
        }
        let is_new = progress.receipts.insert(index, receipt).is_none();
        counts.received += u64::from(is_new);
        if !is_new || may_be_retained && !missing.is_empty() {
            return;
        }
        if index < sequence.next_index {
            checker
                .faults
                .add(Fault::Disorder, || format!("{name} came late"));
        }
        sequence.next_index = (index + 1).max(sequence.next_index);
        if self.qos > 0 {
            self.report_missing(
                topic,
                &missing,
                checker,
                &format!(
                    "before {number:#x} on connection {}, subscribed on {}",
                    receipt.connection, self.subscribe_connection
                ),
            );
        }
    }

    fn check_repetition(
        &self,
        name: &str,
        qos: u8,
        earlier: Receipt,
        now: Receipt,
        checker: &mut Checker,
        counts: &mut SessionCounts,
    ) {
        let is_acknowledgement_handled = earlier.is_acknowledged
            && self.disconnected_cleanly.contains(&earlier.connection)
            && earlier.connection > self.last_before_crash;
        let describe = || {
            format!(
                "{name} on connections {} and {}",
                earlier.connection, now.connection
            )
        };
        match qos {
            0 if self.may_overlap => {}
            1 if earlier.connection < now.connection && !is_acknowledgement_handled => {
                counts.qos1_repeated += 1
            }
            _ => checker.faults.add(Fault::SeenAgain, describe),
        }
    }

    /// The messages of this QoS before the one at `index` that the client should have received and did not.
    fn missing_before(&self, topic: u32, index: usize, qos: u8, checker: &Checker) -> Vec<usize> {
        let Some(progress) = self.topics.get(&topic) else {
            return Vec::new();
        };
        let sequence = progress.sequences[usize::from(qos)];
        if sequence.start == SubscriptionStart::Unknown {
            return Vec::new();
        }
        let missing = progress.missing_in(sequence.next_index..index);
        missing
            .filter(|index| self.qos_of(checker.number_at(topic, *index)) == qos)
            .collect()
    }

    /// Reports missing messages, and counts them as received, so that each is reported once.
    fn report_missing(
        &mut self,
        topic: u32,
        missing: &[usize],
        checker: &mut Checker,
        context: &str,
    ) {
        for index in missing {
            let number = checker.number_at(topic, *index);
            let topic_name = message::topic_name(topic);
            let description = format!(
                "{}: {topic_name} {number:#x} never came, {context}",
                self.name
            );
            checker.faults.add(Fault::Skipped, || description);
            let receipt = Receipt {
                connection: self.connection,
                is_acknowledged: false,
            };
            if let Some(progress) = self.topics.get_mut(&topic) {
                progress.receipts.insert(*index, receipt);
            }
        }
    }

    /// Checks that the session has received all messages.
    pub fn check_all_received(&mut self, checker: &mut Checker) {
        if self.qos == 0 {
            return;
        }
        let topics: Vec<u32> = self.topics.keys().copied().collect();
        for topic in topics {
            let progress = &self.topics[&topic];
            let is_due = |index: &usize| {
                let qos = self.qos_of(checker.number_at(topic, *index));
                match progress.sequences[usize::from(qos)].start {
                    SubscriptionStart::Unknown => false,
                    SubscriptionStart::FirstMessage(start) | SubscriptionStart::LogEnd(start) => {
                        *index >= start
                    }
                }
            };
            let missing = progress
                .missing_in(0..checker.message_count(topic))
                .filter(is_due);
            let missing: Vec<usize> = missing.collect();
            self.report_missing(topic, &missing, checker, "at the end of its topic");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::position::Position;

    /// The topic retains no messages.
    const TOPIC: u32 = 1;
    /// A publisher with QoS 1, and one with QoS 2.
    const PUBLISHERS: [u32; 2] = [3, 11];

    fn number(index: usize) -> u32 {
        message::number(PUBLISHERS[index % 2], index as u32 + 1)
    }

    /// A log with eight messages, of QoS 1 and 2 in turn, and a session of QoS 2 from its beginning.
    fn checker_and_session() -> (Checker, SessionProgress) {
        let mut checker = Checker::new();
        let mut progress = SessionProgress::new("it".into(), 2, false, &[TOPIC]);
        let mut counts = SessionCounts::default();
        for event in [connected(false), SessionEvent::Subscribed] {
            progress.check(event, &mut checker, &mut counts);
        }
        progress.start_at_log_end(&checker);
        for index in 0..8 {
            let position = Position {
                epoch: 1,
                offset: index as u64 + 1,
            };
            checker.check_and_append(TOPIC, number(index), position, &[99; 32]);
        }
        (checker, progress)
    }

    fn connected(session_present: bool) -> SessionEvent {
        let expected_present = Some(session_present);
        SessionEvent::Connected {
            session_present,
            expected_present,
        }
    }

    fn message(index: usize) -> SessionEvent {
        SessionEvent::Message {
            topic: TOPIC,
            number: number(index),
            qos: [1, 2][index % 2],
            is_acknowledged: true,
        }
    }

    /// The faults after these events with a crash before event `crash_at`, and the number of messages of QoS 1 that came again.
    fn faults_and_repetitions(events: &[SessionEvent], crash_at: usize) -> (Vec<Fault>, u64) {
        let (mut checker, mut progress) = checker_and_session();
        let mut counts = SessionCounts::default();
        for (at, event) in events.iter().enumerate() {
            if at == crash_at {
                progress.record_crash();
            }
            progress.check(*event, &mut checker, &mut counts);
        }
        progress.check_all_received(&mut checker);
        let kinds = checker.faults.counts.into_keys().collect();
        (kinds, counts.qos1_repeated)
    }

    const NEVER: usize = usize::MAX;

    #[test]
    fn messages_of_each_qos_come_in_order_without_holes() {
        let all: Vec<SessionEvent> = (0..8).map(message).collect();
        assert_eq!(faults_and_repetitions(&all, NEVER), (vec![], 0));
        // The order holds separately for each QoS.
        let by_qos = [0, 2, 1, 4, 3, 6, 5, 7].map(message);
        assert_eq!(faults_and_repetitions(&by_qos, NEVER), (vec![], 0));
        let hole = [0, 1, 3, 4, 5, 6, 7].map(message);
        assert_eq!(
            faults_and_repetitions(&hole, NEVER),
            (vec![Fault::Skipped], 0)
        );
        let hole_of_qos_2 = [0, 1, 2, 4, 5, 6, 7].map(message);
        assert_eq!(
            faults_and_repetitions(&hole_of_qos_2, NEVER),
            (vec![Fault::Skipped], 0)
        );
        let end = [0, 1, 2, 3, 4, 5].map(message);
        assert_eq!(
            faults_and_repetitions(&end, NEVER),
            (vec![Fault::Skipped], 0)
        );
    }

    #[test]
    fn messages_of_qos_1_come_again_only_if_the_server_may_lack_their_acknowledgement() {
        let all = |between: &[SessionEvent], again: &[usize]| {
            let mut events: Vec<SessionEvent> = (0..8).map(message).collect();
            events.extend(between);
            events.extend(again.iter().copied().map(message));
            events
        };
        let cut = [connected(true)];
        let disconnected = [SessionEvent::Disconnected, connected(true)];
        assert_eq!(
            faults_and_repetitions(&all(&cut, &[4, 6]), NEVER),
            (vec![], 2)
        );
        assert_eq!(
            faults_and_repetitions(&all(&disconnected, &[4, 6]), NEVER),
            (vec![Fault::SeenAgain], 0)
        );
        assert_eq!(
            faults_and_repetitions(&all(&disconnected, &[4, 6]), 9),
            (vec![], 2)
        );
        assert_eq!(
            faults_and_repetitions(&all(&[], &[6]), NEVER),
            (vec![Fault::SeenAgain], 0)
        );
        assert_eq!(
            faults_and_repetitions(&all(&disconnected, &[7]), 9),
            (vec![Fault::SeenAgain], 0)
        );
    }

    #[test]
    fn lost_session_is_a_fault() {
        let all: Vec<SessionEvent> = (0..8).map(message).collect();
        let lost = SessionEvent::Connected {
            session_present: false,
            expected_present: Some(true),
        };
        let events = [all.as_slice(), &[lost]].concat();
        assert_eq!(
            faults_and_repetitions(&events, NEVER).0,
            [Fault::SessionPresent]
        );
    }

    #[test]
    fn subscription_whose_suback_was_lost_may_start_once_after_messages_in_flight() {
        let again = [
            connected(true),
            SessionEvent::Subscribing,
            message(0),
            SessionEvent::Subscribed,
            message(2),
        ];
        let all = |rest: &[usize]| {
            let rest = rest.iter().copied().map(message);
            again.into_iter().chain(rest).collect::<Vec<_>>()
        };
        assert_eq!(faults_and_repetitions(&all(&[6]), NEVER), (vec![], 0));
        let mut events = all(&[6]);
        events.insert(1, connected(false));
        assert_eq!(
            faults_and_repetitions(&events, NEVER),
            (vec![Fault::Skipped], 0)
        );
        assert_eq!(
            faults_and_repetitions(&all(&[4, 5, 7]), NEVER),
            (vec![Fault::Skipped], 0)
        );
    }
}
