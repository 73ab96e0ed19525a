//! `perf_event_open(2)`: who runs where, and what it costs.
//!
//! **What it does**: [`Pmu::probe`] finds out what this machine and this user may measure, and says which
//! command would allow more; [`IpSampler`] samples instruction pointers (and, where the hardware has them,
//! branch records) of running processes and of the threads and children that they start; [`Counters`] counts
//! events over a set of processes; [`ThreadAlarm`] and [`ThreadBreakpoint`] interrupt one thread by a signal
//! that a tracer sees. Without a hardware PMU (most virtual machines) sampling falls back to the CPU clock
//! and counting to the task clock.
//!
//! **What the user must do**: drain a sampler often enough; what does not fit is counted in [`Record::Lost`].
//! Threads that start while [`IpSampler::open`] or [`Counters::open`] walks over a *running* process can be
//! missed; open while the process is stopped where every thread matters.
//!
//! **What it will not do**: change settings of the system, translate addresses, or stop anybody. The parser
//! of the ring's records ([`parse_record`]) is a pure function of bytes.

mod alarm_choice;
mod cost;
mod counters;
mod error;
mod event;
mod front_end;
mod pmu;
mod record;
mod ring;
mod sampler;
mod thread_event;

pub use alarm_choice::Vendor;
pub use cost::sample_cost;
pub use counters::{CounterEvent, CounterOptions, Counters, Reading};
pub use error::PerfError;
pub use event::raise_file_limit;
pub use front_end::front_end_events;
pub use pmu::{Availability, Pmu, PmuFacts};
pub use record::{Branch, Record, RecordLayout, Sample, parse_record};
pub use sampler::{IpSampler, SampleEvent, SampleOptions, max_sample_rate};
pub use thread_event::{AlarmEvent, ThreadAlarm, ThreadBreakpoint};
