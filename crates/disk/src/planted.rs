//! Faults that the simulator plants to show that it would find them. Without the feature `planted` every check is a constant `false`, and the
//! product contains none of this.

use std::sync::atomic::{AtomicU8, Ordering};

/// A fault. One at a time can be switched on, for the whole process.
#[cfg_attr(feature = "planted", derive(strum::VariantArray))]
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
    /// The mark of the log's end is not read, nor the length of its last segment: a lost end goes unnoticed.
    LostEnd,
}

/// The one that is switched on; 0: none.
static PLANTED: AtomicU8 = AtomicU8::new(0);

/// Switches this fault on, and any other off.
#[cfg(feature = "planted")]
pub fn plant(fault: Option<Fault>) {
    PLANTED.store(fault.map_or(0, |fault| fault as u8), Ordering::SeqCst);
}

/// Whether this fault is switched on.
#[inline]
pub(crate) fn is(fault: Fault) -> bool {
    cfg!(feature = "planted") && PLANTED.load(Ordering::Relaxed) == fault as u8
}
