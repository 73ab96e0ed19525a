//! The exact profile: a counting version of the chosen functions runs for a few seconds.

use crate::left_out::LeftOut;
use restitch_apply_process::{LONGEST_UNREAD, SwitchReport, VersionKind};
use restitch_check::CheckedVersion;
use restitch_pipeline::Watcher;
use restitch_pipeline::counting_version::{Counters, CountingDraft, missing_counters};
use restitch_pipeline::derivation;
use restitch_pipeline::make::Place;
use restitch_pipeline::parallel;
use restitch_pipeline::selection::select;
use restitch_processes::SessionError;
use restitch_processes::initial_sampling::Length;
use restitch_processes::modules::Chosen;
use restitch_processes::process_set::ProcessSet;
use restitch_procfs as procfs;
use restitch_profile::{Counted, CounterPlan, Derived, Vote, Weights, derive};
use restitch_program::{CallId, FuncId, Program};
use restitch_tracee::AskedToEnd;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// A counting version of one module.
pub(crate) struct Counting {
    pub plan: CounterPlan,
    pub number: u32,
    pub counted: Vec<Counted>,
    /// Indices of counters that nothing increments.
    pub missing: Vec<u32>,
    /// Indirect calls that vote for their usual target.
    pub votes: Vec<CallId>,
    pub functions: usize,
}

/// What was planned for each module, and its checked version with the module's index.
pub(crate) type CountingVersions = (Vec<Counting>, Vec<(usize, CheckedVersion)>);

/// What a counting version of one module is to be.
struct Planned {
    draft: CountingDraft,
    functions: usize,
}

/// Makes counting versions of the functions with samples, and those around them, of all chosen modules.
/// Modules of which none can be made are taken out of `chosen` and listed in `left_out`. `vote`: indirect
/// calls vote for their usual targets.
///
/// # Errors
/// The first module's, if none is left.
pub(crate) fn make_counting(
    set: &ProcessSet,
    chosen: &mut Vec<Chosen>,
    left_out: &mut LeftOut,
    vote: bool,
) -> Result<CountingVersions, SessionError> {
    let planned = parallel::map(chosen.iter().collect(), |module| plan_of(module, vote));
    let places = reserve_all(set, chosen, &planned);
    let jobs: Vec<_> = chosen.iter().zip(planned).zip(places).collect();
    let made = parallel::map(jobs, |((module, planned), place)| version_of(module, planned, place?));
    Ok(left_out.keep(chosen, made)?.into_iter().unzip())
}

fn plan_of(module: &Chosen, vote: bool) -> Planned {
    let program = &module.analyzed.program;
    let functions: Vec<FuncId> = select(program, &module.weights);
    let counters = Counters::narrow(Weights::Blocks(&module.weights.blocks), vote);
    Planned { draft: CountingDraft::of(program, &functions, counters), functions: functions.len() }
}

/// A free place for each version, one after the other: none may overlap.
fn reserve_all(set: &ProcessSet, chosen: &[Chosen], planned: &[Planned]) -> Vec<Result<Place, SessionError>> {
    let mut taken = Vec::new();
    let one = |(module, planned): (&Chosen, &Planned)| {
        let room = planned.draft.room(&module.analyzed.program);
        let held = set.reserve(module.index, room.whole(), &taken, restitch_address::PAGE)?;
        taken.push((module.index, held));
        let bias = set.leader.target().modules[module.index].bias;
        Ok(room.at(held.number, held.start, Some(bias)))
    };
    chosen.iter().zip(planned).map(one).collect()
}

/// The version, checked, with the module's index.
fn version_of(
    module: &Chosen,
    planned: Planned,
    place: Place,
) -> Result<(Counting, (usize, CheckedVersion)), SessionError> {
    let Planned { draft, functions } = planned;
    let version = draft.build(&module.path, &module.analyzed, place)?;
    let counted = version.counters.as_ref().map(|c| c.counted.clone()).unwrap_or_default();
    let missing = missing_counters(&version);
    let CountingDraft { plan, votes, .. } = draft;
    let counting = Counting { plan, number: place.number, counted, missing, votes, functions };
    Ok((counting, (module.index, version)))
}

/// Counters are looked at for the first time after this time, and then each time as much has passed again.
const FIRST_LOOK: Duration = Duration::from_millis(500);
/// The counts of the two halves of the time so far have to agree as much as this (overlap of their
/// distributions).
const SETTLED: f64 = 0.97;
/// So many late readings are made up for.
const MOST_MADE_UP: u32 = 20;
/// Fewer increments than this tell nothing.
const LEAST_INCREMENTS: u64 = 100_000;

/// Whether counters have settled: what the second half of the time has not changed, more time will not change
/// much either.
struct Settling {
    next: Duration,
    before: Option<Vec<u64>>,
    settled: bool,
}

impl Settling {
    fn new() -> Self {
        Self { next: FIRST_LOOK, before: None, settled: false }
    }

