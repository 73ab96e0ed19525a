//! Overlays of a module: those that count, and the optimized one that is made from a profile.

use crate::build::Build;
use crate::builds::REPLACED;
use crate::cache::{Cache, Entry};
use crate::known::read_module;
use crate::own_files::{MOST_OF_DATA, read_own};
use restitch_apply::Why;
use restitch_apply_preload::{Overlay, place};
use restitch_check::CheckedVersion;
use restitch_layout::{LayoutChoice, Reaching};
use restitch_pipeline::PipelineError;
use restitch_pipeline::analysis::{Analyzed, analyze_image};
use restitch_pipeline::build_version::{Draft, Entrances, Source, build_version};
use restitch_pipeline::counting_version::{CountingDraft, missing_counters};
use restitch_pipeline::large_pages::alignment;
use restitch_pipeline::make::Place;
use restitch_pipeline::timings::Timings;
use restitch_pipeline::version_options::VersionOptions;
use restitch_procfs::FileLock;
use restitch_profile::ProfileFile;
use std::path::Path;
use std::sync::Arc;

/// Why a module is left to others.
pub(crate) const BUSY: &str = "another session is working on it";

/// Whether nothing came of a module because another session works on it.
pub fn is_busy(error: &PipelineError) -> bool {
    matches!(error, PipelineError::NothingToDo(why) if why == BUSY)
}

/// Why nothing is counted. With few samples that is chance: see [`is_due`](super::usage::is_due).
pub(crate) const UNCOUNTED: &str = "none of its code that was seen running can be counted";

/// Whether it was for [`UNCOUNTED`] that nothing came of it.
pub(crate) fn shows_nothing<T>(begun: &Result<T, PipelineError>) -> bool {
    matches!(begun, Err(PipelineError::NothingToDo(why)) if why == UNCOUNTED)
}

/// A module that nobody else works on.
pub(crate) struct Held {
    pub module: Analyzed,
    _lock: FileLock,
}

impl Held {
    /// With the module's lock.
    pub fn new(module: Analyzed, lock: FileLock) -> Self {
        Self { module, _lock: lock }
    }
}

/// Makes the optimized overlay of a module whose profile is in the cache, and puts it in force.
///
/// # Errors
/// [`PipelineError`]; what was in force stays so.
pub(crate) fn optimize(
    cache: &Cache,
    mut entry: Entry,
    module: &Analyzed,
    choice: LayoutChoice,
    cost: impl FnOnce() -> f64,
) -> Result<Entry, PipelineError> {
    let bad = |why: Why| PipelineError::BadFile { path: entry.path.clone(), why };
    let kept = cache.stored(&entry.build_id, "profile");
    let fail = |source| PipelineError::File { operation: "reading", path: kept.clone(), source };
    let profile = read_own(&kept, MOST_OF_DATA).map_err(fail)?;
    let profile = ProfileFile::read(&profile).map_err(|e| bad(e.into()))?;
    let part = profile
        .module(module.image.identity().as_bytes())
        .ok_or_else(|| bad("the cache has no profile of it".into()))?;
    let (profile, _) = part.resolve(&module.program);
    let options = VersionOptions { layout: choice, ..VersionOptions::default() };
    let source = Source { path: &entry.path, module, profile: &profile, options: &options };
    let entrances = Entrances { reaching: Reaching::ByBranches, pointers: None };
    let place = |draft: &Draft| place_for(&entry.path, module, draft.room(module), 0, draft.alignment());
    let made = build_version(source, entrances, place, &mut Timings::new())?;
    let overlay = overlay_of(&entry.path, module, &made.version, 0)?;
    entry.cost_seconds = cost();
    entry.layout = choice.to_string();
    cache.keep(&entry, overlay.bytes())?;
    Ok(entry)
}

/// [`optimize`] for a module whose profile was made in another session.
///
/// # Errors
/// As there; and if the file is another one by now, or another session is at it.
pub(crate) fn optimize_stored(
    cache: &Cache,
    entry: Entry,
    layout: LayoutChoice,
    cost: impl FnOnce() -> f64,
) -> Result<Entry, PipelineError> {
    let bad = |why: Why| PipelineError::BadFile { path: entry.path.clone(), why };
    let nothing = |why: &str| PipelineError::NothingToDo(why.into());
    let _lock = cache.lock(&entry.build_id).ok_or_else(|| nothing(BUSY))?;
    if cache.entry(&entry.build_id).is_some_and(|now| !now.layout.is_empty()) {
        return Err(nothing("another session has optimized it meanwhile"));
    }
    let image = read_module(cache, &entry.path)?;
    if !entry.is_of(&Build::of(&image)) {
        cache.remove(&entry.build_id);
        return Err(bad(REPLACED.into()));
    }
    let module = analyze_image(Arc::new(image)).map_err(bad)?;
    optimize(cache, entry, &module, layout, cost)
}

/// A counting version as an overlay, with the counters that nothing increments.
pub(crate) fn counting_overlay(
    path: &Path,
    module: &Analyzed,
    draft: &CountingDraft,
    identity: u64,
) -> Result<(Overlay, Vec<u32>), PipelineError> {
    let room = draft.room(&module.program);
    let place = place_for(path, module, room.version, room.counters, alignment(false))?;
    let version = draft.build(path, module, place)?;
    Ok((overlay_of(path, module, &version, identity)?, missing_counters(&version)))
}

/// Room for a version of `size` bytes, and for so many bytes of counters behind it.
fn place_for(
    path: &Path,
    module: &Analyzed,
    size: u64,
    counters: u64,
    align: u64,
) -> Result<Place, PipelineError> {
    let places = place(&module.image, size, counters, align)
        .map_err(|e| PipelineError::BadFile { path: path.into(), why: e.into() })?;
    Ok(Place { number: 1, start: places.start, counters: places.counters, bias: None })
}

