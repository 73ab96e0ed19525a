//! Unwind tables of a tracing version.
//!
//! Idea: code of a tracing version is no frame of its own. At each of its instructions the tables say which
//! original instruction the thread stands at, and what recording code has taken; unwinders go on there with
//! the original tables, exception tables included. So each row is that of a *signal frame* that holds
//! nothing: its "caller" is exact and not behind a call, has the same stack pointer, and finds taken
//! registers in the window. Nothing of the original tables is copied.
//!
//! The CFA is one byte above the stack pointer: libgcc tells frames apart by it, and asserts that no frame
//! before the one with the handler looks like it. The stack pointer itself has a rule, so that byte changes
//! nothing.

use super::Burst;
use crate::error::EmitError;
use crate::model::{MapPiece, PieceKind};
use crate::window::{self, Inserted, Leads, Taken};
use restitch_address::{Svma, SvmaRange};
use restitch_cfi::{
    Cfa, EhFrame, EhFrameWriter, ExpressionBytes, FrameState, Register, RegisterRule, Row, Run,
    write_eh_frame_hdr,
};
use std::sync::Arc;

/// Pieces of the address map in a run behind the functions: readers go through a run's rows from its
/// beginning.
const WAYS_OUT: usize = 256;
/// What the CFA is above the stack pointer.
const ABOVE: i64 = 1;
/// `DW_OP_breg7 0`: the stack pointer.
const STACK_POINTER: [u8; 2] = [0x77, 0];
/// `DW_OP_breg0 0`: `rax`.
const RAX: [u8; 2] = [0x70, 0];
/// `DW_OP_breg16`: the program counter and a signed number.
const BREG_RIP: u8 = 0x80;
/// `DW_OP_addr`.
const ADDR: u8 = 0x03;
/// `DW_OP_deref`.
const DEREF: u8 = 0x06;

/// Appends `.eh_frame_hdr` and `.eh_frame` to `bytes`, the image so far; gives their ranges in this order.
pub(super) fn write(
    burst: &Burst<'_>,
    text: SvmaRange,
    bytes: &mut Vec<u8>,
) -> Result<[SvmaRange; 2], EmitError> {
    let start = burst.request.start;
    let starts = starts(burst);
    let hdr_start = start + bytes.len() as u64;
    // Version, encodings, pointer, count, and two words for each entry.
    let frame_start = (hdr_start + 12 + 8 * starts.len() as u64).align_up(8);
    let eh_frame = entries(burst, text, &starts, frame_start)?;
    let hdr = write_eh_frame_hdr(hdr_start, frame_start, &eh_frame.entries)?;
    bytes.extend(hdr);
    let hdr = SvmaRange::between(hdr_start, start + bytes.len() as u64);
    bytes.resize(frame_start.offset_from(start) as usize, 0);
    bytes.extend(eh_frame.bytes);
    Ok([hdr, SvmaRange::between(frame_start, start + bytes.len() as u64)])
}

/// Where runs begin: one for the look-ups, one for each function, one for so many of the ways out behind
/// them.
fn starts(burst: &Burst<'_>) -> Vec<Svma> {
    let mut wanted: Vec<Svma> = burst.symbols.iter().map(|symbol| symbol.range.start).collect();
    wanted.extend(burst.symbols.last().map(|symbol| symbol.range.end));
    let behind = wanted.last().copied();
    let mut wanted = wanted.into_iter().peekable();
    let first = burst.pieces.first().map(|piece| piece.version);
    let mut ways_out = None;
    let at_start = |piece: &&MapPiece| {
        if Some(piece.version) == behind {
            ways_out = Some(0);
        }
        let is_next = ways_out.as_mut().is_some_and(|n| {
            *n += 1;
            *n % WAYS_OUT == 0
        });
        wanted.next_if_eq(&piece.version).is_some() || Some(piece.version) == first || is_next
    };
    burst.pieces.iter().filter(at_start).map(|piece| piece.version).collect()
}

