//! What `optimize` is asked for.

use crate::LargePages;
use crate::make::Ways;
use restitch_layout::{LayoutChoice, Reaching};
use restitch_program::FuncId;
use std::path::PathBuf;

/// What to optimize.
#[derive(Debug, Clone)]
pub struct OptimizeOptions {
    /// The program or shared object.
    pub program: PathBuf,
    /// The profile file.
    pub profile: PathBuf,
    /// The new file.
    pub output: PathBuf,
    /// How to lay out.
    pub layout: LayoutChoice,
    /// Calls and jumps to stubs of the procedure linkage table go through the stubs' slots.
    pub direct_calls: bool,
    /// Large pages for hot code.
    pub huge_pages: LargePages,
    /// Whether hot code is placed within cache lines by how often it runs.
    pub align: bool,
    /// Conditional branches of which neither way stands behind them are turned so that the usual one needs no jump.
    pub turn: bool,
    /// Jump tables of placed jumps get copies that lead to copies; else such jumps go by the original tables, and round by redirects where these lead.
    pub copy_tables: bool,
    /// Indirect calls with one usual target compare with it and call it directly.
    pub promote_calls: bool,
    /// Functions stay where they are if the way round by their redirect costs more than a new order gains.
    pub stay: bool,
    /// In position-independent files, pointers to functions lead straight to the copy.
    pub pointers: bool,
    /// Blocks behind hot jumps get a second copy in place of the jump.
    pub duplicate: bool,
    /// Lines that the models of the second-level cache miss are fetched ahead.
    pub prefetch: bool,
}

impl OptimizeOptions {
    /// How to make the layout, where pointers to the functions `led` lead to the copy.
    pub(crate) fn ways<'a>(&self, led: &'a [FuncId]) -> Ways<'a> {
        let stay = self.stay.then_some(Reaching::Straight);
        Ways { choice: self.layout, stay, led, duplicate: self.duplicate, prefetch: self.prefetch }
    }
}
