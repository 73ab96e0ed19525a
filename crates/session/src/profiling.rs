//! The exact profile: a counting version of the chosen functions runs for a few seconds.

use crate::derivation;
use crate::make::{Place, Wanted, counting_layout, estimate, make};
use crate::modules::Chosen;
use crate::process_set::ProcessSet;
use crate::selection::select;
use crate::{SessionError, Watcher};
use restitch_apply_process::{SwitchReport, VersionKind};
use restitch_check::CheckedVersion;
use restitch_profile::{Calls, Counted, CounterPlan, Derived, Weights, derive, plan_counters, scope_of};
use restitch_program::{FuncId, Program};
use std::time::{Duration, Instant};

/// A counting version of one module.
pub(crate) struct Counting {
    pub plan: CounterPlan,
    pub number: u32,
    pub counted: Vec<Counted>,
    /// Indices of counters that nothing increments.
    pub missing: Vec<u32>,
    pub functions: usize,
}

/// What was planned for each module, and its checked version with the module's index.
pub(crate) type CountingVersions = (Vec<Counting>, Vec<(usize, CheckedVersion)>);

/// Makes counting versions of the functions with samples, and those around them, of all chosen modules.
pub(crate) fn make_counting(set: &ProcessSet, chosen: &[Chosen]) -> Result<CountingVersions, SessionError> {
    let (mut counting, mut versions, mut taken) = (Vec::new(), Vec::new(), Vec::new());
    for module in chosen {
        let program = &module.analyzed.program;
        let functions: Vec<FuncId> = select(program, &module.weights);
        let scope = scope_of(program, &functions);
        let weights = Weights::Blocks(&module.weights.blocks);
        let plan = plan_counters(program, &scope, weights, Calls::Return);
        let layout = counting_layout(program, &plan);
        let area = (8 * plan.counted.len() as u64).next_multiple_of(4096);
        let len = estimate(program, &layout, plan.counted.len());
        let place = set.reserve(module.index, len + area, &taken, 4096)?;
        taken.push((module.index, place));
        let bias = set.leader.target().modules[module.index].bias;
        let place =
            Place { number: place.number, start: place.start, counters: place.start + len, bias: Some(bias) };
        let version = make(&module.path, &module.analyzed, &layout, place, Wanted::counting(&plan.counted))?;
        let (counted, missing) =
            version.counters.as_ref().map(|c| (c.counted.clone(), c.missing.clone())).unwrap_or_default();
        counting.push(Counting { plan, number: place.number, counted, missing, functions: functions.len() });
        versions.push((module.index, version));
    }
    Ok((counting, versions))
}

/// Installs counting versions, waits, and derives a profile for each chosen module. The counting versions stay in force.
pub(crate) fn count(
    set: &mut ProcessSet,
    chosen: &[Chosen],
    counting: &[Counting],
    versions: &[(usize, CheckedVersion)],
    duration: Duration,
    watcher: &mut dyn Watcher,
) -> Result<(Vec<Derived>, SwitchReport), SessionError> {
    let report = set.switch(versions, VersionKind::Counting, watcher)?;
    watcher.phase("counting", Some(duration.as_secs_f64()));
    let end = Instant::now() + duration;
    while Instant::now() < end && set.leader_is_alive() {
        std::thread::sleep(end.saturating_duration_since(Instant::now()).min(Duration::from_millis(100)));
    }
    // Children forked meanwhile inherited the counting version: they are to move on with the others.
    set.refresh()?;
    Ok((derive_all(set, chosen, counting)?, report))
}

/// The profiles that the counters give now.
pub(crate) fn derive_all(
    set: &ProcessSet,
    chosen: &[Chosen],
    counting: &[Counting],
) -> Result<Vec<Derived>, SessionError> {
    chosen
        .iter()
        .zip(counting)
        .map(|(module, counting)| {
            let values = set.counters(counting.number)?;
            Ok(derive_one(module, counting, &values))
        })
        .collect()
}

fn derive_one(module: &Chosen, counting: &Counting, values: &[u64]) -> Derived {
    let program = &module.analyzed.program;
    derive(program, &counting.plan.known_without(program, values, &counting.missing))
}

impl Counting {
    /// What the counts have given, to be reported.
    pub fn summary(&self, program: &Program, derived: &Derived) -> restitch_report::Counting {
        derivation::summary(program, &self.plan, self.missing.len(), derived)
    }
}
