//! `profile show`: what a file holds.

use super::code::{Code, Known};
use super::load::{load, resolve};
use super::options::ProfileInput;
use crate::error::PipelineError;
use restitch_profile::Profile;
use restitch_profile_formats::{Format, Names};
use std::path::PathBuf;

/// What `profile show` prints.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ProfileFacts {
    /// The format that the file is in.
    pub format: Option<Format>,
    /// One entry a module.
    pub modules: Vec<ModuleFacts>,
    /// Symbols, for formats that hold an order.
    pub order: Vec<String>,
    /// What the user should know.
    pub notes: Vec<String>,
}

/// One module of a profile.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ModuleFacts {
    /// Its path.
    pub path: String,
    /// Its build id in hexadecimal; empty if not known.
    pub build_id: String,
    /// What is in the file, in words and numbers.
    pub content: Vec<(&'static str, u64)>,
    /// Functions with most block executions: name, share of all.
    pub hottest: Vec<(String, f64)>,
}

/// Looks into a profile file.
///
/// # Errors
/// If it cannot be read.
pub fn show_profile(input: &ProfileInput, programs: &[PathBuf]) -> Result<ProfileFacts, PipelineError> {
    let mut code = Code::new(programs);
    let loaded = load(input, &mut code)?;
    let (format, notes, order) = (Some(loaded.format), loaded.notes.clone(), loaded.order.clone());
    let mut facts = ProfileFacts { format, modules: Vec::new(), order, notes };
    for module in &loaded.modules {
        let mut entry = ModuleFacts {
            path: module.path.display().to_string(),
            build_id: module.build_id.iter().map(|b| format!("{b:02x}")).collect(),
            content: module.summary(),
            hottest: Vec::new(),
        };
        match code.of(module, &loaded.path) {
            Ok(known) => {
                let (profile, notes) = resolve(module, known)?;
                facts.notes.extend(notes);
                entry.hottest = hottest(known, &profile);
            }
            Err(error) => facts.notes.push(format!("functions are not named: {error}")),
        }
        facts.modules.push(entry);
    }
    Ok(facts)
}

fn hottest(known: &Known, profile: &Profile) -> Vec<(String, f64)> {
    let program = &known.analyzed.program;
    let mut sums = vec![0u64; program.functions.len()];
    for (block, count) in program.blocks.iter().zip(&profile.blocks) {
        sums[block.function.index()] = sums[block.function.index()].saturating_add(*count);
    }
    let total = sums.iter().map(|n| *n as f64).sum::<f64>().max(1.0);
    let mut order: Vec<usize> = (0..sums.len()).filter(|f| sums[*f] > 0).collect();
    order.sort_by_key(|f| (std::cmp::Reverse(sums[*f]), *f));
    let name = |f: usize| {
        let at = program.functions[f].range.start;
        match known.names.name_at(at) {
            Some(name) if !Names::is_nameless(name) => name.into(),
            _ => format!("sub_{:x}", at.get()),
        }
    };
    order.iter().take(10).map(|f| (name(*f), sums[*f] as f64 / total)).collect()
}
