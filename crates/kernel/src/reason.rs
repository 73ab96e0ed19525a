//! Why code of a kernel stays where it is.

use std::fmt;

/// Why a function stays where it is. Of several reasons the first in this order is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// `.entry.text`: the processor enters it, with registers and stacks of its own.
    Entry,
    /// `.noinstr.text`: it runs where nothing may be traced, and faults cannot be handled.
    NoInstrumentation,
    /// `.cpuidle.text`: interrupts look whether they came out of it.
    Idle,
    /// `.sched.text`: the kernel tells by the address where a sleeping task waits (`in_sched_functions`).
    Scheduler,
    /// `.spinlock.text`: the kernel tells by the address that a lock is waited for (`in_lock_functions`).
    Lock,
    /// `.kprobes.text`, and functions in which the kernel takes no probes: traps would recur.
    Probes,
    /// `.irqentry.text` and `.softirqentry.text`: stack traces are cut off at these addresses.
    InterruptEntry,
    /// Thunks and trampolines, which the kernel writes or knows by address.
    Thunk,
    /// Bytes in it are no instruction.
    Undecodable,
    /// A branch leads into the middle of one of its instructions, or a table names one.
    IntoInstruction,
    /// Control runs on into what follows it.
    RunsOn,
    /// A jump by a table, or through a register without a thunk: where it leads is not known.
    JumpTable,
    /// A branch that has a short form only (`loop`, `jrcxz`), a far one, or one to its own middle by a call.
    OddBranch,
    /// It uses addresses in its own middle: it may compare them with where it is executed, or go there by a
    /// return. One that only tells a callee where it is (`_THIS_IP_`) keeps telling the original place.
    OwnAddress,
    /// Other code, or a constant, has an address in its middle.
    KnownInside,
    /// Another user has changed it: a tracer, a probe, a live patch, a BPF program.
    HasUsers,
    /// A place that the kernel rewrites is in a state that is not known.
    UnknownState,
}

impl Reason {
    /// All of them, in order.
    pub const ALL: [Self; 17] = [
        Self::Entry,
        Self::NoInstrumentation,
        Self::Idle,
        Self::Scheduler,
        Self::Lock,
        Self::Probes,
        Self::InterruptEntry,
        Self::Thunk,
        Self::Undecodable,
        Self::IntoInstruction,
        Self::RunsOn,
        Self::JumpTable,
        Self::OddBranch,
        Self::OwnAddress,
        Self::KnownInside,
        Self::HasUsers,
        Self::UnknownState,
    ];

    /// The reason in words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Entry => "the processor enters it (entry text)",
            Self::NoInstrumentation => "nothing may be traced while it runs (noinstr text)",
            Self::Idle => "interrupts look whether they came out of it (idle text)",
            Self::Scheduler => "the kernel tells waiting tasks by its address (scheduler text)",
            Self::Lock => "the kernel tells waiting for locks by its address (lock text)",
            Self::Probes => "the kernel takes no probes in it",
            Self::InterruptEntry => "stack traces of interrupts end at its address",
            Self::Thunk => "thunks and trampolines, which the kernel writes",
            Self::Undecodable => "bytes in it are no instruction",
            Self::IntoInstruction => "a branch or a table leads into the middle of an instruction",
            Self::RunsOn => "control runs on into what follows it",
            Self::JumpTable => "a jump whose targets are not known",
            Self::OddBranch => "a branch in a form that cannot be moved",
            Self::OwnAddress => "it uses addresses in its own middle",
            Self::KnownInside => "other code or a constant knows addresses in its middle",
            Self::HasUsers => "a tracer, a probe, a live patch or a BPF program has changed it",
            Self::UnknownState => "a place that the kernel rewrites is in an unknown state",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.words())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_reasons_are_listed_in_order_and_differ() {
        assert!(Reason::ALL.windows(2).all(|pair| pair[0] < pair[1]));
        let words: std::collections::BTreeSet<&str> =
            Reason::ALL.iter().map(|reason| reason.words()).collect();
        assert_eq!(words.len(), Reason::ALL.len());
    }
}
