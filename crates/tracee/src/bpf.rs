//! Classic BPF programs, as seccomp filters are, executed on the description of a system call.
//!
//! Reference: seccomp(2); `struct seccomp_data` in `<linux/seccomp.h>`; `seccomp_check_filter` in
//! kernel/seccomp.c, which says what instructions a filter may consist of;
//! Documentation/networking/filter.rst for what they do. The kernel translates them to eBPF, from which
//! division by zero (the program ends with 0) and long shifts (the amount's lower five bits count) have their
//! meaning.

use libc::sock_filter;

/// `struct seccomp_data` in words: number, architecture, instruction pointer (low word first), six arguments
/// (low words first).
pub(crate) type Call = [u32; 16];

/// Words of a program's scratch memory (`BPF_MEMWORDS`).
const MEMORY: usize = 16;

/// What a program answers: the value that it returns. `None` for one that the kernel would not have taken.
pub(crate) fn answer(program: &[sock_filter], call: &Call) -> Option<u32> {
    let (mut a, mut x, mut memory) = (0u32, 0u32, [0u32; MEMORY]);
    let mut at = 0usize;
    // Jumps lead forward only, so each instruction is executed once at most.
    loop {
        let &sock_filter { code, jt, jf, k } = program.get(at)?;
        at += 1;
        let operand = if code & SOURCE_X == 0 { k } else { x };
        match code {
            LD_ABS => a = loaded(call, k)?,
            LD_LEN => a = size_of::<Call>() as u32,
            LDX_LEN => x = size_of::<Call>() as u32,
            LD_IMM => a = k,
            LDX_IMM => x = k,
            LD_MEM => a = *memory.get(k as usize)?,
            LDX_MEM => x = *memory.get(k as usize)?,
            ST => *memory.get_mut(k as usize)? = a,
            STX => *memory.get_mut(k as usize)? = x,
            TAX => x = a,
            TXA => a = x,
            RET_K => return Some(k),
            RET_A => return Some(a),
            JUMP => at = at.checked_add(k as usize)?,
            _ if code > 0xff => return None,
            _ if code & CLASS == ALU => match computed(code & OPERATION, a, operand)? {
                Some(result) => a = result,
                None => return Some(0),
            },
            _ if code & CLASS == JMP => at += usize::from(if holds(code, a, operand)? { jt } else { jf }),
            _ => return None,
        }
    }
}

/// The word at an offset in bytes.
fn loaded(call: &Call, offset: u32) -> Option<u32> {
    let word = offset.is_multiple_of(4).then_some(offset as usize / 4)?;
    call.get(word).copied()
}

/// The result of an arithmetic instruction; an inner `None` for a division by zero.
fn computed(operation: u16, a: u32, b: u32) -> Option<Option<u32>> {
    Some(match operation {
        ADD => Some(a.wrapping_add(b)),
        SUB => Some(a.wrapping_sub(b)),
        MUL => Some(a.wrapping_mul(b)),
        DIV => a.checked_div(b),
        OR => Some(a | b),
        AND => Some(a & b),
        XOR => Some(a ^ b),
        LSH => Some(a.wrapping_shl(b)),
        RSH => Some(a.wrapping_shr(b)),
        NEG => Some(a.wrapping_neg()),
        _ => return None,
    })
}

/// Whether the condition of a conditional jump holds.
fn holds(code: u16, a: u32, b: u32) -> Option<bool> {
    Some(match code & OPERATION {
        JEQ => a == b,
        JGT => a > b,
        JGE => a >= b,
        JSET => a & b != 0,
        _ => return None,
    })
}

