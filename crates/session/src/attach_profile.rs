//! The profile that `attach` lays out for: given, or made now.

use crate::attach_job::Job;
use crate::attach_records::{Budget, profile_of_branches, profiles_of_records, profiles_of_samples};
use crate::given_profile::{GivenProfile, Parts};
use crate::plan::plan;
use crate::profiling::{Counting, count, make_counting};
use restitch_apply_process::SwitchReport;
use restitch_processes::SessionError;
use restitch_processes::initial_sampling::{InitialSampling, LEAST_SAMPLES, Length};
use restitch_processes::interrupt::heed;
use restitch_processes::judgement::Window;
use restitch_processes::modules::{Chosen, choose, others};
use restitch_processes::no_file::samples_in_no_file;
use restitch_processes::process_family::families;
use restitch_processes::process_set::ProcessSet;
use restitch_processes::sampling::IpSamples;
use restitch_processes::source::SourceChoice;
use restitch_processes::verdict::Windows;
use restitch_procfs as procfs;
use restitch_profile::{Derived, Profile};
use restitch_report as report;
use restitch_report::counted;
use std::time::{Duration, Instant};

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
pub(crate) fn take_given(given: &GivenProfile, job: &mut Job<'_>) -> Result<Found, SessionError> {
    job.watcher.phase("analysing", None);
    let Parts { chosen, profiles, notes } = given.modules(job.set, job.churn, &mut job.left_out)?;
    job.result.warnings.extend(notes);
    let target = job.set.leader.target();
    if chosen.iter().all(|c| c.index != target.program)
        && !job.left_out.has(&target.modules[target.program].path)
    {
        let (program, file) = (target.modules[target.program].path.display(), given.path().display());
        job.result.warnings.push(format!("{file} has no counts of {program} itself, which stays as it is"));
    }
    job.timings.end("analysis");
    if job.windows.can_measure() && !job.options.dry_run {
        job.watcher.phase("measuring", Some(job.options.measure.as_secs_f64()));
        job.windows.measure(job.options.measure);
        heed()?;
        job.timings.end("measuring before");
    }
    let profiled = Profiled { source: given.path().display().to_string(), ..Profiled::of_records(profiles) };
    Ok(Found { before: job.windows.take(), samples: IpSamples::default(), chosen, profiled: Some(profiled) })
}

/// Samples the process, then counts what it does, or records its branches. `vote`: indirect calls vote for
/// their usual targets meanwhile.
pub(crate) fn profile_it(job: &mut Job<'_>, source: SourceChoice, vote: bool) -> Result<Found, SessionError> {
    let (sampling, length) = split(job.options.duration);
    let (before, mut samples, mut chosen) = sample(job, sampling)?;
    if job.options.dry_run {
        let by_counting = source == SourceChoice::Count && samples.records < ENOUGH_RECORDS;
        let vote = by_counting.then_some(vote);
        plan(job.set, &mut chosen, vote, samples.total, &mut job.left_out, &mut job.result)?;
        return Ok(Found { before, samples, chosen, profiled: None });
    }
    let profiled = match from_records(&chosen, &samples) {
        _ if matches!(source, SourceChoice::Ip | SourceChoice::Lbr) => {
            by_samples(job, &chosen, source, length.most(), &mut samples)?
        }
        Some(profiled) => profiled,
        None if source != SourceChoice::Count => by_records(job, &chosen, source, length.most())?,
        None => by_counting(job, &mut chosen, length, vote)?,
    };
    Ok(Found { before, samples, chosen, profiled: Some(profiled) })
}

/// What was measured while the process was sampled, the samples, and the modules that are worth it.
fn sample(job: &mut Job<'_>, length: Length) -> Result<(Vec<Window>, IpSamples, Vec<Chosen>), SessionError> {
    job.watcher.phase("sampling", Some(length.most().as_secs_f64()));
    let look = look_at(job.set, length, &mut job.windows)?;
    heed()?;
    let before = look.before.clone();
    job.timings.end("sampling");
    job.watcher.phase("analysing", None);
    let (samples, mut analyses) = look.finish();
    enough(job, &samples)?;
    let (mut chosen, left) = choose(job.set, &samples, &mut analyses)?;
    left.into_iter().for_each(|(path, n, why)| job.left_out.add(&path, n, why));
    job.churn.leave_out(&mut chosen, &mut job.left_out);
    chosen.iter_mut().for_each(|module| job.options.version.leave_skipped(&mut module.analyzed));
    job.result.other_modules = Some(others(job.set, &samples));
    job.timings.end("analysis");
    heed()?;
    if chosen.is_empty() {
        if let Some(error) = samples_in_no_file(job.set.leader.target().pid(), &samples) {
            return Err(error);
        }
        let why = format!(
            "no module with enough samples can be moved{}; `restitch analyze FILE` says what keeps code in place",
            job.left_out.reasons()
        );
        return Err(SessionError::nothing_to_do(why));
    }
    Ok((before, samples, chosen))
}

