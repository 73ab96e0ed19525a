//! Counting the runs of a module: which functions, how many runs, and the profile that comes of it.

use crate::build::Build;
use crate::builds::{ModuleFile, REPLACED};
use crate::cache::{Cache, Entry};
use crate::known::read_module;
use crate::observe::Usage;
use crate::own_files::{MOST_OF_OVERLAY, open_own, open_own_for_writing, read_own};
use crate::progress::{Progress, Step};
use crate::suspended::Suspended;
use crate::trial::Trial;
use crate::usage::whole_runs;
use crate::work::{BUSY, Held, UNCOUNTED, counting_overlay, optimize};
use restitch_address::{FileOffset, Svma};
use restitch_apply::Why;
use restitch_image::Image;
use restitch_layout::LayoutChoice;
use restitch_pipeline::PipelineError;
use restitch_pipeline::analysis::{Analyzed, analyze_image};
use restitch_pipeline::counting_version::{Counters, CountingDraft};
use restitch_pipeline::disk::write_whole;
use restitch_pipeline::selection::{select, weigh};
use restitch_preload::{COUNTS_HEADER, Counts};
use restitch_procfs::FileLock;
use restitch_profile::{Derived, ModuleProfile, ProfileFile, Weights, derive};
use std::collections::BTreeMap;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

/// Nothing is executed more often: that takes a day at four executions a nanosecond.
const MOST_COUNTED: u64 = 1 << 48;

/// A module whose runs are counted.
pub(crate) struct Job {
    state: Suspended,
    id: Vec<u8>,
    /// There if it was begun in this session.
    planned: Option<Box<Planned>>,
    /// Held until the work is done, so that no other session works on the same.
    lock: FileLock,
    /// What the counters said when the profile was looked at last.
    earlier: Option<Vec<u64>>,
    /// Samples in runs that have counted, in earlier sessions.
    counted_before: u64,
    file: ModuleFile,
}

/// How a module's runs are counted.
struct Planned {
    module: Analyzed,
    draft: CountingDraft,
}

/// What this session has seen of the module's runs, in samples.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Measured {
    /// In runs that counted.
    pub counting: u64,
    /// In a typical run; 0 if nobody knows.
    pub typical: f64,
}

/// How it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Look {
    /// More runs are to count.
    Going,
    /// The profile is complete.
    Complete,
}

impl Planned {
    /// Chooses functions by the samples.
    fn of(module: Analyzed, samples: &BTreeMap<u64, u64>) -> Self {
        let program = &module.program;
        let address = |(at, n): (&u64, &u64)| Some((module.image.address_of(FileOffset::new(*at))?, *n));
        let by_address: BTreeMap<Svma, u64> = samples.iter().filter_map(address).collect();
        let weights = weigh(program, &by_address);
        let counters = Counters::wide(Weights::Blocks(&weights.blocks), false);
        let draft = CountingDraft::of(program, &select(program, &weights), counters);
        Self { module, draft }
    }

    /// FNV-1a over what the counters count.
    fn hash(&self) -> u64 {
        let text = format!("{:?}", self.draft.plan.counted);
        text.bytes()
            .fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(b)).wrapping_mul(0x0000_0100_0000_01b3))
    }
}

impl Job {
    /// Analyses the module, chooses functions by the samples, and puts a counting overlay in force: of `runs`
    /// runs, or of as many as are useful.
    ///
    /// # Errors
    /// [`PipelineError::NothingToDo`] if nothing can be counted of what the samples show ([`UNCOUNTED`]), or
    /// another session is at it; other errors as they come.
    pub fn begin(
        cache: &Cache,
        path: &Path,
        image: Image,
        samples: &BTreeMap<FileOffset, u64>,
        runs: Option<u64>,
    ) -> Result<Self, PipelineError> {
        let bad = |why| PipelineError::BadFile { path: path.into(), why };
        let (id, build) = (image.identity().as_bytes().to_vec(), Build::of(&image));
        let Some(lock) = cache.lock(&build.id) else {
            return Err(PipelineError::NothingToDo(BUSY.into()));
        };
        let module = analyze_image(Arc::new(image)).map_err(bad)?;
        let samples = samples.iter().map(|(at, n)| (at.get(), *n)).collect();
        let planned = Planned::of(module, &samples);
        if planned.draft.counts_nothing() {
            return Err(PipelineError::NothingToDo(UNCOUNTED.into()));
        }
        let mut state = Suspended::new(path.to_path_buf(), build, samples, Progress::of(runs));
        state.plan = planned.hash();
        let (planned, earlier) = (Some(Box::new(planned)), None);
        let (counted_before, file) = (0, ModuleFile::default());
        let mut job = Self { state, id, planned, lock, earlier, counted_before, file };
        job.put_counting(cache)?;
        Ok(job)
    }

