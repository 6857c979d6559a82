//! Plays one round: a new server, honest clients and attackers for some time, then honest clients alone, then no client.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::each::bind_attackers;
use crate::honest;
use crate::judge::{Memory, Metrics, bound_bytes, explained_bytes, too_late};
use crate::kinds::Kinds;
use crate::ping::Ping;
use crate::player::{Player, Source, Stage};
use crate::seeds::Kept;
use crate::server_under_attack::{LimitSize, ServerUnderAttack};
use crate::tally::Tally;

/// Time between two checks of the server.
const LOOK: Duration = Duration::from_millis(200);
/// Time between two progress reports of a long round.
const PROGRESS: Duration = Duration::from_secs(10);
/// How long honest clients go on after the attackers have left.
const ALONE: Duration = Duration::from_secs(2);
/// Timeout until the server holds nothing of clients that left, and has given back their memory.
const SETTLE: Duration = Duration::from_secs(20);

/// The number of longest waits that are reported.
const LONGEST: usize = 3;

/// The round to play.
#[derive(Clone, Copy)]
pub struct Round<'a> {
    pub seed: u64,
    /// The server's limits.
    pub room: LimitSize,
    /// The maximum time for attackers.
    pub time: Duration,
    /// The kept seeds (which once found a fault). Their scripts are played first.
    pub kept: &'a [Kept],
    /// Only these kinds of attackers are played.
    pub only: Option<&'a str>,
    /// No attackers are played.
    pub calm: bool,
    /// The attackers run on the second core, which nothing else uses.
    pub apart: bool,
    /// How late a message or answer may be. The time for which the machine was held up does not count.
    pub late: Duration,
}

/// Measurements while attackers were there.
#[derive(Default)]
pub struct Seen {
    pub connections: u64,
    /// How long honest clients waited for messages and answers, the shortest first. The time for which the machine was held up is
    /// deducted.
    pub waits: Vec<Duration>,
    /// The same waits without that deduction.
    pub waits_in_all: Vec<Duration>,
    /// The longest waits after the deduction, with what was waited for.
    pub longest: Vec<(Duration, String)>,
    pub memory: Memory,
}

impl Seen {
    /// The wait that this many percent of all waits do not exceed.
    pub fn percentile(&self, percent: usize) -> Duration {
        percentile(&self.waits, percent)
    }

    fn keep_longest(&mut self) {
        self.longest.sort_unstable_by(|a, b| b.cmp(a));
        self.longest.truncate(LONGEST);
    }

    /// Adds the measurements of another round.
    pub fn add(&mut self, other: Seen) {
        self.connections += other.connections;
        self.waits.extend(other.waits);
        self.waits.sort_unstable();
        self.waits_in_all.extend(other.waits_in_all);
        self.waits_in_all.sort_unstable();
        self.longest.extend(other.longest);
        self.keep_longest();
        self.memory.add(other.memory);
    }
}

/// The value that this many percent of these sorted waits do not exceed.
pub fn percentile(waits: &[Duration], percent: usize) -> Duration {
    let last = waits.len().saturating_sub(1);
    waits.get(last * percent / 100).copied().unwrap_or_default()
}

