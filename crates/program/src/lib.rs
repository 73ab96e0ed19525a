//! `Program`: the functions, basic blocks, edges and jump tables of one module.
//!
//! Stage two of the pipeline: made from an [`Image`](restitch_image::Image) and its unwind tables by
//! [`analyze`], never changed afterwards; functions and what unwinders know of them can come from elsewhere
//! ([`Sources`]). Everything is in canonical [`Svma`](restitch_address::Svma)
//! coordinates and in dense, sorted tables with typed indices.
//!
//! Invariants, held by [`Program::validate`] and its tests:
//! * functions are sorted by address and do not overlap;
//! * the blocks of a function tile its range without gap or overlap, and `blocks` is sorted by address;
//! * each edge ends at a block start; `edges` is sorted by source block;
//! * nothing here does I/O.
//!
//! What it may get wrong without harm, and what not: a leader too many costs nothing, because versions keep
//! every address equivalent. A leader too few matters in one place only, the bytes under an entry redirect.
//! So leaders are collected generously, and [`Function::redirectable`] is decided last.

mod address_set;
mod analyze;
mod changing;
mod doubt;
mod edges;
mod fit;
mod flag_use;
mod flags;
mod follow;
mod frame_doubt;
mod function_source;
mod iterate_by_shape;
mod known_labels;
mod leaders;
mod looks;
mod lookups;
mod model;
mod own_position;
mod personality;
mod reach;
mod return_address;
mod special;
mod stack_state;
mod stays;
mod sweep;
mod table_index;
mod tables;
mod text;
mod unknown_code;
mod validate;
mod words;

pub use analyze::{AnalyzeError, Exports, Sources, analyze, analyze_among, exports_that_look};
pub use edges::build_edges;
pub use fit::Fit;
pub use follow::{Uses, follow_address};
pub use function_source::{FunctionRange, FunctionSource, SymbolFunctions};
pub use lookups::{UnwinderLookups, main_range, unwinder_lookups};
pub use model::*;
pub use reach::reachable_code;
pub use restitch_x86::Condition;
pub use text::*;