    /// Goes on with what another session has begun; `None` if that is over, or some other session does. It is
    /// over if the module is another build by now.
    pub fn resume(cache: &Cache, id: &str) -> Option<Self> {
        let lock = cache.lock(id)?;
        let state = Suspended::read(cache, id).filter(|s| cache.is_suspended(&s.build_id))?;
        let id = bytes_of(&state.build_id)?;
        let (earlier, counted_before) = (state.earlier(cache), state.counted);
        let (planned, file) = (None, ModuleFile::default());
        let mut job = Self { state, id, planned, lock, earlier, counted_before, file };
        if job.is_replaced() {
            job.abandon(cache);
            return None;
        }
        Some(job)
    }

    /// Whether the module's file is another build by now, of which the counts say nothing.
    fn is_replaced(&mut self) -> bool {
        self.file.is_replaced(&self.state.path, &self.state.build())
    }

    fn put_counting(&mut self, cache: &Cache) -> Result<(), PipelineError> {
        let Some(planned) = &self.planned else { return Ok(()) };
        let identity = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |t| t.as_nanos() as u64);
        let (overlay, missing) =
            counting_overlay(&self.state.path, &planned.module, &planned.draft, identity)?;
        (self.state.missing, self.state.identity) = (missing, identity);
        cache.note_path(&self.state.build_id, &self.state.path)?;
        // First the counts, so that the overlay is never there without them.
        write_whole(&cache.counts(&self.id), &overlay.counts(), 0o600)?;
        self.grant(cache, self.state.progress.tickets())?;
        cache.count_with(&self.state.build_id, overlay.bytes())
    }

    /// Lets so many more processes count.
    fn grant(&self, cache: &Cache, more: u64) -> Result<(), PipelineError> {
        let path = cache.counts(&self.id);
        let fail = |source| PipelineError::File { operation: "writing", path: path.clone(), source };
        let file = open_own_for_writing(&path).map_err(fail)?;
        // Processes lower the number by atomic operations; no one does while it is zero, which it is when
        // more are granted.
        file.write_all_at(&more.to_le_bytes(), Counts::TICKETS_AT).map_err(fail)
    }

    /// How many processes have begun to count, and how many of them have ended.
    fn runs(&self, cache: &Cache) -> Result<(u64, u64), PipelineError> {
        let path = cache.counts(&self.id);
        let fail = |source| PipelineError::File { operation: "reading", path: path.clone(), source };
        let mut head = [0; 64];
        open_own(&path).and_then(|file| file.read_exact_at(&mut head, 0)).map_err(fail)?;
        let word =
            |at: u64| u64::from_le_bytes(head[at as usize..at as usize + 8].try_into().expect("8 bytes"));
        Ok((word(Counts::STARTED_AT), word(Counts::ENDED_AT)))
    }

    /// What the counters say.
    fn values(&self, cache: &Cache) -> Result<Vec<u64>, PipelineError> {
        let path = cache.counts(&self.id);
        let fail = |source| PipelineError::File { operation: "reading", path: path.clone(), source };
        let bytes = read_own(&path, MOST_OF_OVERLAY).map_err(fail)?;
        Ok(counts_in(bytes.get(COUNTS_HEADER as usize..).unwrap_or_default()))
    }

    /// To how many typical runs those come that have counted.
    fn whole(&mut self, started: u64, measured: Measured) -> f64 {
        self.state.counted = self.counted_before.saturating_add(measured.counting);
        whole_runs(self.state.counted, measured.typical, started)
    }

    /// Looks at the counts. Whether the profile is complete; if not, more processes may count when those that
    /// may have ended, and it is `affordable`.
    ///
    /// # Errors
    /// If the counts cannot be read; or enough runs have counted, and none did what is typical; or the
    /// module's file is another build by now.
    pub fn look(
        &mut self,
        cache: &Cache,
        measured: Measured,
        affordable: impl FnOnce() -> bool,
    ) -> Result<Look, PipelineError> {
        if self.is_replaced() {
            return Err(PipelineError::NothingToDo(REPLACED.into()));
        }
        if self.state.complete {
            return Ok(Look::Complete);
        }
        let (started, ended) = self.runs(cache)?;
        let whole = self.whole(started, measured);
        let more = match self.state.progress.next(started, ended, whole) {
            Step::Wait => return Ok(Look::Going),
            Step::GiveUp => {
                let why = "the runs that were counted did little of what its runs usually do";
                return Err(PipelineError::NothingToDo(why.into()));
            }
            // A given number of runs needs no more of them.
            _ if !self.state.progress.is_fixed() && !affordable() => return Ok(Look::Going),
            Step::Grant(more) => more,
            Step::Compare => {
                let values = self.values(cache)?;
                let overlap = self.earlier.as_ref().map(|earlier| overlap(earlier, &values));
                let counted = values.iter().any(|n| *n > 0);
                self.earlier = counted.then_some(values);
                if counted && self.state.progress.is_enough(overlap) {
                    self.state.complete = true;
                    return Ok(Look::Complete);
                }
                self.state.progress.double()
            }
        };
        self.state.progress.grant(more);
        self.grant(cache, more)?;
        Ok(Look::Going)
    }

    /// Whether what was counted until now makes a profile, with so many typical runs at `least`. If the
    /// number of runs was given, whatever has counted does.
    ///
    /// # Errors
    /// If the counts cannot be read.
    pub fn settle_for(
        &mut self,
        cache: &Cache,
        measured: Measured,
        least: f64,
    ) -> Result<bool, PipelineError> {
        let (started, _) = self.runs(cache)?;
        self.state.progress.begun(started);
        let least = if self.state.progress.is_fixed() { 0.0 } else { least };
        self.state.complete |= started > 0 && self.whole(started, measured) >= least;
        Ok(self.state.complete)
    }

    /// Leaves it to the next session. What may count goes on.
    ///
    /// # Errors
    /// If it cannot be written: the counting is over then.
    pub fn suspend(mut self, cache: &Cache, original: Usage, spent: f64) -> Result<(), PipelineError> {
        (self.state.original, self.state.spent) = (original, spent);
        let kept = self.state.keep(cache, self.earlier.as_deref());
        if kept.is_err() {
            self.abandon(cache);
        }
        kept
    }

    /// Ends the counting and keeps the profile; analyses the module again if another session has begun. It
    /// can be optimized by [`optimize`] then.
    ///
    /// # Errors
    /// If nothing was counted, the cache cannot be written, or the module is not any more what it was.
    pub fn keep_profile(&mut self, cache: &Cache, original: Usage) -> Result<Entry, PipelineError> {
        let values = self.values(cache)?;
        if values.iter().all(|n| *n == 0) {
            return Err(PipelineError::NothingToDo("no run of it was counted".into()));
        }
        if self.planned.is_none() {
            self.planned = Some(Box::new(plan_again(cache, &self.state)?));
        }
        let Some(planned) = &self.planned else { return Err(PipelineError::NothingToDo(String::new())) };
        let program = &planned.module.program;
        let values = &values[..planned.draft.plan.counted.len().min(values.len())];
        let derived: Derived =
            derive(program, &planned.draft.plan.known_without(program, values, &self.state.missing));
        let text = self.state.path.to_string_lossy();
        let part = ModuleProfile::of(program, &derived.profile, &self.id, &text);
        let entry = Entry {
            path: self.state.path.clone(),
            build_id: self.state.build_id.clone(),
            profiled_runs: self.state.progress.runs(),
            profiled_at: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |t| t.as_secs()),
            original,
            optimized: Usage::default(),
            cost_seconds: 0.0,
            layout: String::new(),
            trial: Trial::default(),
            content: Some(self.state.content),
        };
        cache.keep_profile(&entry, &ProfileFile { modules: vec![part] }.write())?;
        // From here on nobody begins to count any more.
        cache.put_in_force(&self.state.build_id)?;
        Ok(entry)
    }

    /// Whether [`keep_profile`](Self::keep_profile) is the matter of a moment.
    pub fn is_planned(&self) -> bool {
        self.planned.is_some()
    }

    /// The module, to be optimized; if its profile was kept.
    pub fn into_held(self) -> Option<Held> {
        Some(Held::new(self.planned?.module, self.lock))
    }

    /// Ends a counting that is complete, and lays out.
    ///
    /// # Errors
    /// As [`keep_profile`](Self::keep_profile) and [`optimize`]. The counting is over then, too.
    pub fn complete(
        mut self,
        cache: &Cache,
        original: Usage,
        choice: LayoutChoice,
        cost: impl FnOnce() -> f64,
    ) -> Result<Entry, PipelineError> {
        match self.keep_profile(cache, original) {
            Ok(entry) => match self.into_held() {
                Some(held) => optimize(cache, entry, &held.module, choice, cost),
                None => Ok(entry),
            },
            Err(error) => {
                self.abandon(cache);
                Err(error)
            }
        }
    }

    /// Gives up: the stored overlay is in force again, or none.
    pub fn abandon(self, cache: &Cache) {
        cache.end_counting(&self.state.build_id);
    }

    /// The module's file.
    pub fn path(&self) -> &Path {
        &self.state.path
    }

    /// Runs of the original before, and the processor seconds that were spent on it, when it was suspended
    /// last.
    pub fn before(&self) -> (Usage, f64) {
        (self.state.original, self.state.spent)
    }
}

