//! The unwind tables of a tracing version: at each instruction they lead to the original instruction that is
//! equivalent to it, with the same stack pointer and with the registers that recording code has taken. From
//! there on unwinders read the original tables.

use crate::finding::{Findings, Problem};
use crate::subject::Subject;
use crate::unwind::{Row, Table, ranges_in};
use arrayvec::ArrayVec;
use restitch_address::{LoadBias, Svma};
use restitch_emit::window::{self, BurstTable, Leads, Taken};
use restitch_emit::{MapPiece, PieceKind};

/// DWARF numbers (System V ABI, figure 3.36).
const RAX: u16 = 0;
const RDX: u16 = 1;
const RCX: u16 = 2;
const RSP: u16 = 7;
const RIP: u16 = 16;

/// Checks the row at each of `boundaries`, which ascend, against the address map and the list of inserted
/// code, which have been proved.
pub(crate) fn check(
    s: &Subject<'_>,
    table: &BurstTable,
    boundaries: impl Iterator<Item = Svma>,
    findings: &mut Findings,
) {
    let version = s.version;
    let mut fail = |at, why: &str| {
        findings.version(at, Problem::Unwind { of: "the version's", why: why.to_owned() });
    };
    let at = version.eh_frame.start;
    let Some(bias) = s.bias else { return fail(at, "nobody says where the module is") };
    let (Some(eh_frame), Some(hdr)) = (s.bytes(version.eh_frame), s.bytes(version.eh_frame_hdr)) else {
        return fail(at, "they are outside its image");
    };
    let mut read = match Table::indexed(eh_frame, at, hdr, version.eh_frame_hdr.start) {
        Ok(read) => read,
        Err(why) => return fail(at, &why),
    };
    if !ranges_in(eh_frame, at).is_ok_and(|ranges| ranges.iter().copied().eq(read.ranges())) {
        return fail(at, "the search table does not list the entries that are there");
    }
    if !read.has_no_handlers() {
        return fail(at, "an entry has an exception table");
    }
    let mut rows =
        Rows { expected: Expected { bias, table, next: 0 }, pieces: version.map.pieces.iter(), piece: None };
    let mut boundaries = boundaries.peekable();
    let mut wrong = None;
    let read = read.each(|range, row| {
        while let Some(boundary) = boundaries.next_if(|at| at.offset_from(range.end) < 0 && wrong.is_none()) {
            if boundary.offset_from(range.start) < 0 {
                wrong = Some((boundary, "is none".to_owned()));
            } else if let Err(why) = rows.compare(boundary, row) {
                wrong = Some((boundary, why));
            }
        }
    });
    match (read, wrong, boundaries.next()) {
        (Err(why), ..) => fail(at, &why),
        (_, Some((at, why)), _) => findings.version(at, Problem::Row(why)),
        (_, _, Some(left)) => findings.version(left, Problem::Row("is none".to_owned())),
        _ => {}
    }
}

/// Rows that ascend, beside the pieces of the address map.
struct Rows<'a> {
    expected: Expected<'a>,
    pieces: std::slice::Iter<'a, MapPiece>,
    /// The piece that was reached last, and what its row has to say.
    piece: Option<(&'a MapPiece, Registers)>,
}

impl Rows<'_> {
    /// Compares what is said of the instruction at `at` with what the address map says.
    fn compare(&mut self, at: Svma, row: &Row) -> Result<(), String> {
        let ends_behind = |piece: &MapPiece| (piece.version + u64::from(piece.len)).offset_from(at) > 0;
        while self.piece.as_ref().is_none_or(|(piece, _)| !ends_behind(piece)) {
            let Some(piece) = self.pieces.next() else { break };
            self.piece = self.expected.registers(piece).map(|registers| (piece, registers));
        }
        let here = self.piece.as_ref().filter(|(piece, _)| ends_behind(piece) && piece.version <= at);
        let (_, registers) = here.ok_or("is not known to the address map")?;
        let wanted = registers.iter().map(|(register, is_value, bytes)| (*register, *is_value, &bytes[..]));
        if row.is_exactly(wanted) { Ok(()) } else { Err(format!("is {row}, and not {registers:x?}")) }
    }
}

/// Of each register, by number: the value of an expression (`true`), or where it is stored.
type Registers = ArrayVec<(u16, bool, Expression), 5>;
/// A short DWARF expression: the longest ones here are a displacement of 64 bits and an address with what is
/// done with it.
type Expression = ArrayVec<u8, 11>;

struct Expected<'a> {
    bias: LoadBias,
    table: &'a BurstTable,
    /// Which inserted code comes next.
    next: usize,
}

impl Expected<'_> {
    /// What the row of all instructions of a piece says; pieces come in order.
    fn registers(&mut self, piece: &MapPiece) -> Option<Registers> {
        let (taken, place) = match piece.kind {
            PieceKind::Linear | PieceKind::Branch => {
                (Taken::Nothing, displaced(piece.original.offset_from(piece.version)))
            }
            _ => {
                let behind = self.table.inserted.get(self.next..)?;
                self.next += behind.iter().position(|inserted| inserted.at == piece.version)?;
                let inserted = self.table.inserted[self.next];
                (inserted.taken, self.place(inserted.leads))
            }
        };
        let mut registers = Registers::new();
        let saved = [
            (Taken::RcxRax, RAX, window::SAVED_RAX),
            (Taken::All, RDX, window::SAVED_RDX),
            (Taken::Rcx, RCX, window::SAVED_RCX),
        ];
        for (from, register, word) in saved {
            if taken >= from {
                registers.push((register, false, self.address(self.table.window.start + word)));
            }
        }
        registers.push((RSP, true, expression(&[gimli::constants::DW_OP_breg7.0, 0])));
        registers.push((RIP, true, place));
        Some(registers)
    }

    fn place(&self, leads: Leads) -> Expression {
        let stored = |word| {
            let mut out = self.address(self.table.window.start + word);
            out.push(gimli::constants::DW_OP_deref.0);
            out
        };
        match leads {
            Leads::To(to) => self.address(to),
            Leads::ToRax => expression(&[gimli::constants::DW_OP_breg0.0, 0]),
            Leads::ToSite => stored(window::SITE),
            Leads::ToOriginal => stored(window::ORIGINAL),
        }
    }

    fn address(&self, at: Svma) -> Expression {
        let mut out = expression(&[gimli::constants::DW_OP_addr.0]);
        out.extend(self.bias.to_actual(at).get().to_le_bytes());
        out
    }
}

fn expression(bytes: &[u8]) -> Expression {
    bytes.iter().copied().collect()
}

/// The program counter and `by`: the shortest signed LEB128 number.
fn displaced(by: i64) -> Expression {
    let groups = (1..10).find(|n| by << (64 - 7 * n) >> (64 - 7 * n) == by).unwrap_or(10);
    let group = |i: u32| (by >> (7 * i).min(63)) as u8 & 0x7f | if i + 1 < groups { 0x80 } else { 0 };
    std::iter::once(gimli::constants::DW_OP_breg16.0).chain((0..groups).map(group)).collect()
}
