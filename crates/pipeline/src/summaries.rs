//! What results tell of layouts and versions.

use crate::analysis::words;
use crate::build_version::Source;
use restitch_check::CheckedVersion;
use restitch_layout::{Layout, LayoutChoice, Score};
use restitch_profile::Profile;
use restitch_program::{FuncId, Movability, Program};
use restitch_report as report;

/// Hottest functions in a report.
const HOTTEST: usize = 12;

/// A module, its layout and its version.
pub fn module_report(source: Source<'_>, layout: &Layout, version: &CheckedVersion) -> report::Module {
    let (program, profile, choice) = (&source.module.program, source.profile, source.options.layout);
    let mut module = source.module.report(&source.path.display().to_string());
    module.layout = Some(layout_summary(program, profile, layout, choice));
    module.version = Some(version_summary(version));
    module.hottest = hottest(program, profile, layout, version);
    module
}

/// A layout beside the original order.
fn layout_summary(
    program: &Program,
    profile: &Profile,
    layout: &Layout,
    choice: LayoutChoice,
) -> report::LayoutSummary {
    let count =
        |fragments: &[restitch_layout::Fragment]| fragments.iter().map(|f| f.blocks.len() as u64).sum();
    let duplicates = layout.tails.iter().flat_map(|t| &t.blocks);
    report::LayoutSummary {
        algorithm: choice.to_string(),
        score_before: Score::of_original(program, profile).ext_tsp,
        score_after: Score::of(program, profile, layout).ext_tsp,
        hot_blocks: count(&layout.hot),
        cold_blocks: count(&layout.cold),
        duplicates: layout.duplicates() as u64,
        duplicate_bytes: duplicates.map(|b| u64::from(program.block(*b).len)).sum(),
        prefetches: layout.prefetches.len() as u64,
    }
}

/// A version, and what its check looked at.
pub fn version_summary(version: &CheckedVersion) -> report::VersionSummary {
    let checked = version.report();
    report::VersionSummary {
        number: version.number,
        bytes: version.loaded_len,
        text_bytes: version.text.len(),
        blocks: version.blocks.len() as u64,
        redirects: version.redirects.len() as u64,
        checked: report::CheckCounts {
            blocks: checked.blocks,
            instructions: checked.instructions,
            branches: checked.branches,
            tables: checked.tables,
            rows: checked.rows,
            call_sites: checked.call_sites,
            redirects: checked.redirects,
            direct: checked.direct,
            by_slot: checked.by_slot,
            promoted: checked.promoted,
        },
        large_page_bytes: 0,
    }
}

/// The functions that ran most, and how much of each has moved.
fn hottest(
    program: &Program,
    profile: &Profile,
    layout: &Layout,
    version: &CheckedVersion,
) -> Vec<report::HotFunction> {
    let mut moved = vec![0u64; program.functions.len()];
    for placed in &version.blocks {
        moved[program.block(placed.block).function.index()] += 1;
    }
    let mut laid_out = vec![false; program.functions.len()];
    layout.blocks().for_each(|b| laid_out[program.block(b).function.index()] = true);
    let executions: Vec<u64> =
        program.function_ids().map(|f| program.blocks_of(f).map(|b| profile.block(b)).sum()).collect();
    let mut list = most(program, &executions);
    for (f, hot) in &mut list {
        hot.moved_blocks = moved[f.index()];
        let why = || match program.function(*f).movability {
            Movability::Movable if laid_out[f.index()] => "none of its blocks can be copied",
            Movability::Movable => "on purpose: a new order would gain less than the way to it costs",
            other => words(other),
        };
        hot.stays = (hot.moved_blocks == 0).then(|| why().into());
    }
    list.into_iter().map(|(_, hot)| hot).collect()
}

/// The functions with most samples, and why those stay that cannot be moved.
pub fn most_sampled(program: &Program, samples: &[u64]) -> Vec<report::HotFunction> {
    let one = |(f, mut hot): (FuncId, report::HotFunction)| {
        let why = program.function(f).movability;
        hot.stays = (why != Movability::Movable).then(|| words(why).into());
        hot
    };
    most(program, samples).into_iter().map(one).collect()
}

/// The functions with the greatest `weights`.
fn most(program: &Program, weights: &[u64]) -> Vec<(FuncId, report::HotFunction)> {
    let total: u64 = weights.iter().sum();
    let mut order: Vec<FuncId> = program.function_ids().filter(|f| weights[f.index()] > 0).collect();
    order.sort_unstable_by_key(|f| (std::cmp::Reverse(weights[f.index()]), *f));
    let one = |f: FuncId| {
        let function = program.function(f);
        let address = function.range.start;
        let hot = report::HotFunction {
            name: function.name.as_deref().map_or_else(|| format!("sub_{:x}", address.get()), str::to_owned),
            address: address.to_string(),
            share: weights[f.index()] as f64 / total.max(1) as f64,
            blocks: function.blocks.len() as u64,
            moved_blocks: 0,
            stays: None,
        };
        (f, hot)
    };
    order.into_iter().take(HOTTEST).map(one).collect()
}