/// The plan of a suspended counting.
fn plan_again(cache: &Cache, state: &Suspended) -> Result<Planned, PipelineError> {
    let bad = |why: Why| PipelineError::BadFile { path: state.path.clone(), why };
    let image = read_module(cache, &state.path)?;
    if Build::of(&image) != state.build() {
        return Err(bad(REPLACED.into()));
    }
    let module = analyze_image(Arc::new(image)).map_err(bad)?;
    let planned = Planned::of(module, &state.samples);
    let is_same = planned.hash() == state.plan;
    is_same.then_some(planned).ok_or_else(|| bad("another version of restitch has begun to count it".into()))
}

/// Counters, as a counts file has them. Every process that counts may write there: sums of what is taken from
/// it do not overflow.
pub(crate) fn counts_in(bytes: &[u8]) -> Vec<u64> {
    let words = bytes.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().expect("8 bytes")));
    words.map(|count| count.min(MOST_COUNTED)).collect()
}

/// The bytes of hexadecimal digits.
fn bytes_of(digits: &str) -> Option<Vec<u8>> {
    let pairs = digits.as_bytes().chunks(2).map(|pair| std::str::from_utf8(pair).ok());
    pairs.map(|pair| u8::from_str_radix(pair.filter(|p| p.len() == 2)?, 16).ok()).collect()
}

