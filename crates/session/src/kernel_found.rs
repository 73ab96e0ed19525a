//! A group that is found by counting: which functions belong to some roots, how often their blocks are
//! executed, whether that is more code than the processor keeps close by, and the group of the hot blocks.
//!
//! The walk is breadth-first over calls (Tamches and Miller, *Dynamic kernel code optimization*, section
//! 2.1.2): one group that counts after the other is in force, each with one level of callees more. They have
//! functions counted whoever calls them, and therefore all once more in the optimized group, into which only
//! the root leads (2.1.3). Here only roots lead into each group that counts, so the counts of the last one,
//! which has all functions of the walk, are those.

use crate::bottleneck::Bottleneck;
use crate::kernel_find::KernelSampling;
use crate::kernel_group::{Members, ReadKernel};
use crate::kernel_in_force::{Attempt, Enforcer, GroupInForce};
use restitch_address::Svma;
use restitch_kernel::FunctionId;
use restitch_kernel_position::{Counts, FunctionCounts, Order, PositionError, Positioner, Search};
use restitch_pipeline::Watcher;
use restitch_processes::SessionError;
use restitch_processes::interrupt::heed;
use restitch_procfs::has_ended;
use restitch_report::counted;
use std::collections::BTreeSet;
use std::time::Duration;

/// What is to be found.
#[derive(Debug, Clone, PartialEq)]
pub struct FoundGroupWanted {
    /// Functions whose calls are to be led to copies.
    pub roots: Roots,
    /// What is called more calls deep than so many is left out.
    pub depth: Option<usize>,
    /// Each level is counted for so long.
    pub time: Duration,
    /// Counting ends with this process.
    pub pid: Option<i32>,
    /// Blocks are hot above so many hundredths of the calls of the root.
    pub percent: u64,
    /// Below this pressure on the first-level caches there is no bottleneck, and nothing is put in force.
    pub least_pressure: f64,
}

/// Which functions are roots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Roots {
    /// These: names, or addresses in them with 0x in front.
    Named(Vec<String>),
    /// So many: those in whose own code samples are, that calls can be led from.
    Hottest(usize),
}

/// What was found.
#[derive(Debug)]
pub struct FoundGroup {
    /// The group, if there is a bottleneck.
    pub group: Option<GroupInForce>,
    /// How it was found, in words, a line each.
    pub notes: Vec<String>,
}

/// Counts what belongs to the roots, and puts the group of hot blocks in force.
///
/// # Errors
/// As [`put_in_force`](crate::put_in_force); and if none of the roots was called.
pub fn find_group(wanted: &FoundGroupWanted, watcher: &mut dyn Watcher) -> Result<FoundGroup, SessionError> {
    // Before samples are taken, which is in vain without a control module.
    Enforcer::begin(&[])?;
    let names = match &wanted.roots {
        Roots::Named(names) => names.clone(),
        Roots::Hottest(most) => hottest(*most, wanted, watcher)?,
    };
    let enforcer = Enforcer::begin(&names)?;
    enforcer.while_it_changes(watcher, |read, watcher| {
        let roots = read.functions(&names)?;
        let subject = read.subject()?;
        let positioner = Positioner::new(&subject)?;
        let mut walk = Walk { wanted, enforcer: &enforcer, read, positioner: &positioner, notes: Vec::new() };
        let closure = match walk.count(&roots, watcher)? {
            Attempt::Done(closure) => closure,
            Attempt::Changed(changed) => return Ok(Attempt::Changed(changed)),
        };
        walk.position(closure, watcher)
    })
}

/// The roots of a walk, all that it has reached, and how often blocks were executed.
struct Closure {
    roots: Vec<FunctionId>,
    functions: Vec<FunctionId>,
    counts: Counts,
}

/// A walk over the callees of roots.
struct Walk<'w> {
    wanted: &'w FoundGroupWanted,
    enforcer: &'w Enforcer,
    read: &'w ReadKernel<'w>,
    positioner: &'w Positioner<'w>,
    notes: Vec<String>,
}