impl Round<'_> {
    /// Plays the round.
    ///
    /// # Panics
    /// If a condition is violated. The message has a report, followed by the server's log.
    pub fn play(&self) -> Seen {
        let target = ServerUnderAttack::start(self.room);
        let (tally, stage, ping) = (Tally::new(), Stage::default(), Ping::start());
        eprintln!(
            "adversary: seed {}, {:?} limits, server {}, {}",
            self.seed,
            self.room,
            target.server.pid(),
            match &target.group {
                Some(_) => "in a control group",
                None => "without a control group (none can be made here): its PSS is watched alone",
            }
        );
        let player = Player {
            data: target.server.address(),
            admin: target.server.admin(),
            tls: target.tls.clone(),
            sources: self.sources(),
        };
        let clients = honest::Server {
            address: target.server.address(),
            tls: target.tls.any_version.clone(),
        };
        let mut memory = Memory::default();
        let judged = std::thread::scope(|scope| {
            let all = honest::start(scope, &clients, &tally);
            scope.spawn(|| {
                if self.apart {
                    bind_attackers();
                }
                player.play(&stage, &tally);
            });
            let judged = self.judge(&target, &tally, &stage, &ping, all, &mut memory);
            stage.stop.store(true, Ordering::Relaxed);
            if judged.is_err() && target.ended().is_none() {
                // Kills the server, so that no client waits for it any more.
                target.server.signal("KILL");
            }
            tally.quiet.store(true, Ordering::Relaxed);
            tally.finish.store(true, Ordering::Relaxed);
            judged
        });
        if let Err(faults) = judged {
            panic!("{}", self.report(&faults, &stage));
        }
        let (_, connections, _) = stage.counts();
        let all = tally.waits();
        let own =
            |(from, took): &(Instant, Duration)| took.saturating_sub(ping.explains(*from, *took));
        let mut waits: Vec<Duration> = all.iter().map(own).collect();
        let mut waits_in_all: Vec<Duration> = all.into_iter().map(|(_, took)| took).collect();
        waits.sort_unstable();
        waits_in_all.sort_unstable();
        let late = tally.late().into_iter();
        let longest = late.map(|it| (own(&(it.from, it.took)), it.what)).collect();
        let mut seen = Seen {
            connections,
            waits,
            waits_in_all,
            longest,
            memory,
        };
        seen.keep_longest();
        seen
    }

    fn sources(&self) -> Vec<Source> {
        let kept = self.kept.iter().map(|kept| Source {
            seed: kept.seed,
            kinds: Kinds::new(Some(kept.only)),
            scripts: Some(kept.scripts),
        });
        let fresh = Source {
            seed: self.seed,
            kinds: Kinds::new(self.only),
            scripts: None,
        };
        match self.calm {
            true => Vec::new(),
            false => kept.chain([fresh]).collect(),
        }
    }

    fn judge(
        &self,
        target: &ServerUnderAttack,
        tally: &Tally,
        stage: &Stage,
        ping: &Ping,
        all: Vec<std::thread::ScopedJoinHandle<'_, ()>>,
        memory: &mut Memory,
    ) -> Result<(), Vec<String>> {
        let began = Instant::now();
        let mut last_report = began;
        while began.elapsed() < self.time {
            self.look(target, tally)?;
            memory.look(&target.process, target.server.admin())?;
            if last_report.elapsed() > PROGRESS {
                last_report = Instant::now();
                self.progress(target, tally, stage, began);
            }
            std::thread::sleep(LOOK);
        }
        stage.stop.store(true, Ordering::Relaxed);
        let left = Instant::now();
        while left.elapsed() < ALONE {
            self.look(target, tally)?;
            std::thread::sleep(LOOK);
        }
        tally.quiet.store(true, Ordering::Relaxed);
        self.settled(target, tally, true)?;
        tally.finish.store(true, Ordering::Relaxed);
        while all.iter().any(|one| !one.is_finished()) {
            self.look(target, tally)?;
            std::thread::sleep(LOOK);
        }
        self.settled(target, tally, false)?;
        self.look(target, tally)?;
        self.progress(target, tally, stage, began);
        match too_late(tally, ping, self.late) {
            late if late.is_empty() => Ok(()),
            late => Err(late),
        }
    }

    /// Checks the conditions that must hold all the time.
    fn look(&self, target: &ServerUnderAttack, tally: &Tally) -> Result<(), Vec<String>> {
        if let Some(how) = target.ended() {
            return Err(vec![format!("the server ended: {how}")]);
        }
        let grown = target.process.peak_bytes();
        let bound = bound_bytes(self.room);
        if grown > bound {
            let (is, may) = (mib(grown), mib(bound));
            let description =
                format!("the server took {is} MiB more than an empty one, not at most {may}");
            return Err(vec![description]);
        }
        match tally.faults() {
            faults if faults.is_empty() => Ok(()),
            // Clients whose connections end with the server cannot tell why. If the server has ended, that is the better reason.
            faults => match target.ended_soon() {
                Some(how) => Err(vec![format!("the server ended: {how}")]),
                None => Err(faults),
            },
        }
    }

    /// Waits for the conditions that must hold some time after the attackers, or all clients, have left.
    fn settled(
        &self,
        target: &ServerUnderAttack,
        tally: &Tally,
        honest: bool,
    ) -> Result<(), Vec<String>> {
        let began = Instant::now();
        loop {
            self.look(target, tally)?;
            let left = match Metrics::read(target.server.admin()) {
                None => vec!["the admin port does not answer".to_string()],
                Some(metrics) => {
                    let mut left = metrics.left(honest);
                    let (grown, may) = (target.process.grown_bytes(), explained_bytes(&metrics));
                    if grown > may {
                        let (is, may) = (mib(grown), mib(may));
                        left.push(format!(
                            "it takes {is} MiB more than an empty one, not {may}; in MiB it names {}",
                            metrics.memory()
                        ));
                    }
                    left
                }
            };
            if left.is_empty() {
                return Ok(());
            }
            if began.elapsed() > SETTLE {
                let who = if honest { "the attackers" } else { "all" };
                let when = format!("{SETTLE:?} after {who} have left:");
                return Err([vec![when], left].concat());
            }
            std::thread::sleep(LOOK);
        }
    }

    fn progress(&self, target: &ServerUnderAttack, tally: &Tally, stage: &Stage, began: Instant) {
        let (begun, opened, open) = stage.counts();
        eprintln!(
            "adversary: {} s: {begun} scripts, {opened} connections ({open} open); honest clients published {} and took {}, \
             the slowest in {} ms; memory at most {} of {} MiB",
            began.elapsed().as_secs(),
            tally.published.load(Ordering::Relaxed),
            tally.taken.load(Ordering::Relaxed),
            tally.worst_ms.load(Ordering::Relaxed),
            mib(target.process.peak_bytes()),
            mib(bound_bytes(self.room)),
        );
    }

    fn report(&self, faults: &[String], stage: &Stage) -> String {
        let seed = self.seed;
        let again = match (self.kept, self.only) {
            ([], None) => format!("cargo xtask adversary --seed {seed}"),
            ([], Some(only)) => format!("cargo xtask adversary --seed {seed} --only {only}"),
            _ => format!("CRORE_ADVERSARY_SEED={seed} cargo test -p crore --test adversary"),
        };
        let mut text = format!("seed {seed}; again: {again}\n");
        for fault in faults {
            let _ = writeln!(text, "  {fault}");
        }
        let (begun, opened, _) = stage.counts();
        let _ = write!(
            text,
            "--- the last of {begun} scripts ({opened} connections), the newest first\n{}",
            stage.last(),
        );
        text
    }
}

fn mib(bytes: u64) -> u64 {
    bytes >> 20
}
