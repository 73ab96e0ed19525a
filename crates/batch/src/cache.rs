//! The cache: overlays by build id, the profiles that they were made from, and the agent that maps them.
//!
//! ```text
//! CACHE/v1/                      (mode 0700)
//!   librestitch-preload.so       the agent; it looks for overlays beside itself
//!   librestitch-PLATFORM.so      the same, and an empty library for processes of 32 bits
//!   ID.overlay                   in force: a symbolic link to store/ID.optimized or, for a short time, to ID.counting
//!   ID.counting                  an overlay that counts
//!   ID.counts                    its counts
//!   DEVICE-AND-INODE.file        which content (ID) the file has, of a module without a build id ([`Known`]), and its path
//!   store/ID.optimized           the optimized overlay
//!   store/ID.profile             the profile (our own format)
//!   store/ID.json                an [`Entry`]
//!   store/ID.seal                the state of that overlay's file when its checksum was right
//!   store/ID.lock                held by the session that works on the module
//!   store/ID.counting, .earlier  of a counting that the next command goes on with ([`Suspended`](super::suspended::Suspended))
//!   store/budget                 processor seconds that earlier commands have left for optimizing, or owe
//!   store/usage                  what modules have used in earlier commands
//! ```
//!
//! Every file is written whole under another name and renamed, so that a process that starts at any moment
//! finds the old one or the new one. The kernel's records of mappings have the path of the file that was
//! mapped, behind links: by its name it is known for ever how a process has run, whatever is in force by then
//! (`in_force.rs`). ID is the module's build id, or the hash of its content; overlays are found by nothing
//! else: when a program on disk changes, its overlay is not found any more.

use crate::build::Build;
use crate::observe::Usage;
use crate::own_files::{
    MOST_OF_NOTE, MOST_OF_OVERLAY, check_folders, open_lock, open_regular, own_user, read_own,
};
use crate::trial::{self, Trial};
use restitch_apply::{Why, explained};
use restitch_image::BuildId;
use restitch_layout::LayoutChoice;
use restitch_pipeline::PipelineError;
use restitch_pipeline::disk::write_whole;
use restitch_preload::{
    AGENT, AGENT_NAME, AGENT_OF_EVERY_KIND, FileKey, Known, Meta, PLATFORMS, PLATFORMS_32, counts_name,
    empty_library_32, known_name, platform_name,
};
use restitch_procfs::FileLock;
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Largest size of the cache in bytes, unless another is asked for.
pub const MOST_BYTES: u64 = 2 << 30;

/// More processor seconds than this are neither left nor owed: it is a week, and nobody knows who has written
/// it.
const MOST_BUDGET: f64 = 7.0 * 24.0 * 3600.0;

/// What optimized overlays end with.
pub(crate) const OPTIMIZED: &str = "optimized";
/// What the note of the state that an optimized overlay's file was in ends with.
pub(crate) const SEAL: &str = "seal";
/// What overlays that count end with; and in the store, what is kept of a suspended counting.
pub(crate) const COUNTING: &str = "counting";
pub(crate) const EARLIER: &str = "earlier";

/// A cache directory.
#[derive(Debug, Clone)]
pub struct Cache {
    pub(crate) path: PathBuf,
    /// The same without symbolic links, as the kernel names it.
    pub(crate) real_path: PathBuf,
}

/// What is known of a module that was optimized.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Entry {
    /// Where the module was.
    #[serde(with = "restitch_apply::path_text")]
    pub path: PathBuf,
    /// Its build id in hexadecimal digits; where it has none, the word `restitch` and the SHA-256 of its
    /// content, likewise.
    pub build_id: String,
    /// Runs that the profile was counted in.
    pub profiled_runs: u64,
    /// Seconds since 1970 when the profile was complete.
    pub profiled_at: u64,
    /// Runs of the original, of the commands up to now.
    #[serde(default)]
    pub original: Usage,
    /// Runs in optimized code, likewise.
    #[serde(default)]
    pub optimized: Usage,
    /// Processor seconds of restitch's own that the optimization took.
    pub cost_seconds: f64,
    /// The layout's name; empty while there is a profile only.
    pub layout: String,
    /// Whether its runs take less time, where that was in doubt.
    #[serde(default)]
    pub trial: Trial,
    /// The hash of what is loaded of the file ([`restitch_apply_preload::content`]): files with the same
    /// build id may differ. Older caches do not know.
    #[serde(default)]
    pub content: Option<u64>,
}

