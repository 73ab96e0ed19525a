//! Distribution kernels in virtual machines, for tests and the laboratory: a script runs in a guest under
//! QEMU, and its output, status and files come back.
//!
//! The user opens a [`Lab`] (a cache folder), asks it for a [`Kernel`], and runs a [`Job`] in a [`Guest`]:
//! [`Guest::run`]. [`take_view`] copies what a kernel says of itself into a folder, for analysis without a
//! guest. [`Plugin`] counts what a guest executes, exactly, in windows that the guest marks.
//! [`build_control_module`] builds the project's kernel module for a kernel.
//!
//! QEMU, kernels and the programs of a guest are Debian's packages, fetched by apt into the cache with lists
//! and state of their own: the machine's packages stay as they are. [`packages`] pins their versions. What
//! cannot be had is an error of the kind [`Error::is_missing`], at which tests skip.
//!
//! One guest runs at a time in one cache: others wait. A kernel that complains (an oops, a warning, a hang)
//! fails a run, unless the guest was made with [`Guest::allow_complaints`].
//!
//! It emulates (TCG), which needs no right and no hardware; it uses no network; and it never changes a
//! machine outside of the cache folder.

mod archive;
mod cache;
mod command;
mod complaints;
mod control;
mod counts;
mod cpio;
mod error;
mod guest;
mod image;
mod initramfs;
mod job;
mod kcore;
mod kernel;
mod lab;
pub mod packages;
mod plugin;
mod qemu;
mod tar;
mod view;

pub use complaints::complaints;
pub use control::{build_control_module, build_trial_modules};
pub use counts::{Concentration, Counts, Edge, EdgeKind, Executed, Summary};
pub use error::Error;
pub use guest::{Guest, Output};
pub use image::root_image;
pub use job::{FileIn, Job, Source};
pub use kcore::assemble_kcore;
pub use kernel::Kernel;
pub use lab::Lab;
pub use plugin::{Plugin, Window, build_marker};
pub use qemu::SecureBoot;
pub use view::take_view;

/// What this crate's functions return.
pub type Result<T> = std::result::Result<T, Error>;
