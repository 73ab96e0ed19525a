//! Direct calls and jumps in place of those through slots of the global offset table, and those through slots
//! in place of those of stubs.
//!
//! The version says which slots it takes for bound, and to what ([`restitch_emit::Version::assumes`]); that
//! this is true of a process is for the process applier to see. Here: such a slot is one that the loader
//! fills and then makes read-only, so that it *can* be true for good; and what was made direct goes to what
//! the slot holds, or to its copy. Stubs are decoded here, not taken from the image's list.

use crate::finding::{Findings, Problem};
use crate::map::Boundary;
use crate::row::RowAt;
use crate::subject::Subject;
use crate::walk::{Current, Walk};
use iced_x86::{Code, Decoder, DecoderOptions, Instruction, Mnemonic};
use restitch_address::{PAGE, Svma, SvmaRange};
use restitch_image::RelocationKind;

/// `addr32`: without effect on near branches (Intel SDM vol. 2, 2.1.1), it makes up for the shorter opcode.
const ADDR32: u8 = 0x67;

/// Checks what the version assumes.
pub(crate) fn assumptions(s: &Subject<'_>, findings: &mut Findings) {
    let assumes = &s.version.assumes;
    let mut bad = |slot: Svma, why| findings.add(None, Some(slot), Problem::Bound(why));
    let relro = s.image.relro().map(|r| SvmaRange::between(r.start.align_down(PAGE), r.end.align_down(PAGE)));
    for (i, bound) in assumes.iter().enumerate() {
        if i > 0 && assumes[i - 1].slot >= bound.slot {
            bad(bound.slot, "the slots are out of order, or one is there twice");
        }
        let slot = SvmaRange::new(bound.slot, 8);
        if !bound.slot.get().is_multiple_of(8) || !relro.is_some_and(|r| r.covers(&slot)) {
            bad(bound.slot, "it is not in memory that the loader makes read-only");
        }
        let filled = s.image.relocation_at(bound.slot).map(|r| &r.kind);
        if !matches!(
            filled,
            Some(
                RelocationKind::JumpSlot { .. }
                    | RelocationKind::Symbolic { .. }
                    | RelocationKind::IRelative { .. }
            )
        ) {
            bad(bound.slot, "the loader fills it with no function's address");
        }
        if s.version.range.contains(bound.target) {
            bad(bound.slot, "it would lead into the version");
        }
    }
}

impl Subject<'_> {
    /// What the slot at `slot` is assumed to hold.
    fn bound(&self, slot: Svma) -> Option<Svma> {
        let assumes = &self.version.assumes;
        let i = assumes.binary_search_by_key(&slot, |b| b.slot).ok()?;
        Some(assumes[i].target)
    }

    /// Where the original code at `at` leads if it is a stub whose slot is assumed to be bound.
    pub fn through_stub(&self, at: Svma) -> Option<Svma> {
        if self.version.assumes.is_empty() {
            return None;
        }
        self.bound(self.slot_of_stub(at)?)
    }

    /// The slot through which the original code at `at` jumps if it is a stub,
    /// `[endbr64] [bnd] jmp *slot(%rip)`.
    fn slot_of_stub(&self, at: Svma) -> Option<Svma> {
        let bytes = (6..=11).rev().find_map(|len| self.image.read(at, len))?;
        let mut decoder = Decoder::with_ip(64, bytes, at.get(), DecoderOptions::NONE);
        let mut instruction = decoder.decode();
        if instruction.mnemonic() == Mnemonic::Endbr64 {
            instruction = decoder.decode();
        }
        slot_of(&instruction, Code::Jmp_rm64)
    }
}

/// The slot that `code` goes through.
fn slot_of(i: &Instruction, code: Code) -> Option<Svma> {
    (!i.is_invalid() && i.code() == code && i.is_ip_rel_memory_operand())
        .then(|| Svma::new(i.ip_rel_memory_address()))
}

