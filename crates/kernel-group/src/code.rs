//! The copies' bytes, and the lists of places that the kernel rewrites.

use crate::arrange::{Arrangement, Exit, PlacedBlock, PlacedChunk};
use crate::error::GroupError;
use crate::facts::ModuleFacts;
use crate::group::{End, Fixup, Group, Target};
use crate::section::{Form, Kind, Reference, Sections};
use restitch_address::Svma;
use restitch_x86::encode;
use restitch_x86::module_code::{
    self, COUNTING, COUNTING_WITH_FLAGS_KEPT, FILL, SITE, SITE_NOP, ThunkRegister, Unresolved,
};
use restitch_x86::patch::Branch;
use std::collections::HashMap;

/// What the copies are made of.
pub(crate) struct CodeWriter<'a> {
    pub(crate) group: &'a Group,
    pub(crate) facts: &'a ModuleFacts,
    pub(crate) arrangement: &'a Arrangement<'a>,
    /// Offsets of entries in the table of warnings, by the original trap.
    pub(crate) warnings: &'a HashMap<Svma, u64>,
    pub(crate) sections: &'a mut Sections,
}

/// A block while it is written.
#[derive(Clone, Copy)]
struct Here<'a> {
    block: &'a PlacedBlock<'a>,
    section: Kind,
}

impl Here<'_> {
    fn wrong(&self, what: impl Into<String>) -> GroupError {
        GroupError::block(self.block.block.address, what)
    }
}