impl Entry {
    /// The build that it is of.
    pub(crate) fn build(&self) -> Option<Build> {
        Some(Build { id: self.build_id.clone(), content: self.content? })
    }

    /// Whether it is of this build.
    pub(crate) fn is_of(&self, build: &Build) -> bool {
        self.build().as_ref() == Some(build)
    }

    /// Whether the module has no build id, and is known by its file.
    fn is_of_content(&self) -> bool {
        BuildId::from_hex(&self.build_id).is_some_and(|id| id.is_of_content())
    }
}

impl Cache {
    /// The cache at `path`, or where `RESTITCH_CACHE_DIR`, `XDG_CACHE_HOME` or `HOME` say, made if it is not
    /// there.
    ///
    /// # Errors
    /// If it cannot be made or written, belongs to somebody else, or its path cannot stand in `LD_PRELOAD`.
    pub fn open(path: Option<&Path>) -> Result<Self, PipelineError> {
        let variable = |name: &str| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let standard = || {
            variable("RESTITCH_CACHE_DIR")
                .or_else(|| variable("XDG_CACHE_HOME").map(|p| p.join("restitch")))
                .or_else(|| variable("HOME").map(|p| p.join(".cache/restitch")))
        };
        let bad = |path: &Path, why: &str| PipelineError::BadFile { path: path.into(), why: why.into() };
        let Some(base) = path.map(Path::to_path_buf).or_else(standard) else {
            return Err(bad(Path::new("the cache directory"), "HOME is not set; name one with --cache"));
        };
        let fail =
            |operation, path: &Path, source| PipelineError::File { operation, path: path.into(), source };
        let absolute = std::path::absolute(&base).map_err(|e| fail("finding", &base, e))?;
        let path = absolute.join("v1");
        let special = |b: &u8| matches!(b, b':' | b' ' | b'$' | b'\t' | b'\n');
        if path.as_os_str().as_encoded_bytes().iter().any(special) || path.as_os_str().len() > 200 {
            return Err(bad(
                &path,
                "a path with blanks, colons or dollar signs, or of more than 200 characters, cannot stand in LD_PRELOAD; name another cache with --cache",
            ));
        }
        let mut builder = std::fs::DirBuilder::new();
        builder.recursive(true).mode(0o700);
        builder.create(path.join("store")).map_err(|e| fail("making the cache", &path, e))?;
        let owner = std::fs::metadata(&path).map_err(|e| fail("reading", &path, e))?;
        if owner.uid() != own_user() {
            let why = format!("it belongs to user {}; name another cache with --cache", owner.uid());
            return Err(bad(&path, &why));
        }
        if owner.mode() & 0o022 != 0 {
            let why = format!(
                "others may write to it (mode {:o}); run: chmod go-w {}, or name another cache with --cache",
                owner.mode() & 0o7777,
                path.display()
            );
            return Err(bad(&path, &why));
        }
        if let Err((folder, why)) = check_folders(&path.join("store")) {
            let why = format!(
                "{why}, and what is in the cache {} is executed; name another cache with --cache",
                path.display()
            );
            return Err(PipelineError::BadFile { path: folder, why: why.into() });
        }
        let real_path = std::fs::canonicalize(&path).map_err(|e| fail("reading", &path, e))?;
        Ok(Self { path, real_path })
    }

    /// Whether it can be written, or only used.
    ///
    /// # Errors
    /// If it cannot (a file system that is mounted for reading only, a full disk's quota).
    pub fn check_writable(&self) -> Result<(), PipelineError> {
        let path = self.usage_file();
        let fail = |source| PipelineError::File { operation: "writing", path: path.clone(), source };
        restitch_apply::can_be_made(&path).map_err(fail)
    }

    /// The folder that was opened.
    pub(crate) fn base(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
    }

    /// Puts the agent in place and tries it. Its path, for `LD_PRELOAD`.
    ///
    /// # Errors
    /// If it cannot be written, or programs do not start with it.
    pub fn agent(&self) -> Result<PathBuf, PipelineError> {
        write_agent(&self.path)?;
        let (any, plain) = (self.path.join(AGENT_OF_EVERY_KIND), self.path.join(AGENT_NAME));
        if probe(&any).is_ok() {
            return Ok(any);
        }
        // A loader with another word for this platform.
        let why = match probe(&plain) {
            Ok(()) => return Ok(plain),
            Err(said) => {
                let words = format!("programs do not start with it ({said}); {}", way_out(&said));
                explained(words, said)
            }
        };
        Err(PipelineError::BadFile { path: plain, why })
    }

