//! Propeller's cluster file (`-fbasic-block-sections=list=FILE`): for each function the blocks of its hot
//! cluster, in order.
//!
//! ```text
//! v1                 !main
//! f main             !!0 2 5
//! c0 2 5
//! ```
//!
//! The right form is that of LLVM before 17. Blocks are the compiler's, by the ids that `.llvm_bb_addr_map`
//! gives them; so the program must have been compiled with `-fbasic-block-sections=labels` (later
//! `-fbasic-block-address-map`), and the file fits that compilation only. Cold blocks are not listed: the
//! compiler puts them into the function's cold section. A cluster file says nothing about the order of
//! functions; that is the symbol order.
//!
//! Map format: `llvm/docs/Extensions.rst`, "SHT_LLVM_BB_ADDR_MAP"; versions 0 (LLVM 12 to 14), 1 and 2
//! without optional features.

use crate::error::FormatError;
use crate::names::Names;
use restitch_address::Svma;
use restitch_image::Image;
use restitch_program::{BlockId, Program};
use std::collections::BTreeMap;

const FORMAT: &str = "Propeller cluster file";
const MAP_VERSION_0: u32 = 0x6fff_4c08;
const MAP_VERSIONED: u32 = 0x6fff_4c0a;

/// A machine block of the compiler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MachineBlock {
    id: u64,
    start: Svma,
    len: u64,
}

/// The blocks of a program by function, and whether ids are explicit (LLVM 16 and later).
#[derive(Debug, Clone, PartialEq, Eq, Default)]
struct AddressMap {
    functions: BTreeMap<Svma, Vec<MachineBlock>>,
    explicit_ids: bool,
}

/// The functions that a cluster file names, in order.
///
/// # Errors
/// [`FormatError::Line`] for the first line that is not in either form.
pub fn read_functions(text: &str) -> Result<Vec<String>, FormatError> {
    let mut functions = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        let wrong = || FormatError::Line {
            format: FORMAT,
            line: number + 1,
            what: format!("cannot read \"{line}\""),
            next: "a function is like \"f main\" and \"c0 2 5\" below \"v1\", or \"!main\" and \"!!0 2 5\"",
        };
        let ids =
            |list: &str| list.split_whitespace().all(|id| id.split('.').all(|n| n.parse::<u64>().is_ok()));
        if line.is_empty() || line.starts_with(['#', '@', 'm']) || line == "v0" || line == "v1" {
            continue;
        }
        if let Some(list) = line.strip_prefix("!!") {
            if !ids(list) || functions.is_empty() {
                return Err(wrong());
            }
        } else if let Some(names) = line.strip_prefix('!').or_else(|| line.strip_prefix("f ")) {
            let name = names.split(['/', ' ']).find(|n| !n.is_empty() && !n.starts_with("M="));
            functions.push(name.ok_or_else(wrong)?.to_string());
        } else if let Some(list) = line.strip_prefix(['c', 'p']) {
            if !ids(list) || functions.is_empty() {
                return Err(wrong());
            }
        } else {
            return Err(wrong());
        }
    }
    Ok(functions)
}

/// Writes one cluster a function: its entry, then its blocks in the order of `blocks`, the hot ones.
///
/// # Errors
/// [`FormatError::Direction`] if the program has no block address map, [`FormatError::Content`] if it has a
/// form that is not read.
pub fn write(
    image: &Image,
    program: &Program,
    blocks: &[BlockId],
    names: &Names,
) -> Result<String, FormatError> {
    let map = read_map(image)?;
    let mut order: Vec<Svma> = Vec::new();
    let mut clusters: BTreeMap<Svma, Vec<u64>> = BTreeMap::new();
    for &block in blocks {
        let at = program.block(block).start;
        let Some((function, machine)) = map.functions.range(..=at).next_back() else { continue };
        let holds = |m: &&MachineBlock| m.start <= at && at < m.start + m.len;
        let Some(found) = machine.iter().find(holds) else { continue };
        let cluster = clusters.entry(*function).or_insert_with(|| {
            order.push(*function);
            machine.first().map(|entry| entry.id).into_iter().collect()
        });
        if !cluster.contains(&found.id) {
            cluster.push(found.id);
        }
    }
    let mut out = String::from(if map.explicit_ids { "v1\n" } else { "" });
    for function in order {
        let Some(name) = names.word_at(function) else { continue };
        let list: Vec<String> = clusters[&function].iter().map(u64::to_string).collect();
        let (f, c) = if map.explicit_ids { ("f ", "c") } else { ("!", "!!") };
        out.push_str(&format!("{f}{name}\n{c}{}\n", list.join(" ")));
    }
    Ok(out)
}

