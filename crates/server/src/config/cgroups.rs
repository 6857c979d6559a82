//! Reads the limits of this process's control groups: of memory, processor time and tasks.
//!
//! Reads versions 1 and 2, also on a host that has both. The limits of all ancestors of a group apply too. In a container the path in
//! `/proc/self/cgroup` may exist on the host only; then the root of the mount is the container's group.

use std::path::Path;

use super::host_files::{HostFiles, field};

/// Where control groups are mounted, below the root.
const MOUNT: &str = "sys/fs/cgroup";

/// A limit of at least this number of bytes is no limit: if none is set, version 1 shows the largest possible number.
const NO_LIMIT: u64 = 1 << 60;

/// The first kernel that charges the memory of an accepted socket to the group of the process that accepts it. Earlier kernels charge no
/// group for memory that is allocated in an interrupt, where packets arrive.
const CHARGES_ACCEPTED: (u32, u32) = (6, 12);

/// A group with a limit of memory.
#[derive(Clone, Debug, PartialEq)]
pub struct Group {
    /// The directory of the group.
    pub path: String,
    /// Limit in bytes, the lower of `memory.max`, past which processes are killed, and `memory.high`, past which they are throttled.
    pub limit: u64,
    /// Bytes in use that cannot be reclaimed without swapping.
    pub held: u64,
    /// Whether the memory of accepted sockets is charged to the group.
    pub counts_sockets: bool,
}

/// A group with a limit of tasks (processes and threads).
#[derive(Clone, Debug, PartialEq)]
pub struct Tasks {
    /// The directory of the group.
    pub path: String,
    pub limit: u64,
    /// Number of present tasks.
    pub held: u64,
}

/// The groups with a limit of memory, the innermost first.
pub fn memory_groups(
    files: &HostFiles<'_>,
    groups: &str,
    kernel: Option<(u32, u32)>,
) -> Vec<Group> {
    let charges = kernel.is_some_and(|kernel| kernel >= CHARGES_ACCEPTED);
    let group = |(is_unified, path)| match is_unified {
        true => version_2(files, path, charges),
        false => version_1(files, path, charges),
    };
    directories(groups, "memory").filter_map(group).collect()
}

/// The groups with a limit of tasks, the innermost first.
pub fn task_groups(files: &HostFiles<'_>, groups: &str) -> Vec<Tasks> {
    let tasks = |(_, path): (bool, String)| {
        // No limit is written as `max`, which does not parse.
        let limit = files.number(&format!("{path}/pids.max"))?;
        let held = files.number(&format!("{path}/pids.current")).unwrap_or(0);
        let path = format!("/{path}");
        Some(Tasks { path, limit, held })
    };
    directories(groups, "pids").filter_map(tasks).collect()
}

/// The lowest limit of processor time, in cores.
pub fn quota_cores(files: &HostFiles<'_>, groups: &str) -> Option<f64> {
    let quota = |(is_unified, path): (bool, String)| match is_unified {
        true => {
            let text = files.text(&format!("{path}/cpu.max"))?;
            let (quota, period) = text.trim().split_once(' ')?;
            cores(quota.parse().ok()?, period.parse().ok()?)
        }
        false => {
            // No limit is written as -1, which does not parse.
            let quota = files.number(&format!("{path}/cpu.cfs_quota_us"))?;
            cores(quota, files.number(&format!("{path}/cpu.cfs_period_us"))?)
        }
    };
    directories(groups, "cpu")
        .filter_map(quota)
        .reduce(f64::min)
}

/// The groups of a controller and their ancestors. The flag is true for a group of version 2. The text is the directory of the group.
fn directories<'a>(groups: &'a str, name: &'a str) -> impl Iterator<Item = (bool, String)> + 'a {
    groups.lines().flat_map(move |line| {
        let (is_unified, mount, path) = match (version_2_path(line), version_1_path(line, name)) {
            (Some(path), _) => (true, MOUNT.to_string(), path),
            (None, Some(path)) => (false, format!("{MOUNT}/{name}"), path),
            (None, None) => return Vec::new(),
        };
        ancestors(&mount, path).map(|it| (is_unified, it)).collect()
    })
}

