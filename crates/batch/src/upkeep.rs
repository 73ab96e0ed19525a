//! Keeping the cache in order: what killed sessions have left, what is damaged, what is too much.

use crate::build::Build;
use crate::cache::{COUNTING, Cache, Entry, OPTIMIZED, read_meta};
use crate::is_old;
use crate::known::key_at;
use crate::names::{is_named, with_files};
use crate::own_files::{MOST_OF_NOTE, MOST_OF_OVERLAY, read_own};
use crate::seal::is_undamaged;
use crate::usage::LONG_AGO;
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
    /// The module on disk is gone, or another one: the overlay serves copies of the old one, if there are
    /// any.
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
    /// Takes counting overlays and counts away that a session which was killed has left, and what is damaged,
    /// and brings what an older restitch has put in force into today's form. What is to be said of it.
    pub fn tidy(&self) -> Vec<String> {
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
                    true if self.has_lost_its_module(id) || !self.counts_soundly(id) => self.end_counting(id),
                    true if self.is_of_old_form(id) => self.give_name(id),
                    true => {}
                    // Failing, it goes on counting until its tickets are used up.
                    false => drop(self.put_in_force(id)),
                }
            }
        }
        self.take_back_unsound()
    }

    /// Whether an overlay that counts is as it was written. (What an older restitch has put in force has no
    /// name of its own.)
    fn counts_soundly(&self, id: &str) -> bool {
        self.is_of_old_form(id) || is_undamaged(&self.path.join(format!("{id}.{COUNTING}")))
    }

    /// Takes what is in the cache of modules with these names (or paths) out of force, and puts in force what
    /// was taken out so for an earlier command.
    pub(crate) fn leave_out(&self, names: &[String]) {
        for entry in self.entries().into_iter().filter(|e| !e.layout.is_empty()) {
            let (id, is_named) = (&entry.build_id, is_named(&entry.path, names));
            let is_in_force = self.path.join(format!("{id}.overlay")).exists();
            // What is old may be out of force to be profiled anew.
            if is_in_force == is_named
                && (is_named || !is_old(&entry))
                && let Some(_lock) = self.lock(id)
            {
                match is_named {
                    true => self.retire(id),
                    // Failing, the original code runs.
                    false => drop(self.put_in_force(id)),
                }
            }
        }
        for counting in self.counting().iter().filter(|c| is_named(&c.path, names)) {
            if let Some(_lock) = self.lock(&counting.build_id) {
                self.end_counting(&counting.build_id);
                self.retire(&counting.build_id);
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

    /// Whether a suspended counting waits for a module that is not there, and has for long; what is built
    /// from scratch is not there in the beginning.
    fn has_lost_its_module(&self, id: &str) -> bool {
        let age = age_of(&self.stored(id, COUNTING));
        self.path_of(id).is_some_and(|path| !path.exists()) && age.is_some_and(|age| age > LONG_AGO)
    }

    /// Removes modules until no more than `most` bytes are left: first those that another build has replaced,
    /// then those that were used longest ago, and countings if they alone are more. What another build
    /// replaced long ago, or whose note is damaged, goes in any case; what somebody works on stays. How many
    /// modules were removed, and of how many.
    pub fn prune(&self, most: u64) -> (usize, usize) {
        let mut sum = 0u64;
        let (mut known, mut removed) = (BTreeSet::new(), BTreeSet::new());
        let mut keep = |id: &str, bytes: Option<u64>| {
            sum += bytes.unwrap_or(0);
            known.insert(id.to_owned());
            if (bytes.is_none() || sum > most)
                && let Some(_lock) = self.lock(id)
            {
                self.remove(id);
                removed.insert(id.to_owned());
            }
        };
        // What is counted is in use: it goes last.
        self.counting().iter().for_each(|c| keep(&c.build_id, Some(c.bytes)));
        let mut entries = self.entries();
        let replaced = replaced(&entries);
        let unused = |e: &Entry| age_of(&self.stored(&e.build_id, "json")).unwrap_or(0);
        entries.sort_by_cached_key(|e| (replaced.contains(&e.build_id), unused(e)));
        for entry in &entries {
            let is_over = replaced.contains(&entry.build_id) && unused(entry) > LONG_AGO;
            keep(&entry.build_id, (!is_over).then(|| self.size(entry)));
        }
        self.strays().iter().for_each(|id| keep(id, None));
        (removed.len(), known.len())
    }

    /// Removes all builds of the modules that are named (by file name or path), so that they are profiled
    /// anew; what somebody works on stays. How many were removed, and the names that stand for none.
    pub fn forget(&self, names: &[String]) -> (usize, Vec<String>) {
        let entries = self.entries().into_iter().map(|e| (e.build_id, e.path));
        let counting = self.counting().into_iter().map(|c| (c.build_id, c.path));
        let all: BTreeSet<(String, PathBuf)> = entries.chain(counting).collect();
        let search = std::env::var_os("PATH");
        let named = with_files(names, search.as_deref());
        let mut removed = 0;
        for (id, _) in all.iter().filter(|(_, path)| is_named(path, &named)) {
            if let Some(_lock) = self.lock(id) {
                self.remove(id);
                removed += 1;
            }
        }
        let is_unknown = |name: &&String| {
            let names = with_files(std::slice::from_ref(*name), search.as_deref());
            !all.iter().any(|(_, path)| is_named(path, &names))
        };
        (removed, names.iter().filter(is_unknown).cloned().collect())
    }

    /// Overlays of which nothing says what they are: their notes are damaged. Nobody could ever use or end
    /// them.
    fn strays(&self) -> BTreeSet<String> {
        let known: BTreeSet<String> =
            self.entries().into_iter().map(|e| e.build_id).chain(self.counting_ids()).collect();
        let folder = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten();
        let name = |file: std::fs::DirEntry| file.file_name().to_str().map(str::to_owned);
        let of = |name: String| {
            let (id, kind) = name.split_once('.')?;
            [OPTIMIZED, "overlay", COUNTING].contains(&kind).then(|| id.to_owned())
        };
        let all = folder(&self.path).chain(folder(&self.path.join("store")));
        all.filter_map(name).filter_map(of).filter(|id| !known.contains(id)).collect()
    }

    /// The build ids of modules whose file another build that is known has replaced.
    pub fn replaced(&self) -> BTreeSet<String> {
        replaced(&self.entries())
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

    /// Compares all overlays, those that count as well, with the modules on disk; damaged ones are removed.
    /// What was found, by module.
    pub fn verify_all(&self) -> Vec<(PathBuf, Verdict)> {
        let entries = self.entries();
        let optimized = entries.iter().filter(|e| !e.layout.is_empty() && !e.trial.is_lost());
        let optimized = optimized.map(|e| (e.path.clone(), self.verify(e)));
        let counting = self.counting();
        // One whose counting has just ended has none.
        let is_there = |c: &&CountingModule| self.path.join(format!("{}.{COUNTING}", c.build_id)).exists();
        let counting = counting.iter().filter(is_there).map(|c| (c.path.clone(), self.verify_counting(c)));
        let mut found: Vec<_> = optimized.chain(counting).collect();
        for id in self.strays() {
            if let Some(_lock) = self.lock(&id) {
                self.remove(&id);
                let path = self.path_of(&id).unwrap_or_else(|| PathBuf::from(&id));
                found.push((path, Verdict::Removed("nothing says what module it is of".into())));
            }
        }
        found
    }

    /// Compares a module's overlay with the module on disk; a damaged one is removed.
    pub fn verify(&self, entry: &Entry) -> Verdict {
        let overlay = self.stored(&entry.build_id, OPTIMIZED);
        self.compare(&entry.path, &entry.build_id, &overlay, || self.remove(&entry.build_id))
    }

    /// The same for an overlay that counts; if it is damaged, the counting ends.
    fn verify_counting(&self, module: &CountingModule) -> Verdict {
        let overlay = self.path.join(format!("{}.{COUNTING}", module.build_id));
        self.compare(&module.path, &module.build_id, &overlay, || self.end_counting(&module.build_id))
    }

    fn compare(&self, path: &Path, id: &str, overlay: &Path, remove: impl FnOnce()) -> Verdict {
        let image =
            restitch_apply::read_regular(path).ok().and_then(|b| restitch_image::Image::parse(b).ok());
        let bytes = read_own(overlay, MOST_OF_OVERLAY).unwrap_or_default();
        let made_of = read_meta(overlay).map(|meta| Build { id: id.into(), content: meta.original });
        let verified = match image.filter(|i| made_of == Some(Build::of(i))) {
            Some(image) => restitch_apply_preload::verify(&bytes, &image),
            None => match restitch_apply_preload::undamaged(&bytes) {
                Ok(_) => return Verdict::Orphaned,
                Err(why) => Err(why),
            },
        };
        match verified {
            Ok(_) => Verdict::Sound,
            Err(why) => {
                remove();
                Verdict::Removed(why.to_string())
            }
        }
    }
}

/// Of `entries`, the newest first, those of a file of which there is a newer build.
fn replaced(entries: &[Entry]) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let older = entries.iter().filter(|e| !seen.insert(&e.path));
    older.map(|e| e.build_id.clone()).collect()
}

/// Whether the file that a note is about is still where it was, and as it was.
fn is_as_noted(note: &Path) -> bool {
    let bytes = read_own(note, MOST_OF_NOTE).unwrap_or_default();
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