// Codes of <linux/bpf_common.h>: class, operation or mode, source of the operand.
const CLASS: u16 = 0x07;
const OPERATION: u16 = 0xf0;
const SOURCE_X: u16 = 0x08;
const ALU: u16 = 0x04;
const JMP: u16 = 0x05;
const LD_IMM: u16 = 0x00;
const LDX_IMM: u16 = 0x01;
const LD_ABS: u16 = 0x20;
const LD_MEM: u16 = 0x60;
const LDX_MEM: u16 = 0x61;
const LD_LEN: u16 = 0x80;
const LDX_LEN: u16 = 0x81;
const ST: u16 = 0x02;
const STX: u16 = 0x03;
const RET_K: u16 = 0x06;
const RET_A: u16 = 0x16;
const TAX: u16 = 0x07;
const TXA: u16 = 0x87;
const JUMP: u16 = 0x05;
const ADD: u16 = 0x00;
const SUB: u16 = 0x10;
const MUL: u16 = 0x20;
const DIV: u16 = 0x30;
const OR: u16 = 0x40;
const AND: u16 = 0x50;
const LSH: u16 = 0x60;
const RSH: u16 = 0x70;
const NEG: u16 = 0x80;
const XOR: u16 = 0xa0;
const JEQ: u16 = 0x10;
const JGT: u16 = 0x20;
const JGE: u16 = 0x30;
const JSET: u16 = 0x40;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::strategy::ValueTree;
    use std::fmt::Write as _;
    use std::io::Write as _;
    use std::process::{Command, Stdio};

    /// A system call that no kernel has: the filters here speak of it alone, so that whoever runs them can go
    /// on.
    const NUMBER: u32 = 9999;
    const ARCHITECTURE: u32 = 0xc000_003e;
    const ALLOW: u32 = 0x7fff_0000;
    const ERRNO: u32 = 0x0005_0000;

    fn instruction(code: u16, jt: u8, jf: u8, k: u32) -> sock_filter {
        sock_filter { code, jt, jf, k }
    }

    fn plain(code: u16, k: u32) -> sock_filter {
        instruction(code, 0, 0, k)
    }

    /// Numbers in which bits and carries matter.
    fn number() -> impl Strategy<Value = u32> {
        prop_oneof![0..4u32, Just(31), Just(32), Just(u32::MAX), Just(1 << 31), any::<u32>()]
    }

    /// An instruction with so many behind it to jump to.
    fn any_instruction(behind: u8) -> impl Strategy<Value = sock_filter> {
        // The instruction pointer is not known beforehand.
        let word = prop_oneof![0..2u32, 4..16u32].prop_map(|word| plain(LD_ABS, word * 4));
        let own = (prop::sample::select(vec![LD_IMM, LDX_IMM, LD_LEN, LDX_LEN, TAX, TXA]), number())
            .prop_map(|(code, k)| plain(code, k));
        let memory = (prop::sample::select(vec![LD_MEM, LDX_MEM, ST, STX]), 0..4u32)
            .prop_map(|(code, k)| plain(code, k));
        let operations = vec![ADD, SUB, MUL, DIV, OR, AND, XOR, LSH, RSH, NEG];
        let arithmetic =
            (prop::sample::select(operations), any::<bool>(), number()).prop_map(|(op, by_x, k)| {
                let k = match op {
                    DIV => k.max(1),
                    LSH | RSH => k & 31,
                    _ => k,
                };
                plain(ALU | op | if by_x && op != NEG { SOURCE_X } else { 0 }, k)
            });
        let jump = (
            prop::sample::select(vec![JEQ, JGT, JGE, JSET]),
            any::<bool>(),
            0..=behind,
            0..=behind,
            number(),
        )
            .prop_map(|(op, by_x, jt, jf, k)| {
                instruction(JMP | op | if by_x { SOURCE_X } else { 0 }, jt, jf, k)
            });
        let skip = (0..=u32::from(behind)).prop_map(|k| plain(JUMP, k));
        prop_oneof![3 => word, 2 => own, 2 => memory, 4 => arithmetic, 3 => jump, 1 => skip]
    }

    /// A filter that gives an error number of twelve bits for [`NUMBER`], and permits all else.
    fn filter() -> impl Strategy<Value = Vec<sock_filter>> {
        let body =
            (1..24u8).prop_flat_map(|len| (0..len).map(|i| any_instruction(len - 1 - i)).collect::<Vec<_>>());
        (body, prop_oneof![Just(0), number()]).prop_map(|(body, start)| {
            let behind = (body.len() + 6 + 3) as u8;
            let mut out = vec![plain(LD_ABS, 0), instruction(JMP | JEQ, 0, behind, NUMBER)];
            out.extend([plain(LDX_IMM, start), plain(TXA, 0)]);
            out.extend((0..4).map(|slot| plain(if slot % 2 == 0 { ST } else { STX }, slot)));
            out.extend(body);
            out.extend([
                plain(ALU | AND, 0xfff),
                plain(ALU | OR, ERRNO),
                plain(RET_A, 0),
                plain(RET_K, ALLOW),
            ]);
            out
        })
    }

    fn call(arguments: [u64; 6]) -> Call {
        let mut words = [NUMBER, ARCHITECTURE, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
        for (i, argument) in arguments.into_iter().enumerate() {
            (words[4 + 2 * i], words[5 + 2 * i]) = (argument as u32, (argument >> 32) as u32);
        }
        words
    }

    /// Reads a filter and six arguments from each line, makes the call under the filter in a child, and says
    /// what came of it.
    const KERNEL: &str = r#"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
int main(void) {
    int len, status;
    while (scanf("%d", &len) == 1) {
        struct sock_filter filter[64];
        unsigned long argument[6];
        for (int i = 0; i < 6; i++) if (scanf("%lu", &argument[i]) != 1) return 1;
        for (int i = 0; i < len; i++) {
            unsigned code, jt, jf, k;
            if (scanf("%u %u %u %u", &code, &jt, &jf, &k) != 4) return 1;
            filter[i] = (struct sock_filter){code, jt, jf, k};
        }
        if (fork() == 0) {
            struct sock_fprog program = {len, filter};
            if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) _exit(2);
            long result = syscall(9999, argument[0], argument[1], argument[2], argument[3], argument[4], argument[5]);
            printf("%d\n", result == -1 ? errno : 0);
            fflush(stdout);
            _exit(0);
        }
        wait(&status);
        if (WIFSIGNALED(status)) printf("killed\n");
        else if (WEXITSTATUS(status)) printf("not a filter\n");
        fflush(stdout);
    }
}
"#;

    #[test]
    fn the_kernel_gives_the_same_answers() {
        let folder = tempfile::tempdir().unwrap();
        let (source, program) = (folder.path().join("kernel.c"), folder.path().join("kernel"));
        std::fs::write(&source, KERNEL).unwrap();
        if Command::new("cc").arg("-o").arg(&program).arg(&source).status().is_err() {
            eprintln!("SKIPPED: no C compiler `cc`");
            return;
        }
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let cases = (filter(), prop::array::uniform6(number().prop_map(|n| u64::from(n) << 7 | 5)));
        let (mut input, mut expected) = (String::new(), String::new());
        for _ in 0..1000 {
            let (filter, arguments) = cases.new_tree(&mut runner).unwrap().current();
            write!(input, "{}", filter.len()).unwrap();
            arguments.iter().for_each(|argument| write!(input, " {argument}").unwrap());
            for i in &filter {
                write!(input, " {} {} {} {}", i.code, i.jt, i.jf, i.k).unwrap();
            }
            input.push('\n');
            match answer(&filter, &call(arguments)).expect("a filter as the kernel takes them") {
                0 => expected.push_str("killed\n"),
                value => writeln!(expected, "{}", value & 0xfff).unwrap(),
            }
        }
        let mut child = Command::new(&program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("what was compiled runs");
        child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        let told = String::from_utf8(output.stdout).unwrap();
        assert!(expected.contains("killed"), "no program divides by zero");
        let differ = expected.lines().zip(told.lines()).zip(input.lines()).find(|((a, b), _)| a != b);
        assert_eq!(differ, None, "what was expected, what the kernel said, and the case");
        assert_eq!(expected.lines().count(), told.lines().count());
    }

    #[test]
    fn what_the_kernel_refuses_has_no_answer() {
        let call = call([0; 6]);
        for program in [
            vec![],
            vec![plain(LD_IMM, 1)],
            vec![plain(LD_ABS, 2), plain(RET_A, 0)],
            vec![plain(LD_ABS, 64), plain(RET_A, 0)],
            vec![plain(LD_MEM, 16), plain(RET_A, 0)],
            vec![plain(JUMP, 9), plain(RET_A, 0)],
            vec![plain(JUMP, u32::MAX), plain(RET_A, 0)],
            vec![plain(ALU | 0x90, 3), plain(RET_A, 0)],
            vec![plain(0x100 | LD_IMM, 3), plain(0x100 | ALU, 0), plain(RET_A, 0)],
            vec![plain(0x28, 0), plain(RET_A, 0)],
        ] {
            assert_eq!(answer(&program, &call), None);
        }
    }

    proptest! {
        /// Whatever the kernel hands over is no reason to end.
        #[test]
        fn any_words_are_no_panic(words in prop::collection::vec((any::<u16>(), any::<u8>(), any::<u8>(), number()), 0..40)) {
            let program: Vec<_> = words.into_iter().map(|(code, jt, jf, k)| instruction(code & 0x1ff, jt, jf, k)).collect();
            let _ = answer(&program, &call([7; 6]));
        }
    }
}
