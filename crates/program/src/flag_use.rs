//! What code that is not understood does with the flags that a callee leaves.

use restitch_address::Svma;
use restitch_image::Image;
use restitch_x86::{ALL_FLAGS, Flow, Insn, LONGEST, first_insn};

/// So many instructions behind a call are looked at: flags are read soon or overwritten soon.
const FOLLOWED: usize = 64;

/// What becomes of the status flags where control comes to a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum FlagUse {
    /// An instruction reads them.
    Read,
    /// They are overwritten before anything reads them.
    Overwritten,
    /// The function there is called with them.
    PassedTo(Svma),
    /// They may be read: what is looked at ends before they are overwritten.
    Unknown,
}

/// A call or jump of code that is not understood into code that may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct UnknownCaller {
    /// None for a call through a pointer.
    pub target: Option<Svma>,
    /// What becomes of the flags with which the target returns.
    pub then: FlagUse,
}

/// What becomes of the flags at `from`, by the instructions that control runs through from there for certain.
pub(crate) fn flag_use(image: &Image, from: Svma) -> FlagUse {
    let (mut at, mut live) = (from, ALL_FLAGS);
    for _ in 0..FOLLOWED {
        let Some(insn) = insn_at(image, at) else { return FlagUse::Unknown };
        if insn.flags_read & live != 0 {
            return FlagUse::Read;
        }
        live &= !insn.flags_written;
        if live == 0 {
            return FlagUse::Overwritten;
        }
        at = match insn.flow {
            Flow::Next | Flow::Stop => insn.end(),
            Flow::Jump(to) => to,
            Flow::Call(to) => return FlagUse::PassedTo(to),
            // The calling convention's flags are dead where a function is called through a pointer.
            Flow::IndirectCall => return FlagUse::Overwritten,
            Flow::Conditional(..)
            | Flow::ShortConditional(_)
            | Flow::IndirectJump
            | Flow::Return
            | Flow::Unsupported => return FlagUse::Unknown,
        };
    }
    FlagUse::Unknown
}

fn insn_at(image: &Image, at: Svma) -> Option<Insn> {
    let bytes = image.read_tail(at)?;
    first_insn(&bytes[..bytes.len().min(LONGEST)], at)
}
