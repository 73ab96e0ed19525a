//! Counts of blocks and edges, of whatever a file says.

use super::code::Code;
use super::load::resolve;
use super::loaded::{Loaded, LoadedModule};
use crate::error::PipelineError;
use restitch_profile::{ModuleProfile, ProfileFile};

/// The counts of a loaded profile. Modules whose code is not there are left out, with a note.
pub(super) fn counts(
    loaded: &Loaded,
    code: &mut Code,
    notes: &mut Vec<String>,
) -> Result<ProfileFile, PipelineError> {
    notes.extend(loaded.notes.iter().cloned());
    let mut file = ProfileFile::default();
    let mut missing = None;
    for module in &loaded.modules {
        match counts_of(module, loaded, code, notes) {
            Ok(module) => file.modules.push(module),
            Err(error) => {
                notes.push(format!("left out: {error}"));
                missing = Some(error);
            }
        }
    }
    match missing {
        Some(error) if file.modules.is_empty() => Err(error),
        _ => Ok(file),
    }
}

fn counts_of(
    module: &LoadedModule,
    loaded: &Loaded,
    code: &mut Code,
    notes: &mut Vec<String>,
) -> Result<ModuleProfile, PipelineError> {
    if let Some(stored) = module.stored() {
        return Ok(stored.clone());
    }
    let known = code.of(module, &loaded.path)?;
    let (profile, more) = resolve(module, known)?;
    notes.extend(more);
    Ok(ModuleProfile::of(
        &known.analyzed.program,
        &profile,
        &known.build_id(),
        &module.path.display().to_string(),
    ))
}
