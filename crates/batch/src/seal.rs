//! Overlays that were changed since they were written.
//!
//! **Problem.** A process trusts an overlay by its owner and mode: to compare its checksum would take longer
//! than all else. A disk, or somebody's script, may have changed it since.
//!
//! **Idea.** Whoever has compared an overlay with its checksum notes the state that its file was in
//! ([`FileKey`]). Before the command starts, the states of all overlays are looked at; one that is another is
//! compared again, and what is damaged is taken out of force, and made again from the profile. (What changes
//! on a disk without the kernel's knowledge is found by `restitch cache verify` alone.)

use crate::cache::{Cache, Entry, OPTIMIZED, SEAL};
use crate::known::key_at;
use crate::own_files::{MOST_OF_NOTE, MOST_OF_OVERLAY, read_own};
use restitch_apply_preload::undamaged;
use restitch_pipeline::disk::write_whole;
use restitch_preload::FileKey;
use std::fs::symlink_metadata;
use std::path::Path;

impl Cache {
    /// Whether the stored overlay of a module is as it was written.
    pub(crate) fn is_sound(&self, id: &str) -> bool {
        let stored = self.stored(id, OPTIMIZED);
        if !symlink_metadata(&stored).is_ok_and(|m| m.is_file()) {
            return false;
        }
        let noted = read_own(&self.stored(id, SEAL), MOST_OF_NOTE).ok();
        if noted.is_some() && noted == state(&stored) {
            return true;
        }
        let is_sound = is_undamaged(&stored);
        if is_sound {
            self.seal(id);
        }
        is_sound
    }

    /// Notes the state that the stored overlay is in. Failing, it is compared again.
    pub(crate) fn seal(&self, id: &str) {
        if let Some(state) = state(&self.stored(id, OPTIMIZED)) {
            let _ = write_whole(&self.stored(id, SEAL), &state, 0o600);
        }
    }

    /// Takes overlays out of force that are damaged, of an older format, or gone. They are made again, from
    /// the profiles that are kept. What is to be said.
    pub(crate) fn take_back_unsound(&self) -> Vec<String> {
        let optimized = self.entries().into_iter().filter(|e| !e.layout.is_empty() && !e.trial.is_lost());
        optimized.filter_map(|entry| self.take_back(entry)).collect()
    }

    fn take_back(&self, entry: Entry) -> Option<String> {
        let id = entry.build_id.clone();
        if self.is_sound(&id) {
            return None;
        }
        // What somebody works on is left to him.
        let _lock = self.lock(&id)?;
        if self.is_sound(&id) {
            return None;
        }
        let of_older_format = super::cache::is_of_other_format(&self.stored(&id, OPTIMIZED));
        let path = entry.path.clone();
        // Failing, the agent finds the old one, which is refused by it if it is of another format.
        let _ = std::fs::remove_file(self.stored(&id, OPTIMIZED));
        let _ = self.put_in_force(&id);
        let (optimized, trial) = Default::default();
        let _ = self.write_entry(&Entry { layout: String::new(), optimized, trial, ..entry });
        let damaged = || {
            format!(
                "the overlay of {} is not as it was written; it is made again from its profile",
                path.display()
            )
        };
        (!of_older_format).then(damaged)
    }
}

/// Whether an overlay is as it was written, by its checksum.
pub(crate) fn is_undamaged(overlay: &Path) -> bool {
    read_own(overlay, MOST_OF_OVERLAY).is_ok_and(|bytes| undamaged(&bytes).is_ok())
}

/// The state of a file, as it is noted.
fn state(path: &Path) -> Option<Vec<u8>> {
    let FileKey { device, inode, len, modified, changed } = key_at(path)?;
    let words = [device, inode, len, modified[0], modified[1], changed[0], changed[1]];
    Some(words.iter().flat_map(|w| w.to_le_bytes()).collect())
}
