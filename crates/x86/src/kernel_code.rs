//! Code of a kernel, decoded: what programs of users never hold, and what the field's decoders get wrong.
//!
//! **Problem.** Kernel code traps on purpose and goes on behind the trap (`WARN`), executes instructions that
//! only it may (`hlt`, `swapgs`), calls hypervisors by instructions that decoders take for calls of functions
//! (`vmgexit`, `tdcall`), and holds bytes that are no instruction to them (`0xd6`, `lock jcc`). Branches
//! through registers stand in whatever form the kernel has given them at boot.
//!
//! **Idea.** One pass like [`crate::scan`], that says of each instruction what it is to a kernel. Which traps
//! go on is in the kernel's tables, and which addresses are thunks in its symbols: both are the caller's.
//!
//! **Limits.** `xbegin`, far branches and operands relative to `eip` are [`Flow::Unsupported`].
//! Forms: `arch/x86/include/asm/bug.h`, `arch/x86/kernel/traps.c` (`decode_bug`), `alternative.c`.

use crate::decode::{Flow, Insn, classify};
use crate::module_code::{FILL, SITE, SITE_NOP, ThunkRegister, through_thunk_len};
use crate::patch::Branch;
use iced_x86::{Code, Decoder, DecoderOptions, FlowControl, Instruction, Mnemonic, OpKind, Register};
use restitch_address::Svma;

/// An instruction that is made to trap.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Trap {
    /// `ud2`: `BUG`, or `WARN` of older kernels.
    Ud2,
    /// `ud1`: `WARN` with its arguments, and sanitizers.
    Ud1,
    /// `ud0`.
    Ud0,
    /// `udb`, a byte for it alone (`0xd6`; `0xea` before): failed checks of branch targets.
    Udb,
    /// A conditional branch with a `lock` prefix: the same, in two instructions at once.
    LockedBranch,
    /// `int3`.
    Breakpoint,
}

/// A branch through a register that stands in the code itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IndirectSite {
    /// The register.
    pub register: ThunkRegister,
    /// A call or a jump.
    pub branch: Branch,
    /// Bytes of all that stands for it: with the `lfence` in front and the filler behind, the length of a
    /// direct branch to a thunk; of the instruction alone if it was never one.
    pub len: u8,
    /// Whether it has the length of a direct branch to a thunk.
    pub is_rewritten: bool,
}

/// An instruction of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KernelInsn {
    /// The instruction. Traps are [`Flow::Stop`]; a rewritten site ([`IndirectSite`]) is one instruction.
    pub insn: Insn,
    /// If it is made to trap.
    pub trap: Option<Trap>,
    /// If it is a branch through a register.
    pub indirect: Option<IndirectSite>,
    /// Offset of the 4-byte displacement from the program counter, of an operand.
    pub displacement: Option<u8>,
    /// Whether it puts the address of its own end in a register (`_THIS_IP_`): to tell somebody where it is.
    pub tells_place: bool,
}

