//! `Version`: the bytes of a new version of a module's hot code, and everything that is known about them.
//!
//! Stage five of the pipeline. **You** say what goes where in a [`Request`]; [`emit`] copies the blocks of a
//! [`Layout`](restitch_layout::Layout) as they are, byte for byte, apart from RIP-relative displacements
//! (which keep their absolute target), direct calls (which go to the callee's copy, if there is one), calls
//! and jumps through slots that are bound for good (which become direct), indirect calls that are promoted
//! (which get a comparison and a direct call in front) and direct branches (which change form only). The
//! result is a small ELF image with its own unwind tables, the map between its addresses and the original
//! ones, and the patches that lead into it.
//!
//! **It does not** do I/O, read processes or decide on an order. What cannot be copied stays where it is and
//! is listed in [`Version::skipped`]: a jump to the original code is always right. What it returns is not yet
//! trusted: `restitch-check` proves it equal to the `Program`.
//!
//! Invariants: same request, same bytes. At every instruction boundary but those in [`PieceKind::Opaque`]
//! pieces, the machine's state equals the one that the original code has at [`AddressMap::to_original`].

mod align;
mod areas;
mod burst;
mod counter_area;
mod counters;
mod direct;
mod elf;
mod ends;
mod entry;
mod error;
mod frames;
mod function_alignment;
mod lookup;
mod lsda;
mod map;
mod model;
mod page;
mod plan;
mod planner;
mod pointers;
mod possible_operands;
mod probes;
mod promote;
mod reach;
mod redirects;
mod relax;
mod request;
mod retarget_branches;
mod retarget_pointers;
mod select;
mod stretch;
mod table_copy;
mod tables;
mod target_value_profile;
mod text;
mod upper_bound;
pub mod window;

pub use burst::{BurstRequest, burst_bound, emit_burst, may_trace};
pub use counter_area::{CounterWidth, area_len, votes_offset};
pub use error::EmitError;
pub use model::*;
pub use page::LARGE_PAGE;
pub use pointers::Pointers;
pub use probes::copied_probes;
pub use request::{CounterRequest, Executions, Request};

use restitch_address::SvmaRange;

/// Makes the version that `request` asks for.
///
/// # Errors
/// If the request contradicts itself or the program: see [`EmitError`]. That a block cannot be copied is
/// none.
pub fn emit(request: &Request<'_>) -> Result<Version, EmitError> {
    emit_for(request, Executions::default())
}

/// As [`emit`], with what is free to choose chosen by how often code runs: where hot code stands within cache
/// lines (padding is at most a sixteenth of the hot code), and which way of a conditional branch needs no
/// jump where neither stands behind it.
///
/// # Errors
/// As [`emit`].
pub fn emit_for(request: &Request<'_>, executions: Executions<'_>) -> Result<Version, EmitError> {
    let mut selection = select::select(request)?;
    retarget_pointers::choose(request, &mut selection);
    let counters = counters::place(request, &selection)?;
    let mut plan = planner::build(request, &selection, &counters, executions.edges);
    relax::relax(&mut plan);
    if !executions.blocks.is_empty() {
        align::align(&mut plan, request.program, executions.blocks);
    }
    let areas = tables::areas(request, &plan);
    let mut bytes = text::write(request, &selection, &plan, &areas, &counters)?;
    tables::write(request, &selection, &plan, &areas, &mut bytes);
    let stretches = stretch::stretches(&plan);
    let unwind = frames::write(request, &selection, &plan, &stretches, &mut bytes)?;
    let symbols = stretch::symbols(request, &plan, &stretches);
    let large = if request.large_pages { u64::from(areas.hot_end).next_multiple_of(LARGE_PAGE) } else { 0 };
    bytes.resize(bytes.len().max(large as usize), 0);
    let map = map::build(request, &selection, &plan);
    let probes = probes::notes(request, &map);
    let loaded_len =
        elf::finish(&mut bytes, plan.start, &areas, &unwind, &elf::Names { symbols: &symbols, probes });
    let redirects = redirects::choose(request, &mut selection, &plan, &map, &counters);
    let retargeted = retarget_pointers::placed(&selection, &plan);
    let mut retargets = retarget_branches::choose(request, &selection, &map, &redirects);
    retargets.extend(retarget_pointers::retargets(request, &retargeted, &selection, &redirects));
    retargets.sort_unstable();
    let range = |from, to| SvmaRange::between(plan.at(from), plan.at(to));
    Ok(Version {
        number: request.number,
        range: SvmaRange::new(request.start, bytes.len() as u64),
        loaded_len,
        large,
        text: range(areas::HEADERS, areas.text_end),
        hot_text: range(areas::HEADERS, areas.hot_end),
        tables: range(areas.tables, areas.tables_end),
        eh_frame: unwind.eh_frame,
        eh_frame_hdr: unwind.eh_frame_hdr,
        lsda: unwind.lsda,
        blocks: placed_blocks(&plan),
        map,
        redirects,
        retargets,
        retargeted,
        symbols,
        assumes: assumptions(&selection, &plan),
        counters: counters.table(request),
        burst: None,
        skipped: selection.skipped,
        bytes,
    })
}

/// The slots that direct calls and jumps rely on.
fn assumptions(selection: &select::Selection<'_>, plan: &plan::Plan) -> Vec<BoundSlot> {
    let mut used: Vec<BoundSlot> = selection.used.iter().chain(&plan.used).copied().collect();
    used.sort_unstable();
    used.dedup();
    used
}

fn placed_blocks(plan: &plan::Plan) -> Vec<PlacedBlock> {
    let slots = plan.order().map(|slot| &plan.slots[slot]).filter(|slot| !slot.stub);
    slots
        .map(|slot| PlacedBlock {
            block: slot.block,
            duplicate: slot.duplicate,
            version: SvmaRange::between(plan.at(slot.start), plan.at(slot.end)),
        })
        .collect()
}
