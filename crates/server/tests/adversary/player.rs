//! Plays scripts: which they are, and in which order they begin, is the seed's; how they interleave is the machine's.
//!
//! One thread looks after all connections in turn, without a readiness system call: a look at a silent socket costs less
//! than a microsecond, and those that stay silent are looked at less often.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::connection::{Connection, TlsConfigs, Turn};
use crate::kinds::Kinds;
use crate::script::Script;
use crate::tally::Tally;

/// Connections of all attackers at once.
pub const OPEN_MAX: usize = 500;
/// Scripts at once.
const SCRIPTS_MAX: usize = 40;
/// Between the beginnings of two scripts.
const PACE: Duration = Duration::from_millis(15);
/// How long a connection that was silent for long is not looked at.
const LOOK: [Duration; 3] = [
    Duration::from_millis(1),
    Duration::from_millis(5),
    Duration::from_millis(20),
];
/// How many of the scripts that began last a failure shows.
const SHOWN: usize = 12;

/// A script with its seed and its number.
type Named = ((u64, u64), Arc<Script>);

/// The state of the attack that the judge sees.
#[derive(Default)]
pub struct Stage {
    pub stop: AtomicBool,
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    begun: u64,
    opened: u64,
    open: usize,
    last: VecDeque<Named>,
}

impl Stage {
    /// How many scripts began, how many connections were opened, and how many are open.
    pub fn counts(&self) -> (u64, u64, usize) {
        let log = self.log.lock().expect("the stage");
        (log.begun, log.opened, log.open)
    }

    /// The scripts that began last, for the report of a failure.
    pub fn last(&self) -> String {
        let log = self.log.lock().expect("the stage");
        let mut text = String::new();
        for ((seed, number), script) in log.last.iter().rev() {
            let _ = writeln!(text, "script {number} of seed {seed}, {script}");
        }
        text
    }
}

struct Playing {
    connection: Connection,
    name: (u64, u64),
    look_at: Instant,
    silent: usize,
}

/// Scripts of one seed.
pub struct Source {
    pub seed: u64,
    pub kinds: Kinds,
    /// How many; none: as many as there is time for.
    pub scripts: Option<u64>,
}

/// Plays the attackers.
pub struct Player {
    pub to: SocketAddr,
    pub tls: TlsConfigs,
    /// One after the other.
    pub sources: Vec<Source>,
}

impl Player {
    /// Plays until it is stopped, and closes all.
    pub fn play(&self, stage: &Stage, tally: &Tally) {
        let mut playing: Vec<Playing> = Vec::new();
        let mut scripts = self.scripts();
        let mut next = scripts.next();
        let mut waiting: VecDeque<Named> = VecDeque::new();
        let mut next_at = Instant::now();
        let mut buffer = vec![0; 64 << 10];
        while !stage.stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            let room = waiting.is_empty() && scripts_of(&playing) < SCRIPTS_MAX;
            if room
                && now >= next_at
                && let Some(script) = next.take()
            {
                waiting.push_back(script);
                next = scripts.next();
                next_at = now + PACE;
            }
            if let Some((_, script)) = waiting.front()
                && playing.len() + script.sockets <= OPEN_MAX
                && let Some((name, script)) = waiting.pop_front()
            {
                self.begin(name, &script, &mut playing, stage);
                if let Some(beside) = &script.beside {
                    waiting.push_front((name, Arc::clone(beside)));
                }
            }
            turn_all(&mut playing, &mut waiting, &mut buffer, tally);
            stage.log.lock().expect("the stage").open = playing.len();
            std::thread::sleep(Duration::from_millis(1));
        }
        stage.log.lock().expect("the stage").open = 0;
    }

    /// All scripts in their order, each with its seed and number.
    fn scripts(&self) -> impl Iterator<Item = Named> {
        self.sources.iter().flat_map(|source| {
            let numbers = 0..source.scripts.unwrap_or(u64::MAX);
            numbers.map(|number| {
                let script = source.kinds.script(source.seed, number);
                ((source.seed, number), Arc::new(script))
            })
        })
    }

    fn begin(
        &self,
        name: (u64, u64),
        script: &Arc<Script>,
        playing: &mut Vec<Playing>,
        stage: &Stage,
    ) {
        {
            let mut log = stage.log.lock().expect("the stage");
            log.begun += 1;
            log.opened += script.sockets as u64;
            log.last.push_back((name, Arc::clone(script)));
            if log.last.len() > SHOWN {
                log.last.pop_front();
            }
        }
        for _ in 0..script.sockets {
            if stage.stop.load(Ordering::Relaxed) {
                return;
            }
            // Whether the server may be asked at all is seen by others.
            if let Ok(connection) = Connection::open(script, self.to, &self.tls) {
                playing.push(Playing {
                    connection,
                    name,
                    look_at: Instant::now(),
                    silent: 0,
                });
            }
        }
    }
}

fn scripts_of(playing: &[Playing]) -> usize {
    let mut names: Vec<_> = playing.iter().map(|one| one.name).collect();
    names.sort_unstable();
    names.dedup();
    names.len()
}

/// Looks at each connection whose time has come.
fn turn_all(
    playing: &mut Vec<Playing>,
    waiting: &mut VecDeque<Named>,
    buffer: &mut [u8],
    tally: &Tally,
) {
    let mut at = 0;
    while at < playing.len() {
        let now = Instant::now();
        let one = &mut playing[at];
        if now < one.look_at {
            at += 1;
            continue;
        }
        match one.connection.turn(now, buffer) {
            Ok(Turn::Busy) => one.silent = 0,
            Ok(Turn::Idle) => {
                one.look_at = now + LOOK[(one.silent / 20).min(LOOK.len() - 1)];
                one.silent += 1;
            }
            Ok(Turn::Over) => {
                let one = playing.swap_remove(at);
                if let Some(then) = &one.connection.script.then {
                    waiting.push_front((one.name, Arc::clone(then)));
                }
                continue;
            }
            Err(fault) => {
                let one = playing.swap_remove(at);
                let (script, (seed, number)) = (&one.connection.script, one.name);
                tally.fault(format!(
                    "an answer to an attacker: {fault}
script {number} of seed {seed}, {script}"
                ));
                continue;
            }
        }
        at += 1;
    }
}
