//! `attach`: from a running process to a faster one.

use crate::attach_options::AttachOptions;
use crate::attach_profile::{Found, Profiled, Work, profile_it, take_given};
use crate::earlier_profiles::{not_chosen, of_module, stored, with_earlier};
use crate::given_profile::GivenProfile;
use crate::left_out::LeftOut;
use crate::module_churn::{ModuleChurn, until_modules_stay};
use crate::profiling::Counting;
use restitch_apply_process::{
    AttachedProcess, Module, Reservation, StateDir, SwitchReport, Target, VersionKind,
};
use restitch_check::CheckedVersion;
use restitch_layout::{Layout, LayoutChoice, Reaching};
use restitch_pipeline::ExitCode;
use restitch_pipeline::Watcher;
use restitch_pipeline::imports::{adopt_targets, read_store};
use restitch_pipeline::large_pages::alignment;
use restitch_pipeline::make::{
    Place, Wanted, check_version, emit_version, estimate, lay_out, promoted_bytes, worth_promoting,
};
use restitch_pipeline::parallel;
use restitch_pipeline::summaries::{hottest, layout_summary, version_summary};
use restitch_pipeline::timings::Timings;
use restitch_processes::SessionError;
use restitch_processes::interrupt::heed;
use restitch_processes::modules::Chosen;
use restitch_processes::process_family::at_work;
use restitch_processes::process_set::{ProcessSet, refuse_unchangeable};
use restitch_processes::refusal::with_what_is_left;
use restitch_processes::sampling::IpSamples;
use restitch_processes::signal_name;
use restitch_processes::source::SourceChoice;
use restitch_processes::unfinished::or_given_back;
use restitch_processes::verdict::{Metric, Window, Windows};
use restitch_profile::{Derived, Profile, ProfileFile};
use restitch_program::Program;
use restitch_report::{self as report, Helped, Outcome, RunResult};
use restitch_tracee::AskedToEnd;
use std::collections::BTreeSet;
use std::time::Duration;

/// Profiles the process, lays its hot code out again, moves it over, measures.
///
/// # Errors
/// [`SessionError`]; the process is as it was, or (after an error during a switch) correct and known to the
/// journal.
pub fn attach(options: &AttachOptions, watcher: &mut dyn Watcher) -> Result<RunResult, SessionError> {
    Ok(attach_round(options, Round::Only, watcher)?.result)
}

/// Which part of a session a round is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Round<'a> {
    /// All of it.
    Only,
    /// One of several. The layout that is in force stays until the process counts, so what is measured before
    /// is that of the process in it; what was counted of other work is added.
    Of(&'a [&'a ProfileFile]),
}

/// What a round has come to.
pub(crate) struct Attached {
    pub result: RunResult,
    /// What it has counted; empty if it is the only one.
    pub counted: ProfileFile,
    /// The samples before that, and their modules.
    pub samples: IpSamples,
    pub modules: Vec<Module>,
    /// The share of them that lies in code of which the new layout has a copy.
    pub expected: f64,
}

/// As [`attach`].
///
/// # Errors
/// Its errors. After one in [`Round::Of`] an earlier layout may be in force still.
pub(crate) fn attach_round(
    options: &AttachOptions,
    round: Round<'_>,
    watcher: &mut dyn Watcher,
) -> Result<Attached, SessionError> {
    let result =
        until_modules_stay(watcher, |churn, watcher| attach_in_phases(options, round, churn, watcher));
    if result.is_err()
        && let Ok(dir) = StateDir::open()
    {
        // Versions that were made and did not come to be mapped.
        dir.collect_garbage();
    }
    result
}

