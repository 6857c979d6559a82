//! A seeded generator of random numbers (SplitMix64) for the simulator, the fuzz targets and tests. Never in a product.
//!
//! Invariant: the algorithm does not change, so that a seed means the same run on every machine and in every version.
#![no_std]
#![forbid(unsafe_code)]

/// The generator.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// The generator of this seed.
    pub fn new(seed: u64) -> Self {
        Rng(seed)
    }

    /// Any number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number below `end`, which is not 0.
    pub fn below(&mut self, end: usize) -> usize {
        (self.draw() % end as u64) as usize
    }

    /// A number from `from` to `to`, both included.
    pub fn range(&mut self, from: usize, to: usize) -> usize {
        from + self.below(to - from + 1)
    }

    /// True with a probability of `percent` in a hundred.
    pub fn chance(&mut self, percent: u32) -> bool {
        self.below(100) < percent as usize
    }

    /// One of these values.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// Puts `all` into a random order.
    pub fn shuffle<T>(&mut self, all: &mut [T]) {
        for n in (1..all.len()).rev() {
            all.swap(n, self.below(n + 1));
        }
    }
}
