//! Which instruction each byte of a module's code belongs to.

use crate::finding::Problem;
use crate::insn::{Does, FILLER, Insn};
use crate::load::Loaded;
use restitch_address::{Svma, SvmaRange};

/// What a byte is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mark {
    /// No instruction has been found to own it yet.
    Free,
    /// First byte of an instruction of this length.
    Start(u8),
    /// Another byte of one.
    Inside,
    /// Of a `nop` or jump that nothing leads to.
    Dead,
}

/// The bytes of one section.
struct Part {
    at: Svma,
    data: Vec<u8>,
    marks: Vec<Mark>,
}

/// The bytes of all sections with copies.
pub(crate) struct Marks {
    parts: Vec<Part>,
}

impl Marks {
    pub(crate) fn new(module: &Loaded<'_>) -> Self {
        let part = |part: &crate::load::Part<'_>| Part {
            at: part.at,
            data: part.data.clone(),
            marks: vec![Mark::Free; part.data.len()],
        };
        Self { parts: module.code().map(part).collect() }
    }

    /// The bytes of an instruction are its own, and of no other.
    pub(crate) fn claim(&mut self, at: Svma, len: u64) -> Result<(), Problem> {
        const WRONG: Problem = Problem::Instruction("begins in the middle of another one");
        let part = self.parts.iter_mut().find(|part| part.holds(at)).ok_or(WRONG)?;
        let from = at.offset_from(part.at) as usize;
        let own = part.marks.get_mut(from..from + len as usize).ok_or(WRONG)?;
        if own[0] == Mark::Start(len as u8) {
            return Ok(());
        }
        if own.iter().any(|mark| *mark != Mark::Free) {
            return Err(WRONG);
        }
        own.fill(Mark::Inside);
        own[0] = Mark::Start(len as u8);
        Ok(())
    }

    /// Whether the address is one of a byte that nothing leads to, or the end of a section.
    pub(crate) fn is_free(&self, at: Svma) -> bool {
        let mark = self.parts.iter().find(|part| part.holds(at)).map(|part| part.mark(at));
        mark.is_none_or(|mark| mark == Mark::Free)
    }

    /// Looks at what nothing leads to. That has to be filler: `int3`; or, where control would run on between
    /// two pieces of code, a `nop` or a jump, to an instruction that was proved or to the kernel's code at
    /// `kernel`. The first byte that is none.
    pub(crate) fn account(&mut self, kernel: SvmaRange) -> Result<(), Svma> {
        for part in 0..self.parts.len() {
            let mut at = 0;
            while let Some(mark) = self.parts[part].marks.get(at) {
                at += match mark {
                    Mark::Free if self.parts[part].data[at] == FILLER => 1,
                    Mark::Free => self.dead(part, at, kernel)?,
                    _ => 1,
                };
            }
        }
        Ok(())
    }

    /// Marks a `nop` or jump that nothing leads to; its length.
    fn dead(&mut self, number: usize, at: usize, kernel: SvmaRange) -> Result<usize, Svma> {
        let part = &self.parts[number];
        let place = part.at + at as u64;
        let insn = Insn::decode(&part.data[at..], place).ok_or(place)?;
        let is_proved = |to: Svma| {
            let part = self.parts.iter().find(|part| part.holds(to));
            part.is_some_and(|part| matches!(part.mark(to), Mark::Start(_)))
        };
        let is_harmless = match insn.does {
            Does::Nothing => true,
            Does::Jump(to) => is_proved(to) || kernel.contains(to),
            _ => false,
        };
        let own = self.parts[number].marks.get_mut(at..at + insn.len as usize).ok_or(place)?;
        if !is_harmless || own.iter().any(|mark| *mark != Mark::Free) {
            return Err(place);
        }
        own.fill(Mark::Dead);
        Ok(insn.len as usize)
    }

    /// Claimed places and lengths.
    pub(crate) fn instructions(&self) -> impl Iterator<Item = Svma> {
        self.parts.iter().flat_map(|part| {
            let starts = part.marks.iter().enumerate().filter(|(_, mark)| matches!(mark, Mark::Start(_)));
            starts.map(|(offset, _)| part.at + offset as u64)
        })
    }
}

impl Part {
    fn holds(&self, at: Svma) -> bool {
        self.at <= at && at < self.at + self.data.len() as u64
    }
    fn mark(&self, at: Svma) -> Mark {
        self.marks[at.offset_from(self.at) as usize]
    }
}
