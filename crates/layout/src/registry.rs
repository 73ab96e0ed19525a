//! The algorithms by name.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;
use std::time::Duration;

use restitch_profile::Profile;
use restitch_program::Program;

use crate::across::ExtTspAcross;
use crate::c3::C3;
use crate::cdsort::CdSort;
use crate::codestitcher::Codestitcher;
use crate::distances::{BadDistances, Distances};
use crate::ext_tsp::ExtTsp;
use crate::hfsort_plus::HfsortPlus;
use crate::hot_chains::HotChains;
use crate::hot_cold::HotColdChunks;
use crate::model::{Layout, LayoutAlgorithm};
use crate::original::OriginalOrder;
use crate::pettis_hansen::PettisHansen;
use crate::ph_bb::PhBb;
use crate::search;
use crate::search::SearchBudget;
use crate::stitch::Stitch;
use crate::temporal_affinity::TemporalAffinity;

/// The name of the algorithm that is used unless another is asked for; local search follows it
/// ([`LayoutChoice::default`]).
pub const DEFAULT_LAYOUT: &str = "ext-tsp-across";

/// What stands behind an algorithm whose order is to be improved by local search.
const SEARCH: &str = "+search";

/// What was asked for is no layout.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnknownLayout {
    /// No algorithm has this name.
    #[error("there is no layout \"{0}\"; choose one of {names}", names = names().join(", "))]
    Name(String),
    /// Distances were given to one that knows none.
    #[error("the layout \"{0}\" knows no distances; {names} do", names = with_distances().join(", "))]
    NoDistances(String),
    /// No budget of a search.
    #[error(
        "\"{SEARCH}{0}\" is no local search; give it seconds of one core, such as {SEARCH}=5, or nothing"
    )]
    Budget(String),
    /// The distances are none.
    #[error("of the layout \"{name}\": {why}")]
    Distances {
        /// The algorithm's name.
        name: String,
        /// What is wrong.
        why: BadDistances,
    },
}

/// All algorithms with their default options, the simplest first.
pub fn algorithms() -> Vec<Box<dyn LayoutAlgorithm>> {
    vec![
        Box::new(OriginalOrder),
        Box::new(PettisHansen),
        Box::new(C3::default()),
        Box::new(HfsortPlus),
        Box::new(CdSort::default()),
        Box::new(HotColdChunks::default()),
        Box::new(PhBb::default()),
        Box::new(HotChains::default()),
        Box::new(ExtTsp::default()),
        Box::new(Codestitcher::default()),
        Box::new(Codestitcher::with_partial_order()),
        Box::new(ExtTspAcross::default()),
        Box::new(Stitch::default()),
        Box::new(TemporalAffinity::default()),
    ]
}

/// Those that bring transfers within distances, with others than the paper's.
fn at_distances(distances: Distances) -> Vec<Box<dyn LayoutAlgorithm>> {
    let plain = Codestitcher { distances, ..Codestitcher::default() };
    vec![
        Box::new(Codestitcher { partial_order: true, ..plain.clone() }),
        Box::new(plain),
        Box::new(ExtTspAcross { distances, ..ExtTspAcross::default() }),
        Box::new(TemporalAffinity { distances }),
        Box::new(Stitch { distances, ..Stitch::default() }),
    ]
}

/// The names of all algorithms.
pub fn names() -> Vec<&'static str> {
    algorithms().iter().map(|a| a.name()).collect()
}

fn with_distances() -> Vec<&'static str> {
    at_distances(Distances::default()).iter().map(|a| a.name()).collect()
}

/// An algorithm, chosen by name, with distances of its own where it brings transfers within such: `stitch`,
/// `codestitcher:4K:64K:2M`; and `+search` or `+search=SECONDS` behind it for [`search`](crate::search())
/// afterwards. The default is what measurements found best; `docs/layout.md` has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayoutChoice {
    name: &'static str,
    distances: Option<Distances>,
    search: Option<SearchBudget>,
}

impl LayoutChoice {
    const fn plain(name: &'static str) -> Self {
        Self { name, distances: None, search: None }
    }

    /// All algorithms, the simplest first, and the default.
    pub fn all() -> Vec<Self> {
        names().into_iter().map(Self::plain).chain([Self::default()]).collect()
    }

    /// The algorithm's name.
    pub fn name(self) -> &'static str {
        self.name
    }

    /// The same algorithm with other distances.
    ///
    /// # Errors
    /// If it knows none.
    pub fn within(self, distances: Distances) -> Result<Self, UnknownLayout> {
        match with_distances().contains(&self.name) {
            true => Ok(Self { distances: Some(distances), ..self }),
            false => Err(UnknownLayout::NoDistances(self.name.to_owned())),
        }
    }

    /// The layout that the chosen algorithm makes.
    pub fn layout(self, program: &Program, profile: &Profile) -> Layout {
        let known = self.distances.map_or_else(algorithms, at_distances);
        let chosen = known.into_iter().find(|a| a.name() == self.name);
        let mut layout = chosen
            .map_or_else(|| ExtTspAcross::default().layout(program, profile), |a| a.layout(program, profile));
        if let Some(budget) = self.search {
            search(program, profile, &mut layout, self.distances.unwrap_or_default(), budget);
        }
        layout
    }

    /// The same, and its hot code's order improved by [`search`](crate::search()).
    pub fn searched(self, budget: SearchBudget) -> Self {
        Self { search: Some(budget), ..self }
    }
}

