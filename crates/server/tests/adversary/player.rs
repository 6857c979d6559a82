//! Plays the attackers' scripts. The seed determines the scripts and the order in which they begin; the machine determines how they
//! interleave.
//!
//! One thread polls all connections in turn, without a readiness system call: to poll a silent socket costs less than a microsecond.
//! Connections that stay silent are polled less often.

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
/// Time between two turns of a silent connection. The longer a connection is silent, the longer the time.
const TURN_INTERVALS: [Duration; 3] = [
    Duration::from_millis(1),
    Duration::from_millis(5),
    Duration::from_millis(20),
];
/// How many of the scripts that started last are shown after a failure.
const SHOWN_SCRIPTS: usize = 12;

/// The script with this number, of this seed.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct ScriptId {
    seed: u64,
    number: u64,
}

type NumberedScript = (ScriptId, Arc<Script>);

/// The state of the attack, as far as the judge sees it.
#[derive(Default)]
pub struct AttackState {
    pub must_stop: AtomicBool,
    log: Mutex<Log>,
}

#[derive(Default)]
struct Log {
    begun: u64,
    opened: u64,
    open: usize,
    newest: VecDeque<NumberedScript>,
}

impl AttackState {
    /// The numbers of started scripts, opened connections, and open connections.
    pub fn counts(&self) -> (u64, u64, usize) {
        let log = self.log.lock().expect("the lock");
        (log.begun, log.opened, log.open)
    }

    /// The scripts that started last, for the report of a failure.
    pub fn describe_newest(&self) -> String {
        let log = self.log.lock().expect("the lock");
        let mut text = String::new();
        for (ScriptId { seed, number }, script) in log.newest.iter().rev() {
            let _ = writeln!(text, "script {number} of seed {seed}, {script}");
        }
        text
    }
}

struct OpenConnection {
    connection: Connection,
    script_id: ScriptId,
    next_turn_at: Instant,
    idle_turns: usize,
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
    /// Plays until `attack.must_stop`, then closes all connections.
    pub fn play(&self, attack: &AttackState, tally: &Tally) {
        let mut open_connections: Vec<OpenConnection> = Vec::new();
        let mut scripts = self.scripts();
        let mut next = scripts.next();
        let mut waiting: VecDeque<NumberedScript> = VecDeque::new();
        let mut next_at = Instant::now();
        let mut buffer = vec![0; 64 << 10];
        while !attack.must_stop.load(Ordering::Relaxed) {
            let now = Instant::now();
            let has_room = waiting.is_empty() && count_scripts(&open_connections) < SCRIPTS_MAX;
            if has_room
                && now >= next_at
                && let Some(script) = next.take()
            {
                waiting.push_back(script);
                next = scripts.next();
                next_at = now + PACE;
            }
            if let Some((_, script)) = waiting.front()
                && open_connections.len() + script.sockets <= OPEN_MAX
                && let Some((script_id, script)) = waiting.pop_front()
            {
                self.open_connections(script_id, &script, &mut open_connections, attack);
                if let Some(beside) = &script.beside {
                    waiting.push_front((script_id, Arc::clone(beside)));
                }
            }
            run_due_turns(&mut open_connections, &mut waiting, &mut buffer, tally);
            attack.log.lock().expect("the lock").open = open_connections.len();
            std::thread::sleep(Duration::from_millis(1));
        }
        attack.log.lock().expect("the lock").open = 0;
    }

    /// All scripts in their order, each with its seed and number.
    fn scripts(&self) -> impl Iterator<Item = NumberedScript> {
        self.sources.iter().flat_map(|source| {
            let numbers = 0..source.scripts.unwrap_or(u64::MAX);
            numbers.map(|number| {
                let script = source.kinds.script(source.seed, number);
                let seed = source.seed;
                (ScriptId { seed, number }, Arc::new(script))
            })
        })
    }

    fn open_connections(
        &self,
        script_id: ScriptId,
        script: &Arc<Script>,
        open_connections: &mut Vec<OpenConnection>,
        attack: &AttackState,
    ) {
        {
            let mut log = attack.log.lock().expect("the lock");
            log.begun += 1;
            log.opened += script.sockets as u64;
            log.newest.push_back((script_id, Arc::clone(script)));
            if log.newest.len() > SHOWN_SCRIPTS {
                log.newest.pop_front();
            }
        }
        let to = match script.port {
            Port::Data => self.data,
            Port::Admin => self.admin,
        };
        for _ in 0..script.sockets {
            if attack.must_stop.load(Ordering::Relaxed) {
                return;
            }
            // A connection that fails is ignored here. Other checks find out whether the server accepts connections.
            if let Ok(connection) = Connection::open(script, to, &self.tls) {
                open_connections.push(OpenConnection {
                    connection,
                    script_id,
                    next_turn_at: Instant::now(),
                    idle_turns: 0,
                });
            }
        }
    }
}

fn count_scripts(open_connections: &[OpenConnection]) -> usize {
    let mut ids: Vec<_> = open_connections
        .iter()
        .map(|current| current.script_id)
        .collect();
    ids.sort_unstable();
    ids.dedup();
    ids.len()
}

/// Runs a turn of each connection whose next turn is due.
fn run_due_turns(
    open_connections: &mut Vec<OpenConnection>,
    waiting: &mut VecDeque<NumberedScript>,
    buffer: &mut [u8],
    tally: &Tally,
) {
    let mut at = 0;
    while at < open_connections.len() {
        let now = Instant::now();
        let current = &mut open_connections[at];
        if now < current.next_turn_at {
            at += 1;
            continue;
        }
        match current.connection.turn(now, buffer) {
            Ok(Turn::Busy) => current.idle_turns = 0,
            Ok(Turn::Idle) => {
                current.next_turn_at =
                    now + TURN_INTERVALS[(current.idle_turns / 20).min(TURN_INTERVALS.len() - 1)];
                current.idle_turns += 1;
            }
            Ok(Turn::Over) => {
                let current = open_connections.swap_remove(at);
                if let Some(then) = &current.connection.script.then {
                    waiting.push_front((current.script_id, Arc::clone(then)));
                }
                continue;
            }
            Err(fault) => {
                let current = open_connections.swap_remove(at);
                let script = &current.connection.script;
                let ScriptId { seed, number } = current.script_id;
                tally.record_fault(format!(
                    "an answer to an attacker: {fault}
script {number} of seed {seed}, {script}"
                ));
                continue;
            }
        }
        at += 1;
    }
}
