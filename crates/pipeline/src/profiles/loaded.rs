//! What a profile file says, before it is matched with code.

use super::options::Sampled;
use crate::analysis::Analyzed;
use crate::recorded_builds::may_be_of;
use restitch_image::Image;
use restitch_profile::{ImportedModule, ModuleProfile, ProfileFile};
use restitch_profile_formats::{Format, Records};
use std::path::{Path, PathBuf};

/// What a file says of one module.
#[derive(Debug, Clone, PartialEq)]
pub struct LoadedModule {
    /// Where it was; empty if the format does not say.
    pub path: PathBuf,
    /// Its build id; empty if not known.
    pub build_id: Vec<u8>,
    /// The counts.
    pub content: Content,
    /// What becomes of instruction samples.
    pub sampled: Sampled,
}

/// The counts of one module.
#[derive(Debug, Clone, PartialEq)]
pub enum Content {
    /// Block, edge and call counts.
    Stored(ModuleProfile),
    /// Records by address.
    Records(Records),
    /// Records by file offset, as perf.data has them.
    Offsets(ImportedModule),
}

/// What a file says.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// The file.
    pub path: PathBuf,
    /// Its format.
    pub format: Format,
    /// One entry a module.
    pub modules: Vec<LoadedModule>,
    /// Symbols in their order, for formats that hold only that.
    pub order: Vec<String>,
    /// What the user should know.
    pub notes: Vec<String>,
}

impl Loaded {
    /// Counts that are in memory.
    pub fn of_counts(file: ProfileFile, path: &Path) -> Self {
        let module = |m: ModuleProfile| LoadedModule {
            path: PathBuf::from(&m.path),
            build_id: m.build_id.clone(),
            content: Content::Stored(m),
            sampled: Sampled::default(),
        };
        let modules = file.modules.into_iter().map(module).collect();
        Self { modules, ..Self::empty(Format::Store, path) }
    }

    /// Nothing yet.
    pub fn empty(format: Format, path: &Path) -> Self {
        Self { path: path.into(), format, modules: Vec::new(), order: Vec::new(), notes: Vec::new() }
    }
}

impl LoadedModule {
    /// The stored form, if that is what was loaded.
    pub fn stored(&self) -> Option<&ModuleProfile> {
        match &self.content {
            Content::Stored(module) => Some(module),
            _ => None,
        }
    }

    /// Whether samples of an unknown build may be of this one: they fit its code. Other contents say nothing
    /// of that.
    pub fn may_be_of(&self, code: &Analyzed) -> bool {
        match &self.content {
            Content::Offsets(recorded) => may_be_of(recorded, code),
            _ => true,
        }
    }

    /// The records by address.
    pub fn records(&self, image: &Image) -> Option<Records> {
        match &self.content {
            Content::Records(records) => Some(records.clone()),
            Content::Offsets(offsets) => {
                Some(Records::of_samples(&offsets.to_svma(|at| image.address_of(at))))
            }
            Content::Stored(_) => None,
        }
    }

    /// All counts, for choosing the module with most.
    pub fn weight(&self) -> u64 {
        self.summary().iter().fold(0, |sum, (_, n)| sum.saturating_add(*n))
    }

    /// What there is, in words and sums.
    pub fn summary(&self) -> Vec<(&'static str, u64)> {
        fn sum<'a>(counts: impl Iterator<Item = &'a u64>) -> u64 {
            counts.fold(0, |sum, n| sum.saturating_add(*n))
        }
        match &self.content {
            Content::Stored(m) => vec![
                ("block executions", sum(m.blocks.values())),
                ("edge traversals", sum(m.edges.values())),
                ("calls", sum(m.calls.values())),
            ],
            Content::Records(r) => vec![
                ("taken branches", r.branches.values().fold(0, |sum: u64, t| sum.saturating_add(t.count))),
                ("runs without a taken branch", sum(r.ranges.values().chain(r.fall_throughs.values()))),
                ("instruction samples", sum(r.ips.values())),
            ],
            Content::Offsets(m) => vec![
                ("taken branches", sum(m.branches.values())),
                ("runs without a taken branch", sum(m.ranges.values())),
                ("instruction samples", sum(m.ips.values())),
            ],
        }
    }
}
