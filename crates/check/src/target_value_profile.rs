//! Votes: what stands in front of an indirect call of a counting version to find out what it usually calls.
//!
//! ```text
//! decl countdown(%rip); js stub; the call
//! stub:  mov s,-8(%rsp); lea call(%rip),s; neg s; add operand,s; movl $60,countdown(%rip); incl samples(%rip);
//!        cmp s,candidate(%rip); je 1f; decl balance(%rip); jns 2f; mov s,candidate(%rip); movl $0,hits(%rip); movl $0,balance(%rip);
//!     1: incl hits(%rip); incl balance(%rip); 2: mov -8(%rsp),s; jmp the call
//! ```
//!
//! What is said of promoted calls holds here: status flags are dead at indirect calls by convention, `s` is
//! r9, r10 or r11, none of the operand's, and has its value again at the jump; the eight bytes below the
//! stack pointer are where the call writes its return address next. All else that is written are words of
//! this call in the area of the counters, which are nobody else's.

use crate::finding::Problem;
use crate::map::Boundary;
use crate::promoted::SCRATCH;
use crate::row::RowAt;
use crate::walk::{Current, Walk};
use iced_x86::{Code, Decoder, DecoderOptions, Instruction};
use restitch_address::Svma;

/// `decl disp32(%rip)`.
const DECREMENT: [u8; 2] = [0xff, 0x0d];
/// `incl disp32(%rip)`.
const INCREMENT: [u8; 2] = [0xff, 0x05];
/// `movl $imm32,disp32(%rip)`.
const SET: [u8; 2] = [0xc7, 0x05];
/// What a countdown begins from: one execution in 61 is looked at.
const LEFT: u32 = 60;
/// The jump back.
const JUMP: u8 = 0xe9;

/// The addresses of a call's words.
struct Words {
    countdown: Svma,
    candidate: Svma,
    samples: Svma,
    hits: Svma,
    balance: Svma,
}

/// A stub that is read.
struct Stub<'w, 's, 'a> {
    walk: &'w Walk<'s, 'a>,
    at: Svma,
    /// Instructions so far: place and length.
    steps: Vec<(Svma, u32)>,
}

type Read<T = ()> = Result<T, &'static str>;

impl Stub<'_, '_, '_> {
    /// The next instruction consists of these bytes.
    fn bytes(&mut self, bytes: &[u8], why: &'static str) -> Read {
        if self.walk.s.text(self.at, bytes.len()) != Some(bytes) {
            return Err(why);
        }
        self.step(bytes.len() as u32);
        Ok(())
    }

    /// The next instruction consists of `opcode`, a displacement that leads to `to`, and `immediate`.
    fn word(&mut self, opcode: &[u8], to: Svma, immediate: &[u8], why: &'static str) -> Read {
        let end = self.at + (opcode.len() + 4 + immediate.len()) as u64;
        let mut expected = opcode.to_vec();
        expected.extend((to.offset_from(end) as i32).to_le_bytes());
        expected.extend(immediate);
        self.bytes(&expected, why)
    }

    /// The next instruction is a short branch. Gives where it leads.
    fn branch(&mut self, opcode: u8) -> Read<Svma> {
        match self.walk.s.text(self.at, 2) {
            Some(&[found, by]) if found == opcode => {
                self.step(2);
                Ok(self.at.offset((by as i8).into()))
            }
            _ => Err("a branch in the vote is another one"),
        }
    }

    fn step(&mut self, len: u32) {
        self.steps.push((self.at, len));
        self.at = self.at + u64::from(len);
    }
}

