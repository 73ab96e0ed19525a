//! Software branch tracing: records of taken branches on machines without branch hardware.
//!
//! Marin, Alexeyev and Moseley, "Break Dancing" (LCTES 2021), from outside of the process. An alarm (an event
//! of a thread's own CPU time, or of taken branches where the machine counts them) interrupts a thread; from
//! its registers the code ahead is followed; where that is not possible any more a hardware breakpoint stops
//! the thread again; when N taken branches in a row are known, they make a record and the alarm is set for
//! the next one.
//!
//! **What you do**: call [`trace`] with a process (or [`trace_together`] with several) and a function that
//! takes the records. It occupies a thread of its own until `stop` is set or the process ends.
//!
//! **What it does beyond the paper**: it evaluates ahead ([`restitch_evaluate`]), so that a record needs few
//! breakpoints or none; each breakpoint that is reached also checks what was evaluated before it; the rate
//! follows a budget; threads that start meanwhile are traced too, and processes with what they execute
//! (`children`); code that was loaded meanwhile is found.
//!
//! **What it promises**: the process is never written to, and executes what it would have executed. No state
//! of ours is in it: alarms and breakpoints belong to descriptors of this program, and their signal is one
//! that the target ignores. So this program may be killed at any instruction and the target runs on; a test
//! does that. A record holds branches that were executed one after the other by one thread, up to what
//! [`TraceReport::contradicted`] counts.
//!
//! [`trace_bursts`] does the same through a tracing version ([`BurstCode`]) that somebody else has put into
//! the process: nanoseconds a branch instead of microseconds. The process's memory is not written to by it,
//! but for the window that it shares.
//!
//! **What it will not do**: trace processes that have another tracer, look into signal handlers (a record
//! ends where one begins), trace code that the process may be writing (just-in-time compilers), or set
//! breakpoints in restartable sequences. Like every tracer without `CAP_SYS_PTRACE` it keeps programs with a
//! set-user-id bit from their rights when a traced process executes them: leave `children` off there.

mod burst;
mod code;
mod data;
mod error;
mod options;
#[cfg(test)]
mod oracle_tests;
mod pace;
mod relay;
mod report;
mod reserve;
mod signal;
mod spin_wait;
mod thread;
mod tracer;

pub use burst::{
    BurstCode, BurstEnd, BurstOptions, BurstReport, BurstTables, Guard, Refusal, TracedModule, trace_bursts,
};
pub use error::BranchTraceError;
pub use options::{LookAhead, TraceOptions};
pub use relay::{RecordReceiver, RecordSender, relay};
pub use report::{Missed, Record, RecordEnd, Sink, TraceReport};
pub use restitch_evaluate::Taken;
pub use tracer::{Relative, trace, trace_held, trace_together};
