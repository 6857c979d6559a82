//! Faults that the simulator plants to show that it would find them. Without the feature `planted` every check is a constant `false`, and the
//! product contains none of this.

/// A fault. One at a time can be switched on, for the whole process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// A group is answered before it is synced.
    NoSync = 1,
    /// A group counts also with a wrong checksum.
    NoChecksum,
    /// A log that goes on forgets the checksum of its last group: the next one is not chained to it.
    NoChain,
    /// Bytes of a segment's former life count.
    Recycled,
    /// A removed segment that comes back counts.
    Returned,
}

#[cfg(feature = "planted")]
mod switch {
    use std::sync::atomic::{AtomicU8, Ordering};

    static FAULT: AtomicU8 = AtomicU8::new(0);

    impl super::Fault {
        /// All of them.
        pub const ALL: [super::Fault; 5] = [
            Self::NoSync,
            Self::NoChecksum,
            Self::NoChain,
            Self::Recycled,
            Self::Returned,
        ];
    }

    /// Switches this fault on, and any other off.
    pub fn plant(fault: Option<super::Fault>) {
        FAULT.store(fault.map_or(0, |fault| fault as u8), Ordering::SeqCst);
    }

    pub(crate) fn is(fault: super::Fault) -> bool {
        FAULT.load(Ordering::Relaxed) == fault as u8
    }
}

#[cfg(feature = "planted")]
pub use switch::plant;

/// Whether this fault is switched on.
#[inline]
pub(crate) fn is(fault: Fault) -> bool {
    #[cfg(feature = "planted")]
    let planted = switch::is(fault);
    #[cfg(not(feature = "planted"))]
    let planted = {
        _ = fault;
        false
    };
    planted
}
