//! Faults that tests switch on to show that the simulator finds them. Without the feature `planted` every check is the constant `false`, so
//! a released server contains none of these faults.

use std::sync::atomic::{AtomicU8, Ordering};

/// A fault. At most one is switched on in the whole process.
#[cfg_attr(feature = "planted", derive(strum::VariantArray))]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Fault {
    /// A group is acknowledged before it is synced.
    NoSync = 1,
    /// A group is accepted even if its checksum is wrong.
    NoChecksum,
    /// A reopened log forgets the checksum of its last group. So the next group does not refer to that group.
    NoChain,
    /// A group from an earlier use of the segment's file is accepted.
    Recycled,
    /// A removed segment that reappears is accepted.
    Returned,
    /// A lost end goes unnoticed: neither the mark nor the length of the last segment is checked.
    LostEnd,
}

/// The fault that is switched on; 0 for none.
static PLANTED: AtomicU8 = AtomicU8::new(0);

/// Switches this fault on and all others off.
#[cfg(feature = "planted")]
pub fn plant(fault: Option<Fault>) {
    PLANTED.store(fault.map_or(0, |fault| fault as u8), Ordering::SeqCst);
}

/// Whether this fault is on.
#[inline]
pub(crate) fn is_on(fault: Fault) -> bool {
    cfg!(feature = "planted") && PLANTED.load(Ordering::Relaxed) == fault as u8
}