fn attach_in_phases(
    options: &AttachOptions,
    round: Round<'_>,
    churn: &ModuleChurn,
    watcher: &mut dyn Watcher,
) -> Result<Attached, SessionError> {
    let mut phases = Timings::new();
    // Before anything else: a metric that gives no number is told while the process is as it was.
    options.metric.as_ref().map(Metric::read).transpose()?;
    let given = options.profile.as_deref().map(GivenProfile::read).transpose()?;
    let source = options.source.choose()?;
    let known = options.call_targets.as_deref().map(read_store).transpose()?;
    let family = at_work(options.pid, options.tree, watcher);
    refuse_unchangeable(family.leader)?;
    let mut set = ProcessSet::open_to_change(family.leader, options.tree)?;
    set.retargeted_slots = options.slots;
    let windows = windows_for(options, &set)?;
    let mut result = RunResult::new("attach", target_of(&set));
    result.warnings.extend(family.warnings());
    result.warnings.extend(set.left_out());
    result.warnings.extend(churn.warning());
    phases.end("opening");
    if !options.dry_run {
        set.room_for_more()?;
    }
    let begun = Begun { options, round, churn, given, source, known, windows, phases, result };
    or_given_back(&mut set, watcher, |set, watcher| {
        attach_to(set, begun, watcher).map_err(|error| with_what_is_left(error, set.leader.target()))
    })
}

/// What is there before the initial sampling at the processes.
struct Begun<'a> {
    options: &'a AttachOptions,
    round: Round<'a>,
    churn: &'a ModuleChurn,
    given: Option<GivenProfile>,
    source: SourceChoice,
    known: Option<ProfileFile>,
    windows: Windows,
    phases: Timings,
    result: RunResult,
}

/// The phases on a set that is open. An error or a panic may leave processes in a counting version.
fn attach_to(
    set: &mut ProcessSet,
    begun: Begun<'_>,
    watcher: &mut dyn Watcher,
) -> Result<Attached, SessionError> {
    let Begun { options, round, churn, given, source, known, mut windows, mut phases, mut result } = begun;
    heed()?;
    let stays = matches!(round, Round::Of(_)) && !set.all().any(AttachedProcess::left_counting);
    if set.all().any(|l| !l.journal().is_empty()) && !options.dry_run && !stays {
        watcher.note("the process is under restitch already: it gets its original code back first");
        set.switch(&[], VersionKind::Optimized, watcher)?;
        phases.end("take back what was there");
    }

    let mut left_out = LeftOut::default();
    let mut work = Work {
        options,
        set,
        windows: &mut windows,
        left_out: &mut left_out,
        phases: &mut phases,
        result: &mut result,
        churn,
        watcher,
    };
    let found = match &given {
        Some(given) => take_given(given, &mut work)?,
        None => profile_it(&mut work, source, options.version.promote_calls && known.is_none())?,
    };
    heed()?;
    let Found { before, samples, mut chosen, profiled } = found;
    let Some(mut profiled) = profiled else {
        left_out.tell(&mut result);
        phases.end("planning");
        phases.finish(&mut result);
        return Ok(attached_of(set, result, ProfileFile::default(), samples, &[]));
    };
    for (module, profile) in chosen.iter().zip(profiled.each_profile()) {
        known.iter().for_each(|known| adopt_targets(known, &module.analyzed, profile));
    }
    let mut counted = ProfileFile::default();
    if let Round::Of(earlier) = round {
        counted = stored(&chosen, profiled.each_profile());
        add_earlier(set, &mut chosen, &mut profiled, (&counted, earlier), &left_out)?;
    }
    if options.version.promote_calls && profiled.each_profile().all(|p| p.targets.is_empty()) {
        watcher.note(UNKNOWN_TARGETS);
        result.warnings.push(UNKNOWN_TARGETS.into());
    }

    watcher.phase("laying out", None);
    let made = make_optimized(set, &mut chosen, &mut profiled, options, &mut left_out, &mut phases);
    let (made, versions) = match made {
        Ok(made) => made,
        Err(error) if options.dry_run || is_interruption(&error) => return Err(error),
        Err(error) => {
            set.switch(&[], VersionKind::Optimized, watcher)?;
            set.reclaim();
            return Err(error);
        }
    };
    if options.dry_run {
        describe(&mut result, &chosen, &made, &versions, options.version.layout, &mut phases);
        left_out.tell(&mut result);
        result.profile = Some(profiled.summary(samples.total));
        result.outcome = Outcome::Planned;
        result.exit_code = ExitCode::Done.number();
        phases.finish(&mut result);
        return Ok(attached_of(set, result, counted, samples, &versions));
    }
    watcher.phase("moving over", None);
    let second = set.switch(&versions, VersionKind::Optimized, watcher)?;
    phases.end("moving over");
    let in_force_ms = phases.elapsed_ms();

    if second.patched == 0 {
        set.switch(&[], VersionKind::Optimized, watcher)?;
        set.reclaim();
        return Err(SessionError::nothing_to_do(
            "none of the functions that ran can be redirected, so nothing was moved; the process is as it was",
        ));
    }
    describe(&mut result, &chosen, &made, &versions, options.version.layout, &mut phases);
    left_out.tell(&mut result);
    result.profile = Some(profiled.summary(samples.total));
    result.apply = Some(report::ApplySummary { in_force_ms, ..apply_summary(&profiled.switch, &second) });
    result.warnings.extend(written(set.leader.target(), &[&profiled.switch, &second]));
    for (pid, number, why) in set.reclaim() {
        result.warnings.push(format!("process {pid}: version {number} stays mapped, unused: {why}"));
    }
    phases.end("unmapping former versions");
    result.outcome = Outcome::InForce;
    result.exit_code = ExitCode::Done.number();
    judge(options, set, &mut windows, &before, &mut result, watcher)?;
    large_page_bytes(set, &versions, &mut result);
    phases.end("measuring");
    result.target = target_of(set);
    phases.finish(&mut result);
    Ok(attached_of(set, result, counted, samples, &versions))
}