    /// Where its counts are.
    pub fn counts(&self, id: &[u8]) -> PathBuf {
        self.path.join(counts_name(id))
    }
    /// A file of the store.
    pub fn stored(&self, id: &str, kind: &str) -> PathBuf {
        self.path.join("store").join(format!("{id}.{kind}"))
    }

    /// Notes where the module of an overlay is, before the overlay is there.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn note_path(&self, id: &str, path: &Path) -> Result<(), PipelineError> {
        write_whole(&self.stored(id, "path"), path.as_os_str().as_encoded_bytes(), 0o600)
    }

    /// Where the module of an overlay is.
    pub fn path_of(&self, id: &str) -> Option<PathBuf> {
        let bytes = read_own(&self.stored(id, "path"), MOST_OF_NOTE).ok()?;
        Some(OsString::from_vec(bytes).into())
    }

    /// Notes which content a file has.
    ///
    /// # Errors
    /// If it cannot be written.
    pub(crate) fn know(&self, known: &Known, path: &Path) -> Result<(), PipelineError> {
        let bytes = [&known.encode()[..], path.as_os_str().as_encoded_bytes()].concat();
        write_whole(&self.path.join(known_name(&known.key)), &bytes, 0o600)
    }

    /// What is known of a file, if it is still in the same state.
    pub(crate) fn known(&self, key: &FileKey) -> Option<Known> {
        let known = Known::decode(&read_own(&self.path.join(known_name(key)), MOST_OF_NOTE).ok()?)?;
        (known.key == *key).then_some(known)
    }

    /// Processor seconds that earlier commands have left for optimizing.
    pub(crate) fn kept_budget(&self) -> f64 {
        let kept = read_own(&self.budget_file(), MOST_OF_NOTE).ok().and_then(|t| String::from_utf8(t).ok());
        let seconds: f64 = kept.and_then(|t| t.trim().parse().ok()).unwrap_or(0.0);
        if seconds.is_finite() { seconds.clamp(-MOST_BUDGET, MOST_BUDGET) } else { 0.0 }
    }
    /// Keeps them for the next command.
    pub(crate) fn keep_budget(&self, seconds: f64) {
        // Failing, the next command begins with what there was.
        let _ = write_whole(&self.budget_file(), format!("{seconds:.3}\n").as_bytes(), 0o600);
    }
    pub(crate) fn usage_file(&self) -> PathBuf {
        self.path.join("store").join("usage")
    }
    fn budget_file(&self) -> PathBuf {
        self.path.join("store").join("budget")
    }

    /// Takes an optimized overlay out of force, so that the module is profiled anew.
    pub fn retire(&self, id: &str) {
        let _ = std::fs::remove_file(self.path.join(format!("{id}.overlay")));
    }

    /// Holds a module for this session; `None` if another session works on it.
    pub fn lock(&self, id: &str) -> Option<FileLock> {
        FileLock::try_whole(open_lock(&self.stored(id, "lock")).ok()?).ok()?
    }

    /// What is known of a module.
    pub fn entry(&self, id: &str) -> Option<Entry> {
        let entry: Entry =
            serde_json::from_slice(&read_own(&self.stored(id, "json"), MOST_OF_NOTE).ok()?).ok()?;
        // It names the module's other files.
        (entry.build_id == id).then_some(entry)
    }

    /// All modules that are known, the one that was optimized last first.
    pub fn entries(&self) -> Vec<Entry> {
        let files = std::fs::read_dir(self.path.join("store")).into_iter().flatten().flatten();
        let id = |f: std::fs::DirEntry| Some(f.file_name().to_str()?.strip_suffix(".json")?.to_owned());
        let mut entries: Vec<Entry> = files.filter_map(id).filter_map(|id| self.entry(&id)).collect();
        entries.sort_by(|a, b| b.profiled_at.cmp(&a.profiled_at).then_with(|| a.path.cmp(&b.path)));
        entries
    }

    /// Keeps a profile. The module is [pending](Self::pending) until it is optimized.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn keep_profile(&self, entry: &Entry, profile: &[u8]) -> Result<(), PipelineError> {
        write_whole(&self.stored(&entry.build_id, "profile"), profile, 0o600)?;
        self.write_entry(entry)
    }

    /// Keeps an optimized overlay and puts it in force.
    ///
    /// # Errors
    /// If a file cannot be written; what was in force stays so.
    pub fn keep(&self, entry: &Entry, overlay: &[u8]) -> Result<(), PipelineError> {
        write_whole(&self.stored(&entry.build_id, OPTIMIZED), overlay, 0o600)?;
        self.write_entry(entry)?;
        self.put_in_force(&entry.build_id)
    }

    pub(crate) fn write_entry(&self, entry: &Entry) -> Result<(), PipelineError> {
        let text = serde_json::to_vec_pretty(entry).unwrap_or_default();
        write_whole(&self.stored(&entry.build_id, "json"), &text, 0o600)
    }

    /// Modules of which there is a profile, but no overlay made from it: the session ended before.
    pub fn pending(&self) -> Vec<Entry> {
        self.entries().into_iter().filter(|e| e.layout.is_empty()).collect()
    }

    /// Makes profiles of which the overlays have another layout such that are not laid out yet. What is in
    /// force stays so until then.
    pub fn want_layout(&self, layout: LayoutChoice) {
        let wanted = layout.to_string();
        for entry in self.entries().into_iter().filter(|e| !e.layout.is_empty() && e.layout != wanted) {
            // What somebody works on is left to him.
            let Some(_lock) = self.lock(&entry.build_id) else { continue };
            // Failing, the old one stays.
            let (optimized, trial) = Default::default();
            let _ = self.write_entry(&Entry { layout: String::new(), optimized, trial, ..entry });
        }
    }

    /// The build ids of modules of which there are countings that the next command goes on with.
    pub(crate) fn counting_ids(&self) -> Vec<String> {
        let files = std::fs::read_dir(self.path.join("store")).into_iter().flatten().flatten();
        let name = |f: std::fs::DirEntry| f.file_name().to_str().map(str::to_owned);
        let id = |n: String| Some(n.strip_suffix(COUNTING)?.strip_suffix('.')?.to_owned());
        files.filter_map(name).filter_map(id).collect()
    }

    /// Puts the stored overlay in force, or none if there is none, or it is damaged; what was counted until
    /// now is over.
    ///
    /// # Errors
    /// If the file system refuses.
    pub fn put_in_force(&self, id: &str) -> Result<(), PipelineError> {
        let target = self.path.join(format!("{id}.overlay"));
        let fail = |source| PipelineError::File { operation: "writing", path: target.clone(), source };
        match self.is_sound(id) {
            true => self.lead(id, &format!("store/{id}.{OPTIMIZED}"))?,
            false => match std::fs::remove_file(&target) {
                Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(fail(e)),
                _ => {}
            },
        }
        for kind in ["counts", COUNTING] {
            let _ = std::fs::remove_file(self.path.join(format!("{id}.{kind}")));
        }
        for kind in [COUNTING, EARLIER] {
            let _ = std::fs::remove_file(self.stored(id, kind));
        }
        Ok(())
    }

    /// Puts an overlay that counts in force. Its counts have to be there.
    ///
    /// # Errors
    /// If it cannot be written; what was in force stays so.
    pub(crate) fn count_with(&self, id: &str, overlay: &[u8]) -> Result<(), PipelineError> {
        write_whole(&self.path.join(format!("{id}.{COUNTING}")), overlay, 0o600)?;
        self.lead(id, &format!("{id}.{COUNTING}"))
    }

    /// Lets processes that begin find this file, named as seen from the cache's folder.
    pub(crate) fn lead(&self, id: &str, to: &str) -> Result<(), PipelineError> {
        let target = self.path.join(format!("{id}.overlay"));
        let temporary = self.path.join(format!("{id}.overlay.tmp{}", std::process::id()));
        let _ = std::fs::remove_file(&temporary);
        let done =
            std::os::unix::fs::symlink(to, &temporary).and_then(|()| std::fs::rename(&temporary, &target));
        done.map_err(|source| PipelineError::File { operation: "writing", path: target, source })
    }

    /// Removes all of a module.
    pub fn remove(&self, id: &str) {
        let _ = std::fs::remove_file(self.stored(id, OPTIMIZED));
        let _ = self.put_in_force(id);
        for kind in ["json", "profile", "path", SEAL] {
            let _ = std::fs::remove_file(self.stored(id, kind));
        }
    }

    /// Copies the agent and all optimized overlays into a folder, from where they work as well.
    ///
    /// # Errors
    /// If something cannot be written.
    pub fn export(&self, folder: &Path) -> Result<usize, PipelineError> {
        check_export(folder)?;
        write_agent(folder)?;
        let mut count = 0;
        // Modules without a build id are known by their files, which elsewhere are others.
        for entry in self.entries().into_iter().filter(|e| !e.is_of_content()) {
            let bytes = read_own(&self.stored(&entry.build_id, OPTIMIZED), MOST_OF_OVERLAY);
            let mut bytes = bytes.unwrap_or_default();
            if !bytes.is_empty() {
                trial::without(&mut bytes);
                let mode = mode_beside(&entry.path);
                write_whole(&folder.join(format!("{}.overlay", entry.build_id)), &bytes, mode)?;
                count += 1;
            }
        }
        Ok(count)
    }
}

