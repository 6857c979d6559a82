//! The settings of a table.

/// The settings of a table. Each limit is one of these.
#[derive(Clone, Debug)]
pub struct Config {
    /// The size of a packet that the link carries, in bytes, from the IP header on. At least 576.
    pub packet_bytes: u16,
    /// Whether checksums of TCP are computed. Without it another party does so, such as the network card.
    pub computes_checksums: bool,
    /// Which checksums of received packets are accepted.
    pub checksums: Checksums,
    /// Whether the table finds the connection of a segment by its ends. Without it the caller does
    /// ([`Table::receive_segment`](crate::Table::receive_segment)), and may park idle connections ([`Table::park`](crate::Table::park)).
    pub finds_connections: bool,
    /// Whether window scale, timestamps and selective acknowledgements are offered and accepted.
    pub uses_extensions: bool,
    /// The number of connections, including those that are closed and not over.
    pub connections: u32,
    /// The number of connections that may wait at each listener to be accepted.
    pub backlog: usize,
    /// The receive buffer of a connection has `1 << receive_log2` bytes. The peer's window never exceeds it. At most 30.
    pub receive_log2: u8,
    /// The number of bytes of a connection that may wait to be sent and acknowledged.
    pub send_bytes: u32,
    /// Parts with at least this many bytes are shared. Smaller ones are copied.
    pub share_bytes: usize,
    /// The number of separate ranges of bytes out of order that a connection keeps.
    pub ranges: usize,
    /// The number of segments in flight beyond which only full ones follow. It limits what is kept of many small segments.
    pub small_segments: usize,
    /// The smallest maximum segment size that is accepted from a peer. Smaller ones are raised to it. A window with less room is used only once in
    /// each retransmission timeout. At least 64, so that all options fit.
    pub segment_bytes_min: u16,
    /// How long an acknowledgement may wait for data to travel with. 0: until the end of the turn.
    pub ack_delay_us: u32,
    /// The first retransmission timeout of a connection without a measured round trip.
    pub rto_first_us: u32,
    /// The smallest retransmission timeout.
    pub rto_min_us: u32,
    /// The largest retransmission timeout, and the largest time between two probes of a closed window.
    pub rto_max_us: u32,
    /// Timeouts in a row without an acknowledgement, after which a connection has failed.
    pub retries: u8,
    /// Timeouts in a row of a SYN, after which a connection has failed.
    pub syn_retries: u8,
    /// Whether and how connections without traffic are probed.
    pub keep_alive: Option<KeepAlive>,
    /// How long a closed connection is remembered, so that its old packets do no harm. 0: it is forgotten at once. A table that listens
    /// remembers each as long as a cookie is good, at least: for a minute.
    pub time_wait_ms: u32,
    /// The number of such connections. Beyond it the oldest is forgotten.
    pub time_waits: usize,
    /// How long a connection that the caller has closed may remain without progress.
    pub orphan_ms: u32,
    /// The number of connections that the caller has closed and that the peer has not: beyond it the one that was closed first is reset.
    pub orphans: usize,
    /// The time in which the peer must acknowledge all bytes that are held at its beginning, whatever it answers meanwhile. Then the time begins
    /// again, so no byte is held for longer than twice this time. It also ends the wait for bytes that precede those out of order: these are
    /// dropped. 0: no limit.
    pub hold_ms: u32,
    /// The same time while memory is short ([`Account::is_short`](crate::Account::is_short)), so that peers which acknowledge nothing give way
    /// to the others.
    pub short_hold_ms: u32,
    /// The number of segments in each second to which an acknowledgement answers only because they are not acceptable (RFC 5961 §7). A SYN is always
    /// answered.
    pub challenges_per_s: u32,
}

/// Which checksums of TCP are accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksums {
    /// All: another party has verified them, such as the network card.
    Ignored,
    /// Right ones.
    Verified,
    /// Right ones, and the sum of the addresses and the length alone, which Linux leaves in packets that no network card has completed. Such a
    /// packet has not left the machine.
    VerifiedUnlessPartial,
}

/// How connections without traffic are probed.
#[derive(Clone, Copy, Debug)]
pub struct KeepAlive {
    /// The time without traffic before the first probe.
    pub idle_ms: u32,
    /// The time between two probes.
    pub interval_ms: u32,
    /// The number of probes without an answer after which the connection has failed.
    pub probes: u32,
}

/// The largest receive buffer: its window needs the largest shift (RFC 7323 §2.3).
pub const RECEIVE_LOG2_MAX: u8 = 30;

impl Config {
    /// The settings with those values raised or lowered that no connection could work with.
    pub(crate) fn bounded(self) -> Config {
        Config {
            packet_bytes: self.packet_bytes.max(576),
            receive_log2: self.receive_log2.min(RECEIVE_LOG2_MAX),
            segment_bytes_min: self.segment_bytes_min.max(64),
            ..self
        }
    }
}

impl Default for Config {
    fn default() -> Config {
        Config {
            packet_bytes: 1_500,
            computes_checksums: true,
            checksums: Checksums::Verified,
            finds_connections: true,
            uses_extensions: true,
            connections: 1 << 16,
            backlog: 4_096,
            receive_log2: 16,
            send_bytes: 256 << 10,
            share_bytes: 1_024,
            ranges: 32,
            small_segments: 128,
            segment_bytes_min: 256,
            ack_delay_us: 40_000,
            rto_first_us: 1_000_000,
            rto_min_us: 200_000,
            rto_max_us: 60_000_000,
            retries: 10,
            syn_retries: 5,
            keep_alive: None,
            time_wait_ms: 60_000,
            time_waits: 1 << 16,
            orphan_ms: 60_000,
            orphans: 1 << 15,
            hold_ms: 600_000,
            short_hold_ms: 10_000,
            challenges_per_s: 1_000,
        }
    }
}