/// Decodes `bytes`, which stand at `at`, to the end and hands each instruction to `sink`.
///
/// # Errors
/// The address of the first byte sequence that is not an instruction, or that the end of `bytes` cuts off.
pub fn scan_kernel(bytes: &[u8], at: Svma, mut sink: impl FnMut(KernelInsn)) -> Result<(), Svma> {
    let mut decoder = Decoder::with_ip(64, bytes, at.get(), DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    let mut from = 0;
    while let Some(rest) = bytes.get(from..).filter(|rest| !rest.is_empty()) {
        let here = at + from as u64;
        let found = match special(rest, here) {
            Some(found) => found,
            None => {
                decoder.set_position(from).map_err(|_| here)?;
                decoder.set_ip(here.get());
                decoder.decode_out(&mut instruction);
                if instruction.is_invalid() {
                    return Err(here);
                }
                ordinary(&decoder, &instruction)
            }
        };
        from += usize::from(found.insn.len);
        sink(found);
    }
    Ok(())
}

/// What the decoder does not know, or what is several instructions to it.
fn special(rest: &[u8], at: Svma) -> Option<KernelInsn> {
    match rest {
        [0xd6 | 0xea, ..] => Some(trap_of(at, 1, Trap::Udb)),
        [0xf0, 0x70..=0x7f, _, ..] => Some(trap_of(at, 3, Trap::LockedBranch)),
        [0x0f, 0xae, 0xe8, ..] | [0xff, ..] | [0x41, 0xff, ..] => {
            let site = indirect_site(rest).filter(|site| site.is_rewritten)?;
            let flow = match site.branch {
                Branch::Call => Flow::IndirectCall,
                Branch::Jump => Flow::IndirectJump,
            };
            let insn = Insn { flow, padding: false, ..plain(at, site.len) };
            Some(KernelInsn { indirect: Some(site), ..without_operands(insn) })
        }
        _ => None,
    }
}

/// A trap of `len` bytes.
fn trap_of(at: Svma, len: u8, trap: Trap) -> KernelInsn {
    let insn = Insn { flow: Flow::Stop, padding: false, ..plain(at, len) };
    KernelInsn { trap: Some(trap), ..without_operands(insn) }
}

fn without_operands(insn: Insn) -> KernelInsn {
    KernelInsn { insn, trap: None, indirect: None, displacement: None, tells_place: false }
}

/// What a `nop` of that length is.
fn plain(at: Svma, len: u8) -> Insn {
    let nop = Decoder::with_ip(64, &SITE_NOP, at.get(), DecoderOptions::NONE).decode();
    Insn { len, names: None, ..classify(&nop) }
}

fn ordinary(decoder: &Decoder<'_>, instruction: &Instruction) -> KernelInsn {
    let insn = classify(instruction);
    let is_relative = instruction.is_ip_rel_memory_operand();
    let displacement =
        is_relative.then(|| decoder.get_constant_offsets(instruction).displacement_offset() as u8);
    let narrow = is_relative && instruction.memory_base() == Register::EIP;
    let flow = if narrow { Flow::Unsupported } else { kernel_flow(instruction, insn.flow) };
    let trap = match instruction.mnemonic() {
        Mnemonic::Ud0 => Some(Trap::Ud0),
        Mnemonic::Ud1 => Some(Trap::Ud1),
        Mnemonic::Ud2 => Some(Trap::Ud2),
        Mnemonic::Int3 => Some(Trap::Breakpoint),
        _ => None,
    };
    let makes = matches!(instruction.mnemonic(), Mnemonic::Lea | Mnemonic::Mov);
    let tells_place = makes
        && instruction.op0_kind() == OpKind::Register
        && !insn.naming.is_access()
        && insn.names == Some(insn.end());
    let indirect = plain_indirect(instruction);
    KernelInsn { insn: Insn { flow, ..insn }, trap, indirect, displacement, tells_place }
}

/// Where control goes, to a kernel.
fn kernel_flow(instruction: &Instruction, flow: Flow) -> Flow {
    let is_far = matches!(instruction.code(), Code::Call_m1616 | Code::Call_m1632 | Code::Call_m1664);
    match (instruction.flow_control(), instruction.mnemonic()) {
        // It waits for an interrupt, and goes on.
        (FlowControl::Next, Mnemonic::Hlt) => Flow::Next,
        // Hypervisors and enclaves are called, and return to what follows.
        (FlowControl::Call, mnemonic) if mnemonic != Mnemonic::Call && !is_far => Flow::Next,
        _ => flow,
    }
}

fn plain_indirect(instruction: &Instruction) -> Option<IndirectSite> {
    let branch = match instruction.code() {
        Code::Call_rm64 => Branch::Call,
        Code::Jmp_rm64 => Branch::Jump,
        _ => return None,
    };
    let register = instruction.op0_register();
    let number = register.is_gpr64().then(|| register.number() as u8)?;
    let len = instruction.len() as u8;
    Some(IndirectSite { register: ThunkRegister::new(number)?, branch, len, is_rewritten: false })
}

/// The branch through a register at the start of the bytes, in the forms that kernels write over branches to
/// thunks: `call *%reg` or `jmp *%reg`, `lfence` in front or not, filled with `nop` or `int3`.
fn indirect_site(bytes: &[u8]) -> Option<IndirectSite> {
    const FENCE: [u8; 3] = [0x0f, 0xae, 0xe8];
    let behind = bytes.strip_prefix(&FENCE).unwrap_or(bytes);
    let (high, tail) = match behind {
        [0x41, tail @ ..] => (8, tail),
        tail => (0, tail),
    };
    let [0xff, operand, ..] = tail else { return None };
    let branch = match operand {
        0xd0..=0xd7 => Branch::Call,
        0xe0..=0xe7 => Branch::Jump,
        _ => return None,
    };
    let register = ThunkRegister::new((operand & 7) + high)?;
    let own = bytes.len() - tail.len() + 2;
    let whole = through_thunk_len(register) as usize;
    let filler = bytes.get(own..whole)?;
    let is_rewritten = is_site_filler(filler) && !(filler.is_empty() && behind.len() == bytes.len());
    Some(IndirectSite {
        register,
        branch,
        len: if is_rewritten { whole as u8 } else { own as u8 },
        is_rewritten,
    })
}

/// Whether bytes are what kernels fill a site with: `nop` of their length, several of one byte, or `int3`.
fn is_site_filler(bytes: &[u8]) -> bool {
    crate::filler::filler_len(bytes) == bytes.len()
        || bytes.iter().all(|byte| *byte == FILL)
        || bytes.iter().all(|byte| crate::filler::fills_alone(*byte) && *byte != 0)
}

/// What stands where a static key's branch is or is not taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeySite {
    /// Bytes: 2 or 5.
    pub len: u8,
    /// Whether it is the jump, and not the `nop`.
    pub is_jump: bool,
}

