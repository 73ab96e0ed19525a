//! Versions that are in a process when a switch begins, with the maps that lead out of them.

use crate::Target;
use crate::journal::{Journal, JournalVersion};
use crate::map_file::StoredMap;
use restitch_address::{Avma, AvmaRange, LoadBias, Svma};
use restitch_emit::PieceKind;

/// A version that is in the process when a switch begins.
#[derive(Debug, Clone)]
pub(crate) struct OldVersion {
    pub number: u32,
    pub range: AvmaRange,
    pub bias: LoadBias,
    /// Index of its module in the target; `None` if the module is no longer mapped.
    pub module: Option<usize>,
    pub stored: StoredMap,
}

impl OldVersion {
    /// What `journal` lists.
    pub fn all(journal: &Journal, target: &Target) -> Vec<Self> {
        journal.versions.iter().map(|v| Self::of(v, target)).collect()
    }

    fn of(v: &JournalVersion, target: &Target) -> Self {
        let bias = LoadBias::between(Svma::new(0), Avma::new(v.bias));
        // Without its map nobody can be moved out of a version; it is kept then.
        let stored = std::fs::read(&v.map_file).ok().and_then(|b| StoredMap::read(&b)).unwrap_or_default();
        let module = target.modules.iter().position(|m| m.bias == bias && m.path == v.module);
        Self { number: v.number, range: v.range(), bias, module, stored }
    }

    /// The original address that is equal to standing at `at`.
    pub fn to_original(&self, at: Avma) -> Option<Avma> {
        self.stored.map.to_original(self.bias.to_stated(at)).map(|o| self.bias.to_actual(o))
    }

    /// The module and original address that the byte at `at` is a copy of, or equal to standing at.
    pub fn original_byte(&self, at: Avma) -> Option<(usize, Svma)> {
        let version = self.bias.to_stated(at);
        let pieces = &self.stored.map.pieces;
        let i = pieces.partition_point(|p| p.version <= version).checked_sub(1)?;
        let delta = version.offset_from(pieces[i].version) as u64;
        match pieces[i].kind {
            _ if delta >= u64::from(pieces[i].len) => None,
            PieceKind::Linear => Some((self.module?, pieces[i].original + delta)),
            PieceKind::Opaque => None,
            _ => Some((self.module?, pieces[i].original)),
        }
    }

    /// The original return address for a return address into this version.
    pub fn return_to_original(&self, value: Avma) -> Option<Avma> {
        let inside = self.bias.to_stated(value - 1);
        let pieces = &self.stored.map.pieces;
        let i = pieces.partition_point(|p| p.version <= inside).checked_sub(1)?;
        let delta = inside.offset_from(pieces[i].version) as u64;
        let linear = pieces[i].kind == PieceKind::Linear && delta < u64::from(pieces[i].len);
        linear.then(|| self.bias.to_actual(pieces[i].original + delta + 1))
    }
}