impl Default for LayoutChoice {
    fn default() -> Self {
        Self::plain(DEFAULT_LAYOUT).searched(SearchBudget::default())
    }
}

/// The name, and distances behind a colon; [`LayoutChoice::from_str`] reads it.
impl Display for LayoutChoice {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)?;
        if let Some(distances) = self.distances {
            write!(f, ":{distances}")?;
        }
        match self.search {
            Some(budget) if budget == SearchBudget::default() => f.write_str(SEARCH),
            Some(budget) => write!(f, "{SEARCH}={}", budget.seconds()),
            None => Ok(()),
        }
    }
}

impl FromStr for LayoutChoice {
    type Err = UnknownLayout;

    fn from_str(text: &str) -> Result<Self, UnknownLayout> {
        let (text, budget) = Self::split_search(text)?;
        let choice: Self = Self::without_search(text)?;
        Ok(budget.map_or(choice, |budget| choice.searched(budget)))
    }
}

impl LayoutChoice {
    /// A text, and what follows it about a search: `+search`, or `+search=SECONDS`.
    ///
    /// # Errors
    /// If that is no budget.
    pub fn split_search(text: &str) -> Result<(&str, Option<SearchBudget>), UnknownLayout> {
        let Some((text, seconds)) = text.split_once(SEARCH) else { return Ok((text, None)) };
        let budget = match seconds.strip_prefix('=').map(|s| s.parse().map(Duration::try_from_secs_f64)) {
            None if seconds.is_empty() => SearchBudget::default(),
            Some(Ok(Ok(time))) => SearchBudget::of_time(time),
            _ => return Err(UnknownLayout::Budget(seconds.to_owned())),
        };
        Ok((text, Some(budget)))
    }

    fn without_search(text: &str) -> Result<Self, UnknownLayout> {
        let (name, list) = text.split_once(':').map_or((text, None), |(name, list)| (name, Some(list)));
        let known = names().into_iter().find(|n| *n == name);
        let name = known.ok_or_else(|| UnknownLayout::Name(name.to_owned()))?;
        let chosen = Self::plain(name);
        let Some(list) = list else { return Ok(chosen) };
        let list = list.parse().map_err(|why| UnknownLayout::Distances { name: name.to_owned(), why });
        chosen.within(list?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_profile::testing::{RandomProgram, walk};

    /// The first block of Rust in `page`, without its indentation.
    fn first_block(page: &str) -> String {
        let mut lines = page.lines().skip_while(|line| line.trim() != "```rust");
        let indentation = lines.next().map_or(0, |fence| fence.len() - fence.trim_start().len());
        let inside = lines.take_while(|line| line.trim() != "```");
        inside.map(|line| format!("{}\n", line.get(indentation..).unwrap_or_default())).collect()
    }

    #[test]
    fn the_recipe_for_a_layout_prints_a_file_that_is_compiled() {
        let file = include_str!("by_entries.rs");
        assert_eq!(first_block(include_str!("../../../docs/extending.md")), file);
    }

    /// What the recipe's second step asks for, with the file that its first one prints.
    #[test]
    fn the_layout_of_the_recipe_can_stand_in_the_list() {
        let mut all = algorithms();
        all.push(Box::new(crate::by_entries::ByEntries));
        let mut names: Vec<&str> = all.iter().map(|a| a.name()).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all.len());
    }

    /// It is none of those that `tests/properties.rs` goes through.
    #[test]
    fn the_layout_of_the_recipe_places_what_all_layouts_place() {
        for seed in 0..200 {
            let program = RandomProgram::new(seed).program;
            let profile = walk(&program, seed, 50, 0.02);
            let placed = |algorithm: &dyn LayoutAlgorithm| {
                let layout = algorithm.layout(&program, &profile);
                assert_eq!(layout.validate(&program), Ok(()), "seed {seed}");
                let mut blocks: Vec<_> = layout.blocks().collect();
                blocks.sort_unstable();
                blocks
            };
            assert_eq!(placed(&crate::by_entries::ByEntries), placed(&OriginalOrder), "seed {seed}");
        }
    }

    #[test]
    fn choices_are_read_as_they_are_written() {
        let others = [
            "stitch:4K:2M",
            "codestitcher+po:64",
            "ext-tsp-across:1M",
            "c3+search=2.5",
            "stitch:4K+search=10",
        ];
        for text in names().into_iter().chain(others) {
            assert_eq!(text.parse::<LayoutChoice>().unwrap().to_string(), text);
        }
        let refused = |text: &str| text.parse::<LayoutChoice>().unwrap_err().to_string();
        assert!(refused("best").contains("choose one of original"));
        assert!(refused("c3:4K").contains("knows no distances"));
        assert!(refused("stitch:").contains("is no size"));
        assert_eq!("stitch+search=3".parse::<LayoutChoice>(), "stitch+search".parse());
        assert_eq!(LayoutChoice::default().to_string(), "ext-tsp-across+search");
        for budget in ["=", "=x", "=-1", "=nan", "=1e99", "ed"] {
            assert!(refused(&format!("stitch+search{budget}")).contains("is no local search"), "{budget}");
        }
    }
}
