//! What is made of a module, in the background: a counting overlay, a profile from its counts, an optimized overlay.

use super::cache::{Cache, Entry};
use super::progress::Progress;
use crate::SessionError;
use crate::analysis::{Analyzed, analyze_image};
use crate::files::write_whole;
use crate::huge::{HugePages, alignment};
use crate::make::{Extras, Place, Wanted, check_version, counting_layout, emit_version, estimate, lay_out};
use crate::refusal::run_time;
use crate::selection::{select, weigh};
use restitch_address::{FileOffset, Svma};
use restitch_apply_preload::{Overlay, place};
use restitch_image::Image;
use restitch_layout::{Layout, LayoutChoice};
use restitch_preload::{COUNTS_HEADER, Counts};
use restitch_profile::{
    Calls, CounterPlan, Derived, ModuleProfile, Profile, ProfileFile, Weights, derive, plan_counters,
    scope_of,
};
use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// A module that is being worked on.
pub(crate) struct Job {
    path: PathBuf,
    pub id: Vec<u8>,
    pub id_text: String,
    analyzed: Analyzed,
    plan: CounterPlan,
    missing: Vec<u32>,
    /// Held until the work is done, so that no other session works on the same.
    lock: File,
    earlier: Option<Profile>,
    progress: Progress,
}

/// A module that nobody else works on.
pub(crate) struct Held {
    pub module: Analyzed,
    _lock: File,
}

/// Reads a module's file. What its build id is, and whether it can be worked on.
pub(crate) fn read_module(path: &Path) -> Result<Image, SessionError> {
    let bad = |why: String| SessionError::BadFile { path: path.into(), why };
    let image = Image::parse(crate::files::read_file(path)?).map_err(|e| bad(e.to_string()))?;
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    if name.starts_with("librestitch-") {
        return Err(bad("it is restitch's own".into()));
    }
    if name.starts_with("libc.so.") || name.starts_with("libc-2.") {
        return Err(bad("it is the C library, which every process shares".into()));
    }
    if let Some(why) = run_time(&image, &name) {
        return Err(bad(why.into()));
    }
    if restitch_apply_elf::is_restitch_output(&image).is_some() {
        return Err(bad(restitch_apply_preload::OverlayError::Output.to_string()));
    }
    place(&image, 4096, 0, 4096).map_err(|e| bad(e.to_string()))?;
    Ok(image)
}

impl Job {
    /// Analyses the module, chooses functions by the samples, and puts a counting overlay in force: of `runs` runs, or of as many as are useful.
    ///
    /// # Errors
    /// [`SessionError::NothingToDo`] if nothing can be counted, or another session is at it; other errors as they come.
    pub fn begin(
        cache: &Cache,
        path: &Path,
        image: Image,
        samples: &BTreeMap<FileOffset, u64>,
        runs: Option<u64>,
    ) -> Result<Self, SessionError> {
        let bad = |why: String| SessionError::BadFile { path: path.into(), why };
        let id = image.build_id().map(|id| id.as_bytes().to_vec()).unwrap_or_default();
        let id_text = image.build_id().map(ToString::to_string).unwrap_or_default();
        let Some(lock) = cache.lock(&id_text) else {
            return Err(SessionError::NothingToDo("another session is working on it".into()));
        };
        let analyzed = analyze_image(Arc::new(image)).map_err(bad)?;
        let program = &analyzed.program;
        let by_address: BTreeMap<Svma, u64> = samples
            .iter()
            .filter_map(|(offset, n)| Some((analyzed.image.address_of(*offset)?, *n)))
            .collect();
        let weights = weigh(program, &by_address);
        let scope = scope_of(program, &select(program, &weights));
        let plan = plan_counters(program, &scope, Weights::Blocks(&weights.blocks), Calls::Return);
        if plan.counted.is_empty() {
            return Err(SessionError::NothingToDo("none of its code that runs can be counted".into()));
        }
        let layout = counting_layout(program, &plan);
        let missing = Vec::new();
        let earlier = None;
        let (path, progress) = (path.to_path_buf(), Progress::of(runs));
        let mut job = Self { path, id, id_text, analyzed, plan, missing, lock, earlier, progress };
        job.put_counting(cache, &layout)?;
        Ok(job)
    }

