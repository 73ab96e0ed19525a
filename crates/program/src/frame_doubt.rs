//! Which functions may touch the word of their return address: a quick look at each instruction beside the
//! unwind table's rows.
//!
//! Idea: the rows say at each instruction how far the return address is from `rsp` or `rbp`, so that an
//! operand shows what it touches, on all paths at once. Rows are not believed blindly: what an instruction
//! does to `rsp` has to be what they say of the next one. Who touches the word, or has rows that do not fit,
//! is looked at path by path (`return_address.rs`).
//!
//! A function with calls that reads right below `rsp` may look at what its own calls have pushed there.
//!
//! Limits: an address of the stack that was handed from register to register is not followed, but where it is
//! made of the word's own.

use restitch_address::Svma;
use restitch_cfi::{Cfa, FrameAddress, Register};
use restitch_x86::{Flow, Insn, Reg, StackUse};

/// Distance from the word of the return address to the canonical frame address, and its length in bytes.
const WORD: i64 = 8;
/// Encoding number of `rbp`.
const RBP: Reg = Reg(5);

/// What the look has found of one function.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct FrameDoubt {
    /// Instructions that read or write the word, by the rows.
    pub touches: Vec<Svma>,
    /// The rows do not fit the code, or there is more to it than they tell.
    pub odd: bool,
    /// By its rows it does not begin as functions that are called do: it is a part of one.
    pub is_part: bool,
    /// It calls.
    calls: bool,
    /// It reads or writes the word right below `rsp`.
    touches_below: bool,
}

impl FrameDoubt {
    /// Whether nothing speaks against it.
    pub fn is_clear(&self) -> bool {
        self.touches.is_empty() && !self.odd
    }

    /// Whether it may look at what its own calls have pushed, where they have left it (compilers use what is
    /// below `rsp` in functions without calls only).
    pub fn looks_behind_calls(&self) -> bool {
        self.calls && self.touches_below
    }
}

/// Where the canonical frame address is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Frame {
    /// At `rsp` + so many bytes.
    Stack(i64),
    /// At `rbp` + so many bytes.
    Base(i64),
    /// Elsewhere.
    Odd,
}

impl Frame {
    fn of(row: &FrameAddress) -> Self {
        match row.cfa {
            Cfa::RegisterOffset { register: Register::RSP, offset } => Self::Stack(offset),
            Cfa::RegisterOffset { register: Register::RBP, offset } => Self::Base(offset),
            _ => Self::Odd,
        }
    }
}

/// The look at one function, instruction by instruction in order of address.
pub(crate) struct FrameWatch {
    rows: Vec<FrameAddress>,
    /// Index of the next row.
    next: usize,
    here: Frame,
    /// What `rsp` is from the canonical frame address by the instruction before, if control comes from there.
    expected: Option<i64>,
    /// `rbp` + so many bytes is the canonical frame address, though the rows do not say so.
    base: Option<i64>,
    found: FrameDoubt,
}

impl FrameWatch {
    /// Of a function whose unwind entry has these rows; none if they could not be read.
    pub fn new(rows: Vec<FrameAddress>) -> Self {
        let first = rows.first().map(Frame::of);
        let is_part = first.is_some_and(|first| first != Frame::Stack(WORD));
        let found = FrameDoubt { odd: rows.is_empty(), is_part, ..FrameDoubt::default() };
        Self { rows, next: 0, here: Frame::Odd, expected: None, base: None, found }
    }

    /// Looks at the next instruction.
    pub fn see(&mut self, insn: &Insn) {
        // Filler between pieces of code has the rows of what stands before it.
        if insn.padding {
            return;
        }
        while let Some(row) = self.rows.get(self.next).filter(|row| row.start <= insn.at) {
            self.here = Frame::of(row);
            self.next += 1;
        }
        self.found.calls |= matches!(insn.flow, Flow::Call(_) | Flow::IndirectCall);
        if let StackUse::Memory { frame: false, disp, size, .. } = insn.stack {
            let from = i64::from(disp);
            // A branch through that word is for where it was written to go.
            let is_branch = matches!(insn.flow, Flow::IndirectCall | Flow::IndirectJump);
            self.found.touches_below |= !is_branch && from < 0 && from + i64::from(size) > -WORD;
        }
        match self.here {
            Frame::Stack(cfa) => self.see_by_stack(insn, cfa),
            Frame::Base(cfa) => self.see_by_base(insn, cfa),
            Frame::Odd => self.found.odd = true,
        }
    }

