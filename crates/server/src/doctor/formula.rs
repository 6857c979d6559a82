//! Formulas for the memory, the descriptors and the kernel settings that a number of connections needs, with the sources of their
//! constants.
//!
//! The formulas compute bytes and counts only. [`super::bounds`] and [`super::checks`] compare the results with the host.
//! `docs/DOCTOR.md` explains every formula in words.

use crore_net::kernel::acceptor;

/// Bytes of a memory page. `net.ipv4.tcp_mem` is in pages.
pub const PAGE_BYTES: u64 = 4096;

/// Bytes charged to a control group for the TCP socket: the object itself (`/proc/slabinfo` of Linux 6.18), without the gaps in its slab,
/// and 8 bytes with which the kernel finds the group.
const TCP_OBJECT_BYTES: u64 = 2_368 + 8;
/// Bytes charged for inode, directory entry, file, epoll item and epoll wait entry, each with 8 bytes with which the kernel finds the group.
const OTHER_OBJECTS_BYTES: u64 = 832 + 192 + 192 + 128 + 72 + 5 * 8;

/// Bytes charged to a control group for a connection. A group that does not count accepted sockets is charged only for what the server's
/// own system calls allocate.
pub fn charged_bytes(counts_sockets: bool) -> u64 {
    let socket = if counts_sockets { TCP_OBJECT_BYTES } else { 0 };
    OTHER_OBJECTS_BYTES + socket
}

/// Bytes that TLS adds to an idle connection: two secrets of 32 bytes, two counters of 8 bytes, and an index of 4 bytes
/// (`net/src/stream/keys.rs`). With AES-256 a secret has 48 bytes, so a connection needs 32 bytes more.
pub const TLS_BYTES: u64 = 80 + 4;

/// Bytes of an idle connection over `AF_XDP` for TCP: its row (`crore_tcp::ROW_BYTES`), a place in the index, which may be half empty, and the
/// hardware address of its peer.
pub const XDP_ROW_BYTES: u64 = 96 + 2 * 4 + 6;

/// Bytes of an entry of the connection tracker: `nf_conn` (256 bytes in Linux 6), its extensions, and a bucket.
pub const TRACKED_BYTES: u64 = 328;

/// Memory of a server without connections: its heap, its stacks, and the pages of the program that it has written. According to
/// docs/internals/MEMORY.md, 4.5 MB are resident with two shards, mostly pages of the program.
const EMPTY_SERVER_BYTES: u64 = 6_000_000;
/// Memory of each shard (docs/internals/MEMORY.md).
const SHARD_BYTES: u64 = 75_000;

/// Threads of the server besides the shards, the password threads and the callback threads: control, signals, the log, the verifier and its
/// two threads for tokens.
pub const OTHER_THREADS: u64 = 6;

/// The system itself needs 1/20 of the memory of a planned host: 2 % for firmware and page tables (not in `MemTotal`), and 3 % for the
/// programs of a bare system.
const SYSTEM_DIVISOR: u64 = 20;

/// Descriptors of a shard that are not for connections: listeners, poller, eventfds, the reserve.
const SPARE_DESCRIPTORS: u64 = 16;

/// Messages per second that a core sends, each to another connection (docs/benchmarks: unicast, 128,000 to 152,000).
const SENDS_PER_CORE_PER_S: u64 = 150_000;
/// Milliseconds until a distant or mobile client acknowledges the bytes that the server sent.
const ROUND_TRIP_MS: u64 = 200;
/// The doctor assumes that 1/100 of the connections have stopped reading while bytes wait for them.
const STALLED_DIVISOR: u64 = 100;
/// The doctor assumes that for 1/8 of the connections the client is gone and the kernel still tries to close the socket.
const ORPHAN_DIVISOR: u64 = 8;
/// The smallest send buffer that still takes an answer with many messages in one write, in bytes.
const SEND_BUFFER_MIN_BYTES: u64 = 64 << 10;

/// The kernel copies bytes that are to be sent in pieces of this size. It checks `TCP_NOTSENT_LOWAT` only between two pieces.
pub const UNSENT_PIECE_BYTES: u64 = 64 << 10;

/// Milliseconds for which a shard may be busy and accept no connection.
const ACCEPT_PAUSE_MS: u64 = 500;
/// Milliseconds for which packets may wait for a busy core.
const PACKET_WAIT_MS: u64 = 10;

/// The maximum number of connections in a bucket of the hash table. Each packet costs a cache miss for each connection of its bucket.
const CHAIN_MAX: u64 = 8;
/// Connections in a bucket of a hash table of the recommended size.
const CHAIN_RECOMMENDED: u64 = 2;
/// The kernel's default size of the hash table: a bucket for each 128 KiB of memory, at most `BUCKETS_MAX` buckets.
const BYTES_PER_BUCKET: u64 = 128 << 10;
const BUCKETS_MAX: u64 = 512 << 10;

