//! The code that profiles belong to: found by path and build id, analysed once.

use super::loaded::LoadedModule;
use crate::analysis::Analyzed;
use crate::error::PipelineError;
use restitch_apply::{Why, explained};
use restitch_profile_formats::{BoltBlocks, Names};
use std::path::{Path, PathBuf};

/// An analysed module and its names.
#[derive(Debug)]
pub struct Known {
    /// Where it was read.
    pub path: PathBuf,
    /// The code.
    pub analyzed: Analyzed,
    /// Function names as other tools know them.
    pub names: Names,
    /// Blocks as BOLT sees them.
    pub blocks: BoltBlocks,
}

impl Known {
    /// From an analysed module.
    pub fn new(path: &Path, analyzed: Analyzed) -> Self {
        let names = Names::new(&analyzed.image, &analyzed.program);
        let blocks = BoltBlocks::new(&analyzed.image, &analyzed.program);
        Self { path: path.into(), analyzed, names, blocks }
    }

    /// The GNU build id, empty if there is none.
    pub fn build_id(&self) -> Vec<u8> {
        self.analyzed.image.build_id().map(|b| b.as_bytes().to_vec()).unwrap_or_default()
    }
}

/// The modules that are known so far.
#[derive(Debug, Default)]
pub struct Code {
    named: Vec<PathBuf>,
    known: Vec<Known>,
}

impl Code {
    /// Code from the files that the user named, and from where profiles say that their modules are.
    pub fn new(named: &[PathBuf]) -> Self {
        Self { named: named.to_vec(), known: Vec::new() }
    }

    /// With a module that is analysed already.
    pub fn with(path: &Path, analyzed: Analyzed) -> Self {
        Self { named: vec![path.into()], known: vec![Known::new(path, analyzed)] }
    }

    /// Adds a module that is analysed already.
    pub fn add(&mut self, path: &Path, analyzed: Analyzed) -> &Known {
        self.known.push(Known::new(path, analyzed));
        &self.known[self.known.len() - 1]
    }

    /// The one file that the user named, for formats that do not say what they are of.
    pub fn only(&mut self, profile: &Path) -> Result<&Known, PipelineError> {
        match &self.named[..] {
            [path] => {
                let path = path.clone();
                self.read(&path)
            }
            named => Err(PipelineError::BadFile {
                path: profile.into(),
                why: format!(
                    "its format does not say which program it belongs to; name that with --program FILE (given: {})",
                    named.len()
                )
                .into(),
            }),
        }
    }

    /// The files that the user named.
    pub fn named(&self) -> Vec<PathBuf> {
        self.named.clone()
    }

    /// Whether the user named files, and this is none of them.
    pub fn excludes(&mut self, module: &LoadedModule) -> bool {
        !self.named.is_empty() && self.named_for(module).is_none()
    }

    /// The file of the user's that is this module.
    fn named_for(&mut self, module: &LoadedModule) -> Option<PathBuf> {
        let named = self.named.clone();
        named.into_iter().find(|path| self.read(path).is_ok_and(|known| fits(known, module)))
    }

    /// The code of a module of `profile`.
    pub fn of(&mut self, module: &LoadedModule, profile: &Path) -> Result<&Known, PipelineError> {
        if let Some(path) = self.named_for(module) {
            return self.read(&path);
        }
        let path = module.path.clone();
        let bad = |why: Why| PipelineError::BadFile { path: profile.into(), why };
        let lost =
            |what: &str, next: &str| format!("it needs the code of {}, {what}; {next}", path.display());
        const NAME: &str = "name the file with --program";
        let unread = |e| {
            // Another name of a file that is there would not help.
            let (what, next) = match e {
                PipelineError::File { .. } => ("read", NAME),
                _ => ("used", "for a perf.data file, `perf report -i FILE` shows what is in it"),
            };
            bad(explained(lost(&format!("which cannot be {what} ({e})"), next), e))
        };
        let known = self.read(&path).map_err(unread)?;
        let is_of_it = fits(known, module);
        is_of_it.then_some(known).ok_or_else(|| bad(lost("and the file there is another build", NAME).into()))
    }

    /// The module that was read from `path`.
    pub fn at(&mut self, path: &Path) -> Result<&Known, PipelineError> {
        self.read(path)
    }

    fn read(&mut self, path: &Path) -> Result<&Known, PipelineError> {
        let found = self.known.iter().position(|k| k.path == path);
        let index = match found {
            Some(index) => index,
            None => {
                let analyzed = crate::original::load_original(path)?;
                self.known.push(Known::new(path, analyzed));
                self.known.len() - 1
            }
        };
        Ok(&self.known[index])
    }
}

/// By build id, or by file name where one has none; then samples have to fit the code.
fn fits(known: &Known, module: &LoadedModule) -> bool {
    let id = known.build_id();
    if id.is_empty() || module.build_id.is_empty() {
        let is_named = module.path.as_os_str().is_empty() || same_name(&known.path, &module.path);
        return is_named && module.may_be_of(&known.analyzed);
    }
    id == module.build_id
}

/// Whether two paths have the same file name.
pub(super) fn same_name(a: &Path, b: &Path) -> bool {
    a.file_name() == b.file_name()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profiles::loaded::Content;
    use crate::profiles::options::Sampled;
    use restitch_profile_formats::Records;

    /// Of a file that is there and cannot be used (a program in Go, a script), another name would not help.
    #[test]
    fn a_file_is_asked_for_where_one_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let (unusable, missing) = (folder.path().join("unusable"), folder.path().join("missing"));
        std::fs::write(&unusable, "no program").unwrap();
        let said = |path: &Path| {
            let content = Content::Records(Records::default());
            let module =
                LoadedModule { path: path.into(), build_id: vec![1], content, sampled: Sampled::default() };
            Code::new(&[]).of(&module, Path::new("perf.data")).unwrap_err().to_string()
        };
        assert!(said(&missing).contains("name the file with --program"), "{}", said(&missing));
        assert!(!said(&unusable).contains("--program"), "{}", said(&unusable));
        assert!(said(&unusable).contains("`perf report -i FILE`"), "{}", said(&unusable));
    }
}
