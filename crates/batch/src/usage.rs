//! What modules have used, in this command and in earlier ones.
//!
//! **Problem.** A module is worth optimizing when it has used more time than that costs, and a short build
//! never comes so far. And runs differ: a compiler's driver that only links uses a library of the compiler's
//! for a moment. Such a run says nothing of what the library does most of the time.
//!
//! **Idea.** Time, runs and samples are kept from command to command, by path and only as long as the file is
//! the same. How long a *typical* run is, is told by samples, not by runs: the mean over samples of the
//! length of the run that each is in. Of runs that all have n samples that is n; short runs beside long ones
//! hardly change it. With n samples in a run it is the sum of n * (n - 1) over that of n, which is right for
//! few samples, too: it is what the other samples of a sample's run are expected to be.

use crate::cache::Cache;
use crate::observe::{FREQUENCY, Mode, Seen, Usage};
use crate::own_files::{MOST_OF_DATA, open_lock, read_own};
use restitch_address::FileOffset;
use restitch_pipeline::disk::write_whole;
use restitch_procfs::FileLock;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Number of the file's format.
const FORMAT: u32 = 1;
/// Most modules that are remembered, and most places of one.
const MOST_MODULES: usize = 100;
const MOST_PLACES: usize = 50_000;
/// Most samples at one place: that takes months.
const MOST_SAMPLES: u64 = 1 << 32;
/// What was used longer ago, in seconds, is forgotten.
pub(crate) const LONG_AGO: u64 = 30 * 24 * 3600;
/// So many samples of at least two whole runs show nearly all functions that run, with those around them.
const ENOUGH_SAMPLES: u64 = 2000;
/// Fewer samples than this say nothing of what cannot be counted, and so many times as many more than those
/// before.
const SOME_SAMPLES: u64 = 50;
const AGAIN: u64 = 4;
/// So many whole runs do, however short they are.
const ENOUGH_RUNS: f64 = 4.0;
/// Whole runs are estimated, from samples: so much less is as good.
const ABOUT: f64 = 0.75;

/// Runs of a module and samples in them.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Totals {
    /// All samples, those of runs that have not ended included.
    pub samples: u64,
    pub begun: u64,
    pub ended: u64,
    /// Samples in runs that have ended.
    pub whole: u64,
    /// Of those, the sum of n * (n - 1).
    pub pairs: u64,
    /// See [`Usage::coarse`].
    #[serde(default)]
    pub coarse: u64,
    /// Of those that have ended, the ones in the original code.
    #[serde(default)]
    pub originals: u64,
}

impl Totals {
    /// What this command has shown. How long runs are is told by those of the original.
    pub fn of(seen: &Seen) -> Self {
        let original = seen.ended.get(&Mode::Original).copied().unwrap_or_default();
        let ended = seen.ended.values().map(|u| u.runs).sum();
        Self {
            samples: seen.samples,
            begun: seen.begun,
            ended,
            whole: original.samples,
            pairs: original.pairs,
            coarse: original.coarse,
            originals: original.runs,
        }
    }

    pub fn plus(self, other: Self) -> Self {
        Self {
            samples: self.samples.saturating_add(other.samples),
            begun: self.begun.saturating_add(other.begun),
            ended: self.ended.saturating_add(other.ended),
            whole: self.whole.saturating_add(other.whole),
            pairs: self.pairs.saturating_add(other.pairs),
            coarse: self.coarse.saturating_add(other.coarse),
            originals: self.originals.saturating_add(other.originals),
        }
    }

    /// Processor seconds in user code.
    pub fn seconds(&self) -> f64 {
        self.samples as f64 / FREQUENCY as f64
    }

    /// The runs of the original that have ended.
    pub fn original(&self) -> Usage {
        Usage { runs: self.originals, samples: self.whole, pairs: self.pairs, coarse: self.coarse }
    }

