//! A fixed-seed generator of random numbers, so that every build makes the same program.

/// SplitMix64 (Steele, Lea and Flood, "Fast splittable pseudorandom number generators", 2014).
pub struct Rng(u64);

impl Rng {
    /// A generator whose numbers are decided by `seed`.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 random bits.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..n`; the modulo's bias does not matter here.
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// A number in `0..n` of which the small ones are likelier (density falls with the square root): some
    /// helpers are used by almost everybody.
    pub fn skewed(&mut self, n: usize) -> usize {
        let unit = (self.next() >> 11) as f64 / (1_u64 << 53) as f64;
        ((unit * unit * n as f64) as usize).min(n - 1)
    }

    /// Puts `items` into a random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i + 1));
        }
    }
}
