//! The original of a file that the user names.

use crate::analysis::{Analyzed, analyze_image};
use crate::disk::read_regular;
use crate::error::PipelineError;
use crate::run_time_refusal::refuse_file;
use restitch_apply::Why;
use restitch_apply_elf::ElfError;
use restitch_image::Image;
use std::path::Path;
use std::sync::Arc;

/// Reads and analyses a file; of an output of restitch, the original that it holds.
pub fn load_original(path: &Path) -> Result<Analyzed, PipelineError> {
    analyzed(path, image_of(path)?)
}

/// As [`load_original`], of a file whose code is laid out on trial.
///
/// # Errors
/// [`PipelineError::RefusedFile`], too, if its run time would not know the copy's code.
pub fn load_movable(path: &Path) -> Result<Analyzed, PipelineError> {
    let image = image_of(path)?;
    refuse_file(path, &image)?;
    analyzed(path, image)
}

/// As [`load_original`], of a file of which a changed copy is to be written.
///
/// # Errors
/// [`PipelineError::RefusedFile`], too, if a changed copy would not be the same program, as of one
/// whose code is writable, or its run time would not know the copy's code.
pub fn load_changeable(path: &Path) -> Result<Analyzed, PipelineError> {
    let image = image_of(path)?;
    refuse_file(path, &image)?;
    refuse_writable(path, &image)?;
    // Of an output of restitch, too: the original that it holds would come without them.
    match restitch_apply_elf::appended(&image) {
        Some(appended) => Err(PipelineError::of_elf(path, ElfError::Appended(appended))),
        None => analyzed(path, image),
    }
}

/// Refuses a file all of whose code stays, as the program may write to it.
fn refuse_writable(path: &Path, image: &Image) -> Result<(), PipelineError> {
    if !image.is_code_writable() {
        return Ok(());
    }
    let why = "its code is writable (a segment with the flags W and E), so the program may change it while it runs; no copy of it was made. Linked without -N (--omagic) and -z rwx it can be moved, if it does not write to its code";
    Err(PipelineError::RefusedFile { path: path.into(), why: why.into() })
}

/// The image in a file, which is not analysed.
///
/// # Errors
/// If the file cannot be read, or is no ELF file for this machine.
pub fn image_of(path: &Path) -> Result<Image, PipelineError> {
    Image::parse(read_regular(path)?).map_err(|e| PipelineError::BadFile { path: path.into(), why: e.into() })
}

/// Our own output is optimized from the coordinates of the original, which it contains.
fn analyzed(path: &Path, image: Image) -> Result<Analyzed, PipelineError> {
    let bad = |why: Why| PipelineError::BadFile { path: path.into(), why };
    let original = match restitch_apply_elf::is_restitch_output(&image) {
        Some(_) => {
            let bytes = restitch_apply_elf::original_bytes(&image).map_err(|e| bad(e.into()))?;
            Image::parse(bytes).map_err(|e| bad(e.into()))?
        }
        None => image,
    };
    analyze_image(Arc::new(original)).map_err(bad)
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_image::ImageError;
    use std::error::Error;

    #[test]
    fn what_is_wrong_with_a_file_is_kept_and_said() {
        let folder = restitch_testkit::scratch();
        let path = folder.path().join("no-elf");
        std::fs::write(&path, "#!/bin/sh\n").expect("writable");
        let error = image_of(&path).expect_err("no ELF file");
        let source = error.source().and_then(|source| source.downcast_ref::<ImageError>());
        let source = source.expect("the reader's own error");
        assert_eq!(error.to_string(), format!("{}: {source}", path.display()));
    }
}
