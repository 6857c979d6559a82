//! Defaults that depend on the cores and the memory of the host.

use std::path::Path;

use crore_broker::settings::Limits;

use super::cgroups;
use super::check::MEMORY_SHARES;
use super::host_files::HostFiles;

/// By default, all logs together may use an eighth of the memory, and so may everything that counts in `limits.memory_bytes`.
const BUDGET_PART: u64 = 8;

/// By default, connections may use this share of the memory, in tenths. The rest is for logs and other processes.
const CONNECTIONS_TENTHS: u64 = 8;

/// Kernel memory of an idle accepted connection, in bytes: its TCP socket. This constant and the next four were measured on Linux 6.18, as
/// the growth of the slabs with a million connections.
const TCP_BYTES: u64 = 2_520;
/// The inode of the socket.
const INODE_BYTES: u64 = 862;
/// The directory entry and the file of the socket.
const FILE_BYTES: u64 = 390;
/// The hash bucket, the security blob and other small objects of the socket.
const REST_BYTES: u64 = 94;
/// The epoll item of the socket.
const EPOLL_BYTES: u64 = 208;

/// Kernel memory of a connection, in bytes.
pub const KERNEL_BYTES: u64 = TCP_BYTES + INODE_BYTES + FILE_BYTES + REST_BYTES + EPOLL_BYTES;

/// Process memory of an idle subscriber that has its own topic, in bytes.
const PROCESS_BYTES: u64 = 200;

/// The default rate of accepted connections for each core. Measured with the load tool on the same two cores, when 15,000 connections
/// return at once. Without a limit, 13,000 connections are accepted per second, and a delivery takes 28 ms meanwhile. With 5,000/s for each
/// of two shards a delivery takes 0.3 ms, with half of that 0.1 ms, and without new connections 0.06 ms.
const ACCEPTS_PER_CORE_AND_S: usize = 5_000;

/// Memory of an idempotency key with its answer and its part of the index, in bytes.
const KEY_BYTES: usize = 56;

/// By default, idempotency keys may use this fraction of `limits.memory_bytes`. Outboxes and sessions need the rest.
const KEYS_PART: usize = 4;

/// The number of idempotency keys that fit a quarter of `limits.memory_bytes`.
pub fn keys_default(limits: &Limits) -> usize {
    limits.memory_bytes / KEYS_PART / KEY_BYTES
}

/// The memory that this process may use, in bytes: the machine's, or the lowest limit of its control groups.
pub fn memory_bytes() -> u64 {
    let files = HostFiles {
        root: Path::new("/"),
    };
    let groups = files.text("proc/self/cgroup").unwrap_or_default();
    let limits = cgroups::memory_groups(&files, &groups, None).into_iter();
    limits
        .map(|group| group.limit)
        .fold(crore_net::memory::machine_bytes(), u64::min)
}

/// The resources that the defaults depend on, of this host or of a planned one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Resources {
    /// Cores that this process may run on.
    pub cores: usize,
    /// Memory that this process may use, in bytes.
    pub memory_bytes: u64,
}

impl Resources {
    /// The resources of this process.
    pub fn here() -> Resources {
        Resources {
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            memory_bytes: memory_bytes(),
        }
    }

    /// A rate of new connections that leaves the shards' cores time for the established connections.
    pub fn accepts_default(&self, shards: usize) -> u32 {
        u32::try_from(shards.min(self.cores) * ACCEPTS_PER_CORE_AND_S).unwrap_or(u32::MAX)
    }

    /// The default of `limits.connections_max`: as many connections as fit their share of the memory.
    pub fn connections_default(&self) -> usize {
        let room = self.memory_bytes / 10 * CONNECTIONS_TENTHS / (KERNEL_BYTES + PROCESS_BYTES);
        // Connections have numbers of 32 bits.
        room.clamp(1, u64::from(u32::MAX - 1)) as usize
    }

    /// The default of `limits.log_bytes`: an eighth of the memory.
    pub fn log_bytes_default(&self) -> usize {
        usize::try_from(self.memory_bytes / BUDGET_PART).unwrap_or(usize::MAX)
    }

    /// The default of `limits.memory_bytes`: an eighth of the memory, but at least [`MEMORY_SHARES`] times the largest message, batch or
    /// outbox.
    pub fn memory_bytes_default(&self, limits: &Limits) -> usize {
        let largest = [
            limits.message_bytes,
            limits.batch_bytes,
            limits.outbox_bytes,
        ];
        let least = largest.map(|bytes| bytes.saturating_mul(MEMORY_SHARES));
        let share = usize::try_from(self.memory_bytes / BUDGET_PART).unwrap_or(usize::MAX);
        least.into_iter().fold(share, usize::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_state_the_bytes_that_the_default_counts_for_a_connection() {
        assert_eq!(KERNEL_BYTES, 4_074, "as docs/DOCTOR.md and the benchmarks");
        let bytes = KERNEL_BYTES + PROCESS_BYTES;
        let each = format!("at {},{} B each", bytes / 1_000, bytes % 1_000);
        for (name, text) in [
            ("SETTINGS.md", include_str!("../../../../docs/SETTINGS.md")),
            (
                "MEMORY.md",
                include_str!("../../../../docs/internals/MEMORY.md"),
            ),
        ] {
            let row = text
                .lines()
                .find(|line| line.starts_with("| `limits.connections_max`"));
            assert!(row.is_some_and(|row| row.contains(&each)), "{name}: {each}");
        }
    }
}
