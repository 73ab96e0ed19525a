//! The repository's own rules. Each is a function from the files to what breaks it.

mod circles;
mod definitions;
mod dependencies;
mod documents;
mod elf_files;
mod errors;
mod gains;
mod instruction_set;
mod layers;
mod printing;
mod prose;
mod signatures;
mod sources;

pub use circles::circles;
pub use definitions::defining_modules;
pub use dependencies::{DIRECT, MORE, dependencies, unused_dependencies};
pub use documents::{
    crate_docs, linked_decisions, listed_crates, machine_paths, named_paths, named_tests, reasoned_rules,
};
pub use elf_files::elf_files;
pub use errors::kept_sources;
pub use gains::gains;
pub use instruction_set::{contract, instruction_set, named_places};
pub use layers::{LAYERS, layers};
pub use printing::printing;
pub use prose::{document_lengths, timeless_documents};
pub use signatures::tuple_parameters;
pub use sources::{comment_width, decoder, descriptor_names, length, no_io, page_size, threads, unsafe_code};

use crate::{Finding, Tree};

/// A rule.
pub type Rule = fn(&Tree) -> Vec<Finding>;

/// All rules with their names.
pub const RULES: [(&str, Rule); 30] = [
    ("unsafe_code", unsafe_code),
    ("decoder", decoder),
    ("instruction_set", instruction_set),
    ("elf_files", elf_files),
    ("contract", contract),
    ("named_places", named_places),
    ("page_size", page_size),
    ("tuple_parameters", tuple_parameters),
    ("kept_sources", kept_sources),
    ("descriptor_names", descriptor_names),
    ("threads", threads),
    ("no_io", no_io),
    ("length", length),
    ("comment_width", comment_width),
    ("layers", layers),
    ("defining_modules", defining_modules),
    ("circles", circles),
    ("named_paths", named_paths),
    ("named_tests", named_tests),
    ("machine_paths", machine_paths),
    ("document_lengths", document_lengths),
    ("timeless_documents", timeless_documents),
    ("linked_decisions", linked_decisions),
    ("reasoned_rules", reasoned_rules),
    ("gains", gains),
    ("crate_docs", crate_docs),
    ("listed_crates", listed_crates),
    ("printing", printing),
    ("dependencies", dependencies),
    ("unused_dependencies", unused_dependencies),
];

/// Files of tests alone, which are declared so elsewhere.
const TEST_FILES: [&str; 3] = ["/testing.rs", "/oracle_tests.rs", "/switch_faults.rs"];

/// Crates at the operating-system edge: the only ones with unsafe code.
pub const EDGE: [&str; 4] = ["perf", "preload", "procfs", "tracee"];

/// Crates that only compute: bytes in, values out.
pub const PURE: [&str; 16] = [
    "address",
    "branch-table",
    "cfi",
    "check",
    "emit",
    "evaluate",
    "image",
    "kernel-check",
    "kernel-group",
    "kernel-position",
    "lab",
    "layout",
    "profile",
    "profile-formats",
    "program",
    "x86",
];

/// Crates that may know the instruction set's decoder: the one that decodes for all, and the checkers, which
/// must not share code with what they check.
pub const DECODING: [&str; 3] = ["check", "kernel-check", "x86"];
