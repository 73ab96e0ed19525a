//! The contract that every applier keeps: of processes (`apply-process`), and of ELF files (`apply-elf`).
//!
//! Numbered duties of a backend:
//! 1. **plan** computes everything before anything is touched. A plan is data: ordered [`Write`]s, each with
//!    the bytes expected before and after.
//! 2. **can_apply** refuses with a reason that names the next step for the user, and touches nothing.
//! 3. **apply** writes in an order in which every prefix of the writes leaves a correct program (state
//!    equivalence makes any subset of the redirects correct), so that being killed half-way is harmless.
//! 4. **verify** reads back what was written and compares it with the plan.
//! 5. **revert** restores the exact bytes, also from a later run than the one that applied.
//! 6. **describe** says in words what will happen.
//!
//! Files are written by [`write_atomically`].
//!
//! Only a [`CheckedVersion`] can be planned: nothing that has not passed the independent checker is ever
//! applied.

mod file;
pub mod path_text;
mod pipe;
mod read;
mod resolve;
mod why;

pub use file::{Existing, Outlives, can_be_made, can_be_written, write_atomically, write_result, writer_of};
pub use pipe::{GivenUp, IsAsked, read_pipe, write_if_pipe};
pub use read::{MOST_BYTES, MOST_NAMED, MOST_PIPED, open_without_waiting, read_opened, read_regular};
use restitch_address::Svma;
pub use restitch_check::CheckedVersion;
use restitch_x86::patch::Patch;
pub use why::{Why, explained};

/// One write of a plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Write {
    /// Where, in the module's canonical coordinates.
    pub at: Svma,
    /// The bytes that must be there before. If others are there, the write is refused.
    pub before: Vec<u8>,
    /// The bytes that will be there.
    pub after: Vec<u8>,
    /// What it is for.
    pub purpose: Purpose,
}

/// What a write is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Purpose {
    /// A function entry goes to the version.
    EntryRedirect,
    /// A block that un-understood indirect jumps reach goes to the version.
    LandingRedirect,
}

/// The backend contract.
pub trait Applier {
    /// What was computed beforehand.
    type Plan;
    /// Proof of what was done, enough to undo it.
    type Applied;
    /// Why not.
    type Error: std::error::Error;

    /// Computes everything; touches nothing.
    fn plan(&self, versions: &[&CheckedVersion]) -> Result<Self::Plan, Self::Error>;
    /// Whether the plan can be applied now; touches nothing.
    fn can_apply(&self, plan: &Self::Plan) -> Result<(), Self::Error>;
    /// Applies the plan.
    fn apply(&mut self, plan: Self::Plan) -> Result<Self::Applied, Self::Error>;
    /// Compares what is there with what was planned.
    fn verify(&self, applied: &Self::Applied) -> Result<(), Self::Error>;
    /// Restores the exact bytes from before.
    fn revert(&mut self, applied: Self::Applied) -> Result<(), Self::Error>;
    /// What the plan does, in words.
    fn describe(&self, plan: &Self::Plan) -> String;
}

/// The write that makes `at` jump to `to`, given what is there `before`. `None` if `to` is out of reach.
pub fn redirect_write(at: Svma, to: Svma, before: Patch, purpose: Purpose) -> Option<Write> {
    let after = Patch::jump(to.offset_from(at))?;
    Some(Write { at, before: before.bytes().to_vec(), after: after.bytes().to_vec(), purpose })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_redirect_is_a_jump_to_its_target() {
        let before = Patch::new([0x55; Patch::LEN]);
        let (at, to) = (Svma::new(0x1000), Svma::new(0x9000));
        let w = redirect_write(at, to, before, Purpose::EntryRedirect).unwrap();
        assert_eq!(Patch::beginning_of(&w.after).and_then(|p| p.as_jump()), Some(0x8000));
        assert_eq!((w.before.len(), w.after.len()), (Patch::LEN, Patch::LEN));
        assert_eq!(redirect_write(at, Svma::new(1 << 40), before, Purpose::EntryRedirect), None);
    }
}
