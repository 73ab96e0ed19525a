//! Calls and jumps through the global offset table that become direct ones.
//!
//! A slot of the table that was filled before its page became read-only (RELRO) holds the same address for as
//! long as the module is loaded: the original code would go there, too, whatever happens to the target. So a
//! call of the slot's PLT stub can call the target; and `call *slot(%rip)` and `jmp *slot(%rip)` become
//! `addr32 call` and `addr32 jmp`, which are as long (x86-64 psABI, section B.2, where linkers do the same).
//! The state at the target is the same: a stub that is bound changes no register. Where the target has a
//! copy, that is called.
//!
//! Where the content of a slot is not known, or out of reach, a call or jump to its stub becomes
//! `call *slot(%rip)` or `jmp *slot(%rip)`: what the stub would do. Nothing is assumed for it, so that it is
//! right in files, too, and while a slot is bound lazily. It is a byte longer and saves a taken branch, and
//! the stub's cache line (llvm-bolt: `-plt`).

use crate::model::BoundSlot;
use crate::reach::Reach;
use crate::request::Request;
use restitch_address::Svma;
use restitch_image::Image;
use restitch_program::Program;
use restitch_x86::patch::Patch;
use restitch_x86::slot::{BY_SLOT, SlotBranch};

/// Bytes of a call of a stub that can go through its slot: without prefixes.
pub(crate) const STUB_CALL: u32 = Patch::LEN as u32;

/// How a copied instruction's displacement is made anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    /// It leads to the same address.
    Operand,
    /// A direct call: goes to the target's copy, if there is one.
    Call,
    /// A direct call of a stub that goes through this slot of the stub's (in a stretch that is copied as it
    /// is: a call).
    BySlot(Svma),
    /// A call or jump through a slot that becomes a direct one, to the target's copy if there is one.
    Direct(SlotBranch),
}

/// What `insn` is, if it has an equally long direct form.
pub(crate) fn with_direct_form(insn: &[u8]) -> Option<SlotBranch> {
    SlotBranch::beginning_of(insn).filter(|_| insn.len() == BY_SLOT as usize).map(|(branch, _)| branch)
}

/// The slots that are bound for good and whose targets are in reach of the version.
#[derive(Clone, Copy)]
pub(crate) struct Direct<'a> {
    image: &'a Image,
    program: &'a Program,
    bound_slots: &'a [BoundSlot],
    by_slots: bool,
    reach: Reach,
}

impl<'a> Direct<'a> {
    pub fn new(request: &Request<'a>, reach: Reach) -> Self {
        let Request { image, program, bound_slots, by_slots, .. } = *request;
        Self { image, program, bound_slots, by_slots, reach }
    }

    /// What `slot` is bound to. (A target inside of a block of this module might be covered by a redirect:
    /// nobody is sent there.)
    pub fn slot(&self, slot: Svma) -> Option<BoundSlot> {
        let i = self.bound_slots.binary_search_by_key(&slot, |b| b.slot).ok()?;
        let target = self.bound_slots[i].target;
        let whole =
            self.program.block_starting_at(target).is_some() || self.program.block_at(target).is_none();
        (whole && self.reach.covers(target)).then_some(self.bound_slots[i])
    }

    /// What the slot of the stub at `at` is bound to.
    pub fn stub(&self, at: Svma) -> Option<BoundSlot> {
        if self.bound_slots.is_empty() {
            return None;
        }
        let stub = self.image.plt_slot_at(at).filter(|s| s.stub.start == at)?;
        self.slot(stub.slot)
    }

    /// The slot that a call or jump to the stub at `at` is to go through. (One to which a slot is bound stays
    /// as it is: a jump to it may be what has become of a jump to another stub.)
    pub fn slot_of_stub(&self, at: Svma) -> Option<Svma> {
        if !self.by_slots {
            return None;
        }
        let stub = self.image.plt_slot_at(at).filter(|s| s.stub.start == at)?;
        let is_named = self.bound_slots.iter().any(|b| b.target == at);
        (!is_named && self.reach.covers(stub.slot)).then_some(stub.slot)
    }
}
