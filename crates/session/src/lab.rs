//! `lab PROGRAM --profile FILE`: all layouts of a program, seen by models of a front end.

use crate::files::load_original;
use crate::imports::read_profile;
use crate::{HugePages, OptimizeOptions, SessionError, Watcher};
use restitch_lab::{Comparison, Geometry, Machine, compare};
use restitch_layout::LayoutChoice;
use restitch_procfs::system::{CpuCache, cpu_caches, cpu_model};
use std::path::PathBuf;

/// What to compare.
#[derive(Debug, Clone)]
pub struct LabOptions {
    /// The program or shared object.
    pub program: PathBuf,
    /// The profile file.
    pub profile: PathBuf,
    /// The layouts, in the order of the table.
    pub layouts: Vec<LayoutChoice>,
    /// The machine to model; `None` for this one.
    pub machine: Option<Machine>,
    /// The hot code of the layouts in large pages.
    pub large_pages: bool,
    /// Steps of the trace.
    pub steps: usize,
    /// Seed of the trace.
    pub seed: u64,
}

/// The names of layouts, and the seconds that each took.
pub type LayoutTimes = Vec<(&'static str, f64)>;

/// Compares layouts by models. Also the seconds that each layout took.
///
/// # Errors
/// If the program or the profile cannot be read, or do not fit together.
pub fn lab(
    options: &LabOptions,
    watcher: &mut dyn Watcher,
) -> Result<(Comparison, LayoutTimes), SessionError> {
    watcher.phase("analysing", None);
    let module = load_original(&options.program)?;
    let files = OptimizeOptions {
        program: options.program.clone(),
        profile: options.profile.clone(),
        output: PathBuf::new(),
        layout: LayoutChoice::default(),
        huge_pages: HugePages::Off,
    };
    let (profile, warnings) = read_profile(&files, &module)?;
    warnings.iter().for_each(|w| watcher.note(w));
    watcher.phase("laying out", None);
    let (mut layouts, mut seconds) = (Vec::new(), Vec::new());
    for choice in &options.layouts {
        let started = std::time::Instant::now();
        layouts.push((choice.name(), choice.layout(&module.program, &profile)));
        seconds.push((choice.name(), started.elapsed().as_secs_f64()));
    }
    watcher.phase("running the models", None);
    let mut machine = options.machine.clone().unwrap_or_else(this_machine);
    if options.large_pages {
        machine = machine.with_large_pages();
    }
    let run = (options.steps, options.seed);
    Ok((compare(&module.program, &profile, machine, &layouts, run), seconds))
}

/// This machine, as far as the kernel describes it.
fn this_machine() -> Machine {
    let caches = cpu_caches();
    let of_level = |level| caches.iter().find(|c| c.level == level && c.instructions && c.line == 64);
    let shape = |c: &CpuCache| Geometry { sets: c.sets, ways: c.ways };
    let model = cpu_model();
    Machine::like(&model.vendor, model.family, model.model, of_level(1).map(shape), of_level(2).map(shape))
}
