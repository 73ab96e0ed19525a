//! Which modules can be worked on.

use restitch_address::PAGE;
use restitch_apply::Why;
use restitch_apply_preload::place;
use restitch_image::Image;
use restitch_pipeline::PipelineError;
use restitch_pipeline::run_time_refusal::refuse_file;
use std::path::Path;

/// Why a module of this file name is left alone, whatever is in it.
pub(crate) fn left_by_name(path: &Path) -> Option<&'static str> {
    let name = path.file_name()?.to_string_lossy();
    let is_libc = name.starts_with("libc.so.") || name.starts_with("libc-2.");
    match () {
        () if name.starts_with("librestitch-") => Some("it is restitch's own"),
        () if is_libc => Some("it is the C library, which every process shares"),
        () => None,
    }
}

/// A module of these bytes, if it can be worked on.
///
/// # Errors
/// [`PipelineError::BadFile`] or [`PipelineError::RefusedFile`] with why it is left alone.
pub(crate) fn checked_module(path: &Path, bytes: Vec<u8>) -> Result<Image, PipelineError> {
    let bad = |why: Why| PipelineError::BadFile { path: path.into(), why };
    let image = Image::parse(bytes).map_err(|e| bad(e.into()))?;
    if let Some(why) = left_by_name(path) {
        return Err(bad(why.into()));
    }
    refuse_file(path, &image)?;
    if restitch_apply_elf::is_restitch_output(&image).is_some() {
        return Err(bad(restitch_apply_preload::OverlayError::Output.into()));
    }
    place(&image, PAGE, 0, PAGE).map_err(|e| bad(e.into()))?;
    Ok(image)
}
