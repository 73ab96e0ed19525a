//! What the generated functions work on.

use std::hint::black_box;

/// The state of one serving thread. The compiler must not know what is in it: the generated code would shrink
/// to what really runs.
pub(crate) struct State {
    /// The kind of the request at hand; switches and call tables look at its bits.
    pub kind: u64,
    /// How many error paths the request ran through.
    pub errors: u64,
    /// Words that the generated code mixes into its values, and changes.
    pub words: [u64; 64],
    /// What error paths and unlikely cases leave behind.
    pub notes: [u64; 64],
    /// Bounds that no value reaches.
    pub limits: [u64; 32],
    /// Settings, none of which has a number that the code asks for.
    pub modes: [u64; 32],
}

impl State {
    /// The state before the first request.
    pub fn new() -> Self {
        Self {
            kind: 0,
            errors: 0,
            words: [0; 64],
            notes: [0; 64],
            limits: black_box([1 << 20; 32]),
            modes: black_box([1; 32]),
        }
    }

    /// Makes it as if no request had been served.
    pub fn reset(&mut self, kind: u64, words: &[u64; 64]) {
        self.kind = kind;
        self.errors = 0;
        self.words = *words;
        self.notes = [0; 64];
    }

    /// One number that depends on all that a request has left behind and on its result `x`.
    pub fn digest(&self, x: u64) -> u64 {
        let mut sum = x ^ self.errors.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for (word, note) in self.words.iter().zip(&self.notes) {
            sum = sum.rotate_left(1).wrapping_add(word ^ note.rotate_left(32));
        }
        sum
    }
}
