//! The configuration file of `batch`, by which a team agrees on what the command line would say.
//!
//! ```toml
//! # restitch.toml
//! [batch]
//! programs = ["cc1plus", "clang-19"]   # only these; all without
//! exclude = ["ld.lld"]                 # never these
//! layout = "ext-tsp-across+search"
//! cache = "build/restitch-cache"       # as seen from this file; ~ is the user's home
//! cache-size = 4096                    # MiB, of a cache that is named here
//! trials = false                       # no runs of the original code for comparison
//! ```
//!
//! **Who is trusted.** A file that is named is the user's word. One that is *found* in the current folder may
//! have come with somebody's archive or checkout, or lie in a folder that all may write to. What is in a
//! cache is executed; so a found file says nothing of caches, not even how much is kept of the user's own.
//! And it is read only if it belongs to the user or to root, in folders that nobody else may write to.

use crate::own_files::{MOST_OF_NOTE, check_folders, read_own};
use restitch_apply::{Why, explained};
use restitch_pipeline::PipelineError;
use restitch_pipeline::disk::read_file;
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
    /// Whether runs of the original code are compared with those in optimized code that are not seen to save
    /// time.
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
    /// Reads the configuration at `path`, or, without a path, [`FILE_NAME`] in the current folder if it is
    /// there. `note` is told what is left out of a found one, and why.
    ///
    /// # Errors
    /// If a named file cannot be read, or a file is not of this form.
    pub fn read(path: Option<&Path>, note: impl FnMut(&str)) -> Result<Self, PipelineError> {
        match path {
            Some(path) => Self::parse(path, &read_file(path)?),
            None => Self::found(Path::new("."), note),
        }
    }

    /// The configuration in a folder, if it is there.
    fn found(folder: &Path, mut note: impl FnMut(&str)) -> Result<Self, PipelineError> {
        let path = folder.join(FILE_NAME);
        if std::fs::symlink_metadata(&path).is_err() {
            return Ok(Self::default());
        }
        let shown = std::path::absolute(&path).unwrap_or_else(|_| path.clone());
        let shown = shown.display();
        let real = folder.canonicalize().unwrap_or_else(|_| folder.into());
        let checked = check_folders(&real).map_err(|(at, why)| format!("{}: {why}", at.display()).into());
        let bytes = match checked.and_then(|()| read_own(&path, MOST_OF_NOTE).map_err(Why::from)) {
            Ok(bytes) => bytes,
            Err(why) => {
                note(&format!("{shown} is left out ({why}); name it by --config if you trust it"));
                return Ok(Self::default());
            }
        };
        let mut config = Self::parse(&path, &bytes)?;
        if config.cache.take().is_some() | config.cache_size.take().is_some() {
            note(&format!(
                "what {shown} says of a cache is left out, since what is in a cache is executed and nobody has named that file; name it by --config if you trust it, or a cache by --cache"
            ));
        }
        Ok(config)
    }

    fn parse(path: &Path, bytes: &[u8]) -> Result<Self, PipelineError> {
        let text = String::from_utf8_lossy(bytes);
        let file: File = toml::from_str(&text)
            .map_err(|e| PipelineError::BadFile { path: path.into(), why: explained(why(&text, &e), e) })?;
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

/// What is wrong with the text, in one line.
fn why(text: &str, error: &toml::de::Error) -> String {
    let before = error.span().and_then(|span| text.get(..span.start));
    let line = before.map_or(String::new(), |before| format!("line {}: ", before.matches('\n').count() + 1));
    format!("{line}{}", error.message().trim().replace('\n', " "))
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
    fn a_found_file_says_nothing_of_caches_and_is_no_link_nor_one_that_others_may_write() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join(FILE_NAME);
        let read = || {
            let mut notes = Vec::new();
            let config = Config::found(folder.path(), |note| notes.push(note.to_owned())).unwrap();
            (config, notes.concat())
        };
        assert_eq!(read(), (Config::default(), String::new()));
        std::fs::write(&file, "[batch]\ncache = \"here\"\ncache-size = 1\nexclude = [\"ld\"]\n").unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
        let (config, notes) = read();
        assert_eq!((config.cache, config.cache_size, config.exclude), (None, None, vec!["ld".to_owned()]));
        assert!(notes.contains("--config") && notes.contains("executed"), "{notes}");
        let named = Config::read(Some(&file), |_| panic!("nothing is left out")).unwrap();
        assert_eq!((named.cache, named.cache_size), (Some(folder.path().join("here")), Some(1)));
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o666)).unwrap();
        let (config, notes) = read();
        assert!(config == Config::default() && notes.contains("others may write"), "{notes}");
        std::fs::rename(&file, folder.path().join("other")).unwrap();
        std::os::unix::fs::symlink("other", &file).unwrap();
        let (config, notes) = read();
        assert!(config == Config::default() && notes.contains("left out"), "{notes}");
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
