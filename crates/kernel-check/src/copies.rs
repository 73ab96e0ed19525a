//! The module's code.

use crate::counting::Counting;
use crate::finding::Problem;
use crate::insn::{CALL, Does, Insn, JUMP, PREFIX, SITE, SITE_NOP, Through, has_prefix};
use crate::load::{Loaded, Part};
use crate::original::Original;
use crate::step::{Act, Step};
use crate::tables::{Key, Sites, StaticCall, Tables};
use restitch_address::Svma;

/// The copies, with the tables that speak of them.
pub(crate) struct Copies<'m> {
    pub(crate) module: &'m Loaded<'m>,
    pub(crate) tables: Tables,
    pub(crate) sites: Sites,
    pub(crate) counting: Counting,
    original: &'m Original<'m>,
}

/// What is wrong with an instruction.
fn wrong<T>(what: &'static str) -> Result<T, Problem> {
    Err(Problem::Instruction(what))
}

impl<'m> Copies<'m> {
    pub(crate) fn new(module: &'m Loaded<'m>, original: &'m Original<'m>) -> Result<Self, Problem> {
        let tables = Tables::of_module(module, &original.facts.warning)?;
        let (sites, counting) = (Sites::of_module(module)?, Counting::of_module(module)?);
        Ok(Self { module, tables, sites, counting, original })
    }

    /// The section with copies that an address is in.
    pub(crate) fn part(&self, at: Svma) -> Option<&'m Part<'m>> {
        self.module.code().find(|part| part.at <= at && at < part.end())
    }

    /// What happens at a place of a section.
    pub(crate) fn step(&self, part: &'m Part<'m>, at: Svma) -> Result<Step, Problem> {
        let bytes = &part.data[at.offset_from(part.at) as usize..];
        let Some(insn) = Insn::decode(bytes, at) else { return wrong("is none that is known") };
        let act = match self.listed(at) {
            0 => self.plain(insn)?,
            1 => self.site(insn, bytes)?,
            _ => return wrong("is in two tables of what the loader rewrites"),
        };
        Ok(Step { at, len: insn.len, act })
    }

    /// How many tables say that the loader rewrites the place.
    fn listed(&self, at: Svma) -> usize {
        let Sites { traces, returns, thunks, .. } = &self.sites;
        let sites = [traces, returns, thunks].iter().filter(|places| places.contains(&at)).count();
        let keys = usize::from(self.tables.keys.contains_key(&at));
        sites + keys + usize::from(self.tables.calls.contains_key(&at))
    }

    /// A place that the loader rewrites: in the form that it expects, and what it makes of it.
    fn site(&self, insn: Insn, bytes: &[u8]) -> Result<Act, Problem> {
        let at = insn.at;
        if let Some(key) = self.tables.keys.get(&at) {
            return self.key(insn, *key, bytes);
        }
        if let Some(call) = self.tables.calls.get(&at) {
            return static_call(insn, *call, bytes);
        }
        if self.sites.traces.contains(&at) {
            let is_form = match self.original.facts.module.traces_are_calls {
                true => {
                    bytes.first() == Some(&CALL) && self.original.tracer.map(Does::Call) == Some(insn.does)
                }
                false => bytes.starts_with(&SITE_NOP),
            };
            return if is_form { Ok(Act::Trace) } else { wrong("is not what the function tracer expects") };
        }
        if self.sites.returns.contains(&at) {
            let is_form =
                bytes.first() == Some(&JUMP) && self.original.return_thunk.map(Does::Jump) == Some(insn.does);
            return if is_form { Ok(Act::Return) } else { wrong("is listed as a return and is none") };
        }
        self.through(insn, bytes)
    }

    fn key(&self, insn: Insn, key: Key, bytes: &[u8]) -> Result<Act, Problem> {
        let Some(begins_on) = self.original.begins_on(key.key) else {
            return Err(Problem::Kernel("a static key is not in what can be read"));
        };
        let is_inverted = key.flags & 1 != 0;
        let is_form = match begins_on != is_inverted {
            true => bytes.first() == Some(&JUMP) && insn.does == Does::Jump(key.target),
            false => bytes.starts_with(&SITE_NOP),
        };
        match is_form && key.flags & !1 == 0 {
            true => Ok(Act::Key(key)),
            false => wrong("is not the branch of a static key in its first state"),
        }
    }

    /// A branch through a register as compilers write it, by way of its thunk.
    fn through(&self, insn: Insn, bytes: &[u8]) -> Result<Act, Problem> {
        let (to, is_call) = match insn.does {
            Does::Call(to) => (to, true),
            Does::Jump(to) => (to, false),
            _ => return wrong("is listed as a branch through a register and is none"),
        };
        let Some(Act::Through(through)) = self.original.thunk(to, is_call) else {
            return wrong("is listed as a branch through a register and leads to no thunk");
        };
        let Through { register, .. } = through;
        let opcode = if is_call { CALL } else { JUMP };
        let is_form = match has_prefix(register) {
            true => bytes.starts_with(&[PREFIX, opcode]) && insn.len == SITE + 1,
            false => bytes.first() == Some(&opcode) && insn.len == SITE,
        };
        match is_form && self.original.thunk_of(register) == Some(to) {
            true => Ok(Act::Through(through)),
            false => wrong("is a branch through a register in a form that the loader does not know"),
        }
    }

    /// An instruction that the loader leaves as it is: nothing that it has to know of.
    fn plain(&self, insn: Insn) -> Result<Act, Problem> {
        let original = self.original;
        match insn.does {
            Does::Jump(to) if original.thunk(to, false).is_some() => {
                wrong("leads to a thunk, and the loader is not told")
            }
            Does::Call(to) if original.thunk(to, true).is_some() => {
                wrong("leads to a thunk, and the loader is not told")
            }
            Does::Return if original.return_thunk.is_some() => {
                wrong("is a plain return, where the processor may need a thunk")
            }
            Does::Through(Through { register, .. }) if original.thunk_of(register).is_some() => {
                wrong("is a plain branch through a register, where the processor may need a thunk")
            }
            Does::Breakpoint => wrong("is a breakpoint, or filler"),
            Does::Return => Ok(Act::Return),
            Does::Through(through) => Ok(Act::Through(through)),
            _ => Ok(Act::Plain(insn)),
        }
    }
}

fn static_call(insn: Insn, call: StaticCall, bytes: &[u8]) -> Result<Act, Problem> {
    let opcode = if call.is_jump() { JUMP } else { CALL };
    match insn.does {
        Does::Call(to) | Does::Jump(to) if bytes.first() == Some(&opcode) && call.flags & !1 == 0 => {
            Ok(Act::StaticCall(call, Some(to)))
        }
        _ => wrong("is listed as a static call and is none"),
    }
}
