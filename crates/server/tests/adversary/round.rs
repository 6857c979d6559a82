//! Plays one round: a new server, honest clients and attackers for some time, then honest clients alone, then no client.

use std::fmt::Write as _;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::each::bind_attackers;
use crate::honest;
use crate::judge::{MemoryDifferences, Metrics, bound_bytes, explained_bytes, late_waits};
use crate::kinds::Kinds;
use crate::ping::Ping;
use crate::player::{AttackState, Player, Source};
use crate::seeds::Kept;
use crate::server_under_attack::{LimitSize, ServerUnderAttack};
use crate::tally::Tally;

/// Time between two checks of the server.
const CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// Time between two progress reports of a long round.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);
/// How long honest clients go on after the attackers have left.
const HONEST_ONLY: Duration = Duration::from_secs(2);
/// Timeout until the server holds nothing of clients that left, and has given back their memory.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(20);

/// The number of longest waits that are reported.
const LONGEST: usize = 3;

/// The round to play.
#[derive(Clone, Copy)]
pub struct Round<'a> {
    pub seed: u64,
    /// The server's limits.
    pub limits: LimitSize,
    /// The maximum time for attackers.
    pub time: Duration,
    /// The kept seeds (which once found a fault). Their scripts are played first.
    pub kept: &'a [Kept],
    /// Only these kinds of attackers are played.
    pub only: Option<&'a str>,
    /// No attackers are played.
    pub without_attackers: bool,
    /// The attackers run on the second core, which nothing else uses.
    pub on_second_core: bool,
    /// How late a message or answer may be. The time for which the machine was held up does not count.
    pub late_max: Duration,
}

/// Measurements while attackers were there.
#[derive(Default)]
pub struct Measurements {
    pub connections: u64,
    /// How long honest clients waited for messages and answers, the shortest first. The time for which the machine was held up is
    /// deducted.
    pub waits: Vec<Duration>,
    /// The same waits without that deduction.
    pub waits_with_delays: Vec<Duration>,
    /// The longest waits after the deduction, with what was waited for.
    pub longest: Vec<(Duration, String)>,
    pub memory: MemoryDifferences,
}

impl Measurements {
    /// The wait that this many percent of all waits do not exceed.
    pub fn percentile(&self, percent: usize) -> Duration {
        percentile(&self.waits, percent)
    }

    fn keep_longest(&mut self) {
        self.longest.sort_unstable_by(|a, b| b.cmp(a));
        self.longest.truncate(LONGEST);
    }

