//! The sequence of requests.

use crate::code::HANDLERS;
use crate::state::State;

/// After so many requests the sequence begins again.
pub const LAP: u64 = 8192;

/// The wrapping sum of the results of the first [`LAP`] requests, the same for every correct build.
pub const LAP_CHECKSUM: u64 = 0xa42e_48e5_b2f0_43a3;

/// Decides the sequence of requests, and with it [`LAP_CHECKSUM`].
const SEED: u64 = 0x6465_6d6f;

/// The last step of SplitMix64: scatters the bits of `z`.
const fn scatter(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Knows every request of the sequence and can serve it.
pub(crate) struct Traffic {
    /// Running sums of the handlers' weights.
    shares: Vec<u64>,
    words: [u64; 64],
}

impl Traffic {
    pub fn new() -> Self {
        // Zipf: the handler of rank n has the weight 1/n.
        let mut sum = 0;
        let shares = (1..=HANDLERS.len() as u64)
            .map(|rank| {
                sum += (1 << 32) / rank;
                sum
            })
            .collect();
        let words = std::array::from_fn(|i| scatter(SEED ^ (i as u64) << 40));
        Self { shares, words }
    }

    /// Serves the request of that number; the result depends on nothing else.
    pub fn serve(&self, number: u64, state: &mut State) -> u64 {
        let data = scatter(SEED.wrapping_add((number % LAP).wrapping_mul(0x9e37_79b9_7f4a_7c15)));
        let total = self.shares[self.shares.len() - 1];
        let handler = self.shares.partition_point(|&share| share <= data % total);
        // One request in eight is an unusual one of its kind.
        let variant = if data >> 61 == 0 { (data >> 58) & 7 } else { 0 };
        state.reset(scatter(handler as u64 * 8 + variant) & 0xffff, &self.words);
        let result = HANDLERS[handler](state, scatter(data));
        state.digest(result)
    }
}