fn enough(job: &Job<'_>, samples: &IpSamples) -> Result<(), SessionError> {
    if samples.total >= LEAST_SAMPLES {
        return Ok(());
    }
    let pid = job.set.leader.target().pid();
    Err(SessionError::nothing_to_do(format!(
        "process {pid} used too little CPU time to be profiled ({} samples in {:.1} s); try again under load, or with a \
         longer --duration{}",
        samples.total,
        job.timings.list.last().map_or(0.0, |p| p.ms / 1e3),
        who_may_work(pid, job.set.is_tree())
    )))
}

/// Advice that names the processes below `pid` which may do its work: servers wait in their first process.
fn who_may_work(pid: i32, is_tree: bool) -> String {
    let same = families(pid).map_or(0, |families| families.iter().flatten().count().saturating_sub(1));
    let first = procfs::descendants(pid).unwrap_or_default().into_iter().next();
    match first {
        Some(_) if same > 0 && !is_tree => {
            let (processes, run) = (counted(same as u64, "process"), if same == 1 { "runs" } else { "run" });
            format!("; {processes} below it {run} the same program, too: --tree takes them along")
        }
        Some(other) if same == 0 => {
            let name = procfs::status(other.pid).map(|status| status.name).unwrap_or_default();
            format!("; process {} ({name}) was started by it: name that one if it does the work", other.pid)
        }
        _ => String::new(),
    }
}

/// Profiles of samples by the kernel, of so much time.
fn by_samples(
    job: &mut Job<'_>,
    chosen: &[Chosen],
    source: SourceChoice,
    time: Duration,
    samples: &mut IpSamples,
) -> Result<Profiled, SessionError> {
    let budget = Budget { source, overhead: job.options.overhead, duration: time };
    let profiles = profiles_of_samples(job.set, chosen, budget, samples, job.watcher)?;
    heed()?;
    job.timings.end("sampling for the profile");
    let source = if source == SourceChoice::Ip { "instruction samples" } else { "branch records" };
    Ok(Profiled { seconds: time.as_secs_f64(), source: source.into(), ..Profiled::of_records(profiles) })
}

/// Profiles of branch records that software makes, of so much time, of the original code.
fn by_records(
    job: &mut Job<'_>,
    chosen: &[Chosen],
    source: SourceChoice,
    time: Duration,
) -> Result<Profiled, SessionError> {
    if job.set.all().any(|live| !live.journal().is_empty()) {
        job.take_back()?;
        job.timings.end("take back what was there");
    }
    let budget = Budget { source, overhead: job.options.overhead, duration: time };
    let (profiles, missed) = profiles_of_records(job.set, chosen, budget, job.watcher)?;
    job.result.warnings.extend(missed);
    heed()?;
    job.timings.end("tracing");
    Ok(Profiled { seconds: time.as_secs_f64(), ..Profiled::of_records(profiles) })
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
    job: &mut Job<'_>,
    chosen: &mut Vec<Chosen>,
    length: Length,
    vote: bool,
) -> Result<Profiled, SessionError> {
    let (counting, versions) = make_counting(job.set, chosen, &mut job.left_out, vote)?;
    job.timings.end("counting version");
    heed()?;
    for (c, m) in counting.iter().zip(chosen.iter()) {
        let name = m.path.file_name().unwrap_or_default().to_string_lossy();
        let (samples, functions) = (counted(m.samples, "sample"), counted(c.functions as u64, "function"));
        let counters = counted(c.counted.len() as u64, "counter");
        job.watcher.note(&format!("{samples} in {name}: counting {functions} with {counters}"));
    }
    let (derived, switch, time) = count(job.set, chosen, &counting, &versions, length, job.watcher)?;
    job.timings.end("counting");
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
