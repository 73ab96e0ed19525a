//! Whether places that a processor was at are places of this program, or of another build of it.

use crate::model::{BlockId, Program};
use restitch_address::Svma;
use restitch_image::Image;
use std::collections::BTreeMap;

/// How places fit the instructions of a program.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Fit {
    /// Counts of places where an instruction starts.
    pub fitting: u64,
    /// Counts of places inside of instructions.
    pub inside: u64,
    /// Different places where an instruction starts.
    pub places: u64,
}

impl Fit {
    /// Whether the places may be the program's. A processor is never inside of an instruction; one in a
    /// hundred is left to code that jumps into some (behind `lock` prefixes).
    pub fn may_be(&self) -> bool {
        self.inside.saturating_mul(100) <= self.fitting.saturating_add(self.inside)
    }

    /// Whether they are more than could fit by chance: another build's place fits in one of four cases
    /// (instructions are four bytes long in the mean).
    pub fn is_certain(&self) -> bool {
        const CERTAIN: u64 = 24;
        self.may_be() && self.places >= CERTAIN
    }

    /// The share of the counts that are inside of instructions, in per cent.
    pub fn inside_percent(&self) -> f64 {
        100.0 * self.inside as f64 / (self.fitting as f64 + self.inside as f64).max(1.0)
    }
}

impl Program {
    /// How places, with their counts, fit the instructions of the program, whose file is `image`. What is in
    /// no block is not judged.
    pub fn fit(&self, image: &Image, places: &BTreeMap<Svma, u64>) -> Fit {
        let mut fit = Fit::default();
        let mut last: Option<(BlockId, Vec<Svma>)> = None;
        for (&at, &count) in places {
            let Some(block) = self.block_at(at) else { continue };
            if last.as_ref().is_none_or(|(known, _)| *known != block) {
                last = Some((block, self.instructions(image, block)));
            }
            let starts = last.as_ref().map_or(&[][..], |(_, starts)| starts);
            match starts.binary_search(&at) {
                Ok(_) => {
                    fit.fitting = fit.fitting.saturating_add(count);
                    fit.places += 1;
                }
                Err(_) => fit.inside = fit.inside.saturating_add(count),
            }
        }
        fit
    }

    /// Where the instructions of a block start.
    fn instructions(&self, image: &Image, block: BlockId) -> Vec<Svma> {
        let block = self.block(block);
        let mut starts = Vec::new();
        let bytes = image.read(block.start, block.len as usize).unwrap_or_default();
        // What comes behind something that is no instruction, does not start one.
        let _ = restitch_x86::scan(bytes, block.start, |i| starts.push(i.at));
        starts
    }
}
