//! What a table counts.

/// Counts since the table was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Packets that were received.
    pub received: u64,
    /// Packets that the device has taken.
    pub sent: u64,
    /// Packets that the device had no room for.
    pub refused_by_device: u64,
    /// Packets that are no segment of TCP and no message about its packets.
    pub foreign: u64,
    /// Fragments of packets.
    pub fragments: u64,
    /// Packets with a wrong checksum.
    pub checksums: u64,
    /// Packets that do not parse, or whose addresses cannot be right.
    pub malformed: u64,
    /// Handshakes that a cookie answered.
    pub cookies_sent: u64,
    /// Third packets of handshakes whose cookie was wrong or too old.
    pub cookies_refused: u64,
    /// Connections that were dropped at their third packet since there was no room.
    pub overflows: u64,
    /// Connections that were accepted or have been answered.
    pub opened: u64,
    /// Segments that were retransmitted.
    pub retransmitted: u64,
    /// Retransmission timeouts.
    pub timeouts: u64,
    /// Loss probes that were sent.
    pub probes: u64,
    /// Segments that arrived before others that precede them.
    pub out_of_order: u64,
    /// Segments with data that had all arrived before.
    pub repeated: u64,
    /// Segments that are not acceptable: outside the window, too old, or acknowledging what was not sent.
    pub unacceptable: u64,
    /// Acknowledgements sent because of such segments.
    pub challenges: u64,
    /// Bytes dropped because the account, the window or the ranges had no room.
    pub bytes_dropped: u64,
    /// Resets that were sent.
    pub resets_sent: u64,
    /// Resets that ended a connection.
    pub resets_received: u64,
    /// Connections that failed because nothing answered.
    pub timed_out: u64,
}
