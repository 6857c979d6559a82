//! Judges the server from outside: whether it runs, how much memory it uses, and whether all memory of clients is free after they have
//! left.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use crate::honest;
use crate::ping::Ping;
use crate::server_under_attack::{LOG_BYTES, LimitSize};
use crate::tally::Tally;

/// Timeout of a request to the admin port.
const ADMIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Memory that no other limit counts: tables, buffers of the shards, sessions, retained messages, and memory that the allocator does not
/// use at the moment.
const OTHER_BYTES: u64 = 96 << 20;
/// The metric in which the server reports the memory that it holds, by table.
const TABLE_MEMORY: &str = "crore_table_memory_bytes";
/// What the kernel holds beside the process.
const KERNEL_BUFFERS: &str = "crore_table_memory_bytes{table=\"kernel_buffers\"}";
/// The maximum difference between the server's figure and the kernel's: a percentage of the server's figure, or a number of bytes,
/// whichever is larger.
const DIFFERENCE_PERCENT: u64 = 15;
const DIFFERENCE_BYTES: u64 = 32 << 20;

/// Metrics that are 0 when all clients have left, each with the value that honest readers without a publisher account for.
const ZERO_WITHOUT_CLIENTS: &[(&str, f64)] = &[
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

/// The values of `/metrics`, of each series and of each name: the sum of its series.
pub struct Metrics(BTreeMap<String, f64>);

impl Metrics {
    /// Reads the metrics. `None` if the server does not answer.
    pub fn read(admin: SocketAddr) -> Option<Metrics> {
        let text = http_get(admin, "/metrics").ok()?;
        let mut values = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let Some((series, value)) = line.rsplit_once(' ') else {
                continue;
            };
            let value = value.parse().unwrap_or(0.0);
            values.insert(series.to_string(), value);
            if let Some((name, _)) = series.split_once('{') {
                *values.entry(name.to_string()).or_insert(0.0) += value;
            }
        }
        Some(Metrics(values))
    }

    /// All metrics in bytes, in MiB, for a report of memory that is not explained.
    pub fn memory_report(&self) -> String {
        let bytes = self.0.iter().filter(|(name, _)| name.ends_with("_bytes"));
        let texts = bytes.map(|(name, bytes)| format!("{name} {:.1}", bytes / f64::from(1 << 20)));
        texts.collect::<Vec<_>>().join(", ")
    }

    /// The memory that the server says its process holds, in bytes.
    fn reported_bytes(&self) -> u64 {
        (self.get(TABLE_MEMORY) - self.get(KERNEL_BUFFERS)) as u64
    }

    fn get(&self, name: &str) -> f64 {
        self.0.get(name).copied().unwrap_or(0.0)
    }

    /// The metrics that are not zero although their clients have left, as text. If `has_readers`, honest readers may still be connected.
    pub fn nonzero_metrics(&self, has_readers: bool) -> Vec<String> {
        let nonzero = ZERO_WITHOUT_CLIENTS
            .iter()
            .filter_map(|(name, with_readers)| {
                let (value, allowed) = (
                    self.get(name),
                    if has_readers { *with_readers } else { 0.0 },
                );
                (value > allowed).then(|| format!("{name} is {value}, not {allowed}"))
            });
        nonzero.collect()
    }
}

/// The server's process, as the kernel sees it.
pub struct Process {
    pid: u32,
    /// Memory before any client connected: the proportional share (PSS), and the resident memory (RSS).
    empty_bytes: u64,
    empty_resident_bytes: u64,
}

impl Process {
    pub fn new(pid: u32) -> Process {
        Process {
            pid,
            empty_bytes: pss_bytes(pid).unwrap_or(0),
            empty_resident_bytes: status_bytes(pid, "VmRSS:").unwrap_or(0),
        }
    }

    /// How the process ended. `None` while it runs.
    pub fn end_reason(&self) -> Option<String> {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.pid)).ok();
        // The fields after the name, which stands in parentheses. The first is the state, the last the wait status.
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

    /// The growth of the process's memory since before any client connected.
    pub fn grown_bytes(&self) -> u64 {
        pss_bytes(self.pid)
            .unwrap_or(0)
            .saturating_sub(self.empty_bytes)
    }

    /// The highest growth of the process's memory since before any client connected. The kernel records the peak of resident memory, so
    /// that peaks between two samples count too. Text and page tables are the same before and after.
    pub fn peak_bytes(&self) -> u64 {
        let most = status_bytes(self.pid, "VmHWM:").unwrap_or(0);
        most.saturating_sub(self.empty_resident_bytes)
    }

    pub fn empty_bytes(&self) -> u64 {
        self.empty_bytes
    }
}

