//! Reads memory, processor time and network counters from `/proc`.
//!
//! Memory and processor time belong to one process. Slab and socket memory belong to the whole machine, so they include both ends of a
//! local connection. A file may be unreadable, such as one of another user's process, or `/proc/slabinfo` without root. Then the result is
//! an error or an empty map, never a guess.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result};
use serde_json::{Value, json};

use crate::sys;

/// Bytes of a page. `/proc/net/sockstat` and `/proc/slabinfo` count in pages.
const PAGE_BYTES: u64 = 4096;
/// Ticks per second in `/proc/PID/stat`. The number is the same on every Linux system.
const TICKS_PER_S: f64 = 100.0;
/// The kernel's slab caches that connections use.
const SLABS: [&str; 6] = [
    "TCP",
    "sock_inode_cache",
    "dentry",
    "filp",
    "eventpoll_epi",
    "eventpoll_pwq",
];

fn read(path: &str) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("cannot read {path}"))
}

/// Memory and processor time of a process.
#[derive(Clone, Copy, Debug, PartialEq, derive_more::AddAssign, serde::Serialize)]
pub struct Process {
    /// Resident bytes.
    pub rss_bytes: u64,
    /// Resident bytes, with each shared page divided by the number of processes that share it.
    pub pss_bytes: u64,
    /// Processor time since the start of the process, in seconds. The resolution is a nanosecond.
    pub cpu_s: f64,
    /// Processor time in user space, in seconds. The resolution is 10 ms.
    pub user_s: f64,
    /// Processor time in the kernel, in seconds. The resolution is 10 ms.
    pub system_s: f64,
    /// Time for which threads of the process waited for a core, in seconds. The times of all threads are added up.
    pub waited_s: f64,
}

impl Process {
    /// Reads process `pid`.
    pub fn read(pid: u32) -> Result<Process> {
        let rollup = read(&format!("/proc/{pid}/smaps_rollup"))?;
        let (user_s, system_s) = times(&read(&format!("/proc/{pid}/stat"))?).context("stat")?;
        Ok(Process {
            rss_bytes: bytes_of_line(&rollup, "Rss:").context("Rss")?,
            pss_bytes: bytes_of_line(&rollup, "Pss:").context("Pss")?,
            cpu_s: sys::cpu_ns_of(pid)? as f64 / 1e9,
            user_s,
            system_s,
            waited_s: waited_s(pid),
        })
    }

    /// The sum of process `pid` and all its descendants.
    pub fn read_tree(pid: u32) -> Result<Process> {
        let mut sum = Process::read(pid)?;
        for child in Process::tree(pid).into_iter().skip(1) {
            sum += Process::read(child)?;
        }
        Ok(sum)
    }

    /// Process `pid`, then all its descendants.
    pub fn tree(pid: u32) -> Vec<u32> {
        let mut found = vec![pid];
        let mut next = 0;
        while let Some(pid) = found.get(next) {
            next += 1;
            // The kernel lists children by the thread that forked them.
            let threads = fs::read_dir(format!("/proc/{pid}/task"));
            for thread in threads.into_iter().flatten().flatten() {
                let children = fs::read_to_string(thread.path().join("children"));
                let children = children.unwrap_or_default();
                let children = children.split_whitespace();
                found.extend(children.filter_map(|child| child.parse::<u32>().ok()));
            }
        }
        found
    }
}

/// The value in bytes of a line such as `Pss:   123 kB`.
fn bytes_of_line(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_whitespace()
        .nth(1)?
        .parse::<u64>()
        .ok()
        .map(|kib| kib * 1024)
}

/// User and system seconds from the text of `/proc/PID/stat`. The process name in parentheses may contain any character, so the fields are
/// counted from the last parenthesis.
fn times(stat: &str) -> Option<(f64, f64)> {
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let ticks = |index: usize| fields.get(index)?.parse::<f64>().ok();
    Some((ticks(11)? / TICKS_PER_S, ticks(12)? / TICKS_PER_S))
}

/// Seconds that the threads of `pid` waited for a core; 0 if the kernel does not count that.
fn waited_s(pid: u32) -> f64 {
    let threads = fs::read_dir(format!("/proc/{pid}/task"));
    let second_number = |text: String| text.split_whitespace().nth(1)?.parse::<f64>().ok();
    threads
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("schedstat")).ok())
        .filter_map(second_number)
        .sum::<f64>()
        / 1e9
}

/// Memory and network counters of the kernel.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Kernel {
    /// Bytes of the slab caches that connections use.
    pub slabs: BTreeMap<String, u64>,
    /// Bytes of all slabs.
    pub slab_bytes: u64,
    /// Bytes of socket buffers.
    pub buffer_bytes: u64,
    /// Bytes received over all interfaces.
    pub received_bytes: u64,
    /// Bytes sent over all interfaces.
    pub sent_bytes: u64,
    /// Bytes that are still available to programs.
    pub available_bytes: u64,
}

impl Kernel {
    /// Reads the kernel's counters.
    pub fn read() -> Result<Kernel> {
        let meminfo = read("/proc/meminfo")?;
        let (received_bytes, sent_bytes) = network(&read("/proc/net/dev")?);
        Ok(Kernel {
            slabs: slabs(&fs::read_to_string("/proc/slabinfo").unwrap_or_default()),
            slab_bytes: bytes_of_line(&meminfo, "Slab:").context("Slab")?,
            buffer_bytes: buffers(&read("/proc/net/sockstat")?).context("sockstat")?,
            received_bytes,
            sent_bytes,
            available_bytes: bytes_of_line(&meminfo, "MemAvailable:").context("MemAvailable")?,
        })
    }

