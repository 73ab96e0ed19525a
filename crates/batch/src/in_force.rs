//! Which overlay a process has mapped, as its mappings say.
//!
//! **Problem.** The kernel's records of mappings are read some time later, when another overlay of the module
//! may be in force: an optimized one follows one that counts.
//!
//! **Idea.** Each kind has a file of its own name, and what agents open is a symbolic link to one of them. A
//! record has the path of the file that was mapped, behind links. An agent that opens while the link is
//! exchanged gets either file; if that was replaced or removed before it was mapped, the kernel says so
//! behind the name, which stays what it was.

use crate::cache::{COUNTING, Cache, Entry, OPTIMIZED, is_overlay, read_meta};
use crate::observe::{Mode, Overlays};
use crate::trial::{HELD_OUT, Trial};
use restitch_preload::{AGENT_NAME, HELD_OUT_AT, PAGE, PLATFORMS, platform_name};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// What stands behind the path of a file that is not there any more.
const DELETED: &str = " (deleted)";

impl Cache {
    /// Whether a file, as the kernel names it, is one of this cache's.
    pub(crate) fn holds(&self, path: &Path) -> bool {
        path.parent().is_some_and(|folder| folder == self.real_path || folder == self.real_path.join("store"))
    }

    /// Whether a file was made by restitch, here or in another cache: there is nothing to optimize in it.
    pub(crate) fn is_made(&self, path: &Path) -> bool {
        self.holds(path) || is_agent(path) || is_overlay(path)
    }

    /// Whether an overlay is in force that is not a link: an older restitch has put it there.
    pub(crate) fn is_of_old_form(&self, id: &str) -> bool {
        std::fs::symlink_metadata(self.path.join(format!("{id}.overlay"))).is_ok_and(|m| m.is_file())
    }

    /// Gives an overlay that counts, of the old form, its own name. The caller holds the module's lock.
    /// Failing, it stays as it is.
    pub(crate) fn give_name(&self, id: &str) {
        let own = self.path.join(format!("{id}.{COUNTING}"));
        let _ = std::fs::remove_file(&own);
        if std::fs::hard_link(self.path.join(format!("{id}.overlay")), &own).is_ok() {
            let _ = self.lead(id, &format!("{id}.{COUNTING}"));
        }
    }

    /// Whether the overlay in force is the module's file that counts.
    pub(crate) fn leads_to_counting(&self, id: &str) -> bool {
        let target = std::fs::read_link(self.path.join(format!("{id}.overlay"))).ok();
        target.is_some_and(|t| t == Path::new(&format!("{id}.{COUNTING}")))
    }

    /// Holds processes out while a trial goes on, and removes an overlay that has lost it. What is known of
    /// the module stays.
    pub(crate) fn follow(&self, id: &str, trial: &Trial) {
        if trial.is_lost() {
            self.retire(id);
            let _ = std::fs::remove_file(self.stored(id, OPTIMIZED));
            return;
        }
        // Failing, nothing is compared, or an eighth of the processes runs the original code.
        let _ = self.hold_out(id, if trial.goes_on() { HELD_OUT } else { 0 });
    }

    /// Ends all trials that go on, without a result: nobody is held out from now on.
    pub(crate) fn end_trials(&self) {
        for entry in self.entries().into_iter().filter(|e| e.trial.goes_on()) {
            // What somebody works on is left to him.
            let Some(_lock) = self.lock(&entry.build_id) else { continue };
            let (id, trial) = (entry.build_id.clone(), Trial::default());
            // Failing, it goes on.
            if self.write_entry(&Entry { trial, ..entry }).is_ok() {
                self.follow(&id, &trial);
            }
        }
    }

    /// Of 256 processes that begin from now on, `share` run the original code in place of the optimized
    /// overlay, for comparison.
    ///
    /// # Errors
    /// If it cannot be written: it stays as it was.
    fn hold_out(&self, id: &str, share: u64) -> std::io::Result<()> {
        let path = self.stored(id, OPTIMIZED);
        let Some(meta) = read_meta(&path).filter(|m| m.held_out != share) else { return Ok(()) };
        // Eight aligned bytes, which an agent that reads them now has before or after.
        let file = super::own_files::open_own_for_writing(&path)?;
        let held = file.write_all_at(&share.to_le_bytes(), meta.file_len - PAGE + HELD_OUT_AT);
        drop(file);
        self.seal(id);
        held
    }
}

/// Whether a file is the agent, by its name.
fn is_agent(path: &Path) -> bool {
    let is_named = |name: &str| path.file_name().is_some_and(|n| n == name);
    is_named(AGENT_NAME) || PLATFORMS.iter().any(|platform| is_named(&platform_name(platform)))
}

