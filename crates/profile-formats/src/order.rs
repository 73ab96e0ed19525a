//! Symbol orders: a symbol a line, as `ld.lld --symbol-ordering-file`, `gold --section-ordering-file` (with
//! `.text.` in front) and Propeller's `ld_profile` want them. `#` begins a comment.

use crate::error::FormatError;
use crate::names::Names;
use restitch_program::{BlockId, Program};
use std::collections::HashSet;

/// The symbols of a file, in order.
///
/// # Errors
/// [`FormatError::Line`] for a line with more than one word.
pub fn read(text: &str) -> Result<Vec<String>, FormatError> {
    let mut order = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        if line.split_whitespace().count() > 1 || line.contains('\0') {
            return Err(FormatError::Line {
                format: "symbol order",
                line: number + 1,
                what: format!("\"{line}\" is not one symbol"),
                next: "write one symbol a line, as the linker knows it (mangled)",
            });
        }
        order.push(line.to_string());
    }
    Ok(order)
}

/// One symbol a line, each once.
pub fn write<'a>(order: impl IntoIterator<Item = &'a str>) -> String {
    let mut seen = HashSet::new();
    let first = |name: &&str| seen.insert(name.to_string());
    order.into_iter().filter(first).flat_map(|name| [name, "\n"]).collect()
}

/// The functions that `blocks` belong to, in the order in which they come first. Functions without a symbol
/// are left out: a linker cannot name them.
pub fn write_functions(program: &Program, blocks: &[BlockId], names: &Names) -> String {
    let starts = blocks.iter().map(|b| program.function(program.block(*b).function).range.start);
    write(starts.filter_map(|at| names.word_at(at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_is_read_and_written() {
        let order = read("# hot\nmain\n\nfoo # often\nmain\n").unwrap();
        assert_eq!(order, ["main", "foo", "main"]);
        assert_eq!(write(order.iter().map(String::as_str)), "main\nfoo\n");
        assert!(read("main\ntwo words\n").unwrap_err().to_string().contains("line 2"));
    }
}
