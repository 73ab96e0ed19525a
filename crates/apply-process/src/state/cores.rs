//! Versions that are kept for core files.
//!
//! Problem: a core file (core(5)) has the stacks and registers of threads in moved code, but not that code:
//! the kernel leaves out what files have. A debugger reads instructions, unwind tables and names from the
//! version's file, which nobody else needs once the process has ended.
//!
//! Idea: such a file stays for a week, if its process could leave a core file. An empty file beside it says
//! since when. Of what is too much altogether, the versions of those go first that ended first.

use crate::state::store::StateDir;
use crate::state::version_files::VersionFiles;
use std::collections::BTreeSet;
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// How long a version is kept.
const KEPT: Duration = Duration::from_secs(7 * 24 * 60 * 60);
/// Most bytes of versions that are kept.
const MOST: u64 = 256 << 20;

/// What is kept for core files.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeptVersions {
    /// Versions.
    pub files: usize,
    /// Bytes of their files.
    pub bytes: u64,
}

impl StateDir {
    /// Keeps a version's image from now on: nobody has it mapped any more, but a core file may speak of it.
    pub(crate) fn keep_for_cores(&self, image: &Path) {
        if image.parent() == Some(self.path()) && image.exists() {
            // Without the note it is garbage at once, as if its process could not leave core files. An older
            // note's time is set by opening it so.
            let (mut options, flags) = (File::options(), libc::O_NOFOLLOW | libc::O_NONBLOCK);
            options.write(true).create(true).truncate(true).mode(0o600).custom_flags(flags);
            drop(options.open(VersionFiles::of(image).ended()));
        }
    }

    /// What is kept for core files, of versions that no living process has as well as of others.
    pub fn kept_for_cores(&self) -> KeptVersions {
        let sizes = kept(self.notes(), KEPT, MOST).into_iter().map(|(_, bytes)| bytes);
        sizes.fold(KeptVersions::default(), |sum, bytes| KeptVersions {
            files: sum.files + 1,
            bytes: sum.bytes + bytes,
        })
    }

    /// The files of what is kept.
    pub(crate) fn files_for_cores(&self) -> BTreeSet<PathBuf> {
        let images = kept(self.notes(), KEPT, MOST).into_iter().map(|(image, _)| image);
        images.flat_map(|image| [VersionFiles::of(&image).ended(), image]).collect()
    }

    /// The images with a note: how long it has been there, and the image's length.
    fn notes(&self) -> Vec<(PathBuf, Duration, u64)> {
        let now = SystemTime::now();
        let about = |note: PathBuf| {
            let since = std::fs::metadata(&note).and_then(|m| m.modified()).ok()?;
            let image = VersionFiles::image_of_note(&note)?;
            let bytes = std::fs::metadata(&image).ok()?.len();
            // One from the future, by a clock that was set back, is new.
            Some((image, now.duration_since(since).unwrap_or_default(), bytes))
        };
        self.entries().filter_map(about).collect()
    }
}

/// Which of these stay, and their bytes.
fn kept(mut notes: Vec<(PathBuf, Duration, u64)>, longest: Duration, most: u64) -> Vec<(PathBuf, u64)> {
    notes.sort_by(|a, b| (a.1, &a.0).cmp(&(b.1, &b.0)));
    let mut sum = 0u64;
    let fits = |(_, age, bytes): &(PathBuf, Duration, u64)| {
        sum = sum.saturating_add(*bytes);
        *age < longest && sum <= most
    };
    notes.into_iter().take_while(fits).map(|(image, _, bytes)| (image, bytes)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_latest_are_kept_as_far_as_there_is_room() {
        let note = |name: &str, age: u64, bytes: u64| (PathBuf::from(name), Duration::from_secs(age), bytes);
        let names = |notes, longest, most| {
            let kept = kept(notes, Duration::from_secs(longest), most);
            kept.iter().map(|(image, _)| image.display().to_string()).collect::<Vec<_>>().concat()
        };
        let notes = || vec![note("c", 30, 5), note("a", 10, 5), note("b", 20, 5)];
        assert_eq!(names(notes(), 100, 100), "abc");
        assert_eq!(names(notes(), 30, 100), "ab");
        assert_eq!(names(notes(), 100, 10), "ab");
        assert_eq!(names(notes(), 100, 4), "");
        assert_eq!(names(vec![note("a", 1, u64::MAX), note("b", 2, u64::MAX)], 100, u64::MAX), "ab");
        assert_eq!(names(Vec::new(), 100, 100), "");
    }
}
