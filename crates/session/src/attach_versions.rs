//! The optimized versions of `attach`: each step for all modules at once.

use crate::attach_job::Job;
use crate::attach_options::AttachOptions;
use crate::attach_profile::Profiled;
use crate::profiling::Counting;
use restitch_apply_process::Reservation;
use restitch_check::CheckedVersion;
use restitch_emit::BoundSlot;
use restitch_layout::{Layout, Reaching};
use restitch_pipeline::build_version::{Draft, Emitted, Entrances, Source};
use restitch_pipeline::make::Place;
use restitch_pipeline::parallel;
use restitch_pipeline::summaries::module_report;
use restitch_processes::SessionError;
use restitch_processes::interrupt::heed;
use restitch_processes::modules::Chosen;
use restitch_processes::process_set::ProcessSet;
use restitch_profile::{Derived, Profile};
use restitch_program::Program;
use restitch_report as report;

/// A module's profile and how it came about.
enum Origin {
    Records(Profile),
    Counted(Box<(Counting, Derived)>),
}

impl Origin {
    fn profile(&self) -> &Profile {
        match self {
            Self::Records(profile) => profile,
            Self::Counted(counted) => &counted.1.profile,
        }
    }

    /// What the counts say of themselves.
    fn summary(&self, program: &Program) -> Option<report::Counting> {
        match self {
            Self::Records(_) => None,
            Self::Counted(counted) => Some(counted.0.summary(program, &counted.1)),
        }
    }
}

/// What was made, by module.
pub(crate) struct Optimized {
    made: Vec<(Origin, Layout)>,
    /// The checked versions, with the modules' indices.
    pub versions: Vec<(usize, CheckedVersion)>,
}

/// What has become of a module so far.
struct Step<'a, T> {
    module: &'a Chosen,
    origin: Origin,
    it: T,
}

/// A draft, and where its version is to go.
struct Planned {
    draft: Draft,
    place: Result<Place, SessionError>,
    bound: Vec<BoundSlot>,
}

/// A module's version, checked, with the module's index.
type Version = ((Origin, Layout), (usize, CheckedVersion));

fn source_of<'a>(module: &'a Chosen, origin: &'a Origin, options: &'a AttachOptions) -> Source<'a> {
    Source {
        path: &module.path,
        module: &module.analyzed,
        profile: origin.profile(),
        options: &options.version,
    }
}

/// Versions of the profiled modules. Those of which none can be made are taken out of `chosen` and listed in
/// the job.
///
/// # Errors
/// If none can be made of any module, or the session was asked to end.
pub(crate) fn build_versions(
    job: &mut Job<'_>,
    chosen: &mut Vec<Chosen>,
    profiled: &mut Profiled,
) -> Result<Optimized, SessionError> {
    let options = job.options;
    chosen.iter_mut().for_each(|module| options.version.prepare(&mut module.analyzed));
    job.result.warnings.extend(options.version.warning(chosen.iter().map(|module| &module.analyzed)));
    heed()?;
    let drafts = drafted(chosen, profiled, options);
    ended(job, "layout")?;
    let planned = placed(job.set, drafts, options)?;
    let emitted = emitted(planned, options);
    ended(job, "emission")?;
    let checked = checked(emitted, options);
    let kept = job.left_out.keep(chosen, checked)?;
    ended(job, "check")?;
    let (made, versions) = kept.into_iter().unzip();
    Ok(Optimized { made, versions })
}

/// A step is done; fails if the session was asked to end.
fn ended(job: &mut Job<'_>, step: &str) -> Result<(), SessionError> {
    job.timings.end(step);
    heed()
}

/// Lays the modules out.
fn drafted<'a>(
    chosen: &'a [Chosen],
    profiled: &mut Profiled,
    options: &AttachOptions,
) -> Vec<Step<'a, Draft>> {
    let modules: Vec<_> = chosen.iter().zip(origins(profiled)).collect();
    parallel::map(modules, |(module, origin)| {
        let entrances = Entrances { reaching: Reaching::Redirected, pointers: None };
        let draft = Draft::of(source_of(module, &origin, options), entrances);
        Step { module, origin, it: draft }
    })
}

fn origins(profiled: &mut Profiled) -> Vec<Origin> {
    let records = std::mem::take(&mut profiled.profiles).into_iter().map(Origin::Records);
    let counted = std::mem::take(&mut profiled.counted).into_iter().map(|c| Origin::Counted(Box::new(c)));
    records.chain(counted).collect()
}

/// A free place for each draft, one after the other: none may overlap.
fn placed<'a>(
    set: &ProcessSet,
    drafts: Vec<Step<'a, Draft>>,
    options: &AttachOptions,
) -> Result<Vec<Step<'a, Planned>>, SessionError> {
    let mut taken = Vec::new();
    let plan = |Step { module, origin, it: draft }: Step<'a, Draft>| {
        let place = match draft.moves_nothing() {
            true => Err(SessionError::NothingMoves { module: module.path.clone() }),
            false => place_for(set, module, &draft, &mut taken),
        };
        let bound = if options.version.direct_calls { set.bound_slots(module.index)? } else { Vec::new() };
        Ok(Step { module, origin, it: Planned { draft, place, bound } })
    };
    drafts.into_iter().map(plan).collect()
}

fn emitted<'a>(
    planned: Vec<Step<'a, Planned>>,
    options: &AttachOptions,
) -> Vec<Result<Step<'a, Emitted>, SessionError>> {
    parallel::map(planned, |Step { module, origin, it: Planned { draft, place, bound } }| {
        let emitted = draft.emit(source_of(module, &origin, options), place?, &bound)?;
        Ok(Step { module, origin, it: emitted })
    })
}

fn checked(
    emitted: Vec<Result<Step<'_, Emitted>, SessionError>>,
    options: &AttachOptions,
) -> Vec<Result<Version, SessionError>> {
    parallel::map(emitted, |emitted| {
        let Step { module, origin, it } = emitted?;
        let made = it.check(source_of(module, &origin, options))?;
        Ok(((origin, made.layout), (module.index, made.version)))
    })
}

fn place_for(
    set: &ProcessSet,
    module: &Chosen,
    draft: &Draft,
    taken: &mut Vec<(usize, Reservation)>,
) -> Result<Place, SessionError> {
    let held = set.reserve(module.index, draft.room(&module.analyzed), taken, draft.alignment())?;
    taken.push((module.index, held));
    let bias = set.leader.target().modules[module.index].bias;
    Ok(Place { number: held.number, start: held.start, counters: held.start, bias: Some(bias) })
}

impl Optimized {
    /// What a result says of the modules.
    pub fn reports(&self, chosen: &[Chosen], options: &AttachOptions) -> Vec<report::Module> {
        let modules: Vec<_> = chosen.iter().zip(&self.made).zip(&self.versions).collect();
        parallel::map(modules, |((module, (origin, layout)), (_, version))| report::Module {
            counting: origin.summary(&module.analyzed.program),
            samples: module.samples,
            ..module_report(source_of(module, origin, options), layout, version)
        })
    }
}
