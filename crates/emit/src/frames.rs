//! Unwind tables for the version: one entry for each stretch, with the original states of what it copies.

use crate::areas::UnwindAreas;
use crate::direct::STUB_CALL;
use crate::ends::{copied_len, tail_frame};
use crate::error::EmitError;
use crate::lsda;
use crate::plan::{Dest, Op, Plan};
use crate::request::Request;
use crate::select::{Frames, Selection};
use crate::stretch::{Stretch, Stretches};
use restitch_address::{Svma, SvmaRange};
use restitch_cfi::{FrameState, Row, Run, write_eh_frame, write_eh_frame_hdr};
use restitch_x86::encode;
use std::sync::Arc;

/// Appends LSDAs, `.eh_frame_hdr` and `.eh_frame` to `bytes`.
pub(crate) fn write(
    request: &Request<'_>,
    selection: &Selection<'_>,
    plan: &Plan,
    stretches: &Stretches,
    bytes: &mut Vec<u8>,
) -> Result<UnwindAreas, EmitError> {
    let here = |bytes: &Vec<u8>| plan.start + bytes.len() as u64;
    align(bytes, 4);
    let lsda_start = here(bytes);
    let mut runs = Vec::with_capacity(stretches.all.len());
    for stretch in &stretches.all {
        let frames = selection.frames_of(stretch.function);
        let lsda = match &frames.lsda {
            None => None,
            Some(lsda) => {
                align(bytes, 4);
                let at = here(bytes);
                bytes.extend(lsda::write(request, plan, stretches, stretch, lsda, at)?);
                Some(at)
            }
        };
        runs.push(Run {
            range: SvmaRange::between(plan.at(stretch.start), plan.at(stretch.end)),
            rows: rows(request, plan, stretches, stretch, frames),
            personality: frames.piece.personality,
            lsda,
            signal_frame: false,
        });
    }
    let lsda = SvmaRange::between(lsda_start, here(bytes));
    align(bytes, 4);
    let hdr_start = here(bytes);
    // Version, encodings, pointer, count, and two words for each entry.
    let hdr_len = 12 + 8 * runs.len() as u64;
    let frame_start = (hdr_start + hdr_len).align_up(8);
    let eh_frame = write_eh_frame(frame_start, &runs)?;
    let hdr = write_eh_frame_hdr(hdr_start, frame_start, &eh_frame.entries)?;
    bytes.extend(hdr);
    let eh_frame_hdr = SvmaRange::between(hdr_start, here(bytes));
    bytes.resize(frame_start.offset_from(plan.start) as usize, 0);
    bytes.extend(eh_frame.bytes);
    Ok(UnwindAreas { lsda, eh_frame_hdr, eh_frame: SvmaRange::between(frame_start, here(bytes)) })
}

fn align(bytes: &mut Vec<u8>, to: usize) {
    bytes.resize(bytes.len().next_multiple_of(to), 0);
}

/// The rows of a stretch.
fn rows(
    request: &Request<'_>,
    plan: &Plan,
    stretches: &Stretches,
    stretch: &Stretch,
    frames: &Frames,
) -> Vec<Row> {
    let mut out = Rows { plan, rows: Vec::new() };
    for &number in &stretches.order[stretch.slots.clone()] {
        let slot = &plan.slots[number as usize];
        let block = request.program.block(slot.block);
        let tail = tail_frame(request.program, block);
        let copied = if slot.stub { 0 } else { copied_len(block) };
        // Offset in the block behind what has been copied.
        let mut done = 0;
        for (at, op) in plan.walk(number as usize) {
            let here = if done < copied { block.start + u64::from(done) } else { tail };
            match *op {
                Op::Copy { from, len, .. } => {
                    out.copied(frames, at, block.start + u64::from(from), len);
                    done = from + len;
                }
                Op::Load { from, old, .. } => {
                    out.push(at, frames.state_at(here));
                    done = from + u32::from(old);
                }
                Op::Ballot { from, .. } => {
                    out.push(at, frames.state_at(block.start + u64::from(from)));
                    done = from;
                }
                Op::Guarded { from, old, .. } => {
                    out.push(at, frames.state_at(block.start + u64::from(from)));
                    done = from + u32::from(old);
                    // Unwinders look a call up by its last byte. (Compilers give an instruction one row.)
                    out.push(at + op.len() - 1, frames.state_at(block.start + u64::from(done - 1)));
                }
                Op::BySlot { from, .. } => {
                    out.push(at, frames.state_at(block.start + u64::from(from)));
                    done = from + STUB_CALL;
                    out.push(at + op.len() - 1, frames.state_at(block.start + u64::from(done - 1)));
                }
                // Behind the original of a promoted call, or to a call that has voted.
                Op::Branch { dest: Dest::Behind { .. }, .. } => {
                    let back = block.start + u64::from(done);
                    let inside = request.program.function(block.function).range.contains(back);
                    out.push(at, frames.state_at(if inside { back } else { back - 1 }));
                }
                Op::Count { counter, .. } => {
                    let state = frames.state_at(here);
                    out.push(at, state);
                    if counter.keeps {
                        out.lowered(at, state);
                    }
                }
                Op::Vote { .. } | Op::Prefetch { .. } | Op::Branch { .. } | Op::Short { .. } => {
                    out.push(at, frames.state_at(here));
                }
            }
        }
    }
    out.rows
}

struct Rows<'p> {
    plan: &'p Plan,
    rows: Vec<Row>,
}

impl Rows<'_> {
    /// From `at` on, `state` holds.
    fn push(&mut self, at: u32, state: &Arc<FrameState>) {
        let start = self.plan.at(at);
        match self.rows.last_mut() {
            Some(last) if Arc::ptr_eq(&last.state, state) || last.state == *state => {}
            // Nothing stands between the two.
            Some(last) if last.start == start => last.state = state.clone(),
            _ => self.rows.push(Row { start, state: state.clone() }),
        }
    }

    /// `len` original bytes from `original` on are copied to `at`.
    fn copied(&mut self, frames: &Frames, at: u32, original: Svma, len: u32) {
        let first = frames.row_at(original);
        self.push(at, &frames.rows[first].state);
        let end = original + u64::from(len);
        for row in frames.rows[first + 1..].iter().take_while(|row| row.start < end) {
            self.push(at + row.start.offset_from(original) as u32, &row.state);
        }
    }

    /// The counter that keeps the flags stands at `at` and lowers the stack.
    fn lowered(&mut self, at: u32, state: &Arc<FrameState>) {
        for (offset, bytes) in encode::keeping_count().stack {
            // Such counters are only placed where the state can be shifted.
            if let Some(shifted) = state.shifted_stack(i64::from(*bytes)) {
                self.push(at + offset, &Arc::new(shifted));
            }
        }
    }
}
