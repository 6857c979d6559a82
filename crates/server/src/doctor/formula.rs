//! The formulas for the needs of connections, with the sources of their constants.
//!
//! They compute bytes and counts only. [`super::bounds`] and [`super::checks`] compare them with the host. `docs/DOCTOR.md` explains every
//! formula in words.

use crore_net::kernel::acceptor;

/// Bytes of a page of memory, the unit of `net.ipv4.tcp_mem`.
pub const PAGE_BYTES: u64 = 4096;

/// Kernel memory of an idle accepted socket, measured by the growth of the slabs of Linux 6.18 with a million of them: the
/// TCP socket itself.
const TCP_BYTES: u64 = 2_520;
/// Its inode.
const INODE_BYTES: u64 = 862;
/// Its directory entry and file.
const FILE_BYTES: u64 = 390;
/// Its hash bucket, security blob and the like.
const REST_BYTES: u64 = 94;
/// Its item in epoll.
const EPOLL_BYTES: u64 = 208;

/// Kernel memory of a connection, in bytes.
pub const KERNEL_BYTES: u64 = TCP_BYTES + INODE_BYTES + FILE_BYTES + REST_BYTES + EPOLL_BYTES;

/// What a control group is charged for the TCP socket: the object (`/proc/slabinfo` of Linux 6.18) without the gaps in its
/// slab, and 8 bytes by which the kernel finds the group.
const TCP_OBJECT_BYTES: u64 = 2_368 + 8;
/// The charge for inode, directory entry, file, item and wait entry of epoll.
const OTHER_OBJECTS_BYTES: u64 = 832 + 192 + 192 + 128 + 72 + 5 * 8;

/// What a control group is charged for a connection. A group that does not count accepted sockets is
/// charged only for allocations in the server's own system calls.
pub fn charged_bytes(counts_sockets: bool) -> u64 {
    let socket = if counts_sockets { TCP_OBJECT_BYTES } else { 0 };
    OTHER_OBJECTS_BYTES + socket
}

/// Bytes that TLS adds to an idle connection: two secrets of 32 bytes, two counters, and an index of 4 bytes
/// (`net/src/stream/keys.rs`). Secrets for AES-256 have 48 bytes, which makes 32 more.
pub const TLS_BYTES: u64 = 80 + 4;

/// An entry of the connection tracker: `nf_conn` (256 bytes in Linux 6) with its extensions, and a bucket.
pub const TRACKED_BYTES: u64 = 328;

/// An empty server: its heap, its stacks and the written pages of the program (docs/internals/MEMORY.md: 4.5 MB resident with
/// two shards, most of it pages of the program).
const EMPTY_SERVER_BYTES: u64 = 6_000_000;
/// Each further shard (docs/internals/MEMORY.md).
const SHARD_BYTES: u64 = 75_000;

/// Threads beside the shards and those for passwords and the callback: control, signals, the log, the verifier and its two threads for
/// tokens.
pub const OTHER_THREADS: u64 = 6;

/// The system itself holds one in this number of bytes of a planned machine: 2 % for firmware and page tables, which `MemTotal` does not
/// contain, and 3 % for a bare system.
const SYSTEM_PART: u64 = 20;

/// Descriptors of a shard beside those of connections: listeners, poller, eventfds, the reserve.
const SPARE_DESCRIPTORS: u64 = 16;

/// Messages that a core sends per second, each to another connection (docs/benchmarks: unicast, 128,000 to 152,000).
const SENDS_PER_CORE_AND_S: u64 = 150_000;
/// Milliseconds until a far or mobile client acknowledges the bytes that were sent to it.
const ROUND_TRIP_MS: u64 = 200;
/// One in this number of connections may have stopped reading while bytes wait for it.
const STALLED_PART: u64 = 100;
/// One in this number of connections may have lost its client while the kernel still tries to close it.
const DYING_PART: u64 = 8;
/// The smallest send buffer that still takes an answer of many messages at once, in bytes.
const SEND_BUFFER_MIN_BYTES: u64 = 64 << 10;

