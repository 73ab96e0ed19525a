//! Counting events over processes.

use crate::error::PerfError;
use crate::event::{self, Attributes, Event, bindings};
use crate::sampler::{open_failed, threads_of};
use std::io;

/// What is counted.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum CounterEvent {
    /// Nanoseconds on a CPU; works everywhere.
    TaskClock,
    /// CPU cycles.
    Cycles,
    /// Retired instructions.
    Instructions,
    /// Mispredicted branches.
    BranchMisses,
    /// Page faults; works everywhere.
    PageFaults,
    /// An event of the processor's own, in the encoding of `PERF_TYPE_RAW`.
    Raw(u64),
}

impl CounterEvent {
    fn attributes(self) -> Attributes {
        let hardware = |config: u32| event::attributes(bindings::PERF_TYPE_HARDWARE, config.into());
        let software = |config: u32| event::attributes(bindings::PERF_TYPE_SOFTWARE, config.into());
        match self {
            Self::TaskClock => software(bindings::PERF_COUNT_SW_TASK_CLOCK),
            Self::PageFaults => software(bindings::PERF_COUNT_SW_PAGE_FAULTS),
            Self::Cycles => hardware(bindings::PERF_COUNT_HW_CPU_CYCLES),
            Self::Instructions => hardware(bindings::PERF_COUNT_HW_INSTRUCTIONS),
            Self::BranchMisses => hardware(bindings::PERF_COUNT_HW_BRANCH_MISSES),
            Self::Raw(config) => event::attributes(bindings::PERF_TYPE_RAW, config),
        }
    }

    fn is_software(self) -> bool {
        matches!(self, Self::TaskClock | Self::PageFaults)
    }
}

/// Settings of counters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CounterOptions {
    /// Count threads and processes that are started later, too.
    pub inherit: bool,
    /// Count user code only (clocks count the kernel's part in any case).
    pub exclude_kernel: bool,
}

impl Default for CounterOptions {
    fn default() -> Self {
        Self { inherit: true, exclude_kernel: true }
    }
}

/// A count so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Reading {
    /// What was counted.
    pub event: CounterEvent,
    /// The count, as it is.
    pub value: u64,
    /// Nanoseconds that the threads ran while the counter was on.
    pub enabled: u64,
    /// Nanoseconds of these in which the hardware counted; less when several groups take turns.
    pub running: u64,
}

impl Reading {
    /// The count scaled up for the time in which the hardware was counting something else; `None` if it never
    /// counted although threads ran.
    pub fn scaled(&self) -> Option<f64> {
        match (self.running, self.enabled) {
            (0, 0) => Some(self.value as f64),
            (0, _) => None,
            (running, enabled) => Some(self.value as f64 * (enabled as f64 / running as f64)),
        }
    }

    /// What came since `earlier`, a reading of the same event.
    pub fn since(&self, earlier: &Self) -> Self {
        Self {
            event: self.event,
            value: self.value.saturating_sub(earlier.value),
            enabled: self.enabled.saturating_sub(earlier.enabled),
            running: self.running.saturating_sub(earlier.running),
        }
    }
}

/// Most events in one group: what AMD processors can count at once less one, which the kernel's watchdog may
/// hold.
const GROUP: usize = 5;

/// Counters over a set of processes, running until dropped.
#[derive(Debug)]
pub struct Counters {
    events: Vec<CounterEvent>,
    unavailable: Vec<(CounterEvent, PerfError)>,
    /// For each event (by position) its counters, one a thread.
    counters: Vec<Vec<Event>>,
}

impl Counters {
    /// Opens and starts counters for all present threads of `pids`. Hardware events are counted in groups of
    /// at most five, whose members count at the same times. Events that this machine does not have are left
    /// out and can be asked for with [`Counters::unavailable`]; if nothing is left, the task clock is
    /// counted.
    pub fn open(pids: &[i32], wanted: &[CounterEvent], options: CounterOptions) -> Result<Self, PerfError> {
        let threads = threads_of(pids)?;
        event::raise_file_limit();
        let mut events = Vec::new();
        let mut unavailable = Vec::new();
        for &event in wanted {
            match Event::open(&attributes(event, options), 0, -1, None) {
                Ok(_) => events.push(event),
                Err(error) => {
                    unavailable.push((event, PerfError::from_open(&format!("{event:?}"), error)));
                }
            }
        }
        if events.is_empty() {
            events.push(CounterEvent::TaskClock);
        }
        let counters = events.iter().map(|_| Vec::new()).collect();
        let mut opened = Self { events, unavailable, counters };
        for &tid in &threads {
            opened.open_thread(tid, threads.len(), options)?;
        }
        if opened.counters.iter().all(Vec::is_empty) {
            return Err(PerfError::NoProcess { pids: pids.to_vec() });
        }
        opened.enable()?;
        Ok(opened)
    }