    /// Samples of a typical run; 0 if nobody knows.
    pub fn typical(&self) -> f64 {
        self.pairs as f64 / self.whole.max(1) as f64
    }

    /// To how many typical runs those come that have ended.
    pub fn whole_runs(&self) -> f64 {
        whole_runs(self.whole, self.typical(), self.ended)
    }

    /// Whether so much is known of its functions that what is left to be seen is as well seen by a few
    /// samples of each run.
    pub fn is_well_known(&self) -> bool {
        self.samples >= ENOUGH_SAMPLES / 2
    }

    /// Whether the samples say which of the module's functions run: those are counted, all others stay in the
    /// original code. The samples of a run that has just begun show its start alone (with two begun runs of
    /// cc1plus, 5 % of the instructions ran in the version that came of it).
    pub fn is_known(&self) -> bool {
        let runs = self.whole_runs();
        self.samples > 0
            && (runs >= ABOUT * ENOUGH_RUNS || runs >= ABOUT * 2.0 && self.samples >= ENOUGH_SAMPLES)
    }
}

/// Whether the counting of a module may be begun that has `samples`, where nothing could be counted of what
/// `uncounted` of them show (0: it was not tried). A handful of samples may all lie in the linkage table, or
/// in start-up code without unwind tables; so it is tried again with several times as many, until they are so
/// many that nothing else will come. Each try costs an analysis: there are five at most.
pub(crate) fn is_due(uncounted: u64, samples: u64) -> bool {
    uncounted == 0
        || uncounted < ENOUGH_SAMPLES && samples >= SOME_SAMPLES.max(uncounted.saturating_mul(AGAIN))
}

/// To how many typical runs `samples` in `runs` runs come: not more than there were; all of them, where
/// nobody knows what is typical.
pub(crate) fn whole_runs(samples: u64, typical: f64, runs: u64) -> f64 {
    if typical > 0.0 { (samples as f64 / typical).min(runs as f64) } else { runs as f64 }
}

/// What earlier commands have shown of a module.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Past {
    /// Length, and time of the last change in nanoseconds: whether it is still the same file.
    file: (u64, i64),
    /// Seconds since 1970 when it was used last.
    last: u64,
    #[serde(flatten)]
    pub totals: Totals,
    /// It is worth to be counted, which was not begun.
    pub wanted: bool,
    /// So many samples have shown nothing that can be counted; 0 if it was not tried. See [`is_due`].
    #[serde(default)]
    pub uncounted: u64,
    /// So many of its runs are to be counted then, if that was given.
    pub runs: Option<u64>,
    /// Samples in the original code, by place in the file.
    places: BTreeMap<u64, u64>,
}

impl Past {
    pub fn places(&self) -> BTreeMap<FileOffset, u64> {
        self.places.iter().map(|(at, n)| (FileOffset::new(*at), (*n).min(MOST_SAMPLES))).collect()
    }

    fn add(&mut self, seen: &Seen, wanted: bool, now: u64) {
        self.totals = self.totals.plus(Totals::of(seen));
        self.wanted = wanted;
        self.last = now;
        for (at, n) in &seen.places {
            if self.places.len() < MOST_PLACES || self.places.contains_key(&at.get()) {
                let place = self.places.entry(at.get()).or_default();
                *place = place.saturating_add(*n);
            }
        }
    }
}

#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Stored {
    format: u32,
    pub(crate) modules: BTreeMap<PathBuf, Past>,
}

/// What is remembered of modules whose files are still the same.
pub(crate) fn read(cache: &Cache) -> BTreeMap<PathBuf, Past> {
    let stored = read_own(&cache.usage_file(), MOST_OF_DATA).ok();
    let stored: Stored = stored.and_then(|b| serde_json::from_slice(&b).ok()).unwrap_or_default();
    let mut modules = if stored.format == FORMAT { stored.modules } else { BTreeMap::new() };
    modules.retain(|path, past| identity(path) == Some(past.file));
    modules
}

