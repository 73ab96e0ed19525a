//! Code in front of an indirect call that looks now and then what it calls.
//!
//! ```text
//! decl countdown(%rip)                 in front of the call
//! js   stub
//!
//! stub: mov  s,-8(%rsp)                where the call is about to write its return address
//!       lea  site(%rip),s              the original call
//!       neg  s
//!       add  operand,s                 the distance from there to what is called: the same wherever the module is loaded
//!       movl $period-1,countdown(%rip)
//!       incl samples(%rip)
//!       cmp  s,candidate(%rip)
//!       je   hit
//!       decl balance(%rip)
//!       jns  done
//!       mov  s,candidate(%rip)
//!       movl $0,hits(%rip)
//!       movl $0,balance(%rip)
//! hit:  incl hits(%rip)
//!       incl balance(%rip)
//! done: mov  -8(%rsp),s
//!       jmp  behind the js
//! ```
//!
//! The balance is Boyer and Moore's majority vote (1981) over the samples; the hits are those of the
//! candidate since it became one, so their share of the samples never says more than is true. As with
//! [`guarded_call`](crate::guarded_call), nothing is changed but the status flags, which a call leaves dead,
//! and the eight bytes below the stack pointer. Words are written without `lock`: what threads lose to each
//! other are samples.

use crate::condition::Condition;
use crate::encode;
use crate::guarded::Parts;
use std::ops::Range;

/// One execution in so many is looked at. A prime, so that calls whose targets take turns are all met.
pub const VOTE_PERIOD: u32 = 61;

/// Length in bytes of what stands in front of the call: both parts are of six.
pub const VOTE: u32 = 12;

/// What a displacement leads to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VoteWord {
    /// The call in the original code.
    Site,
    /// 4 bytes: how many executions are left until the next one is looked at.
    Countdown,
    /// 8 bytes: the distance from the original call to the candidate.
    Candidate,
    /// 4 bytes: how many executions were looked at.
    Samples,
    /// 4 bytes: how many of them have called the candidate since it became one.
    Hits,
    /// 4 bytes: the balance of the majority vote.
    Balance,
}

/// A displacement in a stub.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VoteField {
    /// Its offset.
    pub at: u32,
    /// The end of its instruction, from which it counts.
    pub end: u32,
    /// What it leads to.
    pub word: VoteWord,
}

/// The stub without its jump back, displacements zero.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VoteStub {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its displacements, in their order.
    pub words: Vec<VoteField>,
    /// The displacement of an operand that is relative to the program counter, and the end of the
    /// instruction.
    pub operand: Option<(u32, u32)>,
    /// The boundaries at which a register holds a temporary value: from the first of these offsets up to the
    /// second, the end. (At the boundaries in front of it, 0 and [`VOTE_SAVED`], all is as it was.)
    pub temporary: Range<u32>,
}

/// The second boundary of a stub.
pub const VOTE_SAVED: u32 = 5;

/// `decl countdown(%rip); js stub`, by displacements from the ends of the two.
pub fn vote(out: &mut Vec<u8>, countdown: i32, stub: i32) {
    out.extend([0xff, 0x0d]);
    out.extend(countdown.to_le_bytes());
    encode::jcc_near(out, Condition::Sign, stub);
}

/// The stub for `call`, the bytes of one indirect call. `None` if it is of a form that is left alone.
pub fn vote_stub(call: &[u8]) -> Option<VoteStub> {
    let parts = Parts::of(call)?;
    let used = parts.registers()?;
    let s = [11u8, 10, 9].into_iter().find(|r| !used.contains(r))?;
    let mut out = Writer { bytes: Vec::with_capacity(104), words: Vec::new() };
    let below = [0x44 | (s & 7) << 3, 0x24, 0xf8];
    let relative = 0x05 | (s & 7) << 3;
    out.bytes.extend([0x4c, 0x89]);
    out.bytes.extend(below);
    out.word(&[0x4c, 0x8d, relative], VoteWord::Site, &[]);
    let temporary = out.bytes.len() as u32;
    out.bytes.extend([0x49, 0xf7, 0xd8 | s & 7]);
    parts.with(0x03, s, &[], &mut out.bytes);
    let operand = parts.is_relative().then(|| {
        let end = out.bytes.len();
        out.bytes[end - 4..].fill(0);
        (end as u32 - 4, end as u32)
    });
    out.word(&[0xc7, 0x05], VoteWord::Countdown, &(VOTE_PERIOD - 1).to_le_bytes());
    out.word(&[0xff, 0x05], VoteWord::Samples, &[]);
    out.word(&[0x4c, 0x39, relative], VoteWord::Candidate, &[]);
    let to_hit = out.short(&[0x74]);
    out.word(&[0xff, 0x0d], VoteWord::Balance, &[]);
    let to_done = out.short(&[0x79]);
    out.word(&[0x4c, 0x89, relative], VoteWord::Candidate, &[]);
    out.word(&[0xc7, 0x05], VoteWord::Hits, &[0; 4]);
    out.word(&[0xc7, 0x05], VoteWord::Balance, &[0; 4]);
    out.lands(to_hit);
    out.word(&[0xff, 0x05], VoteWord::Hits, &[]);
    out.word(&[0xff, 0x05], VoteWord::Balance, &[]);
    out.lands(to_done);
    out.bytes.extend([0x4c, 0x8b]);
    out.bytes.extend(below);
    let Writer { bytes, words } = out;
    let temporary = temporary..bytes.len() as u32;
    Some(VoteStub { bytes, words, operand, temporary })
}

