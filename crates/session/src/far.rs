//! Programs of which no place is near all of their code: told before they have run for nothing.

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
    if file.is_err() || span(&beginning).is_none_or(|span| span <= REACH) {
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

/// From the first to the last loaded byte, by the beginning of an ELF64 file.
fn span(beginning: &[u8]) -> Option<u64> {
    const LOAD: u32 = 1;
    const HEADER: usize = 56;
    let number = |at: usize| Some(u64::from_le_bytes(beginning.get(at..at + 8)?.try_into().ok()?));
    let count = usize::from(u16::from_le_bytes(beginning.get(56..58)?.try_into().ok()?));
    let table = usize::try_from(number(32)?).ok()?;
    let headers = beginning.get(table..)?.chunks_exact(HEADER).take(count);
    let word = |h: &[u8], at: usize| h[at..at + 8].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
    let loads = headers.filter(|h| h[..4] == LOAD.to_le_bytes());
    let ranges = loads.map(|h| (word(h, 16), word(h, 16).saturating_add(word(h, 40))));
    let all = ranges.reduce(|all, one| (all.0.min(one.0), all.1.max(one.1)))?;
    beginning.starts_with(b"\x7fELF\x02\x01").then(|| all.1 - all.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_span_is_that_of_the_image() {
        let small = include_bytes!("../../check/tests/data/small.elf");
        let image = restitch_image::Image::parse(small.to_vec()).unwrap();
        assert_eq!(span(small), Some(image.span().len()));
        assert_eq!(span(&small[..60]), None);
        assert_eq!(span(b""), None);
        for (at, bits) in [(0, 1), (32, 0xff), (39, 0xff), (56, 0xff)] {
            let mut damaged = small.to_vec();
            damaged[at] ^= bits;
            let _ = span(&damaged);
        }
        assert!(refuse_far(OsStr::new("true")).is_ok() && refuse_far(OsStr::new("no-such-command")).is_ok());
    }
}
