//! From a process or a file to a faster one: whole jobs.
//!
//! A command is a function, and has a file of its own: [`attach`] (and [`continuous`], which goes on with
//! it; `plan.rs` has its `--dry-run`), [`record`] (`follow.rs`: of a command and all that it executes),
//! [`instrument`], [`doctor`], [`lab`](lab()). Two files have two: [`status`](status()) and [`revert`] are in
//! `status.rs`, [`optimize`] and [`analyze_file`] in `files.rs`. The steps are in crates of their own: making
//! of checked versions ([`restitch_pipeline`]), processes, sampling and the verdict
//! ([`restitch_processes`]), branch records ([`restitch_recording`]).
//!
//! A session prints nothing. It tells its progress through [`Watcher`] and returns plain data
//! ([`restitch_report::RunResult`]) or a [`SessionError`], whose [`exit code`](SessionError::exit_code) is
//! documented in docs/usage/troubleshooting.md.

mod abandoned;
mod attach;
mod attach_job;
mod attach_options;
mod attach_profile;
mod attach_records;
mod attach_summary;
mod attach_verdict;
mod attach_versions;
mod bottleneck;
mod continuous;
mod counted_images;
mod doctor;
mod earlier_profiles;
mod far;
mod files;
mod follow;
mod given_profile;
mod instrument;
mod kernel_called;
mod kernel_count;
mod kernel_find;
mod kernel_found;
mod kernel_group;
mod kernel_in_force;
mod lab;
mod lab_options;
mod lab_runs;
mod left_out;
mod module_churn;
mod permutation_test;
mod plan;
mod profiling;
mod program_phases;
mod record;
mod retired_versions;
mod stable_locations;
mod status;

pub use abandoned::{Unfinished, await_end, give_back, give_back_abandoned, unfinished};
pub use attach::attach;
pub use attach_options::AttachOptions;
pub use attach_summary::calls_cut_short;
pub use continuous::{ContinuousOptions, continuous};
pub use doctor::{Check, Doctor, doctor};
pub use files::{AnalyzeFile, analyze_file, optimize};
pub use instrument::{InstrumentOptions, instrument};
pub use kernel_count::{KernelCounts, take_counts};
pub use kernel_find::{KernelSamples, KernelSampling};
pub use kernel_found::{FoundGroup, FoundGroupWanted, Roots, find_group};
pub use kernel_group::{GroupWanted, make_group};
pub use kernel_in_force::{GroupInForce, put_in_force};
pub use lab::{LayoutTimes, lab};
pub use lab_options::{LabOptions, LabRuns};
pub use record::{RecordOptions, RecordSubject, record};
pub use restitch_apply_process::RetargetedSlots;
pub use restitch_layout::{LayoutChoice, UnknownLayout, algorithms as layout_algorithms};
pub use restitch_pipeline::analysis::{Analyzed, analyze_image};
pub use restitch_pipeline::disk::{check_writable, read_file, write_result};
pub use restitch_pipeline::large_pages::LargePages;
pub use restitch_pipeline::machine::layout_choice;
pub use restitch_pipeline::optimize_options::OptimizeOptions;
pub use restitch_pipeline::version_options::VersionOptions;
pub use restitch_pipeline::{ExitCode, PipelineError, Quiet, Watcher, profiles, signal_name};
pub use restitch_processes::SessionError;
pub use restitch_processes::interrupt::{heed, or_interrupted};
pub use restitch_processes::judgement::{Judgement, Window};
pub use restitch_processes::process_family::cpu_time;
pub use restitch_processes::process_set::GivenBack;
pub use restitch_processes::source::{Source, SourceChoice};
pub use restitch_processes::start::begin_start;
pub use restitch_processes::verdict::{Metric, Windows};
pub use restitch_procfs::{executable_path, shows_own_namespace};
pub use restitch_recording::branch_result::{burst_end, known, refusal, sparse};
pub use restitch_recording::burst_record::{BurstRound, Bursts, record_bursts};
pub use restitch_recording::period::Period;
pub use restitch_recording::sampled_record::{Sampled, record_sampled};
pub use restitch_recording::trace_record::{
    Recording, TraceRecordOptions, TraceSubject, Traced, record_traced,
};
pub use restitch_trace::{BurstEnd, LookAhead, Refusal};
pub use restitch_tracee::{AskedToEnd, NotStarted, OwnChild, be_told_of_children, survive_file_limits};
pub use status::{
    KeptForCores, ProcessStatus, Reverted, VersionStatus, kept_for_cores, revert, sees_roots, status,
};
