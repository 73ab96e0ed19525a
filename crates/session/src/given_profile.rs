//! `attach --profile`: a layout for a profile that was recorded before, of this process, or of another one of
//! the same program on any machine.
//!
//! Nothing is sampled and nothing counts then; the process is stopped once. **What** is moved are the modules
//! of which the profile has counts of this very build, by build id. Of formats that know none (a `perf.data`
//! of an old perf), it is the module of the same path; of those that are of one program and do not say which,
//! the process's program.

use crate::earlier_profiles::{analyzed, is_known, not_chosen};
use crate::left_out::LeftOut;
use crate::module_churn::ModuleChurn;
use restitch_apply::{Why, explained};
use restitch_apply_process::Module;
use restitch_pipeline::PipelineError;
use restitch_pipeline::disk::read_profile;
use restitch_pipeline::imports::without_counts;
use restitch_pipeline::profiles::{
    Code, Loaded, LoadedModule, ProfileInput, Sampled, counts_nothing, load_bytes, resolve_in,
};
use restitch_processes::SessionError;
use restitch_processes::modules::{Chosen, may_be_changed};
use restitch_processes::process_set::ProcessSet;
use restitch_processes::refusal::left_alone;
use restitch_profile::{Profile, ProfileFile};
use restitch_profile_formats::Format;
use std::path::{Path, PathBuf};

/// A profile from a file.
pub(crate) struct GivenProfile {
    path: PathBuf,
    content: Content,
}

enum Content {
    /// Our own format.
    Counts(ProfileFile),
    /// A `perf.data` file.
    Records(Loaded),
    /// What is in a file of a format that is of one program, which is read with its code.
    OfOneProgram(Format, Vec<u8>),
}

/// The modules that a profile has counts of, and the counts.
pub(crate) struct Parts {
    pub chosen: Vec<Chosen>,
    /// One a module.
    pub profiles: Vec<Profile>,
    /// What the user should know of them.
    pub notes: Vec<String>,
}