/// Adds what this command has shown; `keep` says whether a module is to be remembered, and whether it is
/// wanted; with so many `runs`, if that was given.
pub(crate) fn add<'a>(
    cache: &Cache,
    modules: impl IntoIterator<Item = &'a Seen>,
    now: u64,
    runs: Option<u64>,
    keep: impl Fn(&Seen) -> Option<bool>,
) {
    change(cache, |known| {
        for seen in modules {
            match (keep(seen), identity(&seen.path)) {
                (Some(wanted), Some(file)) => {
                    let past = known.entry(seen.path.clone()).or_default();
                    (past.file, past.runs) = (file, runs);
                    past.add(seen, wanted, now);
                }
                _ => drop(known.remove(&seen.path)),
            }
        }
        known.retain(|_, past| now.saturating_sub(past.last) <= LONG_AGO);
        let mut by_use: Vec<u64> = known.values().map(|p| p.totals.samples).collect();
        by_use.sort_unstable_by(|a, b| b.cmp(a));
        let least = by_use.get(MOST_MODULES).map_or(0, |n| n.saturating_add(1));
        known.retain(|_, past| past.totals.samples >= least);
    });
}

/// Nobody has to begin with a module any more; with more samples than `uncounted`, perhaps, if nothing could
/// be counted of what those show.
pub(crate) fn settle(cache: &Cache, path: &Path, uncounted: Option<u64>) {
    change(cache, |known| {
        if let Some(past) = known.get_mut(path) {
            past.wanted = false;
            past.uncounted = past.uncounted.max(uncounted.unwrap_or_default());
        }
    });
}

/// Sessions that end at the same time come one after the other. Failing, what was known stays known.
fn change(cache: &Cache, by: impl FnOnce(&mut BTreeMap<PathBuf, Past>)) {
    let lock = open_lock(&cache.usage_file().with_extension("lock"));
    let Ok(_lock) = lock.and_then(FileLock::whole) else { return };
    let mut modules = read(cache);
    by(&mut modules);
    // Keys of JSON are text; what is known of other paths is forgotten, and not what is known of all.
    modules.retain(|path, _| path.to_str().is_some());
    if let Ok(bytes) = serde_json::to_vec(&Stored { format: FORMAT, modules }) {
        let _ = write_whole(&cache.usage_file(), &bytes, 0o600);
    }
}

