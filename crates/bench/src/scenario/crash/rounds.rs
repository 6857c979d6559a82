//! The rounds of a run: start, read, compare, work, crash.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, ensure};
use serde::Serialize;

use super::changer::{Changer, SHORT};
use super::ground::Disk;
use super::judge::{Fault, Faults, Judge, Track};
use super::message::PUBLISHERS;
use super::publisher::{Counts, Publisher};
use super::snapshot::{self, Snapshot};
use super::subscriber::{Seen, Subscriber};
use crate::measure::payload::Random;
use crate::report;
use crate::rig::{Kind, RunArgs, Server, Setting};

/// Subscribers, unless told otherwise.
const SUBSCRIBERS: u32 = 200;
/// Bytes of most messages at most, unless told otherwise.
const SIZE: usize = 600;
/// Shards, unless told otherwise: each start draws their number, at least and at most.
const SHARDS: (u32, u32) = (1, 3);
/// Milliseconds of work before a crash, at least and at most.
const WORK_MS: (u32, u32) = (20, 1_500);
/// Before one of so many starts the server is killed while it starts.
const KILL_AT_START_EVERY: u32 = 5;
/// Milliseconds after which it is killed then, at most.
const START_MS: u32 = 100;
/// One of so many servers is stopped in order as soon as it has started, and another one follows.
const STOP_EVERY: u32 = 7;
/// All logs are read from their beginnings after so many crashes, and after the last.
const READ_AGAIN_EVERY: u32 = 10;
/// MiB of the state directory at most, and MiB more for each crash. A round leaves some 3 MiB.
const DISK_MIB: (u32, u32) = (32, 8);
/// How often a server that starts or stops is looked at.
const LOOK: Duration = Duration::from_millis(2);
/// Longest start, and longest stop.
const READY: Duration = Duration::from_secs(60);
/// MiB of a state directory whose log loses its ends, and so many crashes need one more: small segments, so that most of a round is left.
const LOSING_MIB: (u32, u32) = (8, 8);
/// In the end subscribers get the last messages until no message came for this long.
const SILENCE: Duration = Duration::from_secs(1);

/// The server's settings: everything is kept, and no limit of a client's is in the way.
fn settings(args: &RunArgs, ground: &Ground, crashes: u32) -> String {
    // The smaller it is, the smaller are the segments of the log, and the more often one base takes the place of another.
    let mib = match ground {
        Ground::LosesEnds(_) => LOSING_MIB.0 + crashes / LOSING_MIB.1,
        Ground::Directory(_) | Ground::Disk(_) => {
            DISK_MIB.0 + DISK_MIB.1 * crashes * size(args).div_ceil(SIZE as u32)
        }
    };
    let state = ground.path();
    format!(
        "[limits]\naccepts_per_s = {}\nlog_bytes = \"4 GiB\"\n\n[publish]\nidempotency_keys = 10000000\nidempotency_window_s = 86400\n\n[state]\ndirectory = \"{}\"\nbytes_max = \"{mib} MiB\"\n\n[[rule]]\nmatch = \"changed/short/#\"\nlog_messages = {SHORT}\n\n[[rule]]\nmatch = \"changed/latest/#\"\nkeep = \"latest\"\n\n[[rule]]\nmatch = \"#\"\nlog_messages = 100000000\nlog_bytes = \"4000 MiB\"\nlog_age_s = 86400\npoll_timeout_s = 2\n",
        args.accepts(),
        state.display()
    )
}

/// Bytes of most messages at most.
fn size(args: &RunArgs) -> u32 {
    args.size.unwrap_or(SIZE) as u32
}

/// Where the state lies.
pub enum Ground {
    /// In a directory: a crash is a kill.
    Directory(PathBuf),
    /// In a directory whose newest segment of the log is deleted after a kill.
    LosesEnds(PathBuf),
    /// On a disk of its own: a crash is a power cut.
    Disk(Disk),
}

impl Ground {
    fn path(&self) -> &Path {
        match self {
            Ground::Directory(path) | Ground::LosesEnds(path) => path,
            Ground::Disk(disk) => disk.path(),
        }
    }

    /// Deletes the newest segment of the log, where that is the crash; says whether it did.
    fn loses_end(&self) -> Result<bool> {
        let Ground::LosesEnds(state) = self else {
            return Ok(false);
        };
        let names = std::fs::read_dir(state.join("log"))?;
        let paths = names.map(|entry| Ok(entry?.path()));
        let paths = paths.collect::<Result<Vec<PathBuf>>>()?;
        let is_segment = |path: &&PathBuf| path.extension().is_some_and(|it| it == "log");
        let newest = paths.iter().filter(is_segment).max();
        std::fs::remove_file(newest.context("the log has no segment")?)?;
        Ok(true)
    }
}

