//! Functions that look at the program counter by other ways than calls: what a version's instructions would
//! tell them is another address.
//!
//! **System calls.** `syscall` leaves the address behind it in rcx. Compilers and C libraries take rcx for
//! lost; who reads it wants that address. It is followed along the function's control flow from each system
//! call until it is written.
//!
//! **The x87 unit's state** has the address of the last of its instructions. A function that stores it stays,
//! so that what it finds of its own instructions is as it was.
//!
//! **Below the stack pointer** is what the last call has pushed. A function with calls that looks there
//! stays.
//!
//! Limits: rcx is not followed into calls and to where indirect jumps and tail calls go; and the address in
//! the stored state may be that of another function's instruction.

use crate::sweep::{Kind, Span, Sweep};
use restitch_address::Svma;
use restitch_image::Image;
use restitch_x86::position::PositionSource;
use restitch_x86::{Decoded, Flow, LONGEST, decode_one};
use std::collections::BTreeSet;

/// Number of rcx in sets of registers.
const RCX: u16 = 1 << 1;
/// Instructions that are followed behind one system call; a function with more stays.
const MOST_FOLLOWED: usize = 2000;

/// Indices of the spans that look at their own position.
pub(crate) fn looking_at_it(image: &Image, sweep: &Sweep) -> Vec<usize> {
    let looks = |span: &Span| span.doubt.looks_behind_calls() || Looker { image, sweep, span }.looks();
    (0..sweep.spans.len()).filter(|i| looks(&sweep.spans[*i])).collect()
}

struct Looker<'a> {
    image: &'a Image,
    sweep: &'a Sweep,
    span: &'a Span,
}

impl Looker<'_> {
    fn looks(&self) -> bool {
        let range = self.span.range;
        let Some(bytes) = self.image.read(range.start, range.len() as usize) else { return false };
        self.sweep.minis_of(self.span).iter().filter(|mini| mini.kind == Kind::Next).any(|mini| {
            let at = self.sweep.address(mini);
            match PositionSource::beginning_of(&bytes[at.offset_from(range.start) as usize..]) {
                None => false,
                Some(PositionSource::FloatState) => true,
                Some(PositionSource::SystemCall) => self.reads_rcx(at + u64::from(mini.len)),
            }
        })
    }

    /// Whether rcx is read from `start` on before it is written.
    fn reads_rcx(&self, start: Svma) -> bool {
        let (mut open, mut seen) = (vec![start], BTreeSet::new());
        while let Some(at) = open.pop() {
            if !self.span.range.contains(at) || !seen.insert(at) {
                continue;
            }
            let Some(decoded) = self.decode(at).filter(|_| seen.len() <= MOST_FOLLOWED) else { return true };
            if decoded.reads & RCX != 0 {
                return true;
            }
            if decoded.writes & RCX == 0 {
                open.extend(successors(&decoded).into_iter().flatten());
            }
        }
        false
    }

    fn decode(&self, at: Svma) -> Option<Decoded> {
        let bytes = self.image.read_tail(at)?;
        decode_one(&bytes[..bytes.len().min(LONGEST + 2)], at)
    }
}

/// Where control goes behind an instruction with rcx as it is.
fn successors(decoded: &Decoded) -> [Option<Svma>; 2] {
    let next = Some(decoded.insn.end());
    match decoded.insn.flow {
        // A handler may step over a trap.
        Flow::Next | Flow::Stop => [next, None],
        Flow::Jump(to) => [Some(to), None],
        Flow::Conditional(_, to) | Flow::ShortConditional(to) => [next, Some(to)],
        Flow::Call(_) | Flow::IndirectCall | Flow::IndirectJump | Flow::Return => [None, None],
        Flow::Unsupported => [None, None],
    }
}