    /// Takes in the counters as they are after `elapsed`, if it is time to.
    fn look(&mut self, elapsed: Duration, read: impl FnOnce() -> Option<Vec<u64>>) {
        if elapsed < self.next {
            return;
        }
        self.next = elapsed * 2;
        let now = read();
        if let (Some(before), Some(now)) = (&self.before, &now) {
            self.settled = overlap(before, now) >= SETTLED;
        }
        self.before = now;
    }
}

/// The overlap of what was counted until `before` and of what has come until `now`: the sum over the counters
/// of the smaller one of their two shares. 0 if either is too little to tell.
fn overlap(before: &[u64], now: &[u64]) -> f64 {
    let grown = || before.iter().zip(now).map(|(b, n)| (*b, n.saturating_sub(*b)));
    let sum = |all: &mut dyn Iterator<Item = u64>| all.fold(0u64, u64::saturating_add);
    let (first, second) = (sum(&mut grown().map(|g| g.0)), sum(&mut grown().map(|g| g.1)));
    if first.min(second) < LEAST_INCREMENTS {
        return 0.0;
    }
    grown().map(|(a, b)| (a as f64 / first as f64).min(b as f64 / second as f64)).sum()
}

/// For how long counters have counted: where this program got no processor for so long that what they counted
/// meanwhile is left out, or the clock has jumped (a virtual machine that was suspended), that time does not
/// count, however long it was; within reason, as a program that is always late has to end as well.
struct CountedTime {
    read: Instant,
    time: Duration,
    /// So many late readings may still be made up for.
    patience: u32,
}

impl CountedTime {
    fn new(now: Instant) -> Self {
        Self { read: now, time: Duration::ZERO, patience: MOST_MADE_UP }
    }

    fn time(&self) -> Duration {
        self.time
    }

    /// The counters were read.
    fn read_at(&mut self, now: Instant) {
        let passed = now.saturating_duration_since(std::mem::replace(&mut self.read, now));
        match passed > LONGEST_UNREAD && self.patience > 0 {
            true => self.patience -= 1,
            false => self.time += passed,
        }
    }
}

/// Whether so little has run in the `wanted` time that a layout of what was counted would be one of chance.
/// Then it is gone on, for some times the wanted time: the processes may wait for work; for half a minute
/// while they are `hindered`, as others have the processors.
fn is_too_little(run: bool, counted: Duration, wanted: Duration, hindered: impl FnOnce() -> bool) -> bool {
    const MOST: u32 = 3;
    const MOST_HINDERED: Duration = Duration::from_secs(30);
    !run && (counted < MOST * wanted || counted < MOST_HINDERED && hindered())
}

/// What the processes of a set have done since they count.
struct Run {
    /// Processor time of each thread at the beginning.
    used: BTreeMap<i32, Duration>,
}

impl Run {
    /// With less processor time and fewer increments they have hardly run.
    const LEAST: Duration = Duration::from_millis(20);

    fn begin(set: &ProcessSet) -> Self {
        Self { used: Self::used(set).collect() }
    }

    fn is_enough(&self, set: &ProcessSet, counters: &[u64]) -> bool {
        let increments = counters.iter().fold(0u64, |sum, counter| sum.saturating_add(*counter));
        let before = |tid: i32| self.used.get(&tid).copied().unwrap_or_default();
        let run = || Self::used(set).map(|(tid, used)| used.saturating_sub(before(tid))).sum::<Duration>();
        increments >= LEAST_INCREMENTS || run() >= Self::LEAST
    }

    /// Processor time of each thread that there is now.
    fn used(set: &ProcessSet) -> impl Iterator<Item = (i32, Duration)> {
        let times = |pid: i32| {
            let threads = procfs::threads(pid).unwrap_or_default().into_iter().map(|thread| thread.tid);
            threads.filter_map(move |tid| Some((tid, procfs::thread_cpu_time(pid, tid).ok()?)))
        };
        set.pids().into_iter().flat_map(times)
    }
}

/// Whether a thread of the set runs, or would if it had a processor.
fn would_run(set: &ProcessSet) -> bool {
    let is_running = |pid: i32, tid: i32| {
        procfs::thread_stat(pid, tid).is_ok_and(|stat| stat.state == procfs::ProcessState::Running)
    };
    let any = |pid: i32| {
        procfs::threads(pid).unwrap_or_default().into_iter().any(|thread| is_running(pid, thread.tid))
    };
    set.pids().into_iter().any(any)
}

