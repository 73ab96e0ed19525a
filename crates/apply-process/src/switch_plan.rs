//! What is handed from one step of a switch to the next.

use crate::installed_version::InstalledVersion;
use crate::patches::PatchSet;
use crate::reverse::ReverseMap;
use crate::state::journal::{JournalVersion, VersionKind};
use crate::stub::StubSite;
use restitch_address::{Avma, AvmaRange};
use restitch_check::CheckedVersion;
use std::collections::BTreeSet;

/// A version that is to be in force.
#[derive(Debug, Clone, Copy)]
pub struct Incoming<'a> {
    /// Index of its module in the target.
    pub module: usize,
    /// The version, at a place from [`AttachedProcess::reserve`](crate::AttachedProcess::reserve) and with
    /// its number.
    pub version: &'a CheckedVersion,
    /// Its purpose.
    pub kind: VersionKind,
    /// Which slots lead into it: an optimized version.
    pub retargeted_slots: RetargetedSlots,
}

/// Which slots that cannot change any more lead into optimized versions (docs/design/calls.md).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum RetargetedSlots {
    /// None; those that do are led back.
    #[default]
    None,
    /// Those of linkage tables.
    Linkage,
    /// Those of linkage tables and of v-tables.
    All,
}

/// What a switch did, times in microseconds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SwitchReport {
    /// From the first thread's stop to the last one's release.
    pub pause_us: u64,
    /// Part of the pause: until all threads stood.
    pub stop_us: u64,
    /// Part of the pause: looking through threads and stacks, moving threads.
    pub threads_us: u64,
    /// Part of the pause: the unwinder's table.
    pub unwinder_us: u64,
    /// Part of the pause: comparing the code that is to be replaced with what was planned on.
    pub check_us: u64,
    /// Part of the pause: putting the prepared code in place.
    pub remap_us: u64,
    /// Part of the pause: writing redirects where no prepared code could be put in place.
    pub write_us: u64,
    /// Part of the pause: translating return addresses.
    pub returns_us: u64,
    /// Part of the pause: from the first thread's release to the last one's.
    pub resume_us: u64,
    /// Before the pause: how long one thread was held to map versions and prepared code, while the others
    /// ran.
    pub borrow_us: u64,
    /// Threads of the process.
    pub threads: usize,
    /// Redirects written.
    pub patched: usize,
    /// Slots of linkage tables and v-tables that were made to lead elsewhere.
    pub slots: usize,
    /// Places given their original bytes back.
    pub restored: usize,
    /// Redirects left out, because they cross a page or somebody returns into their bytes, or may.
    pub left_out: usize,
    /// Those of them that cover more than one instruction of a process in which contexts rest that signals
    /// have interrupted.
    pub left_to_preempted: usize,
    /// Threads whose program counter was moved.
    pub moved_threads: usize,
    /// Return addresses that were translated.
    pub moved_returns: usize,
    /// Why the redirects of a mapping were written page by page in the stop, which takes longer: its first
    /// address, the reason.
    pub written_in_stop: Vec<(Avma, String)>,
}

/// Everything that is computed before the stop.
pub(crate) struct SwitchPlan<'a> {
    pub incoming: &'a [Incoming<'a>],
    /// In the order of `incoming`.
    pub arriving: Vec<Arriving>,
    pub patches: PatchSet,
    /// Versions that are in the process and are not to be in force.
    pub leaving: Vec<InstalledVersion>,
    /// For each of `leaving` the function entries that lead out of it already.
    pub forwarding: Vec<BTreeSet<Avma>>,
    pub stub: StubSite,
    pub slots: Vec<SlotChange>,
    /// Program counters of contexts at rest, none on most processes ([`crate::preempted`]).
    pub resting: Vec<Avma>,
}

/// A slot that is to hold another address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotChange {
    /// The slot; a multiple of 8.
    pub at: Avma,
    /// What it held when this was planned.
    pub from: Avma,
    /// What it is to hold.
    pub to: Avma,
}

/// A version that will be mapped.
pub(crate) struct Arriving {
    pub record: JournalVersion,
    /// Path to open in the target; `None`: through a memory file.
    pub visible: bool,
    pub reverse: ReverseMap,
    /// It is mapped already: the process was forked off from one that was being switched.
    pub inherited: bool,
}

impl Arriving {
    /// The addresses that it takes.
    pub fn ranges(&self) -> impl Iterator<Item = AvmaRange> + use<> {
        let counters = self.record.counters.map(|(start, len)| AvmaRange::new(Avma::new(start), len));
        std::iter::once(self.record.range()).chain(counters)
    }
}
