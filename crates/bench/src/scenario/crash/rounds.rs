//! Runs the rounds of `crash`. Each round has load, a crash, a restart, and the check of the logs.

use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use serde::Serialize;

use super::changer::{Changer, SHORT_LOG_MESSAGES};
use super::checker::{Checker, Fault, Faults, Progress};
use super::filler;
use super::log_reader::{self, LogReader};
use super::message::PUBLISHERS;
use super::publisher::{Counts, Publisher, sent_counts};
use super::session_check::SessionCounts;
use super::sessions::Sessions;
use super::subscriber::{Observation, Subscriber};
use super::volume::{BaseFiles, FILLED_DISK_MIB, Volume};
use crate::measure::payload::Random;
use crate::report;
use crate::rig::{RunArgs, Server, ServerKind, ServerOptions};

/// Default number of subscribers.
const SUBSCRIBERS: u32 = 200;
/// Default size limit of most messages.
const MESSAGE_BYTES: usize = 600;
/// Without `--shards` each start has a random number of shards: minimum and maximum.
const SHARDS: (u32, u32) = (1, 3);
/// Time of load before a crash, in milliseconds: minimum and maximum.
const LOAD_MS: (u32, u32) = (20, 1_500);
/// In one of this many rounds the server is also killed during its start.
const KILL_AT_START_EVERY: u32 = 5;
/// The maximum time after which a starting server is killed, in milliseconds.
const KILL_AFTER_START_MS: u32 = 100;
/// In one of this many rounds the server is shut down as soon as it is ready, and started again.
const SHUTDOWN_EVERY: u32 = 7;
/// After every crash whose number is a multiple of this, and after the last one, all logs are read from the beginning.
const FULL_READ_EVERY: u32 = 10;
/// The size limit of the state directory: a basic size in MiB, and the MiB that each crash adds. A round writes some 3 MiB.
const STATE_MIB: (u32, u32) = (32, 8);
/// Interval at which a starting or stopping server is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
/// On a full disk, in one of this many rounds the power is cut while a checkpoint replaces the documents of the base (the last checkpoint
/// on disk) one by one.
const CHECKPOINT_CUT_EVERY: u32 = 2;
/// Timeout for that checkpoint, after which the power is cut in any case, and the interval at which its documents are polled.
const CHECKPOINT_TIMEOUT: Duration = Duration::from_secs(30);
const CHECKPOINT_POLL_INTERVAL: Duration = Duration::from_micros(200);
/// Timeout for a start and for a shutdown.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The size limit of the state directory if the log loses its newest segments: a basic size in MiB, and the number of crashes that add one
/// MiB. A small limit makes segments small, so most messages of a round survive.
const LOSSY_STATE_MIB: (u32, u32) = (8, 8);
/// In the last round subscribers run until no message arrives for this long.
const SILENCE: Duration = Duration::from_secs(1);

/// The server's settings: logs keep everything, and no limit slows a client.
fn server_settings(args: &RunArgs, volume: &Volume, crashes: u32) -> String {
    let durable_sessions = session_count(args, volume) > 0;
    // With a smaller limit log segments are smaller, and the server writes checkpoints (bases) more often.
    let mib = match volume {
        Volume::LosesNewestSegment(_) => LOSSY_STATE_MIB.0 + crashes / LOSSY_STATE_MIB.1,
        Volume::Filled(_) => FILLED_DISK_MIB,
        Volume::Directory(_) | Volume::Disk(_) => {
            STATE_MIB.0 + STATE_MIB.1 * crashes * message_bytes(args).div_ceil(MESSAGE_BYTES as u32)
        }
    };
    let state = volume.path();
    format!(
        "[limits]\naccepts_per_s = {}\nlog_bytes = \"4 GiB\"\n\n[publish]\nidempotency_keys = 10000000\nidempotency_window_s = 86400\n\n[state]\ndirectory = \"{}\"\nbytes_max = \"{mib} MiB\"\ndurable_sessions = {durable_sessions}\n\n[[rule]]\nmatch = \"changed/short/#\"\nlog_messages = {SHORT_LOG_MESSAGES}\n\n[[rule]]\nmatch = \"changed/latest/#\"\nkeep = \"latest\"\n\n[[rule]]\nmatch = \"#\"\nlog_messages = 100000000\nlog_bytes = \"4000 MiB\"\nlog_age_s = 86400\npoll_timeout_s = 2\n",
        args.accepts(),
        state.display()
    )
}

