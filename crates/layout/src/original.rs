//! The order in which the blocks already stand.

use restitch_profile::Profile;
use restitch_program::{BlockId, FuncId, Program};

use crate::model::{Fragment, Layout, LayoutAlgorithm};

/// Address order, hot and cold together: the baseline, and the order of counting versions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OriginalOrder;

impl OriginalOrder {
    /// All movable blocks of these functions, one fragment a function, in address order.
    pub fn of_functions(program: &Program, functions: &[FuncId]) -> Layout {
        let mut functions = functions.to_vec();
        functions.sort_unstable();
        functions.dedup();
        let fragment = |f: FuncId| {
            let blocks: Vec<BlockId> = program.blocks_of(f).filter(|&b| program.is_movable(b)).collect();
            (!blocks.is_empty()).then_some(Fragment { blocks, align: 16 })
        };
        Layout { hot: functions.into_iter().filter_map(fragment).collect(), ..Layout::default() }
    }
}

impl LayoutAlgorithm for OriginalOrder {
    fn name(&self) -> &'static str {
        "original"
    }

    fn meaning(&self) -> &'static str {
        "Address order, what ran apart from what did not"
    }

    /// The functions of which a movable block ran.
    fn layout(&self, program: &Program, profile: &Profile) -> Layout {
        let ran = |f: &FuncId| program.blocks_of(*f).any(|b| program.is_movable(b) && profile.block(b) > 0);
        let functions: Vec<FuncId> = program.function_ids().filter(ran).collect();
        Self::of_functions(program, &functions)
    }
}
