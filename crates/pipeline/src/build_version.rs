//! The one way to an optimized version: lay out, find a place, emit, check. Files, processes and programs
//! between their runs differ in the place alone.
//!
//! [`build_version`] does it for one module. A session with several does each step for all of them at once,
//! and looks between the steps whether it is to end: [`Draft`] and [`Emitted`] are the stages.

use crate::analysis::Analyzed;
use crate::error::PipelineError;
use crate::large_pages::alignment;
use crate::make::{
    Place, Wanted, check_version, emit_version, estimate, lay_out, promoted_bytes, retargeted_bytes,
    worth_promoting,
};
use crate::timings::Timings;
use crate::version_options::VersionOptions;
use restitch_address::LoadBias;
use restitch_check::CheckedVersion;
use restitch_emit::{BoundSlot, Pointers, Version};
use restitch_layout::{Layout, Reaching};
use restitch_profile::{Profile, Promotion};
use std::path::Path;

/// What a version is made of.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// The module's file, for messages.
    pub path: &'a Path,
    /// The module.
    pub module: &'a Analyzed,
    /// What ran in it.
    pub profile: &'a Profile,
    /// What is asked of the version.
    pub options: &'a VersionOptions,
}

/// How calls from elsewhere get into the version.
#[derive(Debug)]
pub struct Entrances {
    /// What a call of a function that is moved costs besides.
    pub reaching: Reaching,
    /// The functions of which pointers lead to the copy; `None` where pointers cannot be changed.
    pub pointers: Option<Pointers>,
}

/// A layout, and what else decides how much room its version needs.
#[derive(Debug)]
pub struct Draft {
    /// The order of the blocks.
    pub layout: Layout,
    /// Whether hot code gets large pages.
    pub large_pages: bool,
    promote: Vec<Promotion>,
    pointers: Option<Pointers>,
}

/// A version that is not checked yet.
#[derive(Debug)]
pub struct Emitted {
    draft: Draft,
    version: Version,
    bias: Option<LoadBias>,
}

/// A checked version.
#[derive(Debug)]
pub struct Made {
    /// The order of its blocks.
    pub layout: Layout,
    /// The version.
    pub version: CheckedVersion,
}

impl Draft {
    /// Lays out.
    pub fn of(source: Source<'_>, entrances: Entrances) -> Self {
        let Source { module: Analyzed { program, .. }, profile, options, .. } = source;
        let Entrances { reaching, pointers } = entrances;
        let retargeted = pointers.as_ref().map_or(&[][..], Pointers::functions);
        let layout = lay_out(options.ways(reaching, retargeted), program, profile);
        let large_pages = options.large_pages.wanted(program, &layout);
        let promote = worth_promoting(options.promote_calls, program, profile);
        Self { layout, large_pages, promote, pointers }
    }

    /// Whether all functions are better off where they are.
    pub fn moves_nothing(&self) -> bool {
        self.layout.blocks().next().is_none()
    }

    /// Alignment of the version's place, in bytes.
    pub fn alignment(&self) -> u64 {
        alignment(self.large_pages)
    }

    /// Address space that the version may need, in bytes: a multiple of the alignment.
    pub fn room(&self, module: &Analyzed) -> u64 {
        let bytes = estimate(&module.program, &self.layout, 0)
            + promoted_bytes(&self.promote)
            + self.pointers.as_ref().map_or(0, retargeted_bytes);
        bytes.next_multiple_of(self.alignment())
    }

    /// Emits the version at `place`; `bound_slots` are those of the global offset table that cannot change
    /// any more.
    ///
    /// # Errors
    /// [`PipelineError::Emit`].
    pub fn emit(
        self,
        source: Source<'_>,
        place: Place,
        bound_slots: &[BoundSlot],
    ) -> Result<Emitted, PipelineError> {
        let wanted = Wanted {
            by_slots: source.options.direct_calls,
            bound_slots,
            promote: &self.promote,
            pointers: self.pointers.as_ref(),
            large_pages: self.large_pages,
            executions: source.options.executions(source.profile),
            ..Wanted::default()
        };
        let version = emit_version(source.path, source.module, &self.layout, place, wanted)?;
        Ok(Emitted { draft: self, version, bias: place.bias })
    }
}

impl Emitted {
    /// Has the version checked.
    ///
    /// # Errors
    /// [`PipelineError::Check`].
    pub fn check(self, source: Source<'_>) -> Result<Made, PipelineError> {
        let Self { draft: Draft { layout, .. }, version, bias } = self;
        let version = check_version(source.path, source.module, &layout, version, bias)?;
        Ok(Made { layout, version })
    }
}

/// Makes a version at the place that `place` finds for a draft.
///
/// # Errors
/// Those of `place`, [`PipelineError::Emit`] and [`PipelineError::Check`].
pub fn build_version(
    source: Source<'_>,
    entrances: Entrances,
    place: impl FnOnce(&Draft) -> Result<Place, PipelineError>,
    timings: &mut Timings,
) -> Result<Made, PipelineError> {
    let draft = Draft::of(source, entrances);
    timings.end("layout");
    let place = place(&draft)?;
    let emitted = draft.emit(source, place, &[])?;
    timings.end("emission");
    let made = emitted.check(source)?;
    timings.end("check");
    Ok(made)
}
