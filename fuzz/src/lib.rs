//! Fuzz targets: whatever the bytes are, nothing panics, and what is accepted keeps the invariants.
//!
//! **What you do**: `cargo test -p restitch-fuzz` runs each target for about a second on inputs that
//! [`havoc`] makes of the [`seeds`](seeds::seeds), the same ones every time. To search for longer,
//! coverage-guided, with cargo-fuzz:
//!
//! ```text
//! cargo run -p restitch-fuzz --bin seeds -- fuzz/corpus
//! cargo +nightly fuzz run --features libfuzzer program_code fuzz/corpus/program_code
//! ```
//!
//! **What it does**: [`TARGETS`] names them all. Readers are given damaged files; `program_code` goes from a
//! program with damaged instructions through layout, emission and a new file, and demands that the checker
//! agrees with the emitter about whatever the analysis has accepted. **What it will not do**: run what it
//! makes.

pub mod batch_files;
pub mod foreign_profiles;
pub mod group_modules;
pub mod havoc;
pub mod kernels;
mod programs;
pub mod seeds;
pub mod targets;

/// A fuzz target: panics if something is wrong.
pub type Target = fn(&[u8]);

/// All targets, by the names that cargo-fuzz knows them by.
pub const TARGETS: [(&str, Target); 26] = [
    ("image", targets::image),
    ("unwind_tables", targets::unwind_tables),
    ("exception_tables", targets::exception_tables),
    ("program_file", targets::program_file),
    ("program_code", targets::program_code),
    ("output_file", targets::output_file),
    ("journal", restitch_apply_process::testing::journal),
    ("record", restitch_apply_process::testing::record),
    ("map_file", restitch_apply_process::testing::map_file),
    ("profile_store", targets::profile_store),
    ("perf_data", targets::perf_data),
    ("fdata", foreign_profiles::fdata),
    ("preaggregated", foreign_profiles::preaggregated),
    ("bolt_yaml", foreign_profiles::bolt_yaml),
    ("autofdo", foreign_profiles::autofdo),
    ("orders", foreign_profiles::orders),
    ("overlay", batch_files::overlay),
    ("known_file", batch_files::known_file),
    ("batch_notes", batch_files::batch_notes),
    ("batch_counts", batch_files::batch_counts),
    ("group_module", group_modules::group_module),
    ("program_text", targets::program_text),
    ("layout_and_profile_text", targets::layout_and_profile_text),
    ("kernel_core", kernels::kernel_core),
    ("kernel_symbols", kernels::kernel_symbols),
    ("kernel_lists", kernels::kernel_lists),
];
