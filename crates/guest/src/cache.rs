//! A folder of things that are made once.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use crate::Result;
use crate::error::Error;

/// The folder; what is below it is whole, or not there.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    root: PathBuf,
}

impl Cache {
    /// The cache in `root`, which is made if needed.
    pub(crate) fn open(root: &Path) -> Result<Self> {
        fs::create_dir_all(root).map_err(Error::file("make the folder", root))?;
        let root = root.canonicalize().map_err(Error::file("find the folder", root))?;
        Ok(Self { root })
    }

    /// The folder itself.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// Waits for, and takes, the lock of that name; it ends with the value.
    pub(crate) fn lock(&self, name: &str) -> Result<File> {
        let path = self.root.join(format!(".lock-{name}"));
        let file = File::create(&path).map_err(Error::file("make the lock", &path))?;
        file.lock().map_err(Error::file("lock", &path))?;
        Ok(file)
    }

    /// The folder of that name; if it is not there, `make` fills it. Others who want it meanwhile wait.
    pub(crate) fn entry(&self, name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let path = self.root.join(name);
        if path.exists() {
            return Ok(path);
        }
        let _lock = self.lock(name)?;
        if path.exists() {
            return Ok(path);
        }
        let unfinished = self.root.join(format!("{name}.unfinished"));
        // What somebody left who was ended in between.
        if unfinished.exists() {
            fs::remove_dir_all(&unfinished).map_err(Error::file("remove", &unfinished))?;
        }
        fs::create_dir(&unfinished).map_err(Error::file("make the folder", &unfinished))?;
        make(&unfinished)?;
        fs::rename(&unfinished, &path).map_err(Error::file("rename", &unfinished))?;
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_made_once_and_is_not_there_if_making_failed() {
        let folder = restitch_testkit::scratch();
        let cache = Cache::open(&folder.path().join("cache")).unwrap();
        let failed = cache.entry("thing", |at| {
            fs::write(at.join("half"), "").unwrap();
            Err(Error::Usage("no".into()))
        });
        assert!(failed.is_err() && !cache.root().join("thing").exists());
        let made =
            cache.entry("thing", |at| fs::write(at.join("whole"), "1").map_err(Error::file("write", at)));
        let path = made.unwrap();
        assert!(path.join("whole").exists() && !path.join("half").exists());
        assert_eq!(cache.entry("thing", |_| panic!("made twice")).unwrap(), path);
    }
}
