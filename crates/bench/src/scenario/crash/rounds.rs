//! Runs the rounds of `crash`. Each round has load, a crash, a restart, and the check of the logs.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::Serialize;

use super::changer::{Changer, SHORT};
use super::checker::{Checker, Fault, Faults, Progress};
use super::filler;
use super::log_reader::{self, LogReader};
use super::message::PUBLISHERS;
use super::publisher::{Counts, Publisher};
use super::session_check::SessionCounts;
use super::sessions::Sessions;
use super::subscriber::{Observation, Subscriber};
use super::volume::{BaseFiles, SMALL_MIB, Volume};
use crate::measure::payload::Random;
use crate::report;
use crate::rig::{RunArgs, Server, ServerKind, ServerOptions};

/// Default number of subscribers.
const SUBSCRIBERS: u32 = 200;
/// Default size limit of most messages, in bytes.
const SIZE: usize = 600;
/// Without `--shards` each start has a random number of shards: minimum and maximum.
const SHARDS: (u32, u32) = (1, 3);
/// Milliseconds of load before a crash: minimum and maximum.
const WORK_MS: (u32, u32) = (20, 1_500);
/// In one of this many rounds the server is also killed during its start.
const KILL_AT_START_EVERY: u32 = 5;
/// A server that is killed during its start is killed at most this many milliseconds after the start.
const START_MS: u32 = 100;
/// In one of this many rounds the server is shut down as soon as it is ready, and started again.
const STOP_EVERY: u32 = 7;
/// All logs are read from the beginning after every crash whose number is a multiple of this, and after the last crash.
const READ_AGAIN_EVERY: u32 = 10;
/// The size limit of the state directory: a basic size in MiB, and the number of MiB that each crash adds. A round writes some 3 MiB.
const DISK_MIB: (u32, u32) = (32, 8);
/// Interval at which a starting or stopping server is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// On a full disk, in one of this many rounds the power is cut while a checkpoint replaces the documents of the base.
const CUT_IN_PLACE_EVERY: u32 = 2;
/// Timeout for the beginning of that checkpoint, and the interval at which its documents are polled. The power is cut in any case.
const CHECKPOINT: Duration = Duration::from_secs(30);
const CHECKPOINT_POLL_INTERVAL: Duration = Duration::from_micros(200);
/// Timeout for a start and for a shutdown.
const READY: Duration = Duration::from_secs(60);
/// The size limit of the state directory if the log loses its newest segments: a basic size in MiB, and the number of crashes that add one
/// MiB. With this small limit segments are small, so most messages of a round survive.
const LOSING_MIB: (u32, u32) = (8, 8);
/// In the last round subscribers run until no message has arrived for this long.
const SILENCE: Duration = Duration::from_secs(1);

/// The server's settings: logs keep everything, and no limit slows a client.
fn settings(args: &RunArgs, volume: &Volume, crashes: u32) -> String {
    let durable_sessions = sessions(args, volume) > 0;
    // With a smaller limit log segments are smaller, and checkpoints (bases) are written more often.
    let mib = match volume {
        Volume::LosesNewestSegment(_) => LOSING_MIB.0 + crashes / LOSING_MIB.1,
        Volume::Filled(_) => SMALL_MIB,
        Volume::Directory(_) | Volume::Disk(_) => {
            DISK_MIB.0 + DISK_MIB.1 * crashes * size(args).div_ceil(SIZE as u32)
        }
    };
    let state = volume.path();
    format!(
        "[limits]\naccepts_per_s = {}\nlog_bytes = \"4 GiB\"\n\n[mqtt]\ndurable_sessions = {durable_sessions}\n\n[publish]\nidempotency_keys = 10000000\nidempotency_window_s = 86400\n\n[state]\ndirectory = \"{}\"\nbytes_max = \"{mib} MiB\"\n\n[[rule]]\nmatch = \"changed/short/#\"\nlog_messages = {SHORT}\n\n[[rule]]\nmatch = \"changed/latest/#\"\nkeep = \"latest\"\n\n[[rule]]\nmatch = \"#\"\nlog_messages = 100000000\nlog_bytes = \"4000 MiB\"\nlog_age_s = 86400\npoll_timeout_s = 2\n",
        args.accepts(),
        state.display()
    )
}

