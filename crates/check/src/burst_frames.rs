//! The unwind tables of a tracing version: at each instruction they lead to the original instruction that is equivalent to it, with
//! the same stack pointer and with the registers that recording code has taken. From there on unwinders read the original tables.

use crate::finding::{Findings, Problem};
use crate::subject::Subject;
use crate::unwind::{Interner, RowId, Table, ranges_in};
use restitch_address::{LoadBias, Svma};
use restitch_emit::window::{self, BurstTable, Leads, Taken};
use restitch_emit::{MapPiece, PieceKind};

/// DWARF numbers (System V ABI, figure 3.36).
const RAX: u16 = 0;
const RDX: u16 = 1;
const RCX: u16 = 2;
const RSP: u16 = 7;
const RIP: u16 = 16;

/// Checks the row at each of `boundaries`, which ascend, against the address map and the list of inserted code, which have been
/// proved.
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
    let mut expected = Expected { bias, table, ids: Interner::default() };
    let mut pieces = version.map.pieces.iter().peekable();
    let mut known: Option<(&MapPiece, RowId)> = None;
    let mut current = None;
    for boundary in boundaries {
        let here = read.entry(boundary).map(|(index, _)| index);
        if here != current {
            // Nearly every row is another: of those behind nothing is kept, or a large version's would take gigabytes.
            current.into_iter().for_each(|index| read.forget(index));
            current = here;
            expected.ids = Interner::default();
            known = known.and_then(|(piece, _)| Some((piece, expected.row(piece)?)));
        }
        let reaches = |p: &MapPiece| (p.version + u64::from(p.len)).offset_from(boundary) > 0;
        while let Some(piece) = pieces.next_if(|_| known.is_none_or(|(piece, _)| !reaches(piece))) {
            known = expected.row(piece).map(|row| (piece, row)).or(known);
        }
        let Some((_, want)) = known.filter(|(piece, _)| reaches(piece) && piece.version <= boundary) else {
            return fail(boundary, "the address map does not know the instruction");
        };
        // (An entry whose program is none has no rows.)
        let found = read.row(boundary, &mut expected.ids).unwrap_or_default();
        if found != Some(want) {
            let text = format!("is {}, and not {}", expected.ids.text(found), expected.ids.text(Some(want)));
            return findings.version(boundary, Problem::Row(text));
        }
    }
    // What no instruction has asked for.
    if let Err(why) = read.evaluate(&mut Interner::default()) {
        findings.version(at, Problem::Unwind { of: "the version's", why });
    }
}

struct Expected<'a> {
    bias: LoadBias,
    table: &'a BurstTable,
    ids: Interner,
}

impl Expected<'_> {
    /// The row that all instructions of a piece have.
    fn row(&mut self, piece: &MapPiece) -> Option<RowId> {
        let (taken, place) = match piece.kind {
            PieceKind::Linear | PieceKind::Branch => {
                (Taken::Nothing, displaced(piece.original.offset_from(piece.version)))
            }
            _ => {
                let inserted = self.table.inserted_at(piece.version)?;
                (inserted.taken, self.place(inserted.leads))
            }
        };
        let mut registers = vec![(RSP, true, vec![0x77, 0]), (RIP, true, place)];
        let saved = [
            (Taken::Rcx, RCX, window::SAVED_RCX),
            (Taken::RcxRax, RAX, window::SAVED_RAX),
            (Taken::All, RDX, window::SAVED_RDX),
        ];
        for (from, register, word) in saved {
            if taken >= from {
                registers.push((register, false, self.address(self.table.window.start + word)));
            }
        }
        Some(self.ids.exact(registers))
    }

    fn place(&self, leads: Leads) -> Vec<u8> {
        let stored = |word| {
            let mut out = self.address(self.table.window.start + word);
            out.push(gimli::constants::DW_OP_deref.0);
            out
        };
        match leads {
            Leads::To(to) => self.address(to),
            Leads::ToRax => vec![gimli::constants::DW_OP_breg0.0, 0],
            Leads::ToSite => stored(window::SITE),
            Leads::ToOriginal => stored(window::ORIGINAL),
        }
    }

    fn address(&self, at: Svma) -> Vec<u8> {
        let mut out = vec![gimli::constants::DW_OP_addr.0];
        out.extend(self.bias.to_actual(at).get().to_le_bytes());
        out
    }
}

/// The program counter and `by`: the shortest signed LEB128 number.
fn displaced(by: i64) -> Vec<u8> {
    let groups = (1..10).find(|n| by << (64 - 7 * n) >> (64 - 7 * n) == by).unwrap_or(10);
    let group = |i: u32| (by >> (7 * i).min(63)) as u8 & 0x7f | if i + 1 < groups { 0x80 } else { 0 };
    std::iter::once(gimli::constants::DW_OP_breg16.0).chain((0..groups).map(group)).collect()
}
