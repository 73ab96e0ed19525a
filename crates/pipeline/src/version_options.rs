//! How versions are made: the options that files and processes share.

use crate::analysis::Analyzed;
use crate::large_pages::LargePages;
use crate::make::{DUPLICATE, PREFETCH, Ways};
use crate::skipped_functions::{leave_skipped, unknown};
use restitch_emit::Executions;
use restitch_layout::{LayoutChoice, Reaching};
use restitch_profile::Profile;
use restitch_program::FuncId;

/// What is asked of a version, whatever it goes into.
#[derive(Debug, Clone, PartialEq)]
pub struct VersionOptions {
    /// How to lay out.
    pub layout: LayoutChoice,
    /// Calls through slots of the global offset table that cannot change any more become direct ones; other
    /// calls of stubs go through the stubs' slots.
    pub direct_calls: bool,
    /// Large pages for hot code.
    pub large_pages: LargePages,
    /// Hot code is placed within cache lines by how often it runs.
    pub align: bool,
    /// Conditional branches neither of whose ways stands behind them are inverted where the usual one needs
    /// no jump then.
    pub invert_branches: bool,
    /// Jump tables of placed jumps get copies that lead to copies; else such jumps go by the original tables,
    /// and round by redirects where these lead.
    pub copy_tables: bool,
    /// Indirect calls with one usual target compare with it and call it directly.
    pub promote_calls: bool,
    /// Functions stay where they are if the way round by their redirect costs more than a new order gains.
    pub keep_in_place: bool,
    /// Blocks behind hot jumps get a second copy in place of the jump.
    pub duplicate: bool,
    /// Lines that the models of the second-level cache miss are fetched ahead.
    pub prefetch: bool,
    /// Functions that stay where they are, and are not counted: names of symbols as the file has them, or
    /// addresses in the file (Svma, as `0x401000`).
    pub skip_functions: Vec<String>,
}

impl Default for VersionOptions {
    fn default() -> Self {
        Self {
            layout: LayoutChoice::default(),
            direct_calls: true,
            large_pages: LargePages::default(),
            align: true,
            invert_branches: true,
            copy_tables: true,
            promote_calls: false,
            keep_in_place: true,
            duplicate: DUPLICATE,
            prefetch: PREFETCH,
            skip_functions: Vec::new(),
        }
    }
}

impl VersionOptions {
    /// How to make the layout, where functions are reached as `reaching` says and pointers to the functions
    /// `retargeted` lead to the copy.
    pub fn ways<'a>(&self, reaching: Reaching, retargeted: &'a [FuncId]) -> Ways<'a> {
        Ways {
            choice: self.layout,
            keep_in_place: self.keep_in_place.then_some(reaching),
            retargeted,
            duplicate: self.duplicate,
            prefetch: self.prefetch,
        }
    }

    /// Leaves in a module what its versions shall not change. Before its layouts.
    pub fn prepare(&self, module: &mut Analyzed) {
        self.leave_skipped(module);
        if !self.copy_tables {
            module.program.keep_tables();
        }
    }

    /// Leaves the functions in a module that are to be skipped: in counting versions, too.
    pub fn leave_skipped(&self, module: &mut Analyzed) {
        leave_skipped(&self.skip_functions, module);
    }

    /// What the user is to know of options that have no effect in these modules.
    pub fn warning<'a>(&self, modules: impl Iterator<Item = &'a Analyzed> + Clone) -> Option<String> {
        unknown(&self.skip_functions, modules)
    }

    /// What emission may use of how often the code runs.
    pub fn executions<'a>(&self, profile: &'a Profile) -> Executions<'a> {
        Executions {
            blocks: if self.align { &profile.blocks } else { &[] },
            edges: if self.invert_branches { &profile.edges } else { &[] },
        }
    }
}