/// The number of durable sessions. Without room on the disk, or with a lost end of the log, a session may be lost, too.
fn sessions(args: &RunArgs, volume: &Volume) -> u32 {
    match volume {
        Volume::Directory(_) | Volume::Disk(_) => args.sessions,
        Volume::LosesNewestSegment(_) | Volume::Filled(_) => 0,
    }
}

/// Size limit of most messages, in bytes.
fn size(args: &RunArgs) -> u32 {
    args.size.unwrap_or(SIZE) as u32
}

/// How many checkpoints (bases) were written into a state directory, according to the number in their names.
fn bases(state: &Path) -> u64 {
    let names = std::fs::read_dir(state).into_iter().flatten().flatten();
    let numbers = names.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        name.strip_prefix("base-")?.split('-').next()?.parse().ok()
    });
    numbers.max().unwrap_or(0)
}

/// The results.
#[derive(Default, Serialize)]
pub struct Outcome {
    /// Crashes under load.
    pub crashes: u32,
    /// Kills of a server that was starting.
    kills_at_start: u32,
    /// Planned restarts.
    #[serde(rename = "planned_restarts")]
    stops: u32,
    /// Checkpoints (bases) that the server has written.
    pub bases: u64,
    /// The counts of the publishers.
    #[serde(flatten)]
    pub counts: Counts,
    /// Deletions, purges and publishes of the client that changes topics.
    changes: u64,
    /// Messages in the logs.
    pub messages: u64,
    /// Messages that subscribers received.
    pub seen: u64,
    /// Connections that resumed at a position.
    pub resumed: u64,
    /// Messages in deleted segments that had been read or answered before the deletion.
    pub lost: u64,
    /// Gaps that subscribers received after the log had lost a segment.
    pub gaps: u64,
    /// Seconds from each start to the first answer.
    ready_s: Vec<f64>,
    /// Power cuts after which a base had some documents that a checkpoint had replaced in place, and some that it had not.
    pub cut_in_place: u32,
    /// Seconds from each deletion of messages on a full disk until a publish was accepted.
    pub recovered_s: Vec<f64>,
    /// What durable sessions did and received.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sessions: Option<SessionCounts>,
    /// The faults.
    #[serde(flatten)]
    pub faults: Faults,
}

impl Outcome {
    /// Whether there was no fault and at least one answered publish.
    pub fn is_clean(&self) -> bool {
        self.faults.counts.is_empty() && self.counts.answered > 0
    }

    /// This quantile of the times from a start to the first answer, in milliseconds.
    pub fn ready_ms(&self, quantile: f64) -> u64 {
        let mut all = self.ready_s.clone();
        all.sort_by(f64::total_cmp);
        let place = (all.len().saturating_sub(1) as f64 * quantile).round() as usize;
        all.get(place).map_or(0, |seconds| (seconds * 1e3) as u64)
    }
}

/// A server, its clients, and the checker.
pub struct Rounds {
    /// The server. This field is first, so that the server is dropped before the volume that it uses.
    server: Server,
    volume: Volume,
    address: SocketAddr,
    publishers: Vec<Publisher>,
    changer: Changer,
    subscribers: Vec<(Subscriber, Progress)>,
    sessions: Option<Sessions>,
    crashes: u32,
    /// The number of messages that all subscribers received.
    received: Arc<AtomicU64>,
    log_reader: LogReader,
    checker: Checker,
    random: Random,
    shards: Option<u32>,
    outcome: Outcome,
}

