//! A counter in a block: where, and what it adds to the block.

use restitch_address::Svma;
use restitch_kernel_group::{Fixup, UnwindRow};
use restitch_x86::module_code::{COUNTING, COUNTING_WITH_FLAGS_KEPT};

/// A place in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Spot {
    pub(crate) at: Svma,
    /// Whether a counter has to keep the flags there.
    pub(crate) keeps_flags: bool,
}

/// A counter to be put in a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Placed {
    pub(crate) spot: Spot,
    pub(crate) number: u32,
}

impl Placed {
    /// Bytes of code.
    pub(crate) fn len(self) -> u32 {
        if self.spot.keeps_flags { COUNTING_WITH_FLAGS_KEPT } else { COUNTING }
    }

    /// Its code at an offset in a block.
    pub(crate) fn fixup(self, at: u32) -> Fixup {
        Fixup::Count { at, number: self.number, keeps_flags: self.spot.keeps_flags }
    }

    /// The rows of the unwinder of its code, where `row` is in force.
    pub(crate) fn rows(self, at: u32, row: [u8; UnwindRow::LEN]) -> Vec<UnwindRow> {
        let mut rows = vec![UnwindRow { offset: at, row }];
        if self.spot.keeps_flags {
            rows.push(UnwindRow { offset: at + 1, row: UnwindRow::lowered(row) });
            rows.push(UnwindRow { offset: at + self.len(), row });
        }
        rows
    }
}