/// Installs counting versions, waits (no longer than until this program is asked to end), and derives a
/// profile for each chosen module. The counting versions stay in force. Also: for how long was counted.
pub(crate) fn count(
    set: &mut ProcessSet,
    chosen: &[Chosen],
    counting: &[Counting],
    versions: &[(usize, CheckedVersion)],
    length: Length,
    watcher: &mut dyn Watcher,
) -> Result<(Vec<Derived>, SwitchReport, Duration), SessionError> {
    const STEP: Duration = Duration::from_millis(50);
    let report = set.switch(versions, VersionKind::Counting, watcher)?;
    watcher.phase("counting", Some(length.most().as_secs_f64()));
    let (mut counted, mut counters) = (CountedTime::new(Instant::now()), Vec::new());
    let (mut settling, run) = (Settling::new(), Run::begin(set));
    let hardly_ran = |counters: &[u64], counted: Duration| {
        is_too_little(run.is_enough(set, counters), counted, length.most(), || would_run(set))
    };
    while !length.is_over(counted.time(), || settling.settled) || hardly_ran(&counters, counted.time()) {
        if AskedToEnd::signal().is_some() || !set.leader_is_alive() {
            break;
        }
        let left = length.most().saturating_sub(counted.time());
        std::thread::sleep(if left.is_zero() { STEP } else { left.min(STEP) });
        // Each time, whether or not it is looked at: narrow counters go round.
        let now = all_counters(set, counting).ok();
        counted.read_at(Instant::now());
        if matches!(length, Length::UntilSettled { .. }) {
            settling.look(counted.time(), || now.clone());
        }
        counters = now.unwrap_or_default();
    }
    let time = counted.time();
    // Children forked meanwhile inherited the counting version: they are to move on with the others.
    set.refresh()?;
    Ok((derive_all(set, chosen, counting)?, report, time))
}

/// The counters of all modules, one behind the other.
fn all_counters(set: &ProcessSet, counting: &[Counting]) -> Result<Vec<u64>, SessionError> {
    let mut all = Vec::new();
    for one in counting {
        all.extend(set.counters(one.number)?);
    }
    Ok(all)
}

/// The profiles that the counters give now.
pub(crate) fn derive_all(
    set: &ProcessSet,
    chosen: &[Chosen],
    counting: &[Counting],
) -> Result<Vec<Derived>, SessionError> {
    let pairs = chosen.iter().zip(counting).map(|(module, counting)| {
        let values = (set.counters(counting.number)?, set.votes(counting.number)?);
        Ok((module, counting, values))
    });
    let pairs: Vec<_> = pairs.collect::<Result<_, SessionError>>()?;
    Ok(parallel::map(pairs, |(module, counting, values)| derive_one(module, counting, &values.0, &values.1)))
}

fn derive_one(module: &Chosen, counting: &Counting, values: &[u64], votes: &[Vote]) -> Derived {
    let program = &module.analyzed.program;
    let mut derived = derive(program, &counting.plan.known_without(program, values, &counting.missing));
    derived.profile.adopt_votes(program, &counting.votes, votes);
    derived
}

impl Counting {
    /// What is to be counted, to be reported before anything has run.
    pub fn planned(&self) -> restitch_report::Counting {
        derivation::planned(&self.plan, self.missing.len())
    }

    /// What the counts have given, to be reported.
    pub fn summary(&self, program: &Program, derived: &Derived) -> restitch_report::Counting {
        derivation::summary(program, &self.plan, self.missing.len(), derived)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_in_which_nobody_read_is_made_up_for() {
        let (begin, ms) = (Instant::now(), Duration::from_millis);
        let mut counted = CountedTime::new(begin);
        let mut at = |time| {
            counted.read_at(begin + ms(time));
            counted.time()
        };
        // However long it was: the machine may have been suspended.
        assert_eq!((at(50), at(600), at(3_600_000), at(3_600_100)), (ms(50), ms(600), ms(600), ms(700)));
        // Not for ever.
        (2..MOST_MADE_UP.into()).for_each(|i| assert_eq!(at(3_600_100 + 700 * (i - 1)), ms(700)));
        let last = 3_600_100 + 700 * u64::from(MOST_MADE_UP - 2);
        assert_eq!((at(last + 700), at(last + 1400)), (ms(700), ms(1400)));
    }

    #[test]
    fn what_has_hardly_run_is_too_little_for_some_time() {
        let second = Duration::from_secs(1);
        let is = |run: bool, seconds: u32, hindered: bool| {
            is_too_little(run, seconds * second, second, || hindered)
        };
        assert!(is(false, 2, false) && !is(false, 3, false));
        assert!(is(false, 29, true) && !is(false, 30, true));
        assert!(!is(true, 1, true) && !is(true, 1, false));
    }

    #[test]
    fn counters_settle_when_the_second_half_is_like_the_first() {
        let many = LEAST_INCREMENTS;
        assert_eq!(overlap(&[many, many], &[3 * many, 3 * many]), 1.0);
        assert_eq!(overlap(&[many, 0], &[many, many]), 0.0);
        assert_eq!(overlap(&[3 * many, many], &[6 * many, 4 * many]), 0.75);
        assert_eq!(overlap(&[10, 10], &[20, 20]), 0.0, "too few to tell");
        // What wraps or was torn does no harm.
        assert!(overlap(&[u64::MAX, many], &[0, 2 * many]) < SETTLED);

        let mut settling = Settling::new();
        let ms = Duration::from_millis;
        settling.look(ms(499), || panic!("it is too early"));
        settling.look(ms(500), || Some(vec![many, many]));
        settling.look(ms(900), || panic!("it is too early"));
        settling.look(ms(1000), || Some(vec![2 * many, 4 * many]));
        assert!(!settling.settled);
        settling.look(ms(2000), || Some(vec![4 * many, 8 * many]));
        assert!(settling.settled);
    }
}
