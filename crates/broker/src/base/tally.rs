//! A sum that several structures keep together. Each structure adds its own changes, so that a reader of the sum need not visit all of them.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering};

/// A shared sum. All clones refer to the same sum. Only one thread at a time changes it, so a change needs no atomic read-modify-write.
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
