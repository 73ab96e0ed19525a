//! From addresses that the process holds to those of the original code.

use crate::live::Live;
use crate::old::OldVersion;
use restitch_address::Avma;
use std::cell::OnceCell;

/// Leads addresses in versions back to the original code.
pub(crate) struct Origins<'a> {
    live: &'a Live,
    /// Read when they are needed first.
    versions: OnceCell<Vec<OldVersion>>,
}

impl<'a> Origins<'a> {
    pub fn new(live: &'a Live) -> Self {
        Self { live, versions: OnceCell::new() }
    }

    /// The original address that equals `at`: itself, if it is in no version. `None`: it is in a version, at no boundary that is known.
    pub fn of(&self, at: Avma) -> Option<Avma> {
        if !self.live.journal.versions.iter().any(|v| v.range().contains(at)) {
            return Some(at);
        }
        let versions = self.versions.get_or_init(|| OldVersion::all(&self.live.journal, self.live.now()));
        versions.iter().find(|v| v.range.contains(at))?.to_original(at)
    }
}
