//! The address map turned around: from original addresses to those in a version.

use restitch_address::{Svma, SvmaRange};
use restitch_emit::{MapPiece, PieceKind};
use std::cmp::Reverse;

/// The address map turned around.
pub(crate) struct ReverseMap {
    /// Sorted by original address: (original, version, length); length 0 for single boundaries.
    pieces: Vec<(Svma, Svma, u32)>,
    /// Original code whose copy is in a state of its own, sorted: between the load of a jump-table entry and
    /// the jump.
    opaque: Vec<SvmaRange>,
}

impl ReverseMap {
    /// Of duplicates any one is right: what is known already is kept.
    pub fn new(pieces: &[MapPiece]) -> Self {
        let mut out: Vec<(Svma, Svma, u32)> = pieces
            .iter()
            .filter_map(|p| match p.kind {
                PieceKind::Linear => Some((p.original, p.version, p.len)),
                PieceKind::Branch => Some((p.original, p.version, 0)),
                _ => None,
            })
            .collect();
        // Of those that start together the longest comes first.
        out.sort_unstable_by_key(|&(original, version, len)| (original, Reverse(len), version));
        let mut end = Svma::default();
        out.retain_mut(|(original, version, len)| {
            let known = if *original < end { end.offset_from(*original) as u64 } else { 0 };
            if known > 0 && known >= u64::from(*len) {
                return false;
            }
            (*original, *version, *len) = (*original + known, *version + known, *len - known as u32);
            end = *original + u64::from(*len).max(1);
            true
        });
        let mut out = Self { pieces: out, opaque: Vec::new() };
        // Inserted code is opaque in front of an instruction that has a copy.
        let opaque =
            pieces.iter().filter(|p| p.kind == PieceKind::Opaque && out.boundary(p.original).is_none());
        let mut opaque: Vec<_> = opaque.map(|p| SvmaRange::new(p.original, p.len.into())).collect();
        opaque.sort_unstable_by_key(|range| range.start);
        out.opaque = opaque;
        out
    }

    /// Where the instruction at original address `at` stands.
    pub fn boundary(&self, at: Svma) -> Option<Svma> {
        let i = self.pieces.partition_point(|p| p.0 <= at).checked_sub(1)?;
        let (original, version, len) = self.pieces[i];
        let delta = at.offset_from(original) as u64;
        (delta < u64::from(len) || delta == 0).then_some(version + delta)
    }

    /// Whether who stands at original address `at` is between two places that the version has, and will be at
    /// the second one in a moment.
    pub fn is_in_between(&self, at: Svma) -> bool {
        let behind = self.opaque.partition_point(|range| range.start <= at);
        self.opaque[..behind].last().is_some_and(|range| range.contains(at))
    }

    /// Where the copied byte at original address `at` stands.
    pub fn byte(&self, at: Svma) -> Option<Svma> {
        let i = self.pieces.partition_point(|p| p.0 <= at).checked_sub(1)?;
        let (original, version, len) = self.pieces[i];
        let delta = at.offset_from(original) as u64;
        (delta < u64::from(len)).then_some(version + delta)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A program of blocks of four bytes, the last one a branch; copies of runs of it, some of them of the
    /// same blocks.
    fn pieces(runs: &[(u64, u64)]) -> Vec<MapPiece> {
        let mut version = 0x10_0000;
        let mut out = Vec::new();
        for &(first, count) in runs {
            for block in first..first + count {
                let piece = |from: u64, len: u32, kind| MapPiece {
                    version: Svma::new(version + from),
                    original: Svma::new(0x1000 + 4 * block + from),
                    len,
                    kind,
                };
                // Every third block runs on into the next one without a branch: its piece may be one with
                // that of the next.
                if block % 3 == 0 {
                    out.push(piece(0, 4, PieceKind::Linear));
                } else {
                    out.push(piece(0, 3, PieceKind::Linear));
                    out.push(piece(3, 1, PieceKind::Branch));
                }
                version += 4;
            }
            version += 16;
        }
        out.dedup_by(|next, last| {
            let joined = last.kind == PieceKind::Linear && next.kind == PieceKind::Linear;
            let joined = joined && last.original + u64::from(last.len) == next.original;
            let joined = joined && last.version + u64::from(last.len) == next.version;
            if joined {
                last.len += next.len;
            }
            joined
        });
        out
    }

    #[test]
    fn who_has_loaded_the_entry_of_a_table_is_in_between() {
        let piece = |version, original, len, kind| MapPiece {
            version: Svma::new(version),
            original: Svma::new(original),
            len,
            kind,
        };
        // A counter that keeps the flags; the load of four bytes, anew in seven; an addition and the jump.
        let reverse = ReverseMap::new(&[
            piece(0x9000, 0x1000, 2, PieceKind::Inserted),
            piece(0x9002, 0x1000, 9, PieceKind::Opaque),
            piece(0x900b, 0x1000, 3, PieceKind::Linear),
            piece(0x900e, 0x1003, 7, PieceKind::Branch),
            piece(0x9015, 0x1007, 3, PieceKind::Opaque),
            piece(0x9018, 0x100a, 2, PieceKind::Opaque),
            piece(0x901a, 0x1010, 4, PieceKind::Linear),
        ]);
        let between: Vec<u64> = (0xff8..0x1020).filter(|at| reverse.is_in_between(Svma::new(*at))).collect();
        assert_eq!(between, [0x1007, 0x1008, 0x1009, 0x100a, 0x100b]);
    }

    proptest! {
        /// Wherever a copy of an instruction is, one is found, and it is equal.
        #[test]
        fn duplicates_hide_nothing(runs in prop::collection::vec((0u64..30, 1u64..12), 1..8)) {
            let pieces = pieces(&runs);
            let map = restitch_emit::AddressMap { pieces: pieces.clone(), places: Vec::new() };
            let reverse = ReverseMap::new(&pieces);
            for at in (0x1000..0x1000 + 4 * 45).map(Svma::new) {
                let holds = |p: &MapPiece| (at.offset_from(p.original) as u64) < u64::from(p.len);
                let copied = pieces.iter().any(holds);
                prop_assert_eq!(reverse.boundary(at).is_some(), copied, "{}", at);
                prop_assert_eq!(reverse.byte(at).is_some(), pieces.iter().any(|p| holds(p) && p.kind == PieceKind::Linear));
                for found in [reverse.boundary(at), reverse.byte(at)].into_iter().flatten() {
                    prop_assert_eq!(map.to_original(found), Some(at));
                }
            }
        }
    }
}