/// The branch of a static key at the start of `bytes`, which stand at `at`, if it is one to `target`.
pub fn key_site(bytes: &[u8], at: Svma, target: Svma) -> Option<KeySite> {
    const SHORT_NOP: [u8; 2] = [0x66, 0x90];
    if bytes.starts_with(&SHORT_NOP) {
        return Some(KeySite { len: 2, is_jump: false });
    }
    if bytes.starts_with(&SITE_NOP) {
        return Some(KeySite { len: SITE as u8, is_jump: false });
    }
    let insn = crate::decode::first_insn(bytes, at)?;
    (insn.flow == Flow::Jump(target)).then_some(KeySite { len: insn.len, is_jump: true })
}

/// What stands at the place of a static call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StaticCallForm {
    /// A call of a function.
    Call(Svma),
    /// A jump to it: a call at the end of the caller.
    Jump(Svma),
    /// Nothing: the key has no function.
    Nothing,
    /// `xor %eax,%eax`: the function returns 0.
    ReturnZero,
    /// A return: nothing, at the end of the caller.
    Return,
    /// A trap that reports.
    Warns,
    /// The unlocking of a spin lock, in place (`movb $0,(%rdi)`).
    Unlocks,
}

impl StaticCallForm {
    /// What is called.
    pub fn callee(self) -> Option<Svma> {
        match self {
            Self::Call(to) | Self::Jump(to) => Some(to),
            _ => None,
        }
    }
}

/// The static call at the start of `bytes`, which stand at `at`, in whatever state (`static_call.c`); none if
/// it is in no state that is known.
pub fn static_call_form(bytes: &[u8], at: Svma) -> Option<StaticCallForm> {
    const ZERO: [u8; 5] = [0x2e, 0x2e, 0x2e, 0x31, 0xc0];
    const OLD_ZERO: [u8; 5] = [0x66, 0x66, 0x48, 0x31, 0xc0];
    const UNLOCK: [u8; 5] = [0x3e, 0x3e, 0xc6, 0x07, 0x00];
    const RETURN: [u8; 2] = [0xc3, FILL];
    const WARN: [u8; 5] = [0x67, 0x48, 0x0f, 0xb9, 0x3a];
    let site: [u8; SITE as usize] = *bytes.first_chunk()?;
    if site == SITE_NOP {
        return Some(StaticCallForm::Nothing);
    }
    match site {
        ZERO | OLD_ZERO => return Some(StaticCallForm::ReturnZero),
        UNLOCK => return Some(StaticCallForm::Unlocks),
        WARN => return Some(StaticCallForm::Warns),
        _ if site.starts_with(&RETURN) => return Some(StaticCallForm::Return),
        _ => {}
    }
    match crate::decode::first_insn(&site, at)?.flow {
        Flow::Call(to) => Some(StaticCallForm::Call(to)),
        Flow::Jump(to) => Some(StaticCallForm::Jump(to)),
        _ => None,
    }
}