fn read_map(image: &Image) -> Result<AddressMap, FormatError> {
    let section = image.sections().iter().find(|s| [MAP_VERSION_0, MAP_VERSIONED].contains(&s.kind));
    let Some(section) = section else {
        return Err(FormatError::Direction {
            format: FORMAT,
            direction: "written",
            why: "it names blocks by the compiler's ids, and this program has no .llvm_bb_addr_map section"
                .into(),
            instead: "compile with clang -fbasic-block-address-map (before LLVM 19: -fbasic-block-sections=labels), or write a symbol order",
        });
    };
    let start = section.file_offset.get() as usize;
    let bytes = start.checked_add(section.range.len() as usize).and_then(|end| image.data().get(start..end));
    let damaged = |what: &str| FormatError::Content {
        format: ".llvm_bb_addr_map",
        what: what.into(),
        next: "write a symbol order instead",
    };
    let mut reader = Reader { rest: bytes.ok_or_else(|| damaged("the section lies outside of the file"))? };
    let mut map = AddressMap::default();
    while !reader.rest.is_empty() {
        let read = reader.function(section.kind == MAP_VERSIONED, &mut map);
        read.ok_or_else(|| damaged("it is damaged, or has a version or features that are not read"))?;
    }
    Ok(map)
}

struct Reader<'a> {
    rest: &'a [u8],
}

impl Reader<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.rest.split_first()?;
        self.rest = rest;
        Some(*first)
    }

    fn uleb(&mut self) -> Option<u64> {
        let mut value = 0u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            value |= u64::from(byte & 0x7f).checked_shl(shift)?;
            if byte < 0x80 {
                return Some(value);
            }
        }
        None
    }

    fn function(&mut self, versioned: bool, map: &mut AddressMap) -> Option<()> {
        let version = if versioned { self.byte()? } else { 0 };
        if versioned && (self.byte()? != 0 || version > 2) {
            return None;
        }
        map.explicit_ids |= version >= 2;
        let (address, rest) = self.rest.split_first_chunk::<8>()?;
        self.rest = rest;
        let start = Svma::new(u64::from_le_bytes(*address));
        let count = self.uleb()?;
        let mut blocks = Vec::new();
        let mut end = start;
        for index in 0..count {
            let id = if version >= 2 { self.uleb()? } else { index };
            let offset = self.uleb()?;
            let len = self.uleb()?;
            let _metadata = self.uleb()?;
            let at = if version >= 1 { end } else { start } + offset;
            blocks.push(MachineBlock { id, start: at, len });
            end = at + len;
        }
        map.functions.insert(start, blocks);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_are_read() {
        assert_eq!(
            read_functions("v1\nm file.cc\nf main\nc0 1 2\nc3\nf foo bar\nc0\n").unwrap(),
            ["main", "foo"]
        );
        assert_eq!(read_functions("!main/alias\n!!0 1\n!!2\n!foo M=x.cc\n").unwrap(), ["main", "foo"]);
        for bad in ["v1\nc0 1\n", "f main\ncx\n", "hello\n", "!!0\n"] {
            assert!(read_functions(bad).unwrap_err().to_string().contains("c0 2 5"), "{bad}");
        }
    }

    #[test]
    fn maps_of_each_version_are_read() {
        let address = 0x1000u64.to_le_bytes();
        let old: Vec<u8> = address.iter().copied().chain([2, 0, 16, 0, 16, 8, 1]).collect();
        let with_ids: Vec<u8> =
            [2, 0].into_iter().chain(address).chain([2, 0, 0, 16, 0, 5, 4, 8, 1]).collect();
        for (versioned, bytes, ids, second) in
            [(false, old, [0, 1], 0x1010), (true, with_ids, [0, 5], 0x1014)]
        {
            let mut map = AddressMap::default();
            let mut reader = Reader { rest: &bytes };
            reader.function(versioned, &mut map).unwrap();
            let blocks = &map.functions[&Svma::new(0x1000)];
            assert_eq!(blocks.iter().map(|b| b.id).collect::<Vec<_>>(), ids);
            assert_eq!(blocks[1].start, Svma::new(second));
            for cut in 0..bytes.len() {
                let mut map = AddressMap::default();
                assert_eq!(Reader { rest: &bytes[..cut] }.function(versioned, &mut map), None);
            }
        }
    }
}
