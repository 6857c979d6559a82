//! A control group with a memory limit, created at the top of the hierarchy and removed when dropped. Supports version 2, and version 1
//! with accounting of socket memory.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// The mount point of control groups.
const MOUNT: &str = "/sys/fs/cgroup";
/// A limit of socket memory, which makes version 1 account for socket memory. The limit is never reached.
const SOCKET_LIMIT_BYTES: u64 = 1 << 40;
/// The maximum number of attempts to remove a group. Several are needed because the last process in the group may still be ending.
const REMOVE_ATTEMPTS_MAX: u32 = 100;

/// The file names of one version of control groups.
struct FileNames {
    version: u32,
    limit_bytes: &'static str,
    used_bytes: &'static str,
    events: &'static str,
}

const VERSION_1: FileNames = FileNames {
    version: 1,
    limit_bytes: "memory.limit_in_bytes",
    used_bytes: "memory.usage_in_bytes",
    events: "memory.oom_control",
};

const VERSION_2: FileNames = FileNames {
    version: 2,
    limit_bytes: "memory.max",
    used_bytes: "memory.current",
    events: "memory.events",
};

/// A control group.
pub struct Group {
    directory: PathBuf,
    file_names: &'static FileNames,
    limit_bytes: u64,
}

impl Group {
    /// Creates a group with a limit of `limit_bytes`.
    pub fn new(limit_bytes: u64) -> Result<Group> {
        let version_1_directory = Path::new(MOUNT).join("memory");
        let (top_directory, file_names) = if version_1_directory.is_dir() {
            (version_1_directory, &VERSION_1)
        } else {
            (PathBuf::from(MOUNT), &VERSION_2)
        };
        let directory = top_directory.join(format!("crore-fill-{}", std::process::id()));
        fs::create_dir(&directory).with_context(|| {
            format!(
                "cannot make the control group {}: this scenario needs root",
                directory.display()
            )
        })?;
        let group = Group {
            directory,
            file_names,
            limit_bytes,
        };
        group.write(file_names.limit_bytes, limit_bytes).context(
            "no memory controller: enable it with `echo +memory > /sys/fs/cgroup/cgroup.subtree_control`",
        )?;
        if file_names.version == VERSION_1.version {
            group.write("memory.kmem.tcp.limit_in_bytes", SOCKET_LIMIT_BYTES)?;
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
    pub fn members_file(&self) -> PathBuf {
        self.directory.join("cgroup.procs")
    }

    /// The memory limit in bytes.
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// The version of control groups.
    pub fn version(&self) -> u32 {
        self.file_names.version
    }

    /// The used memory in bytes.
    pub fn used_bytes(&self) -> Result<u64> {
        Ok(self.read(self.file_names.used_bytes)?.trim().parse()?)
    }

    /// The number of processes that the kernel has killed because memory ran out.
    pub fn kill_count(&self) -> Result<u64> {
        let events = self.read(self.file_names.events)?;
        let kill_count = events
            .lines()
            .find_map(|line| line.strip_prefix("oom_kill "));
        ensure!(kill_count.is_some(), "the kernel does not count its kills");
        Ok(kill_count.unwrap_or_default().trim().parse()?)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..REMOVE_ATTEMPTS_MAX {
            if fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
