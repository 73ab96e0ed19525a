//! Whether a process's memory cgroups have room for what a switch needs: the kernel ends a process that takes
//! more.

use crate::error::ProcessError;
use crate::memory::writing::Sites;
use crate::switch_plan::SwitchPlan;
use restitch_address::{Avma, AvmaRange, PAGE};
use restitch_procfs::memory_room;

/// What is wanted beside the pages that are counted: page tables, the unwinder's pages, and what the program
/// itself takes meanwhile. (A group with less than this was seen to lose its process, whatever the versions
/// were.)
const BESIDE: u64 = 1 << 20;

/// Refuses a switch for which there is no room in the process's memory cgroups.
///
/// # Errors
/// [`ProcessError::NoMemory`].
pub(crate) fn refuse_without(pid: i32, plan: &SwitchPlan<'_>, sites: &Sites) -> Result<(), ProcessError> {
    let Some(room) = memory_room(pid) else { return Ok(()) };
    let needed = needed(plan, sites);
    match room.left < needed {
        true => {
            Err(ProcessError::NoMemory { pid, needed, left: room.left, limit: room.limit, group: room.group })
        }
        false => Ok(()),
    }
}

/// What a switch may take of a process's memory, in bytes: what [`taken`] says, of what it changes and maps.
fn needed(plan: &SwitchPlan<'_>, sites: &Sites) -> u64 {
    let new = plan.arriving.iter().filter(|a| !a.inherited).flat_map(|a| a.ranges());
    taken(sites, new.map(|range| range.len()).sum())
}

/// Each page that changes twice (in its place, and in the replacement), the `new` bytes of versions with
/// their counters once, as they may lie in memory files.
pub(crate) fn taken(sites: &Sites, new: u64) -> u64 {
    let all = AvmaRange::between(Avma::new(0), Avma::new(u64::MAX));
    BESIDE + 2 * PAGE * sites.pages_in(all).count() as u64 + new
}