/// One run after the other: the rows of all of them would take gigabytes in large programs.
fn entries(
    burst: &Burst<'_>,
    text: SvmaRange,
    starts: &[Svma],
    frame_start: Svma,
) -> Result<EhFrame, EmitError> {
    let mut writer = EhFrameWriter::new(frame_start);
    let (mut pieces, mut inserted) = (burst.pieces.iter().peekable(), burst.inserted.iter());
    let stack_pointer: ExpressionBytes = Arc::new(STACK_POINTER);
    for (i, &start) in starts.iter().enumerate() {
        let end = starts.get(i + 1).copied().unwrap_or(text.end);
        let mut run = Run {
            range: SvmaRange::between(start, end),
            rows: Vec::new(),
            personality: None,
            lsda: None,
            signal_frame: true,
        };
        while let Some(piece) = pieces.next_if(|piece| piece.version.offset_from(end) < 0) {
            let own = matches!(piece.kind, PieceKind::Inserted | PieceKind::Opaque).then(|| inserted.next());
            let state = state(burst, piece, own.flatten(), &stack_pointer);
            run.add(Row { start: piece.version, state: Arc::new(state) });
        }
        writer.run(&run)?;
    }
    Ok(writer.finish())
}

trait Add {
    fn add(&mut self, row: Row);
}

impl Add for Run {
    fn add(&mut self, row: Row) {
        if self.rows.last().is_none_or(|last| last.state != row.state) {
            self.rows.push(row);
        }
    }
}

fn state(
    burst: &Burst<'_>,
    piece: &MapPiece,
    inserted: Option<&Inserted>,
    stack_pointer: &ExpressionBytes,
) -> FrameState {
    let taken = inserted.map_or(Taken::Nothing, |inserted| inserted.taken);
    let word = |word| address(burst, burst.request.window.start + word);
    let place = match inserted.map(|inserted| inserted.leads) {
        None => displaced(piece.original.offset_from(piece.version)),
        Some(Leads::To(to)) => address(burst, to),
        Some(Leads::ToRax) => RAX.to_vec(),
        Some(Leads::ToSite) => [word(window::SITE), vec![DEREF]].concat(),
        Some(Leads::ToOriginal) => [word(window::ORIGINAL), vec![DEREF]].concat(),
    };
    let saved = |at| RegisterRule::Expression(word(at).into());
    let mut registers = Vec::with_capacity(5);
    if taken >= Taken::RcxRax {
        registers.push((Register::RAX, saved(window::SAVED_RAX)));
    }
    if taken == Taken::All {
        registers.push((Register::RDX, saved(window::SAVED_RDX)));
    }
    if taken >= Taken::Rcx {
        registers.push((Register::RCX, saved(window::SAVED_RCX)));
    }
    registers.push((Register::RSP, RegisterRule::ValExpression(stack_pointer.clone())));
    registers.push((Register::RIP, RegisterRule::ValExpression(place.into())));
    let cfa = Cfa::RegisterOffset { register: Register::RSP, offset: ABOVE };
    FrameState { cfa, registers, ..FrameState::at_entry() }
}

/// The address in the process.
fn address(burst: &Burst<'_>, at: Svma) -> Vec<u8> {
    let at = burst.request.bias.to_actual(at).get();
    [vec![ADDR], at.to_le_bytes().to_vec()].concat()
}

/// The program counter and `by`, as a signed LEB128 number (DWARF 5, section 7.6).
fn displaced(mut by: i64) -> Vec<u8> {
    let mut out = vec![BREG_RIP];
    loop {
        let low = by as u8 & 0x7f;
        by >>= 7;
        if (by == 0 && low & 0x40 == 0) || (by == -1 && low & 0x40 != 0) {
            out.push(low);
            return out;
        }
        out.push(low | 0x80);
    }
}
