//! The machine that layouts are made for.

use restitch_lab::{Geometry, Machine};
use restitch_layout::{Distances, LayoutChoice, UnknownLayout};
use restitch_procfs::system::{CpuCache, cpu_caches, cpu_model};

/// This machine, as far as the kernel describes it.
pub fn this_machine() -> Machine {
    let caches = cpu_caches();
    let of_level = |level| caches.iter().find(|c| c.level == level && c.instructions && c.line == 64);
    let shape = |c: &CpuCache| Geometry { sets: c.sets, ways: c.ways };
    let model = cpu_model();
    Machine::like(&model.vendor, model.family, model.model, of_level(1).map(shape), of_level(2).map(shape))
}

/// A layout as options name it: an algorithm, and behind a colon distances in bytes (`stitch:4K:64K:2M`),
/// `machine` for those of this machine, or the name of one that [`Machine`] knows (`codestitcher:zen4`); then
/// `+search` or `+search=SECONDS`, if its order is to be improved by local search.
///
/// # Errors
/// If there is no such algorithm, or it knows no distances, or they are none, or the search's budget is none.
pub fn layout_choice(text: &str) -> Result<LayoutChoice, UnknownLayout> {
    let machine = |name: &str| match name {
        "machine" => Some(this_machine()),
        name => name.parse::<Machine>().ok(),
    };
    let (text, budget) = LayoutChoice::split_search(text)?;
    let choice: LayoutChoice = match text.split_once(':').and_then(|(name, of)| Some((name, machine(of)?))) {
        Some((name, machine)) => {
            name.parse::<LayoutChoice>()?.within(Distances::of_levels(&machine.levels()))?
        }
        None => text.parse()?,
    };
    Ok(budget.map_or(choice, |budget| choice.searched(budget)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layouts_may_be_named_with_the_levels_of_a_machine() {
        let text = |text: &str| layout_choice(text).map_or_else(|e| e.to_string(), |c| c.to_string());
        assert_eq!(text("stitch:haswell"), "stitch:4K:32K:128K:256K:512K:2M:4M");
        assert_eq!(text("c3"), "c3");
        assert_eq!(text("c3+search=2"), "c3+search=2");
        assert_eq!(text("stitch:haswell+search"), "stitch:4K:32K:128K:256K:512K:2M:4M+search");
        let own = layout_choice("codestitcher:machine").unwrap();
        assert!(own.to_string().starts_with("codestitcher:4K:"), "{own}");
        assert_eq!(own.to_string().parse(), Ok(own));
        assert!(text("c3:machine").contains("knows no distances"));
        assert!(text("stitch:z80").contains("\"z80\" is no size"));
    }
}