fn attached_of(
    set: &ProcessSet,
    result: RunResult,
    counted: ProfileFile,
    samples: IpSamples,
    versions: &[(usize, CheckedVersion)],
) -> Attached {
    let copied = |(module, version): &(usize, CheckedVersion)| -> u64 {
        let all = samples.by_module.get(module).into_iter().flatten();
        all.filter(|(at, _)| version.map.to_version(**at).is_some()).map(|(_, n)| *n).sum()
    };
    let copied: u64 = versions.iter().map(copied).sum();
    let modules = set.leader.target().modules.clone();
    let expected = copied as f64 / samples.total.max(1) as f64;
    Attached { result, counted, samples, modules, expected }
}

/// Adds what was counted of other work to the profiles of this round, and the modules that only that was in.
fn add_earlier(
    set: &ProcessSet,
    chosen: &mut Vec<Chosen>,
    profiled: &mut Profiled,
    (own, earlier): (&ProfileFile, &[&ProfileFile]),
    left_out: &LeftOut,
) -> Result<(), SessionError> {
    let all = with_earlier(own, earlier);
    for (module, profile) in chosen.iter().zip(profiled.each_profile()) {
        *profile = of_module(&all, module).unwrap_or_else(|| std::mem::take(profile));
    }
    for (module, profile) in not_chosen(set, chosen, left_out, &all)? {
        // Profiles that were not counted here come before those that were.
        chosen.insert(0, module);
        profiled.profiles.insert(0, profile);
    }
    Ok(())
}

/// How the verdict is measured.
///
/// # Errors
/// If there is no way, although it decides whether the layout stays.
fn windows_for(options: &AttachOptions, set: &ProcessSet) -> Result<Windows, SessionError> {
    const LENGTH: Duration = Duration::from_millis(250);
    let windows = match options.measure.is_zero() {
        true => Windows::unasked(),
        false => Windows::new(options.metric.clone(), &set.pids(), LENGTH),
    };
    match windows.why_nothing().filter(|_| options.revert_if_slower && !options.dry_run) {
        Some(why) => Err(SessionError::Unjudged { pid: options.pid, why }),
        None => Ok(windows),
    }
}

/// What a session works on.
pub(crate) fn target_of(set: &ProcessSet) -> report::Target {
    let target = set.leader.target();
    report::Target {
        program: target.modules[target.program].path.display().to_string(),
        pid: Some(target.pid() as u32),
        processes: set.pids().len() as u32,
        threads: set.threads() as u32,
    }
}

/// What was made for the modules, and the checked versions with the modules' indices.
type AllMade = (Vec<Made>, Vec<(usize, CheckedVersion)>);

/// What was made for a module, besides its version.
struct Made {
    profile: Origin,
    layout: Layout,
}

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

