//! Which blocks of a group control comes to: from the entries that calls are led to, by branches, faults that
//! are expected, and direct calls. What is never reached is left out: it would be proved of nothing.

use crate::convert::{Converted, leads_to};
use restitch_address::Svma;
use std::collections::{BTreeSet, HashMap};

/// Leaves out blocks that are not reached from `entries`.
pub(crate) fn keep_reached(functions: &mut [Converted], entries: &BTreeSet<Svma>) {
    let mut places = HashMap::new();
    for (index, function) in functions.iter().enumerate() {
        let blocks = function.blocks.iter().enumerate();
        places.extend(blocks.map(|(number, block)| (block.address(), Place { index, number })));
    }
    let mut is_reached: Vec<Vec<bool>> =
        functions.iter().map(|function| vec![false; function.blocks.len()]).collect();
    let mut open: Vec<Svma> = entries.iter().copied().collect();
    while let Some(at) = open.pop() {
        let Some(Place { index, number }) = places.get(&at).copied() else { continue };
        if !std::mem::replace(&mut is_reached[index][number], true) {
            open.extend(leads_to(&functions[index].blocks[number].made.block));
        }
    }
    for (function, is_reached) in functions.iter_mut().zip(is_reached) {
        let mut reached = is_reached.into_iter();
        function.blocks.retain(|_| reached.next().unwrap_or(false));
    }
}

/// A block of a function, both by number.
#[derive(Debug, Clone, Copy)]
struct Place {
    index: usize,
    number: usize,
}
