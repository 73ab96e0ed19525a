//! Group modules: copies of kernel code in a new order, as a module file that the kernel's own loader takes.
//!
//! **You** say which blocks go where ([`Group`]), in plain data with original addresses, and give the facts
//! about modules of that kernel, which any module file of it has ([`ModuleFacts`]). [`write_module`] gives a
//! relocatable ELF file, without a compiler and without headers. The loader then keeps the copies right,
//! since the tables that it knows are in the file: exceptions, the unwinder's rows, warnings, static keys and
//! calls, sites of the function tracer, returns and branches through registers in canonical form.
//! A group may count: in blocks and on edges, by counters that each processor has or that all share.
//!
//! **It does not** decide what may be copied, read a kernel, or load anything; and what it writes is not
//! trusted: a reader of its own has to prove it equal to the kernel's code.
//!
//! Invariants:
//! * Same group, same bytes.
//! * Code that is not copied is reached at its original place; data always is.
//! * A file fits one boot of one kernel: the loader refuses it where an anchor ([`Anchor`]) is elsewhere.

mod arrange;
mod code;
mod container;
mod counters;
mod descriptor;
mod error;
mod facts;
mod group;
mod section;
mod tables;
mod write;

pub use error::GroupError;
pub use facts::ModuleFacts;
pub use group::{
    Anchor, Block, Chunk, Counters, End, Exception, Fixup, Function, Group, Heat, KernelPlaces, Target,
    UnwindRow, Warning,
};
pub use restitch_x86::Condition;
pub use restitch_x86::module_code::{CounterMemory, ThunkRegister};
pub use write::{PlacedCode, Written, write_module};
