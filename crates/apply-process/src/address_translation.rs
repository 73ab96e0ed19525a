//! From addresses that the process holds to those of the original code.

use crate::attached_process::AttachedProcess;
use crate::installed_version::InstalledVersion;
use crate::state::map_file::StoredMap;
use restitch_address::{Avma, LoadBias, Svma};
use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Leads addresses in versions back to the original code.
pub(crate) struct AddressTranslation<'a> {
    attached: &'a AttachedProcess,
    /// Read when they are needed first.
    versions: OnceCell<Vec<InstalledVersion>>,
}

impl<'a> AddressTranslation<'a> {
    pub fn new(attached: &'a AttachedProcess) -> Self {
        Self { attached, versions: OnceCell::new() }
    }

    /// The original address that equals `at`: itself, if it is in no version. `None`: it is in a version, at
    /// no boundary that is known.
    pub fn of(&self, at: Avma) -> Option<Avma> {
        if !self.attached.journal.versions.iter().any(|v| v.range().contains(at)) {
            return Some(at);
        }
        let versions =
            self.versions.get_or_init(|| InstalledVersion::all(&self.attached.journal, self.attached.now()));
        versions.iter().find(|v| v.range.contains(at))?.to_original(at)
    }
}

/// Says of what original code the code of versions is a copy, for samples. Processes that were forked from
/// one another have their versions in common: each map is read once.
#[derive(Debug, Default)]
pub struct VersionMaps {
    maps: BTreeMap<PathBuf, StoredMap>,
}

impl VersionMaps {
    /// The module (its index in the target) and the stated address of the original code that the byte at `at`
    /// in a version of the process `attached` is a copy of, or was put in for. `None`: no version of a module
    /// that is still there is at `at`, by the journal as it was when that was read, or its map is lost, or
    /// the byte belongs to no original code.
    pub fn original_byte(&mut self, attached: &AttachedProcess, at: Avma) -> Option<(usize, Svma)> {
        let version = attached.journal.versions.iter().find(|v| v.range().contains(at))?;
        let bias = LoadBias::between(Svma::new(0), Avma::new(version.bias));
        let module =
            attached.target.modules.iter().position(|m| m.bias == bias && m.path == version.module)?;
        let map = self.maps.entry(version.map_file.clone()).or_insert_with(|| {
            let bytes = crate::state::state_file::read(&version.map_file).ok();
            bytes.and_then(|b| StoredMap::read(&b)).unwrap_or_default()
        });
        Some((module, map.nearest_original(bias.to_stated(at))?))
    }
}