    fn put_counting(&mut self, cache: &Cache, layout: &Layout) -> Result<(), SessionError> {
        let identity = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |t| t.as_nanos() as u64);
        let counted = Some(&self.plan.counted[..]);
        let (overlay, missing) = make_overlay(
            &self.path,
            &self.analyzed,
            layout,
            Wanted { counted, ..Wanted::default() },
            identity,
        )?;
        self.missing = missing;
        cache.note_path(&self.id_text, &self.path)?;
        // First the counts, so that the overlay is never there without them.
        write_whole(&cache.counts(&self.id), &overlay.counts(), 0o600)?;
        self.grant(cache, self.progress.granted())?;
        write_whole(&cache.overlay(&self.id), overlay.bytes(), 0o600)
    }

    /// Lets so many more processes count.
    fn grant(&self, cache: &Cache, more: u64) -> Result<(), SessionError> {
        let path = cache.counts(&self.id);
        let fail = |source| SessionError::File { operation: "writing", path: path.clone(), source };
        let file = File::options().read(true).write(true).open(&path).map_err(fail)?;
        // Processes lower the number by atomic operations; no one does while it is zero, which it is when more are granted.
        file.write_all_at(&more.to_le_bytes(), Counts::TICKETS_AT).map_err(fail)
    }

    /// Looks at the counts. Whether the profile is complete; if not, more processes may count when those that may have ended.
    /// What was counted so far is the profile at the end of the command, and where so many more runs are not `affordable`.
    ///
    /// # Errors
    /// If the counts cannot be read.
    pub fn look(
        &mut self,
        cache: &Cache,
        at_end: bool,
        affordable: impl FnOnce(u64) -> bool,
    ) -> Result<bool, SessionError> {
        let path = cache.counts(&self.id);
        let fail = |source| SessionError::File { operation: "reading", path: path.clone(), source };
        let file = File::open(&path).map_err(fail)?;
        let mut head = [0; 64];
        file.read_exact_at(&mut head, 0).map_err(fail)?;
        let word =
            |at: u64| u64::from_le_bytes(head[at as usize..at as usize + 8].try_into().expect("8 bytes"));
        let (started, ended) = (word(Counts::STARTED_AT), word(Counts::ENDED_AT));
        let due = self.progress.is_due(started, ended);
        let is_last_look = at_end && started > 0;
        if !due && !is_last_look {
            return Ok(false);
        }
        let mut bytes = vec![0; 8 * self.plan.counted.len()];
        file.read_exact_at(&mut bytes, COUNTS_HEADER).map_err(fail)?;
        let values: Vec<u64> =
            bytes.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().expect("8 bytes"))).collect();
        let program = &self.analyzed.program;
        let derived: Derived = derive(program, &self.plan.known_without(program, &values, &self.missing));
        let overlap = self.earlier.as_ref().map(|e| overlap(&e.edges, &derived.profile.edges));
        let counted = derived.profile.blocks.iter().any(|n| *n > 0);
        self.earlier = counted.then_some(derived.profile);
        if counted && self.progress.is_enough(started, overlap) || at_end {
            return Ok(true);
        }
        if counted && !affordable(self.progress.granted()) {
            return Ok(true);
        }
        self.progress.go_on();
        self.grant(cache, self.progress.granted() - started.min(self.progress.granted()))?;
        Ok(false)
    }

    /// Ends the counting and keeps the profile. The module can be optimized by [`optimize`] then, now or in another session.
    ///
    /// # Errors
    /// If nothing was counted, or the cache cannot be written.
    pub fn keep_profile(&mut self, cache: &Cache, seconds_per_run: f64) -> Result<Entry, SessionError> {
        // From here on nobody begins to count any more.
        cache.put_in_force(&self.id_text)?;
        let Some(profile) = self.earlier.take() else {
            return Err(SessionError::NothingToDo("no run of it was counted".into()));
        };
        let text = self.path.to_string_lossy();
        let part = ModuleProfile::of(&self.analyzed.program, &profile, &self.id, &text);
        let entry = Entry {
            path: self.path.clone(),
            build_id: self.id_text.clone(),
            profiled_runs: self.progress.runs(),
            profiled_at: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs()),
            seconds_per_run,
            cost_seconds: 0.0,
            layout: String::new(),
        };
        cache.keep_profile(&entry, &ProfileFile { modules: vec![part] }.write())?;
        Ok(entry)
    }

    /// The module, to be optimized.
    pub fn into_held(self) -> Held {
        Held { module: self.analyzed, _lock: self.lock }
    }

    /// Gives up: the stored overlay is in force again, or none.
    pub fn abandon(self, cache: &Cache) {
        // Failing, it goes on counting until its tickets are used up.
        let _ = cache.put_in_force(&self.id_text);
    }

    /// The module's file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

