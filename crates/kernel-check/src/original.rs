//! The running kernel's code.

use crate::facts::KernelFacts;
use crate::finding::Problem;
use crate::insn::{CALL, Does, Insn, JUMP, LONGEST, SITE, SITE_NOP, Through, register_named};
use crate::kernel::{Kernel, long};
use crate::step::{Act, Step};
use crate::tables::{StaticCall, Tables};
use iced_x86::Register;
use restitch_address::{Svma, SvmaRange};
use std::cell::OnceCell;
use std::collections::HashSet;

/// Bounds of code that the kernel knows by where it is: that asks whether an address is in it, or that may
/// not be traced or probed. A copy of it would not be known.
const KEPT: [&str; 9] = [
    "noinstr_text",
    "entry_text",
    "irqentry_text",
    "softirqentry_text",
    "kprobes_text",
    "sched_text",
    "lock_text",
    "cpuidle_text",
    "static_call_text",
];

/// The kernel's code with its tables.
pub(crate) struct Original<'k> {
    kernel: &'k dyn Kernel,
    pub(crate) facts: &'k KernelFacts,
    pub(crate) tables: Tables,
    /// Its own code, without that of modules.
    pub(crate) text: SvmaRange,
    kept: Vec<SvmaRange>,
    /// `__x86_return_thunk`.
    pub(crate) return_thunk: Option<Svma>,
    /// `__fentry__`.
    pub(crate) tracer: Option<Svma>,
    /// Functions that hand on flags, once they were looked for.
    pub(crate) handing: OnceCell<Option<HashSet<Svma>>>,
}

/// The places that control passes without doing anything, up to one where it does something.
pub(crate) struct Chain {
    /// All of them, the last one included.
    pub(crate) places: Vec<Svma>,
    /// Whether one of them may be reached by a branch through a register.
    pub(crate) marks: bool,
    /// What it does in the end.
    pub(crate) end: Result<Step, Problem>,
}

impl<'k> Original<'k> {
    pub(crate) fn new(kernel: &'k dyn Kernel, facts: &'k KernelFacts) -> Result<Self, Problem> {
        let symbols = kernel.symbols();
        let between =
            |start: &str, end: &str| Some(SvmaRange::between(symbols.address(start)?, symbols.address(end)?));
        let text = between("_stext", "_etext").filter(|text| text.start < text.end);
        let kept = |name: &&str| between(&format!("__{name}_start"), &format!("__{name}_end"));
        let mut tables = Tables::of_kernel(kernel, &facts.warning)?;
        // A key that cannot be written any more switches nothing: its branches are code as it stands. A
        // module that lists one would have the loader write to it.
        if let Some(sealed) = between("__start_ro_after_init", "__end_ro_after_init") {
            tables.keys.retain(|_, key| !sealed.contains(key.key));
        }
        Ok(Self {
            kernel,
            facts,
            tables,
            text: text.ok_or(Problem::Kernel("the bounds of its code are not among its symbols"))?,
            kept: KEPT.iter().filter_map(kept).collect(),
            return_thunk: symbols.address("__x86_return_thunk"),
            tracer: symbols.address("__fentry__"),
            handing: OnceCell::new(),
        })
    }

    /// The names of what starts at an address.
    pub(crate) fn names(&self, at: Svma) -> &[String] {
        self.kernel.symbols().names(at)
    }
    /// The names of what an address is in.
    pub(crate) fn names_around(&self, at: Svma) -> &[String] {
        self.kernel.symbols().names_around(at)
    }
    pub(crate) fn address(&self, name: &str) -> Option<Svma> {
        self.kernel.symbols().address(name)
    }

    /// Where that begins.
    pub(crate) fn start_around(&self, at: Svma) -> Option<Svma> {
        self.kernel.symbols().start_around(at)
    }
    /// The bytes of the text.
    pub(crate) fn all_text(&self) -> Option<Vec<u8>> {
        let mut bytes = vec![0; self.text.len() as usize];
        self.kernel.read(self.text.start, &mut bytes).then_some(bytes)
    }

    /// Follows control from a place to where it does something.
    pub(crate) fn follow(&self, from: Svma) -> Chain {
        let mut chain = Chain { places: Vec::new(), marks: false, end: Err(Problem::Original("is missing")) };
        let mut at = from;
        loop {
            if chain.places.contains(&at) {
                chain.end = Err(Problem::Original("goes round in a circle without doing anything"));
                return chain;
            }
            chain.places.push(at);
            let step = match self.step(at) {
                Ok(step) => step,
                Err(problem) => {
                    chain.end = Err(problem);
                    return chain;
                }
            };
            at = match step.act {
                Act::Plain(insn) if !self.tables.knows(at) => match insn.does {
                    Does::Nothing => insn.end(),
                    Does::Marks => {
                        chain.marks = true;
                        insn.end()
                    }
                    Does::Jump(to) => to,
                    _ => {
                        chain.end = Ok(step);
                        return chain;
                    }
                },
                _ => {
                    chain.end = Ok(step);
                    return chain;
                }
            };
        }
    }

    /// What happens at a place.
    pub(crate) fn step(&self, at: Svma) -> Result<Step, Problem> {
        self.may_be_copied(at)?;
        let step = self.known(at)?;
        match self.tables.is_plain(at, step.end()) {
            true => Ok(step),
            false => Err(Problem::Original("is in the middle of what a table is about, or in two entries")),
        }
    }

