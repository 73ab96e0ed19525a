//! Sampling of instruction pointers.

use crate::error::PerfError;
use crate::event::{self, Attributes, Event, bindings};
use crate::pmu::{Pmu, with_branches};
use crate::record::{Record, RecordLayout};
use crate::ring::Ring;

use restitch_procfs::ProcError;
use std::io;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// What triggers samples.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum SampleEvent {
    /// Cycles where the hardware counts them, else the CPU clock.
    #[default]
    Auto,
    /// Hardware cycles.
    Cycles,
    /// The kernel's CPU clock: works everywhere, at most some thousand samples a second.
    CpuClock,
}

/// Settings of a sampler.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SampleOptions {
    /// Samples per second of CPU time of each thread; lowered to what `kernel.perf_event_max_sample_rate`
    /// permits.
    pub frequency: u64,
    /// What triggers samples.
    pub event: SampleEvent,
    /// Follow threads and processes that the sampled ones start.
    pub inherit: bool,
    /// User code only. Needed by ordinary users where `kernel.perf_event_paranoid` is 2.
    pub exclude_kernel: bool,
    /// Kernel code only, and not that of idle processors.
    pub exclude_user: bool,
    /// Take along where the kernel's functions return to ([`Sample::callers`](crate::Sample::callers)).
    pub kernel_stacks: bool,
    /// Take the hardware's branch records along (needs cycles).
    pub branch_stack: bool,
    /// Report programs, mappings, threads and ends beside the samples. Of two samplers of the same processes
    /// one is enough.
    pub tasks: bool,
    /// Report the processor time of each thread when it ends ([`Record::Time`]): of threads and processes
    /// that are started later only, and now and then of one of them not.
    pub times: bool,
    /// Size of each CPU's ring in 4 KiB pages, a power of two.
    pub ring_pages: usize,
}

impl Default for SampleOptions {
    fn default() -> Self {
        Self {
            frequency: 997,
            event: SampleEvent::Auto,
            inherit: true,
            exclude_kernel: true,
            exclude_user: false,
            kernel_stacks: false,
            branch_stack: false,
            tasks: true,
            times: false,
            ring_pages: 128,
        }
    }
}

impl SampleOptions {
    /// What its records have.
    fn layout(self) -> RecordLayout {
        RecordLayout { callers: self.kernel_stacks, branches: self.branch_stack }
    }
}

/// Samples a set of processes until it is dropped.
#[derive(Debug)]
pub struct IpSampler {
    /// All events; the first one of each CPU owns that CPU's ring.
    events: Vec<Event>,
    rings: Vec<(usize, Ring)>,
    layout: RecordLayout,
    event: SampleEvent,
}

impl IpSampler {
    /// Opens and starts sampling of all present threads of `pids`: one event for each thread and CPU (the
    /// kernel permits no ring for inherited events otherwise), one ring for each CPU.
    pub fn open(pids: &[i32], options: SampleOptions) -> Result<Self, PerfError> {
        let event = chosen(options.event);
        let threads = threads_of(pids)?;
        let cpus = online_cpus();
        event::raise_file_limit();
        let attributes = working_attributes(event, options)?;
        let layout = options.layout();
        let mut sampler = Self { events: Vec::new(), rings: Vec::new(), layout, event };
        for &cpu in &cpus {
            sampler.open_cpu(cpu, &threads, &attributes, options.ring_pages, cpus.len())?;
        }
        if sampler.events.is_empty() {
            return Err(PerfError::NoProcess { pids: pids.to_vec() });
        }
        sampler.enable()?;
        Ok(sampler)
    }

    /// The same for whatever runs on the machine, with the beginnings of threads and processes
    /// ([`Record::Fork`]) and of programs ([`Record::Exec`]), and no other records of tasks. Nothing is to be
    /// done when threads take turns, while an event of their own has its timer set each time. (A server that
    /// wakes for each request took 1.2 times its processor time with 50 samples a second of its own, and no
    /// more than before with as many of each processor: MariaDB under point-select, 14 rounds in a virtual
    /// machine, by a script that is not kept.)
    ///
    /// # Errors
    /// As for [`open`](Self::open); users without `CAP_PERFMON` need a `kernel.perf_event_paranoid` of 0 or
    /// less.
    pub fn open_machine(options: SampleOptions) -> Result<Self, PerfError> {
        const ALL: i32 = -1;
        let options = SampleOptions { inherit: false, tasks: false, times: false, ..options };
        let event = chosen(options.event);
        let cpus = online_cpus();
        event::raise_file_limit();
        let mut attributes = working_attributes(event, options)?;
        attributes.set_task(1);
        attributes.set_comm(1);
        attributes.set_comm_exec(1);
        let layout = options.layout();
        let mut sampler = Self { events: Vec::new(), rings: Vec::new(), layout, event };
        for &cpu in &cpus {
            sampler.open_cpu(cpu, &[ALL], &attributes, options.ring_pages, cpus.len())?;
        }
        if sampler.events.is_empty() {
            return Err(PerfError::NoProcess { pids: vec![ALL] });
        }
        sampler.enable()?;
        Ok(sampler)
    }