/// The kernel takes bytes in pieces of this size, and checks `TCP_NOTSENT_LOWAT` only between two of them.
pub const UNSENT_PIECE_BYTES: u64 = 64 << 10;

/// Milliseconds for which a shard may be busy while connections arrive.
const QUEUE_MS: u64 = 500;
/// Milliseconds for which packets may wait for a busy core.
const PACKETS_MS: u64 = 10;

/// Limit of connections in a chain of the hash table: each packet costs a cache miss for each of them.
const CHAIN_MAX: u64 = 8;
/// The length of the chains in a table that the doctor recommends.
const CHAIN_WANTED: u64 = 2;
/// The kernel's default of the table: a bucket for this number of bytes of memory, and at most `BUCKETS_MAX`.
const BYTES_PER_BUCKET: u64 = 128 << 10;
const BUCKETS_MAX: u64 = 512 << 10;

/// Seconds that a connection stays in TIME_WAIT at the side that closed it first (`TCP_TIMEWAIT_LEN`).
const TIME_WAIT_S: u64 = 60;

/// Memory that the kernel should keep free for packets that arrive while memory is short: for each core, the minimum, and the
/// largest fraction of all memory.
const FREE_KIB_PER_CORE: u64 = 16 << 10;
const FREE_KIB_MIN: u64 = 64 << 10;
const FREE_PART: u64 = 64;

/// One in this number of connections is active at the same time; and the bounds of the table for those
/// (Documentation/networking/scaling.rst: 32768 for a moderately loaded server).
const ACTIVE_PART: u64 = 16;
const FLOWS_MIN: u64 = 32_768;
const FLOWS_MAX: u64 = 1 << 20;

/// Bytes of one heap arena of the C library, which is two mappings.
const ARENA_BYTES: u64 = 64 << 20;
/// Mappings of the program and its libraries, and of each shard (stack, guard, arena).
const PROGRAM_MAPPINGS: u64 = 256;
const SHARD_MAPPINGS: u64 = 8;

/// Memory of the process without connections, in bytes.
pub fn server_bytes(shards: u64) -> u64 {
    EMPTY_SERVER_BYTES + shards * SHARD_BYTES
}

/// The memory that programs may use on a machine with `memory_bytes`.
pub fn planned_available(memory_bytes: u64) -> u64 {
    memory_bytes - memory_bytes / SYSTEM_PART
}

/// Connections that all shards together hold if each shard's table has `limit` descriptors.
pub fn room_by_descriptors(limit: u64, shards: u64) -> u64 {
    let free = limit.saturating_sub(SPARE_DESCRIPTORS + shards);
    acceptor::room(free).saturating_mul(shards)
}

/// The smallest table with which all shards together hold the connections, rounded up to a thousand.
pub fn descriptors_for(connections: u64, shards: u64) -> u64 {
    const STEP: u64 = 1_000;
    let mut limit = connections.div_ceil(shards) / STEP * STEP;
    while room_by_descriptors(limit, shards) < connections {
        limit += STEP;
    }
    limit
}

/// The fewest shards that hold the connections with tables of `limit` descriptors; none if `shards_max` are too few.
pub fn shards_for(connections: u64, limit: u64, shards_max: u64) -> Option<u64> {
    (1..=shards_max).find(|shards| room_by_descriptors(limit, *shards) >= connections)
}

/// Sockets with unacknowledged bytes while the cores send as fast as they can. Each holds at least a page.
pub fn busy_sockets(connections: u64, cores: u64) -> u64 {
    connections.min(cores * SENDS_PER_CORE_AND_S * ROUND_TRIP_MS / 1_000)
}