/// The mode of a copy of a module's code: readable by all if the module is, else by its owner alone.
fn mode_beside(module: &Path) -> u32 {
    let is_for_all = std::fs::metadata(module).is_ok_and(|m| m.mode() & 0o004 != 0);
    if is_for_all { 0o644 } else { 0o600 }
}

/// Finds out whether something can be exported into a folder, which is made.
///
/// # Errors
/// If it cannot; or if others may write to the folder, from which processes would not take anything then.
pub fn check_export(folder: &Path) -> Result<(), PipelineError> {
    let fail = |source| PipelineError::File { operation: "making", path: folder.into(), source };
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true).mode(0o755).create(folder).map_err(fail)?;
    if std::fs::metadata(folder).is_ok_and(|m| m.mode() & 0o022 != 0) {
        let why = "others may write to it, and what is exported is executed; take that right away (chmod go-w), or name another folder";
        return Err(PipelineError::BadFile { path: folder.into(), why: why.into() });
    }
    restitch_pipeline::disk::check_writable(&folder.join(AGENT_NAME))
}

/// Writes the agent into a folder, under all names that loaders look for.
fn write_agent(folder: &Path) -> Result<(), PipelineError> {
    let put = |name: &str, content: &[u8]| {
        let path = folder.join(name);
        match read_own(&path, MOST_OF_NOTE).is_ok_and(|old| old == content) {
            true => Ok(()),
            false => write_whole(&path, content, 0o755),
        }
    };
    put(AGENT_NAME, AGENT)?;
    PLATFORMS.iter().try_for_each(|platform| put(&platform_name(platform), AGENT))?;
    let empty = empty_library_32();
    PLATFORMS_32.iter().try_for_each(|platform| put(&platform_name(platform), &empty))
}

