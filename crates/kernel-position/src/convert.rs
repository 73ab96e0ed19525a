//! Functions of the analysis, as blocks of groups.

use crate::block::{BlockMaker, Made};
use crate::error::{Obstacle, Why};
use restitch_address::{Svma, SvmaRange};
use restitch_kernel::{Code, End, FunctionId};
use restitch_kernel_group as group;
use restitch_x86::module_code::FILL;

/// A function whose blocks are those of a group.
#[derive(Debug, Clone)]
pub(crate) struct Converted {
    pub(crate) id: FunctionId,
    pub(crate) code: Code,
    /// By address.
    pub(crate) blocks: Vec<ConvertedBlock>,
    /// The ways between them by counts, if there are any.
    pub(crate) ways: Vec<BlockWay>,
    /// Whether calls are led to it.
    pub(crate) is_led: bool,
}

/// How often control goes from one block to another, both by address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockWay {
    pub(crate) from: Svma,
    pub(crate) to: Svma,
    pub(crate) count: u64,
    /// Whether it is the only one from there.
    pub(crate) is_only: bool,
}

/// A block of it.
#[derive(Debug, Clone)]
pub(crate) struct ConvertedBlock {
    pub(crate) made: Made,
    /// Whether the compiler has parted it off as rarely executed.
    pub(crate) is_parted: bool,
    /// The original.
    pub(crate) original: SvmaRange,
    /// How often it is executed, if there are counts.
    pub(crate) count: u64,
}

impl BlockMaker<'_> {
    /// The blocks of a function.
    pub(crate) fn function(&self, id: FunctionId) -> Result<Converted, Why> {
        let code = self.kernel.code(id);
        let reasons = self.kernel.reasons(id, &code);
        if !reasons.is_empty() {
            return Err(Why::Reasons(reasons));
        }
        let function = self.kernel.functions.get(id);
        let entry = function.parts[0];
        if code.block_at(entry.start).is_none() {
            return Err(Why::Obstacle { obstacle: Obstacle::Unreadable, at: entry.start });
        }
        let block = |block: &restitch_kernel::Block| {
            let is_parted = !entry.contains(block.range.start);
            let made = self.block(&code, block, None)?;
            Ok(ConvertedBlock { made, is_parted, original: block.range, count: 0 })
        };
        let stays = |block: &restitch_kernel::Block| is_idle_loop(block) || self.is_breakpoint(block);
        let is_copied = |block: &&restitch_kernel::Block| block.range.start == entry.start || !stays(block);
        let blocks = code.blocks.iter().filter(is_copied);
        let blocks = blocks.map(block).collect::<Result<_, Why>>()?;
        Ok(Converted { id, code, blocks, ways: Vec::new(), is_led: false })
    }

    /// Whether the block ends in a breakpoint: it may be a probe's, who knows it by its place.
    fn is_breakpoint(&self, block: &restitch_kernel::Block) -> bool {
        let last = SvmaRange::between(block.range.end.offset(-1), block.range.end);
        block.end == End::Trap && self.kernel.known.memory.bytes(last) == Some(&[FILL])
    }
}

/// Whether all that the block does is to jump to itself: there is nothing to compare in a copy, and control
/// may as well stay in the original for ever.
fn is_idle_loop(block: &restitch_kernel::Block) -> bool {
    block.branch == block.range.start && block.end == End::Jump(block.range.start)
}

impl ConvertedBlock {
    /// Where the original is, or what stands for that.
    pub(crate) fn address(&self) -> Svma {
        self.made.block.address
    }

    /// Bytes of its code, without its end.
    pub(crate) fn len(&self) -> u64 {
        self.made.block.code.len() as u64
    }
}

/// Where control may go from a block, and what it calls.
pub(crate) fn leads_to(block: &group::Block) -> impl Iterator<Item = Svma> {
    use group::{End, Fixup, Target};
    let ends = match block.end {
        End::Next(to) | End::Jump(to) => [Some(to), None],
        End::Conditional { taken, next, .. } | End::StaticKey { taken, next, .. } => {
            [Some(taken), Some(next)]
        }
        End::Return | End::IndirectJump(_) | End::StaticJump { .. } | End::Stop => [None, None],
    };
    let called = block.fixups.iter().filter_map(|fixup| match fixup {
        Fixup::Call { target, .. } | Fixup::Relative { target: Target::Code(target), .. } => Some(*target),
        _ => None,
    });
    let faults = block.exceptions.iter().map(|exception| exception.fixup);
    ends.into_iter().flatten().chain(called).chain(faults)
}
