//! A control group with a memory limit, created at the top of the hierarchy and removed when dropped. Supports version 2, and version 1
//! with accounting of socket memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// The mount point of control groups.
const MOUNT: &str = "/sys/fs/cgroup";
/// A limit of socket memory, which makes version 1 account for socket memory. The limit is never reached.
const SOCKETS_BYTES: u64 = 1 << 40;
/// The maximum number of attempts to remove a group. Several are needed because the last process in the group may still be ending.
const TRIES: u32 = 100;

/// The file names of one version of control groups.
struct Names {
    version: u32,
    limit: &'static str,
    used: &'static str,
    events: &'static str,
}

const FIRST: Names = Names {
    version: 1,
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    events: "memory.oom_control",
};

const SECOND: Names = Names {
    version: 2,
    limit: "memory.max",
    used: "memory.current",
    events: "memory.events",
};

/// A control group.
pub struct Group {
    directory: PathBuf,
    names: &'static Names,
    limit: u64,
}

impl Group {
    /// Creates a group with a limit of `limit` bytes.
    pub fn new(limit: u64) -> Result<Group> {
        let first = Path::new(MOUNT).join("memory");
        let (top, names) = if first.is_dir() {
            (first, &FIRST)
        } else {
            (PathBuf::from(MOUNT), &SECOND)
        };
        let directory = top.join(format!("crore-fill-{}", std::process::id()));
        fs::create_dir(&directory).with_context(|| {
            format!(
                "cannot make the control group {}: this scenario needs root",
                directory.display()
            )
        })?;
        let group = Group {
            directory,
            names,
            limit,
        };
        group.write(names.limit, limit).context(
            "no memory controller: enable it with `echo +memory > /sys/fs/cgroup/cgroup.subtree_control`",
        )?;
        if names.version == FIRST.version {
            group.write("memory.kmem.tcp.limit_in_bytes", SOCKETS_BYTES)?;
        }
        Ok(group)
    }

    fn write(&self, name: &str, value: u64) -> Result<()> {
        let path = self.directory.join(name);
        fs::write(&path, value.to_string())
            .with_context(|| format!("cannot write {}", path.display()))
    }

    fn read(&self, name: &str) -> Result<String> {
        let path = self.directory.join(name);
        fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))
    }

    /// The file to which a process writes its id to join the group.
    pub fn members(&self) -> PathBuf {
        self.directory.join("cgroup.procs")
    }

    /// The memory limit in bytes.
    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// The version of control groups.
    pub fn version(&self) -> u32 {
        self.names.version
    }

    /// The used memory in bytes.
    pub fn used(&self) -> Result<u64> {
        Ok(self.read(self.names.used)?.trim().parse()?)
    }

    /// The number of processes that the kernel has killed because memory ran out.
    pub fn kills(&self) -> Result<u64> {
        let events = self.read(self.names.events)?;
        let kills = events
            .lines()
            .find_map(|line| line.strip_prefix("oom_kill "));
        ensure!(kills.is_some(), "the kernel does not count its kills");
        Ok(kills.unwrap_or_default().trim().parse()?)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..TRIES {
            if fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