/// Sum of the smaller shares (AutoFDO's overlap).
pub(crate) fn overlap(a: &[u64], b: &[u64]) -> f64 {
    let sum = |v: &[u64]| v.iter().map(|n| *n as f64).sum::<f64>().max(1.0);
    let (x, y) = (sum(a), sum(b));
    a.iter().zip(b).map(|(m, n)| (*m as f64 / x).min(*n as f64 / y)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::upkeep::Verdict;
    use crate::work::shows_nothing;
    use crate::work::tests::{address, module};

    const RUNS: Usage = Usage { runs: 4, samples: 1000, pairs: 249_000, coarse: 0 };

    #[test]
    fn a_plan_is_made_again_from_what_is_kept_and_only_then() {
        let Some((folder, module)) = module() else { return };
        let cache = Cache::open(Some(&folder.path().join("cache"))).unwrap();
        let path = folder.path().join("a");
        let offset = module.image.file_offset(address(&module, "walk")).expect("in the file");
        let begin =
            |samples| Job::begin(&cache, &path, read_module(&cache, &path).unwrap(), &samples, Some(3));
        // The first bytes of the file are no code of any function.
        let nowhere = BTreeMap::from([(FileOffset::new(0), 10)]);
        assert!(shows_nothing(&begin(nowhere.clone())), "no function was seen running");
        let samples = BTreeMap::from([(offset, 10)]).into_iter().chain(nowhere).collect();
        let job = begin(samples).unwrap();
        let id = job.state.build_id.clone();
        let hash = job.planned.as_ref().unwrap().hash();
        assert!(cache.lock(&id).is_none(), "it is held");
        job.suspend(&cache, RUNS, 0.25).unwrap();
        cache.tidy();
        assert!(cache.is_suspended(&id), "what is suspended stays in force");
        let state = Suspended::read(&cache, &id).unwrap();
        assert_eq!((state.plan, plan_again(&cache, &state).unwrap().hash()), (hash, hash));
        let mut strange = state.clone();
        strange.plan ^= 1;
        assert!(plan_again(&cache, &strange).is_err(), "its counters would mean other blocks");

        // Six runs have counted (by hand), three of which were no runs worth the name.
        let mut job = Job::resume(&cache, &id).unwrap();
        assert!(Job::resume(&cache, &id).is_none(), "one at a time");
        assert_eq!(job.before(), (RUNS, 0.25));
        let mut counts = std::fs::read(cache.counts(&job.id)).unwrap();
        counts[Counts::STARTED_AT as usize] = 6;
        counts[Counts::ENDED_AT as usize] = 6;
        let plan = job.state.missing.len() + 1;
        counts[COUNTS_HEADER as usize..].chunks_exact_mut(8).for_each(|c| c[0] = 3 + plan as u8);
        write_whole(&cache.counts(&job.id), &counts, 0o600).unwrap();
        let measured = Measured { counting: 300, typical: 100.0 };
        assert_eq!(job.look(&cache, measured, || false).unwrap(), Look::Complete);
        let done = job.complete(&cache, RUNS, LayoutChoice::default(), || 1.0).unwrap();
        assert_eq!((done.profiled_runs, done.cost_seconds), (6, 1.0));
        assert!(!cache.is_suspended(&id) && Suspended::read(&cache, &id).is_none(), "the counting is over");
        assert_eq!(cache.verify(&done), Verdict::Sound);
        assert!(Job::resume(&cache, &id).is_none());
    }

    #[test]
    fn a_damaged_overlay_that_counts_is_found_and_its_counting_ended() {
        let Some((folder, module)) = module() else { return };
        let cache = Cache::open(Some(&folder.path().join("cache"))).unwrap();
        let path = folder.path().join("a");
        let offset = module.image.file_offset(address(&module, "walk")).expect("in the file");
        let samples = BTreeMap::from([(offset, 10)]);
        let job = Job::begin(&cache, &path, read_module(&cache, &path).unwrap(), &samples, None).unwrap();
        let id = job.state.build_id.clone();
        let overlay = cache.path.join(format!("{id}.counting"));
        // What a session is at has no note yet.
        assert_eq!((cache.verify_all(), cache.prune(0)), (Vec::new(), (0, 1)));
        assert!(overlay.exists());
        job.suspend(&cache, RUNS, 0.25).unwrap();
        assert_eq!(cache.verify_all(), [(path.clone(), Verdict::Sound)]);
        let mut bytes = std::fs::read(&overlay).unwrap();
        bytes[4096] ^= 1;
        std::fs::write(&overlay, &bytes).unwrap();
        let found = cache.verify_all();
        assert!(matches!(&found[..], [(at, Verdict::Removed(_))] if *at == path), "{found:?}");
        assert!(!overlay.exists() && !cache.is_suspended(&id) && cache.verify_all().is_empty());
    }

    #[test]
    fn what_is_suspended_goes_with_its_module() {
        let Some((folder, module)) = module() else { return };
        let cache = Cache::open(Some(&folder.path().join("cache"))).unwrap();
        let path = folder.path().join("a");
        let offset = module.image.file_offset(address(&module, "walk")).expect("in the file");
        let samples = BTreeMap::from([(offset, 10)]);
        let begin =
            || Job::begin(&cache, &path, read_module(&cache, &path).unwrap(), &samples, None).unwrap();
        let job = begin();
        let id = job.state.build_id.clone();
        job.suspend(&cache, RUNS, 0.25).unwrap();
        // While it is built anew the file is missing.
        let away = folder.path().join("away");
        std::fs::rename(&path, &away).unwrap();
        cache.tidy();
        assert!(cache.is_suspended(&id));
        let long_ago = SystemTime::now() - std::time::Duration::from_secs(31 * 24 * 3600);
        let state = std::fs::File::options().write(true).open(cache.stored(&id, "counting")).unwrap();
        state.set_modified(long_ago).unwrap();
        cache.tidy();
        assert!(!cache.is_suspended(&id) && cache.path_of(&id).is_none() && cache.counting().is_empty());

        // Another build in its place: a session that is at it sees that, and so does the next one.
        std::fs::rename(&away, &path).unwrap();
        let (mut job, bytes) = (begin(), std::fs::read(&path).unwrap());
        let mut other = bytes.clone();
        let note = bytes.windows(job.id.len()).position(|w| w == job.id).expect("a build id");
        other[note] ^= 1;
        assert_eq!(job.look(&cache, Measured::default(), || false).unwrap(), Look::Going);
        std::fs::write(&path, &other).unwrap();
        let told = job.look(&cache, Measured::default(), || false).unwrap_err();
        assert!(told.to_string().contains(REPLACED), "{told}");
        job.suspend(&cache, RUNS, 0.25).unwrap();
        assert!(cache.is_suspended(&id) && Job::resume(&cache, &id).is_none() && !cache.is_suspended(&id));
    }
}
