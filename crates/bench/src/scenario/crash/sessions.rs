//! The durable sessions of a run: begins them, runs them with the other clients, and has them checked.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use super::checker::{Checker, Fault};
use super::log_reader;
use super::session::{DELAY_MAX_S, Session};
use super::session_check::{SessionCounts, SessionProgress};
use super::wills;
use crate::measure::payload::Random;
use crate::rig::RunArgs;

/// How long wills may take after the longest delay, in seconds.
const WILLS_LATE_S: u32 = 7;
/// Interval at which the logs of wills are read.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// One in this many sessions begins while nobody publishes, the others under load.
const QUIET_EVERY: u32 = 2;

/// All sessions.
pub struct Sessions {
    all: Vec<(Session, SessionProgress)>,
    random: Random,
    counts: SessionCounts,
    /// When the server was gone after each kill.
    crashes: Vec<Instant>,
}

impl Sessions {
    /// `count` sessions that have not begun. Their messages are counted in `received`, too.
    pub fn new(count: u32, args: &RunArgs, received: &Arc<AtomicU64>) -> Sessions {
        let session = |index| {
            let session = Session::new(index, args.seed, received);
            let progress = SessionProgress::new(session.name(), session.qos, &session.topics);
            (session, progress)
        };
        Sessions {
            all: (0..count).map(session).collect(),
            random: Random::new(args.seed ^ 0x5e5),
            crashes: Vec::new(),
            counts: SessionCounts {
                clients: count.into(),
                ..SessionCounts::default()
            },
        }
    }

    /// Subscribes half of those without a session, while nobody publishes.
    pub fn begin(&mut self, address: SocketAddr, checker: &mut Checker) {
        for (session, progress) in &mut self.all {
            if session.is_subscribed || self.random.below(QUIET_EVERY) > 0 {
                continue;
            }
            session.begin(address);
            for event in session.events.drain(..) {
                progress.check(event, checker, &mut self.counts);
            }
            if session.is_subscribed {
                progress.begin_here(checker);
            }
        }
    }

    /// The clients, which run until the server is gone.
    pub fn clients(&mut self) -> impl Iterator<Item = &mut Session> {
        self.all.iter_mut().map(|(session, _)| session)
    }

    /// Records that the server was killed soon after `at`.
    pub fn crashed(&mut self, at: Instant) {
        // A client may have connected between `at` and the end of the server.
        self.crashes.push(Instant::now());
        self.clients().for_each(|session| session.crashed(at));
    }

    /// Checks the records from before the crash.
    pub fn compare(&mut self, checker: &mut Checker) {
        for (session, progress) in &mut self.all {
            for event in session.events.drain(..) {
                progress.check(event, checker, &mut self.counts);
            }
            progress.crashed();
            for why in session.violations.drain(..) {
                checker.faults.add(Fault::Protocol, || why);
            }
        }
    }

    /// Checks that all messages have come, and waits for the wills that are due.
    pub fn check_at_end(&mut self, address: SocketAddr, checker: &mut Checker) {
        for (_, progress) in &mut self.all {
            progress.check_all_received(checker);
        }
        let patience = Duration::from_secs((DELAY_MAX_S + WILLS_LATE_S).into());
        let begin = Instant::now();
        for (session, _) in self.all.iter().filter(|(session, _)| session.has_will) {
            let found = loop {
                let found = published_wills(address, session.will_topic(), checker);
                let mut due = wills::all_due(&session.connections);
                let is_complete = due.all(|number| found.contains_key(&number));
                if is_complete || begin.elapsed() > patience {
                    break found;
                }
                std::thread::sleep(POLL_INTERVAL);
            };
            let name = session.name();
            let connections = &session.connections;
            wills::check(
                &name,
                connections,
                &found,
                &self.crashes,
                &mut checker.faults,
                &mut self.counts,
            );
        }
    }

    /// The results.
    pub fn counts(mut self) -> SessionCounts {
        let away = self.all.iter().map(|(session, _)| session.rounds_away);
        self.counts.rounds_away = away.sum();
        self.counts
    }
}

/// How often the log of a topic of wills has the will of each connection.
fn published_wills(address: SocketAddr, topic: u32, checker: &mut Checker) -> HashMap<u32, u64> {
    let mut found = HashMap::new();
    for number in log_reader::numbers(address, topic, &mut checker.faults) {
        *found.entry(number).or_default() += 1;
    }
    found
}
