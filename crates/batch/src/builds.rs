//! Which build of a module there is: programs are built anew while commands run, and between them.
//!
//! **Problem.** What is known of a module (what was seen of it, its counts, that it is left alone) belongs to
//! one build of it; the way to it leads through a path. A compiler that is built in stages, or a test program
//! after each change, is another module at the same path.
//!
//! **Idea.** Files are looked at once a second, by their state ([`FileKey`]); where that has changed, their
//! identity tells. A build that the cache knows, or that somebody works on, is no news (`touch`, or a build
//! that came out the same); another one is a new module, of which nothing is known.

use crate::build::Build;
use crate::cache::Cache;
use crate::known::{age, key_at};
use crate::suspended::Suspended;
use restitch_pipeline::PipelineError;
use restitch_preload::FileKey;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Why a module's counting, or its profile, is over.
pub(crate) const REPLACED: &str = "its file was replaced by another build";

/// How often files are looked at.
const LOOK: Duration = Duration::from_secs(1);
/// A file that is no module is taken for one that is being written until it has not changed for so long.
const WRITTEN: Duration = Duration::from_secs(2);

/// The file of a module, looked at again and again.
#[derive(Debug, Default)]
pub(crate) struct ModuleFile {
    key: Option<FileKey>,
}

impl ModuleFile {
    /// Whether another build than this one is at `path` by now. A file that is missing, or that is being
    /// written, is none.
    pub fn is_replaced(&mut self, path: &Path, build: &Build) -> bool {
        let Some(key) = key_at(path) else { return false };
        if self.key == Some(key) {
            return false;
        }
        match Build::at(path) {
            Some(now) if now == *build => {
                self.key = Some(key);
                false
            }
            Some(_) => true,
            None => !is_being_written(&key),
        }
    }
}

/// The files of all modules that were seen.
#[derive(Debug, Default)]
pub(crate) struct ModuleFiles {
    keys: BTreeMap<PathBuf, FileKey>,
    looked: Option<Instant>,
}

impl ModuleFiles {
    /// Whether it is time to look at the files.
    pub fn is_time(&mut self) -> bool {
        let is_time = self.looked.is_none_or(|at| at.elapsed() >= LOOK);
        if is_time {
            self.looked = Some(Instant::now());
        }
        is_time
    }

    /// Whether the file at `path` is another one, or in another state, than when it was asked for last. Not
    /// so the first time, nor while it is missing.
    pub fn has_changed(&mut self, path: &Path) -> bool {
        let Some(key) = key_at(path) else { return false };
        match self.keys.get_mut(path) {
            Some(known) => std::mem::replace(known, key) != key,
            None => {
                self.keys.insert(path.into(), key);
                false
            }
        }
    }
}

impl Cache {
    /// Whether this build is profiled, or somebody works on it.
    pub(crate) fn knows_build(&self, build: &Build) -> bool {
        let id = &build.id;
        // Nobody has worked on one without a lock file.
        let is_held = || self.stored(id, "lock").exists() && self.lock(id).is_none();
        let is_counted =
            || self.is_suspended(id) && Suspended::read(self, id).is_some_and(|s| s.build() == *build);
        self.entry(id).is_some_and(|e| e.is_of(build)) || is_counted() || is_held()
    }

    /// Makes way for a build: what the cache has of another file with the same build id is removed, if that
    /// file is no longer what it was.
    ///
    /// # Errors
    /// [`PipelineError::NothingToDo`] if it is still there: there is one place for both.
    pub(crate) fn make_way(&self, path: &Path, build: &Build) -> Result<(), PipelineError> {
        let entry = self.entry(&build.id).map(|e| (e.is_of(build), e.build(), e.path));
        let counting =
            Suspended::read(self, &build.id).map(|s| (s.build() == *build, Some(s.build()), s.path));
        let others: Vec<_> = [entry, counting].into_iter().flatten().filter(|(same, ..)| !same).collect();
        for (_, other, at) in &others {
            if at != path && other.is_some() && Build::at(at) == *other {
                let why = format!(
                    "{} has the same build id and other content, and is optimized in its place; a file that is changed after it was linked needs another build id, or none (objcopy --remove-section .note.gnu.build-id)",
                    at.display()
                );
                return Err(PipelineError::NothingToDo(why));
            }
        }
        if !others.is_empty()
            && let Some(_lock) = self.lock(&build.id)
        {
            self.remove(&build.id);
        }
        Ok(())
    }
}

fn is_being_written(key: &FileKey) -> bool {
    age(key).is_none_or(|age| age < WRITTEN)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::work::tests::module;

    #[test]
    fn another_build_is_told_from_the_same_one_and_from_half_a_file() {
        let Some((folder, module)) = module() else { return };
        let (path, id) = (folder.path().join("a"), Build::of(&module.image));
        let bytes = std::fs::read(&path).unwrap();
        let mut other = bytes.clone();
        let note =
            bytes.windows(20).position(|w| w == module.image.identity().as_bytes()).expect("a build id");
        other[note] ^= 1;
        let (mut file, mut files) = (ModuleFile::default(), ModuleFiles::default());
        assert!(files.is_time() && !files.is_time());
        assert!(!files.has_changed(&path) && !files.has_changed(&path));
        assert!(!file.is_replaced(&path, &id) && !file.is_replaced(&path, &id));
        // The same content once more is a change of the file, and no other build.
        std::fs::remove_file(&path).unwrap();
        assert!(!file.is_replaced(&path, &id) && !files.has_changed(&path), "it is missing");
        std::fs::write(&path, &bytes).unwrap();
        assert!(files.has_changed(&path) && !files.has_changed(&path));
        assert!(!file.is_replaced(&path, &id));
        // A linker has just begun to write.
        std::fs::write(&path, &bytes[..100]).unwrap();
        assert!(!file.is_replaced(&path, &id));
        std::fs::write(&path, &other).unwrap();
        assert!(file.is_replaced(&path, &id) && files.has_changed(&path));
        // One of which nothing is known yet is judged by what is there now.
        assert!(ModuleFile::default().is_replaced(&path, &id));
    }

    #[test]
    fn a_build_that_is_worked_on_is_known() {
        let Some((folder, module)) = module() else { return };
        let (path, build) = (folder.path().join("a"), Build::of(&module.image));
        let cache = Cache::open(Some(&folder.path().join("cache"))).unwrap();
        let knows = |path: &Path| Build::at(path).is_some_and(|build| cache.knows_build(&build));
        assert!(!knows(&path));
        let lock = cache.lock(&build.id).unwrap();
        assert!(knows(&path));
        drop(lock);
        assert!(!knows(&path) && !knows(&folder.path().join("nothing")));
    }
}
