//! Tracing versions of the modules of a process: made and checked.
//!
//! A burst begins cold, so what counts is how many pages it touches that are in no cache of address translations, or that nobody has touched
//! before. Versions and their windows are made of large pages where there is room: a window's table is used all over.

use crate::SessionError;
use crate::analysis::Analyzed;
use crate::burst_scope::BurstScope;
use crate::process_set::ProcessSet;
use restitch_address::{LoadBias, Svma};
use restitch_apply_process::{ProcessError, Reservation};
use restitch_check::{CheckedVersion, check};
use restitch_emit::window::window_len;
use restitch_emit::{BurstRequest, LARGE_PAGE, burst_bound, emit_burst};
use restitch_layout::Layout;
use restitch_trace::BurstTables;
use std::sync::Arc;

/// Pairs of the window's table for each address in it, at least: searches are short then.
const SPARSE: u64 = 2;
/// Bytes of a small page.
const PAGE: u64 = 4096;

/// Checked versions with the modules that they are of, and what there is to look up in them.
pub(crate) struct Versions {
    pub of: Vec<(usize, CheckedVersion)>,
    pub tables: Arc<BurstTables>,
}

/// Makes and checks tracing versions.
pub(crate) fn make_tracing(set: &ProcessSet, scope: &BurstScope) -> Result<Versions, SessionError> {
    let bits = (SPARSE * scope.entries()).next_power_of_two().trailing_zeros().clamp(10, 24) as u8;
    let (mut versions, mut taken, mut first) = (Vec::new(), Vec::new(), 0);
    for (module, blocks) in scope.modules.iter().zip(&scope.blocks) {
        let Analyzed { image, program, .. } = &module.analyzed;
        let (place, start) = reserve(set, module.index, bits, burst_bound(program, blocks), &taken)?;
        taken.push((module.index, place));
        let window = place.start;
        let bias = set.leader.target().modules[module.index].bias;
        let request =
            BurstRequest { image, program, blocks, start, number: place.number, window, bits, first, bias };
        let wrong = |why: String| SessionError::Emit { module: module.path.clone(), why };
        let version = emit_burst(&request).map_err(|e| wrong(e.to_string()))?;
        first += version.burst.as_ref().map_or(0, |b| b.branches.len() as u32);
        let checked = check(image, program, &Layout::default(), version, Some(bias))
            .map_err(|e| SessionError::Check { module: module.path.clone(), why: e.to_string() })?;
        versions.push((module.index, checked));
    }
    let target = set.leader.target();
    let biased: Vec<(LoadBias, &CheckedVersion)> =
        versions.iter().map(|(module, version)| (target.modules[*module].bias, version)).collect();
    let tables = BurstTables::new(&biased)
        .map_err(|source| restitch_trace::BranchTraceError::Window { pid: target.pid(), source })?;
    Ok(Versions { of: versions, tables: Arc::new(tables) })
}

/// A place for a window with `2^bits` pairs and, behind it, a version of no more than `bound` bytes; and where the version begins. They are made
/// of large pages where that is of use and there is room.
fn reserve(
    set: &ProcessSet,
    module: usize,
    bits: u8,
    bound: u64,
    taken: &[(usize, Reservation)],
) -> Result<(Reservation, Svma), SessionError> {
    let of_pages = |page: u64| {
        let window = window_len(bits).next_multiple_of(page);
        let place = set.reserve(module, window + bound, taken, page)?;
        Ok((place, place.start + window))
    };
    if window_len(bits).max(bound) < LARGE_PAGE {
        return of_pages(PAGE);
    }
    match of_pages(LARGE_PAGE) {
        Err(SessionError::Process(ProcessError::NoRoom { .. })) => of_pages(PAGE),
        place => place,
    }
}
