//! Ways from the code that stays straight into the version, for output files.
//!
//! **Problem.** A direct call in a function that did not move goes to the callee's old entry and from there,
//! through the redirect, to its copy: one more jump, in a line and a page of the instruction cache that hold
//! nothing else of use. And the labels of computed gotos stand as addresses in data: python's interpreter
//! takes such a jump for each of its instructions.
//!
//! **Idea.** Being at the copy of a block equals being at the block. So the displacement of a direct call or
//! jump may lead to the copy; and so may the address of a *label*, which a program can do nothing with but
//! jump there.
//!
//! **Addresses of functions** are none of this file's: programs compare them, so all that makes one changes
//! or nothing (`pointers.rs`, `retarget_pointers.rs`). What is taken for a label: it begins a block inside
//! of a movable function, is neither its entry nor a landing pad, no symbol and no call is there, and no
//! instruction of the program makes the address of any place inside of that function, nor could any four
//! bytes of code that is not understood: all addresses of its labels come from data, through relocations of
//! the loader, and all of them are changed together or (where a block has no copy) remain what they were.

use crate::ends::copied_len;
use crate::model::{AddressMap, Redirect, Retarget, RetargetKind};
use crate::possible_operands::possible_operands;
use crate::request::Request;
use crate::select::{NONE, Selection};
use restitch_address::{Svma, SvmaRange};
use restitch_image::RelocationKind;
use restitch_program::{BlockAttrs, BlockId, CallTarget, FuncId, Program, Terminator};
use restitch_x86::patch::{Branch, DISPLACEMENT, DISPLACEMENT_AT, Patch};
use restitch_x86::relocate_field;
use std::collections::BTreeSet;

/// Finds them, sorted by address. None for a version that is made for one process, or counts.
pub(crate) fn choose(
    request: &Request<'_>,
    selection: &Selection<'_>,
    map: &AddressMap,
    redirects: &[Redirect],
) -> Vec<Retarget> {
    if request.bias.is_some() || request.counters.is_some() {
        return Vec::new();
    }
    let finder = Finder { request, selection, map };
    let mut out = finder.branches();
    // Nothing is written twice.
    out.retain(|s| {
        let next = redirects.partition_point(|r| r.at + Patch::LEN as u64 <= s.at);
        redirects.get(next).is_none_or(|r| r.at >= s.at + DISPLACEMENT as u64)
    });
    out.extend(finder.labels());
    out.sort_unstable();
    out.dedup_by_key(|s| s.at);
    out
}

struct Finder<'r, 'a> {
    request: &'r Request<'a>,
    selection: &'r Selection<'a>,
    map: &'r AddressMap,
}

impl Finder<'_, '_> {
    /// Whether the block is code and has no copy.
    fn stays(&self, block: BlockId) -> bool {
        let unreached = self.request.program.block(block).attrs.contains(BlockAttrs::UNREACHED);
        self.selection.slot_of[block.index()] == NONE && !unreached
    }

    /// The copy of the block that starts at `original`.
    fn copy_of(&self, original: Svma) -> Option<Svma> {
        self.selection.slot_at(original)?;
        self.map.to_version(original)
    }

    /// Direct calls and jumps of blocks that stay, to blocks that have a copy.
    fn branches(&self) -> Vec<Retarget> {
        let program = self.request.program;
        let calls = program.calls.iter().filter(|c| usize::from(c.len) == Patch::LEN && self.stays(c.block));
        let calls = calls.filter_map(|c| match c.target {
            CallTarget::Direct(to) => self.branch(c.at, Branch::Call, to),
            CallTarget::Indirect => None,
        });
        let blocks = program
            .block_ids()
            .filter(|&b| self.stays(b) && usize::from(program.block(b).terminator_len) == Patch::LEN);
        let jumps = blocks.filter_map(|b| match program.block(b).terminator {
            Terminator::Jump(to) => self.branch(program.block(b).terminator_at(), Branch::Jump, to),
            _ => None,
        });
        calls.chain(jumps).collect()
    }

