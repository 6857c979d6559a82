//! Puts the tested server into a control group with a memory limit, where the host permits that (version 2 or 1, as root).

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// For each version of control groups: the root directory, the file of the memory limit, and the file with the count of OOM kills.
const VERSIONS: [(&str, &str, &str); 2] = [
    ("/sys/fs/cgroup", "memory.max", "memory.events"),
    (
        "/sys/fs/cgroup/memory",
        "memory.limit_in_bytes",
        "memory.oom_control",
    ),
];

/// Maximum of attempts to remove the group. It becomes empty a moment after its last process has ended.
const REMOVE_ATTEMPTS: usize = 50;

/// A control group with a memory limit.
pub struct Group {
    directory: PathBuf,
    kills: &'static str,
}

impl Group {
    /// Puts a process into a new group with this limit. `None` if the host does not permit it.
    pub fn around(pid: u32, bytes: u64) -> Option<Group> {
        VERSIONS.iter().find_map(|(root, limit, kills)| {
            let directory = Path::new(root).join(format!("crore-adversary-{pid}"));
            fs::create_dir(&directory).ok()?;
            let group = Group { directory, kills };
            let result = fs::write(group.directory.join(limit), bytes.to_string())
                .and_then(|()| fs::write(group.directory.join("cgroup.procs"), pid.to_string()));
            result.ok().map(|()| group)
        })
    }

    /// Number of processes that the kernel killed because of the memory limit.
    pub fn kills(&self) -> u64 {
        let text = fs::read_to_string(self.directory.join(self.kills)).unwrap_or_default();
        let count = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
        count.and_then(|count| count.parse().ok()).unwrap_or(0)
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..REMOVE_ATTEMPTS {
            if fs::remove_dir(&self.directory).is_ok() {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}
