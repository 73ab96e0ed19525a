//! What algorithms on graphs place, and what leads from one to another.

/// Something to be placed as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Node {
    /// Size in bytes.
    pub size: u64,
    /// Executed bytes: the sum over its blocks of count times length.
    pub weight: u64,
}

/// Transfers of control from one node to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arc {
    /// The calling node, by index.
    pub from: usize,
    /// The called node, by index.
    pub to: usize,
    /// How often.
    pub count: u64,
    /// Bytes from the start of the calling node to the call; for algorithms that look at distances.
    pub offset: u64,
}