    /// What it has found.
    pub fn finish(self) -> FrameDoubt {
        self.found
    }

    fn see_by_stack(&mut self, insn: &Insn, cfa: i64) {
        if self.expected.is_some_and(|expected| expected != cfa) {
            self.found.odd = true;
        }
        let mut behind = Some(cfa);
        match insn.stack {
            StackUse::None => {}
            StackUse::Moves(by) => {
                behind = Some(cfa - i64::from(by));
                // The return address is given up: what is popped next is the caller's.
                self.found.odd |= cfa - i64::from(by) < WORD;
            }
            StackUse::Pops => {
                behind = Some(cfa - WORD);
                self.touch(insn, cfa, 0, 8);
            }
            StackUse::Sets => {
                behind = None;
                self.found.odd |= self.base.is_none();
            }
            StackUse::Address { to, frame: false, disp } => {
                if to == RBP {
                    self.base = Some(cfa - i64::from(disp));
                }
                self.take_address(cfa, disp);
            }
            // Who keeps where the word is may read it later.
            StackUse::Kept => self.found.odd |= cfa == WORD,
            StackUse::Memory { frame: false, disp, size, moves } => {
                self.touch(insn, cfa, disp, size);
                behind = Some(cfa - i64::from(moves));
            }
            StackUse::Address { frame: true, .. } => {}
            StackUse::Memory { frame: true, disp, size, moves } => {
                if let Some(base) = self.base {
                    self.touch(insn, base, disp, size);
                }
                behind = Some(cfa - i64::from(moves));
            }
        }
        self.expected = self.goes_on(insn, behind);
        self.found.odd |= insn.flow == Flow::Return && cfa != WORD;
    }

    fn see_by_base(&mut self, insn: &Insn, cfa: i64) {
        match insn.stack {
            StackUse::Memory { frame: true, disp, size, .. } => self.touch(insn, cfa, disp, size),
            StackUse::Address { frame: true, disp, .. } => self.take_address(cfa, disp),
            _ => {}
        }
        self.expected = None;
        self.found.odd |= insn.flow == Flow::Return;
    }

    /// What is to be expected of the next instruction. Behind a call may be anything: it may not come back.
    fn goes_on(&mut self, insn: &Insn, behind: Option<i64>) -> Option<i64> {
        match insn.flow {
            Flow::Next | Flow::Conditional(..) | Flow::ShortConditional(_) => behind,
            Flow::Call(to) => {
                self.found.odd |= to == insn.end();
                None
            }
            _ => None,
        }
    }

    /// Memory of `size` bytes at `disp` from a register that is `cfa` bytes below the canonical frame
    /// address.
    fn touch(&mut self, insn: &Insn, cfa: i64, disp: i32, size: u16) {
        let from = i64::from(disp);
        if from < cfa && from + i64::from(size) > cfa - WORD {
            self.found.touches.push(insn.at);
        }
    }

