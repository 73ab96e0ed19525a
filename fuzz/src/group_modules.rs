//! Module files with copies of kernel code, beside a kernel in memory.

#[allow(dead_code)] // The tests of the checker use all of it.
#[path = "../../crates/kernel-check/tests/synthetic/mod.rs"]
mod synthetic;

use restitch_kernel_check::{ModuleForm, check};
use restitch_kernel_group::write_module;
use std::sync::OnceLock;
use synthetic::{LIVE, Synthetic, asked, facts, group, module_facts};

/// Any file: it is refused, or has calls of the one function that was asked for led to a copy.
pub fn group_module(data: &[u8]) {
    static KERNEL: OnceLock<Synthetic> = OnceLock::new();
    let kernel = KERNEL.get_or_init(|| Synthetic::of(&group(), LIVE));
    let _ = ModuleForm::read(data);
    if let Ok(checked) = check(data.to_vec(), kernel, &facts(), &asked()) {
        assert_eq!((checked.file(), checked.report().redirected), (data, 1));
    }
}

/// A module that is proved.
pub(crate) fn seed() -> Vec<u8> {
    write_module(&group(), &module_facts()).expect("it can be written").file
}