fn cores(quota_us: u64, period_us: u64) -> Option<f64> {
    (period_us > 0).then(|| quota_us as f64 / period_us as f64)
}

fn version_2(files: &HostFiles<'_>, path: String, charges: bool) -> Option<Group> {
    let limits = ["memory.max", "memory.high"].map(|name| files.number(&format!("{path}/{name}")));
    let limit = limits.into_iter().flatten().min()?;
    let used = files.number(&format!("{path}/memory.current")).unwrap_or(0);
    let stat = files
        .text(&format!("{path}/memory.stat"))
        .unwrap_or_default();
    let bytes = |name| stat_bytes(&stat, name);
    // The page cache and unused slabs can be reclaimed. `file` includes tmpfs, which cannot be reclaimed.
    let reclaimable = bytes("file ").saturating_sub(bytes("shmem ")) + bytes("slab_reclaimable ");
    Some(Group {
        path: format!("/{path}"),
        limit,
        held: used.saturating_sub(reclaimable),
        counts_sockets: charges,
    })
}

fn version_1(files: &HostFiles<'_>, path: String, charges: bool) -> Option<Group> {
    let limit = files
        .number(&format!("{path}/memory.limit_in_bytes"))
        .filter(|limit| *limit < NO_LIMIT)?;
    let used = files
        .number(&format!("{path}/memory.usage_in_bytes"))
        .unwrap_or(0);
    let stat = files
        .text(&format!("{path}/memory.stat"))
        .unwrap_or_default();
    let bytes = |name| stat_bytes(&stat, name);
    let reclaimable = bytes("total_cache ").saturating_sub(bytes("total_shmem "));
    // Version 1 charges sockets only if a limit for sockets is set.
    let sockets = files.number(&format!("{path}/memory.kmem.tcp.limit_in_bytes"));
    Some(Group {
        path: format!("/{path}"),
        limit,
        held: used.saturating_sub(reclaimable),
        counts_sockets: charges && sockets.is_some_and(|limit| limit < NO_LIMIT),
    })
}

fn stat_bytes(stat: &str, name: &str) -> u64 {
    field(stat, name).map_or(0, |value| value.parse().unwrap_or(0))
}

/// The path of version 2's line, `0::/path`.
fn version_2_path(line: &str) -> Option<&str> {
    line.strip_prefix("0::")
}

/// The path of version 1's line `id:controllers:path`, if it names this controller.
fn version_1_path<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let (_, rest) = line.split_once(':')?;
    let (controllers, path) = rest.split_once(':')?;
    controllers
        .split(',')
        .any(|controller| controller == name)
        .then_some(path)
}

/// The directories of a group and of its ancestors.
fn ancestors<'a>(mount: &'a str, path: &'a str) -> impl Iterator<Item = String> + 'a {
    let groups = Path::new(path.trim_matches('/')).ancestors();
    groups.map(move |group| {
        let path = format!("{mount}/{}", group.display());
        path.trim_end_matches('/').to_string()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_is_bounded_by_all_above_it() {
        let paths: Vec<String> = ancestors("m", "/a.slice/b.service").collect();
        assert_eq!(paths, ["m/a.slice/b.service", "m/a.slice", "m"]);
        assert_eq!(ancestors("m", "/").collect::<Vec<_>>(), ["m"]);
    }

    #[test]
    fn lines_name_their_controllers() {
        assert_eq!(version_2_path("0::/x"), Some("/x"));
        assert_eq!(version_2_path("10::/x"), None);
        assert_eq!(
            version_1_path("4:memory,hugetlb:/a:b", "memory"),
            Some("/a:b")
        );
        assert_eq!(version_1_path("4:memory:/a", "cpu"), None);
        assert_eq!(version_1_path("nonsense", "cpu"), None);
    }
}