    /// A register gets the address at `disp`: likewise. That of the word itself is odd, and that of the first
    /// argument on the stack where there is no frame yet (code that aligns its stack, and reads what lies
    /// below).
    fn take_address(&mut self, cfa: i64, disp: i32) {
        let disp = i64::from(disp);
        self.found.odd |= disp == cfa - WORD || cfa == WORD && disp == cfa;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is found of code at 0 with rows of `(address, register, offset)`.
    fn found(bytes: &[u8], rows: &[(u64, Register, i64)]) -> FrameDoubt {
        let row = |&(at, register, offset): &(u64, Register, i64)| {
            let cfa = Cfa::RegisterOffset { register, offset };
            FrameAddress { start: Svma::new(at), cfa }
        };
        let mut watch = FrameWatch::new(rows.iter().map(row).collect());
        restitch_x86::scan_lock_skips(bytes, Svma::new(0), |insn| watch.see(&insn)).expect("instructions");
        watch.finish()
    }

    const RSP: Register = Register::RSP;

    #[test]
    fn ordinary_frames_are_clear() {
        // push %rbx; sub $16,%rsp; mov 8(%rsp),%rax; mov 32(%rsp),%rcx; add $16,%rsp; pop %rbx; ret
        let code = [
            &[0x53][..],
            &[0x48, 0x83, 0xec, 16],
            &[0x48, 0x8b, 0x44, 0x24, 8],
            &[0x48, 0x8b, 0x4c, 0x24, 32],
            &[0x48, 0x83, 0xc4, 16],
            &[0x5b, 0xc3],
        ]
        .concat();
        let rows = [(0, RSP, 8), (1, RSP, 16), (5, RSP, 32), (19, RSP, 16), (20, RSP, 8)];
        assert!(found(&code, &rows).is_clear(), "{:?}", found(&code, &rows));
        // With a row missing, what the code does is not what they say.
        let short = [(0, RSP, 8), (1, RSP, 16), (19, RSP, 16), (20, RSP, 8)];
        assert!(found(&code, &short).odd);
        // The word at 24(%rsp) is the return address.
        let mut reads = code.clone();
        reads[9] = 24;
        assert_eq!(found(&reads, &rows).touches, [Svma::new(5)]);
        // push %rbp; mov %rsp,%rbp; mov 8(%rbp),%rax; pop %rbp; ret
        let code = [0x55, 0x48, 0x89, 0xe5, 0x48, 0x8b, 0x45, 8, 0x5d, 0xc3];
        let rows = [(0, RSP, 8), (1, RSP, 16), (4, Register::RBP, 16), (9, RSP, 8)];
        assert_eq!(found(&code, &rows), FrameDoubt { touches: vec![Svma::new(4)], ..FrameDoubt::default() });
        let still_by_stack = [(0, RSP, 8), (1, RSP, 16), (9, RSP, 8)];
        assert_eq!(found(&code, &still_by_stack).touches, [Svma::new(4)]);
    }

    #[test]
    fn what_reads_or_gives_up_the_word_is_in_doubt() {
        let at_entry = [(0, RSP, 8)];
        let touches = |code: &[u8]| found(code, &at_entry).touches;
        assert_eq!(touches(&[0x59, 0xff, 0xe1]), [Svma::new(0)], "pop %rcx; jmp *%rcx");
        assert_eq!(touches(&[0x48, 0x8b, 0x0c, 0x24, 0xc3]), [Svma::new(0)], "mov (%rsp),%rcx; ret");
        assert_eq!(touches(&[0x48, 0xff, 0x04, 0x24, 0xc3]), [Svma::new(0)], "incq (%rsp); ret");
        let odd = |code: &[u8]| found(code, &at_entry).odd;
        assert!(odd(&[0x48, 0x83, 0xc4, 8, 0xc3]), "add $8,%rsp; ret");
        assert!(odd(&[0x48, 0x89, 0xe0, 0xc3]), "mov %rsp,%rax; ret");
        assert!(odd(&[0x4c, 0x8d, 0x54, 0x24, 8, 0xc3]), "lea 8(%rsp),%r10; ret");
        assert!(odd(&[0xe8, 0, 0, 0, 0, 0x58, 0xc3]), "call 1f; 1: pop %rax; ret");
        assert!(odd(&[0x50, 0xc3]), "push %rax; ret");
        assert!(odd(&[0x48, 0x89, 0x27, 0xc3]), "mov %rsp,(%rdi); ret");
        let behind_calls = |code: &[u8]| found(code, &at_entry).looks_behind_calls();
        let (call, reads) = ([0xff, 0xd0], [0x48, 0x8b, 0x44, 0x24, 0xf8, 0xc3]);
        assert!(behind_calls(&[&call[..], &reads].concat()), "call *%rax; mov -8(%rsp),%rax; ret");
        assert!(!behind_calls(&reads));
        assert!(!behind_calls(&[&call[..], &[0xff, 0x54, 0x24, 0xf8, 0xc3]].concat()), "call *-8(%rsp)");
        assert!(!behind_calls(&[&call[..], &[0x48, 0x8b, 0x44, 0x24, 0xf0, 0xc3]].concat()), "-16(%rsp)");
        assert!(found(&[0xc3], &[]).odd, "no rows");
        assert!(found(&[0xc3], &[(0, RSP, 32)]).is_part);
        assert!(found(&[0x90, 0xc3], &at_entry).is_clear());
    }
}
