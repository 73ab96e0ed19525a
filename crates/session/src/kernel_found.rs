//! A group that is found by counting: which functions belong to some roots, how often their blocks are
//! executed, whether that is more code than the processor keeps close by, and the group of the hot blocks.
//!
//! The walk is breadth-first over calls (Tamches and Miller, *Dynamic kernel code optimization*, section
//! 2.1.2): one group that counts after the other is in force, each with one level of callees more. They have
//! functions counted whoever calls them, and therefore all once more in the optimized group, into which only
//! the root leads (2.1.3). Here only roots lead into each group that counts, so the counts of the last one,
//! which has all functions of the walk, are those.
//!
//! What is called through pointers joins as well, where the function tracer has seen it for a second before:
//! how often such a call was made is counted, and parted as its targets were seen. So do static calls. These
//! functions are entered from elsewhere, too, and all their calls are led to the copies, and counted.
//!
//! Of the hottest functions, which the function tracer has named, there is one such group: it is known
//! beforehand who belongs to it.

use crate::bottleneck::Bottleneck;
use crate::kernel_called::CallTracing;
use crate::kernel_group::{Members, ReadKernel};
use crate::kernel_in_force::{Attempt, Enforcer, GroupInForce};
use restitch_address::Svma;
use restitch_kernel::{Called, FunctionId, KernelError};
use restitch_kernel_position::{
    Counts, FunctionCounts, Hot, Hottest, HowMany, IndirectCall, IndirectCallee, IndirectCalls, Order,
    PositionError, Positioner, Search, hot_above,
};
use restitch_pipeline::Watcher;
use restitch_processes::SessionError;
use restitch_processes::interrupt::heed;
use restitch_procfs::has_ended;
use restitch_report::counted;
use restitch_tracee::AskedToEnd;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// What is called is listed for so long at most: the tracer keeps the last calls anyway.
const TRACED: Duration = Duration::from_secs(1);
/// The tracer keeps the calls of some hundredths of a second where much is called. What a root calls may be
/// seldom among them, so they are taken so often.
const TAKES: u32 = 10;
/// Taking them may be slower than the calls were: that ends after so long.
const TAKEN: Duration = Duration::from_secs(5);
/// Functions that are called so seldom that all of them have the rest of all calls do not count as hot.
const CALLS_PER_MILLE: u64 = 999;
/// Between two looks whether the process has ended.
const LOOK: Duration = Duration::from_millis(100);

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
    /// Whether what is called through pointers and static calls stays where it is.
    pub is_direct_only: bool,
    /// Whether callees may stand in place of hot calls.
    pub inlines: bool,
    /// Below this pressure on the first-level caches there is no bottleneck, and nothing is put in force.
    pub least_pressure: f64,
}

/// Which functions are roots.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Roots {
    /// These: names, or addresses in them with 0x in front.
    Named(Vec<String>),
    /// Of the hottest ones, those that others call.
    Hottest(HowMany),
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
    let names = match &wanted.roots {
        Roots::Named(names) => &names[..],
        Roots::Hottest(_) => &[],
    };
    // Before calls are traced, which is in vain without a control module.
    let enforcer = Enforcer::begin(names)?;
    let (called, notes) = match wanted.roots {
        Roots::Named(_) if wanted.is_direct_only => (Called::default(), Vec::new()),
        Roots::Named(_) => called_if_possible(wanted, watcher)?,
        Roots::Hottest(_) => (called(wanted, 1, watcher)?, Vec::new()),
    };
    enforcer.while_it_changes(watcher, |read, watcher| {
        let first = match wanted.roots {
            Roots::Named(_) => Hottest { roots: read.functions(names)?, callees: Vec::new() },
            Roots::Hottest(_) => Hottest::of(&read.kernel, &called, CALLS_PER_MILLE),
        };
        if first.roots.is_empty() {
            return Err(PositionError::NeverCalled("a function that can be moved".into()).into());
        }
        let subject = read.subject()?;
        let positioner = Positioner::new(&subject)?;
        let calls = IndirectCalls::new(&read.kernel, &called);
        let notes = notes.clone();
        let mut walk = Walk { wanted, enforcer: &enforcer, read, positioner: &positioner, calls, notes };
        let closure = match walk.count(&first, watcher)? {
            Attempt::Done(closure) => closure,
            Attempt::Changed(changed) => return Ok(Attempt::Changed(changed)),
        };
        walk.position(closure, watcher)
    })
}

