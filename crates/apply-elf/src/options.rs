//! How an output file is written.

/// How the output is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OutputOptions {
    /// Moves the program header table into the new segment even if it has a header to spare. It is moved
    /// anyway where it has none and cannot grow. Tools that rewrite files (`strip`) may not understand a
    /// moved table.
    pub move_program_headers: bool,
    /// The version is to start at a multiple of [`LARGE_PAGE`](restitch_emit::LARGE_PAGE), in memory and in
    /// the file.
    pub large_pages: bool,
}