impl GivenProfile {
    /// Reads it.
    ///
    /// # Errors
    /// If the file cannot be read, or is no profile with counts.
    pub fn read(path: &Path) -> Result<Self, SessionError> {
        let bytes = read_profile(path)?;
        let bad = |why: Why| SessionError::from(PipelineError::BadFile { path: path.into(), why });
        let format = Format::detect(&bytes)
            .map_err(|e| bad(explained(format!("{e}; `restitch profile formats` lists what is read"), e)))?;
        if let Some(why) = without_counts(format) {
            return Err(bad(why.into()));
        }
        let content = match format {
            Format::Store => Content::Counts(ProfileFile::read(&bytes).map_err(|e| bad(e.into()))?),
            Format::PerfData => {
                Content::Records(load_bytes(&bytes, &input(path, format), &mut Code::default())?)
            }
            Format::Fdata
            | Format::FdataNoLbr
            | Format::BoltYaml
            | Format::PreAggregated
            | Format::AutoFdo
            | Format::PropellerClusters
            | Format::SymbolOrder => Content::OfOneProgram(format, bytes),
        };
        Ok(Self { path: path.into(), content })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The modules of the process that it has counts of, and the counts.
    ///
    /// # Errors
    /// If there is none, with the reasons, or the process cannot be read.
    pub fn modules(
        &self,
        set: &ProcessSet,
        churn: &ModuleChurn,
        left_out: &mut LeftOut,
    ) -> Result<Parts, SessionError> {
        for module in set.leader.target().modules.iter().filter(|m| self.is_of_another_build(m)) {
            left_out.add(&module.path, 0, "the profile is of another build of it".into());
        }
        for module in &set.leader.target().modules {
            if let Some(why) = left_alone(module) {
                left_out.add(&module.path, 0, why);
            }
        }
        let mut notes = Vec::new();
        let mut found = self.parts(set, left_out, &mut notes)?;
        found.retain(|(_, profile)| profile.blocks.iter().any(|count| *count > 0));
        let (mut chosen, profiles): (Vec<Chosen>, Vec<Profile>) = found.into_iter().unzip();
        let paths: Vec<PathBuf> = chosen.iter().map(|c| c.path.clone()).collect();
        churn.leave_out(&mut chosen, left_out);
        let stays = |path: &PathBuf| chosen.iter().any(|c| c.path == *path);
        let profiles =
            paths.iter().zip(profiles).filter(|(path, _)| stays(path)).map(|(_, profile)| profile).collect();
        if chosen.is_empty() {
            let (pid, reasons) = (set.leader.target().pid(), left_out.reasons());
            return Err(SessionError::nothing_to_do(format!(
                "{} has no counts of what process {pid} runs{reasons}; record a profile of these builds by `restitch record`",
                self.path.display()
            )));
        }
        Ok(Parts { chosen, profiles, notes })
    }

    /// Whether it has counts of a module of this path, and none of this build.
    fn is_of_another_build(&self, module: &Module) -> bool {
        match &self.content {
            Content::Counts(file) => {
                file.modules.iter().any(|m| Path::new(&m.path) == module.path) && !is_known(file, module)
            }
            Content::Records(loaded) => {
                loaded.modules.iter().any(|m| m.path == module.path)
                    && !loaded.modules.iter().any(|m| is_of(m, module))
            }
            Content::OfOneProgram(..) => false,
        }
    }

    /// Modules of the process with what it says of them; to `notes` comes what the user should know of that.
    fn parts(
        &self,
        set: &ProcessSet,
        left_out: &LeftOut,
        notes: &mut Vec<String>,
    ) -> Result<Vec<(Chosen, Profile)>, SessionError> {
        let target = set.leader.target();
        let of_process = |index: usize| -> Option<&LoadedModule> {
            let Content::Records(loaded) = &self.content else { return None };
            loaded.modules.iter().find(|m| is_of(m, &target.modules[index]))
        };
        let wanted: Vec<usize> = match &self.content {
            Content::Counts(file) => return not_chosen(set, &[], left_out, file),
            Content::OfOneProgram(..) => vec![target.program],
            Content::Records(loaded) => {
                notes.extend(loaded.notes.iter().cloned());
                (0..target.modules.len()).filter(|i| of_process(*i).is_some()).collect()
            }
        };
        let may_be = |i: &usize| may_be_changed(set, *i) && !left_out.has(&target.modules[*i].path);
        let mut found = Vec::new();
        for module in analyzed(set, wanted.into_iter().filter(may_be).collect())? {
            let resolved = match (&self.content, of_process(module.index)) {
                (Content::OfOneProgram(format, bytes), _) => {
                    let mut code = Code::with(&module.path, module.analyzed.clone());
                    let loaded = load_bytes(bytes, &input(&self.path, *format), &mut code)?;
                    notes.extend(loaded.notes);
                    let Some(part) = loaded.modules.first() else { continue };
                    resolve_in(part, &module.analyzed, &module.path)?
                }
                (_, Some(part)) if !part.may_be_of(&module.analyzed) => {
                    notes.push(format!(
                        "{}: left out, what was recorded under this name without a build id does not fit its code",
                        module.path.display()
                    ));
                    continue;
                }
                (_, Some(part)) => resolve_in(part, &module.analyzed, &module.path)?,
                (_, None) => continue,
            };
            let is_empty = resolved.0.blocks.iter().all(|count| *count == 0);
            if is_empty && matches!(self.content, Content::OfOneProgram(..)) {
                return Err(counts_nothing(&self.path, &module.path, &resolved.1).into());
            }
            notes.extend(resolved.1.iter().map(|note| format!("{}: {note}", module.path.display())));
            found.push((module, resolved.0));
        }
        Ok(found)
    }
}

fn input(path: &Path, format: Format) -> ProfileInput {
    ProfileInput { path: path.into(), format: Some(format), sampled: Sampled::default() }
}

/// Whether records are of this module: of its build, or, if they do not say of which, of its path.
fn is_of(recorded: &LoadedModule, module: &Module) -> bool {
    match module.image.build_id() {
        Some(id) if !recorded.build_id.is_empty() => recorded.build_id == id.as_bytes(),
        _ => recorded.path == module.path,
    }
}