impl Overlays for Cache {
    fn recognise(&self, path: &Path) -> Option<(PathBuf, Mode)> {
        let name = path.file_name()?.to_str()?;
        let (id, kind) = name.strip_suffix(DELETED).unwrap_or(name).rsplit_once('.')?;
        let is_stored = path.parent()? != self.real_path;
        if !self.holds(path) {
            return None;
        }
        let mode = match (kind, is_stored) {
            (OPTIMIZED, true) => Mode::Optimized,
            (COUNTING, false) => Mode::Counting,
            // Of an older restitch, in a cache that this one may not write: it is still what was mapped.
            ("overlay", false) if read_meta(path).is_some_and(|m| m.counters_len > 0) => Mode::Counting,
            ("overlay", false) => Mode::Optimized,
            _ => return None,
        };
        Some((self.path_of(id)?, mode))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use restitch_preload::content::hash_of;
    use restitch_preload::{MAX_BUILD_ID, Meta};

    const ID: &str = "0123456789abcdef0123";

    fn cache() -> (tempfile::TempDir, Cache) {
        let folder = tempfile::tempdir().unwrap();
        let cache = Cache::open(Some(&folder.path().join("cache"))).unwrap();
        cache.note_path(ID, Path::new("/bin/a")).unwrap();
        (folder, cache)
    }

    fn entry() -> Entry {
        let (path, build_id, layout) = ("/bin/a".into(), ID.into(), "original".into());
        let (profiled_runs, profiled_at, cost_seconds) = (1, 1, 1.0);
        let (original, optimized, trial) = Default::default();
        let content = Some(1);
        Entry {
            path,
            build_id,
            profiled_runs,
            profiled_at,
            original,
            optimized,
            cost_seconds,
            layout,
            trial,
            content,
        }
    }

    /// An overlay of one page of version and one of code, which nobody runs.
    pub fn overlay(counters_len: u64) -> Vec<u8> {
        let meta = Meta {
            build_id: [1; MAX_BUILD_ID],
            build_id_len: 10,
            file_len: 3 * PAGE,
            segment_start: PAGE,
            segment_len: PAGE,
            text_start: PAGE,
            text_len: PAGE,
            text_offset: PAGE,
            version_start: 8 * PAGE,
            version_len: PAGE,
            eh_frame_hdr: 8 * PAGE,
            counters_start: 16 * PAGE,
            counters_len,
            identity: 0,
            checksum: hash_of(&vec![0; 2 * PAGE as usize]),
            held_out: 0,
            original: 0,
        };
        assert_eq!(Meta::decode(&meta.encode()), Some(meta));
        [vec![0; 2 * PAGE as usize], meta.encode().to_vec()].concat()
    }

    /// What the kernel would call the file that a process opens now.
    fn opened(cache: &Cache) -> PathBuf {
        let file = std::fs::File::open(cache.path.join(format!("{ID}.overlay"))).unwrap();
        let fd = std::os::fd::AsRawFd::as_raw_fd(&file);
        std::fs::read_link(format!("/proc/thread-self/fd/{fd}")).unwrap()
    }

    fn mode(cache: &Cache, path: &Path) -> Option<Mode> {
        let (module, mode) = cache.recognise(path)?;
        assert_eq!(module, Path::new("/bin/a"));
        Some(mode)
    }

    #[test]
    fn a_late_look_knows_what_was_mapped() {
        let (folder, cache) = cache();
        cache.count_with(ID, &overlay(PAGE)).unwrap();
        let counting = opened(&cache);
        assert_eq!(mode(&cache, &counting), Some(Mode::Counting));
        cache.keep(&entry(), &overlay(0)).unwrap();
        let optimized = opened(&cache);
        assert!(!counting.exists(), "the counting is over");
        for path in [counting.clone(), format!("{} (deleted)", counting.display()).into()] {
            assert_eq!(mode(&cache, &path), Some(Mode::Counting), "{path:?}");
        }
        assert_eq!(mode(&cache, &optimized), Some(Mode::Optimized));
        // It is counted anew: what was mapped before stays what it was.
        cache.count_with(ID, &overlay(PAGE)).unwrap();
        assert_eq!((mode(&cache, &optimized), opened(&cache)), (Some(Mode::Optimized), counting));
        // The same through a link to the cache, and not in another folder.
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path().join("cache"), &link).unwrap();
        let linked = Cache::open(Some(&link)).unwrap();
        assert_eq!(mode(&linked, &opened(&linked)), Some(Mode::Counting));
        assert!(linked.holds(&optimized) && !linked.holds(&folder.path().join("a")));
        assert_eq!(cache.recognise(&folder.path().join(format!("{ID}.counting"))), None);
        assert_eq!(cache.recognise(&cache.real_path.join("librestitch-preload.so")), None);
    }

