//! Where the parts of a version stand: headers, hot code, cold code, jump tables, unwind tables.

use restitch_address::{PAGE, SvmaRange};
use restitch_program::TableId;

/// Room for the ELF header and three program headers, in bytes: a page of their own. Pages of code hold
/// nothing but code, so that whether one was touched tells whether it was executed (unwinders read headers
/// and tables at any time).
pub(crate) const HEADERS: u32 = PAGE as u32;

/// Where code and tables are, in offsets from the start of the version.
#[derive(Debug, Clone)]
pub(crate) struct Areas {
    /// End of the hot code.
    pub hot_end: u32,
    /// End of all code.
    pub text_end: u32,
    /// Start of the tables.
    pub tables: u32,
    /// Start of the copy for each of [`copies`](crate::plan::Plan::copies); jumps through one table share one
    /// copy.
    pub copies: Vec<u32>,
    /// The copies themselves: start, and the longest of the tables that begin there.
    pub shared: Vec<(u32, TableId)>,
    /// End of the tables.
    pub tables_end: u32,
}

/// Where the unwind tables are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct UnwindAreas {
    pub lsda: SvmaRange,
    pub eh_frame_hdr: SvmaRange,
    pub eh_frame: SvmaRange,
}
