//! Random numbers that a seed determines.

use crore_rng::Rng;

/// xorshift64*: repeatable, and good enough to choose attackers' actions.
pub struct Random(u64);

impl Random {
    /// The numbers of one script. They do not depend on the numbers of other scripts.
    pub fn for_script(seed: u64, number: u64) -> Random {
        let mixed = Rng::new(seed ^ Rng::new(number.wrapping_add(1)).draw()).draw();
        Random(mixed | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 33) as usize % bound
    }

    pub fn between(&mut self, low: usize, high: usize) -> usize {
        low + self.below(high - low + 1)
    }

    pub fn pick<T: Copy>(&mut self, options: &[T]) -> T {
        options[self.below(options.len())]
    }

    /// True once in `times` calls, on average.
    pub fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }

    pub fn bytes(&mut self, count: usize) -> Vec<u8> {
        (0..count).map(|_| (self.next() >> 40) as u8).collect()
    }
}
