//! The algorithms by name.

use std::str::FromStr;

use restitch_profile::Profile;
use restitch_program::Program;

use crate::{
    C3, CdSort, Codestitcher, ExtTsp, ExtTspAcross, HfsortPlus, HotChains, HotColdChunks, Layout,
    LayoutAlgorithm, OriginalOrder, PettisHansen, PhBb, Stitch,
};

/// The name of the algorithm that is used unless another is asked for.
pub const DEFAULT_LAYOUT: &str = "ext-tsp-across";

/// No algorithm has this name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("there is no layout \"{name}\"; choose one of {}", names().join(", "))]
pub struct UnknownLayout {
    /// The name.
    pub name: String,
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
        Box::new(ExtTspAcross),
        Box::new(Stitch::default()),
    ]
}

/// The names of all algorithms.
pub fn names() -> Vec<&'static str> {
    algorithms().iter().map(|a| a.name()).collect()
}

/// An algorithm, chosen by name. The default is what measurements found best; `docs/layout.md` has them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayoutChoice(&'static str);

impl LayoutChoice {
    /// All algorithms, the simplest first.
    pub fn all() -> Vec<Self> {
        names().into_iter().map(Self).collect()
    }

    /// The algorithm's name.
    pub fn name(self) -> &'static str {
        self.0
    }

    /// The layout that the chosen algorithm makes.
    pub fn layout(self, program: &Program, profile: &Profile) -> Layout {
        let chosen = algorithms().into_iter().find(|a| a.name() == self.0);
        chosen.map_or_else(|| ExtTspAcross.layout(program, profile), |a| a.layout(program, profile))
    }
}

impl Default for LayoutChoice {
    fn default() -> Self {
        Self(DEFAULT_LAYOUT)
    }
}

impl FromStr for LayoutChoice {
    type Err = UnknownLayout;

    fn from_str(name: &str) -> Result<Self, UnknownLayout> {
        let known = names().into_iter().find(|n| *n == name);
        known.map(Self).ok_or_else(|| UnknownLayout { name: name.to_owned() })
    }
}
