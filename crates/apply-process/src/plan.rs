//! What a switch is going to do: everything that can be computed before anything is changed.

use crate::attached_process::AttachedProcess;
use crate::error::ProcessError;
use crate::installed_version::InstalledVersion;
use crate::patches::PatchSet;
use crate::readers;
use crate::retire::forwarding;
use crate::reverse::ReverseMap;
use crate::state::journal::{JournalPatch, JournalVersion, VersionKind};
use crate::state::map_file::StoredMap;
use crate::stub::stub_site;
use crate::switch_plan::{Arriving, Incoming, SwitchPlan};
use crate::target::Module;
use restitch_address::{Avma, PAGE};
use restitch_cfi::UnwindInfo;
use restitch_emit::MapPiece;
use restitch_tracee::Memory;
use std::os::unix::fs::PermissionsExt;

/// Computes it for `incoming`, and writes the files of its versions.
pub(crate) fn plan_switch<'a>(
    attached: &AttachedProcess,
    incoming: &'a [Incoming<'a>],
) -> Result<SwitchPlan<'a>, ProcessError> {
    let visible = attached.dir.visible_to(attached.target.pid());
    let mut patches = PatchSet::default();
    let mut arriving = Vec::new();
    for new in incoming {
        crate::relro_slots::verify(attached, new)?;
        let module = &attached.target.modules[new.module];
        patches.add(module, &new.version.redirects);
        let mut record = write_files(attached, new)?;
        let is_it =
            |v: &&JournalVersion| (v.start, v.len, &v.file) == (record.start, record.len, &record.file);
        let there = attached.journal.versions.iter().find(is_it);
        let inherited = there.is_some();
        record.by_pointers = there.is_some_and(|v| v.by_pointers);
        record.slots = there.map(|v| v.slots.clone()).unwrap_or_default();
        arriving.push(Arriving { record, visible, reverse: ReverseMap::new(ways_in(new)), inherited });
    }
    let slots = crate::slot_retargeting::plan(attached, incoming, &mut arriving)?;
    let mut leaving = InstalledVersion::all(&attached.journal, attached.now());
    leaving.retain(|o| arriving.iter().all(|a| a.record.range() != o.range));
    let memory = Memory::open_read_only(attached.target.pid())?;
    let forwarding = leaving.iter().map(|old| forwarding(&memory, old)).collect();
    let stub = stub_site(attached.now(), |module| {
        let is_changed = |p: &JournalPatch| module.contains(Avma::new(p.at));
        patches.any_in(module) || attached.journal.patches.iter().any(is_changed)
    })?;
    Ok(SwitchPlan { incoming, arriving, patches, leaving, forwarding, stub, slots, resting: Vec::new() })
}

/// Where threads and return addresses may be moved to. Nobody gets into a tracing version but by its tracer.
fn ways_in<'a>(new: &Incoming<'a>) -> &'a [MapPiece] {
    if new.kind == VersionKind::Burst { &[] } else { &new.version.map.pieces }
}

/// Whether a function of the module takes part in unwinding (static C programs do too: thread cancellation).
pub(crate) fn has_personality(module: &Module) -> bool {
    let tables =
        module.image.eh_frame().and_then(|r| Some((r.start, module.image.read(r.start, r.len() as usize)?)));
    let Some((at, bytes)) = tables else { return false };
    UnwindInfo::parse(bytes, at).is_ok_and(|info| info.entries().iter().any(|e| e.personality.is_some()))
}

/// Writes the version's file and its map, and makes its journal record.
fn write_files(attached: &AttachedProcess, new: &Incoming<'_>) -> Result<JournalVersion, ProcessError> {
    let module = &attached.target.modules[new.module];
    let v = new.version;
    let name = module.path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let stored = StoredMap { map: v.map.clone(), redirects: v.redirects.clone() }.write();
    let files = attached.dir.version_files(&name, &v.bytes, &stored);
    let mode = readers::mode_for(module);
    let there = std::fs::symlink_metadata(&files.version).ok().filter(std::fs::Metadata::is_file);
    let same = there.as_ref().is_some_and(|m| m.len() == v.bytes.len() as u64);
    if !same || !files.map.exists() {
        attached.dir.write(&files.map, &stored, 0o600)?;
        attached.dir.write(&files.version, &v.bytes, mode)?;
    } else if there.is_some_and(|m| m.permissions().mode() & 0o7777 != mode) {
        // Of an equal file that others may read, or may not.
        let allow = std::fs::set_permissions(&files.version, std::fs::Permissions::from_mode(mode));
        allow.map_err(|source| ProcessError::State {
            operation: "allow",
            path: files.version.clone(),
            source,
        })?;
    }
    let start = module.bias.to_actual(v.range.start);
    let counters =
        v.written().map(|area| (module.bias.to_actual(area.start).get(), area.len().next_multiple_of(PAGE)));
    Ok(JournalVersion {
        number: v.number,
        kind: new.kind,
        module: module.path.clone(),
        bias: module.bias.get(),
        start: start.get(),
        len: v.loaded_len,
        file: files.version,
        map_file: files.map,
        eh_frame_hdr: module.bias.to_actual(v.eh_frame_hdr.start).get(),
        counters,
        retired: false,
        by_pointers: false,
        slots: Vec::new(),
    })
}
