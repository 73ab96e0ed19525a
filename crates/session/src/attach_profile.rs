//! The profile that `attach` lays out for: given, or made now.

use crate::attach_options::AttachOptions;
use crate::attach_records::{profile_of_branches, profiles_of_records, profiles_of_samples};
use crate::given_profile::{GivenProfile, Parts};
use crate::left_out::LeftOut;
use crate::module_churn::ModuleChurn;
use crate::plan::plan;
use crate::profiling::{Counting, count, make_counting};
use restitch_apply_process::SwitchReport;
use restitch_pipeline::Watcher;
use restitch_pipeline::timings::Timings;
use restitch_processes::SessionError;
use restitch_processes::initial_sampling::{InitialSampling, LEAST_SAMPLES, Length};
use restitch_processes::interrupt::heed;
use restitch_processes::modules::{Chosen, choose, others};
use restitch_processes::process_set::ProcessSet;
use restitch_processes::sampling::IpSamples;
use restitch_processes::source::SourceChoice;
use restitch_processes::verdict::{Window, Windows};
use restitch_profile::{Derived, Profile};
use restitch_report::{self as report, RunResult};
use std::time::{Duration, Instant};

/// What a session has in hand while it finds its profile.
pub(crate) struct Work<'a> {
    pub options: &'a AttachOptions,
    pub set: &'a mut ProcessSet,
    pub windows: &'a mut Windows,
    pub left_out: &'a mut LeftOut,
    pub phases: &'a mut Timings,
    pub result: &'a mut RunResult,
    pub churn: &'a ModuleChurn,
    pub watcher: &'a mut dyn Watcher,
}

/// What there is to lay out, and by what.
pub(crate) struct Found {
    /// What was measured before.
    pub before: Vec<Window>,
    pub samples: IpSamples,
    pub chosen: Vec<Chosen>,
    /// `None` if only a plan was asked for, which is in the result.
    pub profiled: Option<Profiled>,
}

/// What a given profile has counts of.
pub(crate) fn take_given(given: &GivenProfile, work: &mut Work<'_>) -> Result<Found, SessionError> {
    work.watcher.phase("analysing", None);
    let Parts { chosen, profiles, notes } = given.modules(work.set, work.churn, work.left_out)?;
    work.result.warnings.extend(notes);
    let target = work.set.leader.target();
    if chosen.iter().all(|c| c.index != target.program)
        && !work.left_out.has(&target.modules[target.program].path)
    {
        let (program, file) = (target.modules[target.program].path.display(), given.path().display());
        work.result.warnings.push(format!("{file} has no counts of {program} itself, which stays as it is"));
    }
    work.phases.end("analysis");
    if work.windows.can_measure() && !work.options.dry_run {
        work.watcher.phase("measuring", Some(work.options.measure.as_secs_f64()));
        work.windows.measure(work.options.measure);
        heed()?;
        work.phases.end("measuring before");
    }
    let profiled = Profiled { source: given.path().display().to_string(), ..Profiled::of_records(profiles) };
    Ok(Found { before: work.windows.take(), samples: IpSamples::default(), chosen, profiled: Some(profiled) })
}

/// Samples the process, then counts what it does, or records its branches. `vote`: indirect calls vote for
/// their usual targets meanwhile.
pub(crate) fn profile_it(
    work: &mut Work<'_>,
    source: SourceChoice,
    vote: bool,
) -> Result<Found, SessionError> {
    let Work { options, set, windows, left_out, phases, result, churn, watcher } = work;
    let (sampling, counting_time) = split(options.duration);
    watcher.phase("sampling", Some(sampling.most().as_secs_f64()));
    let look = look_at(set, sampling, windows)?;
    let before = look.before.clone();
    phases.end("sampling");

    watcher.phase("analysing", None);
    let (mut samples, mut analyses) = look.finish();
    if samples.total < LEAST_SAMPLES {
        return Err(SessionError::nothing_to_do(format!(
            "process {} used too little CPU time to be profiled ({} samples in {:.1} s); try again under load, or with a \
             longer --duration",
            set.leader.target().pid(),
            samples.total,
            phases.list.last().map_or(0.0, |p| p.ms / 1e3)
        )));
    }
    let (mut chosen, left) = choose(set, &samples, &mut analyses)?;
    left.into_iter().for_each(|(path, n, why)| left_out.add(&path, n, why));
    churn.leave_out(&mut chosen, left_out);
    result.other_modules = Some(others(set, &samples));
    phases.end("analysis");
    heed()?;
    if chosen.is_empty() {
        let why = format!("no module with enough samples can be moved{}", left_out.reasons());
        return Err(SessionError::nothing_to_do(why));
    }
    if options.dry_run {
        let by_counting = source == SourceChoice::Count && samples.records < ENOUGH_RECORDS;
        plan(set, &mut chosen, by_counting.then_some(vote), samples.total, left_out, result)?;
        return Ok(Found { before, samples, chosen, profiled: None });
    }
    let by_kernel = matches!(source, SourceChoice::Ip | SourceChoice::Lbr);
    let profiled = match from_records(&chosen, &samples) {
        _ if by_kernel => {
            let (how, time) = ((source, options.overhead), counting_time.most());
            let profiles = profiles_of_samples(set, &chosen, how, time, &mut samples, *watcher)?;
            heed()?;
            phases.end("sampling for the profile");
            let source = if source == SourceChoice::Ip { "instruction samples" } else { "branch records" };
            Profiled { seconds: time.as_secs_f64(), source: source.into(), ..Profiled::of_records(profiles) }
        }
        Some(profiled) => profiled,
        None if source != SourceChoice::Count => {
            let how = (source, options.overhead);
            let profiles = profiles_of_records(set, &chosen, how, counting_time.most(), *watcher)?;
            heed()?;
            phases.end("tracing");
            Profiled { seconds: counting_time.most().as_secs_f64(), ..Profiled::of_records(profiles) }
        }
        None => by_counting(set, &mut chosen, (counting_time, vote), left_out, phases, *watcher)?,
    };
    Ok(Found { before, samples, chosen, profiled: Some(profiled) })
}