/// How many bases were written into a state directory: their names count them.
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
    /// Bases that the server has written, for planned restarts or beside its work.
    pub bases: u64,
    /// The counts of the publishers.
    #[serde(flatten)]
    pub counts: Counts,
    /// Deletions, purges and publishes of the client that changes topics.
    changes: u64,
    /// Messages in the logs.
    pub messages: u64,
    /// Notes of subscribers.
    pub seen: u64,
    /// Connections that named a position.
    pub resumed: u64,
    /// Messages that were lost with the ends of the log, as far as they had been read or answered.
    pub lost: u64,
    /// Gaps that subscribers were told after that.
    pub gaps: u64,
    /// Seconds from each start to the first answer.
    ready_s: Vec<f64>,
    /// The faults that were found.
    #[serde(flatten)]
    pub faults: Faults,
}

impl Outcome {
    /// Whether every promise was kept, and there was something to keep.
    pub fn is_clean(&self) -> bool {
        self.faults.counts.is_empty() && self.counts.answered > 0
    }

    /// Milliseconds from a start to the first answer: this quantile of all starts.
    pub fn ready_ms(&self, quantile: f64) -> u64 {
        let mut all = self.ready_s.clone();
        all.sort_by(f64::total_cmp);
        let place = (all.len().saturating_sub(1) as f64 * quantile).round() as usize;
        all.get(place).map_or(0, |seconds| (seconds * 1e3) as u64)
    }
}

/// A server, its clients, and the judge.
pub struct Rounds {
    /// Dropped before the disk, which it uses.
    server: Server,
    ground: Ground,
    address: SocketAddr,
    publishers: Vec<Publisher>,
    changer: Changer,
    subscribers: Vec<(Subscriber, Track)>,
    crashes: u32,
    /// Messages that came to all subscribers.
    heard: Arc<AtomicU64>,
    snapshot: Snapshot,
    judge: Judge,
    random: Random,
    shards: Option<u32>,
    outcome: Outcome,
}

impl Rounds {
    /// Starts the server for the first time, to crash it so many times.
    pub fn new(args: &RunArgs, ground: Ground, crashes: u32) -> Result<Rounds> {
        let setting = Setting::new(Kind::Crore, args.shards.unwrap_or(SHARDS.1), 0);
        let server = Server::start_with(args, setting, &settings(args, &ground, crashes), None)?;
        let size = size(args);
        let heard = Arc::default();
        let subscriber = |index| {
            let subscriber = Subscriber::new(index, &heard);
            let track = Track::new(subscriber.gets_all());
            (subscriber, track)
        };
        Ok(Rounds {
            ground,
            address: server.addresses[0],
            server,
            publishers: (0..PUBLISHERS)
                .map(|index| Publisher::new(index, args.seed, size))
                .collect(),
            subscribers: (0..args.connections.unwrap_or(SUBSCRIBERS))
                .map(subscriber)
                .collect(),
            crashes,
            heard,
            changer: Changer::new(args.seed),
            snapshot: Snapshot::new(),
            judge: Judge::new(),
            random: Random::new(args.seed),
            shards: args.shards,
            outcome: Outcome::default(),
        })
    }

    /// Crashes the server as often as was said, or until a fault is found.
    pub fn run(mut self) -> Result<Outcome> {
        let crashes = self.crashes;
        for crash in 1..=crashes {
            self.work(false)?;
            self.outcome.crashes = crash;
            let lost = self.ground.loses_end()?;
            self.start(crash)?;
            if lost {
                self.compare_without_end();
            }
            self.compare(crash.is_multiple_of(READ_AGAIN_EVERY) || crash == crashes);
            if !self.judge.faults.counts.is_empty() {
                report::say(&format!("faults after crash {crash}"));
                break;
            }
            if crash.is_multiple_of(READ_AGAIN_EVERY) {
                report::note(&format!("{crash} crashes, {} messages", self.judge.total()));
            }
        }
        if self.judge.faults.counts.is_empty() {
            self.work(true)?;
            self.start(0)?;
            self.compare(true);
            self.nothing_is_left();
        }
        for publisher in &self.publishers {
            self.outcome.counts += publisher.counts;
        }
        let resumed = self.subscribers.iter().map(|(one, _)| one.resumed);
        self.outcome.resumed = resumed.sum();
        self.outcome.changes = self.changer.answered;
        self.outcome.messages = self.judge.total() as u64;
        self.outcome.bases = bases(self.ground.path());
        self.outcome.faults = self.judge.faults;
        Ok(self.outcome)
    }

