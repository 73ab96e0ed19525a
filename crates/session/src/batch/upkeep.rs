//! Keeping the cache in order: what killed sessions have left, what is damaged, what is too much.

use super::cache::{COUNTING, Cache, Entry, read_meta};
use super::known::key_at;
use super::usage::LONG_AGO;
use restitch_preload::{KNOWN_LEN, Known};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// What [`Cache::verify`] has found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// The overlay fits the module on disk.
    Sound,
    /// The module on disk is gone, or another one: the overlay serves copies of the old one, if there are any.
    Orphaned,
    /// The overlay was damaged, for this reason, and has been removed.
    Removed(String),
}

/// A module whose runs are counted, which the next command goes on with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CountingModule {
    /// Its file.
    pub path: PathBuf,
    /// Its build id, or the hash of its content, in hexadecimal digits.
    pub build_id: String,
    /// Bytes of the overlay that counts and of its counts.
    pub bytes: u64,
}

impl Cache {
    /// Takes counting overlays and counts away that a session which was killed has left, and brings what an older restitch has put in force into today's form.
    pub fn tidy(&self) {
        for file in std::fs::read_dir(&self.path).into_iter().flatten().flatten() {
            let name = file.file_name().to_string_lossy().into_owned();
            if name.contains(".tmp") && !is_recent(&file.path()) {
                let _ = std::fs::remove_file(file.path());
            }
            if let Some(id) = name.strip_suffix(".counts")
                && !self.path.join(format!("{id}.overlay")).exists()
                && let Some(_lock) = self.lock(id)
            {
                // It was killed just before the overlay that counts there was written.
                let _ = std::fs::remove_file(file.path());
            }
            if name.ends_with(".file") && !is_as_noted(&file.path()) {
                let _ = std::fs::remove_file(file.path());
            }
            // Whoever holds the lock may just have led there.
            if let Some(id) = name.strip_suffix(".counting")
                && !self.leads_to_counting(id)
                && let Some(_lock) = self.lock(id)
                && !self.leads_to_counting(id)
            {
                let _ = std::fs::remove_file(file.path());
            }
            let Some(id) = name.strip_suffix(".overlay") else { continue };
            let counts = read_meta(&file.path()).is_none_or(|m| m.counters_len > 0);
            if (counts || self.is_of_old_form(id))
                && let Some(_lock) = self.lock(id)
            {
                match self.is_suspended(id) {
                    true if self.has_lost_its_module(id) => self.end_counting(id),
                    true if self.is_of_old_form(id) => self.give_name(id),
                    true => {}
                    // Failing, it goes on counting until its tickets are used up.
                    false => drop(self.put_in_force(id)),
                }
            }
        }
    }

    /// Ends the counting of a module: what was in force before is again, or nothing is left of it.
    pub(crate) fn end_counting(&self, id: &str) {
        match self.entry(id) {
            // Failing, it goes on counting until its tickets are used up.
            Some(_) => drop(self.put_in_force(id)),
            None => self.remove(id),
        }
    }

    /// Whether a suspended counting waits for a module that is not there, and has for long; what is built from scratch is not there in the beginning.
    fn has_lost_its_module(&self, id: &str) -> bool {
        let age = age_of(&self.stored(id, COUNTING));
        self.path_of(id).is_some_and(|path| !path.exists()) && age.is_some_and(|age| age > LONG_AGO)
    }

    /// Removes the modules that were optimized longest ago until no more than `most` bytes are left, and countings if they alone are more;
    /// what somebody works on stays. How many modules were removed, and of how many.
    pub fn prune(&self, most: u64) -> (usize, usize) {
        let mut sum = 0;
        let (mut known, mut removed) = (BTreeSet::new(), BTreeSet::new());
        let mut keep = |id: &str, bytes: u64| {
            sum += bytes;
            known.insert(id.to_owned());
            if sum > most
                && let Some(_lock) = self.lock(id)
            {
                self.remove(id);
                removed.insert(id.to_owned());
            }
        };
        // What is counted is in use: it goes last.
        self.counting().iter().for_each(|c| keep(&c.build_id, c.bytes));
        self.entries().iter().for_each(|e| keep(&e.build_id, self.size(e)));
        (removed.len(), known.len())
    }

    /// The modules whose runs are counted, over several commands.
    pub fn counting(&self) -> Vec<CountingModule> {
        let of = |build_id: String| {
            let path = self.path_of(&build_id)?;
            let len =
                |kind| std::fs::metadata(self.path.join(format!("{build_id}.{kind}"))).map_or(0, |m| m.len());
            Some(CountingModule { path, bytes: len("counts") + len("counting"), build_id })
        };
        self.counting_ids().into_iter().filter_map(of).collect()
    }

    /// Bytes of a module's files.
    pub fn size(&self, entry: &Entry) -> u64 {
        let len = |kind| std::fs::metadata(self.stored(&entry.build_id, kind)).map_or(0, |m| m.len());
        len("optimized") + len("profile")
    }

    /// Compares a module's overlay with the module on disk; a damaged one is removed.
    pub fn verify(&self, entry: &Entry) -> Verdict {
        let image = std::fs::read(&entry.path).ok().and_then(|b| restitch_image::Image::parse(b).ok());
        let Some(image) = image.filter(|i| i.identity().to_string() == entry.build_id) else {
            return Verdict::Orphaned;
        };
        let bytes = std::fs::read(self.stored(&entry.build_id, "optimized")).unwrap_or_default();
        match restitch_apply_preload::verify(&bytes, &image) {
            Ok(_) => Verdict::Sound,
            Err(why) => {
                self.remove(&entry.build_id);
                Verdict::Removed(why.to_string())
            }
        }
    }
}

/// Whether the file that a note is about is still where it was, and as it was.
fn is_as_noted(note: &Path) -> bool {
    let bytes = std::fs::read(note).unwrap_or_default();
    let path = bytes.get(KNOWN_LEN..).map(|p| PathBuf::from(OsString::from_vec(p.to_vec())));
    let key = path.and_then(|p| key_at(&p));
    key.is_some() && Known::decode(&bytes).map(|k| k.key) == key
}

/// Whether a file was written in the last hour: somebody may still be writing it.
fn is_recent(path: &Path) -> bool {
    age_of(path).is_none_or(|age| age < 3600)
}

/// Seconds since a file was written.
fn age_of(path: &Path) -> Option<u64> {
    let written = std::fs::symlink_metadata(path).and_then(|m| m.modified()).ok()?;
    written.elapsed().ok().map(|age| age.as_secs())
}