fn identity(path: &Path) -> Option<(u64, i64)> {
    let file = std::fs::metadata(path).ok().filter(std::fs::Metadata::is_file)?;
    Some((file.len(), file.mtime().wrapping_mul(1_000_000_000).wrapping_add(file.mtime_nsec())))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A module with runs of so many samples each.
    fn seen(path: &Path, runs: &[u64]) -> Seen {
        let (samples, count) = (runs.iter().sum(), runs.len() as u64);
        let pairs = runs.iter().map(|n| n * n.saturating_sub(1)).sum();
        let ended = BTreeMap::from([(Mode::Original, Usage { runs: count, samples, pairs, coarse: 0 })]);
        let places = BTreeMap::from([(FileOffset::new(0x1000), samples)]);
        Seen { path: path.into(), samples, begun: count, ended, places, ..Seen::default() }
    }

    #[test]
    fn short_runs_beside_long_ones_are_no_typical_runs() {
        let totals = |runs: &[u64]| Totals::of(&seen(Path::new("/bin/a"), runs));
        let alike = totals(&[250, 250, 250, 250]);
        assert!((alike.typical() - 249.0).abs() < 1e-9 && alike.whole_runs() > 3.9 && alike.is_known());
        // One compilation and three drivers that link: one whole run.
        let mixed = totals(&[250, 1, 2, 1]);
        assert!((mixed.whole_runs() - 1.0).abs() < 0.1, "{}", mixed.whole_runs());
        assert!(!mixed.is_known() && totals(&[250, 1, 2, 1, 260, 240, 255]).is_known());
        // A driver's three samples are no run of what 250 are typical for.
        assert!(whole_runs(3, mixed.typical(), 1) < 0.02);
        assert!((whole_runs(500, mixed.typical(), 1) - 1.0).abs() < 1e-9, "one long run is one");
        // Runs with one sample at most tell nothing of each other.
        assert!(totals(&[1, 0, 1, 1]).is_known() && !totals(&[1, 1]).is_known());
        assert_eq!(whole_runs(0, 0.0, 3), 3.0);
    }

    #[test]
    fn modules_that_few_samples_show_nothing_of_are_tried_again_and_not_for_ever() {
        // However samples come in: the first one may be all there is.
        for step in [1, 3, 40, 1000, 100_000] {
            let (mut uncounted, mut tries) = (0, Vec::new());
            for samples in (1..1_000_000).step_by(step) {
                if is_due(uncounted, samples) {
                    uncounted = samples;
                    tries.push(samples);
                }
            }
            assert!(tries.len() <= 5 && tries[0] == 1, "{step}: {tries:?}");
            assert!(tries.len() > 1, "{step}: one sample is no reason to leave it alone");
            assert!(*tries.last().unwrap() >= ENOUGH_SAMPLES, "{step}: {tries:?}");
        }
        assert!(!is_due(1, 49) && is_due(1, 50) && !is_due(100, 399) && is_due(100, 400));
    }

    #[test]
    fn use_adds_up_over_commands_for_as_long_as_the_file_is_the_same() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(Some(&folder.path().join("cache"))).unwrap();
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        std::fs::write(&a, "1").unwrap();
        std::fs::write(&b, "1").unwrap();
        let both = [seen(&a, &[100, 100]), seen(&b, &[5])];
        for _ in 0..3 {
            add(&cache, &both, 10, None, |s| Some(s.path == a));
        }
        let known = read(&cache);
        assert_eq!((known[&a].totals.samples, known[&a].totals.ended, known[&a].wanted), (600, 6, true));
        assert_eq!(known[&a].places(), BTreeMap::from([(FileOffset::new(0x1000), 600)]));
        assert!(!known[&b].wanted);
        assert_eq!(known[&a].uncounted, 0);
        settle(&cache, &a, Some(7));
        settle(&cache, &a, None);
        assert_eq!((read(&cache)[&a].wanted, read(&cache)[&a].uncounted), (false, 7));
        add(&cache, &both[..1], 10, None, |_| Some(false));
        assert_eq!(read(&cache)[&a].uncounted, 7, "it is kept");
        // Another file by now, one that is not to be remembered, and one of long ago.
        std::fs::write(&b, "12").unwrap();
        assert_eq!(read(&cache).keys().collect::<Vec<_>>(), [&a]);
        add(&cache, &both, 10 + LONG_AGO + 1, None, |s| (s.path == b).then_some(false));
        assert_eq!(read(&cache)[&b].totals.samples, 5);
        assert_eq!(read(&cache).len(), 1);
        add(&cache, &[], 10 + 2 * LONG_AGO + 3, None, |_| None);
        assert!(read(&cache).is_empty());
        // What somebody else has written there is nothing.
        for damaged in
            ["", "{}", "[1]", "{\"format\":1,\"modules\":{\"/bin/a\":{}}}", "{\"format\":2,\"modules\":{}}"]
        {
            std::fs::write(cache.usage_file(), damaged).unwrap();
            assert!(read(&cache).is_empty(), "{damaged}");
        }
        add(&cache, &both, 10, None, |_| Some(false));
        assert_eq!(read(&cache).len(), 2);
    }

    #[test]
    fn sessions_that_end_together_lose_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(Some(&folder.path().join("cache"))).unwrap();
        let a = folder.path().join("a");
        std::fs::write(&a, "1").unwrap();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| add(&cache, &[seen(&a, &[10])], 10, None, |_| Some(false)));
            }
        });
        assert_eq!(read(&cache)[&a].totals.ended, 8);
    }
}
