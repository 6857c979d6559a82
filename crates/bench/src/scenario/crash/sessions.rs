//! The durable sessions of a run: subscribes them, hands them to the threads of the round, and checks their records.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use super::checker::Checker;
use super::log_reader;
use super::outage::Outage;
use super::session::{Session, WILL_DELAY_MAX_S};
use super::session_check::{SessionCounts, SessionProgress};
use super::wills;
use crate::measure::payload::Random;
use crate::rig::RunArgs;

/// The maximum time from the end of the longest will delay until the will is in the log, in seconds.
const WILL_LATENESS_MAX_S: u32 = 7;
/// Interval at which the logs of wills are read.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// One in this many sessions subscribes while nobody publishes. The other sessions subscribe under load.
const BEGINS_QUIETLY_EVERY: u32 = 2;

/// All sessions.
pub struct Sessions {
    sessions: Vec<(Session, SessionProgress)>,
    random: Random,
    counts: SessionCounts,
    /// The periods in which the server could fail.
    outages: Vec<Outage>,
}

impl Sessions {
    /// `count` clients that have no session yet. `received` counts the messages of all subscribers.
    pub fn new(count: u32, args: &RunArgs, received: &Arc<AtomicU64>) -> Sessions {
        let session = |index| {
            let session = Session::new(index, args.seed, received);
            let progress = SessionProgress::new(
                session.name(),
                session.qos,
                session.has_several_filters(),
                &session.topics,
            );
            (session, progress)
        };
        Sessions {
            sessions: (0..count).map(session).collect(),
            random: Random::new(args.seed ^ 0x5e5),
            outages: Vec::new(),
            counts: SessionCounts {
                clients: count.into(),
                ..SessionCounts::default()
            },
        }
    }

    /// Subscribes half of the clients without a session. Nobody publishes meanwhile.
    pub fn subscribe_some(&mut self, address: SocketAddr, checker: &mut Checker) {
        for (session, progress) in &mut self.sessions {
            if session.is_subscribed || self.random.below(BEGINS_QUIETLY_EVERY) > 0 {
                continue;
            }
            session.subscribe_and_disconnect(address);
            for event in session.events.drain(..) {
                progress.check(event, checker, &mut self.counts);
            }
            if session.is_subscribed {
                progress.start_at_log_end(checker);
            }
        }
    }

    /// The clients. They run until the server is gone.
    pub fn clients(&mut self) -> impl Iterator<Item = &mut Session> {
        self.sessions.iter_mut().map(|(session, _)| session)
    }

    /// Records that the server was killed soon after `killed_after`.
    pub fn record_crash(&mut self, killed_after: Instant) {
        // A client may have connected between `killed_after` and the end of the server.
        self.record_outage(Outage {
            begin: killed_after,
            end: Instant::now(),
        });
        self.clients()
            .for_each(|session| session.record_crash(killed_after));
    }

    /// Records a period in which the server could fail.
    pub fn record_outage(&mut self, outage: Outage) {
        self.outages.push(outage);
    }

    /// Checks what the clients recorded before the crash.
    pub fn check_records(&mut self, checker: &mut Checker) {
        for (session, progress) in &mut self.sessions {
            for event in session.events.drain(..) {
                progress.check(event, checker, &mut self.counts);
            }
            progress.record_crash();
            checker.add_violations(session.violations.drain(..));
        }
    }

    /// Checks that all messages have arrived, and waits for the wills that are due.
    pub fn check_at_end(&mut self, address: SocketAddr, checker: &mut Checker) {
        for (_, progress) in &mut self.sessions {
            progress.check_all_received(checker);
        }
        let timeout = Duration::from_secs((WILL_DELAY_MAX_S + WILL_LATENESS_MAX_S).into());
        let begin = Instant::now();
        for (session, _) in self.sessions.iter().filter(|(session, _)| session.has_will) {
            let counts_by_number = loop {
                let counts_by_number = published_wills(address, session.will_topic(), checker);
                let mut due = wills::all_due(&session.connections);
                let are_all_published = due.all(|number| counts_by_number.contains_key(&number));
                if are_all_published || begin.elapsed() > timeout {
                    break counts_by_number;
                }
                std::thread::sleep(POLL_INTERVAL);
            };
            let name = session.name();
            let connections = &session.connections;
            let outages = [&self.outages[..], &session.early_connects].concat();
            wills::check(
                &name,
                connections,
                &counts_by_number,
                &outages,
                &mut checker.faults,
                &mut self.counts,
            );
        }
    }

    /// The results.
    pub fn counts(mut self) -> SessionCounts {
        let away = self.sessions.iter().map(|(session, _)| session.rounds_away);
        self.counts.rounds_away = away.sum();
        self.counts
    }
}

/// Counts the copies of each connection's will in the log of a will topic, by the connection's number.
fn published_wills(address: SocketAddr, topic: u32, checker: &mut Checker) -> HashMap<u32, u64> {
    let mut counts_by_number = HashMap::new();
    for number in log_reader::read_numbers(address, topic, &mut checker.faults) {
        *counts_by_number.entry(number).or_default() += 1;
    }
    counts_by_number
}