    fn open_thread(&mut self, tid: i32, threads: usize, options: CounterOptions) -> Result<(), PerfError> {
        let needed = threads * self.events.len();
        for group in groups(&self.events) {
            let mut leader: Option<usize> = None;
            for index in group {
                let group = leader.and_then(|leader| self.counters[leader].last());
                let attributes = attributes(self.events[index], options);
                match Event::open(&attributes, tid, -1, group) {
                    Ok(event) => self.counters[index].push(event),
                    Err(error) => match open_failed(error, tid, threads, needed) {
                        Some(error) => return Err(error),
                        // The thread has ended: what was opened for it reads as zero.
                        None => return Ok(()),
                    },
                }
                leader.get_or_insert(index);
            }
        }
        Ok(())
    }

    fn each(&self, operation: &'static str, act: fn(&Event) -> io::Result<()>) -> Result<(), PerfError> {
        let mut all = self.counters.iter().flatten();
        all.try_for_each(act).map_err(|source| PerfError::Io { operation, source })
    }

    /// Starts (again).
    pub fn enable(&self) -> Result<(), PerfError> {
        self.each("starting", Event::enable)
    }

    /// Halts; the counts stay.
    pub fn disable(&self) -> Result<(), PerfError> {
        self.each("halting", Event::disable)
    }

    /// The events that are counted, in the order in which [`Counters::read`] gives them.
    pub fn events(&self) -> &[CounterEvent] {
        &self.events
    }

    /// The wanted events that are not counted, and why.
    pub fn unavailable(&self) -> &[(CounterEvent, PerfError)] {
        &self.unavailable
    }

    /// The sums over all threads, ended ones and inherited children included.
    pub fn read(&self) -> Result<Vec<Reading>, PerfError> {
        let sums = self.events.iter().zip(&self.counters).map(|(&event, counters)| {
            let mut sum = Reading { event, value: 0, enabled: 0, running: 0 };
            for counter in counters {
                let mut words = [0; 3];
                counter.read_words(&mut words)?;
                sum.value = sum.value.wrapping_add(words[0]);
                sum.enabled = sum.enabled.saturating_add(words[1]);
                sum.running = sum.running.saturating_add(words[2]);
            }
            Ok(sum)
        });
        let sums: io::Result<Vec<Reading>> = sums.collect();
        sums.map_err(|source| PerfError::Io { operation: "reading", source })
    }
}

fn attributes(event: CounterEvent, options: CounterOptions) -> Attributes {
    let mut attributes = event.attributes();
    attributes.read_format =
        (bindings::PERF_FORMAT_TOTAL_TIME_ENABLED | bindings::PERF_FORMAT_TOTAL_TIME_RUNNING).into();
    attributes.set_inherit(options.inherit.into());
    attributes.set_exclude_kernel(options.exclude_kernel.into());
    attributes
}

/// Positions of the events that count together. Software events need no hardware counter and stay alone.
fn groups(events: &[CounterEvent]) -> Vec<Vec<usize>> {
    let positions = 0..events.len();
    let (software, hardware): (Vec<usize>, Vec<usize>) =
        positions.partition(|&index| events[index].is_software());
    let alone = software.into_iter().map(|index| vec![index]);
    alone.chain(hardware.chunks(GROUP).map(<[usize]>::to_vec)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hardware_events_are_grouped_by_five() {
        let mut events = vec![CounterEvent::TaskClock];
        events.extend((0..7).map(CounterEvent::Raw));
        assert_eq!(groups(&events), [vec![0], vec![1, 2, 3, 4, 5], vec![6, 7]]);
        assert!(groups(&[]).is_empty());
    }

    #[test]
    fn multiplexed_counts_are_scaled() {
        let reading = Reading { event: CounterEvent::Cycles, value: 10, enabled: 300, running: 100 };
        assert_eq!(reading.scaled(), Some(30.0));
        assert_eq!(Reading { running: 0, ..reading }.scaled(), None);
        assert_eq!(Reading { running: 0, enabled: 0, value: 0, ..reading }.scaled(), Some(0.0));
        assert_eq!(reading.since(&Reading { value: 4, enabled: 100, running: 50, ..reading }).value, 6);
    }
}
