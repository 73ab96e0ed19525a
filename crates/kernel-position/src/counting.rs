//! What counters of a group say: the counts of all blocks and edges.

use restitch_address::{Svma, SvmaRange};
use restitch_kernel_group::CounterMemory;
use restitch_profile::{Counted, CounterPlan, derive};
use restitch_program::{BlockId, Program};

/// What the counters of a module count.
#[derive(Debug, Clone, PartialEq)]
pub struct Counting {
    /// Where the counters are.
    pub memory: CounterMemory,
    pub(crate) functions: Vec<CountingFunction>,
}

/// A function with counters.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CountingFunction {
    pub(crate) name: String,
    pub(crate) address: Svma,
    pub(crate) program: Program,
    pub(crate) plan: CounterPlan,
    /// The number of its first counter.
    pub(crate) first: u32,
}

/// What a counter counts, by starts of original blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CountedPlace {
    /// Executions of a block.
    Block(Svma),
    /// How often control goes from one to the other, by one of the ways between them.
    Way {
        /// From here.
        from: Svma,
        /// To there.
        to: Svma,
    },
}

/// The counts of a function.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FunctionCounts {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub address: Svma,
    /// Its blocks that are copied, by address.
    pub blocks: Vec<BlockCount>,
    /// The ways between them. Those that leave the function follow: what is missing to the count of a block.
    pub edges: Vec<WayCount>,
}

/// How often a block was executed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockCount {
    /// The original.
    pub range: SvmaRange,
    /// How often.
    pub count: u64,
}

/// How often control went from block to block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WayCount {
    /// The start of the block that it left.
    pub from: Svma,
    /// The start of the block that it went to.
    pub to: Svma,
    /// How often.
    pub count: u64,
    /// Whether that is so, or a bound.
    pub is_exact: bool,
}

impl Counting {
    /// How many counters there are.
    pub fn counters(&self) -> usize {
        self.functions.iter().map(|function| function.plan.counted.len()).sum()
    }

    /// How many blocks are counted.
    pub fn blocks(&self) -> usize {
        self.functions.iter().map(|function| function.plan.blocks).sum()
    }

    /// Edges whose counts do not follow from the counters.
    pub fn undetermined(&self) -> usize {
        self.functions.iter().map(|function| function.plan.undetermined.len()).sum()
    }

    /// What each counter counts, by number.
    pub fn counted(&self) -> Vec<CountedPlace> {
        let of_function = |function: &CountingFunction| {
            let places = function.plan.counted.iter().map(|counted| function.place(*counted));
            places.collect::<Vec<_>>()
        };
        self.functions.iter().flat_map(of_function).collect()
    }

    /// The counts that these values of the counters stand for: the sums over all processors, by number; those
    /// that are missing are not known. Values that were read while control was in the functions may be off
    /// by one for each task that was.
    pub fn counts(&self, values: &[u64]) -> Vec<FunctionCounts> {
        self.functions.iter().map(|function| function.counts(values)).collect()
    }
}

impl CountingFunction {
    fn place(&self, counted: Counted) -> CountedPlace {
        let start = |block: BlockId| self.program.block(block).start;
        match counted {
            Counted::Block(block) => CountedPlace::Block(start(block)),
            Counted::Edge(edge) => {
                let edge = self.program.edges[edge.index()];
                CountedPlace::Way { from: start(edge.from), to: start(edge.to) }
            }
        }
    }

    fn counts(&self, values: &[u64]) -> FunctionCounts {
        let Self { program, plan, .. } = self;
        let own = values.get(self.first as usize..).unwrap_or_default();
        let own = &own[..own.len().min(plan.counted.len())];
        let derived = derive(program, &plan.known(program, own));
        let is_copied = |block: BlockId| plan.scope.get(block.index()).copied().unwrap_or(false);
        let blocks = program
            .block_ids()
            .filter(|id| is_copied(*id))
            .map(|id| BlockCount { range: program.block(id).range(), count: derived.profile.block(id) });
        let edges = program.edges.iter().zip(&derived.profile.edges).zip(&derived.basis);
        let edges =
            edges.filter(|((edge, _), _)| is_copied(edge.from)).map(|((edge, count), basis)| WayCount {
                from: program.block(edge.from).start,
                to: program.block(edge.to).start,
                count: *count,
                is_exact: basis.is_exact(),
            });
        let (blocks, edges) = (blocks.collect(), edges.collect());
        FunctionCounts { name: self.name.clone(), address: self.address, blocks, edges }
    }
}

/// The counts of blocks as lines of an address in hexadecimal, a length in bytes and a count: what
/// [`Counts::parse`](crate::Counts::parse) reads.
pub fn counts_text(functions: &[FunctionCounts]) -> String {
    let blocks = functions.iter().flat_map(|function| &function.blocks).filter(|block| block.count > 0);
    blocks
        .map(|block| format!("{:x} {} {}\n", block.range.start.get(), block.range.len(), block.count))
        .collect()
}
