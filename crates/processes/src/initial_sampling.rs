//! The initial sampling of a process: IP samples, the measurements before the change, and the analysis of the
//! modules beside them.
//!
//! Analysis takes as long as sampling has to, so both go on at once: as soon as a module has its share of the
//! samples, a thread of its own begins to analyse it. What is measured for the verdict ends before both:
//! samples are taken at the expense of the process, whose processor time they are part of, and the analysis
//! takes processor time that the process would have had.

use crate::error::SessionError;
use crate::interrupt::{heed, pause};
use crate::judgement::Window;
use crate::modules::{Analyses, may_be_changed, with_a_share};
use crate::process_set::ProcessSet;
use crate::sampling::{IpSamples, Sampling};
use crate::verdict::Windows;
use restitch_apply::Why;
use restitch_image::Image;
use restitch_pipeline::analysis::{Analyzed, analyze_image_among};
use restitch_pipeline::neighbours::Neighbours;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Too few samples to tell anything.
pub const LEAST_SAMPLES: u64 = 50;
/// Windows that are measured before sampling begins: as many give an interval of 95 %
/// (`restitch_report::stats`).
const BASELINE: usize = 6;
/// The analysis begins after this time at the earliest: samples come in bunches.
const HEAD_START: Duration = Duration::from_millis(200);
/// How long a step of the watch takes at most.
const STEP: Duration = Duration::from_millis(50);
/// Sampling may end when so much of the running time at most is in functions that have no sample yet.
const UNSEEN: f64 = 0.05;

/// How long to watch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// So long.
    Exactly(Duration),
    /// Until more of it would hardly change anything, within these bounds.
    UntilSettled {
        /// At least so long.
        least: Duration,
        /// At most so long.
        most: Duration,
    },
}

impl Length {
    /// The longest that it may take.
    pub fn most(self) -> Duration {
        match self {
            Self::Exactly(time) => time,
            Self::UntilSettled { most, .. } => most,
        }
    }

    /// Whether to end after `elapsed`, given a way to find out whether things have settled.
    pub fn is_over(self, elapsed: Duration, settled: impl FnOnce() -> bool) -> bool {
        match self {
            Self::Exactly(time) => elapsed >= time,
            Self::UntilSettled { least, most } => elapsed >= most || elapsed >= least && settled(),
        }
    }
}

/// What the initial sampling has given so far.
pub struct InitialSampling {
    /// Where the processes were.
    pub samples: IpSamples,
    /// Measurements before the change.
    pub before: Vec<Window>,
    analyst: Analyst,
}

impl Default for InitialSampling {
    fn default() -> Self {
        Self::new()
    }
}

impl InitialSampling {
    /// Nothing yet.
    pub fn new() -> Self {
        Self { samples: IpSamples::default(), before: Vec::new(), analyst: Analyst::new() }
    }

    /// Takes the measurements that are wanted and not there yet; then samples the processes of `set`, so
    /// long.
    pub fn watch(
        &mut self,
        set: &ProcessSet,
        length: Length,
        windows: &mut Windows,
    ) -> Result<(), SessionError> {
        windows.start();
        while self.needs_more(windows) && set.leader_is_alive() {
            pause(windows.until_next().min(STEP))?;
            windows.tick();
        }
        self.before.extend(windows.take());
        let mut sampling = Sampling::start(set)?;
        let began = Instant::now();
        while !length.is_over(began.elapsed(), || self.has_settled(set, sampling.samples())) {
            sampling.step(length.most().saturating_sub(began.elapsed()).min(STEP));
            if sampling.samples().total >= LEAST_SAMPLES && began.elapsed() >= HEAD_START {
                self.analyst.ask_for(set, sampling.samples());
            }
            heed()?;
            if !set.leader_is_alive() {
                break;
            }
        }
        self.samples.merge(sampling.finish()?);
        Ok(())
    }

    /// Whether more measurements before the change are wanted and to be had: windows without a value (no work
    /// was done in them) count as well, or it would take for ever. A metric that counts in steps is measured
    /// as long as after the change.
    fn needs_more(&self, windows: &Windows) -> bool {
        let missing = BASELINE.saturating_sub(self.before.len());
        windows.wants_more_than(missing) || windows.wants_more_steps(&self.before)
    }

