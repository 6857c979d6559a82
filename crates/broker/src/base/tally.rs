//! A count of what several parts have together. Each part keeps it up to date, so that nobody has to walk over all of them to know the sum.

use alloc::sync::Arc;
use core::sync::atomic::{AtomicUsize, Ordering};

/// The count; copies share it. Only one thread counts at a time.
#[derive(Clone, Debug, Default)]
pub struct Tally(Arc<AtomicUsize>);

impl Tally {
    /// There are so many more.
    #[inline]
    pub fn add(&self, more: usize) {
        self.0.store(self.get() + more, Ordering::Relaxed);
    }

    /// There are so many less.
    #[inline]
    pub fn subtract(&self, less: usize) {
        self.0.store(self.get() - less, Ordering::Relaxed);
    }

    /// How many there are.
    #[inline]
    pub fn get(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}