/// Seconds that a connection stays in TIME_WAIT at the side that closed it first (`TCP_TIMEWAIT_LEN`).
const TIME_WAIT_S: u64 = 60;

/// The kernel should always keep some memory free, because packets that arrive cannot wait until memory is freed: 16 MiB for each core, at least
/// 64 MiB, at most 1/64 of all memory.
const FREE_KIB_PER_CORE: u64 = 16 << 10;
const FREE_KIB_MIN: u64 = 64 << 10;
const FREE_DIVISOR: u64 = 64;

/// The RFS table needs an entry for each connection that is active at the same time: the doctor assumes 1/16 of all connections. The
/// smallest table is that of Documentation/networking/scaling.rst for a moderately loaded server.
const ACTIVE_DIVISOR: u64 = 16;
const FLOWS_MIN: u64 = 32_768;
const FLOWS_MAX: u64 = 1 << 20;

/// Bytes of a heap arena of the C library. Each arena is two mappings.
const ARENA_BYTES: u64 = 64 << 20;
/// The number of mappings of the program and its libraries.
const PROGRAM_MAPPINGS: u64 = 256;
/// The number of mappings of each shard: stack, guard, arena.
const SHARD_MAPPINGS: u64 = 8;

/// Memory of the process without connections, in bytes.
pub fn server_bytes(shards: u64) -> u64 {
    EMPTY_SERVER_BYTES + shards * SHARD_BYTES
}

/// The memory that programs may use on a planned host with `memory_bytes`.
pub fn available_bytes_of_plan(memory_bytes: u64) -> u64 {
    memory_bytes - memory_bytes / SYSTEM_DIVISOR
}

/// Number of connections that all shards together hold if the descriptor table of each shard has `limit` entries.
pub fn connections_by_descriptors(limit: u64, shards: u64) -> u64 {
    let free = limit.saturating_sub(SPARE_DESCRIPTORS + shards);
    acceptor::room(free).saturating_mul(shards)
}

/// The smallest descriptor table of a shard, in thousands of entries, with which all shards together hold the connections.
pub fn descriptors_needed(connections: u64, shards: u64) -> u64 {
    const STEP: u64 = 1_000;
    let mut limit = connections.div_ceil(shards) / STEP * STEP;
    while connections_by_descriptors(limit, shards) < connections {
        limit += STEP;
    }
    limit
}

/// The smallest number of shards that hold the connections with descriptor tables of `limit` entries; `None` if even `shards_max` shards
/// are too few.
pub fn shards_needed(connections: u64, limit: u64, shards_max: u64) -> Option<u64> {
    (1..=shards_max).find(|shards| connections_by_descriptors(limit, *shards) >= connections)
}

/// Number of sockets with unacknowledged bytes while all cores send as fast as they can. Each of these sockets holds at least a page.
pub fn busy_sockets(connections: u64, cores: u64) -> u64 {
    connections.min(cores * SENDS_PER_CORE_PER_S * ROUND_TRIP_MS / 1_000)
}

/// The recommended `net.ipv4.tcp_mem` (low, pressure and maximum, in pages). The pressure is a sixteenth of the memory, as in the kernel's
/// default, but at most the memory that the connections leave, and at least the memory that the busy sockets need. As in the kernel, low is
/// 3/4 of the pressure, and the maximum is 3/2 of it.
pub fn tcp_mem(memory_bytes: u64, free_bytes: u64, busy: u64) -> [u64; 3] {
    let kernel_default = memory_bytes / 16 / PAGE_BYTES;
    let free_pages = free_bytes / PAGE_BYTES * 2 / 3;
    let pressure = kernel_default.min(free_pages).max(busy);
    [pressure / 4 * 3, pressure, pressure * 3 / 2]
}

/// The limit for a socket's unsent bytes: a power of two (at least [`SEND_BUFFER_MIN_BYTES`]). With it, the unsent bytes of all stalled connections (one
/// in [`STALLED_DIVISOR`]) fit into `tcp_mem`.
pub fn send_buffer_max(tcp_mem_max_pages: u64, connections: u64) -> u64 {
    let stalled = (connections / STALLED_DIVISOR).max(1);
    let bytes_per_socket = tcp_mem_max_pages * PAGE_BYTES / stalled;
    let power_of_two = bytes_per_socket.checked_ilog2().map_or(1, |log| 1 << log);
    power_of_two.max(SEND_BUFFER_MIN_BYTES)
}

/// Length of a listening socket's accept queue: the connections that arrive in [`ACCEPT_PAUSE_MS`] while the shard is busy.
pub fn accept_queue_len(connections: u64, shards: u64, accepts_per_s: u64) -> u64 {
    let arrivals = (accepts_per_s * ACCEPT_PAUSE_MS / 1_000).min(connections);
    arrivals.div_ceil(shards).next_power_of_two()
}

/// Length of a core's packet queue: the acknowledgements of the messages that the core sends in [`PACKET_WAIT_MS`].
pub fn packet_queue() -> u64 {
    (SENDS_PER_CORE_PER_S * PACKET_WAIT_MS / 1_000).next_power_of_two()
}

