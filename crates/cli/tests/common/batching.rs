//! What the tests of `batch` share.

use super::{PATIENCE, Restitch, code, finish};
use restitch_testkit::{TempDir, compile, scratch, wait_until};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// A test program with a build id; nothing if the compiler is missing.
pub fn compiled(source: &Path, flags: &[&str]) -> Option<PathBuf> {
    match compile(source, &[flags, &["-Wl,--build-id=sha1"]].concat()) {
        Ok(path) => Some(path),
        Err(restitch_testkit::Error::Missing { .. }) => None,
        Err(error) => panic!("{error}"),
    }
}

/// How many processes have begun to count, by a file of counts.
pub fn processes_begun(counts: &Path) -> Option<u64> {
    let word = std::fs::read(counts).ok()?.get(40..48)?.try_into().ok()?;
    Some(u64::from_le_bytes(word))
}

/// A batch of its own cache.
pub struct Batch {
    pub restitch: Restitch,
    pub folder: TempDir,
}

impl Batch {
    pub fn new() -> Self {
        Self { restitch: Restitch::new(), folder: scratch() }
    }
    pub fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }
    /// `batch` with options, up to where the command follows. Nothing outlives the test.
    pub fn command(&self, arguments: &[&str]) -> Command {
        self.command_that_finishes("later", arguments)
    }
    pub fn command_that_finishes(&self, when: &str, arguments: &[&str]) -> Command {
        let mut command = self.restitch.command(&["batch"]);
        command.env("RESTITCH_CACHE_DIR", self.cache()).arg("--json").arg(self.folder.path().join("json"));
        command.args(["--finish", when]);
        // Where it matters in which code each run was, none is held out.
        if !arguments.contains(&"--trials") {
            command.args(["--trials", "off"]);
        }
        command.args(arguments).arg("--");
        command
    }
    /// The report of the batch that ran last.
    pub fn report(&self) -> serde_json::Value {
        let text = std::fs::read_to_string(self.folder.path().join("json")).expect("a report was written");
        serde_json::from_str(&text).expect("JSON")
    }
    pub fn cache_command(&self, arguments: &[&str]) -> restitch_testkit::Finished {
        finish(self.restitch.command(&["cache"]).args(arguments).env("RESTITCH_CACHE_DIR", self.cache()))
    }
    pub fn files(&self, ending: &str) -> Vec<PathBuf> {
        let folder = |p: PathBuf| std::fs::read_dir(p).into_iter().flatten().flatten().map(|e| e.path());
        let all = folder(self.cache().join("v1")).chain(folder(self.cache().join("v1/store")));
        let mut found: Vec<PathBuf> =
            all.filter(|p| p.to_string_lossy().ends_with(&format!(".{ending}"))).collect();
        found.sort();
        found
    }

    /// The files with this ending that belong to `module`.
    pub fn files_of(&self, ending: &str, module: &Path) -> Vec<PathBuf> {
        self.files(ending).into_iter().filter(|f| self.module_of(f).as_deref() == Some(module)).collect()
    }

    /// The module that a file of the cache belongs to.
    fn module_of(&self, file: &Path) -> Option<PathBuf> {
        let name = file.with_extension("path");
        let noted = self.cache().join("v1/store").join(name.file_name().expect("a name"));
        std::fs::read_to_string(noted).ok().map(PathBuf::from)
    }

    /// The modules that there are optimized overlays of.
    pub fn optimized(&self) -> Vec<PathBuf> {
        self.files("optimized").iter().filter_map(|f| self.module_of(f)).collect()
    }

    /// Whether there is an optimized overlay of the module that `file` is, wherever that lies.
    pub fn has_optimized(&self, file: &Path) -> bool {
        let image = restitch_image::Image::parse(std::fs::read(file).expect("readable")).expect("a module");
        let identity = image.identity().to_string();
        let is_it = |stored: &PathBuf| {
            stored.file_name().is_some_and(|name| name.to_string_lossy().contains(&identity))
        };
        self.files("optimized").iter().any(is_it)
    }

    /// The modules whose runs are counted.
    pub fn counted(&self) -> Vec<PathBuf> {
        self.files("counts").iter().filter_map(|f| self.module_of(f)).collect()
    }

    /// The modules whose optimized overlays are used.
    pub fn in_force(&self) -> Vec<PathBuf> {
        let is_used = |stored: &PathBuf| {
            let name = stored.with_extension("overlay");
            let used = self.cache().join("v1").join(name.file_name().expect("a name"));
            let inode = |p: &Path| std::fs::metadata(p).map(|m| std::os::unix::fs::MetadataExt::ino(&m)).ok();
            inode(&used).is_some() && inode(&used) == inode(stored)
        };
        self.files("optimized").into_iter().filter(is_used).filter_map(|f| self.module_of(&f)).collect()
    }

    /// Whether a process goes on in the background with what a batch of this cache has left.
    pub fn works_in_background(&self) -> bool {
        let cache = self.cache().canonicalize().expect("it is there");
        let is_cache =
            |word: &[u8]| Path::new(OsStr::from_bytes(word)).canonicalize().is_ok_and(|p| p == cache);
        let is_it = |line: Vec<u8>| {
            let words: Vec<&[u8]> = line.split(|byte| *byte == 0).collect();
            words.contains(&&b"--background"[..]) && words.into_iter().any(is_cache)
        };
        let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        all.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok()).any(is_it)
    }

    /// Runs `programs` in turns, for 0.3 seconds each, until all of them were optimized and have run so
    /// several times.
    #[track_caller]
    pub fn optimize(&self, programs: &[PathBuf]) {
        let stop = self.folder.path().join("stop");
        let script =
            "while [ ! -e \"$STOP\" ]; do for p; do \"$p\" --seconds 0.3; [ $? = 42 ] || exit 9; done; done";
        let mut command = self.command(&["--eager"]);
        command.args(["sh", "-c", script, "sh"]).args(programs).env("STOP", &stop);
        let mut child = command.stderr(Stdio::piped()).stdout(Stdio::null()).spawn().expect("it starts");
        let complete = wait_until(PATIENCE * 2, || {
            let optimized = self.in_force();
            (programs.iter().all(|p| optimized.contains(p)) || child.try_wait().is_ok_and(|s| s.is_some()))
                .then_some(())
        });
        std::thread::sleep(std::time::Duration::from_secs(2));
        std::fs::write(&stop, "").expect("written");
        let output = child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(complete.is_some() && output.status.code() == Some(0), "{}: {said}", output.status);
        std::fs::remove_file(&stop).expect("removed");
    }

    /// Runs `program` once and says in how many runs of which kind it was seen.
    #[track_caller]
    pub fn kinds(&self, program: &Path) -> (u64, u64) {
        self.kinds_with(&[], program)
    }

    /// The same with options of `batch`.
    #[track_caller]
    pub fn kinds_with(&self, options: &[&str], program: &Path) -> (u64, u64) {
        // Two runs: a process whose end comes together with that of the command may be missed.
        let script = "\"$0\" --seconds 0.3; [ $? = 42 ] || exit 9; \"$0\"; [ $? = 42 ] || exit 9; sleep 0.3";
        finish(self.command(options).args(["sh", "-c", script]).arg(program)).expect(code::DONE);
        let report = self.report();
        let of = |list: &str| {
            report[list]
                .as_array()
                .into_iter()
                .flatten()
                .find(|m| m["path"] == *program.to_string_lossy())
                .cloned()
        };
        match of("optimized") {
            Some(m) => (
                m["original"]["runs"].as_u64().expect("a number"),
                m["optimized"]["runs"].as_u64().expect("a number"),
            ),
            None => (2, 0),
        }
    }
}