/// `net.ipv4.tcp_mem` (pages: low, pressure, most): a sixteenth of the memory, as the kernel's default; but no more than the connections leave, and
/// at least what the busy sockets need. The ratios are the kernel's: 3/4, 1, 3/2.
pub fn tcp_mem(memory_bytes: u64, left_bytes: u64, busy: u64) -> [u64; 3] {
    let by_kernel = memory_bytes / 16 / PAGE_BYTES;
    let left = left_bytes / PAGE_BYTES * 2 / 3;
    let pressure = by_kernel.min(left).max(busy);
    [pressure / 4 * 3, pressure, pressure * 3 / 2]
}

/// Limit of a socket's unsent bytes, a power of two, so that the stalled connections (one in [`STALLED_PART`]) fit `tcp_mem`.
pub fn send_buffer_max(tcp_mem_most_pages: u64, connections: u64) -> u64 {
    let stalled = (connections / STALLED_PART).max(1);
    let each = tcp_mem_most_pages * PAGE_BYTES / stalled;
    let power = each.checked_ilog2().map_or(1, |log| 1 << log);
    power.max(SEND_BUFFER_MIN_BYTES)
}

/// Length of a listening socket's queue: the connections that arrive in [`QUEUE_MS`], while its shard is busy.
pub fn queue(connections: u64, shards: u64, accepts_per_s: u64) -> u64 {
    let arrivals = (accepts_per_s * QUEUE_MS / 1_000).min(connections);
    arrivals.div_ceil(shards).next_power_of_two()
}

/// Length of a core's packet queue: the acknowledgements of the messages that it sends in [`PACKETS_MS`].
pub fn packet_queue() -> u64 {
    (SENDS_PER_CORE_AND_S * PACKETS_MS / 1_000).next_power_of_two()
}

/// The fewest acceptable buckets of the kernel's table of established connections.
pub fn buckets_min(connections: u64) -> u64 {
    connections.div_ceil(CHAIN_MAX)
}

/// The recommended size of that table (`thash_entries`), a power of two.
pub fn buckets_wanted(connections: u64) -> u64 {
    connections.div_ceil(CHAIN_WANTED).next_power_of_two()
}

/// The kernel's default size of that table (`alloc_large_system_hash` in `tcp_init`).
pub fn buckets_by_kernel(memory_bytes: u64) -> u64 {
    (memory_bytes / BYTES_PER_BUCKET)
        .next_power_of_two()
        .min(BUCKETS_MAX)
}

/// Sockets that the server has closed, and whose end the kernel still waits for.
pub fn orphans(connections: u64) -> u64 {
    connections / DYING_PART
}

/// Connections in TIME_WAIT, if as many close as are accepted.
pub fn time_waits(connections: u64, accepts_per_s: u64) -> u64 {
    connections.min(accepts_per_s * TIME_WAIT_S)
}

/// Entries of the connection tracker: the connections, and a quarter more that have ended and are still remembered.
pub fn tracked(connections: u64) -> u64 {
    connections + connections / 4
}

/// Buckets of the connection tracker: one for four entries, the kernel's own ratio for many years.
pub fn tracked_buckets(connections: u64) -> u64 {
    (tracked(connections) / 4).next_power_of_two()
}

/// `vm.min_free_kbytes`.
pub fn min_free_kib(memory_bytes: u64, cores: u64) -> u64 {
    (cores * FREE_KIB_PER_CORE)
        .max(FREE_KIB_MIN)
        .min(memory_bytes / 1024 / FREE_PART)
}

/// Memory mappings of the process.
pub fn mappings(heap_bytes: u64, shards: u64) -> u64 {
    heap_bytes.div_ceil(ARENA_BYTES) * 2 + shards * SHARD_MAPPINGS + PROGRAM_MAPPINGS
}

/// The number of cores that one message per minute to each connection keeps busy.
pub fn cores_for_one_a_minute(connections: u64) -> f64 {
    connections as f64 / 60.0 / SENDS_PER_CORE_AND_S as f64
}

