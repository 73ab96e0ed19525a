//! What is done to the process before the stop, while it runs: versions, counter areas, the unwinder's page
//! and replacement mappings of code mappings come to be mapped, and the replacements get the code that is to
//! be.
//!
//! One thread is borrowed for that; nothing leads to what is mapped, so the others do not notice. All of it
//! is in the journal before it exists.

use crate::attached_process::{AttachedProcess, Reservation};
use crate::error::ProcessError;
use crate::frames::names_unwinder;
use crate::hook;
use crate::memory::replacement_mapping::{self, FilledReplacement, PlannedReplacement};
use crate::memory::search::joined;
use crate::memory::writing::Sites;
use crate::plan::has_personality;
use crate::running_host::{Host, ToMap};
use crate::state::hook_journal::JournalHook;
use crate::state::journal::{Journal, JournalReplacement};
use crate::switch_plan::SwitchPlan;
use restitch_address::{Avma, AvmaRange, PAGE};
use restitch_procfs::{self as procfs, Mapping, MappingName};
use std::time::Duration;

/// What is to be mapped before the stop.
pub(crate) struct Preparation {
    /// The journal as it has to be on disk before anything is mapped: everything that may be there during the
    /// switch.
    pub journal: Journal,
    pub sites: Sites,
    /// The unwinder's hook, if there is none yet.
    new_hook: Option<JournalHook>,
    /// Replacement mappings that a killed restitch has left.
    leftovers: Vec<JournalReplacement>,
    replacements: Vec<PlannedReplacement>,
    refused: Vec<(Avma, String)>,
}

/// What is mapped when the stop begins.
pub(crate) struct Ready {
    pub replacements: Vec<FilledReplacement>,
    /// Mappings without a replacement, with the reason.
    pub refused: Vec<(Avma, String)>,
    /// How long one thread was held.
    pub held: Duration,
}

/// Plans it. Nothing is changed yet.
pub(crate) fn plan(attached: &AttachedProcess, plan: &SwitchPlan<'_>) -> Result<Preparation, ProcessError> {
    let pid = attached.target.pid();
    let around = Around {
        maps: &procfs::maps(pid)?,
        heap_start: procfs::heap_start(pid),
        new_hook: plan_hook(attached, plan)?,
    };
    Ok(around.plan(&attached.journal, plan))
}

/// What is planned among.
pub(crate) struct Around<'a> {
    /// What is mapped.
    pub maps: &'a [Mapping],
    /// Where the heap grows from.
    pub heap_start: Option<Avma>,
    /// The unwinder's hook, if there is none yet and one is needed.
    pub new_hook: Option<JournalHook>,
}

impl Around<'_> {
    /// Plans what is to be mapped beside that.
    pub fn plan(self, journal: &Journal, plan: &SwitchPlan<'_>) -> Preparation {
        let Self { maps, heap_start, new_hook } = self;
        let mut journal = planned_journal(journal, plan);
        let mut taken: Vec<AvmaRange> = plan.arriving.iter().flat_map(|a| a.ranges()).collect();
        taken.extend(new_hook.as_ref().map(JournalHook::range));
        journal.hook = new_hook.clone().or(journal.hook);
        let sites = Sites::new(&journal, &plan.patches);
        let leftovers = std::mem::take(&mut journal.replacements);
        let (mut replacements, mut refused) = (Vec::new(), Vec::new());
        for planned in replacement_mapping::plan(maps, &sites, &taken, heap_start) {
            match planned {
                Ok(replacement) => replacements.push(replacement),
                Err(why) => refused.push(why),
            }
        }
        journal.replacements = leftovers
            .iter()
            .cloned()
            .chain(replacements.iter().flat_map(PlannedReplacement::journal))
            .collect();
        Preparation { journal, sites, new_hook, leftovers, replacements, refused }
    }
}

/// The journal as it has to be on disk before the first change.
fn planned_journal(now: &Journal, plan: &SwitchPlan<'_>) -> Journal {
    let mut planned = now.clone();
    planned.patches = plan.patches.journal(&now.patches);
    planned.versions.retain(|v| plan.arriving.iter().all(|a| a.record.start != v.start));
    for v in &mut planned.versions {
        v.retired = true;
    }
    planned.versions.extend(plan.arriving.iter().map(|a| a.record.clone()));
    planned.used.extend(plan.arriving.iter().map(|a| (a.record.start, a.record.len)));
    // Numbers may have been given to versions that did not come to be.
    let behind = plan.arriving.iter().map(|a| a.record.number + 1);
    planned.next_number = behind.fold(planned.next_number, u32::max);
    planned
}

