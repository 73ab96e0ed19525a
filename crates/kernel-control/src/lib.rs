//! Group modules into a running kernel and out of it, and what the control module says of them.
//!
//! **You** load a proved module ([`load`]), have calls led to its copies ([`Control::enable`]) for as long as
//! you keep the [`Enabled`], and take it out again ([`unload`]). [`Control::groups`] lists what is there.
//!
//! **It does not** write code or know addresses: the kernel's loader and the control module
//! (`kernel/module`) do what is done.
//!
//! Invariants:
//! * Nothing is loaded but a [`CheckedModule`](restitch_kernel_check::CheckedModule).
//! * When the process that enabled a group ends, however it does, the kernel leads calls back.

mod control;
mod error;
mod group;
mod groups;
mod module;

pub use control::{Control, Enabled};
pub use error::ControlError;
pub use group::{GroupState, GroupStatus};
pub use groups::{GROUPS_SCHEMA_VERSION, Groups};
pub use module::{load, unload};
