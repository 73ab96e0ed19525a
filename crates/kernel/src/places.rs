//! Parts of a kernel's text that have a meaning by their addresses.

use crate::reason::Reason;
use crate::symbols::Symbols;
use restitch_address::{Svma, SvmaRange};
use restitch_x86::module_code::ThunkRegister;
use std::collections::HashMap;

/// What code jumps to or calls in place of an instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Thunk {
    /// It returns.
    Return,
    /// It goes where the register says.
    Register(ThunkRegister),
}

/// The parts of the text.
#[derive(Debug, Clone, Default)]
pub struct Places {
    /// The kernel's own code, without that of its start.
    pub text: SvmaRange,
    /// Constants.
    pub constants: Option<SvmaRange>,
    /// `__fentry__`.
    pub trace_entry: Option<Svma>,
    /// Whether compilers made branches through registers go through thunks: such code has no jump tables.
    pub has_register_thunks: bool,
    thunks: HashMap<Svma, Thunk>,
    ranges: Vec<Part>,
    /// Ranges in which the kernel takes no probes.
    pub unprobed: Vec<SvmaRange>,
}

#[derive(Debug, Clone, Copy)]
struct Part {
    range: SvmaRange,
    reason: Reason,
}

/// Names of the parts, `__NAME_start` to `__NAME_end`, and why they stay.
const PARTS: [(&str, Reason); 10] = [
    ("entry_text", Reason::Entry),
    ("noinstr_text", Reason::NoInstrumentation),
    ("cpuidle_text", Reason::Idle),
    ("sched_text", Reason::Scheduler),
    ("lock_text", Reason::Lock),
    ("kprobes_text", Reason::Probes),
    ("irqentry_text", Reason::InterruptEntry),
    ("softirqentry_text", Reason::InterruptEntry),
    ("static_call_text", Reason::Thunk),
    ("indirect_thunk", Reason::Thunk),
];

impl Places {
    /// Finds them by their names; none if even the text's are missing.
    pub fn find(symbols: &Symbols) -> Option<Self> {
        let text = symbols.range("_stext", "_etext").filter(|text| !text.is_empty())?;
        let part = |(name, reason): (&str, Reason)| {
            let range = symbols.range(&format!("__{name}_start"), &format!("__{name}_end"))?;
            Some(Part { range, reason })
        };
        let thunks = symbols.within(text).iter();
        let thunks = thunks.filter_map(|symbol| Some((symbol.address, thunk(&symbol.name)?)));
        let thunks: HashMap<Svma, Thunk> = thunks.collect();
        Some(Self {
            text,
            constants: symbols.range("__start_rodata", "__end_rodata"),
            trace_entry: symbols.address("__fentry__"),
            has_register_thunks: thunks.values().any(|thunk| matches!(thunk, Thunk::Register(_))),
            thunks,
            ranges: PARTS.into_iter().filter_map(part).collect(),
            unprobed: Vec::new(),
        })
    }

    /// The thunk at an address.
    pub fn thunk(&self, at: Svma) -> Option<Thunk> {
        self.thunks.get(&at).copied()
    }

    /// Why a function stays that starts there, whatever is in it.
    pub fn reason(&self, at: Svma, name: &str) -> Option<Reason> {
        let of_range =
            self.ranges.iter().filter(|part| part.range.contains(at)).map(|part| part.reason).min();
        let is_thunk = self.thunk(at).is_some() || is_mitigation(name);
        let unprobed = || self.unprobed.iter().any(|range| range.contains(at)).then_some(Reason::Probes);
        of_range.or(is_thunk.then_some(Reason::Thunk)).or_else(unprobed)
    }
}

/// What a function of that name stands for.
fn thunk(name: &str) -> Option<Thunk> {
    if name.ends_with("return_thunk") && !name.starts_with("__pfx_") {
        return Some(Thunk::Return);
    }
    let (kind, register) = name.strip_prefix("__x86_indirect_")?.split_once("thunk_")?;
    let is_known = matches!(kind, "" | "call_" | "jump_" | "its_");
    ThunkRegister::named(register).filter(|_| is_known).map(Thunk::Register)
}

/// Whether a function of that name is a part of a mitigation.
fn is_mitigation(name: &str) -> bool {
    name.starts_with("__x86_indirect_")
        || ["untrain_ret", "safe_ret", "return_thunk"].iter().any(|end| name.ends_with(end))
        || name == "__fentry__"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thunks_are_known_by_name() {
        let rax = ThunkRegister::named("rax").map(Thunk::Register);
        for (name, found) in [
            ("__x86_return_thunk", Some(Thunk::Return)),
            ("srso_alias_return_thunk", Some(Thunk::Return)),
            ("__x86_indirect_thunk_rax", rax),
            ("__x86_indirect_call_thunk_rax", rax),
            ("__x86_indirect_its_thunk_rax", rax),
            ("__x86_indirect_thunk_array", None),
            ("__pfx_call_depth_return_thunk", None),
            ("do_sys_poll", None),
        ] {
            assert_eq!(thunk(name), found, "{name}");
        }
        assert!(is_mitigation("srso_untrain_ret") && !is_mitigation("set_return"));
    }
}