/// The same; nothing and a note if calls cannot be traced here.
fn called_if_possible(
    wanted: &FoundGroupWanted,
    watcher: &mut dyn Watcher,
) -> Result<(Called, Vec<String>), SessionError> {
    match called(wanted, TAKES, watcher) {
        Ok(called) => Ok((called, Vec::new())),
        Err(SessionError::Kernel(error @ KernelError::Tracer { .. })) => {
            let note = format!("what is called through pointers is not known, and stays: {error}");
            Ok((Called::default(), vec![note]))
        }
        Err(error) => Err(error),
    }
}

/// What is called while calls are traced, taken so many times.
fn called(wanted: &FoundGroupWanted, takes: u32, watcher: &mut dyn Watcher) -> Result<Called, SessionError> {
    let time = wanted.time.min(TRACED);
    watcher.phase("tracing calls", Some(time.as_secs_f64()));
    let tracing = CallTracing::begin(wanted.pid)?;
    let (begun, mut called) = (Instant::now(), Called::default());
    for _ in 0..takes {
        wait(wanted, time / takes);
        heed()?;
        called.extend(tracing.take()?);
        if begun.elapsed() > TAKEN {
            break;
        }
    }
    Ok(called)
}

/// Waits for a time, at most until the process ends or this program is asked to end.
fn wait(wanted: &FoundGroupWanted, time: Duration) {
    let begun = Instant::now();
    while begun.elapsed() < time && AskedToEnd::signal().is_none() && !wanted.pid.is_some_and(has_ended) {
        AskedToEnd::pause(time.saturating_sub(begun.elapsed()).min(LOOK));
    }
}

/// The roots of a walk, all that it has reached, and how often blocks were executed.
struct Closure {
    roots: Vec<FunctionId>,
    functions: Vec<FunctionId>,
    counts: Counts,
}

/// Functions whose copies are to count, so many calls deep.
struct Round<'c> {
    roots: &'c [FunctionId],
    callees: &'c BTreeSet<FunctionId>,
    indirect: &'c [IndirectCall],
    depth: usize,
}

/// A walk over the callees of roots.
struct Walk<'w> {
    wanted: &'w FoundGroupWanted,
    enforcer: &'w Enforcer,
    read: &'w ReadKernel<'w>,
    positioner: &'w Positioner<'w>,
    calls: IndirectCalls<'w>,
    notes: Vec<String>,
}