/// Layouts and versions of the profiled modules. Those of which none can be made are taken out of `chosen`
/// and listed in `left_out`.
fn make_optimized(
    set: &ProcessSet,
    chosen: &mut Vec<Chosen>,
    profiled: &mut Profiled,
    options: &AttachOptions,
    left_out: &mut LeftOut,
    phases: &mut Timings,
) -> Result<AllMade, SessionError> {
    let records = std::mem::take(&mut profiled.profiles).into_iter().map(Origin::Records);
    let counted = std::mem::take(&mut profiled.counted).into_iter().map(|c| Origin::Counted(Box::new(c)));
    let profiles: Vec<Origin> = records.chain(counted).collect();
    if !options.version.copy_tables {
        chosen.iter_mut().for_each(|module| module.analyzed.program.keep_tables());
    }
    let modules: Vec<_> = chosen.iter().zip(&profiles).collect();
    let ways = options.version.ways(Reaching::Redirected, &[]);
    heed()?;
    let lay_out = |(m, source): (&Chosen, &Origin)| lay_out(ways, &m.analyzed.program, source.profile());
    let layouts: Vec<Layout> = parallel::map(modules, lay_out);
    phases.end("layout");
    heed()?;
    let (mut jobs, mut taken) = (Vec::new(), Vec::new());
    for ((module, layout), profile) in chosen.iter().zip(layouts).zip(profiles) {
        let promote =
            worth_promoting(options.version.promote_calls, &module.analyzed.program, profile.profile());
        let room = promoted_bytes(&promote);
        let place = match layout.blocks().next() {
            Some(_) => place_for(set, module, &layout, room, options, &mut taken),
            None => Err(SessionError::NothingMoves { module: module.path.clone() }),
        };
        let bound = if options.version.direct_calls { set.bound_slots(module.index)? } else { Vec::new() };
        jobs.push((module, Made { profile, layout }, place, bound, promote));
    }
    let emitted = parallel::map(jobs, |(module, made, place, bound, promote)| -> Result<_, SessionError> {
        let place = place?;
        let large_pages = options.version.huge_pages.wanted(&module.analyzed.program, &made.layout);
        let executions = options.version.executions(made.profile.profile());
        let wanted = Wanted {
            by_slots: options.version.direct_calls,
            bound: &bound,
            promote: &promote,
            large_pages,
            executions,
            ..Wanted::default()
        };
        let version = emit_version(&module.path, &module.analyzed, &made.layout, place, wanted)?;
        Ok((module, made, version, place.bias))
    });
    phases.end("emission");
    heed()?;
    let checked = parallel::map(emitted, |emitted| {
        let (module, made, version, bias) = emitted?;
        let checked = check_version(&module.path, &module.analyzed, &made.layout, version, bias)?;
        Ok((made, (module.index, checked)))
    });
    let kept = left_out.keep(chosen, checked)?;
    phases.end("check");
    heed()?;
    Ok(kept.into_iter().unzip())
}

/// A free place for a module's version, with `room` bytes for promoted calls.
fn place_for(
    set: &ProcessSet,
    module: &Chosen,
    layout: &Layout,
    room: u64,
    options: &AttachOptions,
    taken: &mut Vec<(usize, Reservation)>,
) -> Result<Place, SessionError> {
    let program = &module.analyzed.program;
    let align = alignment(options.version.huge_pages.wanted(program, layout));
    let len = (estimate(program, layout, 0) + room).next_multiple_of(align);
    let held = set.reserve(module.index, len, taken, align)?;
    taken.push((module.index, held));
    let bias = set.leader.target().modules[module.index].bias;
    Ok(Place { number: held.number, start: held.start, counters: held.start, bias: Some(bias) })
}

/// Why nothing is promoted.
const UNKNOWN_TARGETS: &str =
    "no indirect call is promoted: none was seen to call one function of its module often enough";

/// Which code could not be exchanged as a whole, and why.
fn written(target: &Target, switches: &[&SwitchReport]) -> Vec<String> {
    let all: BTreeSet<_> = switches.iter().flat_map(|s| &s.written_in_stop).collect();
    let told = all.into_iter().map(|(at, why)| {
        let module = target.module_at(*at).map(|m| target.modules[m].path.display().to_string());
        let module = module.unwrap_or_else(|| at.to_string());
        format!("{module}: its code was written page by page in the pause, which made that longer: {why}")
    });
    told.collect()
}

/// Adds what the kernel says of large pages, now that the code has run.
fn large_page_bytes(set: &ProcessSet, versions: &[(usize, CheckedVersion)], result: &mut RunResult) {
    let target = set.leader.target();
    for (entry, (module, version)) in result.modules.iter_mut().zip(versions) {
        let at = target.modules[*module].bias.to_actual(version.range.start);
        if let (Some(summary), true) = (&mut entry.version, version.large > 0) {
            // A process that has ended has none.
            summary.large_page_bytes = restitch_procfs::large_page_bytes(target.pid(), at).unwrap_or(0);
        }
    }
}