impl Rounds {
    /// Starts the server for the first time. It will crash `crashes` times.
    pub fn new(args: &RunArgs, volume: Volume, crashes: u32) -> Result<Rounds> {
        let setting = ServerOptions::new(ServerKind::Crore, args.shards.unwrap_or(SHARDS.1), 0);
        let server = Server::start_with(args, setting, &settings(args, &volume, crashes), None)?;
        let size = size(args);
        let received = Arc::default();
        let subscriber = |index| {
            let subscriber = Subscriber::new(index, &received);
            let progress = Progress::new(subscriber.must_receive_all());
            (subscriber, progress)
        };
        let sessions = sessions(args, &volume);
        let sessions = (sessions > 0).then(|| Sessions::new(sessions, args, &received));
        Ok(Rounds {
            sessions,
            volume,
            address: server.addresses[0],
            server,
            publishers: (0..PUBLISHERS)
                .map(|index| Publisher::new(index, args.seed, size))
                .collect(),
            subscribers: (0..args.connections.unwrap_or(SUBSCRIBERS))
                .map(subscriber)
                .collect(),
            crashes,
            received,
            changer: Changer::new(args.seed),
            log_reader: LogReader::new(),
            checker: Checker::new(),
            random: Random::new(args.seed),
            shards: args.shards,
            outcome: Outcome::default(),
        })
    }

    /// Runs all rounds, or until a fault is found.
    pub fn run(mut self) -> Result<Outcome> {
        let crashes = self.crashes;
        let is_filled = matches!(self.volume, Volume::Filled(_));
        for crash in 1..=crashes {
            if is_filled {
                filler::fill(self.address)?;
            }
            self.work(false)?;
            self.outcome.crashes = crash;
            let lost = self.volume.delete_newest_segment()?;
            self.start(crash)?;
            if lost {
                self.compare_after_loss();
            }
            self.compare(crash.is_multiple_of(READ_AGAIN_EVERY) || crash == crashes);
            if !self.checker.faults.counts.is_empty() {
                report::say(&format!("faults after crash {crash}"));
                break;
            }
            if is_filled {
                if crash.is_multiple_of(CUT_IN_PLACE_EVERY) {
                    self.cut_power_in_checkpoint()?;
                }
                self.delete_fillers()?;
            }
            if crash.is_multiple_of(READ_AGAIN_EVERY) {
                report::note(&format!(
                    "{crash} crashes, {} messages",
                    self.checker.total()
                ));
            }
        }
        if self.checker.faults.counts.is_empty() {
            self.work(true)?;
            self.start(0)?;
            self.compare(true);
            self.check_all_received();
            if let Some(sessions) = &mut self.sessions {
                sessions.check_at_end(self.address, &mut self.checker);
            }
        }
        for publisher in &self.publishers {
            self.outcome.counts += publisher.counts;
        }
        let resumed = self.subscribers.iter().map(|(one, _)| one.resumed);
        self.outcome.resumed = resumed.sum();
        self.outcome.changes = self.changer.answered;
        self.outcome.messages = self.checker.total() as u64;
        self.outcome.bases = bases(self.volume.path());
        self.outcome.sessions = self.sessions.map(Sessions::counts);
        self.outcome.faults = self.checker.faults;
        Ok(self.outcome)
    }