/// Watches until there are enough samples.
fn look_at(
    set: &mut ProcessSet,
    sampling: Length,
    windows: &mut Windows,
) -> Result<InitialSampling, SessionError> {
    let mut look = InitialSampling::new();
    look.watch(set, sampling, windows)?;
    // Processes that have just started, or are idle now and then: wait for them a little.
    let patience = Instant::now() + (sampling.most() * 3).min(Duration::from_secs(30));
    while look.samples.total < LEAST_SAMPLES && Instant::now() < patience && set.leader_is_alive() {
        set.refresh()?;
        look.watch(set, sampling, windows)?;
    }
    Ok(look)
}

/// How long to sample, and how long to count. Of a time that was asked for, sampling takes a third.
fn split(duration: Option<Duration>) -> (Length, Length) {
    const SHORTEST: Duration = Duration::from_millis(500);
    let seconds = Duration::from_secs;
    let Some(duration) = duration else {
        let sampling = Length::UntilSettled { least: SHORTEST, most: seconds(2) };
        return (sampling, Length::UntilSettled { least: seconds(1), most: seconds(4) });
    };
    let sampling = (duration / 3).clamp(SHORTEST, seconds(20));
    (Length::Exactly(sampling), Length::Exactly(duration.saturating_sub(sampling).max(SHORTEST)))
}

/// Fewer hardware branch records than this leave too much unseen; a counting version does better (half a
/// million gave 5 % less cycles on cc1plus in a prototype, exact counts 12 %).
const ENOUGH_RECORDS: u64 = 500_000;

/// The profiles of the chosen modules, and how they came about.
pub(crate) struct Profiled {
    /// By module, if they were not counted.
    pub profiles: Vec<Profile>,
    pub source: String,
    pub seconds: f64,
    pub exact_edge_share: f64,
    /// By module, if they were counted.
    pub counted: Vec<(Counting, Derived)>,
    /// The switch to the counting version, if there was one.
    pub switch: SwitchReport,
}

impl Profiled {
    fn of_records(profiles: Vec<Profile>) -> Self {
        Self {
            profiles,
            source: "branch records".into(),
            seconds: 0.0,
            exact_edge_share: 0.0,
            counted: Vec::new(),
            switch: SwitchReport::default(),
        }
    }

    /// The profiles, by module.
    pub fn each_profile(&mut self) -> impl Iterator<Item = &mut Profile> {
        self.profiles.iter_mut().chain(self.counted.iter_mut().map(|(_, derived)| &mut derived.profile))
    }

    /// What a result says of them.
    pub fn summary(&self, samples: u64) -> report::ProfileSummary {
        report::ProfileSummary {
            source: self.source.clone(),
            seconds: self.seconds,
            samples,
            exact_edge_share: self.exact_edge_share,
        }
    }
}

/// Profiles of hardware branch records, where the machine has given enough of them.
fn from_records(chosen: &[Chosen], samples: &IpSamples) -> Option<Profiled> {
    if samples.records < ENOUGH_RECORDS {
        return None;
    }
    Some(Profiled::of_records(chosen.iter().map(|c| profile_of_branches(c, samples)).collect()))
}

/// Exact profiles from a counting version, which stays in force: of so much time, and with what indirect
/// calls call or without.
fn by_counting(
    set: &mut ProcessSet,
    chosen: &mut Vec<Chosen>,
    (length, vote): (Length, bool),
    left_out: &mut LeftOut,
    phases: &mut Timings,
    watcher: &mut dyn Watcher,
) -> Result<Profiled, SessionError> {
    let (counting, versions) = make_counting(set, chosen, left_out, vote)?;
    phases.end("counting version");
    heed()?;
    for (c, m) in counting.iter().zip(chosen.iter()) {
        let name = m.path.file_name().unwrap_or_default().to_string_lossy();
        let (samples, functions, counters) = (m.samples, c.functions, c.counted.len());
        watcher.note(&format!(
            "{name}: {samples} samples, counting {functions} functions with {counters} counters"
        ));
    }
    let (derived, switch, time) = count(set, chosen, &counting, &versions, length, watcher)?;
    phases.end("counting");
    heed()?;
    let edges: usize = derived.iter().map(|d| d.executed.edges).sum();
    let exact: usize = derived.iter().map(|d| d.executed.exact_edges).sum();
    Ok(Profiled {
        counted: counting.into_iter().zip(derived).collect(),
        profiles: Vec::new(),
        source: "counting version".into(),
        seconds: time.as_secs_f64(),
        exact_edge_share: if edges == 0 { 0.0 } else { exact as f64 / edges as f64 },
        switch,
    })
}