/// What can be done if programs do not start with the agent.
fn way_out(why: &Why) -> &'static str {
    let errno = why.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error);
    match errno {
        Some(libc::EMFILE | libc::ENFILE) => "raise the limit of open files (`ulimit -n`)",
        Some(libc::EAGAIN) => "raise the limit of processes (`ulimit -u`)",
        Some(libc::ENOMEM) => "raise the limit of memory (`ulimit -v`), or free some",
        _ => "the cache has to be on a file system without noexec, name another with --cache",
    }
}

/// Whether a shell starts with the agent at `path` and has it in its memory; else what was said.
fn probe(path: &Path) -> Result<(), Why> {
    const LOOK: &str =
        "while read -r line; do case $line in *librestitch-*) exit 0;; esac; done </proc/self/maps; exit 1";
    let mut shell = Command::new("/bin/sh");
    shell.args(["-c", LOOK]).env("LD_PRELOAD", path).stdin(Stdio::null());
    let seen = shell.output()?;
    match seen.status.success() && seen.stderr.is_empty() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&seen.stderr).trim().into()),
    }
}

/// What an overlay file says of itself.
pub(crate) fn read_meta(path: &Path) -> Option<Meta> {
    Meta::decode(&last_page(path)?)
}

/// Whether a file is an overlay, of whatever format.
pub(crate) fn is_overlay(path: &Path) -> bool {
    last_page(path).is_some_and(|page| Meta::is_any(&page))
}

/// Whether a file is an overlay of a format that is not today's.
pub(crate) fn is_of_other_format(path: &Path) -> bool {
    is_overlay(path) && read_meta(path).is_none()
}

fn last_page(path: &Path) -> Option<Vec<u8>> {
    let file = open_regular(path).ok()?;
    let at = file.metadata().ok()?.len().checked_sub(restitch_preload::PAGE)?;
    let mut page = vec![0; restitch_preload::PAGE as usize];
    file.read_exact_at(&mut page, at).ok()?;
    Some(page)
}
