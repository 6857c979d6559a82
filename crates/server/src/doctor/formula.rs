//! The formulas: what so many connections need, each as a function with the source of its constants.
//!
//! Bytes and counts only; [`super::host`] knows the host, and [`super::bounds`] and [`super::checks`] draw conclusions from
//! both. `docs/DOCTOR.md` repeats every formula in words.

use crore_net::kernel::entrance;

/// Bytes of a page of memory, the unit of `net.ipv4.tcp_mem`.
pub const PAGE_BYTES: u64 = 4096;

/// The kernel's bytes for one accepted socket that waits, as the slabs of Linux 6.18 grew by a million of them: the
/// TCP socket itself.
const TCP_BYTES: u64 = 2_520;
/// Its inode.
const INODE_BYTES: u64 = 862;
/// Its directory entry and file.
const FILE_BYTES: u64 = 390;
/// Its hash bucket, security blob and the like.
const REST_BYTES: u64 = 94;
/// Its place in epoll.
const EPOLL_BYTES: u64 = 208;

/// The kernel's bytes for one connection's end.
pub const KERNEL_BYTES: u64 = TCP_BYTES + INODE_BYTES + FILE_BYTES + REST_BYTES + EPOLL_BYTES;

/// The charge of a control group for the same: the objects (`/proc/slabinfo` of Linux 6.18) without the gaps of their
/// slabs, and 8 bytes each for the kernel to remember the group.
const TCP_OBJECT_BYTES: u64 = 2_368 + 8;
/// Inode, directory entry, file, item and wait entry of epoll.
const OTHER_OBJECTS_BYTES: u64 = 832 + 192 + 192 + 128 + 72 + 5 * 8;

/// The kernel's bytes for one connection's end in a control group. One that does not count accepted sockets is
/// charged only for allocations of the server's own system calls.
pub fn charged_bytes(counts_sockets: bool) -> u64 {
    let socket = if counts_sockets { TCP_OBJECT_BYTES } else { 0 };
    OTHER_OBJECTS_BYTES + socket
}

/// Bytes that TLS adds to a connection that waits: two secrets of 32 bytes and two counts, and 4 bytes that find them
/// (`net/src/stream/keys.rs`). A client that takes neither AES-128 nor ChaCha20 has secrets of 48 bytes, 32 more.
pub const TLS_BYTES: u64 = 80 + 4;

/// An entry of the connection tracker: `nf_conn` (256 bytes in Linux 6) with its extensions, and a bucket.
pub const TRACKED_BYTES: u64 = 328;

/// An empty server: its heap, stacks and the pages of its program that it has written to (docs/internals/MEMORY.md: 4.5 MB resident with
/// two shards, most of it the program's own pages).
const EMPTY_SERVER_BYTES: u64 = 6_000_000;
/// One shard more (docs/internals/MEMORY.md).
const SHARD_BYTES: u64 = 75_000;

/// Threads that are no shards, without those for passwords and the callback: control, signals, the log, the books of access and the two
/// that verify tokens.
pub const OTHER_THREADS: u64 = 6;

/// The part of a planned machine's memory that the system itself holds, as 1 in so many: the firmware's and the page table's,
/// which `MemTotal` lacks, 2 %, and a bare system's 3 %.
const SYSTEM_PART: u64 = 20;

/// Descriptors of a shard that are no connections: listeners, poller, eventfds, the reserve.
const SPARE_DESCRIPTORS: u64 = 16;

/// Messages that a core sends in a second, at most one to each connection (docs/benchmarks: unicast, 128,000 to 152,000).
const SENDS_PER_CORE_AND_S: u64 = 150_000;
/// Milliseconds until a far or mobile client has acknowledged the bytes that it was sent.
const ROUND_TRIP_MS: u64 = 200;
/// The part of the connections that may have stopped reading while bytes wait for them: a hundredth.
const STALLED_PART: u64 = 100;
/// The part of the connections whose clients may be gone while the kernel still tries to say goodbye: an eighth.
const DYING_PART: u64 = 8;
/// The smallest send buffer that still takes an answer of many messages at once, in bytes.
const SEND_BUFFER_MIN_BYTES: u64 = 64 << 10;

