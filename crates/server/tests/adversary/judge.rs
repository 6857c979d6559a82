//! Judges the server from outside: that it lives, what memory it takes, and that it holds nothing when all have left.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use crate::honest;
use crate::ping::Ping;
use crate::port::ask;
use crate::tally::Tally;
use crate::world::{LOG_BYTES, OUTBOX_BYTES, RECEIVE_BYTES};

/// Tables, buffers of the shards, sessions, retained messages, and what the allocator does not use just then.
const REST_BYTES: u64 = 64 << 20;
/// What may be left besides the logs when all have gone.
const LEFT_BYTES: u64 = 32 << 20;

/// Counts that are nothing when everybody has left, and what honest readers without a publisher account for.
const EMPTY: &[(&str, f64)] = &[
    ("crore_connections", honest::CONNECTIONS as f64),
    ("crore_outbox_bytes", 0.0),
    ("crore_slow_consumers", 0.0),
    ("crore_receive_buffer_bytes", 0.0),
    ("crore_credit_bytes", 0.0),
    ("crore_followers", 0.0),
    ("crore_tls_handshakes_under_way", 0.0),
    ("crore_tls_connections", honest::CONNECTIONS as f64),
    ("crore_sessions", honest::CONNECTIONS as f64),
    ("crore_subscriptions", 2.0 * honest::CONNECTIONS as f64),
    ("crore_filters", 2.0 * honest::CONNECTIONS as f64),
];

/// All that `/metrics` says, the series of a name added up.
pub struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    pub fn read(admin: SocketAddr) -> Metrics {
        let answer = ask(admin, "GET /metrics", None);
        let mut all = BTreeMap::new();
        for line in answer.body.lines().filter(|line| !line.starts_with('#')) {
            let Some((series, value)) = line.rsplit_once(' ') else {
                continue;
            };
            let name = series.split('{').next().unwrap_or(series);
            *all.entry(name.to_string()).or_insert(0.0) += value.parse().unwrap_or(0.0);
        }
        Metrics(all)
    }

    fn get(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or(0.0)
    }

    /// What is still there though those who had it left; `honest` readers may still be there.
    pub fn left(&self, honest: bool) -> Vec<String> {
        let more = EMPTY.iter().filter_map(|(name, theirs)| {
            let (is, may) = (self.get(name), if honest { *theirs } else { 0.0 });
            (is > may).then(|| format!("{name} is {is}, not {may}"))
        });
        more.collect()
    }
}

/// The process, as the kernel sees it.
pub struct Process {
    pid: u32,
    /// Its memory before anybody came.
    empty_bytes: u64,
}

impl Process {
    pub fn new(pid: u32) -> Process {
        let empty_bytes = pss_bytes(pid).unwrap_or(0);
        Process { pid, empty_bytes }
    }

    /// None while it runs; else how it ended.
    pub fn ended(&self) -> Option<String> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok();
        // Behind the name, which stands in parentheses: the state first, the wait status last.
        let fields = stat.as_ref().and_then(|stat| stat.rsplit_once(") "));
        let Some((_, fields)) = fields else {
            return Some("it is gone".to_string());
        };
        if !fields.starts_with('Z') {
            return None;
        }
        let status: u32 = fields
            .split_whitespace()
            .next_back()
            .and_then(|status| status.parse().ok())
            .unwrap_or(0);
        Some(match status & 0x7f {
            0 => format!("it ended with {}", status >> 8),
            signal => format!("it was ended by signal {signal}"),
        })
    }

    /// What it takes more than when nobody was there, in bytes.
    pub fn grown_bytes(&self) -> u64 {
        pss_bytes(self.pid)
            .unwrap_or(0)
            .saturating_sub(self.empty_bytes)
    }

    pub fn empty_bytes(&self) -> u64 {
        self.empty_bytes
    }
}

/// What it may take while attackers are there: the sum of what its settings allow.
pub fn bound_bytes() -> u64 {
    LOG_BYTES + OUTBOX_BYTES + RECEIVE_BYTES + REST_BYTES
}

/// What it may take when all have left.
pub fn left_bytes(metrics: &Metrics) -> u64 {
    metrics.get("crore_log_bytes") as u64 + LEFT_BYTES
}

/// What came later than `bound`, less what held up the machine.
pub fn too_late(tally: &Tally, ping: &Ping, bound: Duration) -> Vec<String> {
    let late = tally.late();
    let found = late.iter().filter_map(|late| {
        let machine = ping.explains(late.from, late.took);
        let (took, own) = (late.took.as_millis(), late.took.saturating_sub(machine));
        (own > bound).then(|| {
            let machine = machine.as_millis();
            format!(
                "{} took {took} ms, of which the machine's pings explain {machine}",
                late.what
            )
        })
    });
    found.collect()
}

fn pss_bytes(pid: u32) -> Option<u64> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("Pss:"))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
