//! A signal frame that brings a borrowed thread back without help.
//!
//! While a thread of the target makes a system call for us, its own context exists in this program's memory
//! only, and this program may be killed at any moment. Therefore the context is first written below the
//! thread's stack in the form in which the kernel itself saves a context when it delivers a signal
//! (`struct rt_sigframe`, `arch/x86/include/asm/sigframe.h`), and the code that the thread runs ends in
//! `rt_sigreturn`. Whenever the tracer dies, the thread runs on into that call and continues where it was.

use crate::registers::Registers;

/// `struct ucontext` up to and with its 8-byte signal mask.
const UCONTEXT_LEN: usize = 304;
const MCONTEXT: usize = 40;
const SIGMASK: usize = 296;
/// `UC_FP_XSTATE | UC_SIGCONTEXT_SS | UC_STRICT_RESTORE_SS`.
const UC_FLAGS: u64 = 1 | 2 | 4;
/// A mode that `sigaltstack` refuses: `rt_sigreturn` then leaves the thread's alternate stack as it is (it
/// ignores all failures but a bad address), and we need not know it.
const SS_MODE_REFUSED: u32 = 0x7000_0000;
const FP_XSTATE_MAGIC1: u32 = 0x4650_5853;
const FP_XSTATE_MAGIC2: u32 = 0x4650_5845;
/// `fxregs_state.sw_reserved`.
const SW_RESERVED: usize = 464;
/// Legacy region and header of an XSAVE area.
const XSAVE_MIN: usize = 576;
/// Alignment that XRSTOR demands.
const XSAVE_ALIGN: u64 = 64;
/// Components that the kernel gives to a thread only when it asks: the AMX tile configuration and data.
const DYNAMIC_COMPONENTS: u64 = 1 << 17 | 1 << 18;

/// The frame's parts, ready to be written. `at` is where `rsp` must point when `rt_sigreturn` is called.
pub(crate) struct Frame {
    /// Lowest address: a multiple of 64 from which `bytes` are to be written.
    pub at: u64,
    /// The bytes.
    pub bytes: Vec<u8>,
}

/// Offset of the extended state behind the start of the frame.
const FPSTATE: usize = 320;
const _: () = assert!(FPSTATE >= UCONTEXT_LEN && (FPSTATE as u64).is_multiple_of(XSAVE_ALIGN));

/// How many bytes a frame takes for an XSAVE area of this length.
pub(crate) fn frame_len(xsave_len: usize) -> usize {
    FPSTATE + xsave_len + 4
}

/// Builds the frame that makes `rt_sigreturn` restore `registers` (already [settled](Registers::settled)),
/// `signal_mask` and the extended state, for a stack pointer of `at`, a multiple of 64.
pub(crate) fn build(at: u64, registers: &Registers, signal_mask: u64, xsave: &[u8]) -> Frame {
    debug_assert!(at.is_multiple_of(XSAVE_ALIGN));
    let state = sigframe_xsave(xsave);
    let mut bytes = vec![0; FPSTATE];
    put(&mut bytes, 0, &UC_FLAGS.to_le_bytes());
    put(&mut bytes, 24, &SS_MODE_REFUSED.to_le_bytes());
    put(&mut bytes, MCONTEXT, &sigcontext(registers, at + FPSTATE as u64));
    put(&mut bytes, SIGMASK, &signal_mask.to_le_bytes());
    bytes.extend(state);
    Frame { at, bytes }
}

fn put(bytes: &mut [u8], at: usize, value: &[u8]) {
    bytes[at..at + value.len()].copy_from_slice(value);
}

/// General registers by number, in the order of `struct sigcontext_64`.
const SIGCONTEXT_ORDER: [usize; 16] = [8, 9, 10, 11, 12, 13, 14, 15, 7, 6, 5, 3, 2, 0, 1, 4];

