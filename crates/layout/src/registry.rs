//! The algorithms by name.

use std::fmt::{self, Display, Formatter};
use std::str::FromStr;

use restitch_profile::Profile;
use restitch_program::Program;

use crate::{
    BadDistances, C3, CdSort, Codestitcher, Distances, ExtTsp, ExtTspAcross, HfsortPlus, HotChains,
    HotColdChunks, Layout, LayoutAlgorithm, OriginalOrder, PettisHansen, PhBb, Stitch, Together,
};

/// The name of the algorithm that is used unless another is asked for.
pub const DEFAULT_LAYOUT: &str = "ext-tsp-across";

/// What was asked for is no layout.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum UnknownLayout {
    /// No algorithm has this name.
    #[error("there is no layout \"{0}\"; choose one of {names}", names = names().join(", "))]
    Name(String),
    /// Distances were given to one that knows none.
    #[error("the layout \"{0}\" knows no distances; {names} do", names = with_distances().join(", "))]
    NoDistances(String),
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
        Box::new(Together::default()),
    ]
}

/// Those that bring transfers within distances, with others than the paper's.
fn at_distances(distances: Distances) -> Vec<Box<dyn LayoutAlgorithm>> {
    let plain = Codestitcher { distances, ..Codestitcher::default() };
    vec![
        Box::new(Codestitcher { partial_order: true, ..plain.clone() }),
        Box::new(plain),
        Box::new(ExtTspAcross { distances, ..ExtTspAcross::default() }),
        Box::new(Together { distances }),
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

/// An algorithm, chosen by name, with distances of its own where it brings transfers within such: `stitch`, `codestitcher:4K:64K:2M`. The default is what measurements found best;
/// `docs/layout.md` has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayoutChoice {
    name: &'static str,
    distances: Option<Distances>,
}

impl LayoutChoice {
    /// All algorithms, the simplest first.
    pub fn all() -> Vec<Self> {
        names().into_iter().map(|name| Self { name, distances: None }).collect()
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
        chosen
            .map_or_else(|| ExtTspAcross::default().layout(program, profile), |a| a.layout(program, profile))
    }
}

impl Default for LayoutChoice {
    fn default() -> Self {
        Self { name: DEFAULT_LAYOUT, distances: None }
    }
}

/// The name, and distances behind a colon; [`LayoutChoice::from_str`] reads it.
impl Display for LayoutChoice {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self.distances {
            Some(distances) => write!(f, "{}:{distances}", self.name),
            None => f.write_str(self.name),
        }
    }
}

impl FromStr for LayoutChoice {
    type Err = UnknownLayout;

    fn from_str(text: &str) -> Result<Self, UnknownLayout> {
        let (name, list) = text.split_once(':').map_or((text, None), |(name, list)| (name, Some(list)));
        let known = names().into_iter().find(|n| *n == name);
        let name = known.ok_or_else(|| UnknownLayout::Name(name.to_owned()))?;
        let chosen = Self { name, distances: None };
        let Some(list) = list else { return Ok(chosen) };
        let list = list.parse().map_err(|why| UnknownLayout::Distances { name: name.to_owned(), why });
        chosen.within(list?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_are_read_as_they_are_written() {
        for text in names().into_iter().chain(["stitch:4K:2M", "codestitcher+po:64", "ext-tsp-across:1M"]) {
            assert_eq!(text.parse::<LayoutChoice>().unwrap().to_string(), text);
        }
        let refused = |text: &str| text.parse::<LayoutChoice>().unwrap_err().to_string();
        assert!(refused("best").contains("choose one of original"));
        assert!(refused("c3:4K").contains("knows no distances"));
        assert!(refused("stitch:").contains("is no size"));
    }
}
