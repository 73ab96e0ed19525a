//! Checks the invariant of a layout.

use restitch_program::Program;

use crate::Layout;

impl Layout {
    /// Checks that each block occurs at most once, exists and is movable, that no fragment is empty, and that alignments
    /// are powers of two. Each fault gives a sentence.
    pub fn validate(&self, program: &Program) -> Result<(), Vec<String>> {
        let mut wrong = Vec::new();
        let mut seen = vec![false; program.blocks.len()];
        for (number, fragment) in self.hot.iter().chain(&self.cold).enumerate() {
            if fragment.blocks.is_empty() {
                wrong.push(format!("fragment {number} is empty"));
            }
            if !fragment.align.is_power_of_two() {
                wrong.push(format!("fragment {number}: alignment {} is no power of two", fragment.align));
            }
            for &block in &fragment.blocks {
                let Some(seen) = seen.get_mut(block.index()) else {
                    wrong.push(format!("fragment {number}: the program has no block {}", block.0));
                    continue;
                };
                let start = program.block(block).start;
                if std::mem::replace(seen, true) {
                    wrong.push(format!("block {start} occurs twice"));
                }
                if !program.is_movable(block) {
                    wrong.push(format!("block {start} is not movable"));
                }
            }
        }
        if wrong.is_empty() { Ok(()) } else { Err(wrong) }
    }
}