impl Walk<'_> {
    /// Counts level by level.
    fn count(
        &mut self,
        roots: &[FunctionId],
        watcher: &mut dyn Watcher,
    ) -> Result<Attempt<Closure>, SessionError> {
        let mut roots = roots.to_vec();
        let mut search = Search::new(&self.read.kernel, &roots);
        let (mut callees, mut rounds) = (BTreeSet::new(), 0);
        while !search.level().is_empty() && self.wanted.depth.is_none_or(|most| search.depth() <= most) {
            let depth = search.depth();
            // A root that cannot be moved is refused by name; a callee just stays.
            let level = if depth == 0 { roots.clone() } else { self.movable(search.level()) };
            if level.is_empty() {
                search.counted(&Counts::default());
                continue;
            }
            callees.extend(level.into_iter().filter(|id| !roots.contains(id)));
            let counts = match self.count_round(&roots, &callees, depth, watcher)? {
                Attempt::Done(counts) => counts,
                Attempt::Changed(changed) => return Ok(Attempt::Changed(changed)),
            };
            rounds += 1;
            if depth == 0 {
                self.drop_idle(&mut roots, &counts)?;
            }
            search.counted(&counts);
            if self.is_over() {
                self.notes.push(format!("the process ended when calls {depth} deep were counted"));
                break;
            }
        }
        let (functions, counts) = search.finish();
        let seconds = self.wanted.time.as_secs_f64();
        self.notes.push(format!(
            "counted in {} of {seconds} s: {} reached from {}",
            counted(rounds, "round"),
            counted(functions.len() as u64, "function"),
            self.names(&roots)
        ));
        Ok(Attempt::Done(Closure { roots, functions, counts }))
    }

    /// Has copies that count in force for a while; how often blocks were executed.
    fn count_round(
        &mut self,
        roots: &[FunctionId],
        callees: &BTreeSet<FunctionId>,
        depth: usize,
        watcher: &mut dyn Watcher,
    ) -> Result<Attempt<Counts>, SessionError> {
        let (roots, callees) = (roots.to_vec(), callees.iter().copied().collect());
        let members = Members { roots, callees, order: Order::Kept, counts: true };
        watcher.phase("proving", None);
        let group = match self.enforcer.put_in_force(self.read, self.positioner, &members, watcher)? {
            Attempt::Done(group) => group,
            Attempt::Changed(changed) => return Ok(Attempt::Changed(changed)),
        };
        watcher.phase(&format!("counting, {depth} deep"), Some(self.wanted.time.as_secs_f64()));
        group.hold_until(Some(self.wanted.time), || self.is_over())?;
        let name = group.status.name.clone();
        let done = group.count()?;
        heed()?;
        if done.is_left {
            self.notes.push(format!(
                "{} slept in copies that count: group {name} stays loaded for them, with no calls led to it",
                counted(done.standing.into(), "task")
            ));
        }
        Ok(Attempt::Done(block_counts(&done.counts)))
    }

    /// Of the counted functions, makes the group.
    fn position(
        mut self,
        closure: Closure,
        watcher: &mut dyn Watcher,
    ) -> Result<Attempt<FoundGroup>, SessionError> {
        let Closure { mut roots, functions, counts } = closure;
        // In the last round another one may not have been called.
        self.drop_idle(&mut roots, &counts)?;
        let threshold = self.threshold(&roots, &counts);
        let bottleneck = Bottleneck::of(self.hot_code(&functions, &counts, threshold));
        self.notes.push(bottleneck.in_words());
        if bottleneck.pressure() < self.wanted.least_pressure {
            return Ok(Attempt::Done(FoundGroup { group: None, notes: self.notes }));
        }
        let callees = functions.into_iter().filter(|id| !roots.contains(id)).collect();
        let order = Order::Counted { counts, percent: self.wanted.percent };
        let members = Members { roots, callees, order, counts: false };
        watcher.phase("proving", None);
        Ok(match self.enforcer.put_in_force(self.read, self.positioner, &members, watcher)? {
            Attempt::Done(group) => Attempt::Done(FoundGroup { group: Some(group), notes: self.notes }),
            Attempt::Changed(changed) => Attempt::Changed(changed),
        })
    }

    /// Roots that nobody has called cannot have an order.
    fn drop_idle(&mut self, roots: &mut Vec<FunctionId>, counts: &Counts) -> Result<(), SessionError> {
        let is_called = |id: &FunctionId| counts.at(self.read.start(*id)) > 0;
        let (called, idle): (Vec<_>, Vec<_>) = roots.iter().copied().partition(is_called);
        if called.is_empty() {
            return Err(PositionError::NeverCalled(self.names(roots)).into());
        }
        if !idle.is_empty() {
            self.notes.push(format!("left out, as nobody called them: {}", self.names(&idle)));
        }
        *roots = called;
        Ok(())
    }

    fn movable(&self, level: &[FunctionId]) -> Vec<FunctionId> {
        let kernel = &self.read.kernel;
        level.iter().copied().filter(|id| kernel.reasons(*id, &kernel.code(*id)).is_empty()).collect()
    }

    /// Blocks that were executed more often are hot.
    fn threshold(&self, roots: &[FunctionId], counts: &Counts) -> u64 {
        let least = roots.iter().map(|id| counts.at(self.read.start(*id))).min().unwrap_or(0);
        least.saturating_mul(self.wanted.percent) / 100
    }

    /// Where the hot blocks are.
    fn hot_code(
        &self,
        functions: &[FunctionId],
        counts: &Counts,
        threshold: u64,
    ) -> Vec<std::ops::Range<u64>> {
        let blocks = functions.iter().flat_map(|id| self.read.kernel.code(*id).blocks);
        let hot = blocks.filter(|block| counts.at(block.range.start) > threshold);
        hot.map(|block| block.range.start.get()..block.range.end.get()).collect()
    }

    fn is_over(&self) -> bool {
        self.wanted.pid.is_some_and(has_ended)
    }

    fn names(&self, functions: &[FunctionId]) -> String {
        let names = functions.iter().map(|id| self.read.kernel.functions.get(*id).name.as_str());
        names.collect::<Vec<_>>().join(", ")
    }
}

