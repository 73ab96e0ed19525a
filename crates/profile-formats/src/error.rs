//! What can be wrong with a file of a profile format.

/// Why a profile file is not read or written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    /// A line of a text format is not in the format.
    #[error("reading {format}, line {line}: {what}; {next}")]
    Line {
        /// The format's name.
        format: &'static str,
        /// Line number, from 1.
        line: usize,
        /// What is wrong with it.
        what: String,
        /// What a right line looks like, or what to do.
        next: &'static str,
    },
    /// The whole is not in the format.
    #[error("reading {format}: {what}; {next}")]
    Content {
        /// The format's name.
        format: &'static str,
        /// What is wrong.
        what: String,
        /// What to do.
        next: &'static str,
    },
    /// The whole is not in the format's syntax.
    #[error("reading {format}: it is no YAML: {source}; {next}")]
    Yaml {
        /// The format's name.
        format: &'static str,
        /// What the reader of YAML says.
        source: yaml_rust2::ScanError,
        /// What to do.
        next: &'static str,
    },
    /// A format cannot hold what is wanted of it.
    #[error("{format} cannot be {direction}: {why}; {instead}")]
    Direction {
        /// The format's name.
        format: &'static str,
        /// `read as counts`, `written`, ...
        direction: &'static str,
        /// Why not.
        why: String,
        /// What to use instead.
        instead: &'static str,
    },
}
