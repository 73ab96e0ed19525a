//! Which addresses are within reach of a version that has no place yet.

use restitch_address::{Svma, SvmaRange};
use restitch_x86::encode;

/// The addresses that a version can have, before they are known.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Reach {
    pub range: SvmaRange,
}

impl Reach {
    /// Whether `target` is within a 32-bit displacement from everywhere in the version.
    pub fn covers(&self, target: Svma) -> bool {
        encode::fits_near(target.offset_from(self.range.start))
            && encode::fits_near(target.offset_from(self.range.end))
    }
}
