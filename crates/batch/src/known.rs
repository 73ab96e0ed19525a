//! Modules without a build id: what their files are known by.
//!
//! **Problem.** In memory nothing says which build of a program it is, and no process can hash its program
//! before it begins.
//!
//! **Idea.** Their identity is the hash of the whole file, which a session computes once. Beside the overlays
//! it notes what the file was like then (device, inode, length, both times in nanoseconds): the agent uses an
//! overlay where all of that is still so, where that file is what the kernel has mapped, and where samples of
//! the code in memory are the same ([`Known`]).
//!
//! **What may not happen** is that changed content goes with an unchanged note. Nobody can set the time of a
//! file's last change, but kernels round it (to 10 ms at most), so a file is noted two seconds after that
//! time at the earliest: what changes it after it was read gives it another one. And there are file systems
//! where that time is made up or comes from elsewhere: files there are not noted.

use crate::cache::Cache;
use crate::fit::checked_module;
use crate::own_files::open_regular;
use restitch_apply::MOST_BYTES;
use restitch_apply::{Why, explained};
use restitch_image::Image;
use restitch_pipeline::PipelineError;
use restitch_pipeline::disk::{read_regular, unreadable};
use restitch_preload::{FileKey, Known, MAX_BUILD_ID};
use restitch_procfs::{ChangeTimes, change_times, identity_when_mapped};
use std::fs::{File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A file that was changed less than this ago may be changed again without any difference in its times.
const SETTLED: Duration = Duration::from_secs(2);

/// Reads a module's file, if it can be worked on. Afterwards it is known to processes, by its build id or by
/// its file.
///
/// # Errors
/// [`PipelineError::BadFile`] with why it is left alone, or what could not be read or written.
pub(crate) fn read_module(cache: &Cache, path: &Path) -> Result<Image, PipelineError> {
    let fail = |source| PipelineError::File { operation: "reading", path: path.into(), source };
    let mut file = open_regular(path).map_err(fail)?;
    let before = key_of(&file).map_err(fail)?;
    let age = age(&before);
    let bytes =
        restitch_apply::read_opened(&mut file, MOST_BYTES).map_err(|source| unreadable(path, source))?;
    let image = checked_module(path, bytes)?;
    if image.identity().is_of_content() {
        note(cache, path, &file, (before, age), &image)?;
    } else if age.is_some_and(|age| age >= SETTLED) {
        // Failing, each process compares all of the module, which takes longer.
        let _ = note(cache, path, &file, (before, age), &image);
    }
    Ok(image)
}

/// Whether processes know the file at `path` already, so that it need not be read.
pub(crate) fn is_known(cache: &Cache, path: &Path) -> bool {
    key_at(path).is_some_and(|key| cache.known(&key).is_some())
}

/// Notes which content a file has, whose state and age were `before` when it was read.
fn note(
    cache: &Cache,
    path: &Path,
    file: &File,
    before: (FileKey, Option<Duration>),
    image: &Image,
) -> Result<(), PipelineError> {
    let (before, age) = before;
    let bad = |why: Why| PipelineError::BadFile { path: path.into(), why };
    let words = |why: &str| {
        format!("it has no build id, and {why}; link it with --build-id (clang and gcc: -Wl,--build-id)")
    };
    let unsure = |why: &str| bad(words(why).into());
    if !keeps_times(file, &before) {
        return Err(unsure("its file system does not tell for certain when a file was changed"));
    }
    let age = age.ok_or_else(|| unsure("the time of its last change is in the future"))?;
    if age < SETTLED {
        // Whoever changes it after that gives it another time.
        std::thread::sleep(SETTLED - age);
        let again = checked_module(path, read_regular(path)?)?;
        if again.identity() != image.identity() {
            return Err(bad("it is being changed".into()));
        }
    }
    let is_same = |file: std::io::Result<File>| file.and_then(|f| key_of(&f)).is_ok_and(|now| now == before);
    if !is_same(file.try_clone()) || !is_same(open_regular(path)) {
        return Err(bad("it is being changed".into()));
    }
    let unmapped = |e| bad(explained(words(&format!("it cannot be mapped ({e})")), e));
    let mapped = identity_when_mapped(file).map_err(unmapped)?;
    let samples = restitch_apply_preload::samples(image).map_err(|e| bad(e.into()))?;
    let (mut id, bytes) = ([0; MAX_BUILD_ID], image.identity().as_bytes());
    id.iter_mut().zip(bytes).for_each(|(slot, byte)| *slot = *byte);
    let mapped_device = u64::from(mapped.device.major) << 32 | u64::from(mapped.device.minor);
    let (mapped_inode, id_len) = (mapped.inode, bytes.len() as u64);
    let original = restitch_apply_preload::content(image);
    cache.know(&Known { key: before, mapped_device, mapped_inode, id, id_len, samples, original }, path)
}

/// Whether another content would have another time of change.
fn keeps_times(file: &File, key: &FileKey) -> bool {
    // Times that were made up are whole seconds; and in images of layers both times are one.
    let [_, nanoseconds] = key.changed;
    match change_times(file) {
        Ok(ChangeTimes::Kept) => nanoseconds != 0,
        Ok(ChangeTimes::OfLayers) => nanoseconds != 0 && key.changed != key.modified,
        Ok(ChangeTimes::Unknown) | Err(_) => false,
    }
}

/// How long ago it was changed; nothing if that is yet to come, by more than the time is rounded.
pub(crate) fn age(key: &FileKey) -> Option<Duration> {
    let changed = UNIX_EPOCH.checked_add(Duration::new(key.changed[0], key.changed[1] as u32))?;
    match SystemTime::now().duration_since(changed) {
        Ok(age) => Some(age),
        Err(ahead) => (ahead.duration() < Duration::from_millis(20)).then_some(Duration::ZERO),
    }
}

/// The state of an open file.
fn key_of(file: &File) -> std::io::Result<FileKey> {
    file.metadata().map(|stat| key_in(&stat))
}

/// The state of the file at `path`. What is no file (a pipe would have to be waited for) is missing.
pub(crate) fn key_at(path: &Path) -> Option<FileKey> {
    std::fs::metadata(path).ok().filter(Metadata::is_file).map(|stat| key_in(&stat))
}

/// The state of a file, by what `stat` says.
fn key_in(stat: &Metadata) -> FileKey {
    FileKey {
        device: stat.dev(),
        inode: stat.ino(),
        len: stat.len(),
        modified: [stat.mtime() as u64, stat.mtime_nsec() as u64],
        changed: [stat.ctime() as u64, stat.ctime_nsec() as u64],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::FileExt;

    /// A program without a build id in a folder that keeps times, and a cache beside it.
    fn program() -> Option<(tempfile::TempDir, Cache, std::path::PathBuf)> {
        let folder = tempfile::tempdir().unwrap();
        let (source, program) = (folder.path().join("a.c"), folder.path().join("a"));
        std::fs::write(&source, "int main(void) { return 3; }").unwrap();
        if restitch_testkit::find_program("gcc").is_none() {
            restitch_testkit::skipped("gcc is missing");
            return None;
        }
        let mut gcc = std::process::Command::new("gcc");
        assert!(
            gcc.args(["-Wl,--build-id=none", "-o"]).args([&program, &source]).status().unwrap().success()
        );
        let file = File::open(&program).unwrap();
        if !keeps_times(&file, &key_of(&file).unwrap()) {
            restitch_testkit::skipped("the file system of temporary files does not keep times");
            return None;
        }
        let cache = Cache::open(Some(&folder.path().join("cache"))).unwrap();
        Some((folder, cache, program))
    }

    #[test]
    fn a_file_is_known_when_its_next_change_would_show() {
        let Some((_folder, cache, program)) = program() else { return };
        let image = read_module(&cache, &program).unwrap();
        let changed = key_of(&File::open(&program).unwrap()).unwrap().changed;
        let age = age(&FileKey { changed, ..FileKey::default() }).unwrap();
        assert!(age >= SETTLED, "it was noted {age:?} after it was written");
        assert!(image.identity().is_of_content() && is_known(&cache, &program));
        cache.tidy();
        assert!(is_known(&cache, &program));
        // The same bytes are another state; other ones in the same place are, too, whatever the file's time
        // says.
        let file = File::options().write(true).open(&program).unwrap();
        let (modified, byte) = (file.metadata().unwrap().modified().unwrap(), image.data()[..1].to_vec());
        file.write_all_at(&byte, 0).unwrap();
        file.set_modified(modified).unwrap();
        assert!(!is_known(&cache, &program));
        let same = read_module(&cache, &program).unwrap();
        assert_eq!(same.identity(), image.identity());
        assert!(is_known(&cache, &program));
        std::fs::remove_file(&program).unwrap();
        cache.tidy();
        let notes = std::fs::read_dir(&cache.path).unwrap().flatten();
        let left = notes.filter(|e| e.file_name().to_string_lossy().ends_with(".file")).count();
        assert_eq!(left, 0, "nothing is noted of files that are gone");
    }

    #[test]
    fn times_that_were_made_up_and_files_of_tomorrow_are_not_trusted() {
        let Some((_folder, _cache, program)) = program() else { return };
        let file = File::open(&program).unwrap();
        let key = key_of(&file).unwrap();
        assert!(!keeps_times(&file, &FileKey { changed: [key.changed[0], 0], ..key }));
        assert!(!keeps_times(&File::open("/proc/self/stat").unwrap(), &key));
        assert_eq!(age(&FileKey { changed: [key.changed[0] + 3600, 1], ..key }), None);
        assert_eq!(age(&FileKey { changed: [u64::MAX, 1], ..key }), None);
    }
}