    /// The counters for the JSON report.
    pub fn json(&self) -> Value {
        json!({
            "slabs": self.slabs, "slab_bytes": self.slab_bytes,
            "socket_buffer_bytes": self.buffer_bytes,
            "received_bytes": self.received_bytes, "sent_bytes": self.sent_bytes,
            "available_bytes": self.available_bytes,
        })
    }
}

fn slabs(text: &str) -> BTreeMap<String, u64> {
    let mut out = BTreeMap::new();
    for line in text.lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let Some(name) = fields.first().filter(|name| SLABS.contains(name)) else {
            continue;
        };
        let number = |index: usize| fields.get(index)?.parse::<u64>().ok();
        if let (Some(pages), Some(count)) = (number(5), number(fields.len().wrapping_sub(2))) {
            out.insert((*name).to_string(), count * pages * PAGE_BYTES);
        }
    }
    out
}

fn buffers(sockstat: &str) -> Option<u64> {
    let line = sockstat.lines().find(|line| line.starts_with("TCP:"))?;
    let pages: u64 = line.split_whitespace().last()?.parse().ok()?;
    Some(pages * PAGE_BYTES)
}

/// Bytes received and sent, from `/proc/net/dev`.
fn network(dev: &str) -> (u64, u64) {
    let mut sum = (0, 0);
    for line in dev.lines().filter_map(|line| line.split_once(':')) {
        let fields: Vec<u64> = line
            .1
            .split_whitespace()
            .filter_map(|field| field.parse().ok())
            .collect();
        sum.0 += fields.first().unwrap_or(&0);
        sum.1 += fields.get(8).unwrap_or(&0);
    }
    sum
}

/// Today's date in UTC, for the head of a result.
pub fn date() -> String {
    time::OffsetDateTime::now_utc().date().to_string()
}

/// The machine, for the head of a result.
pub fn machine() -> Value {
    let first = |path: &str, name: &str| {
        let text = fs::read_to_string(path).unwrap_or_default();
        let line = text
            .lines()
            .find(|line| line.starts_with(name))
            .unwrap_or("")
            .to_string();
        line.split_once(':')
            .map_or(line.clone(), |(_, value)| value.trim().to_string())
    };
    json!({
        "cpu": first("/proc/cpuinfo", "model name"),
        "cores": std::thread::available_parallelism().map_or(0, usize::from),
        "memory": first("/proc/meminfo", "MemTotal"),
        "kernel": fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default().trim(),
        "tcp_rmem": fs::read_to_string("/proc/sys/net/ipv4/tcp_rmem").unwrap_or_default().trim(),
        "tcp_wmem": fs::read_to_string("/proc/sys/net/ipv4/tcp_wmem").unwrap_or_default().trim(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_can_be_read() {
        let held = vec![1u8; 8 << 20];
        let process = Process::read(std::process::id()).unwrap();
        assert!(process.rss_bytes > held.len() as u64);
        assert!(0 < process.pss_bytes && process.pss_bytes <= process.rss_bytes);
        let kernel = Kernel::read().unwrap();
        assert!(kernel.slab_bytes > 0 && kernel.available_bytes > 0);
    }

    #[test]
    fn a_process_is_added_up_with_its_children() {
        let mut shell = std::process::Command::new("sh")
            .args(["-c", "sleep 60 & wait"])
            .spawn()
            .unwrap();
        let begin = std::time::Instant::now();
        while Process::tree(shell.id()).len() < 2 && begin.elapsed().as_secs() < 10 {
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        // The new process is a copy of the shell until it has become `sleep`.
        std::thread::sleep(std::time::Duration::from_millis(200));
        let tree = Process::tree(shell.id());
        let whole = Process::read_tree(shell.id());
        let processes: Vec<_> = tree.iter().map(|pid| Process::read(*pid)).collect();
        tree[1..]
            .iter()
            .for_each(|pid| sys::signal(*pid, sys::Signal::KILL));
        shell.kill().unwrap();
        shell.wait().unwrap();
        assert_eq!((tree.len(), tree[0]), (2, shell.id()));
        let sum: u64 = processes
            .into_iter()
            .map(|one| one.unwrap().rss_bytes)
            .sum();
        assert_eq!(whole.unwrap().rss_bytes, sum);
    }

    #[test]
    fn lines_of_proc_are_understood() {
        assert_eq!(
            times("7 (a) b)) S 1 2 3 4 5 6 7 8 9 10 150 250 0"),
            Some((1.5, 2.5))
        );
        let slab = "TCP 26 26 2368 13 8 : tunables 0 0 0 : slabdata 2 3 0\nother 1 1 1 1 1 : x";
        assert_eq!(slabs(slab)["TCP"], 3 * 8 * 4096);
        assert_eq!(
            buffers("TCP: inuse 1 orphan 0 tw 1 alloc 1 mem 33\n"),
            Some(33 * 4096)
        );
        let dev = "h\n lo: 5 1 0 0 0 0 0 0 7 1 0\neth0: 1 0 0 0 0 0 0 0 2 0";
        assert_eq!(network(dev), (6, 9));
    }
}