/// The kernel takes bytes in pieces of this size, and looks at the limit of unsent ones between two of them (`TCP_NOTSENT_LOWAT`).
pub const UNSENT_PIECE_BYTES: u64 = 64 << 10;

/// Milliseconds that a shard may be busy with something else while connections arrive.
const QUEUE_MS: u64 = 500;
/// Milliseconds of packets that wait for a core which is busy with others.
const PACKETS_MS: u64 = 10;

/// Connections in one chain of the hash table from which on each packet pays for them: a cache miss each.
const CHAIN_MAX: u64 = 8;
/// The chain that a table is made for.
const CHAIN_WANTED: u64 = 2;
/// The kernel's own size of the table: a bucket for so many bytes of memory, and at most so many.
const BYTES_PER_BUCKET: u64 = 128 << 10;
const BUCKETS_MAX: u64 = 512 << 10;

/// Seconds that a connection stays in TIME_WAIT at the side that closed it first (`TCP_TIMEWAIT_LEN`).
const TIME_WAIT_S: u64 = 60;

/// Memory that the kernel should keep free for packets that arrive while memory is short: so much for each core, and a
/// minimum; but never more than a part of the memory.
const FREE_KIB_PER_CORE: u64 = 16 << 10;
const FREE_KIB_MIN: u64 = 64 << 10;
const FREE_PART: u64 = 64;

/// The part of the connections that is active at once, and the sizes that its table should stay between
/// (Documentation/networking/scaling.rst: 32768 for a moderately loaded server).
const ACTIVE_PART: u64 = 16;
const FLOWS_MIN: u64 = 32_768;
const FLOWS_MAX: u64 = 1 << 20;

/// Bytes of one heap arena of the C library, which is two mappings.
const ARENA_BYTES: u64 = 64 << 20;
/// Mappings of the program and its libraries, and of each shard (stack, guard, arena).
const PROGRAM_MAPPINGS: u64 = 256;
const SHARD_MAPPINGS: u64 = 8;

/// The process's bytes before the first connection.
pub fn server_bytes(shards: u64) -> u64 {
    EMPTY_SERVER_BYTES + shards * SHARD_BYTES
}

/// The memory that programs may use on a machine with so much.
pub fn planned_available(memory_bytes: u64) -> u64 {
    memory_bytes - memory_bytes / SYSTEM_PART
}

/// Connections that all shards together hold when each one's table has `limit` descriptors.
pub fn room_by_descriptors(limit: u64, shards: u64) -> u64 {
    let free = limit.saturating_sub(SPARE_DESCRIPTORS + shards);
    entrance::room(free).saturating_mul(shards)
}

/// The smallest table with which all shards together hold so many, rounded up to a thousand.
pub fn descriptors_for(connections: u64, shards: u64) -> u64 {
    const STEP: u64 = 1_000;
    let mut limit = connections.div_ceil(shards) / STEP * STEP;
    while room_by_descriptors(limit, shards) < connections {
        limit += STEP;
    }
    limit
}

/// The fewest shards that hold so many with tables of `limit` descriptors; `None` when a shard needs all of its table for
/// itself.
pub fn shards_for(connections: u64, limit: u64, shards_max: u64) -> Option<u64> {
    (1..=shards_max).find(|shards| room_by_descriptors(limit, *shards) >= connections)
}

/// Sockets that hold bytes at once while messages go out as fast as the cores send: each holds at least a page.
pub fn busy_sockets(connections: u64, cores: u64) -> u64 {
    connections.min(cores * SENDS_PER_CORE_AND_S * ROUND_TRIP_MS / 1_000)
}

/// `net.ipv4.tcp_mem` (pages: low, pressure, most): a sixteenth of the memory as the kernel has it, but as much as the
/// busy sockets need, and no more than the connections leave. The ratios are the kernel's: 3/4, 1, 3/2.
pub fn tcp_mem(memory_bytes: u64, left_bytes: u64, busy: u64) -> [u64; 3] {
    let by_kernel = memory_bytes / 16 / PAGE_BYTES;
    let left = left_bytes / PAGE_BYTES * 2 / 3;
    let pressure = by_kernel.min(left).max(busy);
    [pressure / 4 * 3, pressure, pressure * 3 / 2]
}

