//! From a process or a file to a faster one: the stages put together.
//!
//! One file a command: [`attach`] (and [`continuous`], which goes on with it), [`record`], [`instrument`], [`optimize`], [`doctor`], [`status`], [`lab`](lab()); beneath them the steps that they share: analysis of
//! modules, sampling, selection of functions, making of checked versions, the verdict.
//!
//! A session prints nothing. It tells its progress through [`Watcher`] and returns plain data ([`restitch_report::RunResult`]) or
//! a [`SessionError`], whose [`exit code`](SessionError::exit_code) is documented in docs/usage/troubleshooting.md.

mod abandoned;
mod analysis;
mod attach;
mod attach_options;
mod attach_profile;
mod attach_records;
pub mod batch;
mod branch_records;
mod branch_result;
mod burst_members;
mod burst_record;
mod burst_scope;
mod burst_versions;
mod continuous;
mod counted_images;
mod derivation;
mod disk;
mod doctor;
mod earlier_profiles;
mod error;
mod far;
mod files;
mod follow;
mod given_profile;
mod hold;
mod imports;
mod initial_sampling;
mod instrument;
mod interrupt;
mod lab;
mod lab_options;
mod lab_runs;
mod large_pages;
mod left_out;
mod machine;
mod make;
mod module_churn;
mod modules;
mod optimize_options;
mod original;
mod parallel;
mod period;
mod permutation_test;
mod plan;
mod process_family;
mod process_set;
pub mod profiles;
mod profiling;
mod program_phases;
mod record;
mod recorded_builds;
mod refusal;
mod retired_versions;
mod run_time_refusal;
mod sampled_record;
mod sampler;
mod sampling;
mod selection;
mod source;
mod stable_locations;
mod start;
mod status;
mod summaries;
mod timings;
mod trace_record;
mod unfinished;
mod verdict;
mod version_options;

pub use abandoned::{await_end, give_back_abandoned};
pub use analysis::{Analyzed, analyze_image};
pub use attach::attach;
pub use attach_options::AttachOptions;
pub use branch_result::{burst_end, known, refusal, sparse};
pub use burst_record::{BurstRound, Bursts, record_bursts};
pub use continuous::{ContinuousOptions, continuous};
pub use disk::{check_writable, write_result};
pub use doctor::{Check, Doctor, doctor};
pub use error::{ExitCode, SessionError, signal_name};
pub use files::{AnalyzeFile, analyze_file, optimize};
pub use instrument::{InstrumentOptions, instrument};
pub use lab::{LayoutTimes, lab};
pub use lab_options::{LabOptions, LabRuns};
pub use large_pages::LargePages;
pub use machine::layout_choice;
pub use optimize_options::OptimizeOptions;
pub use period::Period;
pub use process_set::GivenBack;
pub use record::{RecordOptions, RecordSubject, record};
pub use restitch_apply_process::RetargetedSlots;
pub use restitch_layout::{LayoutChoice, UnknownLayout, algorithms as layout_algorithms};
pub use restitch_procfs::executable_path;
pub use restitch_trace::{BurstEnd, LookAhead, Refusal};
pub use restitch_tracee::{AskedToEnd, OwnChild};
pub use sampled_record::{Sampled, record_sampled};
pub use source::{Source, SourceChoice};
pub use status::{KeptForCores, ProcessStatus, Reverted, kept_for_cores, revert, status};
pub use trace_record::{Recording, TraceRecordOptions, TraceSubject, Traced, record_traced};
pub use verdict::{Judgement, Metric, Window, Windows};
pub use version_options::VersionOptions;

/// Hears what a session is doing, for progress bars.
pub trait Watcher {
    /// A phase begins; `seconds` is how long it will take, where that is known.
    fn phase(&mut self, name: &str, seconds: Option<f64>);
    /// Something worth a line.
    fn note(&mut self, text: &str);
}

/// A watcher that hears nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct Quiet;

impl Watcher for Quiet {
    fn phase(&mut self, _name: &str, _seconds: Option<f64>) {}
    fn note(&mut self, _text: &str) {}
}