    fn open_cpu(
        &mut self,
        cpu: i32,
        threads: &[i32],
        attributes: &Attributes,
        pages: usize,
        cpus: usize,
    ) -> Result<(), PerfError> {
        let mut owner = None;
        for &tid in threads {
            let event = match Event::open(attributes, tid, cpu, None) {
                Ok(event) => event,
                Err(error) => match open_failed(error, tid, threads.len(), threads.len() * cpus) {
                    Some(error) => return Err(error),
                    None => continue,
                },
            };
            match owner {
                Some(owner) => {
                    let redirected = event.redirect_to(&self.events[owner]);
                    redirected.map_err(|source| PerfError::Io { operation: "sharing the ring", source })?;
                }
                None => {
                    let ring = Ring::map(&event, pages);
                    let ring =
                        ring.map_err(|source| PerfError::Io { operation: "mapping the ring", source })?;
                    owner = Some(self.events.len());
                    self.rings.push((self.events.len(), ring));
                }
            }
            self.events.push(event);
        }
        Ok(())
    }

    /// How many processors the machine has: those that [`open_machine`](Self::open_machine) looks at.
    pub fn processors() -> usize {
        online_cpus().len()
    }

    /// What triggers the samples: cycles or the CPU clock.
    pub fn event(&self) -> SampleEvent {
        self.event
    }

    /// Starts (again).
    pub fn enable(&self) -> Result<(), PerfError> {
        let mut events = self.events.iter();
        events.try_for_each(Event::enable).map_err(|source| PerfError::Io { operation: "starting", source })
    }

    /// Halts; what was sampled can still be drained.
    pub fn disable(&self) -> Result<(), PerfError> {
        let mut events = self.events.iter();
        events.try_for_each(Event::disable).map_err(|source| PerfError::Io { operation: "halting", source })
    }

    /// Takes all records that have come since the last time, ordered by time within this batch. Losses come
    /// first.
    pub fn drain(&mut self) -> Vec<Record> {
        let mut records = Vec::new();
        for (_, ring) in &self.rings {
            ring.drain(self.layout, &mut records);
        }
        records.sort_by_key(Record::time);
        records
    }

    /// Descriptors that can be read when a ring is a quarter full, one for each ring: for those who wait for
    /// other things as well. Being asked about makes them unreadable again, until the next quarter.
    ///
    /// # Errors
    /// If there may be no more descriptors.
    pub fn fullness(&self) -> io::Result<Vec<OwnedFd>> {
        self.rings.iter().map(|(owner, _)| self.events[*owner].duplicate()).collect()
    }

    /// Waits until a ring is a quarter full, all sampled threads have ended, or the time is up.
    pub fn wait(&self, limit: Duration) {
        let entry = |&(owner, _): &(usize, Ring)| libc::pollfd {
            fd: self.events[owner].raw(),
            events: libc::POLLIN,
            revents: 0,
        };
        let mut entries: Vec<libc::pollfd> = self.rings.iter().map(entry).collect();
        let milliseconds = i32::try_from(limit.as_millis()).unwrap_or(i32::MAX);
        // SAFETY: `entries` is a live, exclusively borrowed array of the stated length. An early return, for
        // a signal or otherwise, is harmless.
        unsafe { libc::poll(entries.as_mut_ptr(), entries.len() as libc::nfds_t, milliseconds) };
    }
}

/// What triggers samples here.
fn chosen(event: SampleEvent) -> SampleEvent {
    match event {
        SampleEvent::Auto if Pmu::probe().cycles.is_yes() => SampleEvent::Cycles,
        SampleEvent::Auto => SampleEvent::CpuClock,
        chosen => chosen,
    }
}