/// How often the blocks were executed.
fn block_counts(counted: &[FunctionCounts]) -> Counts {
    let blocks = counted.iter().flat_map(|function| &function.blocks);
    blocks.map(|block| (block.range.start, block.count)).collect::<Vec<(Svma, u64)>>().into_iter().collect()
}

/// The hottest functions that calls can be led from, by samples; as addresses.
fn hottest(
    most: usize,
    wanted: &FoundGroupWanted,
    watcher: &mut dyn Watcher,
) -> Result<Vec<String>, SessionError> {
    watcher.phase("sampling", Some(wanted.time.as_secs_f64()));
    let mut sampling = KernelSampling::begin(wanted.pid)?;
    while sampling.elapsed() < wanted.time && !sampling.is_over() {
        sampling.step(wanted.time.saturating_sub(sampling.elapsed()));
    }
    heed()?;
    let samples = sampling.finish()?;
    watcher.phase("analysing", None);
    let source = restitch_kernel::Source::running();
    let read = ReadKernel::read(&source)?;
    let sampled = samples.sampled(&read.kernel.functions);
    let can_be_root = |id: FunctionId| {
        let code = read.kernel.code(id);
        read.kernel.reasons(id, &code).is_empty() && read.kernel.is_traceable(id, &code)
    };
    let hottest = sampled.hottest(1.0).into_iter().map(|own| own.id).filter(|id| can_be_root(*id));
    let roots: Vec<String> = hottest.take(most).map(|id| format!("{:#x}", read.start(id).get())).collect();
    if roots.is_empty() {
        return Err(PositionError::NeverCalled("a function that can be moved".into()).into());
    }
    Ok(roots)
}
