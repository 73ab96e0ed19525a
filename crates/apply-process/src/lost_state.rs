//! A layout in force whose journal and records are not here: they were removed (by a cleaner of temporary
//! files, say), or lie in another state directory.
//!
//! What is in a process is judged by the process itself: its code leads into what is named as a version. A
//! mapping of that name alone proves nothing, as anybody can map one; nothing leads there. Without the
//! address maps nobody can be moved out, and without the journal slots that lead there are not known, so it
//! is left as it is, and that is said.

use crate::entry_patch::{LEN, destination};
use crate::error::ProcessError;
use crate::own_pages::own_pages;
use crate::state::journal::Journal;
use crate::state::store::StateDir;
use crate::state::version_files::is_version_file;
use crate::target::{Module, Target};
use restitch_address::{Avma, AvmaRange, PAGE};
use restitch_image::Segment;
use restitch_procfs::{Mapping, MappingName};
use restitch_tracee::Memory;
use restitch_x86::patch::Patch;
use std::path::{Path, PathBuf};

/// # Errors
/// [`ProcessError::StateLost`] if code of the process leads into versions among its `maps` that `journal`,
/// made of what there is in `dir`, does not list.
pub(crate) fn refuse_lost(
    dir: &StateDir,
    target: &Target,
    maps: &[Mapping],
    journal: &Journal,
) -> Result<(), ProcessError> {
    let is_listed = |m: &Mapping| journal.versions.iter().any(|v| v.range().contains(m.range.start));
    let is_version = |m: &Mapping| m.permissions.execute && m.path().is_some_and(is_version_file);
    let unlisted: Vec<&Mapping> = maps.iter().filter(|m| is_version(m) && !is_listed(m)).collect();
    if unlisted.is_empty() {
        return Ok(());
    }
    let redirects = redirects_into(target, &unlisted)?;
    let Some((_, first)) = redirects.first() else { return Ok(()) };
    Err(ProcessError::StateLost {
        pid: target.pid(),
        redirects: redirects.len(),
        dir: dir.path().to_path_buf(),
        elsewhere: folder_of(first).filter(|folder| folder != dir.path()),
    })
}

/// The folder that a version's file lies in, by the process's own view; none if it was removed, or is a
/// memory file.
fn folder_of(version: &Mapping) -> Option<PathBuf> {
    match &version.name {
        MappingName::File { path, deleted: false } if path.is_absolute() && path.exists() => {
            path.parent().map(Path::to_path_buf)
        }
        _ => None,
    }
}

/// The places of code that differ from the file by a jump into one of `versions`, each with that one.
fn redirects_into<'m>(
    target: &Target,
    versions: &[&'m Mapping],
) -> Result<Vec<(Avma, &'m Mapping)>, ProcessError> {
    let memory = Memory::open_read_only(target.pid())?;
    let mut found = Vec::new();
    for module in target.modules.iter().filter(|m| !m.is_vdso()) {
        for segment in module.image.segments().iter().filter(|s| s.executable) {
            let pages = own_pages(&memory, module, segment);
            let requests: Vec<(Avma, usize)> = pages.iter().map(|at| (*at, PAGE as usize)).collect();
            for (page, bytes) in pages.into_iter().zip(memory.read_many(&requests)) {
                let bytes = bytes.unwrap_or_default();
                found.extend(in_page(module, segment, page, &bytes, versions));
            }
        }
    }
    Ok(found)
}

/// Those in the page at `page`. (No redirect crosses a page.)
fn in_page<'m>(
    module: &Module,
    segment: &Segment,
    page: Avma,
    bytes: &[u8],
    versions: &[&'m Mapping],
) -> Vec<(Avma, &'m Mapping)> {
    let version_at = |to: Avma| versions.iter().copied().find(|m| AvmaRange::contains(&m.range, to));
    let redirect = |(i, found): (usize, &[u8])| {
        let at = page + i as u64;
        let version = version_at(destination(at, Patch::beginning_of(found)?)?)?;
        let stated = module.bias.to_stated(at);
        let original = segment.file_backed().contains(stated).then(|| module.image.read(stated, LEN))??;
        (original != found).then_some((at, version))
    };
    bytes.windows(LEN).enumerate().filter_map(redirect).collect()
}
