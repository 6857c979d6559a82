//! Faults that tests switch on, to prove that the tests with two endpoints notice them, and the simulator of the broker. In a build for neither
//! every check is the constant `false`, so a released server contains none of these faults.

/// A fault. At most one is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// A segment that was found to be lost is not retransmitted.
    NoRetransmission = 1,
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

impl Fault {
    /// The faults that harm a connection whose peer is honest.
    pub const OF_STREAMS: [Fault; 6] = [
        Fault::NoRetransmission,
        Fault::WindowTooWide,
        Fault::OldBytesAccepted,
        Fault::FreedTooMuch,
        Fault::EarlyEnd,
        Fault::NeverReleased,
    ];
}

/// Switches this fault on and all others off.
#[cfg(any(test, feature = "planted"))]
pub fn plant(fault: Option<Fault>) {
    place::set(fault.map_or(0, |fault| fault as u8));
}

/// Whether this fault is on.
#[cfg(any(test, feature = "planted"))]
#[inline]
pub(crate) fn is_planted(fault: Fault) -> bool {
    place::get() == fault as u8
}

/// Whether this fault is on.
#[cfg(not(any(test, feature = "planted")))]
#[inline]
pub(crate) fn is_planted(_: Fault) -> bool {
    false
}

/// The fault of this process: the simulator runs seeds in several threads.
#[cfg(all(feature = "planted", not(test)))]
mod place {
    use core::sync::atomic::{AtomicU8, Ordering};

    static PLANTED: AtomicU8 = AtomicU8::new(0);

    pub fn set(fault: u8) {
        PLANTED.store(fault, Ordering::SeqCst);
    }

    pub fn get() -> u8 {
        PLANTED.load(Ordering::Relaxed)
    }
}

/// The fault of this thread: the tests run side by side in one process.
#[cfg(test)]
mod place {
    std::thread_local! {
        static PLANTED: core::cell::Cell<u8> = const { core::cell::Cell::new(0) };
    }

    pub fn set(fault: u8) {
        PLANTED.set(fault);
    }

    pub fn get() -> u8 {
        PLANTED.get()
    }
}
