//! Instructions of modules for the Linux kernel that restitch writes, in the forms that the kernel's loader
//! knows: it rewrites such places itself, to what the processor and the settings ask for.
//!
//! The forms are those of `arch/x86/kernel/alternative.c`, `static_call.c`, `jump_label.c` and `ftrace.c`.

use crate::patch::{BREAKPOINT, Branch, DISPLACEMENT};

/// Bytes of a place that the kernel rewrites as one: a call, a jump or a `nop` of 5 bytes.
pub const SITE: u32 = 5;
/// What stands where a static key's branch is not taken (`x86_nops[5]`).
pub const SITE_NOP: [u8; SITE as usize] = [0x0f, 0x1f, 0x44, 0x00, 0x00];
/// What fills room between pieces of code, and stands behind jumps that speculation must not pass.
pub const FILL: u8 = BREAKPOINT;
/// Registers that have thunks: all but the stack pointer, by their numbers in instructions.
const STACK_POINTER: u8 = 4;
const REGISTERS: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13", "r14",
    "r15",
];

/// A direct branch whose displacement, of zeros, a relocation fills.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unresolved {
    /// Where the displacement is, in `out`.
    pub field: u32,
    /// Where the instruction ends, from which the displacement counts.
    pub end: u32,
}

/// `call rel32` or `jmp rel32`, to be resolved.
pub fn branch(out: &mut Vec<u8>, branch: Branch) -> Unresolved {
    out.push(match branch {
        Branch::Call => 0xe8,
        Branch::Jump => 0xe9,
    });
    unresolved(out)
}

/// A register that an indirect branch goes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ThunkRegister(u8);

impl ThunkRegister {
    /// The register of this number in instructions; none for the stack pointer, which has no thunk.
    pub fn new(number: u8) -> Option<Self> {
        (usize::from(number) < REGISTERS.len() && number != STACK_POINTER).then_some(Self(number))
    }
    /// By its name in the names of thunks (`__x86_indirect_thunk_rax`).
    pub fn named(name: &str) -> Option<Self> {
        Self::new(REGISTERS.iter().position(|register| *register == name)? as u8)
    }
    /// Its name there.
    pub fn name(self) -> &'static str {
        REGISTERS[usize::from(self.0)]
    }
    /// All of them.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..REGISTERS.len() as u8).filter_map(Self::new)
    }
}

/// Bytes of [`through_thunk`].
pub fn through_thunk_len(register: ThunkRegister) -> u32 {
    SITE + u32::from(register.0 >= 8)
}

/// A branch through a register as compilers write it (`-mindirect-branch-cs-prefix`): a direct one to the
/// thunk of the register. `lfence; call *%r8` needs one byte more than `lfence; call *%rax`, for which there
/// is a prefix that means nothing.
pub fn through_thunk(out: &mut Vec<u8>, kind: Branch, register: ThunkRegister) -> Unresolved {
    if register.0 >= 8 {
        out.push(0x2e);
    }
    branch(out, kind)
}

/// `ret`, for kernels without a thunk for it.
pub fn plain_return(out: &mut Vec<u8>) {
    out.push(0xc3);
}

/// `lea 8(%rsp),%rsp`: drops a return address. Flags stay. In the form with a long displacement, so that it
/// can begin at an even address in front of one.
pub fn drop_return_address(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0x48, 0x8d, 0xa4, 0x24, 0x08, 0x00, 0x00, 0x00]);
}

/// Bytes of [`drop_return_address`].
pub const DROP_RETURN_ADDRESS: u32 = 8;

/// What calls a function with an address, and returns what it returns: `endbr64; lea address(%rip),%rdi;
/// jmp function`.
pub struct HandOver {
    /// The address.
    pub address: Unresolved,
    /// The function.
    pub function: Unresolved,
}

/// Writes that.
pub fn hand_over(out: &mut Vec<u8>) -> HandOver {
    out.extend_from_slice(&[0xf3, 0x0f, 0x1e, 0xfa, 0x48, 0x8d, 0x3d]);
    let address = unresolved(out);
    HandOver { address, function: branch(out, Branch::Jump) }
}

/// Where a counter is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CounterMemory {
    /// Each processor has its own, in memory of the module that the kernel makes once for each.
    PerProcessor,
    /// All count in one.
    Shared,
}

/// The flags that [`counting`] overwrites, of [`ALL_FLAGS`](crate::ALL_FLAGS): all but the carry.
pub const COUNTING_FLAGS: u8 = crate::ALL_FLAGS & !1;
/// Bytes of [`counting`].
pub const COUNTING: u32 = 8;
/// Bytes of [`counting_with_flags_kept`].
pub const COUNTING_WITH_FLAGS_KEPT: u32 = COUNTING + 2;

