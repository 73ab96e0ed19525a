//! `attach --profile`: a layout for a profile that was recorded before, of this process, or of another one of the same program on any machine.
//!
//! Nothing is sampled and nothing counts then; the process is stopped once. **What** is moved are the modules of which the profile has counts of this very build, by build id.

use crate::SessionError;
use crate::earlier::{is_known, not_chosen};
use crate::imports::read_store;
use crate::left_out::LeftOut;
use crate::modules::Chosen;
use crate::process_set::ProcessSet;
use crate::restless::Restless;
use restitch_profile::{Profile, ProfileFile};
use std::path::{Path, PathBuf};

/// A profile from a file.
pub(crate) struct Given {
    path: PathBuf,
    file: ProfileFile,
}

impl Given {
    /// Reads it.
    ///
    /// # Errors
    /// If the file cannot be read, or is no profile in restitch's own format.
    pub fn read(path: &Path) -> Result<Self, SessionError> {
        Ok(Self { path: path.into(), file: read_store(path)? })
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
        restless: &Restless,
        left_out: &mut LeftOut,
    ) -> Result<(Vec<Chosen>, Vec<Profile>), SessionError> {
        for module in &set.leader.target().modules {
            let is_it = |p: &&str| Path::new(p) == module.path;
            let named = self.file.modules.iter().map(|m| &*m.path).find(is_it);
            if named.is_some() && !is_known(&self.file, module) {
                left_out.add(&module.path, 0, "the profile is of another build of it".into());
            }
        }
        let mut found = not_chosen(set, &[], left_out, &self.file)?;
        found.retain(|(_, profile)| profile.blocks.iter().any(|count| *count > 0));
        let (mut chosen, profiles): (Vec<Chosen>, Vec<Profile>) = found.into_iter().unzip();
        let paths: Vec<PathBuf> = chosen.iter().map(|c| c.path.clone()).collect();
        restless.leave_out(&mut chosen, left_out);
        let stays = |path: &PathBuf| chosen.iter().any(|c| c.path == *path);
        let profiles =
            paths.iter().zip(profiles).filter(|(path, _)| stays(path)).map(|(_, profile)| profile).collect();
        if chosen.is_empty() {
            let (pid, reasons) = (set.leader.target().pid(), left_out.reasons());
            return Err(SessionError::NothingToDo(format!(
                "{} has no counts of what process {pid} runs{reasons}; record a profile of these builds by `restitch record`",
                self.path.display()
            )));
        }
        Ok((chosen, profiles))
    }
}
