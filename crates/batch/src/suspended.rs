//! Countings that one command has begun and the next one goes on with.
//!
//! The overlay that counts and the counts stay in force; beside them is kept how they were made, so that the
//! same plan can be made again once they are complete. (The analysis of a large compiler takes seconds, and
//! nothing of it is needed while runs are counted.)

use crate::build::Build;
use crate::cache::{COUNTING, Cache, EARLIER, read_meta};
use crate::observe::Usage;
use crate::own_files::{MOST_OF_DATA, read_own};
use crate::progress::Progress;
use restitch_pipeline::PipelineError;
use restitch_pipeline::disk::write_whole;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Number of the format; another version of restitch may plan otherwise, which [`Suspended::plan`] tells.
const FORMAT: u32 = 2;
/// Most samples at one place: that takes months.
const MOST_SAMPLES: u64 = 1 << 32;

/// A counting.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Suspended {
    format: u32,
    /// Where the module is.
    #[serde(with = "restitch_apply::path_text")]
    pub path: PathBuf,
    pub build_id: String,
    /// The number of the overlay and its counts.
    pub identity: u64,
    /// The hash of what is loaded of the file. Older caches do not know.
    #[serde(default)]
    pub content: u64,
    /// Samples by which its functions were chosen, by place in the file.
    pub samples: BTreeMap<u64, u64>,
    /// A hash of the counters' places.
    pub plan: u64,
    /// Counters that nothing increments.
    pub missing: Vec<u32>,
    pub progress: Progress,
    /// Samples in runs that have counted.
    pub counted: u64,
    /// Nothing more is to be counted.
    pub complete: bool,
    /// Runs of the original until the counting began.
    #[serde(default)]
    pub original: Usage,
    /// Processor seconds that were spent on it.
    pub spent: f64,
}

impl Suspended {
    /// With nothing said of the counting yet.
    pub fn new(path: PathBuf, build: Build, samples: BTreeMap<u64, u64>, progress: Progress) -> Self {
        let Build { id: build_id, content } = build;
        let (identity, plan, missing, counted, complete) = (0, 0, Vec::new(), 0, false);
        let (format, original, spent) = (FORMAT, Usage::default(), 0.0);
        Self {
            format,
            path,
            build_id,
            identity,
            content,
            samples,
            plan,
            missing,
            progress,
            counted,
            complete,
            original,
            spent,
        }
    }

    /// The build that is counted.
    pub fn build(&self) -> Build {
        Build { id: self.build_id.clone(), content: self.content }
    }

    /// Keeps it, with the `earlier` values of the counters, when the profile was looked at last.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn keep(&self, cache: &Cache, earlier: Option<&[u64]>) -> Result<(), PipelineError> {
        let before = cache.stored(&self.build_id, EARLIER);
        match earlier {
            Some(values) => {
                let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
                write_whole(&before, &bytes, 0o600)?;
            }
            None => drop(std::fs::remove_file(before)),
        }
        let text = serde_json::to_vec(self).unwrap_or_default();
        write_whole(&cache.stored(&self.build_id, COUNTING), &text, 0o600)
    }

    /// That of a module, if it is of this format and undamaged.
    pub fn read(cache: &Cache, id: &str) -> Option<Self> {
        Self::parse(&read_own(&cache.stored(id, COUNTING), MOST_OF_DATA).ok()?, id)
    }

    /// The same, of these bytes.
    pub(crate) fn parse(bytes: &[u8], id: &str) -> Option<Self> {
        let mut read: Self = serde_json::from_slice(bytes).ok()?;
        // Whoever has written it: sums of samples do not overflow.
        read.samples.values_mut().for_each(|n| *n = (*n).min(MOST_SAMPLES));
        (read.format == FORMAT && read.build_id == id && read.progress.is_bounded()).then_some(read)
    }

    /// The values of the counters when the profile was looked at last.
    pub fn earlier(&self, cache: &Cache) -> Option<Vec<u64>> {
        let bytes = read_own(&cache.stored(&self.build_id, EARLIER), MOST_OF_DATA).ok()?;
        Some(bytes.chunks_exact(8).map(|w| u64::from_le_bytes(w.try_into().expect("8 bytes"))).collect())
    }
}

impl Cache {
    /// Countings that the next command goes on with. Some may be in another session's hands.
    pub(crate) fn countings(&self) -> Vec<Suspended> {
        self.counting_ids().iter().filter_map(|id| Suspended::read(self, id)).collect()
    }

    /// Whether the overlay in force of a module is the one that a suspended counting has made.
    pub(crate) fn is_suspended(&self, id: &str) -> bool {
        let meta = read_meta(&self.path.join(format!("{id}.overlay")));
        let counting = meta.filter(|m| m.counters_len > 0 && self.path.join(format!("{id}.counts")).exists());
        counting.is_some_and(|m| Suspended::read(self, id).is_some_and(|s| s.identity == m.identity))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_read_again_and_what_is_damaged_is_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(Some(&folder.path().join("cache"))).unwrap();
        let samples = BTreeMap::from([(0x1000, 7)]);
        let mut kept = Suspended::new(
            "/bin/a".into(),
            Build { id: "0a0b".into(), content: 5 },
            samples,
            Progress::of(None),
        );
        (kept.identity, kept.plan, kept.missing, kept.counted) = (9, u64::MAX, vec![3], 12);
        kept.keep(&cache, Some(&[1, u64::MAX])).unwrap();
        assert_eq!(Suspended::read(&cache, "0a0b"), Some(kept.clone()));
        assert_eq!(kept.earlier(&cache), Some(vec![1, u64::MAX]));
        kept.keep(&cache, None).unwrap();
        assert_eq!(kept.earlier(&cache), None);
        let file = cache.stored("0a0b", COUNTING);
        let text = std::fs::read(&file).unwrap();
        for end in 0..text.len() {
            std::fs::write(&file, &text[..end]).unwrap();
            assert_eq!(Suspended::read(&cache, "0a0b"), None);
        }
        std::fs::write(cache.stored("ffff", COUNTING), &text).unwrap();
        assert_eq!(Suspended::read(&cache, "ffff"), None, "it is another module's");
    }
}
