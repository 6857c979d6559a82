//! Faults that a test switches on, to prove that the tests with two endpoints notice them. Outside of tests every check is the constant `false`.

/// A fault. Only one at a time is on, in a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(
    not(test),
    allow(dead_code, reason = "faults are planted only by tests")
)]
pub enum Fault {
    /// A segment that was found to be lost is not retransmitted.
    NoRetransmission,
    /// The sender believes that the peer's window is one byte larger than it is.
    WindowTooWide,
    /// Bytes of a segment that have arrived before are accepted again.
    OldBytesAccepted,
    /// An acknowledgement also frees later bytes, which are not acknowledged yet.
    FreedTooMuch,
    /// Of two segments that overlap, the later one decides the bytes.
    LaterOverlapWins,
    /// A reset is accepted anywhere in the window.
    BlindReset,
    /// Acknowledgements of bytes that were never sent are accepted.
    AckOfUnsent,
    /// The third packet of a handshake is accepted with any cookie.
    AnyCookie,
    /// The cookie of a connection that is over begins it once more.
    SpentCookie,
    /// A segment with an older clock than others before it is accepted.
    OldClock,
    /// An end of stream is accepted before the bytes that precede it.
    EarlyEnd,
    /// Bytes that are freed stay charged to the account.
    NeverReleased,
}

#[cfg(test)]
std::thread_local! {
    static PLANTED: core::cell::Cell<Option<Fault>> = const { core::cell::Cell::new(None) };
}

/// Makes this the thread's only fault. `None` switches all faults off.
#[cfg(test)]
pub fn plant(fault: Option<Fault>) {
    PLANTED.set(fault);
}

/// Whether this fault is on.
#[cfg(test)]
pub fn is_planted(fault: Fault) -> bool {
    PLANTED.get() == Some(fault)
}

/// Whether this fault is on.
#[cfg(not(test))]
#[inline]
pub fn is_planted(_: Fault) -> bool {
    false
}
