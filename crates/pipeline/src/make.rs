//! Making checked versions: counting ones and optimized ones.

use crate::analysis::Analyzed;
use crate::error::PipelineError;
use crate::machine::this_machine;
use restitch_address::{LoadBias, Svma};
use restitch_check::{CheckedVersion, check};
use restitch_emit::{
    BoundSlot, CounterRequest, CounterWidth, Executions, Pointers, Request, Version, emit_for,
};
use restitch_lab::{Machine, PrefetchLimits, Trace, choose_prefetches};
use restitch_layout::{
    DuplicateLimits, Layout, LayoutChoice, Prefetch, Reaching, called_through_pointers, duplicate_tails,
    leave_in_place,
};
use restitch_profile::{Counted, Profile, Promotion, PromotionLimits, promotions};
use restitch_program::{CallId, FuncId, Program};
use std::path::Path;

/// Where a version goes.
#[derive(Debug, Clone, Copy)]
pub struct Place {
    /// Its number among the versions of its module.
    pub number: u32,
    /// Where it begins.
    pub start: Svma,
    /// Behind the version, for counters.
    pub counters: Svma,
    /// Where the module is loaded, if addresses in memory are to be looked up; `None` for a file.
    pub bias: Option<LoadBias>,
}

/// What a version is to have besides the layout.
#[derive(Debug, Clone, Copy, Default)]
pub struct Wanted<'a> {
    /// What is counted, if it is a counting version.
    pub counted: Option<&'a [Counted]>,
    /// How wide counters are.
    pub width: CounterWidth,
    /// Indirect calls that vote for their usual target, in a counting version.
    pub votes: &'a [CallId],
    /// Calls of stubs go through the stubs' slots, where these are not bound.
    pub by_slots: bool,
    /// Slots that are bound for good.
    pub bound_slots: &'a [BoundSlot],
    /// Indirect calls that become comparisons and direct calls.
    pub promote: &'a [Promotion],
    /// Functions of which pointers are to lead to the copy.
    pub pointers: Option<&'a Pointers>,
    /// Large pages for the hot code.
    pub large_pages: bool,
    /// How often code ran, for what is free to choose.
    pub executions: Executions<'a>,
}

/// Whether blocks behind hot jumps get a second copy unless the user says so: `docs/benchmarks.md` says why.
pub(crate) const DUPLICATE: bool = false;

/// Whether lines are fetched ahead unless the user says so: `docs/benchmarks.md` says why.
pub const PREFETCH: bool = false;

/// How code is laid out.
#[derive(Debug, Clone, Copy)]
pub struct Ways<'a> {
    /// The layout algorithm.
    pub choice: LayoutChoice,
    /// How functions that are better off where they are reach copies; without it, none of them stays.
    pub keep_in_place: Option<Reaching>,
    /// Functions of which pointers lead to the copy, sorted.
    pub retargeted: &'a [FuncId],
    /// Blocks behind hot jumps get a second copy.
    pub duplicate: bool,
    /// Lines are fetched ahead.
    pub prefetch: bool,
}

impl Ways<'_> {
    /// With what is usual besides an order.
    pub fn usual(choice: LayoutChoice, keep_in_place: Option<Reaching>) -> Self {
        Self { choice, keep_in_place, retargeted: &[], duplicate: DUPLICATE, prefetch: PREFETCH }
    }
}

/// The layout.
pub fn lay_out(ways: Ways<'_>, program: &Program, profile: &Profile) -> Layout {
    let mut layout = ways.choice.layout(program, profile);
    if let Some(reaching) = ways.keep_in_place {
        leave_in_place(program, profile, reaching, ways.retargeted, &mut layout);
    }
    if ways.duplicate {
        duplicate_tails(program, profile, &mut layout, &DuplicateLimits::default());
    }
    if ways.prefetch {
        let trace = Trace::to_choose_by(program, profile);
        layout.prefetches = prefetches(program, &trace, &layout, &this_machine());
    }
    layout
}