fn apply_summary(first: &SwitchReport, second: &SwitchReport) -> report::ApplySummary {
    let part = |name: &str, us: u64| report::PausePart { name: name.into(), us: us as f64 };
    report::ApplySummary {
        how: "process".into(),
        in_force_ms: 0.0,
        pause_us: (first.pause_us + second.pause_us) as f64,
        pause_parts: vec![
            part("to the counting version", first.pause_us),
            part("to the new layout", second.pause_us),
            part("of that: stopping threads", second.stop_us),
            part("of that: the unwinder's table", second.unwinder_us),
            part("of that: threads and stacks", second.threads_us),
            part("of that: comparing the code", second.check_us),
            part("of that: exchanging mappings", second.remap_us),
            part("of that: writing code", second.write_us),
            part("of that: return addresses", second.returns_us),
            part("of that: resuming threads", second.resume_us),
            part("before it: one thread held", second.borrow_us),
        ],
        patches: second.patched as u64,
        moved_threads: (first.moved_threads + second.moved_threads) as u64,
        moved_to_counting: first.moved_threads as u64,
        moved_to_layout: second.moved_threads as u64,
    }
}

fn describe(
    result: &mut RunResult,
    chosen: &[Chosen],
    made: &[Made],
    versions: &[(usize, CheckedVersion)],
    choice: LayoutChoice,
    phases: &mut Timings,
) {
    let modules: Vec<_> = chosen.iter().zip(made).zip(versions).collect();
    result.modules = parallel::map(modules, |((module, made), (_, version))| {
        let (program, profile) = (&module.analyzed.program, made.profile.profile());
        let mut entry = module.analyzed.report(&module.path.display().to_string());
        entry.layout = Some(layout_summary(program, profile, &made.layout, choice));
        entry.version = Some(version_summary(version));
        entry.hottest = hottest(program, profile, &made.layout, version);
        entry.counting = made.profile.summary(program);
        entry.samples = module.samples;
        entry
    });
    phases.end("report");
}

/// Whether a session is to end early: giving back is then as for any other error.
fn is_interruption(error: &SessionError) -> bool {
    matches!(error, SessionError::Interrupted { .. })
}

/// Whoever asks for --revert-if-slower wants to be safe.
const UNJUDGED: &str =
    "--revert-if-slower: whether the new layout is slower could not be judged, so it was taken back";

/// Measures the new layout and acts on it.
fn judge(
    options: &AttachOptions,
    set: &mut ProcessSet,
    windows: &mut Windows,
    before: &[Window],
    result: &mut RunResult,
    watcher: &mut dyn Watcher,
) -> Result<(), SessionError> {
    if windows.can_measure() {
        watcher.phase("measuring", Some(options.measure.as_secs_f64()));
        windows.measure(options.measure);
    }
    let after = windows.take();
    let ended = AskedToEnd::signal();
    let judged = match ended {
        Some(signal) => Err(format!("no verdict: ended by {} while it was measured", signal_name(signal))),
        None => windows.verdict(before, &after),
    };
    let is_bad = match judged {
        Ok(judgement) => {
            let slower = judgement.verdict.helped == Helped::No;
            (result.verdict, result.verdict_beside) = (Some(judgement.verdict), judgement.beside);
            slower
        }
        Err(why) => {
            result.warnings.push(why);
            if options.revert_if_slower {
                result.warnings.push(UNJUDGED.into());
            }
            true
        }
    };
    if is_bad && options.revert_if_slower {
        set.switch(&[], VersionKind::Optimized, watcher)?;
        set.reclaim();
        result.outcome = Outcome::Reverted;
        result.exit_code = ExitCode::TakenBack.number();
    }
    if let Some(signal) = ended {
        result.exit_code = ExitCode::of_signal(signal).number();
        result.warnings.push(match result.outcome {
            Outcome::Reverted => "the process has its original code again".into(),
            _ => format!(
                "the new layout is in force and stays (`restitch revert {}` takes it out)",
                options.pid
            ),
        });
    }
    Ok(())
}
