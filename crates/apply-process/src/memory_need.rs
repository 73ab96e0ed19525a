//! What a change would take of a process's memory, to be told before there is one.

use crate::attached_process::AttachedProcess;
use crate::memory::memory_room::taken;
use crate::memory::writing::Sites;
use crate::patches::PatchSet;
use restitch_check::CheckedVersion;
use restitch_procfs::{MemoryRoom, memory_room};

/// What a change would take of a process's memory, and what there is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryNeed {
    /// Bytes that have to be left: with less the change is refused.
    pub needed: u64,
    /// The tightest of its memory cgroups; `None` if none has a limit that can be seen.
    pub room: Option<MemoryRoom>,
}

impl AttachedProcess {
    /// What it would take to put `versions` (with their modules' indices) in force, by the rule that refuses
    /// a switch without room. Nothing is changed.
    pub fn memory_for(&self, versions: &[(usize, CheckedVersion)]) -> MemoryNeed {
        let mut patches = PatchSet::default();
        for (module, version) in versions {
            patches.add(&self.target.modules[*module], &version.redirects);
        }
        let new = versions.iter().map(|(_, version)| version.mapped_len()).sum();
        let needed = taken(&Sites::new(&self.journal, &patches), new);
        MemoryNeed { needed, room: memory_room(self.target.pid()) }
    }
}
