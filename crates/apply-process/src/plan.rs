//! What a switch is going to do: everything that can be computed before anything is changed.

use crate::journal::{JournalPatch, JournalVersion, VersionKind};
use crate::live::Live;
use crate::map_file::StoredMap;
use crate::old::OldVersion;
use crate::patches::PatchSet;
use crate::prepared::{Arriving, Incoming, Prepared};
use crate::retire::leading_on;
use crate::reverse::ReverseMap;
use crate::stub::stub_site;
use crate::{Module, ProcessError, readers};
use restitch_address::Avma;
use restitch_cfi::UnwindInfo;
use restitch_emit::MapPiece;
use restitch_tracee::Memory;
use std::os::unix::fs::PermissionsExt;

/// Computes it for `incoming`, and writes the files of its versions.
pub(crate) fn prepare<'a>(live: &Live, incoming: &'a [Incoming<'a>]) -> Result<Prepared<'a>, ProcessError> {
    let visible = live.dir.visible_to(live.target.pid());
    let mut patches = PatchSet::default();
    let mut arriving = Vec::new();
    for new in incoming {
        crate::bound::verify(live, new)?;
        let module = &live.target.modules[new.module];
        patches.add(module, &new.version.redirects);
        let mut record = write_files(live, new)?;
        let is_it =
            |v: &&JournalVersion| (v.start, v.len, &v.file) == (record.start, record.len, &record.file);
        let there = live.journal.versions.iter().find(is_it);
        let inherited = there.is_some();
        record.by_pointers = there.is_some_and(|v| v.by_pointers);
        record.slots = there.map(|v| v.slots.clone()).unwrap_or_default();
        arriving.push(Arriving { record, visible, reverse: ReverseMap::new(ways_in(new)), inherited });
    }
    let slots = crate::slots::plan(live, incoming, &mut arriving)?;
    let mut old = OldVersion::all(&live.journal, live.now());
    old.retain(|o| arriving.iter().all(|a| a.record.range() != o.range));
    let memory = Memory::open_read_only(live.target.pid())?;
    let leading_on = old.iter().map(|old| leading_on(&memory, old)).collect();
    let stub = stub_site(live.now(), |module| {
        let is_changed = |p: &JournalPatch| module.contains(Avma::new(p.at));
        patches.any_in(module) || live.journal.patches.iter().any(is_changed)
    })?;
    Ok(Prepared { incoming, arriving, patches, old, leading_on, stub, slots })
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
fn write_files(live: &Live, new: &Incoming<'_>) -> Result<JournalVersion, ProcessError> {
    let module = &live.target.modules[new.module];
    let v = new.version;
    let name = module.path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let stored = StoredMap { map: v.map.clone(), redirects: v.redirects.clone() }.write();
    let files = live.dir.version_files(&name, &v.bytes, &stored);
    let mode = readers::mode_for(module);
    let there = std::fs::symlink_metadata(&files.version).ok().filter(std::fs::Metadata::is_file);
    let same = there.as_ref().is_some_and(|m| m.len() == v.bytes.len() as u64);
    if !same || !files.map.exists() {
        live.dir.write(&files.map, &stored, 0o600)?;
        live.dir.write(&files.version, &v.bytes, mode)?;
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
    let areas = (v.counters.as_ref().map(|c| c.area), v.burst.as_ref().map(|b| b.window));
    let counters = areas
        .0
        .or(areas.1)
        .map(|area| (module.bias.to_actual(area.start).get(), area.len().next_multiple_of(4096)));
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