    fn branch(&self, at: Svma, branch: Branch, original: Svma) -> Option<Retarget> {
        let to = self.copy_of(original)?;
        let plain = Branch::beginning_with(*self.request.image.read(at, 1)?.first()?) == Some(branch);
        let reaches = Patch::branch(branch, to.offset_from(at)).is_some();
        let kind = RetargetKind::Displacement;
        (plain && reaches).then_some(Retarget { at: at + DISPLACEMENT_AT, original, to, kind })
    }

    /// Relocated addresses of labels.
    fn labels(&self) -> Vec<Retarget> {
        let mut found = Vec::new();
        let mut functions = BTreeSet::new();
        for relocation in self.request.image.relocations() {
            let RelocationKind::Relative { target } = relocation.kind else { continue };
            let Some(block) = self.label(target) else { continue };
            functions.insert(self.request.program.block(block).function);
            let Some(to) = self.copy_of(target) else { continue };
            let kind = RetargetKind::Pointer;
            found.push((block, Retarget { at: relocation.at, original: target, to, kind }));
        }
        if found.is_empty() {
            return Vec::new();
        }
        self.keep_private(&mut functions);
        let private = |block: BlockId| functions.contains(&self.request.program.block(block).function);
        found.into_iter().filter(|(block, _)| private(*block)).map(|(_, retarget)| retarget).collect()
    }

    /// The block at `at`, if it can be a label only.
    fn label(&self, at: Svma) -> Option<BlockId> {
        let block = self.selection.lookup.starting_at(at)?;
        let attrs = self.request.program.block(block).attrs;
        let known = attrs.intersects(BlockAttrs::ENTRY | BlockAttrs::LANDING_PAD | BlockAttrs::PINNED);
        let possible = attrs.contains(BlockAttrs::INDIRECT) && !known;
        (possible && self.request.image.symbol_at(at).is_none()).then_some(block)
    }

    /// Leaves the functions of which no instruction makes an address inside, and into which no call goes but
    /// to the entry.
    fn keep_private(&self, functions: &mut BTreeSet<FuncId>) {
        let program = self.request.program;
        let mut named = |target: Svma| {
            if let Some(block) = self.block_around(target)
                && program.function(program.block(block).function).range.start != target
            {
                functions.remove(&program.block(block).function);
            }
        };
        for call in &program.calls {
            if let CallTarget::Direct(target) = call.target {
                named(target);
            }
        }
        program.block_ids().for_each(|block| self.operands(block, &mut named));
        self.possible_operands(&mut named);
    }

    /// The block that holds `at`.
    fn block_around(&self, at: Svma) -> Option<BlockId> {
        let blocks = &self.request.program.blocks;
        let i = blocks.partition_point(|b| b.start <= at).checked_sub(1)?;
        SvmaRange::new(blocks[i].start, blocks[i].len.into()).contains(at).then_some(BlockId(i as u32))
    }

    /// Calls `named` with each address that four bytes outside of code which is known to be executed would
    /// make, were they the displacement of an operand.
    fn possible_operands(&self, named: &mut impl FnMut(Svma)) {
        possible_operands(self.request.image, |field, targets| {
            let around = self.block_around(field).map(|block| self.request.program.block(block).attrs);
            if around.is_none_or(|attrs| attrs.contains(BlockAttrs::UNREACHED)) {
                targets.into_iter().for_each(&mut *named);
            }
        });
    }

    /// Calls `named` with each address that an instruction of the block has as its operand.
    fn operands(&self, block: BlockId, named: &mut impl FnMut(Svma)) {
        let program: &Program = self.request.program;
        let block = program.block(block);
        let Some(bytes) = self.request.image.read(block.start, block.len as usize) else { return };
        let mut at = 0;
        while at < copied_len(block) {
            let Some((insn, rip)) = relocate_field(&bytes[at as usize..], block.start + u64::from(at)) else {
                return;
            };
            if let Some(rip) = rip {
                named(rip.target);
            }
            at += u32::from(insn.len).max(1);
        }
    }
}
