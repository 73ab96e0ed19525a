//! From a group to the file: the phases.

use crate::arrange::Arrangement;
use crate::code::CodeWriter;
use crate::container::{self, OwnSymbol};
use crate::error::GroupError;
use crate::facts::ModuleFacts;
use crate::group::{Block, Group, Heat};
use crate::section::{Kind, Sections};
use crate::{counters, descriptor, tables};
use restitch_address::Svma;
use restitch_x86::module_code::{DROP_RETURN_ADDRESS, FILL, SITE};

/// A group module.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// The module file.
    pub file: Vec<u8>,
    /// Bytes of its hot code.
    pub hot_len: u64,
    /// Bytes of its cold code.
    pub cold_len: u64,
    /// Where each block went.
    pub places: Vec<PlacedCode>,
}

/// Where a block went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacedCode {
    /// Where the original is.
    pub original: Svma,
    /// Index of its function.
    pub function: usize,
    /// How often it is executed.
    pub heat: Heat,
    /// Offset in the code of its heat.
    pub offset: u64,
    /// Bytes, the branches at its end included.
    pub len: u64,
}

/// Writes the module of a group, for the kernel that `facts` are of.
///
/// # Errors
/// What of the group cannot be written, and why.
pub fn write_module(group: &Group, facts: &ModuleFacts) -> Result<Written, GroupError> {
    let arrangement = Arrangement::of(group)?;
    let warnings = tables::warnings(&arrangement)?;
    let mut sections = Sections::new();
    counters::begin(group, &mut sections);
    let mut code =
        CodeWriter { group, facts, arrangement: &arrangement, warnings: &warnings, sections: &mut sections };
    code.write()?;
    for kind in [Kind::Hot, Kind::Cold] {
        // A call may be the last instruction; where it returns to is still in this section.
        sections.of(kind).fill(SITE as usize, FILL);
    }
    tables::write(&arrangement, &mut sections)?;
    descriptor::write(group, facts, &arrangement, &mut sections)?;
    let symbols = symbols(group, &arrangement, &sections);
    let file = container::file(&sections, &symbols, facts.structure_align)
        .map_err(|source| GroupError::Container { group: group.name.clone(), source })?;
    let len = |kind| sections.get(kind).len();
    Ok(Written { file, hot_len: len(Kind::Hot), cold_len: len(Kind::Cold), places: places(&arrangement) })
}

fn places(arrangement: &Arrangement<'_>) -> Vec<PlacedCode> {
    let blocks = |placed: &crate::arrange::PlacedChunk<'_>| {
        let (function, heat) = (placed.chunk.function, placed.chunk.heat);
        let copies = placed.blocks.iter().filter(|block| !Block::is_on_edge(block.block.address));
        let code = copies.map(|block| PlacedCode {
            original: block.block.address,
            function,
            heat,
            offset: block.at,
            len: block.end() - block.at,
        });
        code.collect::<Vec<_>>()
    };
    arrangement.chunks.iter().flat_map(blocks).collect()
}

/// A symbol for each chunk, so that stack traces, `perf` and the function tracer name the right function.
fn symbols(group: &Group, arrangement: &Arrangement<'_>, sections: &Sections) -> Vec<OwnSymbol> {
    let mut symbols = Vec::new();
    for chunk in &arrangement.chunks {
        let name = &group.functions[chunk.chunk.function].name;
        let section = chunk.section();
        if let Some(offset) = chunk.called_at() {
            let name = format!("{name}.restitch.called");
            symbols.push(OwnSymbol { name, section, offset, len: DROP_RETURN_ADDRESS.into() });
        }
        let cold = if chunk.chunk.heat == Heat::Cold { ".cold" } else { "" };
        let (name, offset) = (format!("{name}.restitch{cold}"), chunk.start());
        symbols.push(OwnSymbol { name, section, offset, len: chunk.end() - offset });
    }
    for (name, section) in [("init_module", Kind::Init), ("cleanup_module", Kind::Exit)] {
        let len = sections.get(section).len();
        symbols.push(OwnSymbol { name: name.into(), section, offset: 0, len });
    }
    symbols
}