/// Size of the table of RFS: the connections that are active at the same time, a power of two.
pub fn flows(connections: u64) -> u64 {
    (connections / ACTIVE_PART)
        .clamp(FLOWS_MIN, FLOWS_MAX)
        .next_power_of_two()
}

/// Limit of connections from one local address to one server address and port, for a range of local ports.
pub fn tuples(range: [u64; 2]) -> u64 {
    (range[1] + 1).saturating_sub(range[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_costs_what_was_measured() {
        assert_eq!(KERNEL_BYTES, 4_074);
        // Measured: with 768 MiB of WebSocket connections, 4,018 B each, of which 164 B are the process's; with 10,000 sockets that a
        // script accepted, 3,890 B each, or 1,486 B in a group that does not count sockets.
        assert_eq!(charged_bytes(true), 3_832);
        assert_eq!(charged_bytes(false), 1_456);
    }

    #[test]
    fn descriptors_and_connections_are_each_others_inverse() {
        // The number that the server itself prints at its start with two shards.
        assert_eq!(room_by_descriptors(20_000, 2), 39_452);
        for (connections, shards) in [(1, 1), (1_000, 2), (1_000_000, 54), (10_000_000, 16)] {
            let limit = descriptors_for(connections, shards);
            assert!(room_by_descriptors(limit, shards) >= connections);
            assert!(room_by_descriptors(limit - 1_000, shards) < connections);
        }
        assert_eq!(shards_for(39_452, 20_000, 256), Some(2));
        assert_eq!(shards_for(1_000_000, 20_000, 256), Some(51));
        assert_eq!(shards_for(1_000_000, 16, 256), None);
    }

    #[test]
    fn tcp_memory_follows_the_kernel_between_its_bounds() {
        let gib = 1 << 30;
        let kernel = 24 * gib / 16 / PAGE_BYTES;
        let [low, pressure, most] = tcp_mem(24 * gib, 20 * gib, 60_000);
        assert_eq!(
            (low, pressure, most),
            (kernel / 4 * 3, kernel, kernel * 3 / 2)
        );
        // A small machine with busy cores, and one that is full of connections.
        assert_eq!(tcp_mem(gib, gib, 60_000)[1], 60_000);
        let full = tcp_mem(24 * gib, gib, 60_000);
        assert!(full[2] * PAGE_BYTES <= gib && full[1] >= 60_000);
    }

    #[test]
    fn stalled_connections_share_the_kernels_memory() {
        let most = 24 * (1 << 30) / 16 / PAGE_BYTES * 3 / 2;
        assert_eq!(send_buffer_max(most, 1_000_000), 128 << 10);
        assert_eq!(send_buffer_max(most, 10_000_000), SEND_BUFFER_MIN_BYTES);
        assert!(send_buffer_max(most, 1) >= 1 << 30);
    }

    #[test]
    fn the_kernels_hash_table_is_known() {
        // MemTotal 24,684,084 kB: net.ipv4.tcp_ehash_entries = 262144.
        assert_eq!(buckets_by_kernel(24_684_084 << 10), 262_144);
        assert_eq!(buckets_by_kernel(1 << 40), 524_288);
        assert!(buckets_wanted(10_000_000) >= buckets_min(10_000_000));
    }

    #[test]
    fn queues_are_powers_of_two_that_hold_the_arrivals() {
        assert_eq!(queue(1_000_000, 2, 10_000), 4_096);
        assert_eq!(queue(100, 2, 10_000), 64);
        assert_eq!(packet_queue(), 2_048);
    }

    #[test]
    fn free_memory_is_for_the_cores_and_never_much() {
        assert_eq!(min_free_kib(24 << 30, 2), 64 << 10);
        assert_eq!(min_free_kib(256 << 30, 64), 1 << 20);
        assert_eq!(min_free_kib(1 << 30, 2), 16 << 10);
    }

    #[test]
    fn a_port_range_counts_both_ends() {
        assert_eq!(tuples([32_768, 60_999]), 28_232);
        assert_eq!(tuples([5, 4]), 0);
    }
}