/// `struct sigcontext_64`.
fn sigcontext(r: &Registers, fpstate: u64) -> [u8; 192] {
    let general = r.general();
    let mut words = SIGCONTEXT_ORDER.map(|number| general[number]).to_vec();
    words.extend([
        r.rip.get(),
        r.eflags,
        // u16 cs, gs, fs, ss.
        r.cs & 0xffff | (r.ss & 0xffff) << 48,
        // err, trapno, oldmask, cr2: the kernel writes them, but does not read them back.
        0,
        0,
        0,
        0,
        fpstate,
    ]);
    let mut bytes = [0; 192];
    for (slot, word) in bytes.chunks_exact_mut(8).zip(words) {
        slot.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Turns the area that `PTRACE_GETREGSET` gives into the one of a signal frame, with the software-reserved
/// fields and the trailing magic number.
fn sigframe_xsave(xsave: &[u8]) -> Vec<u8> {
    let mut bytes = xsave.to_vec();
    if bytes.len() < XSAVE_MIN {
        // A processor without XSAVE: the plain FXSAVE area has no software-reserved fields.
        return bytes;
    }
    // The kernel stores XCR0 (less what is not for users) in the first reserved word.
    let enabled = word_at(&bytes, SW_RESERVED);
    let in_use = word_at(&bytes, 512);
    let components = enabled & !(DYNAMIC_COMPONENTS & !in_use);
    let len = area_len(components, bytes.len());
    bytes.truncate(len);
    let mut reserved = [0; 48];
    put(&mut reserved, 0, &FP_XSTATE_MAGIC1.to_le_bytes());
    put(&mut reserved, 4, &(len as u32 + 4).to_le_bytes());
    put(&mut reserved, 8, &components.to_le_bytes());
    put(&mut reserved, 16, &(len as u32).to_le_bytes());
    put(&mut bytes, SW_RESERVED, &reserved);
    bytes.extend(FP_XSTATE_MAGIC2.to_le_bytes());
    bytes
}

fn word_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// Length of the standard-form area that holds these components: CPUID leaf 0xd (Intel SDM volume 1, 13.5).
/// The kernel ignores an area that is longer than what the thread may use, so components that it does not use
/// are left out.
fn area_len(components: u64, available: usize) -> usize {
    let ends = (2..63).filter(|bit| components & 1 << bit != 0).map(|bit| {
        let leaf = std::arch::x86_64::__cpuid_count(0xd, bit);
        leaf.eax as usize + leaf.ebx as usize
    });
    ends.fold(XSAVE_MIN, usize::max).min(available)
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_address::Avma;

    #[test]
    fn the_frame_has_the_kernels_layout() {
        let registers = Registers {
            rip: Avma::new(0x1122_3344),
            rsp: Avma::new(0x7ffd_0000),
            r8: 8,
            rax: 42,
            eflags: 0x246,
            cs: 0x33,
            ss: 0x2b,
            ..Registers::default()
        };
        let mut xsave = vec![0u8; 832];
        xsave[464] = 7;
        xsave[512] = 7;
        let frame = build(0x1000, &registers, 0xdead_beef, &xsave);
        let word = |at| word_at(&frame.bytes, at);
        assert_eq!((word(0), word(40), word(40 + 13 * 8)), (7, 8, 42));
        assert_eq!((word(40 + 15 * 8), word(40 + 16 * 8)), (0x7ffd_0000, 0x1122_3344));
        assert_eq!(word(40 + 18 * 8), 0x33 | 0x2b << 48);
        assert_eq!((word(40 + 23 * 8), word(296)), (0x1000 + 320, 0xdead_beef));
        assert_eq!(word(320 + 464) as u32, FP_XSTATE_MAGIC1);
        assert_eq!(word(320 + 472), 7);
        let len = word(320 + 480) as usize & 0xffff_ffff;
        assert!((576..=832).contains(&len));
        assert_eq!(frame.bytes[320 + len..], FP_XSTATE_MAGIC2.to_le_bytes());
        assert!(frame.bytes.len() <= frame_len(832));
    }

    #[test]
    fn a_short_area_is_taken_as_it_is() {
        assert_eq!(sigframe_xsave(&[1; 512]), vec![1; 512]);
    }
}
