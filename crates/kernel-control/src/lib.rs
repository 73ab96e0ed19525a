//! Group modules into a running kernel and out of it, and what the control module says of them.
//!
//! **You** wait for your [`Turn`], load a proved module ([`Control::load`]), and have calls led to its copies
//! for as long as you keep the [`Loaded`], which takes it out again. [`Control::groups`] lists what is there;
//! [`unload`] and [`Control::disable`] are for what others have left.
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
mod loaded;
mod module;
mod signing;

pub use control::{Control, Enabled, Turn};
pub use error::ControlError;
pub use group::{GroupState, GroupStatus};
pub use groups::{GROUPS_SCHEMA_VERSION, Groups};
pub use loaded::Loaded;
pub use module::unload;
pub use signing::ModuleKey;