    /// Runs all clients until the crash. In the last round publishers stop earlier, and subscribers receive the last messages first.
    fn work(&mut self, is_last: bool) -> Result<()> {
        let (stop, address) = (AtomicBool::new(false), self.address);
        let (least, most) = WORK_MS;
        let work = least + self.random.below(most - least);
        if let Some(sessions) = &mut self.sessions {
            sessions.begin(address, &mut self.checker);
        }
        let (server, volume, received) = (&mut self.server, &mut self.volume, &self.received);
        let (changer, sessions) = (&mut self.changer, &mut self.sessions);
        let (copy, crashed) = std::thread::scope(|scope| {
            for (subscriber, _) in &mut self.subscribers {
                scope.spawn(|| subscriber.run(address, usize::MAX));
            }
            for publisher in &mut self.publishers {
                scope.spawn(|| publisher.run(address, &stop));
            }
            scope.spawn(|| changer.run(address, &stop));
            for session in sessions.iter_mut().flat_map(Sessions::clients) {
                scope.spawn(move || session.run(address, is_last));
            }
            std::thread::sleep(Duration::from_millis(work.into()));
            if is_last {
                stop.store(true, Relaxed);
                let mut last_received = u64::MAX;
                while last_received != received.load(Relaxed) {
                    last_received = received.load(Relaxed);
                    std::thread::sleep(SILENCE);
                }
            }
            let (ended_by_itself, crashed) = (server.has_ended(), Instant::now());
            let copy = match volume {
                Volume::Directory(_) | Volume::LosesNewestSegment(_) | Volume::Filled(_) => {
                    Ok(None)
                }
                Volume::Disk(disk) => {
                    server.pause();
                    disk.copy().map(Some)
                }
            };
            // The clients' threads end only when the server has ended, so the server is killed after a failure, too.
            server.kill();
            ensure!(!ended_by_itself?, "the server ended by itself");
            anyhow::Ok((copy?, crashed))
        })?;
        if let Some(sessions) = &mut self.sessions {
            sessions.crashed(crashed);
        }
        if let (Volume::Disk(disk), Some(copy)) = (&mut self.volume, copy) {
            disk.replace(copy)?;
        }
        Ok(())
    }

    /// Deletes the messages that fill the disk, and waits until the server accepts messages again.
    fn delete_fillers(&mut self) -> Result<()> {
        let began = Instant::now();
        filler::delete(self.address)?;
        filler::wait_for_room(self.address)?;
        let recovered_s = began.elapsed().as_secs_f64();
        self.outcome.recovered_s.push(recovered_s);
        Ok(())
    }

    /// Takes all room of the disk, deletes messages, and cuts the power while the next checkpoint replaces the documents of the base one by
    /// one. Then starts the server and compares.
    fn cut_power_in_checkpoint(&mut self) -> Result<()> {
        let Volume::Filled(disk) = &mut self.volume else {
            return Ok(());
        };
        disk.fill()?;
        let before = BaseFiles::read(disk.path())?;
        filler::delete(self.address)?;
        let until = 1 + self.random.below(before.len() as u32 - 1) as usize;
        let begin = Instant::now();
        let replaced = loop {
            let replaced = BaseFiles::read(disk.path()).map(|now| before.replaced_in(&now));
            match replaced {
                Ok(Some(replaced)) if replaced < until && begin.elapsed() < CHECKPOINT => {}
                Ok(replaced) => break replaced,
                Err(_) => {}
            }
            std::thread::sleep(CHECKPOINT_POLL_INTERVAL);
        };
        self.server.pause();
        let copy = disk.copy();
        self.server.kill();
        disk.replace(copy?)?;
        // Without this the deleted messages may be too few to make room for a segment of the log.
        disk.empty()?;
        let is_partial = replaced.is_some_and(|replaced| replaced > 0);
        self.outcome.cut_in_place += u32::from(is_partial);
        self.ready()?;
        self.compare(true);
        Ok(())
    }

    /// Starts the server again. In some rounds the server is first killed during a start, or shut down once it is ready.
    fn start(&mut self, crash: u32) -> Result<()> {
        if crash % KILL_AT_START_EVERY == 1 {
            self.spawn()?;
            let alive = self.random.below(START_MS);
            std::thread::sleep(Duration::from_millis(alive.into()));
            self.server.kill();
            self.outcome.kills_at_start += 1;
        }
        if crash % STOP_EVERY == 2 {
            self.ready()?;
            let begin = Instant::now();
            self.server.terminate();
            while !self.server.has_ended()? {
                ensure!(begin.elapsed() < READY, "the server does not stop in order");
                std::thread::sleep(POLL_INTERVAL);
            }
            self.outcome.stops += 1;
        }
        self.ready()
    }

