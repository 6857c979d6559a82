//! Plays the attackers' scripts. The seed determines the scripts and the order in which they begin; the machine determines how they
//! interleave.
//!
//! One thread looks at all connections in turn, without a readiness system call: a look at a silent socket costs less than a microsecond.
//! Connections that stay silent are looked at less often.

use std::collections::VecDeque;
use std::fmt::Write as _;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::connection::{Connection, TlsConfigs, Turn};
use crate::kinds::Kinds;
use crate::script::{Port, Script};
use crate::tally::Tally;

/// The maximum of open connections of all attackers.
pub const OPEN_MAX: usize = 500;
/// The maximum of scripts under way.
const SCRIPTS_MAX: usize = 40;
/// Time between the starts of two scripts.
const PACE: Duration = Duration::from_millis(15);
/// Time between two looks at a silent connection. The longer a connection is silent, the longer the time.
const LOOK: [Duration; 3] = [
    Duration::from_millis(1),
    Duration::from_millis(5),
    Duration::from_millis(20),
];
/// How many of the scripts that started last are shown after a failure.
const SHOWN: usize = 12;

/// A script with its seed and its number.
type Named = ((u64, u64), Arc<Script>);

/// The state of the attack, as far as the judge sees it.
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
    /// The numbers of started scripts, opened connections, and open connections.
    pub fn counts(&self) -> (u64, u64, usize) {
        let log = self.log.lock().expect("the stage");
        (log.begun, log.opened, log.open)
    }

    /// The scripts that started last, for the report of a failure.
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
    /// Number of scripts. `None`: as many as there is time for.
    pub scripts: Option<u64>,
}

/// Plays the attackers.
pub struct Player {
    /// Addresses of the server's port for clients and of its admin port.
    pub data: SocketAddr,
    pub admin: SocketAddr,
    pub tls: TlsConfigs,
    /// The sources of scripts, played one after the other.
    pub sources: Vec<Source>,
}

impl Player {
    /// Plays until the stage says stop, then closes all connections.
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
        let to = match script.port {
            Port::Data => self.data,
            Port::Admin => self.admin,
        };
        for _ in 0..script.sockets {
            if stage.stop.load(Ordering::Relaxed) {
                return;
            }
            // A connection that fails is ignored here. Other checks find out whether the server accepts connections.
            if let Ok(connection) = Connection::open(script, to, &self.tls) {
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
