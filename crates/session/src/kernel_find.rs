//! Where the time of the running kernel goes, by samples: its hottest functions, and functions below which
//! much of the time is spent.

use restitch_address::Svma;
use restitch_kernel::{
    Functions, Kernel, KernelError, Knowledge, Places, Sampled, Sampling, Source, Symbols, TimeReport,
    release,
};
use restitch_perf::{IpSampler, PerfError, Record, SampleEvent, SampleOptions};
use restitch_processes::SessionError;
use restitch_procfs::has_ended;
use restitch_tracee::AskedToEnd;
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Between two looks at the rings.
const LOOK: Duration = Duration::from_millis(100);

/// Samples of the running kernel's code, being taken.
#[derive(Debug)]
pub struct KernelSampling {
    sampler: IpSampler,
    symbols: Symbols,
    pid: Option<i32>,
    begun: Instant,
    /// How often each stack was seen: where, and where its functions return to.
    stacks: HashMap<(Svma, Vec<Svma>), u64>,
    lost: u64,
}

/// Samples of the running kernel's code.
#[derive(Debug)]
pub struct KernelSamples {
    symbols: Symbols,
    stacks: HashMap<(Svma, Vec<Svma>), u64>,
    sampling: Sampling,
}

impl KernelSampling {
    /// Begins to sample what the kernel does: for all threads of a process, and those that it starts, or
    /// without one on the whole machine.
    ///
    /// # Errors
    /// If the kernel does not show its names or its samples to this user, or there is no such process.
    pub fn begin(pid: Option<i32>) -> Result<Self, SessionError> {
        let symbols = Symbols::read(&Source::running())?;
        let options = SampleOptions {
            exclude_kernel: false,
            exclude_user: true,
            kernel_stacks: true,
            tasks: false,
            ..SampleOptions::default()
        };
        let sampler = match pid {
            Some(pid) => IpSampler::open(&[pid], options),
            None => IpSampler::open_machine(options),
        };
        let sampler = sampler.map_err(PerfError::about_the_kernel)?;
        Ok(Self { sampler, symbols, pid, begun: Instant::now(), stacks: HashMap::new(), lost: 0 })
    }

    /// Goes on for a moment, at most for `time`.
    pub fn step(&mut self, time: Duration) {
        AskedToEnd::pause(time.min(LOOK));
        self.take();
    }

    /// Whether the process has ended, or this program is asked to end.
    pub fn is_over(&self) -> bool {
        self.pid.is_some_and(has_ended) || AskedToEnd::signal().is_some()
    }

    /// How long it has gone on.
    pub fn elapsed(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Ends it.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn finish(mut self) -> Result<KernelSamples, SessionError> {
        self.sampler.disable()?;
        let seconds = self.begun.elapsed().as_secs_f64();
        self.take();
        let event = match self.sampler.event() {
            SampleEvent::CpuClock => "the CPU clock",
            _ => "cycles",
        };
        let subject = self.pid.map(|pid| format!("process {pid}"));
        let (subject, lost) = (subject.unwrap_or_else(|| "the whole machine".into()), self.lost);
        let sampling = Sampling { release: release(&Source::running()), subject, event, seconds, lost };
        Ok(KernelSamples { symbols: self.symbols, stacks: self.stacks, sampling })
    }

    fn take(&mut self) {
        for record in self.sampler.drain() {
            match record {
                Record::Sample(sample) => {
                    let at = |at: restitch_address::Avma| Svma::new(at.get());
                    let callers = sample.callers.iter().copied().map(at).collect();
                    *self.stacks.entry((at(sample.ip), callers)).or_default() += 1;
                }
                Record::Lost { count } => self.lost += count,
                _ => {}
            }
        }
    }
}

impl KernelSamples {
    /// Where the time went: functions in or below which at least `share` of it is spent, and the hottest
    /// ones. Where the kernel's memory cannot be read, it does not say which can be moved.
    ///
    /// # Errors
    /// If not even names say where functions are.
    pub fn report(self, share: f64) -> Result<TimeReport, SessionError> {
        match Kernel::read(&Source::running()) {
            Ok(kernel) => {
                let sampled = self.sampled(&kernel.functions);
                Ok(TimeReport::of(self.sampling, &sampled, Knowledge::Kernel(&kernel), share))
            }
            Err(error) => self.report_by_names(&error, share),
        }
    }

    fn report_by_names(self, error: &KernelError, share: f64) -> Result<TimeReport, SessionError> {
        let places = Places::find(&self.symbols);
        let places = places.ok_or_else(|| KernelError::Missing { what: "names for its text".into() })?;
        let functions = Functions::find(&self.symbols, &places, |_, _| false);
        let sampled = self.sampled(&functions);
        let why = format!("{error} (restitch kernel doctor says what would allow more)");
        Ok(TimeReport::of(self.sampling, &sampled, Knowledge::Names(&functions, &why), share))
    }

    /// The samples by functions.
    fn sampled(&self, functions: &Functions) -> Sampled {
        let mut sampled = Sampled::default();
        for ((at, callers), times) in &self.stacks {
            (0..*times).for_each(|_| sampled.add(functions, *at, callers));
        }
        sampled
    }
}
