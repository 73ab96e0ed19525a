//! The options of `attach`, `run` and `optimize` that say how versions are made.

use crate::layout_names::LayoutNames;
use crate::switch::Switch;
use clap::{Args, ValueEnum};
use restitch_session::{LargePages, LayoutChoice, VersionOptions};

/// Heading of the options that change the new code.
pub const LAYOUT: &str = "Layout options";

/// Whether hot code gets large pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum LargePagesSwitch {
    /// Where there is much of it.
    Auto,
    /// Always.
    On,
    /// Never.
    Off,
}

impl From<LargePagesSwitch> for LargePages {
    fn from(switch: LargePagesSwitch) -> Self {
        match switch {
            LargePagesSwitch::Auto => Self::Auto,
            LargePagesSwitch::On => Self::On,
            LargePagesSwitch::Off => Self::Off,
        }
    }
}

/// How a version is made.
#[derive(Debug, Clone, Args)]
pub struct VersionArgs {
    /// How to order the code: a name of the list of layouts. Those that go by distances may name them
    /// (`stitch:4K:64K:2M`, `stitch:machine`); `+search` behind any name adds a local search. docs/layout.md
    /// describes each.
    #[arg(long, help_heading = LAYOUT, value_name = "NAME", default_value_t = LayoutChoice::default(), value_parser = LayoutNames)]
    pub layout: LayoutChoice,
    /// Call other modules through the slots of the global offset table (GOT), in a process directly where
    /// that is read-only by now; never through linkage stubs (PLT).
    #[arg(long, help_heading = LAYOUT, value_name = "WHETHER", default_value = "on")]
    pub direct_calls: Switch,
    /// Large pages for hot code; auto where there is more of it than an instruction TLB reaches.
    #[arg(long = "huge-pages", help_heading = LAYOUT, value_name = "WHETHER", default_value = "auto")]
    pub large_pages: LargePagesSwitch,
    /// Place hot code within cache lines by how often it runs: loops in as few as they need.
    #[arg(long, help_heading = LAYOUT, value_name = "WHETHER", default_value = "on")]
    pub align: Switch,
    /// Invert conditional branches neither of whose targets follows them, so that the likelier way takes no
    /// second jump.
    #[arg(long, alias = "turn", help_heading = LAYOUT, value_name = "WHETHER", default_value = "on")]
    pub invert_branches: Switch,
    /// Copy jump tables, so that their jumps go straight to the new code.
    #[arg(long, help_heading = LAYOUT, value_name = "WHETHER", default_value = "on")]
    pub copy_tables: Switch,
    /// Compare indirect calls with their usual target, where the profile knows one, and call it directly
    /// (indirect call promotion).
    #[arg(long, help_heading = LAYOUT, value_name = "WHETHER", default_value = "off")]
    pub promote_calls: Switch,
    /// Leave functions in place that would lose more by the jumps to their copy than they gain by its order.
    #[arg(long, alias = "stay", help_heading = LAYOUT, value_name = "WHETHER", default_value = "on")]
    pub keep_in_place: Switch,
    /// Copy blocks that hot jumps lead to behind the jumping block, in place of the jump (tail duplication).
    #[arg(long, help_heading = LAYOUT, value_name = "WHETHER", default_value = "off")]
    pub duplicate: Switch,
    /// Insert code prefetches for lines that a model of the second-level cache misses.
    #[arg(long, help_heading = LAYOUT, value_name = "WHETHER", default_value = "off")]
    pub prefetch: Switch,
    /// Leave these functions as they are, and do not count them: names as `nm` prints them (their cold parts
    /// included), or addresses in the file, as 0x401000; separated by commas.
    #[arg(long, alias = "skip-funcs", help_heading = LAYOUT, value_name = "NAMES", value_delimiter = ',')]
    pub skip_functions: Vec<String>,
}

impl VersionArgs {
    /// What the session is asked for.
    pub fn options(&self) -> VersionOptions {
        VersionOptions {
            layout: self.layout,
            direct_calls: self.direct_calls == Switch::On,
            large_pages: self.large_pages.into(),
            align: self.align == Switch::On,
            invert_branches: self.invert_branches == Switch::On,
            copy_tables: self.copy_tables == Switch::On,
            promote_calls: self.promote_calls == Switch::On,
            keep_in_place: self.keep_in_place == Switch::On,
            duplicate: self.duplicate == Switch::On,
            prefetch: self.prefetch == Switch::On,
            skip_functions: self.skip_functions.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Alone {
        #[command(flatten)]
        version: VersionArgs,
    }

    /// A default stands here, where help prints it, and in the library, for those who come without a command
    /// line.
    #[test]
    fn what_is_not_said_is_what_the_library_does_by_default() {
        let parsed = Alone::try_parse_from(["restitch"]).expect("nothing is required");
        assert_eq!(parsed.version.options(), VersionOptions::default());
    }
}
