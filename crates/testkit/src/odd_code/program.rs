//! Whole programs.

use super::function;
use super::text::Text;
use crate::random::Random;

/// How a program is linked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Linking {
    /// At fixed addresses, and without a loader.
    pub fixed: bool,
    /// The loader may write into code.
    pub text_relocations: bool,
    /// Without symbols.
    pub stripped: bool,
    /// By LLVM's linker in place of GNU's, where it is there.
    pub lld: bool,
    /// Two functions have entries of unwind tables that overlap. (GNU's linker refuses that.)
    pub overlapping: bool,
}

/// A program that no compiler writes.
#[derive(Debug, Clone)]
pub struct OddProgram {
    /// The functions, for the assembler.
    pub assembly: String,
    /// How it is linked.
    pub linking: Linking,
}

/// What pieces use, and what `main.c` asks for.
const COMMON: &str = "\
.text
.p2align 4
.type thunk, @function
thunk:
.cfi_startproc
mov (%rsp), %rcx
ret
.cfi_endproc
.size thunk, . - thunk
.type take_argument, @function
take_argument:
.cfi_startproc
mov (%rsp), %rdx
mov (%rdx), %ecx
addq $4, (%rsp)
ret
.cfi_endproc
.size take_argument, . - take_argument
.type leave_flags, @function
leave_flags:
.cfi_startproc
cmp %rsi, %rdi
je 1f
lea 1(%rcx), %rcx
1: lea 2(%rcx), %rcx
ret
.cfi_endproc
.size leave_flags, . - leave_flags
.type take_flags, @function
take_flags:
.cfi_startproc
js 1f
lea 5(%rcx), %rcx
ret
1: lea 9(%rcx), %rcx
ret
.cfi_endproc
.size take_flags, . - take_flags
.data
.p2align 3
constants: .quad 0x1122334455667788, 0x99aabbccddeeff00
.bss
.p2align 3
scratch: .skip 8
";

/// Unwind tables by hand: one entry for both `f0` and `f1`, over what they have of their own.
const OVERLAPPING: &str = "\
.section .eh_frame, \"a\", @unwind
.p2align 3
.Lcie: .long .Lcie_end - .Lcie_id
.Lcie_id: .long 0
.byte 1
.asciz \"zR\"
.uleb128 1
.sleb128 -8
.uleb128 16
.uleb128 1
.byte 0x1b
.byte 0xc, 7, 8, 0x90, 1
.p2align 3
.Lcie_end:
.long .Lfde_end - .Lfde
.Lfde: .long .Lfde - .Lcie
.long f0 - .
.long functions_end - f0
.uleb128 0
.p2align 3
.Lfde_end:
";

impl OddProgram {
    /// The program of a seed: always the same one.
    pub fn generate(seed: u64) -> Self {
        let mut random = Random::new(seed.wrapping_add(1));
        let fixed = random.one_in(3);
        let lld = random.one_in(3);
        let linking = Linking {
            fixed,
            text_relocations: !fixed && random.one_in(4),
            stripped: random.one_in(2),
            lld,
            overlapping: lld && random.one_in(4),
        };
        let count = 2 + random.below(8) as usize;
        let mut text = Text::new(random, linking.text_relocations, fixed);
        let common = match text.random.one_in(4) {
            true => COMMON.replace(".cfi_startproc\n", "").replace(".cfi_endproc\n", ""),
            false => COMMON.to_string(),
        };
        text.line(common);
        text.line(".text");
        for index in 0..count {
            function::write(&mut text, index);
            if index == 1 {
                text.line("functions_end:");
            }
        }
        let list: String = (0..count).map(|index| format!(".quad f{index}\n")).collect();
        text.line(format!(
            ".section .data.rel.ro, \"aw\"\n.p2align 3\n.globl functions\nfunctions:\n{list}\
             .globl function_count\nfunction_count: .quad {count}"
        ));
        if linking.overlapping {
            text.line(OVERLAPPING);
        }
        text.line(".section .note.GNU-stack, \"\", @progbits");
        Self { assembly: text.out, linking }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_gives_one_program() {
        assert_eq!(OddProgram::generate(7).assembly, OddProgram::generate(7).assembly);
        assert_ne!(OddProgram::generate(7).assembly, OddProgram::generate(8).assembly);
    }
}