/// The lines that this machine would fetch ahead on `trace`.
pub fn prefetches(program: &Program, trace: &Trace, layout: &Layout, machine: &Machine) -> Vec<Prefetch> {
    choose_prefetches(program, trace, layout, machine, &PrefetchLimits::default())
}

/// The indirect calls that are to be promoted, if any are.
pub fn worth_promoting(wanted: bool, program: &Program, profile: &Profile) -> Vec<Promotion> {
    if wanted { promotions(program, profile, &PromotionLimits::default()) } else { Vec::new() }
}

/// The functions of a file that are entered through pointers, as far as all that makes these is known; none
/// if `wanted` is not.
pub fn worth_retargeting(wanted: bool, module: &Analyzed, profile: &Profile) -> Pointers {
    if !wanted {
        return Pointers::default();
    }
    let mut pointers = Pointers::of(&module.image, &module.program);
    let called = called_through_pointers(&module.program, profile);
    pointers.keep(|f| called[f.index()] > 0.0);
    pointers
}

/// Address space that the alignment of entries may need on top of [`estimate`], in bytes.
pub fn retargeted_bytes(pointers: &Pointers) -> u64 {
    16 * pointers.functions().len() as u64
}

/// Address space that promoted calls may need on top of [`estimate`], in bytes.
pub fn promoted_bytes(promote: &[Promotion]) -> u64 {
    64 * promote.len() as u64
}

/// Address space that a version of `layout` may need, in bytes: generous, since it is only reserved.
pub fn estimate(program: &Program, layout: &Layout, counters: usize) -> u64 {
    let (mut bytes, mut blocks) = (0, 0);
    let duplicates = layout.tails.iter().flat_map(|t| t.blocks.iter().copied());
    for b in layout.blocks().chain(duplicates) {
        bytes += u64::from(program.block(b).len);
        blocks += 1;
    }
    let tables: u64 = program.tables.iter().map(|t| 8 * (t.targets.len() + t.tail.len()) as u64).sum();
    let estimate = bytes * 2
        + (blocks + layout.prefetches.len() as u64) * 64
        + tables
        + counters as u64 * 40
        + (256 << 10);
    estimate.next_multiple_of(restitch_address::PAGE)
}

/// Emits and checks a version.
pub fn make(
    path: &Path,
    module: &Analyzed,
    layout: &Layout,
    place: Place,
    wanted: Wanted<'_>,
) -> Result<CheckedVersion, PipelineError> {
    let version = emit_version(path, module, layout, place, wanted)?;
    check_version(path, module, layout, version, place.bias)
}

/// Checks a version.
pub fn check_version(
    path: &Path,
    module: &Analyzed,
    layout: &Layout,
    version: Version,
    bias: Option<LoadBias>,
) -> Result<CheckedVersion, PipelineError> {
    check(&module.image, &module.program, layout, version, bias)
        .map_err(|e| PipelineError::Check { module: path.into(), why: e.into() })
}

/// Emits a version, not checked yet.
pub fn emit_version(
    path: &Path,
    module: &Analyzed,
    layout: &Layout,
    place: Place,
    wanted: Wanted<'_>,
) -> Result<Version, PipelineError> {
    let request = Request {
        image: &module.image,
        program: &module.program,
        unwind: &module.unwind,
        layout,
        start: place.start,
        bias: place.bias,
        number: place.number,
        bound_slots: wanted.bound_slots,
        by_slots: wanted.by_slots,
        promote: wanted.promote,
        pointers: wanted.pointers,
        large_pages: wanted.large_pages,
        counters: wanted.counted.map(|counted| CounterRequest {
            area_start: place.counters,
            width: wanted.width,
            counted,
            votes: wanted.votes,
        }),
    };
    emit_for(&request, wanted.executions)
        .map_err(|e| PipelineError::Emit { module: path.into(), why: e.into() })
}
