//! The original of a file that the user names.

use crate::SessionError;
use crate::analysis::{Analyzed, analyze_image};
use crate::disk::read_file;
use restitch_image::Image;
use std::path::Path;
use std::sync::Arc;

/// Reads and analyses a file; of an output of restitch, the original that it holds.
pub(crate) fn load_original(path: &Path) -> Result<Analyzed, SessionError> {
    let bad = |why: String| SessionError::BadFile { path: path.into(), why };
    let mut bytes = read_file(path)?;
    let image = Image::parse(bytes.clone()).map_err(|e| bad(e.to_string()))?;
    // Our own output is optimized from the coordinates of the original, which it contains.
    if restitch_apply_elf::is_restitch_output(&image).is_some() {
        bytes = restitch_apply_elf::original_bytes(&image).map_err(|e| bad(e.to_string()))?;
    }
    let image = Image::parse(bytes).map_err(|e| bad(e.to_string()))?;
    analyze_image(Arc::new(image)).map_err(bad)
}