    fn may_be_copied(&self, at: Svma) -> Result<(), Problem> {
        if !self.text.contains(at) {
            return Err(Problem::Original("is not in the kernel's own code"));
        }
        match self.kept.iter().any(|kept| kept.contains(at)) {
            true => Err(Problem::Original("is code that the kernel knows by where it is")),
            false => Ok(()),
        }
    }

    /// The same, wherever it is.
    pub(crate) fn known(&self, at: Svma) -> Result<Step, Problem> {
        let bytes = self.bytes(at);
        if let Some(key) = self.tables.keys.get(&at) {
            let insn = Insn::decode(bytes.as_slice(), at);
            let insn = insn.filter(|insn| insn.len == 2 || insn.len == SITE);
            let insn = insn.filter(|insn| matches!(insn.does, Does::Nothing | Does::Jump(_)));
            let insn = insn.ok_or(Problem::Original("is no branch by a static key, as a table says"))?;
            return Ok(Step { at, len: insn.len, act: Act::Key(*key) });
        }
        if let Some(call) = self.tables.calls.get(&at) {
            return self.static_call(at, *call, &bytes);
        }
        if self.is_trace(at, &bytes) {
            return Ok(Step { at, len: SITE, act: Act::Trace });
        }
        let insn = Insn::locked(&bytes, at).or_else(|| Insn::decode(&bytes, at));
        let insn = insn.ok_or(Problem::Original("is no instruction that is known"))?;
        let act = match insn.does {
            Does::Return => Act::Return,
            Does::Through(through) => Act::Through(through),
            Does::Jump(to) => self.thunk(to, false).unwrap_or(Act::Plain(insn)),
            Does::Call(to) => self.thunk(to, true).unwrap_or(Act::Plain(insn)),
            Does::Breakpoint => return Err(Problem::Original("is a breakpoint, or filler")),
            _ => Act::Plain(insn),
        };
        Ok(Step { at, len: insn.len, act })
    }

    fn static_call(&self, at: Svma, call: StaticCall, bytes: &[u8]) -> Result<Step, Problem> {
        let insn = Insn::decode(bytes, at);
        let to = match insn.map(|insn| insn.does) {
            Some(Does::Conditional(..)) => {
                return Err(Problem::Original("is a static call by a condition"));
            }
            Some(Does::Call(to) | Does::Jump(to)) => Some(to),
            _ => None,
        };
        Ok(Step { at, len: SITE, act: Act::StaticCall(call, to) })
    }

    fn is_trace(&self, at: Svma, bytes: &[u8]) -> bool {
        if let Some(traces) = &self.facts.traces {
            let is_form = bytes.starts_with(&SITE_NOP) || matches!(bytes.first(), Some(&CALL | &JUMP));
            return traces.contains(&at) && is_form;
        }
        /// Bytes of what a function may begin with if branches through registers reach it.
        const MARK: i64 = 4;
        let before = at.offset(-MARK);
        let is_marked = || {
            let mark = Insn::decode(&self.bytes(before), before);
            mark.is_some_and(|mark| mark.end() == at && matches!(mark.does, Does::Marks | Does::Nothing))
        };
        bytes.starts_with(&SITE_NOP)
            && (!self.names(at).is_empty() || (!self.names(before).is_empty() && is_marked()))
    }

    /// What a direct branch to an address amounts to, if that is a thunk.
    pub(crate) fn thunk(&self, to: Svma, is_call: bool) -> Option<Act> {
        let names = self.names(to);
        if !is_call && names.iter().any(|name| name.ends_with("return_thunk")) {
            return Some(Act::Return);
        }
        let by_name = |name: &String| register_named(named_thunk(name)?);
        if let Some(register) = names.iter().find_map(by_name) {
            return Some(Act::Through(Through { register, is_call }));
        }
        // Thunks that the kernel makes at its start have no names.
        let is_made = names.is_empty() && !self.text.contains(to);
        match is_made.then(|| Insn::decode(&self.bytes(to), to))??.does {
            Does::Through(Through { register, is_call: false }) => {
                Some(Act::Through(Through { register, is_call }))
            }
            _ => None,
        }
    }

    /// `__x86_indirect_thunk_REGISTER`.
    pub(crate) fn thunk_of(&self, register: Register) -> Option<Svma> {
        self.address(&format!("__x86_indirect_thunk_{}", format!("{register:?}").to_lowercase()))
    }

    /// Whether a static key was made as one that is on: bit 0 of the word behind its count.
    pub(crate) fn begins_on(&self, key: Svma) -> Option<bool> {
        let mut bytes = [0; 16];
        self.kernel.read(key, &mut bytes).then(|| long(&bytes, 8))?.map(|kind| kind & 1 != 0)
    }

    /// The trampoline of a static call, by the names of its key and of that.
    pub(crate) fn trampoline(&self, key: Svma) -> Option<Svma> {
        let name = self.names(key).iter().find_map(|name| name.strip_prefix("__SCK__"))?;
        self.address(&format!("__SCT__{name}"))
    }

    /// Bytes from an address on: as many as an instruction may have, or as there are.
    pub(crate) fn bytes(&self, at: Svma) -> Vec<u8> {
        let mut bytes = vec![0; LONGEST];
        while !bytes.is_empty() && !self.kernel.read(at, &mut bytes) {
            bytes.pop();
        }
        bytes
    }
}

/// The register in the name of a thunk.
fn named_thunk(name: &str) -> Option<&str> {
    let rest = name.strip_prefix("__pi_").unwrap_or(name).strip_prefix("__x86_indirect_")?;
    rest.rsplit_once("thunk_").map(|(_, register)| register)
}
