//! Repository chores: the rules that no compiler checks ([`tidy`]), and running all tests
//! ([`test_programs`]).
//!
//! **You** run `cargo test -p xtask` (every rule is a test there) or `cargo run -p xtask -- tidy`, and
//! `scripts/test`. **This crate** reads the repository's files as text and reports what breaks a rule. **It
//! does not** change files, and it does not parse Rust: it looks at words outside comments and string
//! literals.

pub mod audit;
mod source;
pub mod test_programs;
pub mod tidy;
mod tree;

pub use source::{code_only, heads_behind};
pub use tree::{File, Finding, Tree, root};
