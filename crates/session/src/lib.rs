//! From a process or a file to a faster one: the stages put together.
//!
//! One file a command: [`attach`] (and [`continuous`], which goes on with it), [`record`], [`instrument`],
//! [`optimize`], [`doctor`], [`status`], [`lab`](lab()); beneath them the steps that they share: analysis of
//! modules, sampling, selection of functions, making of checked versions, the verdict.
//!
//! A session prints nothing. It tells its progress through [`Watcher`] and returns plain data
//! ([`restitch_report::RunResult`]) or a [`SessionError`], whose [`exit code`](SessionError::exit_code) is
//! documented in docs/usage/troubleshooting.md.

mod abandoned;
mod attach;
mod attach_options;
mod attach_profile;
mod attach_records;
mod branch_records;
mod branch_result;
mod burst_members;
mod burst_record;
mod burst_scope;
mod burst_versions;
mod continuous;
mod counted_images;
mod doctor;
mod earlier_profiles;
mod error;
mod far;
mod files;
mod follow;
mod given_profile;
mod hold;
mod initial_sampling;
mod instrument;
mod interrupt;
mod lab;
mod lab_options;
mod lab_runs;
mod left_out;
mod module_churn;
mod modules;
mod period;
mod permutation_test;
mod plan;
mod process_family;
mod process_set;
mod profiling;
mod program_phases;
mod record;
mod refusal;
mod retired_versions;
mod sampled_record;
mod sampler;
mod sampling;
mod source;
mod stable_locations;
mod start;
mod status;
mod trace_record;
mod unfinished;
mod verdict;

pub use abandoned::{await_end, give_back_abandoned};
pub use attach::attach;
pub use attach_options::AttachOptions;
pub use branch_result::{burst_end, known, refusal, sparse};
pub use burst_record::{BurstRound, Bursts, record_bursts};
pub use continuous::{ContinuousOptions, continuous};
pub use doctor::{Check, Doctor, doctor};
pub use error::{SessionError, signal_name};
pub use files::{AnalyzeFile, analyze_file, optimize};
pub use instrument::{InstrumentOptions, instrument};
pub use lab::{LayoutTimes, lab};
pub use lab_options::{LabOptions, LabRuns};
pub use period::Period;
pub use process_set::GivenBack;
pub use record::{RecordOptions, RecordSubject, record};
pub use restitch_apply_process::RetargetedSlots;
pub use restitch_layout::{LayoutChoice, UnknownLayout, algorithms as layout_algorithms};
pub use restitch_pipeline::analysis::{Analyzed, analyze_image};
pub use restitch_pipeline::disk::{check_writable, write_result};
pub use restitch_pipeline::large_pages::LargePages;
pub use restitch_pipeline::machine::layout_choice;
pub use restitch_pipeline::optimize_options::OptimizeOptions;
pub use restitch_pipeline::version_options::VersionOptions;
pub use restitch_pipeline::{ExitCode, PipelineError, Quiet, Watcher, profiles};
pub use restitch_procfs::executable_path;
pub use restitch_trace::{BurstEnd, LookAhead, Refusal};
pub use restitch_tracee::{AskedToEnd, NotStarted, OwnChild};
pub use sampled_record::{Sampled, record_sampled};
pub use source::{Source, SourceChoice};
pub use status::{KeptForCores, ProcessStatus, Reverted, kept_for_cores, revert, status};
pub use trace_record::{Recording, TraceRecordOptions, TraceSubject, Traced, record_traced};
pub use verdict::{Judgement, Metric, Window, Windows};