/// All present threads of the processes that still exist.
pub(crate) fn threads_of(pids: &[i32]) -> Result<Vec<i32>, PerfError> {
    let mut tids: Vec<i32> = Vec::new();
    for &pid in pids {
        match restitch_procfs::threads(pid) {
            Ok(threads) => tids.extend(threads.iter().map(|thread| thread.tid)),
            Err(restitch_procfs::ProcError::Gone { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    tids.sort_unstable();
    tids.dedup();
    match tids.is_empty() {
        true => Err(PerfError::NoProcess { pids: pids.to_vec() }),
        false => Ok(tids),
    }
}

/// Whether a thread has ended or is ending: what the kernel then refuses, it does not refuse for lack of
/// permission.
pub(crate) fn has_ended(tid: i32) -> bool {
    match restitch_procfs::thread_stat(tid, tid) {
        Ok(stat) => stat.state.is_ended() || stat.is_exiting,
        Err(error) => matches!(error, ProcError::Gone { .. }),
    }
}

/// The error for a failed opening, or `None` if the thread has ended or the CPU gone meanwhile.
pub(crate) fn open_failed(error: io::Error, tid: i32, threads: usize, needed: usize) -> Option<PerfError> {
    match error.raw_os_error() {
        Some(libc::ESRCH | libc::ENODEV) => None,
        Some(libc::EACCES | libc::EPERM) if tid > 0 && has_ended(tid) => None,
        Some(libc::EMFILE | libc::ENFILE) => Some(PerfError::TooManyFiles { threads, needed }),
        _ => Some(PerfError::from_open(&format!("thread {tid}"), error)),
    }
}

fn sampling_attributes(event: SampleEvent, options: SampleOptions) -> Attributes {
    let mut attributes = match event {
        SampleEvent::CpuClock => event::cpu_clock(),
        _ => event::cycles(),
    };
    attributes.set_freq(1);
    attributes.__bindgen_anon_1.sample_freq = options.frequency.clamp(1, max_sample_rate());
    attributes.sample_type =
        (bindings::PERF_SAMPLE_IP | bindings::PERF_SAMPLE_TID | bindings::PERF_SAMPLE_TIME).into();
    if options.kernel_stacks {
        attributes.sample_type |= u64::from(bindings::PERF_SAMPLE_CALLCHAIN);
        attributes.set_exclude_callchain_user(1);
    }
    attributes.set_exclude_kernel(options.exclude_kernel.into());
    attributes.set_exclude_user(options.exclude_user.into());
    attributes.set_exclude_idle(options.exclude_user.into());
    attributes.set_inherit(options.inherit.into());
    attributes.set_inherit_stat(options.times.into());
    let tasks = u64::from(options.tasks);
    attributes.set_mmap(tasks);
    attributes.__bindgen_anon_2.wakeup_watermark =
        u32::try_from(options.ring_pages.saturating_mul(1024)).unwrap_or(u32::MAX);
    attributes.set_watermark(1);
    // MMAP2 records, and thread and time behind every record.
    attributes.set_mmap2(tasks);
    attributes.set_sample_id_all(1);
    attributes.set_task(tasks);
    attributes.set_comm(tasks);
    attributes.set_comm_exec(tasks);
    if options.branch_stack { with_branches(attributes) } else { attributes }
}

/// Attributes with the most precise addresses that the hardware offers (`precise_ip`), tried on this thread.
fn working_attributes(event: SampleEvent, options: SampleOptions) -> Result<Attributes, PerfError> {
    let mut attributes = sampling_attributes(event, options);
    let levels: &[u64] = if event == SampleEvent::Cycles { &[2, 1, 0] } else { &[0] };
    let mut last = io::Error::from_raw_os_error(libc::ENOENT);
    for &level in levels {
        attributes.set_precise_ip(level);
        match Event::open(&attributes, 0, -1, None) {
            Ok(_) => return Ok(attributes),
            Err(error) => last = error,
        }
    }
    let object = match (event, options.branch_stack) {
        (SampleEvent::CpuClock, _) => "the CPU clock",
        (_, true) => "hardware branch records",
        (_, false) => "hardware cycles",
    };
    Err(PerfError::from_open(object, last))
}

/// Samples a second that the kernel permits (`kernel.perf_event_max_sample_rate`), at least 1.
pub fn max_sample_rate() -> u64 {
    let text = std::fs::read_to_string("/proc/sys/kernel/perf_event_max_sample_rate");
    text.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(10_000).max(1)
}

fn online_cpus() -> Vec<i32> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/online").unwrap_or_default();
    let cpus = parse_cpu_list(&text);
    match cpus.is_empty() {
        // Without sysfs: as many as this process may use, numbered from 0.
        true => (0..std::thread::available_parallelism().map_or(1, |n| n.get() as i32)).collect(),
        false => cpus,
    }
}

/// Parses a list such as `0-3,8`. Parts that are no numbers are skipped, numbers above 65535 are not
/// believed.
fn parse_cpu_list(text: &str) -> Vec<i32> {
    let number = |text: &str| text.trim().parse::<u16>().ok().map(i32::from);
    let part = |part: &str| match part.split_once('-') {
        Some((first, last)) => Some(number(first)?..=number(last)?),
        None => number(part).map(|cpu| cpu..=cpu),
    };
    text.split(',').filter_map(part).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_are_read() {
        assert_eq!(parse_cpu_list("0-1\n"), [0, 1]);
        assert_eq!(parse_cpu_list("0,2-4,9"), [0, 2, 3, 4, 9]);
        assert_eq!(parse_cpu_list("x,3-"), []);
        assert_eq!(parse_cpu_list("99999999999"), []);
    }
}