impl<'a> Walk<'_, 'a> {
    /// Steps over what leads to a vote in front of the original `o`, if that stands at `v`.
    pub fn vote(&mut self, c: &Current<'a>, v: Svma, o: Svma) -> Option<Svma> {
        let Some(index) = self.votes_at(v) else { return Some(v) };
        match self.read_vote(c, v, o, index) {
            Ok(end) => {
                self.report.votes += 1;
                if std::mem::replace(&mut self.voted[index], true) {
                    self.findings.at(v, o, Problem::Vote("two calls write the same words"));
                }
                Some(end)
            }
            Err(why) => {
                self.findings.at(v, o, Problem::Vote(why));
                None
            }
        }
    }

    /// Which vote's countdown is decremented at `v`, if one is.
    fn votes_at(&self, v: Svma) -> Option<usize> {
        let table = self.s.version.counters.as_ref()?;
        let field: [u8; 4] = self.s.text(v, 6)?.strip_prefix(&DECREMENT)?.try_into().ok()?;
        let word = (v + 6).offset(i32::from_le_bytes(field).into());
        let first = table.area.start + table.votes_offset();
        let index = word.offset_from(first) as u64 / 4;
        let index = usize::try_from(index).ok().filter(|i| *i < table.votes.len())?;
        (first + table.vote_area().countdown(index) == word && table.area.contains(word)).then_some(index)
    }

    /// The addresses of the words of vote number `index`, and the call that they are of.
    fn words(&self, index: usize) -> Option<(Words, Svma)> {
        let table = self.s.version.counters.as_ref()?;
        let call = self.s.program.calls.get(table.votes.get(index)?.index())?.at;
        let (area, first) = (table.vote_area(), table.area.start + table.votes_offset());
        if table.area.end.offset_from(first + area.bytes()) < 0 {
            return None;
        }
        let words = Words {
            countdown: first + area.countdown(index),
            candidate: first + area.candidate(index),
            samples: first + area.samples(index),
            hits: first + area.hits(index),
            balance: first + area.balance(index),
        };
        Some((words, call))
    }

    /// Checks what stands at `v` in front of the original call `o`. Gives the address behind it.
    fn read_vote(&mut self, c: &Current<'a>, v: Svma, o: Svma, index: usize) -> Read<Svma> {
        let (words, call) = self.words(index).ok_or("its words are not in the area")?;
        let bytes = self.s.image.read(o, (c.block.end().offset_from(o) as usize).min(15)).unwrap_or_default();
        let i = Decoder::with_ip(64, bytes, o.get(), DecoderOptions::NONE).decode();
        if call != o || i.code() != Code::Call_rm64 {
            return Err("it stands in front of something else than its call");
        }
        if c.copied.is_some() || c.duplicate {
            return Err("it stands between a table's load and its jump, or in a second copy");
        }
        let (branch, end) = (v + 6, v + 12);
        let js: [u8; 4] = match self.s.text(branch, 6) {
            Some([0x0f, 0x88, to @ ..]) => to.try_into().map_err(|_| "it ends early")?,
            _ => return Err("the countdown is not followed by js"),
        };
        if end.offset_from(c.range.end) > 0 {
            return Err("it is longer than the block's range");
        }
        let row = RowAt::of(o);
        for at in [v, branch] {
            self.visit(at, 6, Boundary::Inserted(o, None), row);
        }
        let stub = end.offset(i32::from_le_bytes(js).into());
        let (steps, reads) = self.read_stub(&i, &bytes[..i.len()], stub, &words, end)?;
        let last = steps.len() - 1;
        for (n, (at, len)) in steps.into_iter().enumerate() {
            let boundary = match n {
                0 | 1 => Boundary::Inserted(o, None),
                n if n == last => Boundary::Added(o),
                _ => Boundary::Inside,
            };
            self.visit(at, len, boundary, row);
        }
        self.frames.compare_handling(self.s, reads, o, (0, 0), false, &mut self.findings);
        Ok(end)
    }

    /// Reads the stub at `at` of the original call `i`, which goes on at `back`. Gives its instructions, and
    /// where the operand is read.
    fn read_stub(
        &self,
        i: &Instruction,
        bytes: &[u8],
        at: Svma,
        words: &Words,
        back: Svma,
    ) -> Read<(Vec<(Svma, u32)>, Svma)> {
        let o = Svma::new(i.ip());
        let save = self.s.decode(at).ok_or("there is no vote")?;
        let scratch = SCRATCH.into_iter().find(|(r, _)| *r == save.op1_register());
        let (register, bits) = scratch.ok_or("it does not begin by saving r9, r10 or r11")?;
        if [i.op0_register(), i.memory_base(), i.memory_index()].contains(&register) {
            return Err("the scratch register is one of the operand");
        }
        let mut stub = Stub { walk: self, at, steps: Vec::new() };
        let (relative, below) = (0x05 | bits << 3, [0x44 | bits << 3, 0x24, 0xf8]);
        stub.bytes(&[&[0x4c, 0x89], &below[..]].concat(), "the scratch register is not saved")?;
        stub.word(&[0x4c, 0x8d, relative], o, &[], "the distance is not taken from the call")?;
        stub.bytes(&[0x49, 0xf7, 0xd8 | bits], "the distance is not made")?;
        let reads = stub.at;
        let add = self.s.decode(reads).ok_or("it does not decode")?;
        if add.code() != Code::Add_r64_rm64 || add.op0_register() != register {
            return Err("the target is not added");
        }
        self.same_operand(i, bytes, &add, 1, 0x4c, [0x03, bits << 3])?;
        stub.step(add.len() as u32);
        stub.word(&SET, words.countdown, &LEFT.to_le_bytes(), "the countdown does not begin anew")?;
        stub.word(&INCREMENT, words.samples, &[], "the sample is not counted")?;
        stub.word(&[0x4c, 0x39, relative], words.candidate, &[], "the candidate is not compared")?;
        let hit = stub.branch(0x74)?;
        stub.word(&DECREMENT, words.balance, &[], "the balance does not fall")?;
        let done = stub.branch(0x79)?;
        stub.word(&[0x4c, 0x89, relative], words.candidate, &[], "there is no new candidate")?;
        stub.word(&SET, words.hits, &[0; 4], "the hits do not begin anew")?;
        stub.word(&SET, words.balance, &[0; 4], "the balance does not begin anew")?;
        let is_hit = hit == stub.at;
        stub.word(&INCREMENT, words.hits, &[], "the hit is not counted")?;
        stub.word(&INCREMENT, words.balance, &[], "the balance does not rise")?;
        if !is_hit || done != stub.at {
            return Err("a branch in the vote leads elsewhere");
        }
        stub.bytes(
            &[&[0x4c, 0x8b], &below[..]].concat(),
            "the scratch register does not get its value back",
        )?;
        stub.word(&[JUMP], back, &[], "there is no jump back to the call")?;
        Ok((stub.steps, reads))
    }
}
