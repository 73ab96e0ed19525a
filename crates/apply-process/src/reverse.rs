//! The address map turned around: from original addresses to those in a version.

use restitch_address::Svma;
use restitch_emit::PieceKind;

/// The address map turned around.
pub(crate) struct ReverseMap {
    /// Sorted by original address: (original, version, length); length 0 for single boundaries.
    pieces: Vec<(Svma, Svma, u32)>,
}

impl ReverseMap {
    pub fn new(pieces: &[restitch_emit::MapPiece]) -> Self {
        let mut out: Vec<(Svma, Svma, u32)> = pieces
            .iter()
            .filter_map(|p| match p.kind {
                PieceKind::Linear => Some((p.original, p.version, p.len)),
                PieceKind::Branch => Some((p.original, p.version, 0)),
                _ => None,
            })
            .collect();
        out.sort_unstable();
        Self { pieces: out }
    }

    /// Where the instruction at original address `at` stands.
    pub fn boundary(&self, at: Svma) -> Option<Svma> {
        let i = self.pieces.partition_point(|p| p.0 <= at).checked_sub(1)?;
        let (original, version, len) = self.pieces[i];
        let delta = at.offset_from(original) as u64;
        (delta < u64::from(len) || delta == 0).then_some(version + delta)
    }

    /// Where the copied byte at original address `at` stands.
    pub fn byte(&self, at: Svma) -> Option<Svma> {
        let i = self.pieces.partition_point(|p| p.0 <= at).checked_sub(1)?;
        let (original, version, len) = self.pieces[i];
        let delta = at.offset_from(original) as u64;
        (delta < u64::from(len)).then_some(version + delta)
    }
}
