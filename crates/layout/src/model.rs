//! What a layout is.

use restitch_profile::Profile;
use restitch_program::{BlockId, Program};

/// Blocks that stand one behind the other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fragment {
    /// The blocks, in order. Never empty.
    pub blocks: Vec<BlockId>,
    /// Alignment of the first block in bytes, a power of two; 1 for none.
    pub align: u32,
}

/// Second copies of blocks, one behind the other, where control would have to jump to the first ones: tail
/// duplication. Nobody branches to a duplicate; control falls into it from the copy in front of it.
/// Everything else goes to the block's place in a [`Fragment`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tail {
    /// They stand directly behind this block's place in a fragment. It falls or jumps (not by `loop` or
    /// `jrcxz`) to the first one.
    pub behind: BlockId,
    /// The blocks, in order: each can fall or jump to the next. Never empty; each one also stands in a
    /// fragment.
    pub blocks: Vec<BlockId>,
    /// The conditional branch at the end of the last one branches where it fell through, and jumps where it
    /// branched.
    pub turned: bool,
}

/// A `prefetcht1` of a line of the version, in front of a block: it changes no state, and brings a line into
/// the second-level cache that will be wanted some time after the block has run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Prefetch {
    /// It stands in front of this block's place in a fragment. The block has an instruction besides the
    /// branch at its end.
    pub at: BlockId,
    /// The line is one of this block's place in a fragment.
    pub target: BlockId,
    /// Bytes from the place's start to the byte whose line it is; the last byte, if there are not so many.
    pub offset: u32,
}

/// The order of a version's blocks: the hot fragments first, then, at the far end, the cold ones.
///
/// Invariant: each block occurs at most once in the fragments, and all blocks are of movable functions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Layout {
    /// Executed code.
    pub hot: Vec<Fragment>,
    /// Copies of the code that hot functions hardly ever run.
    pub cold: Vec<Fragment>,
    /// Duplicates, sorted by the block that they stand behind; at most one tail for each.
    pub tails: Vec<Tail>,
    /// Lines that are fetched ahead, sorted by the block that the instruction stands in front of; at most one
    /// for each.
    pub prefetches: Vec<Prefetch>,
}

/// One copy of a block in a layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacedCopy {
    /// The block.
    pub block: BlockId,
    /// It is a duplicate, in a [`Tail`].
    pub duplicate: bool,
    /// The conditional branch at its end is turned round ([`Tail::turned`]).
    pub turned: bool,
}

impl Layout {
    /// The duplicates that stand behind `block`.
    pub fn tail_behind(&self, block: BlockId) -> Option<&Tail> {
        self.tails.binary_search_by_key(&block, |t| t.behind).ok().map(|i| &self.tails[i])
    }

    /// What is fetched ahead in front of `block`.
    pub fn prefetch_at(&self, block: BlockId) -> Option<&Prefetch> {
        self.prefetches.binary_search_by_key(&block, |p| p.at).ok().map(|i| &self.prefetches[i])
    }

    /// A fragment's blocks with the duplicates behind them, in order.
    pub fn copies<'a>(&'a self, fragment: &'a Fragment) -> impl Iterator<Item = PlacedCopy> + 'a {
        fragment.blocks.iter().flat_map(|&block| {
            let own = PlacedCopy { block, duplicate: false, turned: false };
            std::iter::once(own).chain(self.tail_behind(block).into_iter().flat_map(Tail::copies))
        })
    }

    /// How many duplicates there are.
    pub fn duplicates(&self) -> usize {
        self.tails.iter().map(|t| t.blocks.len()).sum()
    }

    /// All blocks in layout order, without duplicates.
    pub fn blocks(&self) -> impl Iterator<Item = BlockId> {
        self.hot.iter().chain(&self.cold).flat_map(|f| f.blocks.iter().copied())
    }
}

impl Tail {
    /// The duplicates, in order.
    pub fn copies(&self) -> impl Iterator<Item = PlacedCopy> + '_ {
        let last = self.blocks.len().saturating_sub(1);
        self.blocks.iter().enumerate().map(move |(i, &block)| PlacedCopy {
            block,
            duplicate: true,
            turned: self.turned && i == last,
        })
    }
}

/// An algorithm that orders blocks.
pub trait LayoutAlgorithm {
    /// The name that selects it on the command line.
    fn name(&self) -> &'static str;
    /// What it does, in a line of help.
    fn meaning(&self) -> &'static str;
    /// The layout of `program` for `profile`. Same input, same output.
    fn layout(&self, program: &Program, profile: &Profile) -> Layout;
}
