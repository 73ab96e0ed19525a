//! Versions that are in a process when a switch begins, with the maps that lead out of them.

use crate::state::journal::{Journal, JournalVersion};
use crate::state::map_file::StoredMap;
use crate::target::Target;
use restitch_address::{Avma, AvmaRange, LoadBias, Svma};
use restitch_emit::{MapPiece, PieceKind};

/// A version that is in the process when a switch begins.
#[derive(Debug, Clone)]
pub(crate) struct InstalledVersion {
    pub number: u32,
    pub range: AvmaRange,
    pub bias: LoadBias,
    /// Index of its module in the target; `None` if the module is no longer mapped.
    pub module: Option<usize>,
    /// Empty if it is lost.
    pub stored: StoredMap,
    /// Whether addresses in it may stand anywhere ([`JournalVersion::by_pointers`]).
    pub by_pointers: bool,
    /// Its map file is gone, damaged or another version's: it is not known where in the version code is.
    pub map_lost: bool,
}

impl InstalledVersion {
    /// What `journal` lists.
    pub fn all(journal: &Journal, target: &Target) -> Vec<Self> {
        journal.versions.iter().map(|v| Self::of(v, target)).collect()
    }

    fn of(v: &JournalVersion, target: &Target) -> Self {
        let bias = LoadBias::between(Svma::new(0), Avma::new(v.bias));
        // Without its map nobody can be moved out of a version, which stays for as long as somebody is in it.
        let stored = crate::state::state_file::read(&v.map_file).ok().and_then(|b| StoredMap::read(&b));
        let stored = stored.filter(|s| is_inside(s, v.range(), bias));
        let module = target.modules.iter().position(|m| m.bias == bias && m.path == v.module);
        let map_lost = stored.is_none();
        let stored = stored.unwrap_or_default();
        let (number, range, by_pointers) = (v.number, v.range(), v.by_pointers);
        Self { number, range, bias, module, stored, by_pointers, map_lost }
    }

    /// The original address that is equal to standing at `at`.
    pub fn to_original(&self, at: Avma) -> Option<Avma> {
        self.stored.map.to_original(self.bias.to_stated(at)).map(|o| self.bias.to_actual(o))
    }

    /// The module and original address that the byte at `at` is a copy of, or equal to standing at.
    pub fn original_byte(&self, at: Avma) -> Option<(usize, Svma)> {
        Some((self.module?, self.stored.original_byte(self.bias.to_stated(at))?))
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

/// Whether all that `stored` tells of lies in a version at `range`.
fn is_inside(stored: &StoredMap, range: AvmaRange, bias: LoadBias) -> bool {
    let place = |p: &MapPiece| AvmaRange::new(bias.to_actual(p.version), u64::from(p.len));
    stored.map.pieces.iter().map(place).all(|p| range.start <= p.start && p.end <= range.end)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::journal::VersionKind;
    use restitch_emit::AddressMap;
    use restitch_testkit::scratch;

    #[test]
    fn a_map_that_cannot_be_read_is_not_an_empty_one() {
        let folder = scratch();
        let map_file = folder.path().join("map");
        let target = Target::open(std::process::id() as i32).expect("our own");
        let version = JournalVersion {
            number: 7,
            kind: VersionKind::Optimized,
            module: "/bin/true".into(),
            bias: 0,
            start: 0x1000,
            len: 4096,
            file: "version".into(),
            map_file: map_file.clone(),
            eh_frame_hdr: 0,
            counters: None,
            retired: true,
            by_pointers: false,
            slots: Vec::new(),
        };
        let lost = || InstalledVersion::of(&version, &target).map_lost;
        assert!(lost(), "there is none");
        let stored = StoredMap::default().write();
        std::fs::write(&map_file, &stored).expect("writable");
        assert!(!lost(), "an empty one");
        std::fs::write(&map_file, &stored[1..]).expect("writable");
        assert!(lost(), "a damaged one");
        for (at, is_here) in [(0x1100, true), (0x1ff0, true), (0x1ff8, false), (0xff8, false)] {
            let piece =
                MapPiece { version: Svma::new(at), original: Svma::new(0), len: 16, kind: PieceKind::Linear };
            let map = AddressMap { pieces: vec![piece], ..AddressMap::default() };
            let stored = StoredMap { map, redirects: Vec::new() };
            std::fs::write(&map_file, stored.write()).expect("writable");
            assert_eq!(lost(), !is_here, "of a version at {at:#x}");
        }
    }
}