/// The unwinder's hook, if versions arrive and there is none yet. `None` also if the process needs none:
/// nothing in it can unwind through moved frames.
fn plan_hook(attached: &AttachedProcess, plan: &SwitchPlan<'_>) -> Result<Option<JournalHook>, ProcessError> {
    if plan.incoming.is_empty() || attached.journal.hook.is_some() {
        return Ok(None);
    }
    // There is an unwinder, or some function has a personality routine.
    let modules = &attached.target.modules;
    let can_unwind = modules.iter().any(|m| names_unwinder(m) || has_personality(m));
    let mut taken: Vec<(usize, Reservation)> = Vec::new();
    for (new, arriving) in plan.incoming.iter().zip(&plan.arriving) {
        for range in arriving.ranges() {
            let start = modules[new.module].bias.to_stated(range.start);
            let len = range.len().next_multiple_of(PAGE);
            taken.push((new.module, Reservation { number: new.version.number, start, len }));
        }
    }
    hook::plan(&attached.target, can_unwind, |near, len| {
        let place = attached.reserve(near, len, &taken, &[], PAGE)?;
        Ok(modules[near].bias.to_actual(place.start))
    })
}

impl Preparation {
    /// Does it. The journal is on disk already. After an error call [`undo`].
    pub fn carry_out(
        self,
        attached: &mut AttachedProcess,
        plan: &SwitchPlan<'_>,
        host: &mut impl Host,
    ) -> Result<Ready, ProcessError> {
        let Self { sites, new_hook, leftovers, replacements, mut refused, .. } = self;
        let (new_hook, leftovers, replacements) = (new_hook.as_ref(), &leftovers[..], &replacements[..]);
        let (arriving, incoming) = (&plan.arriving[..], plan.incoming);
        let mapped = host.map_near(&ToMap { arriving, incoming, new_hook, replacements, leftovers })?;
        attached.counters.extend(mapped.counters);
        attached.journal.replacements.retain(|s| !leftovers.contains(s));
        refused.extend(mapped.refused);
        let mut ready = Ready { replacements: Vec::new(), refused, held: mapped.held };
        if mapped.replacements.is_empty() {
            return Ok(ready);
        }
        let memory = host.memory()?;
        if let Some(new_hook) = new_hook {
            hook::own_pages(&memory, new_hook)?;
        }
        for replacement in mapped.replacements {
            match replacement.fill(&attached.journal, &memory, &sites, &plan.stub)? {
                Ok(filled) => ready.replacements.push(filled),
                Err((at, why)) => ready.refused.push((at, why.to_string())),
            }
        }
        Ok(ready)
    }
}

/// Unmaps what was mapped for a switch that does not come about, as far as that is possible. The journal
/// knows what stays.
pub(crate) fn undo(
    attached: &mut AttachedProcess,
    before: Journal,
    plan: &SwitchPlan<'_>,
    host: &mut impl Host,
) -> Result<(), ProcessError> {
    let maps = host.maps()?;
    attached.journal.retain_mapped(&maps);
    let mut ranges: Vec<AvmaRange> =
        attached.journal.replacements.iter().map(JournalReplacement::range).collect();
    // Of a version and its counters the one may be there without the other.
    let new = plan.arriving.iter().filter(|a| !a.inherited).flat_map(|a| a.ranges());
    ranges.extend(new.filter(|r| maps.iter().any(|m| m.range.start == r.start && is_ours(m))));
    let hook = attached.journal.hook.iter().filter(|h| before.hook.as_ref() != Some(h));
    // Nothing leads to it yet.
    let memory = host.memory()?;
    let is_anonymous =
        |at: Avma| maps.iter().any(|m| m.range.contains(at) && m.name == MappingName::Anonymous);
    ranges.extend(
        hook.filter(|h| hook::found::is_there(h, &memory) && is_anonymous(h.range().start))
            .map(JournalHook::range),
    );
    if !ranges.is_empty()
        && let Err(error) = host.unmap(&joined(ranges))
    {
        attached.journal.save_if_possible(&attached.dir);
        return Err(error);
    }
    let is_new = |number: u32| plan.arriving.iter().any(|a| a.record.number == number && !a.inherited);
    attached.counters.retain(|c| !is_new(c.number));
    attached.journal = before;
    attached.journal.replacements.clear();
    attached.journal.save_if_possible(&attached.dir);
    Ok(())
}

/// Whether a mapping bears one of our names. (The program may have mapped something of its own where we could
/// not.)
pub(crate) fn is_ours(m: &Mapping) -> bool {
    m.path().is_some_and(|p| p.to_string_lossy().contains("restitch-"))
}

/// Unmaps replacements and old code that are still there after the switch; how long one thread was held for
/// it.
pub(crate) fn unmap_replacements(
    attached: &mut AttachedProcess,
    host: &mut impl Host,
) -> Result<Duration, ProcessError> {
    let maps = host.maps()?;
    attached.journal.replacements.retain(|s| s.is_mapped(&maps));
    if attached.journal.replacements.is_empty() {
        return Ok(Duration::ZERO);
    }
    let left: Vec<AvmaRange> = attached.journal.replacements.iter().map(JournalReplacement::range).collect();
    let held = host.unmap(&left)?;
    attached.journal.replacements.clear();
    Ok(held)
}