    /// Whether all modules with a share of the samples are analysed, and more samples would hardly show
    /// functions that nobody knows of.
    fn has_settled(&mut self, set: &ProcessSet, new: &IpSamples) -> bool {
        self.analyst.take_in();
        let mut wanted = with_a_share(new).into_iter().filter(|i| may_be_changed(set, *i));
        new.total >= LEAST_SAMPLES
            && wanted.all(|i| self.analyst.done.contains_key(&i))
            && unseen(new, &self.analyst.done) <= UNSEEN
    }

    /// The samples, and the analyses that are there; whatever is still under way is waited for.
    pub fn finish(self) -> (IpSamples, Analyses) {
        (self.samples, self.analyst.finish())
    }
}

/// The share of the running time in functions without a sample, as the functions with exactly one tell (Good,
/// *The population frequencies of species*, 1953).
fn unseen(samples: &IpSamples, analyses: &Analyses) -> f64 {
    let (mut single, mut all) = (0, 0);
    for (module, addresses) in &samples.by_module {
        let Some(Ok(Analyzed { program, .. })) = analyses.get(module) else { continue };
        let mut functions: BTreeMap<_, u64> = BTreeMap::new();
        for (at, n) in addresses {
            *functions.entry(program.function_at(*at)).or_default() += n;
            all += n;
        }
        single += functions.values().filter(|n| **n == 1).count();
    }
    if all == 0 { 0.0 } else { single as f64 / all as f64 }
}

/// A thread that analyses modules, one after the other: the process needs the other processors.
struct Analyst {
    wanted: Sender<(usize, Arc<Image>, Neighbours)>,
    results: Receiver<(usize, Result<Analyzed, Why>)>,
    /// `None` where there may be no more threads.
    thread: Option<JoinHandle<()>>,
    asked: BTreeSet<usize>,
    done: Analyses,
}

impl Analyst {
    fn new() -> Self {
        let (wanted, queue) = channel::<(usize, Arc<Image>, Neighbours)>();
        let (sender, results) = channel();
        let work = move || {
            for (index, image, neighbours) in queue {
                // Nobody waits any more: the session has ended.
                if sender.send((index, analyze_image_among(image, &neighbours))).is_err() {
                    break;
                }
            }
        };
        let thread = std::thread::Builder::new().spawn(work).ok();
        Self { wanted, results, thread, asked: BTreeSet::new(), done: Analyses::new() }
    }

    /// Has the modules with a share of the samples analysed.
    fn ask_for(&mut self, set: &ProcessSet, samples: &IpSamples) {
        for index in with_a_share(samples) {
            if may_be_changed(set, index) && self.asked.insert(index) {
                let image = set.leader.target().modules[index].image.clone();
                // A thread that is gone gives no results: the module is analysed later.
                let _ = self.wanted.send((index, image, set.neighbours()));
            }
        }
    }

    fn take_in(&mut self) {
        self.done.extend(self.results.try_iter());
    }

    fn finish(mut self) -> Analyses {
        drop(self.wanted);
        self.done.extend(self.results.iter());
        if let Some(Err(panic)) = self.thread.map(JoinHandle::join) {
            std::panic::resume_unwind(panic);
        }
        self.done
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_watch_ends_when_things_have_settled_or_time_is_up() {
        let ms = Duration::from_millis;
        let length = Length::UntilSettled { least: ms(500), most: ms(2000) };
        let asked = std::cell::Cell::new(0);
        let settled = |answer: bool| {
            asked.set(asked.get() + 1);
            answer
        };
        assert!(!length.is_over(ms(400), || settled(true)) && asked.get() == 0);
        assert!(length.is_over(ms(500), || settled(true)));
        assert!(!length.is_over(ms(1900), || settled(false)));
        assert!(length.is_over(ms(2000), || settled(false)));
        assert_eq!(length.most(), ms(2000));
        let exactly = Length::Exactly(ms(300));
        assert!(!exactly.is_over(ms(299), || settled(true)) && exactly.is_over(ms(300), || settled(false)));
    }
}
