//! MQTT clients with durable sessions in a cluster, and the publishers of their messages: the clients and checks of `crash`. Each connection of a
//! client is at a random node.
//!
//! After the last fault the publishers end, and the clients acknowledge everything. Then the run reads the logs at the first node. It compares them with
//! the logs of the other nodes, and with the records of publishers and clients.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::Serialize;

use super::fault_schedule::FaultRecord;
use crate::rig::RunArgs;
use crate::scenario::crash::{
    Checker, Counts, Course, Faults, LogReader, Outage, PUBLISHERS, Publisher, SessionCounts,
    Sessions, check_unchanged, sent_counts,
};
use crate::{report, sys};

/// The rules for the topics of the publishers and of the wills, which keep everything.
pub const RULES: &str = "\n[[rule]]\nmatch = \"crash/#\"\nlog_messages = 1000000\nlog_bytes = \"256 MiB\"\n\n[[rule]]\nmatch = \"wills/#\"\nlog_messages = 1000000\n";
/// Size limit of most messages, in bytes.
const MESSAGE_BYTES: u32 = 600;
/// The maximum pause of a publisher after its answers, in milliseconds.
const PAUSE_MS_MAX: u32 = 2_000;
/// If no message comes for this long, the clients have everything.
const SILENCE: Duration = Duration::from_secs(5);
/// Timeout until all clients know that the publishers have ended.
const LAST_TIMEOUT: Duration = Duration::from_secs(60);
/// Polling interval during that wait.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// The clients and publishers.
pub struct SessionLoad {
    sessions: Sessions,
    publishers: Vec<Publisher>,
    checker: Checker,
    /// The number of messages that the clients received.
    received: Arc<AtomicU64>,
    count: u32,
}

/// The counts of clients and publishers, and the faults.
#[derive(Serialize)]
pub struct SessionResult {
    /// The counts of the publishers.
    #[serde(flatten)]
    publishers: Counts,
    /// The counts of the sessions.
    #[serde(flatten)]
    sessions: SessionCounts,
    /// The faults.
    #[serde(flatten)]
    faults: Faults,
}

impl SessionLoad {
    /// Creates the publishers, and the number of clients that the flags give. No client has a session yet.
    pub fn new(args: &RunArgs) -> SessionLoad {
        let publishers = match args.sessions {
            0 => 0,
            _ => PUBLISHERS,
        };
        let publisher = |index| {
            let mut publisher = Publisher::new(index, args.seed, MESSAGE_BYTES);
            publisher.pause_ms_max = PAUSE_MS_MAX;
            publisher
        };
        let received = Arc::default();
        SessionLoad {
            sessions: Sessions::new(args.sessions, args, &received),
            publishers: (0..publishers).map(publisher).collect(),
            checker: Checker::new(),
            received,
            count: args.sessions,
        }
    }

    /// Runs clients and publishers while `run_meanwhile` runs. After that the clients continue until they have everything.
    pub fn run<T>(
        &mut self,
        nodes: &[SocketAddr],
        course: &Course,
        run_meanwhile: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.sessions.subscribe_some(nodes[0], &mut self.checker);
        let (received, count) = (&self.received, self.count);
        std::thread::scope(|scope| {
            for session in self.sessions.clients() {
                scope.spawn(move || session.run_in_cluster(nodes, course));
            }
            let publishers: Vec<_> = (self.publishers.iter_mut())
                .map(|publisher| {
                    scope.spawn(move || publisher.run_in_cluster(nodes, &course.is_last))
                })
                .collect();
            let result = run_meanwhile();
            course.is_last.store(true, Relaxed);
            let start = Instant::now();
            while !publishers.iter().all(|publisher| publisher.is_finished())
                || course.in_last.load(Relaxed) < count && start.elapsed() < LAST_TIMEOUT
            {
                std::thread::sleep(POLL_INTERVAL);
            }
            let are_all_in_last = course.in_last.load(Relaxed) == count;
            let mut last_received = u64::MAX;
            while last_received != received.load(Relaxed) {
                last_received = received.load(Relaxed);
                std::thread::sleep(SILENCE);
            }
            course.must_stop.store(true, Relaxed);
            ensure!(
                are_all_in_last,
                "a session ended early, or did not connect for {LAST_TIMEOUT:?}"
            );
            result
        })
    }

    /// Compares the records with the logs.
    pub fn check(&mut self, nodes: &[SocketAddr], fault_records: &[FaultRecord]) {
        if self.count == 0 {
            return;
        }
        for record in fault_records {
            self.sessions.record_outage(Outage {
                begin: instant_of(record.start_ns),
                end: instant_of(record.recovered_ns),
            });
        }
        let sent_counts = sent_counts(&self.publishers);
        let checker = &mut self.checker;
        LogReader::new().read(nodes[0], &sent_counts, checker);
        for node in &nodes[1..] {
            check_unchanged(*node, checker);
        }
        for publisher in &mut self.publishers {
            let answers = publisher.answers.drain(..);
            answers.for_each(|answer| checker.check_answer(&answer));
            checker.add_violations(publisher.violations.drain(..));
        }
        self.sessions.check_records(checker);
        self.sessions.check_at_end(nodes[0], checker);
    }

    /// The result.
    pub fn result(self) -> SessionResult {
        let mut publishers = Counts::default();
        for publisher in &self.publishers {
            publishers += publisher.counts;
        }
        SessionResult {
            publishers,
            sessions: self.sessions.counts(),
            faults: self.checker.faults,
        }
    }
}

impl SessionResult {
    /// Whether there was no fault, and every will that was due was published once.
    pub fn is_clean(&self) -> bool {
        self.faults.counts.is_empty()
            && self.sessions.wills_twice + self.sessions.wills_lost_at_crash == 0
    }

    /// Prints the counts, and the faults.
    pub fn print(&self) {
        if self.sessions.clients == 0 {
            return;
        }
        let publishers = &self.publishers;
        report::say(&format!(
            "for sessions: {} publishes answered, {} not, {} retried ({} of them recognised), {} refused; {} faults",
            publishers.answered,
            publishers.unanswered,
            publishers.retried,
            publishers.replayed,
            publishers.refused,
            self.faults.counts.values().sum::<u64>(),
        ));
        self.sessions.print();
        let descriptions = &self.faults.descriptions;
        descriptions
            .iter()
            .for_each(|description| report::say(description));
    }
}

/// The instant with this time of the monotonic clock.
fn instant_of(ns: u64) -> Instant {
    Instant::now() - Duration::from_nanos(sys::now_ns() - ns)
}
