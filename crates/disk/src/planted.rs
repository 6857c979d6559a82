//! Faults that tests switch on to show that the simulator finds them. Without the feature `planted` every check is the constant `false`, so
//! the product contains none of these faults.

use std::sync::atomic::{AtomicU8, Ordering};

/// A fault. Only one at a time is on, for the whole process.
#[cfg_attr(feature = "planted", derive(strum::VariantArray))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// A group is acknowledged before it is synced.
    NoSync = 1,
    /// A group is accepted even if its checksum is wrong.
    NoChecksum,
    /// A reopened log forgets the checksum of its last group, so the next group does not refer to the last one.
    NoChain,
    /// Groups that were in the file before it became this segment are accepted.
    Recycled,
    /// A removed segment that reappears is accepted.
    Returned,
    /// A lost end goes unnoticed: neither the mark nor the length of the last segment is checked.
    LostEnd,
}

/// The fault that is on; 0 if none is.
static PLANTED: AtomicU8 = AtomicU8::new(0);

/// Switches this fault on, and every other one off.
#[cfg(feature = "planted")]
pub fn plant(fault: Option<Fault>) {
    PLANTED.store(fault.map_or(0, |fault| fault as u8), Ordering::SeqCst);
}

/// Whether this fault is on.
#[inline]
pub(crate) fn is(fault: Fault) -> bool {
    cfg!(feature = "planted") && PLANTED.load(Ordering::Relaxed) == fault as u8
}
