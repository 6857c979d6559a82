//! Reads the state of a host from `/proc` and `/sys`: a kernel setting when a check asks for it, everything else once.
//!
//! A value that may be missing (with an old kernel, in a container without the file, in a network namespace that hides a setting) is an `Option`.
//! Nothing here fails, guesses, writes, or uses the network. All paths are below a root directory, which tests replace.

use std::path::{Path, PathBuf};

use crore_net::clock::{self, ClockSync};

use super::card::{self, NetworkCard};
use crate::config::cgroups::{self, Group, Tasks};
use crate::config::host_files::{HostFiles, field};

/// The state of a host at the time of `Host::read`. Only kernel settings are read later, when a check asks for them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Host {
    /// The directory below which the files of the host are.
    pub root: PathBuf,
    /// Version of the kernel.
    pub kernel: Option<(u32, u32)>,
    pub memory: Option<Memory>,
    /// The control groups of this process with a limit of memory, the innermost first.
    pub memory_groups: Vec<Group>,
    /// The control groups with a limit of tasks, the innermost first.
    pub task_groups: Vec<Tasks>,
    /// Cores that this process may run on (affinity and cpuset).
    pub cores: Option<usize>,
    /// The control groups' limit of processor time, in cores.
    pub quota_cores: Option<f64>,
    /// The hard limit of descriptors (`RLIMIT_NOFILE`) of this process; `u64::MAX` if there is no limit.
    pub descriptors_max: Option<u64>,
    pub cards: Vec<NetworkCard>,
    /// Packets that were dropped because a core's queue was full.
    pub backlog_drops: Option<u64>,
    /// Connections that found a listening socket's queue full.
    pub listen_overflows: Option<u64>,
    pub clock: Option<ClockSync>,
}

/// `/proc/meminfo`, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Memory {
    /// All memory that the kernel manages.
    pub total: u64,
    /// Memory that programs can still get without swapping.
    pub available: u64,
    /// Limit of `committed` if `vm.overcommit_memory` is 2.
    pub commit_limit: u64,
    /// Memory that the kernel has promised to programs.
    pub committed: u64,
    /// Swap space.
    pub swap: u64,
}

impl Host {
    /// Reads the host whose files are below `root`. The clock is known only if `root` is `/`.
    pub fn read(root: &Path) -> Host {
        let files = HostFiles { root };
        let kernel = files.text("proc/sys/kernel/osrelease");
        let kernel = kernel.as_deref().and_then(parse_version);
        let groups = files.text("proc/self/cgroup").unwrap_or_default();
        let status = files.text("proc/self/status").unwrap_or_default();
        let allowed = field(&status, "Cpus_allowed_list:").and_then(count_list_items);
        Host {
            root: root.to_path_buf(),
            kernel,
            memory: files
                .text("proc/meminfo")
                .as_deref()
                .and_then(Memory::parse),
            memory_groups: cgroups::memory_groups(&files, &groups, kernel),
            task_groups: cgroups::task_groups(&files, &groups),
            cores: allowed,
            quota_cores: cgroups::quota_cores(&files, &groups),
            descriptors_max: files
                .text("proc/self/limits")
                .as_deref()
                .and_then(hard_descriptor_limit),
            cards: card::read_cards(&files),
            backlog_drops: files
                .text("proc/net/softnet_stat")
                .as_deref()
                .and_then(parse_softnet_drops),
            listen_overflows: files
                .text("proc/net/netstat")
                .as_deref()
                .and_then(parse_listen_overflows),
            clock: (root == Path::new("/")).then(clock::sync_state).flatten(),
        }
    }

    /// The present value of a kernel setting.
    pub fn sysctl(&self, name: &str) -> Option<String> {
        HostFiles { root: &self.root }.sysctl(name)
    }

    /// A kernel setting that is one number.
    pub fn number(&self, name: &str) -> Option<u64> {
        self.sysctl(name)?.parse().ok()
    }

    /// A kernel setting that is several numbers.
    pub fn numbers<const N: usize>(&self, name: &str) -> Option<[u64; N]> {
        let text = self.sysctl(name)?;
        let parsed: Option<Vec<u64>> = text.split(' ').map(|word| word.parse().ok()).collect();
        parsed?.try_into().ok()
    }

