//! What modules of a kernel have at places of the function tracer, as writer and checker read it from a
//! module file, each by itself.

use restitch_kernel_check::ModuleForm;
use restitch_kernel_group::ModuleFacts;
use restitch_testkit::{find_program, require, scratch};
use std::process::Command;

/// A module with one place of the tracer.
fn module(place: &str) -> Option<Vec<u8>> {
    let text = format!(
        ".section .modinfo,\"a\"\n.string \"vermagic=6.1.0\"\n.string \"name=small\"\n\
         .section .gnu.linkonce.this_module,\"aw\"\n.string \"small\"\n.balign 8\n\
         .quad init_module\n.quad cleanup_module\n\
         .text\n.globl init_module, cleanup_module\n\
         init_module:\n{place}\nret\ncleanup_module:\nret\n\
         .section __mcount_loc,\"a\"\n.quad init_module\n"
    );
    let folder = scratch();
    let (source, object) = (folder.path().join("small.s"), folder.path().join("small.o"));
    std::fs::write(&source, text).unwrap();
    let assembled = Command::new(find_program("gcc")?).arg("-c").arg(&source).arg("-o").arg(&object).status();
    assert!(assembled.unwrap().success());
    Some(std::fs::read(&object).unwrap())
}

/// objtool, by which kernels that clang builds find these places, writes the `nop`s itself, and the loader
/// does not do it any more. The symbol stays.
#[test]
fn places_of_the_tracer_are_calls_or_what_the_build_has_made_of_them() {
    let nop = ".reloc .+1, R_X86_64_NONE, __fentry__-4\nnopl 8(%rax,%rax,1)";
    for (place, are_calls) in [("call __fentry__", true), (nop, false)] {
        let file = require!(module(place), "gcc");
        assert_eq!(ModuleFacts::read("small.ko", &file).unwrap().traces_are_calls, are_calls, "{place}");
        assert_eq!(ModuleForm::read(&file).unwrap().traces_are_calls, are_calls, "{place}");
    }
}