/// Makes the optimized overlay of a module whose profile is in the cache, and puts it in force.
///
/// # Errors
/// [`SessionError`]; what was in force stays so.
pub(crate) fn optimize(
    cache: &Cache,
    mut entry: Entry,
    module: &Analyzed,
    choice: LayoutChoice,
    cost: impl FnOnce() -> f64,
) -> Result<Entry, SessionError> {
    let bad = |why: String| SessionError::BadFile { path: entry.path.clone(), why };
    let profile = crate::files::read_file(&cache.stored(&entry.build_id, "profile"))?;
    let profile = ProfileFile::read(&profile).map_err(|e| bad(e.to_string()))?;
    let id = module.image.build_id().map(|id| id.as_bytes()).unwrap_or_default();
    let part = profile.module(id).ok_or_else(|| bad("the cache has no profile of it".into()))?;
    let (profile, _) = part.resolve(&module.program);
    let layout = lay_out(choice, None, Extras::default(), &module.program, &profile);
    let large_pages = HugePages::Auto.wanted(&module.program, &layout);
    let wanted = Wanted { heat: &profile.blocks, large_pages, ..Wanted::default() };
    let overlay = make_overlay(&entry.path, module, &layout, wanted, 0)?.0;
    entry.cost_seconds = cost();
    entry.layout = choice.name().into();
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
) -> Result<Entry, SessionError> {
    let bad = |why: String| SessionError::BadFile { path: entry.path.clone(), why };
    let nothing = |why: &str| SessionError::NothingToDo(why.into());
    let _lock = cache.lock(&entry.build_id).ok_or_else(|| nothing("another session is working on it"))?;
    if cache.entry(&entry.build_id).is_some_and(|now| !now.layout.is_empty()) {
        return Err(nothing("another session has optimized it meanwhile"));
    }
    let image = read_module(&entry.path)?;
    if image.build_id().is_none_or(|id| id.to_string() != entry.build_id) {
        cache.remove(&entry.build_id);
        return Err(bad("it has changed since it was profiled".into()));
    }
    let module = analyze_image(Arc::new(image)).map_err(bad)?;
    optimize(cache, entry, &module, layout, cost)
}

/// Emits and checks a version, and makes an overlay of it; with the counters that nothing increments.
fn make_overlay(
    path: &Path,
    module: &Analyzed,
    layout: &Layout,
    wanted: Wanted<'_>,
    identity: u64,
) -> Result<(Overlay, Vec<u32>), SessionError> {
    let bad = |why: String| SessionError::BadFile { path: path.into(), why };
    let counted = wanted.counted;
    let counters = counted.map_or(0, |c| 8 * c.len() as u64);
    let align = alignment(wanted.large_pages);
    let size = estimate(&module.program, layout, counted.map_or(0, <[_]>::len)).next_multiple_of(align);
    let places = place(&module.image, size, counters, align).map_err(|e| bad(e.to_string()))?;
    let place = Place { number: 1, start: places.start, counters: places.counters, bias: None };
    let version = emit_version(path, module, layout, place, wanted)?;
    let version = check_version(path, module, layout, version, None)?;
    let missing = version.counters.as_ref().map(|c| c.missing.clone()).unwrap_or_default();
    let overlay = Overlay::plan(&module.image, &version, identity).map_err(|e| bad(e.to_string()))?;
    Ok((overlay, missing))
}

/// Sum of the smaller shares (AutoFDO's overlap).
fn overlap(a: &[u64], b: &[u64]) -> f64 {
    let sum = |v: &[u64]| v.iter().map(|n| *n as f64).sum::<f64>().max(1.0);
    let (x, y) = (sum(a), sum(b));
    a.iter().zip(b).map(|(m, n)| (*m as f64 / x).min(*n as f64 / y)).sum()
}
