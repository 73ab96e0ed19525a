//! What this machine and this user may measure.

use crate::error::{Circumstances, explain};
use crate::event::{self, Attributes, Event, bindings};
use restitch_address::Avma;
use std::fmt;

/// Whether something can be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Availability {
    /// It was tried and works.
    Yes,
    /// It does not work.
    No {
        /// Why.
        reason: String,
        /// What would make it work, usually a command.
        remedy: Option<String>,
    },
}

impl Availability {
    /// Whether it can be used.
    pub fn is_yes(&self) -> bool {
        *self == Self::Yes
    }
}

impl fmt::Display for Availability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Yes => write!(f, "yes"),
            Self::No { reason, remedy: Some(remedy) } => write!(f, "no: {reason}; {remedy}"),
            Self::No { reason, remedy: None } => write!(f, "no: {reason}"),
        }
    }
}

/// What a probe found.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PmuFacts {
    /// Sampling by hardware cycles.
    pub cycles: Availability,
    /// Hardware branch records (Intel LBR, AMD LbrExtV2) in samples.
    pub branch_stack: Availability,
    /// Breakpoints in debug registers.
    pub hardware_breakpoints: Availability,
    /// Sampling by the kernel's CPU clock.
    pub cpu_clock: Availability,
    /// `kernel.perf_event_paranoid`.
    pub paranoid: Option<i32>,
}

/// The machine's performance monitoring unit.
#[derive(Clone, Copy, Debug)]
pub struct Pmu;

impl Pmu {
    /// Tries each kind of event on the calling thread, without starting it. Takes well under a millisecond.
    pub fn probe() -> PmuFacts {
        let circumstances = Circumstances::now();
        let try_one = |attributes: Attributes| match Event::open(&attributes, 0, -1, None) {
            Ok(_) => Availability::Yes,
            Err(error) => {
                let refusal = explain(error.raw_os_error().unwrap_or(0), circumstances);
                Availability::No { reason: refusal.reason, remedy: refusal.remedy }
            }
        };
        let here = Avma::new(Self::probe as fn() -> PmuFacts as usize as u64);
        PmuFacts {
            cycles: try_one(sampling(event::cycles())),
            branch_stack: try_one(with_branches(sampling(event::cycles()))),
            hardware_breakpoints: try_one(event::execution_breakpoint(here)),
            cpu_clock: try_one(sampling(event::cpu_clock())),
            paranoid: circumstances.paranoid,
        }
    }
}

fn sampling(mut attributes: Attributes) -> Attributes {
    attributes.__bindgen_anon_1.sample_period = 1_000_000;
    attributes.sample_type = bindings::PERF_SAMPLE_IP.into();
    attributes
}

/// Adds branch records of user code to the samples.
pub(crate) fn with_branches(mut attributes: Attributes) -> Attributes {
    attributes.sample_type |= u64::from(bindings::PERF_SAMPLE_BRANCH_STACK);
    attributes.branch_sample_type =
        (bindings::PERF_SAMPLE_BRANCH_USER | bindings::PERF_SAMPLE_BRANCH_ANY).into();
    attributes
}
