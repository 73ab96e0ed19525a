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

/// The order of a version's blocks: the hot fragments first, then, at the far end, the cold ones.
///
/// Invariant: each block occurs at most once, and all blocks are of movable functions.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Layout {
    /// Executed code.
    pub hot: Vec<Fragment>,
    /// Copies of the code that hot functions hardly ever run.
    pub cold: Vec<Fragment>,
}

impl Layout {
    /// All blocks in layout order.
    pub fn blocks(&self) -> impl Iterator<Item = BlockId> {
        self.hot.iter().chain(&self.cold).flat_map(|f| f.blocks.iter().copied())
    }
}

/// An algorithm that orders blocks.
pub trait LayoutAlgorithm {
    /// The name that selects it on the command line.
    fn name(&self) -> &'static str;
    /// The layout of `program` for `profile`. Same input, same output.
    fn layout(&self, program: &Program, profile: &Profile) -> Layout;
}