/// `incq %gs:counter(%rip)`, or `lock incq counter(%rip)`: counts one, whatever interrupts it and wherever
/// the thread goes on. Overwrites the status flags, but for the carry.
pub fn counting(out: &mut Vec<u8>, memory: CounterMemory) -> Unresolved {
    out.extend_from_slice(match memory {
        CounterMemory::PerProcessor => &[0x65, 0x48, 0xff, 0x05],
        CounterMemory::Shared => &[0xf0, 0x48, 0xff, 0x05],
    });
    unresolved(out)
}

/// The same between `pushfq` and `popfq`: the stack is 8 bytes lower from behind the first byte up to the
/// end of the last one.
pub fn counting_with_flags_kept(out: &mut Vec<u8>, memory: CounterMemory) -> Unresolved {
    out.push(0x9c);
    let unresolved = counting(out, memory);
    out.push(0x9d);
    unresolved
}

fn unresolved(out: &mut Vec<u8>) -> Unresolved {
    let field = out.len() as u32;
    out.extend_from_slice(&[0; DISPLACEMENT]);
    Unresolved { field, end: out.len() as u32 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode::{Flow, Insn, scan};
    use restitch_address::Svma;

    const AT: Svma = Svma::new(0x1000);

    fn decoded(bytes: &[u8]) -> Vec<Insn> {
        let mut out = Vec::new();
        scan(bytes, AT, |insn| out.push(insn)).expect("it decodes");
        out
    }

    #[test]
    fn branches_say_where_they_are_resolved() {
        for (kind, call) in [(Branch::Call, true), (Branch::Jump, false)] {
            for register in ThunkRegister::all() {
                let mut out = Vec::new();
                let field = through_thunk(&mut out, kind, register);
                assert_eq!(field, Unresolved { field: field.end - 4, end: through_thunk_len(register) });
                out[field.field as usize] = 7;
                let to = AT + u64::from(field.end) + 7;
                let insn = decoded(&out)[0];
                assert_eq!(insn.flow, if call { Flow::Call(to) } else { Flow::Jump(to) });
                assert_eq!(u32::from(insn.len), field.end);
            }
        }
    }

    #[test]
    fn registers_have_the_names_of_thunks() {
        assert_eq!(ThunkRegister::all().count(), 15);
        assert!(ThunkRegister::all().all(|r| ThunkRegister::named(r.name()) == Some(r)));
        assert_eq!((ThunkRegister::named("rsp"), ThunkRegister::new(16)), (None, None));
    }

    #[test]
    fn single_instructions_are_what_they_are_called() {
        let mut out = Vec::new();
        plain_return(&mut out);
        drop_return_address(&mut out);
        out.extend_from_slice(&SITE_NOP);
        let insns = decoded(&out);
        assert_eq!(insns[0].flow, Flow::Return);
        assert_eq!((insns[1].flow, u32::from(insns[1].len)), (Flow::Next, DROP_RETURN_ADDRESS));
        assert_eq!((insns[2].padding, u32::from(insns[2].len)), (true, SITE));
    }

    #[test]
    fn counters_are_counted_with_flags_kept_or_not() {
        for memory in [CounterMemory::PerProcessor, CounterMemory::Shared] {
            let mut out = Vec::new();
            let plain = counting(&mut out, memory);
            let kept = counting_with_flags_kept(&mut out, memory);
            out[plain.field as usize] = 1;
            out[kept.field as usize] = 2;
            let insns = decoded(&out);
            let lens: Vec<u32> = insns.iter().map(|insn| insn.len.into()).collect();
            assert_eq!(lens, [COUNTING, 1, COUNTING, 1]);
            assert_eq!(out.len() as u32, COUNTING + COUNTING_WITH_FLAGS_KEPT);
            assert_eq!(insns[0].names, Some(AT + u64::from(plain.end) + 1));
            assert_eq!(insns[2].names, Some(AT + u64::from(kept.end) + 2));
            assert_eq!([insns[1].flags_read, insns[3].flags_written], [crate::ALL_FLAGS; 2]);
            assert_eq!(insns[0].flags_written, COUNTING_FLAGS);
        }
    }

    #[test]
    fn an_address_is_handed_over() {
        let mut out = Vec::new();
        let over = hand_over(&mut out);
        out[over.address.field as usize] = 1;
        out[over.function.field as usize] = 2;
        let insns = decoded(&out);
        assert_eq!(insns[1].names, Some(AT + u64::from(over.address.end) + 1));
        assert_eq!(insns[2].flow, Flow::Jump(AT + u64::from(over.function.end) + 2));
    }
}