/// Bytes that a socket may hold unsent so that the hundredth of the connections that stalls stays within `tcp_mem`: a
/// power of two.
pub fn send_buffer_max(tcp_mem_most_pages: u64, connections: u64) -> u64 {
    let stalled = (connections / STALLED_PART).max(1);
    let each = tcp_mem_most_pages * PAGE_BYTES / stalled;
    let power = each.checked_ilog2().map_or(1, |log| 1 << log);
    power.max(SEND_BUFFER_MIN_BYTES)
}

/// Connections that wait in a listening socket's queue while its shard is busy for half a second.
pub fn queue(connections: u64, shards: u64, accepts_per_s: u64) -> u64 {
    let arrivals = (accepts_per_s * QUEUE_MS / 1_000).min(connections);
    arrivals.div_ceil(shards).next_power_of_two()
}

/// Packets that wait for a core: an acknowledgement for each message that it sends, for ten milliseconds.
pub fn packet_queue() -> u64 {
    (SENDS_PER_CORE_AND_S * PACKETS_MS / 1_000).next_power_of_two()
}

/// The fewest buckets of the kernel's table of established connections that are still good.
pub fn buckets_min(connections: u64) -> u64 {
    connections.div_ceil(CHAIN_MAX)
}

/// The table to ask for (`thash_entries`), a power of two.
pub fn buckets_wanted(connections: u64) -> u64 {
    connections.div_ceil(CHAIN_WANTED).next_power_of_two()
}

/// The table that the kernel makes by itself (`alloc_large_system_hash` in `tcp_init`).
pub fn buckets_by_kernel(memory_bytes: u64) -> u64 {
    (memory_bytes / BYTES_PER_BUCKET)
        .next_power_of_two()
        .min(BUCKETS_MAX)
}

/// Sockets that the server has closed and the kernel still ends.
pub fn orphans(connections: u64) -> u64 {
    connections / DYING_PART
}

/// Connections in TIME_WAIT: as many close as come, and each stays for a minute.
pub fn time_waits(connections: u64, accepts_per_s: u64) -> u64 {
    connections.min(accepts_per_s * TIME_WAIT_S)
}

/// Entries of the connection tracker: the connections, and a quarter more that have ended and are still remembered.
pub fn tracked(connections: u64) -> u64 {
    connections + connections / 4
}

/// Its buckets: four entries in each, as the kernel's own ratio was for many years.
pub fn tracked_buckets(connections: u64) -> u64 {
    (tracked(connections) / 4).next_power_of_two()
}

/// `vm.min_free_kbytes`.
pub fn min_free_kib(memory_bytes: u64, cores: u64) -> u64 {
    (cores * FREE_KIB_PER_CORE)
        .max(FREE_KIB_MIN)
        .min(memory_bytes / 1024 / FREE_PART)
}

/// Mappings of the process.
pub fn mappings(heap_bytes: u64, shards: u64) -> u64 {
    heap_bytes.div_ceil(ARENA_BYTES) * 2 + shards * SHARD_MAPPINGS + PROGRAM_MAPPINGS
}

/// Cores that a message a minute to each connection keeps busy.
pub fn cores_for_one_a_minute(connections: u64) -> f64 {
    connections as f64 / 60.0 / SENDS_PER_CORE_AND_S as f64
}

/// The table of RFS: connections that are active at once, a power of two.
pub fn flows(connections: u64) -> u64 {
    (connections / ACTIVE_PART)
        .clamp(FLOWS_MIN, FLOWS_MAX)
        .next_power_of_two()
}

/// Connections of one local address to one server address and port, for a range of local ports.
pub fn tuples(range: [u64; 2]) -> u64 {
    (range[1] + 1).saturating_sub(range[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_socket_costs_what_was_measured() {
        assert_eq!(KERNEL_BYTES, 4_074);
        // A fill of 768 MiB grew by 4,018 B for each WebSocket, of which 164 are the process's; 10,000 sockets that a
        // script accepted by 3,890 B, by 1,486 B where the group did not count sockets.
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