fn overlay_of(
    path: &Path,
    module: &Analyzed,
    version: &CheckedVersion,
    identity: u64,
) -> Result<Overlay, PipelineError> {
    Overlay::plan(&module.image, version, identity)
        .map_err(|e| PipelineError::BadFile { path: path.into(), why: e.into() })
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::fit::checked_module;
    use restitch_address::Svma;
    use restitch_apply_preload::verify;
    use restitch_emit::RetargetKind;
    use restitch_pipeline::make::{Wanted, Ways, estimate, lay_out, make};
    use restitch_profile::Profile;

    /// `main` is never seen running and stays; what it calls in a loop is seen.
    const SOURCE: &str = "__attribute__((noinline, noclone)) int step(int n) { if (n % 3) return n / 3 ^ 5; return n * 7 + 1; }\n\
        __attribute__((noinline, noclone)) int walk(int n) { int s = 0; for (int i = 0; i < n; i++) s += step(i) ^ step(s); return s; }\n\
        int main(int argc, char **argv) { (void)argv; return (walk(argc) + walk(argc + 1)) & 1; }\n";

    pub(in super::super) fn module() -> Option<(tempfile::TempDir, Analyzed)> {
        let folder = tempfile::tempdir().unwrap();
        let (source, program) = (folder.path().join("a.c"), folder.path().join("a"));
        std::fs::write(&source, SOURCE).unwrap();
        if restitch_testkit::find_program("gcc").is_none() {
            restitch_testkit::skipped("gcc is missing");
            return None;
        }
        let mut gcc = std::process::Command::new("gcc");
        let done =
            gcc.args(["-O1", "-Wl,--build-id=sha1", "-o"]).arg(&program).arg(&source).status().unwrap();
        assert!(done.success());
        let module =
            analyze_image(Arc::new(checked_module(&program, std::fs::read(&program).unwrap()).unwrap()))
                .unwrap();
        Some((folder, module))
    }

    /// Where symbols lead, and an overlay of a layout that has all but `main`.
    fn overlay(folder: &Path, module: &Analyzed) -> (Overlay, usize) {
        let program = &module.program;
        let mut profile = Profile::empty(program);
        let stays = |f: restitch_program::FuncId| program.function(f).name.as_deref() == Some("main");
        for block in program.block_ids().filter(|b| !stays(program.block(*b).function)) {
            profile.blocks[block.index()] = 100;
        }
        for (id, edge) in program.edges.iter().enumerate() {
            profile.edges[id] = profile.block(edge.from).min(profile.block(edge.to)) / 2;
        }
        let ways = Ways::usual(LayoutChoice::default(), None);
        let layout = lay_out(ways, program, &profile);
        let path = folder.join("a");
        let align = alignment(false);
        let size = estimate(program, &layout, 0).next_multiple_of(align);
        let place = place_for(&path, module, size, 0, align).unwrap();
        let version = make(&path, module, &layout, place, Wanted::default()).unwrap();
        let is_branch = |s: &&restitch_emit::Retarget| s.kind == RetargetKind::Displacement;
        let retargets = version.retargets.iter().filter(is_branch).count();
        (Overlay::plan(&module.image, &version, 0).unwrap(), retargets)
    }

    pub(in super::super) fn address(module: &Analyzed, name: &str) -> Svma {
        module.image.symbols_named(name).next().expect("a symbol").range.start
    }

    /// Its last page says what the changed content is, so that content alone is judged.
    fn resealed(overlay: &Overlay, change: impl Fn(&mut Vec<u8>)) -> Vec<u8> {
        let mut bytes = overlay.bytes().to_vec();
        change(&mut bytes);
        let content = bytes.len() - 4096;
        let checksum = restitch_preload::content::hash_of(&bytes[..content]);
        let meta = restitch_preload::Meta { checksum, ..overlay.meta };
        bytes[content..].copy_from_slice(&meta.encode());
        bytes
    }

    #[test]
    fn calls_of_code_that_stays_lead_straight_into_the_version() {
        let Some((folder, module)) = module() else { return };
        let (overlay, retargets) = overlay(folder.path(), &module);
        assert!(retargets >= 2, "main calls walk twice: {retargets}");
        assert_eq!(verify(overlay.bytes(), &module.image).unwrap(), overlay.meta);
        // The calls in the overlay's code lead into the version, and nowhere else.
        let (main, program) = (address(&module, "main"), &module.program);
        let function = program.function(program.function_at(main).expect("a function"));
        let calls: Vec<_> = program.calls.iter().filter(|c| function.range.contains(c.at)).collect();
        let text = |at: Svma| (overlay.meta.text_offset + at.get() - overlay.meta.text_start) as usize;
        let target = |bytes: &[u8], at: Svma| {
            let field = bytes[text(at) + 1..text(at) + 5].try_into().unwrap();
            (at + 5).offset(i32::from_le_bytes(field).into()).get()
        };
        let version = overlay.meta.version_start..overlay.meta.version_start + overlay.meta.version_len;
        assert_eq!(calls.len(), 2);
        for call in &calls {
            assert!(version.contains(&target(overlay.bytes(), call.at)));
        }
        // One that leads elsewhere, and one that is another instruction, are damage.
        let at = text(calls[0].at);
        let elsewhere = resealed(&overlay, |bytes| bytes[at + 4] ^= 0x10);
        assert!(verify(&elsewhere, &module.image).is_err());
        let other = resealed(&overlay, |bytes| bytes[at] = 0);
        assert!(verify(&other, &module.image).is_err());
    }
}
