//! Programs that are not touched, because their run time looks return addresses or program counters up in
//! tables of its own.
//!
//! State equivalence says that a version differs from the original in program counters and return addresses
//! alone. A run time that walks stacks with its own tables (to collect garbage, to grow stacks) would find
//! addresses that are in none of them. libgcc's tables are extended by the unwinder's hook; these cannot be.
//!
//! Which files are of such a kind says [`Image::run_time`]; the analysis leaves all of their code in place,
//! whoever asks for it. Here is what the user is told, before anything is done.

use crate::error::PipelineError;
use restitch_image::{Image, RunTime};
use std::path::Path;

/// What there is for such programs instead.
fn instead(found: RunTime) -> &'static str {
    match found {
        RunTime::CallGraph => {
            "`record --source trace` and `--source ip` profile it as it is; what is to be fast is built without -pg"
        }
        RunTime::Go => {
            "`record --source trace` and `--source ip` with `-o FILE.perf.data` keep what it executes for `perf report`; what makes it faster is its own compiler's to do"
        }
        _ => {
            "`record --source trace` and `--source ip` profile it as it is; what makes it faster is its own compiler's to do"
        }
    }
}

/// Refuses a file of which a changed copy is to be written.
///
/// # Errors
/// [`PipelineError::RefusedFile`] if its run time would not know the copies.
pub fn refuse_file(path: &Path, image: &Image) -> Result<(), PipelineError> {
    match run_time(image) {
        Some(why) => Err(PipelineError::RefusedFile {
            path: path.into(),
            why: format!("it {why}; no copy of it was made").into(),
        }),
        None => Ok(()),
    }
}

/// Why an image is not touched, in words that follow its name, and what else there is.
pub fn run_time(image: &Image) -> Option<String> {
    image.run_time().map(|found| format!("{}; {}", found.why(), instead(found)))
}