struct Writer {
    bytes: Vec<u8>,
    words: Vec<VoteField>,
}

impl Writer {
    /// An instruction with an operand relative to the program counter.
    fn word(&mut self, opcode: &[u8], word: VoteWord, immediate: &[u8]) {
        self.bytes.extend(opcode);
        let at = self.bytes.len() as u32;
        self.bytes.extend([0; 4]);
        self.bytes.extend(immediate);
        self.words.push(VoteField { at, end: self.bytes.len() as u32, word });
    }

    /// A short branch to a place that is not known yet. Gives the offset behind it.
    fn short(&mut self, opcode: &[u8]) -> usize {
        self.bytes.extend(opcode);
        self.bytes.push(0);
        self.bytes.len()
    }

    /// The branch that ends at `end` leads here.
    fn lands(&mut self, end: usize) {
        self.bytes[end - 1] = (self.bytes.len() - end) as u8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use iced_x86::{Decoder, DecoderOptions, Formatter, GasFormatter, Instruction};

    fn decoded(bytes: &[u8]) -> Vec<Instruction> {
        Decoder::with_ip(64, bytes, 0, DecoderOptions::NONE).into_iter().collect()
    }

    fn text(bytes: &[u8]) -> Vec<String> {
        let mut formatter = GasFormatter::new();
        let one = |i: Instruction| {
            let mut out = String::new();
            formatter.format(&i, &mut out);
            out
        };
        decoded(bytes).into_iter().map(one).collect()
    }

    #[test]
    fn the_stub_is_what_is_said() {
        let stub = vote_stub(&[0xff, 0x50, 0x10]).unwrap();
        let lines = text(&stub.bytes);
        let starts = [
            "mov %r11,-8(%rsp)",
            "lea 0x",
            "neg %r11",
            "add 0x10(%rax),%r11",
            "movl $0x3C,0x",
            "incl 0x",
            "cmp %r11,0x",
            "je ",
            "decl 0x",
            "jns ",
            "mov %r11,0x",
            "movl $0,0x",
            "movl $0,0x",
            "incl 0x",
            "incl 0x",
            "mov -8(%rsp),%r11",
        ];
        assert_eq!(lines.len(), starts.len());
        assert!(lines.iter().zip(starts).all(|(line, start)| line.starts_with(start)), "{lines:?}");
        let all = decoded(&stub.bytes);
        // Where the branches lead, and where fields are.
        assert_eq!((all[7].near_branch_target(), all[9].near_branch_target()), (all[13].ip(), all[15].ip()));
        let fields: Vec<u32> = stub.words.iter().map(|w| w.end).collect();
        let ends = |i: &&Instruction| i.is_ip_rel_memory_operand();
        assert_eq!(fields, all.iter().filter(ends).map(|i| i.next_ip() as u32).collect::<Vec<_>>());
        assert_eq!(u64::from(VOTE_SAVED), all[1].ip());
        assert_eq!(u64::from(stub.temporary.start), all[2].ip());
        assert_eq!(stub.temporary.end as usize, stub.bytes.len());
    }

    #[test]
    fn the_register_is_none_of_the_operands() {
        let used = |call: &[u8]| text(&vote_stub(call).unwrap().bytes)[3].clone();
        assert_eq!(used(&[0xff, 0xd0]), "add %rax,%r11");
        assert_eq!(used(&[0x41, 0xff, 0x53, 0x10]), "add 0x10(%r11),%r10");
        assert_eq!(used(&[0x43, 0xff, 0x14, 0xda]), "add (%r10,%r11,8),%r9");
        assert_eq!(used(&[0xff, 0x54, 0x24, 0x18]), "add 0x18(%rsp),%r11");
        for left_alone in [&[0xff, 0xd4][..], &[0xff, 0x54, 0x24, 0xf8], &[0x3e, 0xff, 0xd0], &[0xff, 0xe0]] {
            assert_eq!(vote_stub(left_alone), None, "{left_alone:x?}");
        }
        let stub = vote_stub(&[0xff, 0x15, 1, 2, 3, 4]).unwrap();
        let (field, end) = stub.operand.unwrap();
        assert_eq!(&stub.bytes[field as usize - 3..end as usize], [0x4c, 0x03, 0x1d, 0, 0, 0, 0]);
    }

    #[test]
    fn the_way_to_the_stub() {
        let mut out = Vec::new();
        vote(&mut out, 0x100, -0x20);
        assert_eq!(out.len(), VOTE as usize);
        let all = decoded(&out);
        assert!(text(&out)[0].starts_with("decl ") && text(&out)[1].starts_with("js "), "{:?}", text(&out));
        assert_eq!(all[0].ip_rel_memory_address(), 0x106);
        assert_eq!(all[1].near_branch_target() as i64, 12 - 0x20);
    }
}
