//! The resources of the host that the defaults depend on: its cores and its memory.

use std::path::Path;

use crore_broker::settings::Limits;

use super::cgroups;
use super::check::MEMORY_SHARES;
use super::host_files::HostFiles;

/// The share of the memory that all logs together may use by default (DESIGN: an eighth).
const LOG_SHARE: u64 = 8;

/// The share of the memory that connections may use by default, in tenths: the rest is for logs and other processes.
const CONNECTIONS_TENTHS: u64 = 8;

/// Kernel memory of one connection's end, in bytes: socket, inode, file, epoll item (Linux 6).
const KERNEL_BYTES: u64 = 4_100;

/// Bytes that an idle subscriber with a topic of its own costs the process.
const PROCESS_BYTES: u64 = 200;

/// Connections that a core takes in a second by default. Measured with the load tool on the same two cores: of 15,000
/// that return at once, 13,000/s come in as fast as it goes, and then a delivery takes 28 ms; at 5,000/s for each of two
/// shards it takes 0.3 ms, at half of that 0.1 ms, and 0.06 ms while no connection comes.
const ACCEPTS_PER_CORE_AND_S: usize = 5_000;

/// Bytes that the first answer to an idempotency key takes, with its part of the index.
const KEY_BYTES: usize = 56;

/// The part of `limits.memory_bytes` that the answers to keys may use by default: outboxes and sessions need the rest.
const KEYS_PART: usize = 4;

/// As many idempotency keys as a quarter of `limits.memory_bytes` holds.
pub fn keys_default(limits: &Limits) -> usize {
    limits.memory_bytes / KEYS_PART / KEY_BYTES
}

/// The memory that this process may use, in bytes: the machine's, or the least limit of the control groups that it runs in.
pub fn memory_bytes() -> u64 {
    let files = HostFiles {
        root: Path::new("/"),
    };
    let groups = files.text("proc/self/cgroup").unwrap_or_default();
    let limits = cgroups::read(&files, &groups, None).into_iter();
    limits
        .map(|group| group.limit)
        .fold(crore_net::memory::machine_bytes(), u64::min)
}

/// The resources that the defaults depend on: of this host, or of one that is only planned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resources {
    /// Cores that this process may run on.
    pub cores: usize,
    /// Memory that this process may use, in bytes.
    pub memory_bytes: u64,
}

impl Resources {
    /// Those of this process.
    pub fn here() -> Resources {
        Resources {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory_bytes(),
        }
    }

    /// As many connections a second as leave the cores that run shards time for established connections.
    pub fn accepts_default(&self, shards: usize) -> u32 {
        u32::try_from(shards.min(self.cores) * ACCEPTS_PER_CORE_AND_S).unwrap_or(u32::MAX)
    }

    /// As many connections as the memory has room for.
    pub fn connections_default(&self) -> usize {
        let room = self.memory_bytes / 10 * CONNECTIONS_TENTHS / (KERNEL_BYTES + PROCESS_BYTES);
        // A row's number has 32 bits.
        room.clamp(1, u64::from(u32::MAX - 1)) as usize
    }

    /// An eighth of the memory.
    pub fn log_bytes_default(&self) -> usize {
        usize::try_from(self.memory_bytes / LOG_SHARE).unwrap_or(usize::MAX)
    }

    /// An eighth of the memory, or the room for the largest things that one client may send or be sent, whichever is more.
    pub fn memory_bytes_default(&self, limits: &Limits) -> usize {
        let largest = [
            limits.message_bytes,
            limits.batch_bytes,
            limits.outbox_bytes,
        ];
        let least = largest.map(|bytes| bytes.saturating_mul(MEMORY_SHARES));
        let share = usize::try_from(self.memory_bytes / LOG_SHARE).unwrap_or(usize::MAX);
        least.into_iter().fold(share, usize::max)
    }
}