    fn spawn(&mut self) -> Result<()> {
        let (least, most) = SHARDS;
        let drawn = least + self.random.below(most + 1 - least);
        self.server
            .respawn_with_shards(self.shards.unwrap_or(drawn))
    }

    /// Starts the server and waits until it answers.
    fn ready(&mut self) -> Result<()> {
        let begin = Instant::now();
        self.spawn()?;
        while log_reader::info(self.address, "none").is_err() {
            ensure!(!self.server.has_ended()?, "the server does not start again");
            ensure!(
                begin.elapsed() < READY,
                "the server is not ready after {READY:?}"
            );
            std::thread::sleep(POLL_INTERVAL);
        }
        self.outcome.ready_s.push(begin.elapsed().as_secs_f64());
        Ok(())
    }

    /// Reads the logs, and checks the records of publishers and subscribers from before the crash.
    fn compare(&mut self, from_the_beginning: bool) {
        let sent: Vec<u32> = self.publishers.iter().map(|one| one.sent).collect();
        let checker = &mut self.checker;
        self.log_reader.read(self.address, &sent, checker);
        if from_the_beginning {
            log_reader::read_again(self.address, checker);
        }
        self.changer.compare(self.address, &mut checker.faults);
        if let Some(sessions) = &mut self.sessions {
            sessions.compare(checker);
        }
        for publisher in &mut self.publishers {
            publisher
                .answers
                .drain(..)
                .for_each(|answer| checker.check_answer(&answer));
            for why in publisher.violations.drain(..) {
                checker.faults.add(Fault::Protocol, || why);
            }
        }
        for (subscriber, progress) in &mut self.subscribers {
            let name = subscriber.name();
            for seen in subscriber.observations.drain(..) {
                self.outcome.seen += u64::from(matches!(seen, Observation::Message { .. }));
                checker.check_observation(&name, progress, seen);
            }
            for why in subscriber.violations.drain(..) {
                checker.faults.add(Fault::Protocol, || why);
            }
        }
    }

    /// Checks the logs after they have lost their newest segment. The messages that are left must be the first ones of the old log. If
    /// messages are lost, every subscriber with a position must receive a gap. A segment that was just begun has none.
    fn compare_after_loss(&mut self) {
        let before = self.checker.take_logs();
        self.log_reader = LogReader::new();
        let sent: Vec<u32> = self.publishers.iter().map(|one| one.sent).collect();
        self.log_reader.read(self.address, &sent, &mut self.checker);
        let mut lost = self.checker.lost_since(&before);
        for publisher in &mut self.publishers {
            let answers = publisher.answers.drain(..);
            lost += answers.filter(|answer| !self.checker.has(answer)).count() as u64;
        }
        self.outcome.lost += lost;
        for (subscriber, progress) in &mut self.subscribers {
            let name = subscriber.name();
            for seen in subscriber.observations.drain(..) {
                self.outcome.gaps += u64::from(seen == Observation::Gap);
                self.checker.check_before_loss(&name, progress, seen);
            }
            progress.segment_lost(subscriber.position_count(), lost > 0);
        }
        self.changer
            .start_over(self.address, &mut self.checker.faults);
    }

    /// Checks that every subscriber that resumes has received the last message of each of its topics.
    fn check_all_received(&mut self) {
        for (subscriber, progress) in &self.subscribers {
            for topic in subscriber.topics() {
                let left = self.checker.unreceived(topic, progress);
                if left > 0 && subscriber.must_receive_all() {
                    let name = subscriber.name();
                    self.checker.faults.add(Fault::Skipped, || {
                        format!("{name}: {left} messages at the end of topic {topic} never came")
                    });
                }
            }
        }
    }
}