/// The number of durable sessions. There are none if the disk is full or the log loses its end, since then the server may lose sessions.
fn session_count(args: &RunArgs, volume: &Volume) -> u32 {
    match volume {
        Volume::Directory(_) | Volume::Disk(_) => args.sessions,
        Volume::LosesNewestSegment(_) | Volume::Filled(_) => 0,
    }
}

/// Size limit of most messages, in bytes.
fn message_bytes(args: &RunArgs) -> u32 {
    args.size.unwrap_or(MESSAGE_BYTES) as u32
}

/// The number of checkpoints (bases) that were written into a state directory: the highest number in their names.
fn count_bases(state: &Path) -> u64 {
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
    planned_restarts: u32,
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
    /// Lost messages of deleted segments: those that had been read or answered before the deletion.
    pub lost: u64,
    /// Gaps that subscribers received after the log had lost a segment.
    pub gaps: u64,
    /// Seconds from each start to the first answer.
    ready_s: Vec<f64>,
    /// Power cuts after a checkpoint had replaced some documents of the base.
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

    /// A quantile of the times from a start to the first answer, in milliseconds.
    pub fn ready_ms(&self, quantile: f64) -> u64 {
        let mut sorted = self.ready_s.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (sorted.len().saturating_sub(1) as f64 * quantile).round() as usize;
        sorted.get(rank).map_or(0, |seconds| (seconds * 1e3) as u64)
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
        let options = ServerOptions::new(ServerKind::Crore, args.shards.unwrap_or(SHARDS.1), 0);
        let server = Server::start_with(
            args,
            options,
            &server_settings(args, &volume, crashes),
            None,
        )?;
        let size = message_bytes(args);
        let received = Arc::default();
        let subscriber = |index| {
            let subscriber = Subscriber::new(index, &received);
            let progress = Progress::new(subscriber.must_receive_all());
            (subscriber, progress)
        };
        let sessions = session_count(args, &volume);
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

    /// Runs the rounds. Stops after a round with a fault.
    pub fn run(mut self) -> Result<Outcome> {
        let crashes = self.crashes;
        let is_filled = matches!(self.volume, Volume::Filled(_));
        for crash in 1..=crashes {
            if is_filled {
                filler::fill(self.address)?;
            }
            self.run_load(false)?;
            self.outcome.crashes = crash;
            let has_lost_segment = self.volume.delete_newest_segment()?;
            self.restart_server(crash)?;
            if has_lost_segment {
                self.check_records_after_loss();
            }
            self.check_records(crash.is_multiple_of(FULL_READ_EVERY) || crash == crashes);
            if !self.checker.faults.counts.is_empty() {
                report::say(&format!("faults after crash {crash}"));
                break;
            }
            if is_filled {
                if crash.is_multiple_of(CHECKPOINT_CUT_EVERY) {
                    self.cut_power_in_checkpoint()?;
                }
                self.delete_fillers()?;
            }
            if crash.is_multiple_of(FULL_READ_EVERY) {
                report::note(&format!(
                    "{crash} crashes, {} messages",
                    self.checker.total_message_count()
                ));
            }
        }
        if self.checker.faults.counts.is_empty() {
            self.run_load(true)?;
            self.restart_server(0)?;
            self.check_records(true);
            self.check_all_received();
            if let Some(sessions) = &mut self.sessions {
                sessions.check_at_end(self.address, &mut self.checker);
            }
        }
        for publisher in &self.publishers {
            self.outcome.counts += publisher.counts;
        }
        let resumed = self
            .subscribers
            .iter()
            .map(|(subscriber, _)| subscriber.resumed);
        self.outcome.resumed = resumed.sum();
        self.outcome.changes = self.changer.answered;
        self.outcome.messages = self.checker.total_message_count() as u64;
        self.outcome.bases = count_bases(self.volume.path());
        self.outcome.sessions = self.sessions.map(Sessions::counts);
        self.outcome.faults = self.checker.faults;
        Ok(self.outcome)
    }

    /// Runs all clients until the crash. In the last round the publishers stop earlier, so that the subscribers can receive all messages before
    /// the crash.
    fn run_load(&mut self, is_last: bool) -> Result<()> {
        let (stop, address) = (AtomicBool::new(false), self.address);
        let (min, max) = LOAD_MS;
        let load_ms = min + self.random.below(max - min);
        if let Some(sessions) = &mut self.sessions {
            sessions.subscribe_some(address, &mut self.checker);
        }
        let (server, volume, received) = (&mut self.server, &mut self.volume, &self.received);
        let (changer, sessions) = (&mut self.changer, &mut self.sessions);
        let (disk_copy, killed_after) = std::thread::scope(|scope| {
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
            std::thread::sleep(Duration::from_millis(load_ms.into()));
            if is_last {
                stop.store(true, Relaxed);
                let mut last_received = u64::MAX;
                while last_received != received.load(Relaxed) {
                    last_received = received.load(Relaxed);
                    std::thread::sleep(SILENCE);
                }
            }
            let (ended_by_itself, killed_after) = (server.has_ended(), Instant::now());
            let disk_copy = match volume {
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
            anyhow::Ok((disk_copy?, killed_after))
        })?;
        if let Some(sessions) = &mut self.sessions {
            sessions.record_crash(killed_after);
        }
        if let (Volume::Disk(disk), Some(disk_copy)) = (&mut self.volume, disk_copy) {
            disk.replace(disk_copy)?;
        }
        Ok(())
    }

    /// Deletes the messages that fill the disk, and waits until the server accepts messages again.
    fn delete_fillers(&mut self) -> Result<()> {
        let start = Instant::now();
        filler::delete(self.address)?;
        filler::wait_for_room(self.address)?;
        let recovered_s = start.elapsed().as_secs_f64();
        self.outcome.recovered_s.push(recovered_s);
        Ok(())
    }

    /// Takes all free space of the disk, deletes messages, and cuts the power while the next checkpoint replaces the documents of the base one
    /// by one. Then starts the server and checks the records.
    fn cut_power_in_checkpoint(&mut self) -> Result<()> {
        let Volume::Filled(disk) = &mut self.volume else {
            return Ok(());
        };
        disk.take_free_space()?;
        let files_before = BaseFiles::read(disk.path())?;
        filler::delete(self.address)?;
        let replaced_max = 1 + self.random.below(files_before.document_count() as u32 - 1) as usize;
        let start = Instant::now();
        let replaced = loop {
            let replaced =
                BaseFiles::read(disk.path()).map(|now| files_before.count_replaced(&now));
            match replaced {
                Ok(Some(replaced))
                    if replaced < replaced_max && start.elapsed() < CHECKPOINT_TIMEOUT => {}
                Ok(replaced) => break replaced,
                Err(_) => {}
            }
            std::thread::sleep(CHECKPOINT_POLL_INTERVAL);
        };
        self.server.pause();
        let disk_copy = disk.copy();
        self.server.kill();
        disk.replace(disk_copy?)?;
        // The deleted messages alone may be too few to make room for a segment of the log.
        disk.release_space()?;
        let is_partial = replaced.is_some_and(|replaced| replaced > 0);
        self.outcome.cut_in_place += u32::from(is_partial);
        self.start_and_wait()?;
        self.check_records(true);
        Ok(())
    }

    /// Starts the server again. In some rounds the server is first killed during a start, or shut down once it is ready.
    fn restart_server(&mut self, crash: u32) -> Result<()> {
        if crash % KILL_AT_START_EVERY == 1 {
            self.spawn_server()?;
            let alive_ms = self.random.below(KILL_AFTER_START_MS);
            std::thread::sleep(Duration::from_millis(alive_ms.into()));
            self.server.kill();
            self.outcome.kills_at_start += 1;
        }
        if crash % SHUTDOWN_EVERY == 2 {
            self.start_and_wait()?;
            let start = Instant::now();
            self.server.terminate();
            while !self.server.has_ended()? {
                ensure!(
                    start.elapsed() < START_TIMEOUT,
                    "the server does not stop in order"
                );
                std::thread::sleep(POLL_INTERVAL);
            }
            self.outcome.planned_restarts += 1;
        }
        self.start_and_wait()
    }

    fn spawn_server(&mut self) -> Result<()> {
        let (min, max) = SHARDS;
        let random_shards = min + self.random.below(max + 1 - min);
        self.server
            .respawn_with_shards(self.shards.unwrap_or(random_shards))
    }

    /// Starts the server and waits until it answers.
    fn start_and_wait(&mut self) -> Result<()> {
        let start = Instant::now();
        self.spawn_server()?;
        while log_reader::topic_info(self.address, "none").is_err() {
            ensure!(!self.server.has_ended()?, "the server does not start again");
            ensure!(
                start.elapsed() < START_TIMEOUT,
                "the server is not ready after {START_TIMEOUT:?}"
            );
            std::thread::sleep(POLL_INTERVAL);
        }
        self.outcome.ready_s.push(start.elapsed().as_secs_f64());
        Ok(())
    }

    /// Reads the logs, and compares them with what the clients recorded before the crash.
    fn check_records(&mut self, reads_all: bool) {
        let sent_counts = sent_counts(&self.publishers);
        let checker = &mut self.checker;
        self.log_reader.read(self.address, &sent_counts, checker);
        if reads_all {
            log_reader::check_unchanged(self.address, checker);
        }
        self.changer.check_topics(self.address, &mut checker.faults);
        if let Some(sessions) = &mut self.sessions {
            sessions.check_records(checker);
        }
        for publisher in &mut self.publishers {
            publisher
                .answers
                .drain(..)
                .for_each(|answer| checker.check_answer(&answer));
            checker.add_violations(publisher.violations.drain(..));
        }
        for (subscriber, progress) in &mut self.subscribers {
            let name = subscriber.name();
            for observation in subscriber.observations.drain(..) {
                self.outcome.seen += u64::from(matches!(observation, Observation::Message { .. }));
                checker.check_observation(&name, progress, observation);
            }
            checker.add_violations(subscriber.violations.drain(..));
        }
    }

    /// Checks the logs after they have lost their newest segment. The messages that are left must be the first ones of the old log. If
    /// messages are lost, every subscriber with a position must receive a gap. A segment that was just begun has no messages.
    fn check_records_after_loss(&mut self) {
        let earlier_logs = self.checker.take_logs();
        self.log_reader = LogReader::new();
        let sent_counts: Vec<u32> = self
            .publishers
            .iter()
            .map(|publisher| publisher.sent)
            .collect();
        self.log_reader
            .read(self.address, &sent_counts, &mut self.checker);
        let mut lost = self.checker.count_lost(&earlier_logs);
        for publisher in &mut self.publishers {
            let answers = publisher.answers.drain(..);
            lost += answers
                .filter(|answer| !self.checker.contains(answer))
                .count() as u64;
        }
        self.outcome.lost += lost;
        for (subscriber, progress) in &mut self.subscribers {
            let name = subscriber.name();
            for observation in subscriber.observations.drain(..) {
                self.outcome.gaps += u64::from(observation == Observation::Gap);
                self.checker.check_before_loss(&name, progress, observation);
            }
            progress.expect_gaps(subscriber.position_count(), lost > 0);
        }
        self.changer
            .delete_all(self.address, &mut self.checker.faults);
    }

    /// Checks that every subscriber that resumes has received all messages of its topics up to the last.
    fn check_all_received(&mut self) {
        for (subscriber, progress) in &self.subscribers {
            for topic in subscriber.topics() {
                let unreceived = self.checker.unreceived(topic, progress);
                if unreceived > 0 && subscriber.must_receive_all() {
                    let name = subscriber.name();
                    self.checker.faults.add(Fault::Skipped, || {
                        format!(
                            "{name}: {unreceived} messages at the end of topic {topic} never came"
                        )
                    });
                }
            }
        }
    }
}