/// The smallest acceptable number of buckets in the kernel's hash table of established connections.
pub fn buckets_min(connections: u64) -> u64 {
    connections.div_ceil(CHAIN_MAX)
}

/// The recommended number of buckets in that hash table (`thash_entries`), a power of two.
pub fn buckets_recommended(connections: u64) -> u64 {
    connections.div_ceil(CHAIN_RECOMMENDED).next_power_of_two()
}

/// The kernel's default number of buckets in that hash table (`alloc_large_system_hash` in `tcp_init`).
pub fn buckets_by_kernel(memory_bytes: u64) -> u64 {
    (memory_bytes / BYTES_PER_BUCKET)
        .next_power_of_two()
        .min(BUCKETS_MAX)
}

/// Number of sockets that the server has closed while the peer has not yet confirmed the close.
pub fn orphans(connections: u64) -> u64 {
    connections / ORPHAN_DIVISOR
}

/// Number of connections in TIME_WAIT, if connections close as fast as they are accepted.
pub fn time_waits(connections: u64, accepts_per_s: u64) -> u64 {
    connections.min(accepts_per_s * TIME_WAIT_S)
}

/// Number of entries in the connection tracker: one for each connection, and a quarter more for connections that have ended but are still
/// tracked.
pub fn conntrack_entries(connections: u64) -> u64 {
    connections + connections / 4
}

/// Number of buckets in the connection tracker: one for four entries, the kernel's own ratio for many years.
pub fn conntrack_buckets(connections: u64) -> u64 {
    (conntrack_entries(connections) / 4).next_power_of_two()
}

/// The recommended `vm.min_free_kbytes`.
pub fn min_free_kib(memory_bytes: u64, cores: u64) -> u64 {
    (cores * FREE_KIB_PER_CORE)
        .max(FREE_KIB_MIN)
        .min(memory_bytes / 1024 / FREE_DIVISOR)
}

/// Number of memory mappings of the process.
pub fn mappings(heap_bytes: u64, shards: u64) -> u64 {
    heap_bytes.div_ceil(ARENA_BYTES) * 2 + shards * SHARD_MAPPINGS + PROGRAM_MAPPINGS
}

/// The number of cores that are busy if each connection gets one message per minute.
pub fn cores_for_one_a_minute(connections: u64) -> f64 {
    connections as f64 / 60.0 / SENDS_PER_CORE_PER_S as f64
}

/// Number of entries in the RFS table, a power of two: one for each connection that is active at the same time.
pub fn rfs_entries(connections: u64) -> u64 {
    (connections / ACTIVE_DIVISOR)
        .clamp(FLOWS_MIN, FLOWS_MAX)
        .next_power_of_two()
}

/// The maximum number of connections that one local address can open to one server address and port, for a range of local ports.
pub fn connections_per_local_address(range: [u64; 2]) -> u64 {
    (range[1] + 1).saturating_sub(range[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_costs_what_was_measured() {
        // Measured per connection: 4,018 B with 768 MiB of WebSocket connections, of which 164 B were memory of the process; 3,890 B with
        // 10,000 sockets that a script accepted, or 1,486 B in a group that does not count sockets.
        assert_eq!(charged_bytes(true), 3_832);
        assert_eq!(charged_bytes(false), 1_456);
    }

    #[test]
    fn descriptors_and_connections_are_each_others_inverse() {
        // The number that the server prints when it starts with two shards.
        assert_eq!(connections_by_descriptors(20_000, 2), 39_452);
        for (connections, shards) in [(1, 1), (1_000, 2), (1_000_000, 54), (10_000_000, 16)] {
            let limit = descriptors_needed(connections, shards);
            assert!(connections_by_descriptors(limit, shards) >= connections);
            assert!(connections_by_descriptors(limit - 1_000, shards) < connections);
        }
        assert_eq!(shards_needed(39_452, 20_000, 256), Some(2));
        assert_eq!(shards_needed(1_000_000, 20_000, 256), Some(51));
        assert_eq!(shards_needed(1_000_000, 16, 256), None);
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
        // A small machine with busy cores, and a machine that is full of connections.
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
        // On a host with MemTotal 24,684,084 kB, net.ipv4.tcp_ehash_entries was 262144.
        assert_eq!(buckets_by_kernel(24_684_084 << 10), 262_144);
        assert_eq!(buckets_by_kernel(1 << 40), 524_288);
        assert!(buckets_recommended(10_000_000) >= buckets_min(10_000_000));
    }

    #[test]
    fn queues_are_powers_of_two_that_hold_the_arrivals() {
        assert_eq!(accept_queue_len(1_000_000, 2, 10_000), 4_096);
        assert_eq!(accept_queue_len(100, 2, 10_000), 64);
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
        assert_eq!(connections_per_local_address([32_768, 60_999]), 28_232);
        assert_eq!(connections_per_local_address([5, 4]), 0);
    }
}