    /// Adds the measurements of another round.
    pub fn add(&mut self, other: Measurements) {
        self.connections += other.connections;
        self.waits.extend(other.waits);
        self.waits.sort_unstable();
        self.waits_with_delays.extend(other.waits_with_delays);
        self.waits_with_delays.sort_unstable();
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
    pub fn play(&self) -> Measurements {
        let target = ServerUnderAttack::start(self.limits);
        let (tally, attack, ping) = (Tally::new(), AttackState::default(), Ping::start());
        eprintln!(
            "adversary: seed {}, {:?} limits, server {}, {}",
            self.seed,
            self.limits,
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
        let mut memory = MemoryDifferences::default();
        let judged = std::thread::scope(|scope| {
            let all = honest::start(scope, &clients, &tally);
            scope.spawn(|| {
                if self.on_second_core {
                    bind_attackers();
                }
                player.play(&attack, &tally);
            });
            let judged = self.judge(&target, &tally, &attack, &ping, all, &mut memory);
            attack.must_stop.store(true, Ordering::Relaxed);
            if judged.is_err() && target.end_reason().is_none() {
                // Kills the server, so that no client waits for it any more.
                target.server.signal("KILL");
            }
            tally.must_stop_publishing.store(true, Ordering::Relaxed);
            tally.must_finish.store(true, Ordering::Relaxed);
            judged
        });
        if let Err(faults) = judged {
            panic!("{}", self.report(&faults, &attack));
        }
        let (_, connections, _) = attack.counts();
        let all = tally.waits();
        let own_wait = |(start, duration): &(Instant, Duration)| {
            duration.saturating_sub(ping.hold_up_within(*start, *duration))
        };
        let mut waits: Vec<Duration> = all.iter().map(own_wait).collect();
        let mut waits_with_delays: Vec<Duration> =
            all.into_iter().map(|(_, duration)| duration).collect();
        waits.sort_unstable();
        waits_with_delays.sort_unstable();
        let late = tally.late().into_iter();
        let longest = late
            .map(|it| (own_wait(&(it.start, it.duration)), it.description))
            .collect();
        let mut measurements = Measurements {
            connections,
            waits,
            waits_with_delays,
            longest,
            memory,
        };
        measurements.keep_longest();
        measurements
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
        match self.without_attackers {
            true => Vec::new(),
            false => kept.chain([fresh]).collect(),
        }
    }

    fn judge(
        &self,
        target: &ServerUnderAttack,
        tally: &Tally,
        attack: &AttackState,
        ping: &Ping,
        all: Vec<std::thread::ScopedJoinHandle<'_, ()>>,
        memory: &mut MemoryDifferences,
    ) -> Result<(), Vec<String>> {
        let began = Instant::now();
        let mut last_report = began;
        while began.elapsed() < self.time {
            self.check_invariants(target, tally)?;
            memory.sample(&target.process, target.server.admin())?;
            if last_report.elapsed() > PROGRESS_INTERVAL {
                last_report = Instant::now();
                self.print_progress(target, tally, attack, began);
            }
            std::thread::sleep(CHECK_INTERVAL);
        }
        attack.must_stop.store(true, Ordering::Relaxed);
        let attackers_left_at = Instant::now();
        while attackers_left_at.elapsed() < HONEST_ONLY {
            self.check_invariants(target, tally)?;
            std::thread::sleep(CHECK_INTERVAL);
        }
        tally.must_stop_publishing.store(true, Ordering::Relaxed);
        self.await_settled(target, tally, true)?;
        tally.must_finish.store(true, Ordering::Relaxed);
        while all.iter().any(|one| !one.is_finished()) {
            self.check_invariants(target, tally)?;
            std::thread::sleep(CHECK_INTERVAL);
        }
        self.await_settled(target, tally, false)?;
        self.check_invariants(target, tally)?;
        self.print_progress(target, tally, attack, began);
        match late_waits(tally, ping, self.late_max) {
            late if late.is_empty() => Ok(()),
            late => Err(late),
        }
    }

    /// Checks the conditions that must hold all the time.
    fn check_invariants(
        &self,
        target: &ServerUnderAttack,
        tally: &Tally,
    ) -> Result<(), Vec<String>> {
        if let Some(reason) = target.end_reason() {
            return Err(vec![format!("the server ended: {reason}")]);
        }
        let growth = target.process.peak_bytes();
        let bound = bound_bytes(self.limits);
        if growth > bound {
            let (actual, allowed) = (mib(growth), mib(bound));
            let description = format!(
                "the server took {actual} MiB more than an empty one, not at most {allowed}"
            );
            return Err(vec![description]);
        }
        match tally.faults() {
            faults if faults.is_empty() => Ok(()),
            // Clients whose connections end with the server cannot tell why. If the server has ended, that is the better reason.
            faults => match target.end_reason_after_delay() {
                Some(reason) => Err(vec![format!("the server ended: {reason}")]),
                None => Err(faults),
            },
        }
    }

    /// Waits for the conditions that must hold some time after the attackers, or all clients, have left.
    fn await_settled(
        &self,
        target: &ServerUnderAttack,
        tally: &Tally,
        has_readers: bool,
    ) -> Result<(), Vec<String>> {
        let began = Instant::now();
        loop {
            self.check_invariants(target, tally)?;
            let unsettled = match Metrics::read(target.server.admin()) {
                None => vec!["the admin port does not answer".to_string()],
                Some(metrics) => {
                    let mut unsettled = metrics.nonzero_metrics(has_readers);
                    let (growth, allowed) =
                        (target.process.grown_bytes(), explained_bytes(&metrics));
                    if growth > allowed {
                        let (actual, allowed) = (mib(growth), mib(allowed));
                        unsettled.push(format!(
                            "it takes {actual} MiB more than an empty one, not {allowed}; in MiB it names {}",
                            metrics.memory_report()
                        ));
                    }
                    unsettled
                }
            };
            if unsettled.is_empty() {
                return Ok(());
            }
            if began.elapsed() > SETTLE_TIMEOUT {
                let who = if has_readers { "the attackers" } else { "all" };
                let when = format!("{SETTLE_TIMEOUT:?} after {who} have left:");
                return Err([vec![when], unsettled].concat());
            }
            std::thread::sleep(CHECK_INTERVAL);
        }
    }

    fn print_progress(
        &self,
        target: &ServerUnderAttack,
        tally: &Tally,
        attack: &AttackState,
        began: Instant,
    ) {
        let (begun, opened, open) = attack.counts();
        eprintln!(
            "adversary: {} s: {begun} scripts, {opened} connections ({open} open); honest clients published {} and took {}, \
             the slowest in {} ms; memory at most {} of {} MiB",
            began.elapsed().as_secs(),
            tally.published.load(Ordering::Relaxed),
            tally.received.load(Ordering::Relaxed),
            tally.longest_wait_ms.load(Ordering::Relaxed),
            mib(target.process.peak_bytes()),
            mib(bound_bytes(self.limits)),
        );
    }

    fn report(&self, faults: &[String], attack: &AttackState) -> String {
        let seed = self.seed;
        let command = match (self.kept, self.only) {
            ([], None) => format!("cargo xtask adversary --seed {seed}"),
            ([], Some(only)) => format!("cargo xtask adversary --seed {seed} --only {only}"),
            _ => format!("CRORE_ADVERSARY_SEED={seed} cargo test -p crore --test adversary"),
        };
        let mut text = format!("seed {seed}; again: {command}\n");
        for fault in faults {
            let _ = writeln!(text, "  {fault}");
        }
        let (begun, opened, _) = attack.counts();
        let _ = write!(
            text,
            "--- the last of {begun} scripts ({opened} connections), the newest first\n{}",
            attack.describe_newest(),
        );
        text
    }
}

fn mib(bytes: u64) -> u64 {
    bytes >> 20
}