impl Walk<'_> {
    /// Counts level by level.
    fn count(
        &mut self,
        first: &Hottest,
        watcher: &mut dyn Watcher,
    ) -> Result<Attempt<Closure>, SessionError> {
        let mut roots = first.roots.clone();
        let mut search = Search::new(&self.read.kernel, &roots);
        search.seen(first.callees.iter().copied());
        let (mut callees, mut rounds, mut indirect) = (BTreeSet::new(), 0, Vec::new());
        while !search.level().is_empty() && self.wanted.depth.is_none_or(|most| search.depth() <= most) {
            let depth = search.depth();
            // A root that cannot be moved is refused by name; a callee just stays.
            let level = if depth == 0 { search.level().to_vec() } else { self.movable(search.level()) };
            if level.is_empty() {
                search.counted(&Counts::default());
                continue;
            }
            callees.extend(level.into_iter().filter(|id| !roots.contains(id)));
            let round = Round { roots: &roots, callees: &callees, indirect: &indirect, depth };
            let counts = match self.count_round(&round, watcher)? {
                Attempt::Done(counts) => counts,
                Attempt::Changed(changed) => return Ok(Attempt::Changed(changed)),
            };
            rounds += 1;
            if depth == 0 {
                self.drop_idle(&mut roots, &counts)?;
            }
            search.counted(&counts);
            indirect = self.indirect(&roots, callees.iter().copied(), &counts);
            let led = indirect.iter().filter_map(IndirectCall::function);
            search.seen(led.filter(|id| self.read.can_be_led(*id)));
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
            self.names_of_some(&roots)
        ));
        Ok(Attempt::Done(Closure { roots, functions, counts }))
    }

    /// Has copies that count in force for a while; how often blocks were executed.
    fn count_round(
        &mut self,
        round: &Round<'_>,
        watcher: &mut dyn Watcher,
    ) -> Result<Attempt<Counts>, SessionError> {
        let (roots, callees) = (round.roots.to_vec(), round.callees.iter().copied().collect());
        let (indirect, depth) = (round.indirect.to_vec(), round.depth);
        let (order, counts, inlines) = (Order::Kept, true, false);
        let members = Members { roots, callees, indirect, order, counts, inlines };
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

    /// What functions that were counted have called through pointers and static calls, as often as makes a
    /// block hot. Of the hottest ones it is known which are entered like that.
    fn indirect(
        &self,
        roots: &[FunctionId],
        others: impl Iterator<Item = FunctionId>,
        counts: &Counts,
    ) -> Vec<IndirectCall> {
        if self.wanted.is_direct_only || matches!(self.wanted.roots, Roots::Hottest(_)) {
            return Vec::new();
        }
        let functions: BTreeSet<FunctionId> = roots.iter().copied().chain(others).collect();
        self.calls.of(functions, counts, self.share_of_calls(roots, counts))
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
        let functions = self.hottest_of(functions, &counts);
        roots.retain(|id| functions.contains(id));
        let threshold = self.threshold(&roots, &functions, &counts);
        let bottleneck = Bottleneck::of(self.hot_code(&functions, &counts, threshold));
        self.notes.push(bottleneck.in_words());
        if bottleneck.pressure() < self.wanted.least_pressure {
            return Ok(Attempt::Done(FoundGroup { group: None, notes: self.notes }));
        }
        let indirect = self.indirect(&roots, functions.iter().copied(), &counts);
        self.note_indirect(&indirect, &counts);
        let callees = functions.into_iter().filter(|id| !roots.contains(id)).collect();
        let order = Order::Counted { counts, hot: Hot::Above(threshold) };
        let (counts, inlines) = (false, self.wanted.inlines);
        let members = Members { roots, callees, indirect, order, counts, inlines };
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

    /// Those that can be copied.
    fn movable(&self, level: &[FunctionId]) -> Vec<FunctionId> {
        let kernel = &self.read.kernel;
        level.iter().copied().filter(|id| kernel.reasons(*id, &kernel.code(*id)).is_empty()).collect()
    }

    /// Of all that were counted, those that are asked for.
    fn hottest_of(&self, functions: Vec<FunctionId>, counts: &Counts) -> Vec<FunctionId> {
        let Roots::Hottest(how_many) = self.wanted.roots else { return functions };
        how_many.of(&self.read.kernel, &functions, counts)
    }

    /// Blocks that were executed more often are hot.
    fn threshold(&self, roots: &[FunctionId], functions: &[FunctionId], counts: &Counts) -> u64 {
        if let Roots::Hottest(_) = self.wanted.roots {
            return hot_above(&self.read.kernel, functions, counts);
        }
        self.share_of_calls(roots, counts)
    }

    /// The wanted share of the calls of the root that was called least.
    fn share_of_calls(&self, roots: &[FunctionId], counts: &Counts) -> u64 {
        let least = roots.iter().map(|id| counts.at(self.read.start(*id))).min().unwrap_or(0);
        least.saturating_mul(self.wanted.percent) / 100
    }

    /// Says what joined since pointers and static calls lead to it, and where that is not known.
    fn note_indirect(&mut self, indirect: &[IndirectCall], counts: &Counts) {
        let led: BTreeSet<FunctionId> = indirect.iter().filter_map(IndirectCall::function).collect();
        let is_called = |id: &FunctionId| counts.at(self.read.start(*id)) > 0;
        let led = led.into_iter().filter(|id| is_called(id) && self.read.can_be_led(*id));
        let led: Vec<FunctionId> = led.collect();
        if !led.is_empty() {
            let number = counted(led.len() as u64, "function");
            let names = self.names_of_some(&led);
            self.notes.push(format!("called through pointers and static calls: {number}, {names}"));
        }
        let unseen = indirect.iter().filter(|call| call.callee == IndirectCallee::Unseen).count();
        if unseen > 0 {
            let number = counted(unseen as u64, "hot call");
            self.notes.push(format!("{number} through pointers: what they lead to was not seen"));
        }
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

    /// The names of the first ones, and how many others there are.
    fn names_of_some(&self, functions: &[FunctionId]) -> String {
        /// So many names are a sentence.
        const MOST: usize = 8;
        match functions.get(..MOST) {
            Some(first) if first.len() < functions.len() => {
                format!("{} and {}", self.names(first), counted((functions.len() - MOST) as u64, "other"))
            }
            _ => self.names(functions),
        }
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
