//! What results tell of layouts and versions.

use restitch_check::CheckedVersion;
use restitch_layout::{Layout, LayoutChoice, Score};
use restitch_profile::Profile;
use restitch_program::Program;
use restitch_report as report;

/// Hottest functions in a report.
const HOTTEST: usize = 12;

/// A layout beside the original order.
pub(crate) fn layout_summary(
    program: &Program,
    profile: &Profile,
    layout: &Layout,
    choice: LayoutChoice,
) -> report::LayoutSummary {
    let count =
        |fragments: &[restitch_layout::Fragment]| fragments.iter().map(|f| f.blocks.len() as u64).sum();
    let duplicates = layout.tails.iter().flat_map(|t| &t.blocks);
    report::LayoutSummary {
        algorithm: choice.name().into(),
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
pub(crate) fn version_summary(version: &CheckedVersion) -> report::VersionSummary {
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
            promoted: checked.promoted,
        },
        large_page_bytes: 0,
    }
}

/// The functions that ran most, and how much of each has moved.
pub(crate) fn hottest(
    program: &Program,
    profile: &Profile,
    version: &CheckedVersion,
) -> Vec<report::HotFunction> {
    let mut moved = vec![0u64; program.functions.len()];
    for placed in &version.blocks {
        moved[program.block(placed.block).function.index()] += 1;
    }
    let total: u64 = profile.blocks.iter().sum();
    let mut counts: Vec<(u64, restitch_program::FuncId)> = program
        .function_ids()
        .map(|f| (program.blocks_of(f).map(|b| profile.block(b)).sum(), f))
        .filter(|(n, _)| *n > 0)
        .collect();
    counts.sort_unstable_by_key(|(n, f)| (std::cmp::Reverse(*n), *f));
    counts
        .into_iter()
        .take(HOTTEST)
        .map(|(n, f)| {
            let function = program.function(f);
            let address = function.range.start;
            report::HotFunction {
                name: function
                    .name
                    .as_deref()
                    .map_or_else(|| format!("sub_{:x}", address.get()), str::to_owned),
                address: address.to_string(),
                share: n as f64 / total.max(1) as f64,
                blocks: u64::from(function.block_count),
                moved_blocks: moved[f.index()],
            }
        })
        .collect()
}
