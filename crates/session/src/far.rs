//! Programs of which no place is near all of their code: told before they have run for nothing.

use restitch_image::raw::stated_span;
use restitch_pipeline::PipelineError;
use restitch_pipeline::original::image_of;
use restitch_processes::SessionError;
use restitch_tracee::find_program;
use std::ffi::OsStr;
use std::io::Read;

/// Most bytes from the first to the last one that 32-bit displacements reach, with room for a small version.
const REACH: u64 = (1 << 31) - (2 << 20);

/// # Errors
/// [`PipelineError::RefusedFile`] if no version of the program that `command` names could be near its code.
/// Whatever else may be wrong with it is told when it is started.
pub(crate) fn refuse_far(command: &OsStr) -> Result<(), SessionError> {
    let Some(path) = find_program(command).filter(|path| path.is_file()) else { return Ok(()) };
    let mut beginning = Vec::new();
    let file = std::fs::File::open(&path).and_then(|f| f.take(4096).read_to_end(&mut beginning));
    // Program headers follow the file's own; reading all of a large file to find out that it is none of these
    // would take longer than many a run.
    if file.is_err() || stated_span(&beginning).is_none_or(|span| span <= REACH) {
        return Ok(());
    }
    match image_of(&path) {
        Ok(image) if image.span_within(REACH).is_none() => Err(SessionError::from(PipelineError::RefusedFile {
            path,
            why: "its code is more than 2 GiB apart, so that no new code could be near all of it; it was not started. Nothing can be done for it"
                .into(),
        })),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_near_or_no_program_is_left_alone() {
        assert!(refuse_far(OsStr::new("true")).is_ok() && refuse_far(OsStr::new("no-such-command")).is_ok());
    }
}
