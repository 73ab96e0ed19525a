//! Functions by how often they are entered: the example of a layout that `docs/extending.md` prints.
//!
//! **Source**: none. **Problem**: code that runs often lies scattered. **Idea**: what is entered most often
//! comes first. **Limits**: it does not look at who calls whom, and leaves blocks of a function as they were.

use restitch_profile::Profile;
use restitch_program::{BlockId, FuncId, Program};

use crate::model::{Fragment, Layout, LayoutAlgorithm};

/// Functions by how often their first block ran, the most often first.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ByEntries;

impl LayoutAlgorithm for ByEntries {
    fn name(&self) -> &'static str {
        "by-entries"
    }

    fn meaning(&self) -> &'static str {
        "Functions by how often they are entered, their blocks in the original order"
    }

    fn layout(&self, program: &Program, profile: &Profile) -> Layout {
        // Also a function that was entered in its middle: each movable block of what ran has to be placed.
        let ran = |f: &FuncId| program.blocks_of(*f).any(|b| program.is_movable(b) && profile.block(b) > 0);
        let mut functions: Vec<FuncId> = program.function_ids().filter(ran).collect();
        // Stable: functions that ran equally often keep their order, so the same input gives the same layout.
        functions.sort_by_key(|f| std::cmp::Reverse(profile.entries(program, *f)));
        let fragment = |f: FuncId| {
            let blocks: Vec<BlockId> = program.blocks_of(f).filter(|b| program.is_movable(*b)).collect();
            (!blocks.is_empty()).then_some(Fragment { blocks, align: 16 })
        };
        Layout { hot: functions.into_iter().filter_map(fragment).collect(), ..Layout::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_function_that_is_entered_more_often_comes_first() {
        let text = "\
function 0x1000..0x1010 rare movable
  0x1000 +16 entry return/1
function 0x1010..0x1020 often movable
  0x1010 +16 entry return/1
";
        let program = Program::from_text(text).unwrap();
        let profile = Profile::from_text("block 0x1000 = 1\nblock 0x1010 = 9\n", &program).unwrap();
        let layout = ByEntries.layout(&program, &profile);
        layout.validate(&program).unwrap();
        let starts: Vec<u64> = layout.blocks().map(|b| program.block(b).start.get()).collect();
        assert_eq!(starts, [0x1010, 0x1000]);
    }
}