/// Whether `bytes` begin with what stands at the function tracer's place while nobody traces.
pub fn is_quiet_trace_site(bytes: &[u8]) -> bool {
    bytes.starts_with(&SITE_NOP)
}

/// Whether `bytes` begin with an instruction whose lock prefix a kernel has taken out, as there is only one
/// processor (`alternatives_smp_unlock`): a prefix without a meaning (`ds`) stands there, and with
/// [`LOCK`] in its place it is an instruction that may be locked. (If that prefix was always there, the lock
/// makes the instruction slower, and nothing else.)
pub fn is_unlocked(bytes: &[u8]) -> bool {
    /// Bytes of the longest instruction.
    const LONGEST: usize = 15;
    if !bytes.starts_with(&[UNLOCKED]) {
        return false;
    }
    let mut locked = [0; LONGEST];
    let len = bytes.len().min(LONGEST);
    locked[..len].copy_from_slice(&bytes[..len]);
    locked[0] = LOCK;
    let own = Decoder::new(64, &bytes[..len], DecoderOptions::NONE).decode();
    let insn = Decoder::new(64, &locked[..len], DecoderOptions::NONE).decode();
    // Decoders take a lock in front of writes of memory only.
    !insn.is_invalid()
        && insn.has_lock_prefix()
        && insn.op0_kind() == OpKind::Memory
        && (insn.code(), insn.len()) == (own.code(), own.len())
}

/// The lock prefix.
pub const LOCK: u8 = 0xf0;
/// What kernels write over it.
const UNLOCKED: u8 = 0x3e;

/// Whether `bytes` begin with a return to the address on the stack that does nothing else: not one that
/// drops arguments, or that leaves an interrupt or the kernel.
pub fn is_near_return(bytes: &[u8]) -> bool {
    let insn = Decoder::new(64, &bytes[..bytes.len().min(SITE as usize)], DecoderOptions::NONE).decode();
    insn.code() == Code::Retnq
}

/// The function that the function tracer's place at the start of `bytes` calls or jumps to, while somebody
/// traces.
pub fn traced_by(bytes: &[u8], at: Svma) -> Option<Svma> {
    static_call_form(bytes, at)?.callee()
}

