//! The order of blocks: chunks of each function, hot ones in front of all cold ones.

use crate::convert::{Converted, ConvertedBlock};
use crate::hot::{Heating, Ordered};
use restitch_address::Svma;
use restitch_kernel_group::{Chunk, Heat};

/// Bytes that the first block of a function's hot chunk is aligned to. Compilers take 16; where thousands of
/// lines are executed in turn, what fills the gaps costs more than that gives. Entries that calls are led to
/// have at least 16 anyway.
const ALIGN: u32 = 4;

/// By what blocks are put in order.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ordering<'c> {
    /// By address.
    Kept,
    /// The other way round.
    Reversed,
    /// By counts.
    Counted(Heating<'c>),
}

/// Chunks in their order, and into how many chains the hot blocks of each function fell.
#[derive(Debug)]
pub(crate) struct Chunks {
    pub(crate) chunks: Vec<Chunk>,
    pub(crate) chains: Vec<usize>,
}

impl Ordering<'_> {
    /// The chunks of all functions, which begin at `entries`.
    pub(crate) fn chunks(&self, functions: &[Converted], entries: &[Svma]) -> Chunks {
        let ordered = functions.iter().zip(entries).map(|(function, entry)| self.ordered(function, *entry));
        let ordered: Vec<Ordered> = ordered.collect();
        let order = match self {
            Self::Counted(heating) => heating.functions(functions, &ordered),
            _ => (0..functions.len()).collect(),
        };
        let chunks = order.into_iter().flat_map(|index| {
            let (function, ordered) = (&functions[index], &ordered[index]);
            let made = [(Heat::Hot, ALIGN, &ordered.hot), (Heat::Cold, 1, &ordered.cold)];
            made.into_iter().filter(|(_, _, blocks)| !blocks.is_empty()).map(move |(heat, align, blocks)| {
                let blocks = blocks.iter().map(|number| function.blocks[*number].made.block.clone());
                Chunk { function: index, heat, align, blocks: blocks.collect() }
            })
        });
        Chunks { chunks: chunks.collect(), chains: ordered.iter().map(|ordered| ordered.chains).collect() }
    }

    fn ordered(&self, function: &Converted, entry: Svma) -> Ordered {
        if let Self::Counted(heating) = self {
            return heating.order(function, entry);
        }
        let is_hot = |number: &usize| !function.blocks[*number].is_parted;
        let (mut hot, mut cold): (Vec<usize>, Vec<usize>) = (0..function.blocks.len()).partition(is_hot);
        if matches!(self, Self::Reversed) {
            hot.reverse();
            cold.reverse();
        }
        entry_first(&mut hot, &function.blocks, entry);
        Ordered { chains: usize::from(!hot.is_empty()), hot, cold }
    }
}

fn entry_first(hot: &mut [usize], blocks: &[ConvertedBlock], entry: Svma) {
    if let Some(at) = hot.iter().position(|number| blocks[*number].address() == entry) {
        hot[..=at].rotate_right(1);
    }
}