    #[test]
    fn what_another_build_has_replaced_goes_first_and_what_nobody_knows_in_any_case() {
        let (_folder, cache) = cache();
        let build = |number: u64, path: &str| {
            let build_id = format!("{number:020}");
            let entry = Entry { build_id, path: path.into(), profiled_at: number, ..entry() };
            cache.keep(&entry, &overlay(0)).unwrap();
            entry
        };
        // Profiled first, and still the build of its file; the other one has been built anew.
        let (old, first, second) = (build(1, "/bin/a"), build(2, "/bin/b"), build(3, "/bin/b"));
        assert_eq!(cache.replaced(), [first.build_id.clone()].into());
        let bytes = cache.size(&old);
        assert_eq!(cache.prune(2 * bytes), (1, 3));
        assert_eq!(cache.entries(), [second.clone(), old.clone()]);
        // What cannot be read would count against no limit, and stay in force for ever.
        std::fs::write(cache.stored(&old.build_id, "json"), "{").unwrap();
        assert_eq!((cache.entries(), cache.prune(u64::MAX)), (vec![second], (1, 2)));
        assert!(!cache.path.join(format!("{}.overlay", old.build_id)).exists());
        assert!(!cache.stored(&old.build_id, OPTIMIZED).exists());
    }

    #[test]
    fn what_another_cache_holds_is_known_for_what_it_is() {
        let ((_folder, cache), (_elsewhere, other)) = (cache(), cache());
        other.keep(&entry(), &overlay(0)).unwrap();
        let optimized = opened(&other);
        other.count_with(ID, &overlay(PAGE)).unwrap();
        let agent = other.path.join("librestitch-x86_64.so");
        for path in [&optimized, &opened(&other), &agent] {
            assert!(cache.is_made(path) && !cache.holds(path), "{path:?}");
        }
        let program = std::env::current_exe().unwrap();
        assert!(!cache.is_made(&program) && !cache.is_made(Path::new("/nonexistent")));
    }

    #[test]
    fn whoever_opens_while_the_link_is_exchanged_gets_one_of_both() {
        let (_folder, cache) = cache();
        cache.keep(&entry(), &overlay(0)).unwrap();
        std::fs::write(cache.path.join(format!("{ID}.{COUNTING}")), overlay(PAGE)).unwrap();
        std::thread::scope(|scope| {
            let exchanging = scope.spawn(|| {
                for _ in 0..200 {
                    cache.lead(ID, &format!("{ID}.{COUNTING}")).unwrap();
                    cache.lead(ID, &format!("store/{ID}.{OPTIMIZED}")).unwrap();
                }
            });
            let file = cache.path.join(format!("{ID}.overlay"));
            while !exchanging.is_finished() {
                assert!(read_meta(&file).is_some());
            }
        });
    }

    #[test]
    fn caches_of_the_old_form_are_brought_into_this_one() {
        let (_folder, cache) = cache();
        let file = cache.path.join(format!("{ID}.overlay"));
        // An optimized one was a second name of the stored one.
        cache.keep(&entry(), &overlay(0)).unwrap();
        std::fs::remove_file(&file).unwrap();
        std::fs::hard_link(cache.stored(ID, OPTIMIZED), &file).unwrap();
        assert!(cache.is_of_old_form(ID));
        assert_eq!(mode(&cache, &opened(&cache)), Some(Mode::Optimized), "one that may not be written");
        cache.tidy();
        assert!(!cache.is_of_old_form(ID));
        assert!(opened(&cache).ends_with(format!("store/{ID}.{OPTIMIZED}")));
        // One that counts stood for itself, and is named only by who holds the module.
        std::fs::remove_file(&file).unwrap();
        std::fs::write(&file, overlay(PAGE)).unwrap();
        assert_eq!(mode(&cache, &opened(&cache)), Some(Mode::Counting));
        cache.give_name(ID);
        assert!(cache.leads_to_counting(ID) && !cache.is_of_old_form(ID));
        assert_eq!(mode(&cache, &opened(&cache)), Some(Mode::Counting));
        // Nobody goes on with it.
        cache.tidy();
        assert!(opened(&cache).ends_with(format!("store/{ID}.{OPTIMIZED}")));
        assert!(!cache.path.join(format!("{ID}.{COUNTING}")).exists());
    }

    #[test]
    fn what_a_killed_session_has_left_is_taken_away() {
        let (_folder, cache) = cache();
        // It was killed before the link was there, or afterwards.
        let counting = cache.path.join(format!("{ID}.{COUNTING}"));
        std::fs::write(&counting, overlay(PAGE)).unwrap();
        let held = cache.lock(ID).unwrap();
        cache.tidy();
        assert!(counting.exists(), "somebody is at it");
        drop(held);
        cache.tidy();
        assert!(!counting.exists());
        cache.lead(ID, &format!("{ID}.{COUNTING}")).unwrap();
        cache.tidy();
        assert!(
            std::fs::symlink_metadata(cache.path.join(format!("{ID}.overlay"))).is_err(),
            "it led nowhere"
        );
    }
}