    /// Has all clients work until the crash. In the last round publishers stop before, and subscribers get the last messages.
    fn work(&mut self, is_last: bool) -> Result<()> {
        let (stop, address) = (AtomicBool::new(false), self.address);
        let (least, most) = WORK_MS;
        let work = least + self.random.below(most - least);
        let (server, ground, heard) = (&mut self.server, &mut self.ground, &self.heard);
        let changer = &mut self.changer;
        let copy = std::thread::scope(|scope| {
            for (subscriber, _) in &mut self.subscribers {
                scope.spawn(|| subscriber.play(address, usize::MAX));
            }
            for publisher in &mut self.publishers {
                scope.spawn(|| publisher.play(address, &stop));
            }
            scope.spawn(|| changer.play(address, &stop));
            std::thread::sleep(Duration::from_millis(work.into()));
            if is_last {
                stop.store(true, Relaxed);
                let mut before = u64::MAX;
                while before != heard.load(Relaxed) {
                    before = heard.load(Relaxed);
                    std::thread::sleep(SILENCE);
                }
            }
            let ended = server.has_ended();
            let copy = match ground {
                Ground::Directory(_) | Ground::LosesEnds(_) => Ok(None),
                Ground::Disk(disk) => {
                    server.pause();
                    disk.copy().map(Some)
                }
            };
            // The clients wait for this, also after a failure.
            server.kill();
            ensure!(!ended?, "the server ended by itself");
            copy
        })?;
        if let (Ground::Disk(disk), Some(copy)) = (&mut self.ground, copy) {
            disk.replace(copy)?;
        }
        Ok(())
    }

    /// Starts the server again. Sometimes it is killed while it starts, or stopped in order when it has started, first.
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
                std::thread::sleep(LOOK);
            }
            self.outcome.stops += 1;
        }
        self.ready()
    }

    fn spawn(&mut self) -> Result<()> {
        let (least, most) = SHARDS;
        let drawn = least + self.random.below(most + 1 - least);
        self.server.spawn_again_with(self.shards.unwrap_or(drawn))
    }

    /// Starts the server and waits until it answers.
    fn ready(&mut self) -> Result<()> {
        let begin = Instant::now();
        self.spawn()?;
        while snapshot::info(self.address, "none").is_err() {
            ensure!(!self.server.has_ended()?, "the server does not start again");
            ensure!(
                begin.elapsed() < READY,
                "the server is not ready after {READY:?}"
            );
            std::thread::sleep(LOOK);
        }
        self.outcome.ready_s.push(begin.elapsed().as_secs_f64());
        Ok(())
    }

    /// Reads the logs, and judges the notes of publishers and subscribers from before the crash.
    fn compare(&mut self, from_the_beginning: bool) {
        let begun: Vec<u32> = self.publishers.iter().map(|one| one.begun).collect();
        let judge = &mut self.judge;
        self.snapshot.read(self.address, &begun, judge);
        if from_the_beginning {
            snapshot::read_again(self.address, judge);
        }
        self.changer.compare(self.address, &mut judge.faults);
        for publisher in &mut self.publishers {
            publisher
                .answers
                .drain(..)
                .for_each(|answer| judge.answered(&answer));
            for why in publisher.wrong.drain(..) {
                judge.faults.add(Fault::Protocol, || why);
            }
        }
        for (subscriber, track) in &mut self.subscribers {
            let name = subscriber.name();
            for seen in subscriber.seen.drain(..) {
                self.outcome.seen += u64::from(matches!(seen, Seen::Message { .. }));
                judge.saw(&name, track, seen);
            }
            for why in subscriber.wrong.drain(..) {
                judge.faults.add(Fault::Protocol, || why);
            }
        }
    }

    /// The end of the log is lost: what is left is the beginning of what was there, and every subscriber with a position is to be told a gap.
    fn compare_without_end(&mut self) {
        let before = self.judge.begin_anew();
        self.snapshot = Snapshot::new();
        let begun: Vec<u32> = self.publishers.iter().map(|one| one.begun).collect();
        self.snapshot.read(self.address, &begun, &mut self.judge);
        self.outcome.lost += self.judge.lost_since(&before);
        for publisher in &mut self.publishers {
            let answers = publisher.answers.drain(..);
            let lost = answers.filter(|answer| !self.judge.has(answer));
            self.outcome.lost += lost.count() as u64;
        }
        for (subscriber, track) in &mut self.subscribers {
            let name = subscriber.name();
            for seen in subscriber.seen.drain(..) {
                self.outcome.gaps += u64::from(seen == Seen::Gap);
                self.judge.saw_before_loss(&name, track, seen);
            }
            track.lost_end(subscriber.positions());
        }
        self.changer
            .start_over(self.address, &mut self.judge.faults);
    }

    /// Every subscriber that resumes must have come to the end of its topics.
    fn nothing_is_left(&mut self) {
        for (subscriber, track) in &self.subscribers {
            for topic in subscriber.topics() {
                let left = self.judge.left(topic, track);
                if left > 0 && subscriber.gets_all() {
                    let name = subscriber.name();
                    self.judge.faults.add(Fault::Skipped, || {
                        format!("{name}: {left} messages at the end of topic {topic} never came")
                    });
                }
            }
        }
    }
}
