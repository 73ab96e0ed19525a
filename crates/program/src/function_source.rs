//! Where functions come from: the one door for lists of them.
//!
//! **Problem.** What is analysed is a list of functions, and who has one depends on the module: unwind tables
//! have an entry for each function and each part that was split off; a symbol table has names and sizes; a
//! kernel has a list of symbols and one of its function tracer. **Idea**: a [`FunctionSource`] lists pieces
//! of code as it knows them, and what they have to be for the analysis (sorted, disjoint, executable) is made
//! of that here. Another source is another implementation.
//!
//! **Limits.** Code that no source lists is looked at only for where it branches to, and stays.

use restitch_address::SvmaRange;
use restitch_cfi::{FrameEntry, UnwindInfo};
use restitch_image::{Image, Symbol};

/// A function's code, or a part of it that stands elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FunctionRange {
    /// The code.
    pub range: SvmaRange,
    /// It is not known where in there functions begin and end: all of it stays.
    pub overlapping: bool,
}

/// A list of functions.
pub trait FunctionSource {
    /// All of them, in any order. What is empty or not executable is left out, and what overlaps is taken for
    /// one range of which not enough is known.
    fn functions(&self) -> Vec<FunctionRange>;

    /// What to tell a user of a module in which there are none.
    fn if_none(&self) -> &'static str;
}

/// By the entries of unwind tables, which compilers write for each function unless they are told not to.
impl FunctionSource for UnwindInfo {
    fn functions(&self) -> Vec<FunctionRange> {
        let function = |entry: &FrameEntry| FunctionRange { range: entry.range, overlapping: entry.disputed };
        self.entries().iter().map(function).collect()
    }

    fn if_none(&self) -> &'static str {
        "the file has no unwind table entries (.eh_frame), so its functions cannot be found; build it without \
         -fno-asynchronous-unwind-tables"
    }
}

/// By the symbol table: functions with a name and a size. Parts that were split off have symbols of their
/// own.
#[derive(Debug, Clone, Copy)]
pub struct SymbolFunctions<'a>(pub &'a Image);

impl FunctionSource for SymbolFunctions<'_> {
    fn functions(&self) -> Vec<FunctionRange> {
        let named = self.0.symbols_with_aliases().iter().filter(|symbol| symbol.is_function());
        let function = |symbol: &Symbol| FunctionRange { range: symbol.range, overlapping: false };
        let mut functions: Vec<FunctionRange> = named.map(function).collect();
        // Names of one function.
        functions.sort_by_key(|function| (function.range.start, function.range.end));
        functions.dedup();
        functions
    }

    fn if_none(&self) -> &'static str {
        "the file has no symbols of functions, so its functions cannot be found; take one that is not stripped"
    }
}

/// The functions of `source` that can be code of `image`: sorted, disjoint, in executable ranges. Those that
/// overlap are one range: which of them a byte belongs to is not known.
pub(crate) fn function_ranges(image: &Image, source: &dyn FunctionSource) -> Vec<FunctionRange> {
    let executable = image.executable_ranges();
    let is_code = |f: &FunctionRange| !f.range.is_empty() && executable.iter().any(|r| r.covers(&f.range));
    let mut functions = source.functions();
    functions.retain(is_code);
    functions.sort_by_key(|function| function.range.start);
    let mut out: Vec<FunctionRange> = Vec::with_capacity(functions.len());
    for function in functions {
        match out.last_mut().filter(|last| function.range.start < last.range.end) {
            Some(last) => {
                last.range.end = last.range.end.max(function.range.end);
                last.overlapping = true;
            }
            None => out.push(function),
        }
    }
    out
}
