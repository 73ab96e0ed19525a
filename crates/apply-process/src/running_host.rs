//! Where code lives, while it runs: what a switch asks of a host before the stop and behind it.
//!
//! Before: what is mapped, and mapping what is to come near it. Then the stop. Behind: reading back, and
//! unmapping what is not needed any more. Giving the original code back is a switch to nothing, so no host
//! has to know of it.

use crate::error::ProcessError;
use crate::host::{CodeMemory, StoppedHost};
use crate::memory::counter_area::CounterArea;
use crate::memory::replacement_mapping::PlannedReplacement;
use crate::state::hook_journal::JournalHook;
use crate::state::journal::JournalReplacement;
use crate::switch_plan::{Arriving, Incoming, SwitchPlan};
use restitch_address::{Avma, AvmaRange};
use restitch_procfs::Mapping;
use std::time::Duration;

/// What is to be mapped for a switch, each at the place that was chosen for it.
#[derive(Clone, Copy)]
pub(crate) struct ToMap<'a> {
    /// The versions: those that arrive and are not there yet.
    pub arriving: &'a [Arriving],
    /// What they are made of, one for each.
    pub incoming: &'a [Incoming<'a>],
    /// The unwinder's hook, if there is none yet.
    pub new_hook: Option<&'a JournalHook>,
    /// Replacements of the code that is to change.
    pub replacements: &'a [PlannedReplacement],
    /// Replacements of a switch that did not come to its end: they go first, as far as they are there.
    pub leftovers: &'a [JournalReplacement],
}

/// What came to be mapped.
#[derive(Default)]
pub(crate) struct MappedNear {
    /// The areas of versions that count.
    pub counters: Vec<CounterArea>,
    /// Replacements, which show what the file holds.
    pub replacements: Vec<PlannedReplacement>,
    /// Code that has none, by its first address, with the reason.
    pub refused: Vec<(Avma, String)>,
    /// How long one context was held for it.
    pub held: Duration,
}

/// A host whose contexts run.
pub(crate) trait Host {
    /// Its bytes.
    type Memory: CodeMemory;

    /// It, while it stands still.
    type Stopped<'s>: StoppedHost
    where
        Self: 's;

    /// What is mapped where, by address: modules, versions and all else.
    fn maps(&self) -> Result<Vec<Mapping>, ProcessError>;

    /// Its bytes, while they may change.
    fn memory(&self) -> Result<Self::Memory, ProcessError>;

    /// Whether it is there still.
    fn is_alive(&self) -> bool;

    /// Maps what a switch needs. Nothing leads there.
    ///
    /// # Errors
    /// If a version or the hook cannot be mapped; part of all may be then, at its place. That a replacement
    /// cannot be is no error.
    fn map_near(&mut self, wanted: &ToMap<'_>) -> Result<MappedNear, ProcessError>;

    /// Unmaps these ranges, mapped or not; how long one context was held for it.
    fn unmap(&mut self, ranges: &[AvmaRange]) -> Result<Duration, ProcessError>;

    /// Stops it where leaving and arriving versions have equivalents, if that can be.
    fn stop(&mut self, plan: &SwitchPlan<'_>) -> Result<Self::Stopped<'_>, ProcessError>;

    /// Stops it wherever it is.
    fn stop_anywhere(&mut self) -> Result<Self::Stopped<'_>, ProcessError>;

    /// Lets it run for a while.
    fn wait(&self, time: Duration) {
        std::thread::sleep(time);
    }
}