/// Bytes of the marker of branch targets at the start of `bytes`: `endbr64`, or what a kernel has written
/// over it where no pointer leads (`nopl -42(%rax)`, `nop` of 4 bytes); 0 if there is none.
pub fn target_marker(bytes: &[u8]) -> u64 {
    const SEALED: [u8; 4] = [0x0f, 0x1f, 0x40, 0xd6];
    const POISON: [u8; 4] = [0x66, 0x0f, 0x1f, 0x00];
    const NOP: [u8; 4] = [0x0f, 0x1f, 0x40, 0x00];
    let marker = crate::entry::entry_marker(bytes);
    let is_sealed = [SEALED, POISON, NOP].iter().any(|form| bytes.starts_with(form));
    if is_sealed { SEALED.len() as u64 } else { marker as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AT: Svma = Svma::new(0xffff_ffff_8100_0000);

    fn decoded(bytes: &[u8]) -> Vec<KernelInsn> {
        let mut out = Vec::new();
        scan_kernel(bytes, AT, |insn| out.push(insn)).unwrap_or_else(|at| panic!("{at:?}: {bytes:x?}"));
        out
    }

    #[test]
    fn traps_are_known_with_their_lengths() {
        for (bytes, trap) in [
            (&[0xd6][..], Trap::Udb),
            (&[0xea], Trap::Udb),
            (&[0xf0, 0x75, 0xfd], Trap::LockedBranch),
            (&[0x0f, 0x0b], Trap::Ud2),
            (&[0x67, 0x48, 0x0f, 0xb9, 0x3a], Trap::Ud1),
            (&[0x67, 0x0f, 0xb9, 0x40, 0x16], Trap::Ud1),
            (&[0xcc], Trap::Breakpoint),
        ] {
            let found = decoded(&[bytes, &[0x90]].concat());
            assert_eq!(found.len(), 2, "{bytes:x?}");
            assert_eq!(
                (found[0].trap, usize::from(found[0].insn.len)),
                (Some(trap), bytes.len()),
                "{bytes:x?}"
            );
            assert_eq!(found[0].insn.flow, Flow::Stop);
        }
    }

    #[test]
    fn calls_of_hypervisors_return_to_what_follows() {
        for bytes in [
            &[0xf3, 0x0f, 0x01, 0xd9][..], // vmgexit
            &[0x66, 0x0f, 0x01, 0xcc],     // tdcall
            &[0x0f, 0x01, 0xc1],           // vmcall
            &[0x0f, 0x01, 0xd9],           // vmmcall
            &[0xf4],                       // hlt
            &[0x0f, 0x01, 0xf8],           // swapgs
            &[0x3e, 0x3e, 0xc6, 0x07, 0x00],
        ] {
            let found = decoded(bytes);
            assert_eq!((found.len(), found[0].insn.flow), (1, Flow::Next), "{bytes:x?}");
        }
        assert_eq!(decoded(&[0x48, 0x0f, 0x07])[0].insn.flow, Flow::Return, "sysretq");
        assert_eq!(decoded(&[0x48, 0xcf])[0].insn.flow, Flow::Return, "iretq");
    }

    #[test]
    fn rewritten_branches_through_registers_are_one_instruction() {
        let rax = ThunkRegister::new(0).expect("a register");
        let r11 = ThunkRegister::new(11).expect("a register");
        for (bytes, register, branch) in [
            (&[0x0f, 0xae, 0xe8, 0xff, 0xd0][..], rax, Branch::Call),
            (&[0xff, 0xd0, 0x0f, 0x1f, 0x00], rax, Branch::Call),
            (&[0xff, 0xe0, 0xcc, 0xcc, 0xcc], rax, Branch::Jump),
            (&[0x41, 0xff, 0xe3, 0xcc, 0xcc, 0xcc], r11, Branch::Jump),
            (&[0x0f, 0xae, 0xe8, 0x41, 0xff, 0xd3], r11, Branch::Call),
        ] {
            let found = decoded(bytes);
            let site = found[0].indirect.expect("it is one");
            assert_eq!((found.len(), site.register, site.branch), (1, register, branch), "{bytes:x?}");
            assert!(site.is_rewritten && usize::from(site.len) == bytes.len());
        }
        let plain = decoded(&[0xff, 0xd0, 0x48, 0x89, 0xc7]);
        assert_eq!((plain.len(), plain[0].insn.len, plain[0].insn.flow), (2, 2, Flow::IndirectCall));
        assert!(plain[0].indirect.is_some_and(|site| !site.is_rewritten));
    }

    #[test]
    fn displacements_are_found_and_cut_off_code_is_refused() {
        let found = decoded(&[0x65, 0x48, 0x8b, 0x05, 4, 0, 0, 0]);
        assert_eq!((found[0].displacement, found[0].insn.names), (Some(4), Some(AT + 12)));
        assert_eq!(scan_kernel(&[0x90, 0x48, 0x8b], AT, |_| ()), Err(AT + 1));
    }

    #[test]
    fn who_tells_where_it_is_is_known() {
        // lea 0(%rip),%rdi; mov $end,%rdi
        assert!(decoded(&[0x48, 0x8d, 0x3d, 0, 0, 0, 0])[0].tells_place);
        assert!(decoded(&[0x48, 0xc7, 0xc7, 7, 0, 0, 0x81])[0].tells_place);
        // lea 1(%rip),%rdi; push $end; mov 0(%rip),%rdi; cmp $end,%rdi
        for bytes in [
            &[0x48, 0x8d, 0x3d, 1, 0, 0, 0][..],
            &[0x68, 5, 0, 0, 0x81],
            &[0x48, 0x8b, 0x3d, 0, 0, 0, 0],
            &[0x48, 0x81, 0xff, 7, 0, 0, 0x81],
        ] {
            assert!(!decoded(bytes)[0].tells_place, "{bytes:x?}");
        }
    }

    #[test]
    fn locks_that_are_taken_out_are_known() {
        // lock orb $1,(%rdi); lock cmpxchg %rdx,(%rdi); lock cmpxchg16b %gs:(%rsi)
        for bytes in [
            &[LOCK, 0x80, 0x0f, 0x01][..],
            &[LOCK, 0x48, 0x0f, 0xb1, 0x17],
            &[LOCK, 0x65, 0x48, 0x0f, 0xc7, 0x0e],
        ] {
            assert!(!is_unlocked(bytes), "{bytes:x?}");
            assert!(is_unlocked(&[&[UNLOCKED], &bytes[1..], &[0x90]].concat()), "{bytes:x?}");
        }
        // mov %eax,(%rdi); or (%rdi),%al; or %al,%al; jmp; half of an instruction
        for bytes in [&[0x89, 0x07][..], &[0x0a, 0x07], &[0x08, 0xc0], &[0xeb, 0x00], &[0x80], &[]] {
            assert!(!is_unlocked(&[&[UNLOCKED], bytes].concat()), "{bytes:x?}");
        }
    }

    #[test]
    fn returns_that_do_more_are_told_apart() {
        for (bytes, is_near) in [
            (&[0xc3][..], true),
            (&[0xf3, 0xc3], true),
            (&[0xc2, 8, 0], false),
            (&[0x48, 0xcf], false),
            (&[0x48, 0x0f, 0x07], false),
            (&[0xe9, 0, 0, 0, 0], false),
            (&[], false),
        ] {
            assert_eq!(is_near_return(bytes), is_near, "{bytes:x?}");
        }
    }

    #[test]
    fn places_that_are_rewritten_are_read_in_each_state() {
        use StaticCallForm::{Call, Jump, Nothing, Return, ReturnZero, Unlocks, Warns};
        for (bytes, form) in [
            ([0xe8, 0, 0, 0, 0], Call(AT + 5)),
            ([0xe9, 3, 0, 0, 0], Jump(AT + 8)),
            (SITE_NOP, Nothing),
            ([0x2e, 0x2e, 0x2e, 0x31, 0xc0], ReturnZero),
            ([0xc3, 0xcc, 0xcc, 0xcc, 0xcc], Return),
            ([0x67, 0x48, 0x0f, 0xb9, 0x3a], Warns),
            ([0x3e, 0x3e, 0xc6, 0x07, 0x00], Unlocks),
        ] {
            assert_eq!(static_call_form(&bytes, AT), Some(form));
        }
        assert_eq!(static_call_form(&[0x48, 0x89, 0xc7, 0x90, 0x90], AT), None);
        assert_eq!(static_call_form(&[0xe8], AT), None);
        let to = AT + 0x12;
        assert_eq!(key_site(&[0xeb, 0x10], AT, to), Some(KeySite { len: 2, is_jump: true }));
        assert_eq!(key_site(&[0xe9, 0x0d, 0, 0, 0], AT, to), Some(KeySite { len: 5, is_jump: true }));
        assert_eq!(key_site(&[0x66, 0x90], AT, to), Some(KeySite { len: 2, is_jump: false }));
        assert_eq!(key_site(&SITE_NOP, AT, to), Some(KeySite { len: 5, is_jump: false }));
        assert_eq!(key_site(&[0xeb, 0x11], AT, to), None);
        assert_eq!(target_marker(&[0xf3, 0x0f, 0x1e, 0xfa]), 4);
        assert_eq!(target_marker(&[0x0f, 0x1f, 0x40, 0xd6, 0x90]), 4);
        assert_eq!(target_marker(&[0x55]), 0);
        assert!(is_quiet_trace_site(&SITE_NOP));
        assert_eq!(traced_by(&[0xe8, 0, 0, 0, 0], AT), Some(AT + 5));
    }
}
