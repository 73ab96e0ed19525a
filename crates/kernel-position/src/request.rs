//! What is wanted.

use crate::counts::Counts;
use crate::indirect::IndirectCall;
use restitch_kernel::FunctionId;

/// Which functions, and in which order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// The group's name: letters, digits, `_`.
    pub name: String,
    /// Functions whose calls are led to their copies.
    pub roots: Vec<FunctionId>,
    /// Functions that are copied for those of the group that call them. Those that cannot be, stay.
    pub callees: Vec<FunctionId>,
    /// Calls of the group through pointers and static calls. They are led to the copies of callees, where the
    /// function tracer has a place for that.
    pub indirect: Vec<IndirectCall>,
    /// The order of their blocks.
    pub order: Order,
    /// Whether roots need a place of the function tracer. Without one they are proved, but no calls can be
    /// led to them: for measures of what can be copied.
    pub needs_trace_sites: bool,
    /// Whether executions of blocks and edges are counted.
    pub counts: bool,
    /// Whether short callees, and those that are called from one place only, stand in place of hot calls.
    /// Without counts, and where executions are counted, none do.
    pub inlines: bool,
}

impl Request {
    /// Whether callees stand in place of hot calls: what counts has to know each function by itself.
    pub(crate) fn inlines(&self) -> bool {
        self.inlines && !self.counts && matches!(self.order, Order::Counted { .. })
    }

    /// A name for the group of a function: of characters that such names have, and short enough.
    pub fn name_for(function: &str) -> String {
        /// Modules' names have 55 bytes at most.
        const MOST: usize = 40;
        let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
        format!("restitch_{}", function.chars().map(plain).take(MOST).collect::<String>())
    }
}

/// The order of blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Order {
    /// As they are. What the compiler has parted off as rarely executed is far behind.
    Kept,
    /// The last one of each part first, but for entries: for tests.
    Reversed,
    /// By counts: hot blocks in front, in chains. Callees without a hot block stay.
    Counted {
        /// How often instructions were executed.
        counts: Counts,
        /// Which blocks are hot.
        hot: Hot,
    },
}

/// Above how many executions a block is hot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Hot {
    /// So many hundredths of the calls of the root that was called least ([`Order::HOT_PERCENT`]).
    PercentOfCalls(u64),
    /// So many.
    Above(u64),
}

impl Order {
    /// The share of the paper, section 2.2.
    pub const HOT_PERCENT: u64 = 5;
}
