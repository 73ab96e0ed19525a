//! Tracing versions of the modules of a process: made and checked.
//!
//! A burst begins cold, so what counts is how many pages it touches that are in no cache of address
//! translations, or that nobody has touched before. Versions and the window with the table are made of large
//! pages where there is room: the table is used all over.

use crate::burst_scope::{BurstScope, entries};
use restitch_address::{PAGE, Svma, SvmaRange};
use restitch_apply_process::{ProcessError, Reservation, is_vdso};
use restitch_check::{CheckedVersion, check};
use restitch_emit::window::{TABLE, WORDS_LEN, window_len};
use restitch_emit::{BurstRequest, LARGE_PAGE, burst_bound, emit_burst};
use restitch_layout::Layout;
use restitch_pipeline::PipelineError;
use restitch_pipeline::analysis::Analyzed;
use restitch_pipeline::parallel;
use restitch_processes::SessionError;
use restitch_processes::modules::Chosen;
use restitch_processes::process_set::ProcessSet;
use restitch_trace::{BurstTables, TracedModule};
use std::sync::Arc;

/// Pairs of the window's table for each address in it, at least: searches are short then.
const SPARSE: u64 = 2;

/// Checked versions with the modules that they are of, and what there is to look up in them.
pub struct Versions {
    pub of: Vec<(usize, CheckedVersion)>,
    pub tables: Arc<BurstTables>,
}

/// Where a module's window and version go.
struct Place {
    reservation: Reservation,
    window: SvmaRange,
    start: Svma,
}

/// Makes and checks tracing versions, several at a time.
///
/// # Errors
/// If there is no room for them, before anything else is done; if a version cannot be made, or is refused by
/// the checker.
pub fn make_tracing(set: &ProcessSet, scope: &BurstScope) -> Result<Versions, SessionError> {
    let target = set.leader.target();
    let bits = (SPARSE * scope.entries()).next_power_of_two().trailing_zeros().clamp(10, 24) as u8;
    let places = reserve_all(set, scope, bits)?;
    let bias_of = |module: &Chosen| target.modules[module.index].bias;
    let table = places.first();
    let table = table.map(|(module, _, place)| bias_of(module).to_actual(place.window.start) + TABLE);
    let mut first = 0;
    let mut work = Vec::new();
    for (module, blocks, place) in places {
        work.push((module, blocks, place, first));
        // A branch ends a block, or is a call: there are no more than these.
        first += entries(&module.analyzed, blocks) as u32;
    }
    // What takes longest begins first; but the first one stays the first one.
    let mut order: Vec<usize> = (0..work.len()).collect();
    order.sort_by_key(|i| std::cmp::Reverse(work[*i].1.iter().filter(|b| **b).count()));
    let made = parallel::map(order.clone(), |i| {
        let (module, blocks, Place { reservation, window, start }, first) = &work[i];
        let Analyzed { image, program, .. } = &module.analyzed;
        let bias = bias_of(module);
        let request = BurstRequest {
            image,
            program,
            blocks,
            start: *start,
            number: reservation.number,
            window: *window,
            table: table.unwrap_or_default(),
            bits,
            first: *first,
            bias,
        };
        let version = emit_burst(&request)
            .map_err(|e| PipelineError::Emit { module: module.path.clone(), why: e.into() })?;
        check(image, program, &Layout::default(), version, Some(bias))
            .map_err(|e| PipelineError::Check { module: module.path.clone(), why: e.into() })
    });
    let mut made: Vec<_> = order.into_iter().zip(made).collect();
    made.sort_by_key(|(i, _)| *i);
    let versions: Vec<(usize, CheckedVersion)> = made
        .into_iter()
        .map(|(i, version)| (work[i].0, version))
        .filter(|(module, version)| version.is_ok() || !may_be_without(module))
        .map(|(module, version)| Ok((module.index, version?)))
        .collect::<Result<_, SessionError>>()?;
    let traced = versions.iter().map(|(module, version)| TracedModule {
        bias: target.modules[*module].bias,
        version,
        guard: scope.guard(*module),
    });
    let tables = BurstTables::new(&traced.collect::<Vec<_>>())
        .map_err(|source| restitch_trace::BranchTraceError::Window { pid: target.pid(), source })?;
    Ok(Versions { of: versions, tables: Arc::new(tables) })
}

/// Whether the others do without a module's version, should there be none: each kernel has a vdso of its own,
/// and bursts have ended there before.
fn may_be_without(module: &Chosen) -> bool {
    is_vdso(&module.path)
}

/// Modules that get a version, which of their blocks it copies, and the places.
type Places<'s> = Vec<(&'s Chosen, &'s [bool], Place)>;

/// A place for each module's window and, behind it, its version. The first window is a whole one, whose table
/// has `2^bits` pairs.
fn reserve_all<'s>(set: &ProcessSet, scope: &'s BurstScope, bits: u8) -> Result<Places<'s>, SessionError> {
    let (mut places, mut taken) = (Places::new(), Vec::new());
    for (module, blocks) in scope.modules.iter().zip(&scope.blocks) {
        let window = if places.is_empty() { window_len(bits) } else { WORDS_LEN };
        let bound = burst_bound(&module.analyzed.program, blocks);
        let place = match reserve(set, module.index, window, bound, &taken) {
            Err(SessionError::Process(ProcessError::NoRoom { .. })) if may_be_without(module) => continue,
            place => place?,
        };
        taken.push((module.index, place.reservation));
        places.push((module, blocks, place));
    }
    Ok(places)
}

/// A place for a window of `window` bytes and, behind it, a version of no more than `bound` bytes. They are
/// made of large pages where that is of use and there is room.
fn reserve(
    set: &ProcessSet,
    module: usize,
    window: u64,
    bound: u64,
    taken: &[(usize, Reservation)],
) -> Result<Place, SessionError> {
    let of_pages = |page: u64| {
        let reservation = set.reserve(module, window.next_multiple_of(page) + bound, taken, page)?;
        let start = reservation.start + window.next_multiple_of(page);
        Ok(Place { reservation, window: SvmaRange::new(reservation.start, window), start })
    };
    if window.max(bound) < LARGE_PAGE {
        return of_pages(PAGE);
    }
    match of_pages(LARGE_PAGE) {
        Err(SessionError::Process(ProcessError::NoRoom { .. })) => of_pages(PAGE),
        place => place,
    }
}
