//! Evaluating ahead: where a thread will go, found out from its registers and memory without running it.
//!
//! This is the optimization that Marin et al., "Break Dancing" (LCTES 2021) section 3.3, leave to future
//! work: with the full register state in hand, follow the code over the integer instructions that decide most
//! branches, so that a breakpoint is needed only where something cannot be known.
//!
//! **What you do**: make a [`State`] of a stopped thread, hand [`follow`] a [`Code`] and a [`Memory`], and
//! take the branches that it reports. Where it ends ([`Ended`]) the thread has to be looked at again.
//!
//! **What it does**: it executes [`restitch_x86::Action`]s on values of which each byte is known or not. What
//! an instruction changes in a way that is not modelled becomes unknown. Stores go into an overlay of the
//! state's own.
//!
//! **What it promises**: in a thread that nobody interferes with, what it claims to know is what execution
//! gives. Other threads, signal handlers and the kernel may write to memory between the evaluation and the
//! execution; compare the thread's real registers with [`State::contradicts`] where it is stopped next.
//!
//! **What it will not do**: write to anybody's memory, evaluate floating-point code, follow a thread into the
//! kernel or into a signal handler.

mod alu;
mod follow;
mod memory;
mod state;
mod step;
mod strings;
mod value;
mod vector;
mod vector_registers;
mod wide;

pub use follow::{Code, Ended, Run, Taken, Tally, follow};
pub use memory::Memory;
pub use state::{Flags, State};
pub use step::{Step, Stuck};
pub use value::Value;