impl CodeWriter<'_> {
    /// Writes all chunks.
    pub(crate) fn write(&mut self) -> Result<(), GroupError> {
        let arrangement = self.arrangement;
        arrangement.chunks.iter().try_for_each(|chunk| self.chunk(chunk))
    }

    fn chunk(&mut self, chunk: &PlacedChunk<'_>) -> Result<(), GroupError> {
        let data = &mut self.sections.of(chunk.section()).data;
        data.resize(chunk.called_at().unwrap_or(chunk.start()) as usize, FILL);
        if chunk.is_entry {
            module_code::drop_return_address(data);
        }
        for block in &chunk.blocks {
            let here = Here { block, section: chunk.section() };
            debug_assert_eq!(self.sections.get(here.section).len(), block.at);
            self.sections.of(here.section).data.extend_from_slice(&block.block.code);
            block.block.fixups.iter().try_for_each(|fixup| self.fixup(here, *fixup))?;
            self.end(here)?;
            block.exits.iter().for_each(|exit| self.exit(here, *exit));
        }
        Ok(())
    }

    /// Makes one part of the code what it has to be at its new place.
    fn fixup(&mut self, here: Here<'_>, fixup: Fixup) -> Result<(), GroupError> {
        match fixup {
            Fixup::Relative { field, end, target } => {
                self.room(here, field, 4)?;
                if end < field + 4 || end as usize > here.block.block.code.len() {
                    return Err(here.wrong("an instruction ends in front of its displacement"));
                }
                let at = here.block.at as u32;
                let to = match target {
                    Target::Code(to) => self.arrangement.code(to),
                    Target::Data(to) => Reference::Kernel(to),
                    Target::Warning(trap) => match self.warnings.get(&trap) {
                        Some(offset) => Reference::Own { section: Kind::Warnings, offset: *offset },
                        None => return Err(here.wrong(format!("there is no warning at {trap}"))),
                    },
                };
                self.lead(here.section, Unresolved { field: at + field, end: at + end }, to);
            }
            Fixup::Call { at, target } => {
                let to = self.arrangement.code(target);
                if self.facts.lists_calls && to == Reference::Kernel(target) {
                    self.list(Kind::Calls, here, at);
                }
                self.rewrite(here, at, SITE, |out| module_code::branch(out, Branch::Call), to)?;
            }
            Fixup::Trace { at } => self.trace(here, at)?,
            Fixup::IndirectCall { at, register } => {
                let len = module_code::through_thunk_len(register);
                let to = self.thunk(here, register)?;
                let call = |out: &mut Vec<u8>| module_code::through_thunk(out, Branch::Call, register);
                self.list(Kind::Thunks, here, at);
                self.rewrite(here, at, len, call, to)?;
            }
            Fixup::StaticCall { at, key, target } => {
                self.static_call(here, at, key);
                let call = |out: &mut Vec<u8>| module_code::branch(out, Branch::Call);
                self.rewrite(here, at, SITE, call, Reference::Kernel(target))?;
            }
            Fixup::Count { at, number, keeps_flags } => self.count(here, at, number, keeps_flags)?,
        }
        Ok(())
    }

    /// A counter.
    fn count(&mut self, here: Here<'_>, at: u32, number: u32, keeps_flags: bool) -> Result<(), GroupError> {
        let Some(counters) = self.group.counters.filter(|counters| number < counters.number) else {
            return Err(here.wrong(format!("the group has no counter {number}")));
        };
        self.list(Kind::Counted, here, at);
        let to = counters.place(number);
        match keeps_flags {
            true => {
                let count = |out: &mut Vec<u8>| module_code::counting_with_flags_kept(out, counters.memory);
                self.rewrite(here, at, COUNTING_WITH_FLAGS_KEPT, count, to)
            }
            false => {
                let count = |out: &mut Vec<u8>| module_code::counting(out, counters.memory);
                self.rewrite(here, at, COUNTING, count, to)
            }
        }
    }

    /// The site of the function tracer: a call that the loader makes a `nop`, or one from the start.
    fn trace(&mut self, here: Here<'_>, at: u32) -> Result<(), GroupError> {
        if self.facts.traces_are_calls {
            let Some(to) = self.group.kernel.trace else {
                return Err(here.wrong("where __fentry__ is, is not said"));
            };
            let call = |out: &mut Vec<u8>| module_code::branch(out, Branch::Call);
            self.rewrite(here, at, SITE, call, Reference::Kernel(to))?;
        } else {
            self.room(here, at, SITE)?.copy_from_slice(&SITE_NOP);
        }
        let offset = here.block.at + u64::from(at);
        let to = Reference::Own { section: here.section, offset };
        self.sections.of(Kind::Traces).push(Form::Address, to, 0);
        Ok(())
    }

    /// What the kernel rewrites at the end of the block.
    fn end(&mut self, here: Here<'_>) -> Result<(), GroupError> {
        let at = here.block.block.code.len() as u32;
        match here.block.block.end {
            End::StaticKey { key, taken, is_inverted, is_initially_on, .. } => {
                let to = self.arrangement.code(taken);
                if is_inverted != is_initially_on {
                    self.append(here, |out| module_code::branch(out, Branch::Jump), to.clone());
                } else {
                    self.sections.of(here.section).data.extend_from_slice(&SITE_NOP);
                }
                self.list(Kind::Keys, here, at);
                let table = self.sections.of(Kind::Keys);
                table.push(Form::Distance, to, 0);
                table.push(Form::Distance64, Reference::Kernel(key), is_inverted.into());
            }
            End::Return => match self.group.kernel.return_thunk {
                Some(thunk) => {
                    self.list(Kind::Returns, here, at);
                    let jump = |out: &mut Vec<u8>| module_code::branch(out, Branch::Jump);
                    self.append(here, jump, Reference::Kernel(thunk));
                }
                None => module_code::plain_return(&mut self.sections.of(here.section).data),
            },
            End::IndirectJump(register) => {
                let to = self.thunk(here, register)?;
                self.list(Kind::Thunks, here, at);
                self.append(here, |out| module_code::through_thunk(out, Branch::Jump, register), to);
            }
            End::StaticJump { key, target } => {
                /// Bit 0 of an entry's key: the call is a jump.
                const TAIL: i64 = 1;
                self.list(Kind::StaticCalls, here, at);
                self.sections.of(Kind::StaticCalls).push(Form::Distance, Reference::Kernel(key), TAIL);
                let jump = |out: &mut Vec<u8>| module_code::branch(out, Branch::Jump);
                self.append(here, jump, Reference::Kernel(target));
            }
            End::Next(_) | End::Jump(_) | End::Conditional { .. } | End::Stop => {}
        }
        Ok(())
    }

    fn exit(&mut self, here: Here<'_>, exit: Exit) {
        let to = self.arrangement.code(exit.to);
        let section = self.sections.of(here.section);
        if exit.is_short {
            // Both are in this section, and in reach: that is how it became short.
            let Reference::Own { offset, .. } = to else { return };
            let end = section.len() + u64::from(encode::JMP_SHORT);
            let displacement = (offset as i64 - end as i64) as i8;
            match exit.condition {
                None => encode::jmp_short(&mut section.data, displacement),
                Some(condition) => encode::jcc_short(&mut section.data, condition, displacement),
            }
            return;
        }
        match exit.condition {
            None => encode::jmp_near(&mut section.data, 0),
            Some(condition) => encode::jcc_near(&mut section.data, condition, 0),
        }
        let end = section.data.len() as u32;
        self.lead(here.section, Unresolved { field: end - 4, end }, to);
    }

    /// Has a displacement in `section` lead there: by its bytes within a section, else by the loader.
    fn lead(&mut self, section: Kind, branch: Unresolved, to: Reference) {
        let sections = self.sections.of(section);
        let field = branch.field as usize..branch.field as usize + 4;
        // The loader wants zeros.
        sections.data[field.clone()].fill(0);
        match to {
            Reference::Own { section: other, offset } if other == section => {
                let displacement = (offset as i64 - i64::from(branch.end)) as i32;
                sections.data[field].copy_from_slice(&displacement.to_le_bytes());
            }
            to => sections.resolve(branch, to),
        }
    }

    /// Writes an instruction over `len` bytes of the block's code.
    fn rewrite(
        &mut self,
        here: Here<'_>,
        at: u32,
        len: u32,
        write: impl Fn(&mut Vec<u8>) -> Unresolved,
        to: Reference,
    ) -> Result<(), GroupError> {
        let mut bytes = Vec::new();
        let written = write(&mut bytes);
        self.room(here, at, len)?.copy_from_slice(&bytes);
        let from = here.block.at as u32 + at;
        self.lead(here.section, Unresolved { field: from + written.field, end: from + written.end }, to);
        Ok(())
    }

    /// Writes an instruction behind the block's code.
    fn append(&mut self, here: Here<'_>, write: impl Fn(&mut Vec<u8>) -> Unresolved, to: Reference) {
        let written = write(&mut self.sections.of(here.section).data);
        self.lead(here.section, written, to);
    }

    /// Bytes of the block's code.
    fn room(&mut self, here: Here<'_>, at: u32, len: u32) -> Result<&mut [u8], GroupError> {
        let end = at as usize + len as usize;
        if end > here.block.block.code.len() {
            return Err(here.wrong(format!("at {at} are no {len} bytes")));
        }
        let from = here.block.at as usize;
        Ok(&mut self.sections.of(here.section).data[from + at as usize..from + end])
    }

    /// An entry, of one word or with one as its first, for the place at `at` in the block.
    fn list(&mut self, table: Kind, here: Here<'_>, at: u32) {
        let offset = here.block.at + u64::from(at);
        let to = Reference::Own { section: here.section, offset };
        self.sections.of(table).push(Form::Distance, to, 0);
    }

    fn static_call(&mut self, here: Here<'_>, at: u32, key: Svma) {
        self.list(Kind::StaticCalls, here, at);
        self.sections.of(Kind::StaticCalls).push(Form::Distance, Reference::Kernel(key), 0);
    }

    fn thunk(&self, here: Here<'_>, register: ThunkRegister) -> Result<Reference, GroupError> {
        let thunk = self.group.kernel.thunks.get(&register).copied().map(Reference::Kernel);
        thunk.ok_or_else(|| here.wrong(format!("where the thunk of {} is, is not said", register.name())))
    }
}
