//! What the defaults ask of the host: its cores and its memory.

use std::fs;
use std::path::Path;

/// The share of the memory that all logs together may use by default (DESIGN: an eighth).
const LOG_SHARE: u64 = 8;

/// Where memory cannot be read: a size that any machine of today has room for.
const LOG_BYTES_FALLBACK: usize = 256 << 20;

/// The share of the memory that connections may use by default, in tenths: the rest is for logs and everybody else.
const CONNECTIONS_TENTHS: u64 = 8;

/// Kernel memory of one connection's end, in bytes: socket, inode, file, epoll item (Linux 6).
const KERNEL_BYTES: u64 = 4_100;

/// What an idle subscriber of a topic of its own costs the process, in bytes.
const PROCESS_BYTES: u64 = 200;

/// Where memory cannot be read.
const CONNECTIONS_FALLBACK: usize = 100_000;

/// Cores that this process may run on.
pub fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// As many connections as the memory has room for.
pub fn connections_default() -> usize {
    memory()
        .map(|bytes| bytes / 10 * CONNECTIONS_TENTHS / (KERNEL_BYTES + PROCESS_BYTES))
        .and_then(|room| usize::try_from(room).ok())
        .unwrap_or(CONNECTIONS_FALLBACK)
        .max(1)
}

/// An eighth of the memory that this process may use.
pub fn log_bytes_default() -> usize {
    match memory() {
        Some(bytes) => usize::try_from(bytes / LOG_SHARE).unwrap_or(LOG_BYTES_FALLBACK),
        None => LOG_BYTES_FALLBACK,
    }
}

/// The memory that this process may use, in bytes: the machine's, or less by its control group.
fn memory() -> Option<u64> {
    let total = fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| meminfo_total(&text));
    let limit = fs::read_to_string("/proc/self/cgroup")
        .ok()
        .and_then(|text| cgroup_limit(&text));
    total.into_iter().chain(limit).min()
}

/// `MemTotal` of `/proc/meminfo`, in bytes.
fn meminfo_total(text: &str) -> Option<u64> {
    let line = text
        .lines()
        .find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

/// The lowest `memory.max` on the way from this process's control group (v2) to the root, in bytes.
fn cgroup_limit(text: &str) -> Option<u64> {
    let group = text.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let root = Path::new("/sys/fs/cgroup");
    let groups = root.join(group);
    let limits = groups.ancestors().take_while(|path| path.starts_with(root));
    limits
        .filter_map(|path| {
            fs::read_to_string(path.join("memory.max"))
                .ok()?
                .trim()
                .parse::<u64>()
                .ok()
        })
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_read_in_bytes() {
        assert_eq!(
            meminfo_total("MemTotal:       2048 kB\nMemFree: 1 kB\n"),
            Some(2 << 20)
        );
        assert_eq!(meminfo_total("MemFree: 1 kB\n"), None);
        assert_eq!(meminfo_total("MemTotal: lots\n"), None);
    }
}