impl<'a> Walk<'_, 'a> {
    /// If the copy at `v` of the call or jump `i` through a slot is a direct one: checks it and gives the
    /// address behind it.
    pub fn made_direct(&mut self, c: &Current<'a>, i: &Instruction, v: Svma) -> Option<Svma> {
        let (indirect, direct) = match i.mnemonic() {
            Mnemonic::Call => (Code::Call_rm64, Code::Call_rel32_64),
            Mnemonic::Jmp => (Code::Jmp_rm64, Code::Jmp_rel32_64),
            _ => return None,
        };
        let slot = slot_of(i, indirect)?;
        let copy = self.s.decode(v)?;
        if copy.code() != direct {
            return None;
        }
        let o = Svma::new(i.ip());
        let end = v + copy.len() as u64;
        // Prefix, opcode and displacement: as long as the original, so that each return address has its
        // equivalent.
        if copy.len() != i.len() || i.len() != 6 || self.s.text(v, 1) != Some(&[ADDR32]) {
            self.findings.at(v, o, Problem::Instruction("it became a direct one of another form"));
        }
        if end.offset_from(c.range.end) > 0 {
            self.findings.at(v, o, Problem::Placement("the copy is longer than its range"));
        }
        let to = Svma::new(copy.near_branch_target());
        match self.s.bound(slot) {
            Some(want) => self.leads(v, o, to, want),
            None => {
                self.findings.at(v, o, Problem::Bound("nothing is known of the slot that it went through"))
            }
        }
        let boundary = if c.copied.is_some() { Boundary::InTableWindow(o) } else { Boundary::Copied(o) };
        self.visit(v, copy.len() as u32, boundary, RowAt::of(o));
        self.report.direct += 1;
        Some(end)
    }

    /// `to` has to be `want` or its copy.
    fn leads(&mut self, v: Svma, o: Svma, to: Svma, want: Svma) {
        if to == want {
            self.exits.push(want);
        } else if self.s.copy_at(to, want).is_none() {
            let what = "a direct call or jump in place of one through a slot";
            self.findings.at(v, o, Problem::WrongTarget { what, to, want });
        }
    }

    /// If the copy at `v` of the direct call `i` is a call through a slot: checks that the original calls the
    /// stub of that slot, and gives the address behind it. What a stub does is to jump through its slot,
    /// whatever that holds.
    pub fn called_by_slot(&mut self, c: &Current<'a>, i: &Instruction, v: Svma) -> Option<Svma> {
        if i.code() != Code::Call_rel32_64 {
            return None;
        }
        let copy = self.s.decode(v).filter(|copy| copy.code() == Code::Call_rm64)?;
        let (o, end) = (Svma::new(i.ip()), v + copy.len() as u64);
        if slot_of(&copy, Code::Call_rm64).is_none_or(|slot| !self.is_by_slot(&copy, slot, i)) {
            self.findings.at(
                v,
                o,
                Problem::Instruction("it calls through another slot than the original's stub"),
            );
        }
        if end.offset_from(c.range.end) > 0 {
            self.findings.at(v, o, Problem::Placement("the copy is longer than its range"));
        }
        if c.copied.is_some() {
            let why = "a call through a slot stands between a table's load and its jump";
            self.findings.at(v, o, Problem::Instruction(why));
        }
        self.visit(v, copy.len() as u32, Boundary::Called(o, i.len() as u32), RowAt::of(o));
        self.report.by_slot += 1;
        Some(end)
    }

    /// Whether `copy` goes through the slot of the stub that the branch `i` leads to, in the one form that is
    /// written.
    fn is_by_slot(&self, copy: &Instruction, slot: Svma, i: &Instruction) -> bool {
        let stub = Svma::new(i.near_branch_target());
        // Opcode and displacement, no prefix.
        copy.len() == 6 && i.len() == 5 && self.s.slot_of_stub(stub) == Some(slot)
    }

    /// Whether the jump at `v` goes through the slot of the stub at `stub`.
    pub fn jumps_by_slot(&self, v: Svma, stub: Svma) -> bool {
        let Some(copy) = self.s.decode(v).filter(|copy| copy.len() == 6) else { return false };
        slot_of(&copy, Code::Jmp_rm64).is_some_and(|slot| self.s.slot_of_stub(stub) == Some(slot))
    }

    /// Whether `to` is what the stub at `stub` leads to, or the copy of that.
    pub fn skips_stub(&mut self, to: Svma, stub: Svma) -> bool {
        let Some(want) = self.s.through_stub(stub) else { return false };
        if to == want {
            self.exits.push(want);
        }
        let right = to == want || self.s.copy_at(to, want).is_some();
        self.report.direct += u64::from(right);
        right
    }
}
