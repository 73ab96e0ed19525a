//! Large pages for hot code: whether, and how they are asked for.

use restitch_address::PAGE;
use restitch_emit::LARGE_PAGE;
use restitch_layout::Layout;
use restitch_program::Program;

/// Hot code of more bytes than this gets large pages by itself: as many small ones as the smallest
/// first-level instruction TLB of today's processors holds (64 entries of 4 KiB; AMD, since Zen). Code that
/// fits misses seldom, and would only waste memory.
const WORTH_IT: u64 = 64 * PAGE;

/// Whether hot code gets large pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum LargePages {
    /// Where it is larger than a TLB's reach.
    #[default]
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

impl LargePages {
    /// Whether a version of `layout` gets them.
    pub fn wanted(self, program: &Program, layout: &Layout) -> bool {
        let blocks = layout.hot.iter().flat_map(|f| &f.blocks);
        let hot: u64 = blocks.map(|b| u64::from(program.block(*b).len)).sum();
        match self {
            Self::Auto => hot > WORTH_IT,
            Self::On => hot > 0,
            Self::Off => false,
        }
    }
}

/// Alignment in bytes of a version's place.
pub fn alignment(large: bool) -> u64 {
    if large { LARGE_PAGE } else { PAGE }
}
