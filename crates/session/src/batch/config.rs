//! The configuration file of `batch`, by which a team agrees on what the command line would say.
//!
//! ```toml
//! # restitch.toml
//! [batch]
//! programs = ["cc1plus", "clang-19"]   # only these; all without
//! exclude = ["ld.lld"]                 # never these
//! layout = "ext-tsp-across+search"
//! cache = "build/restitch-cache"       # as seen from this file; ~ is the user's home
//! cache-size = 4096                    # MiB
//! trials = false                       # no runs of the original code for comparison
//! ```

use crate::SessionError;
use crate::disk::read_file;
use serde::Deserialize;
use std::path::{Path, PathBuf};

/// Where a configuration is looked for if none is named.
pub const FILE_NAME: &str = "restitch.toml";

/// What the file says. The command line has the last word.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Config {
    /// Names or paths of the programs whose runs count.
    pub programs: Vec<String>,
    /// Names or paths of modules that are never optimized.
    pub exclude: Vec<String>,
    /// The layout's name.
    pub layout: Option<String>,
    /// The cache directory.
    pub cache: Option<PathBuf>,
    /// Largest size of the cache in MiB.
    pub cache_size: Option<u64>,
    /// Whether runs of the original code are compared with those in optimized code that are not seen to save time.
    pub trials: bool,
}

impl Default for Config {
    fn default() -> Self {
        let (programs, exclude, layout, cache, cache_size) = Default::default();
        Self { programs, exclude, layout, cache, cache_size, trials: true }
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct File {
    batch: Config,
}

impl Config {
    /// Reads the configuration at `path`, or, without a path, [`FILE_NAME`] in the current folder if it is there.
    ///
    /// # Errors
    /// If a named file cannot be read, or a file is not of this form.
    pub fn read(path: Option<&Path>) -> Result<Self, SessionError> {
        let path = match path {
            Some(path) => path,
            None if Path::new(FILE_NAME).exists() => Path::new(FILE_NAME),
            None => return Ok(Self::default()),
        };
        let text = String::from_utf8_lossy(&read_file(path)?).into_owned();
        let file: File = toml::from_str(&text)
            .map_err(|e| SessionError::BadFile { path: path.into(), why: e.to_string().trim().to_owned() })?;
        let mut config = file.batch;
        config.cache = config.cache.map(|cache| from_file(&cache, path));
        Ok(config)
    }
}

/// A path in a configuration file: `~` is the user's home, and what is relative is so to the file's folder.
fn from_file(named: &Path, file: &Path) -> PathBuf {
    match (named.strip_prefix("~"), std::env::var_os("HOME")) {
        (Ok(rest), Some(home)) => Path::new(&home).join(rest),
        _ => file.parent().unwrap_or(Path::new("")).join(named),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_named_as_seen_from_the_file() {
        let of = |named| from_file(Path::new(named), Path::new("/team/restitch.toml"));
        assert_eq!(of("cache/here"), Path::new("/team/cache/here"));
        assert_eq!(of("/var/cache"), Path::new("/var/cache"));
        let home = PathBuf::from(std::env::var_os("HOME").unwrap_or("/team/~".into()));
        assert_eq!((of("~/c"), of("~")), (home.join("c"), home.join("")));
        assert_eq!(from_file(Path::new("c"), Path::new(FILE_NAME)), Path::new("c"));
    }

    #[test]
    fn other_tables_are_others_business() {
        let file: File =
            toml::from_str("[batch]\nprograms = [\"cc1\"]\ncache-size = 7\n[other]\nx = 1\n").unwrap();
        assert!(file.batch.trials);
        assert_eq!((file.batch.programs, file.batch.cache_size), (vec!["cc1".to_string()], Some(7)));
        assert!(toml::from_str::<File>("[batch]\nprogram = [\"cc1\"]\n").is_err(), "a wrong name is said");
    }
}
