//! A shared sum. Each part adds its changes, so nobody has to walk all parts for the sum.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering};

/// The sum. Clones share it. Only one thread changes it at a time, so it needs no atomic read-modify-write.
#[derive(Clone, Debug, Default)]
pub struct Tally(Arc<AtomicUsize>);

impl Tally {
    /// Increases the sum.
    #[inline]
    pub fn add(&self, more: usize) {
        self.0.store(self.get() + more, Ordering::Relaxed);
    }

    /// Decreases the sum.
    #[inline]
    pub fn subtract(&self, less: usize) {
        self.0.store(self.get() - less, Ordering::Relaxed);
    }

    /// The sum.
    #[inline]
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}
