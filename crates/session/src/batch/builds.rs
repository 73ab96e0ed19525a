//! Which build of a module there is: programs are built anew while commands run, and between them.
//!
//! **Problem.** What is known of a module (what was seen of it, its counts, that it is left alone) belongs to one build of it; the way to it leads through a path. A compiler that is built in stages, or
//! a test program after each change, is another module at the same path.
//!
//! **Idea.** Files are looked at once a second, by their state ([`FileKey`]); where that has changed, their identity tells. A build that the cache knows, or that somebody works on, is no news
//! (`touch`, or a build that came out the same); another one is a new module, of which nothing is known.

use super::cache::Cache;
use super::known::{age, key_at};
use restitch_image::Image;
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
    /// Whether another build than `id` is at `path` by now. A file that is missing, or that is being written, is none.
    pub fn is_replaced(&mut self, path: &Path, id: &str) -> bool {
        let Some(key) = key_at(path) else { return false };
        if self.key == Some(key) {
            return false;
        }
        match identity_at(path) {
            Some(now) if now == id => {
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

    /// Whether the file at `path` is another one, or in another state, than when it was asked for last. Not so the first time, nor while it is missing.
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
    /// Whether the build with this identity is profiled, or somebody works on it.
    pub(super) fn knows_build(&self, id: &str) -> bool {
        // Nobody has worked on one without a lock file.
        let is_held = || self.stored(id, "lock").exists() && self.lock(id).is_none();
        self.entry(id).is_some() || self.is_suspended(id) || is_held()
    }
}

/// The identity of the module at `path`, if it is one.
pub(super) fn identity_at(path: &Path) -> Option<String> {
    if !path.is_file() {
        return None;
    }
    let image = Image::parse(std::fs::read(path).ok()?).ok()?;
    Some(image.identity().to_string())
}

fn is_being_written(key: &FileKey) -> bool {
    age(key).is_none_or(|age| age < WRITTEN)
}

#[cfg(test)]
mod tests {
    use super::super::work::tests::module;
    use super::*;

    #[test]
    fn another_build_is_told_from_the_same_one_and_from_half_a_file() {
        let Some((folder, module)) = module() else { return };
        let (path, id) = (folder.path().join("a"), module.image.identity().to_string());
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
        let (path, id) = (folder.path().join("a"), module.image.identity().to_string());
        let cache = Cache::open(Some(&folder.path().join("cache"))).unwrap();
        let knows = |path: &Path| identity_at(path).is_some_and(|id| cache.knows_build(&id));
        assert!(!knows(&path));
        let lock = cache.lock(&id).unwrap();
        assert!(knows(&path));
        drop(lock);
        assert!(!knows(&path) && !knows(&folder.path().join("nothing")));
    }
}
