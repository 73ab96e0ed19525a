//! Sizes of pages.

/// Bytes of a large page (a page of the second level of x86-64).
pub const LARGE_PAGE: u64 = 2 << 20;
