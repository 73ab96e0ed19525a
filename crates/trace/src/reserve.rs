//! Descriptors that are left for the work itself: what threads and processes there are and what they have
//! mapped is read from files, and without that new ones would be missed without a word.

use crate::error::BranchTraceError;
use restitch_perf::raise_file_limit;
use std::fs::File;
use std::io;

/// So many are left. (A new process takes two for its memory and its maps, for a moment or for good.)
const LEFT: usize = 8;

/// Opens something for a thread, if there are descriptors enough afterwards.
///
/// # Errors
/// If not; what was opened is closed. Those of `open`.
pub(crate) fn leaving_some<T>(
    tid: i32,
    open: impl FnOnce() -> Result<T, BranchTraceError>,
) -> Result<T, BranchTraceError> {
    let opened = open()?;
    match some() {
        Ok(_) => Ok(opened),
        Err(source) => Err(BranchTraceError::NoFiles { tid, source }),
    }
}

/// So many descriptors, which are closed when it is dropped.
fn some() -> io::Result<Vec<File>> {
    take().or_else(|_| {
        raise_file_limit();
        take()
    })
}

fn take() -> io::Result<Vec<File>> {
    let first = File::open("/dev/null")?;
    (0..LEFT).map(|_| first.try_clone()).collect()
}
