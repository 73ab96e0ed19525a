//! What is asked of the unwind tables at one place of the version.

use restitch_address::Svma;

/// Where an unwinder may take the row from that must hold, and how far `rsp` is lowered.
#[derive(Clone, Copy)]
pub(crate) struct RowAt {
    pub originals: [Option<Svma>; 2],
    pub lowered: u32,
}

impl RowAt {
    pub fn of(original: Svma) -> Self {
        Self { originals: [Some(original), None], lowered: 0 }
    }
}