    /// The memory that this process may use: the machine's, or the lowest limit of its control groups.
    pub fn memory_bytes(&self) -> Option<u64> {
        let machine = self.memory.map(|memory| memory.total);
        let groups = self.memory_groups.iter().map(|group| group.limit);
        machine.into_iter().chain(groups).min()
    }

    /// Whether the kernel tracks connections. The number of entries shows this, since the module may be loaded while no rule uses it.
    pub fn tracks_connections(&self) -> bool {
        self.number("net.netfilter.nf_conntrack_count")
            .is_some_and(|count| count > 0)
    }
}

impl Memory {
    fn parse(text: &str) -> Option<Memory> {
        let bytes = |name| -> Option<u64> {
            let kib: u64 = field(text, name)?.split_whitespace().next()?.parse().ok()?;
            kib.checked_mul(1024)
        };
        Some(Memory {
            total: bytes("MemTotal:")?,
            available: bytes("MemAvailable:")?,
            commit_limit: bytes("CommitLimit:").unwrap_or(0),
            committed: bytes("Committed_AS:").unwrap_or(0),
            swap: bytes("SwapTotal:").unwrap_or(0),
        })
    }
}

fn parse_version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.trim().split(['.', '-', '+', '_']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

/// The number of items in a list such as `0-3,8`.
fn count_list_items(list: &str) -> Option<usize> {
    let mut count = 0;
    for part in list.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        count += last.checked_sub(first)? + 1;
    }
    Some(count)
}

/// The hard limit of open files in `/proc/self/limits`.
fn hard_descriptor_limit(limits: &str) -> Option<u64> {
    match field(limits, "Max open files")?.split_whitespace().nth(1)? {
        "unlimited" => Some(u64::MAX),
        number => number.parse().ok(),
    }
}

/// The sum of the second column of `/proc/net/softnet_stat`, over all cores.
fn parse_softnet_drops(text: &str) -> Option<u64> {
    let mut sum = 0;
    for line in text.lines() {
        sum += u64::from_str_radix(line.split_whitespace().nth(1)?, 16).ok()?;
    }
    Some(sum)
}

/// `ListenOverflows` in `/proc/net/netstat`. There a line of names stands before the line of values.
fn parse_listen_overflows(text: &str) -> Option<u64> {
    let mut lines = text.lines().filter(|line| line.starts_with("TcpExt:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let column = names
        .split_whitespace()
        .position(|name| name == "ListenOverflows")?;
    values.split_whitespace().nth(column)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_proc_are_understood() {
        assert_eq!(parse_version("6.18.44-fc-v669\n"), Some((6, 18)));
        assert_eq!(parse_version("3.9.0-rc1"), Some((3, 9)));
        assert_eq!(parse_version("tomorrow"), None);
        assert_eq!(count_list_items("0-3,8,10-11"), Some(7));
        assert_eq!(count_list_items("3-1"), None);
        let limits = "Limit  Soft Limit  Hard Limit\nMax open files            1024                 524288               files\n";
        assert_eq!(hard_descriptor_limit(limits), Some(524_288));
        assert_eq!(
            hard_descriptor_limit("Max open files  unlimited unlimited files"),
            Some(u64::MAX)
        );
        assert_eq!(parse_softnet_drops("000f 0002 0\n00a1 000a 0\n"), Some(12));
        assert_eq!(parse_softnet_drops("none"), None);
        let netstat =
            "TcpExt: SyncookiesSent ListenOverflows\nTcpExt: 7 41\nIpExt: InOctets\nIpExt: 1\n";
        assert_eq!(parse_listen_overflows(netstat), Some(41));
    }

    #[test]
    fn this_host_can_be_read() {
        let host = Host::read(Path::new("/"));
        assert!(host.memory_bytes().unwrap() > 16 << 20);
        assert!(host.cores.unwrap() > 0);
        assert!(host.descriptors_max.unwrap() > 0);
        assert!(host.kernel >= Some((3, 0)));
        assert!(host.number("fs.nr_open").unwrap() > 0);
    }

    #[test]
    fn host_without_files_is_unknown() {
        let root = PathBuf::from("/nowhere-at-all");
        let nothing = Host {
            root: root.clone(),
            ..Host::default()
        };
        assert_eq!(Host::read(&root), nothing);
    }
}
