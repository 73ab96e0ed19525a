//! The address map of a version on disk, for a later run that has to move threads out of it.
//!
//! Magic, counts, 21 bytes a piece, 17 bytes a redirect, a sum (FNV-1a) over all of it; little-endian.

use super::state_file;
use restitch_address::Svma;
use restitch_emit::{AddressMap, MapPiece, PieceKind, Redirect, RedirectKind};
use std::io::Read;
use std::path::Path;

const MAGIC: &[u8; 8] = b"RSTMAP1\n";
/// Bytes in front of the pieces.
const HEAD: usize = 24;
const PIECE: usize = 21;
const REDIRECT: usize = 17;

/// What a later run needs of a version.
#[derive(Debug, Clone, PartialEq, Default)]
pub(crate) struct StoredMap {
    pub map: AddressMap,
    pub redirects: Vec<Redirect>,
}

const KINDS: [PieceKind; 5] =
    [PieceKind::Linear, PieceKind::Branch, PieceKind::Added, PieceKind::Inserted, PieceKind::Opaque];

/// FNV-1a, 64 bits.
pub(crate) fn sum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

impl StoredMap {
    /// The original address that the byte at `version` is a copy of, or equal to standing at.
    pub fn original_byte(&self, version: Svma) -> Option<Svma> {
        let (piece, delta) = self.piece_at(version)?;
        match piece.kind {
            PieceKind::Linear => Some(piece.original + delta),
            PieceKind::Opaque => None,
            _ => Some(piece.original),
        }
    }

    /// The same for profiles; of code that equals nothing, the original that it was put in for.
    pub fn nearest_original(&self, version: Svma) -> Option<Svma> {
        let (piece, _) = self.piece_at(version)?;
        let known = Some(piece.original).filter(|at| *at != Svma::default());
        if piece.kind == PieceKind::Opaque { known } else { self.original_byte(version) }
    }

    /// The piece that the byte at `version` is in, and how many bytes from its start.
    fn piece_at(&self, version: Svma) -> Option<(&MapPiece, u64)> {
        let i = self.map.pieces.partition_point(|p| p.version <= version).checked_sub(1)?;
        let piece = &self.map.pieces[i];
        let delta = version.offset_from(piece.version) as u64;
        (delta < u64::from(piece.len)).then_some((piece, delta))
    }

    pub fn write(&self) -> Vec<u8> {
        let mut out = MAGIC.to_vec();
        out.extend_from_slice(&(self.map.pieces.len() as u64).to_le_bytes());
        out.extend_from_slice(&(self.redirects.len() as u64).to_le_bytes());
        for p in &self.map.pieces {
            out.extend_from_slice(&p.version.get().to_le_bytes());
            out.extend_from_slice(&p.original.get().to_le_bytes());
            out.extend_from_slice(&p.len.to_le_bytes());
            out.push(KINDS.iter().position(|k| *k == p.kind).unwrap_or(0) as u8);
        }
        for r in &self.redirects {
            out.extend_from_slice(&r.at.get().to_le_bytes());
            out.extend_from_slice(&r.to.get().to_le_bytes());
            out.push((r.kind == RedirectKind::Landing) as u8);
        }
        let sum = sum(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        out
    }

    /// The redirects of the map in a file. Where there are none, as in tracing versions, it ends with the
    /// head: such maps have tens of megabytes, and whoever takes back a program that forks asks for each
    /// child.
    pub fn redirects_in(path: &Path) -> Option<Vec<Redirect>> {
        let mut file = state_file::open(path).ok()?.take(state_file::MOST_BYTES);
        let mut bytes = vec![0; HEAD];
        file.read_exact(&mut bytes).ok()?;
        if bytes.starts_with(MAGIC) && bytes[16..HEAD] == [0; 8] {
            return Some(Vec::new());
        }
        file.read_to_end(&mut bytes).ok()?;
        Self::read(&bytes).map(|map| map.redirects)
    }

    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (body, stored) = bytes.split_at_checked(bytes.len().checked_sub(8)?)?;
        let word = |at: usize| Some(u64::from_le_bytes(body.get(at..at + 8)?.try_into().ok()?));
        if !body.starts_with(MAGIC) || sum(body).to_le_bytes() != stored {
            return None;
        }
        let (pieces, redirects) = (usize::try_from(word(8)?).ok()?, usize::try_from(word(16)?).ok()?);
        let split = HEAD.checked_add(pieces.checked_mul(PIECE)?)?;
        if body.len() != split.checked_add(redirects.checked_mul(REDIRECT)?)? {
            return None;
        }
        let mut out = Self::default();
        for at in (HEAD..split).step_by(PIECE) {
            out.map.pieces.push(MapPiece {
                version: Svma::new(word(at)?),
                original: Svma::new(word(at + 8)?),
                len: u32::from_le_bytes(body[at + 16..at + 20].try_into().ok()?),
                kind: *KINDS.get(body[at + 20] as usize)?,
            });
        }
        for at in (split..body.len()).step_by(REDIRECT) {
            let kind = if body[at + 16] == 0 { RedirectKind::Entry } else { RedirectKind::Landing };
            out.redirects.push(Redirect { at: Svma::new(word(at)?), to: Svma::new(word(at + 8)?), kind });
        }
        Some(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use restitch_testkit::scratch;

    #[test]
    fn redirects_are_those_of_a_sound_map() {
        let folder = scratch();
        let path = folder.path().join("map");
        let piece =
            MapPiece { version: Svma::new(1), original: Svma::new(2), len: 3, kind: PieceKind::Linear };
        let redirect = Redirect { at: Svma::new(1), to: Svma::new(2), kind: RedirectKind::Entry };
        for redirects in [vec![], vec![redirect; 3]] {
            let map = AddressMap { pieces: vec![piece; 2], ..AddressMap::default() };
            let bytes = StoredMap { map, redirects: redirects.clone() }.write();
            std::fs::write(&path, &bytes).expect("writable");
            assert_eq!(StoredMap::redirects_in(&path), Some(redirects));
            std::fs::write(&path, &bytes[..HEAD - 1]).expect("writable");
            assert_eq!(StoredMap::redirects_in(&path), None);
        }
        let mut damaged = std::fs::read(&path).expect("readable");
        damaged.extend([1; 40]);
        std::fs::write(&path, &damaged).expect("writable");
        assert_eq!(StoredMap::redirects_in(&path), None);
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(pieces in prop::collection::vec((any::<u64>(), any::<u64>(), any::<u32>(), 0usize..5), 0..20)) {
            let map = AddressMap { pieces: pieces.iter().map(|&(v, o, len, k)| MapPiece {
                version: Svma::new(v), original: Svma::new(o), len, kind: KINDS[k] }).collect(), ..AddressMap::default() };
            let redirects = vec![Redirect { at: Svma::new(1), to: Svma::new(2), kind: RedirectKind::Landing }];
            let stored = StoredMap { map, redirects };
            prop_assert_eq!(StoredMap::read(&stored.write()), Some(stored));
        }

        #[test]
        fn damage_is_noticed(at in 0usize..90, flip in 1u8..) {
            let map = AddressMap { pieces: vec![MapPiece { version: Svma::new(1), original: Svma::new(2), len: 3, kind: PieceKind::Linear }; 2], ..AddressMap::default() };
            let mut bytes = StoredMap { map, redirects: vec![] }.write();
            let at = at % bytes.len();
            bytes[at] ^= flip;
            prop_assert_eq!(StoredMap::read(&bytes), None);
        }
    }
}