/// The memory that the server may take while attackers are there: the sum of what its settings allow.
pub fn bound_bytes(limits: LimitSize) -> u64 {
    LOG_BYTES + limits.memory_bytes() + OTHER_BYTES
}

/// The memory that the server may take by its own figure, with the permitted difference.
pub fn explained_bytes(metrics: &Metrics) -> u64 {
    let reported = metrics.reported_bytes();
    reported + allowed_difference_bytes(reported)
}

fn allowed_difference_bytes(reported: u64) -> u64 {
    DIFFERENCE_BYTES.max(reported * DIFFERENCE_PERCENT / 100)
}

/// The largest differences between the kernel's figure of memory and the server's.
#[derive(Default)]
pub struct MemoryDifferences {
    /// The highest growth of the process, and the server's own figure at that time.
    pub grown_bytes: u64,
    pub reported_bytes: u64,
    /// The most memory that the process took and the server did not report.
    pub unreported_bytes: u64,
    /// The most memory that the server reported and the process did not take.
    pub overreported_bytes: u64,
    /// Number of differences that were too large.
    unexplained: u32,
    /// Growth of the process at the last sample, and the server's figure just before that sample.
    previous: Option<(u64, u64)>,
}

impl MemoryDifferences {
    /// Takes a sample of both figures. The server's figure is a tenth of a second old. So the true value at the time of the kernel's
    /// figure lies between the server's figures before and after it.
    ///
    /// # Errors
    ///
    /// If the admin port does not answer. It must answer the operator even while attackers hold connections to it.
    pub fn sample(&mut self, process: &Process, admin: SocketAddr) -> Result<(), Vec<String>> {
        let Some(metrics) = Metrics::read(admin) else {
            return Err(vec![
                "the admin port does not answer the operator".to_string(),
            ]);
        };
        let now = metrics.reported_bytes();
        if let Some((grown, before)) = self.previous.replace((process.grown_bytes(), now)) {
            self.compare(grown, grown.clamp(before.min(now), before.max(now)));
        }
        Ok(())
    }

    fn compare(&mut self, grown: u64, reported: u64) {
        if grown > self.grown_bytes {
            (self.grown_bytes, self.reported_bytes) = (grown, reported);
        }
        self.unreported_bytes = self.unreported_bytes.max(grown.saturating_sub(reported));
        self.overreported_bytes = self.overreported_bytes.max(reported.saturating_sub(grown));
        self.unexplained +=
            u32::from(grown.abs_diff(reported) > allowed_difference_bytes(reported));
    }

    /// Whether all differences were small enough.
    pub fn is_explained(&self) -> bool {
        self.unexplained == 0
    }

    /// Adds the figures of another round.
    pub fn add(&mut self, other: MemoryDifferences) {
        if other.grown_bytes > self.grown_bytes {
            (self.grown_bytes, self.reported_bytes) = (other.grown_bytes, other.reported_bytes);
        }
        self.unreported_bytes = self.unreported_bytes.max(other.unreported_bytes);
        self.overreported_bytes = self.overreported_bytes.max(other.overreported_bytes);
        self.unexplained += other.unexplained;
    }
}

/// Messages and answers that were later than `bound`. The time in which the machine itself was delayed is not counted.
pub fn late_waits(tally: &Tally, ping: &Ping, bound: Duration) -> Vec<String> {
    let late = tally.late();
    let found = late.iter().filter_map(|late| {
        let machine_delay = ping.hold_up_within(late.start, late.duration);
        let (took, own_delay) = (
            late.duration.as_millis(),
            late.duration.saturating_sub(machine_delay),
        );
        (own_delay > bound).then(|| {
            let machine_delay = machine_delay.as_millis();
            format!(
                "{} took {took} ms, of which the machine's pings explain {machine_delay}",
                late.description
            )
        })
    });
    found.collect()
}

fn http_get(admin: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect_timeout(&admin, ADMIN_TIMEOUT)?;
    stream.set_read_timeout(Some(ADMIN_TIMEOUT))?;
    write!(
        stream,
        "GET {path} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n"
    )?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    Ok(text)
}

fn pss_bytes(pid: u32) -> Option<u64> {
    bytes_in(&format!("/proc/{pid}/smaps_rollup"), "Pss:")
}

fn status_bytes(pid: u32, name: &str) -> Option<u64> {
    bytes_in(&format!("/proc/{pid}/status"), name)
}

fn bytes_in(file: &str, name: &str) -> Option<u64> {
    let text = std::fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    let kib: u64 = line.trim().strip_suffix(" kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}
