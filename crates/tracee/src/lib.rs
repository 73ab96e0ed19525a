//! Somebody else's process, safely: stop it, look at it, make system calls in it, let it go.
//!
//! **What it does**: [`Stopped::seize_all`] holds all threads of a process; a [`Stopped`] gives access to
//! registers and [`Memory`]; [`Stopped::borrow_thread`] makes system calls in the process, [`visit`] does so
//! while all but one of its threads run, [`Stopped::step_thread`] executes single instructions;
//! [`TraceEvents`] starts a program and follows it from its exec to its exit; [`Followed`] attends to the
//! threads of a running process one by one; [`Foreground`] stands in front of a command and passes signals
//! on; [`AskedToEnd`] notes that this program is to end.
//!
//! **What the user must do**: keep everything on one thread (the types are not `Send`: the kernel accepts
//! requests from the tracing thread only), keep stops short, and order changes so that the process is correct
//! after each of them, because this program may be killed between any two.
//!
//! **What it promises**: if this program dies at any point, the kernel lets all threads go and each continues
//! correctly: changed registers are in a state that was set on purpose, and a borrowed thread returns by
//! itself. Signals that arrive in a stop are delivered afterwards, each once. System calls that a stop
//! interrupts are restarted, also those that the kernel would end with a false `EINTR`; what cannot be kept
//! is the timeout of those few, which begins anew. One gap is left: a death between the interruption of a
//! thread and the look at its registers (some 10 us) leaves that `EINTR` to calls that may return it after
//! any stop signal (signal(7), "Interruption of system calls by stop signals").
//!
//! **What it will not do**: touch processes that run 32-bit code or have another tracer; make system calls
//! that a process's filters (seccomp) forbid, or whose permission cannot be found out ([`refuse_by_filters`]
//! asks beforehand); undo writes to memory; protect a target from being killed by others.

mod arguments;
mod asked_to_end;
mod batch;
mod borrow;
mod borrow_area;
mod bpf;
mod breakpoint;
mod child;
mod clock;
mod collapse;
mod cut_calls;
mod descriptors;
mod disposition;
mod error;
mod follow;
mod foreground;
mod frame;
mod helper;
mod launch;
mod launch_stop;
mod memory;
mod neighbours;
mod not_started;
mod registers;
mod remote;
mod run_to;
mod seccomp;
mod seize;
mod served;
mod shared_memory;
mod status;
mod step;
mod stopped;
mod stub;
mod suspend;
mod sys;
mod taken;
mod unborrowable;
mod urgent;
mod visit;
mod wait;
mod waitid;
mod wake;

pub use arguments::{Backing, Placement, Protection, RemoteFd};
pub use asked_to_end::AskedToEnd;
pub use batch::Batch;
pub use borrow::Borrow;
pub use child::{OwnChild, wait_for_child};
pub use collapse::collapse_pages;
pub use cut_calls::cut_calls;
pub use descriptors::{close_on_exec, own_descriptors};
pub use disposition::{as_started, be_told_of_children, survive_file_limits};
pub use error::TraceError;
pub use follow::{Children, FollowEvent, Followed, Unfollowed};
pub use foreground::Foreground;
pub use launch::{LaunchOptions, TraceEvent, TraceEvents};
pub use memory::Memory;
pub use not_started::{NotStarted, find_program};
pub use registers::{PendingRestart, Registers};
pub use seccomp::{may_read_filters, refuse_by_filters};
pub use seize::{StopOptions, is_32_bit_file, preflight, settle_stragglers};
pub use shared_memory::{AloneInMemory, refuse_shared_memory, shares_memory};
pub use status::ExitStatus;
pub use step::StepEnd;
pub use stopped::{StopTimes, Stopped};
pub use stub::{BATCH_SPACE, STUB_SPACE, StubPlace, find_padding, is_padding};
pub use suspend::{HoldsOther, be_suspended, is_to_be_suspended};
pub use taken::{Sealed, TakenFile};
pub use unborrowable::Unborrowable;
pub use urgent::{aside, be_lowest, be_nice, be_punctual};
pub use visit::visit;
