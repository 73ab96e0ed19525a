//! Processes that are not as most are: the first thread has ended, terabytes are reserved that are never
//! touched, a control group is frozen, sanitizers watch.

mod common;

use common::{PATIENCE, Restitch, Target, code, expect_message, look, stoppable};
use restitch_testkit::{Guarded, copy_program, program, require, scratch, skipped, unsupported, wait_until};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

const FLAGS: [&str; 2] = ["-O2", "-pthread"];

/// A process whose first thread has ended.
fn without_leader() -> Option<Target> {
    let target = Target::start_with(&stoppable("odd.c", &FLAGS)?, &["--leader", "1"]);
    let stat = restitch_procfs::thread_stat(target.pid() as i32, target.pid() as i32).expect("it lives");
    assert!(stat.state.is_ended(), "its first thread goes on");
    Some(target)
}

#[test]
fn a_process_goes_on_without_its_first_thread() {
    let mut target = require!(without_leader(), "a C compiler");
    let restitch = Restitch::new();
    restitch.attach(target.pid(), &[]).expect(code::DONE);
    assert!(!common::look::differences(target.pid()).is_empty(), "nothing was changed");
    let status = restitch.status(target.pid());
    status.expect(code::DONE);
    assert!(status.stdout.contains("optimized"), "{}", status.stdout);
    target.assert_computing("after the attach");
    target.assert_goes_back(&restitch);
    target.stop();
}

/// Children that have its memory, and are no threads, come and go: it is changed while there is none, or
/// refused.
#[test]
fn children_that_share_the_memory_for_a_moment_do_no_harm() {
    let built = require!(stoppable("odd/sharing.c", &["-O2"]), "a C compiler");
    let (restitch, mut target) = (Restitch::new(), Target::start(&built));
    for _ in 0..4 {
        let attached = restitch.attach(target.pid(), &[]);
        if attached.status.code() != Some(code::DONE) {
            expect_message(&attached, code::REFUSED, &["shares its memory with process"]);
        }
        target.assert_computing(&attached.stderr);
        let reverted = restitch.revert(target.pid());
        target.assert_computing(&reverted.stderr);
    }
    target.stop();
}

/// A child of vfork that takes a while until it executes its program is in the memory of the process: what is
/// done to that is done to the child, which is no process of its own to be told of.
#[test]
fn children_of_vfork_are_changed_with_their_process() {
    let built = require!(stoppable("odd.c", &FLAGS), "a C compiler");
    // A copy of its own: other tests run the program, too, and --tree takes all that do.
    let folder = scratch();
    let own = folder.path().join("vforks");
    copy_program(&built, &own).expect("room for a copy");
    let (restitch, mut target) = (Restitch::new(), Target::start_with(&own, &["--vfork", "400"]));
    restitch.attach(target.pid(), &[]).expect(code::DONE);
    for more in [&[][..], &["--tree"]] {
        let pid = target.pid().to_string();
        let reverted = restitch.run(&[&["revert", &pid], more].concat());
        reverted.expect(code::DONE);
        // (A version may stay mapped while there is a child.)
        assert_eq!(reverted.stdout.matches("original code").count(), 1, "{}", reverted.stdout);
        target.assert_computing("after the revert");
        restitch.attach(target.pid(), more).expect(code::DONE);
    }
    target.assert_goes_back(&restitch);
    target.stop();
}

#[test]
fn branches_of_a_process_without_its_first_thread_are_recorded() {
    let mut target = require!(without_leader(), "a C compiler");
    let (restitch, folder) = (Restitch::new(), scratch());
    let file = folder.path().join("it.profile");
    let (pid, file) = (target.pid().to_string(), file.to_str().expect("text"));
    let recorded = common::with_time(["1", "3", "10"], |duration| {
        restitch.command(&["record", "-p", &pid, "--source", "trace", "--duration", duration, "-o", file])
    });
    recorded.expect(code::DONE);
    target.assert_computing("after the record");
    restitch.run(&["attach", &pid, "--profile", file, "--measure", "0"]).expect(code::DONE);
    target.assert_goes_back(&restitch);
    target.stop();
}

/// Looking page by page, 4 TB take two minutes; what is really there takes no time. (So does 1 GB: what else
/// there is to do is the same.)
#[test]
fn what_is_reserved_and_never_touched_is_not_looked_through() {
    let built = require!(stoppable("odd.c", &FLAGS), "a C compiler");
    let pages = restitch_procfs::Pagemap::open(std::process::id() as i32).expect("our own");
    if !pages.scans() {
        return unsupported("the kernel has no PAGEMAP_SCAN (Linux 6.7)");
    }
    let took = |gigabytes: &str| {
        let (restitch, mut target) = (Restitch::new(), Target::start_with(&built, &["--reserve", gigabytes]));
        let begun = Instant::now();
        restitch.attach(target.pid(), &[]).expect(code::DONE);
        target.assert_goes_back(&restitch);
        let took = begun.elapsed();
        target.stop();
        took
    };
    let (little, much) = (took("1"), took("8000"));
    // Page by page this would be hundreds of seconds.
    assert!(much < 5 * little + Duration::from_secs(20), "{little:?} with 1 GB, {much:?} with 8 TB");
}

/// A control group of our own, removed in the end.
struct Group {
    folder: PathBuf,
    freeze: (&'static str, &'static str),
    thaw: &'static str,
}

impl Group {
    fn new(hierarchy: &Path, freeze: (&'static str, &'static str), thaw: &'static str) -> Option<Self> {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let folder = hierarchy.join(format!("restitch-test-{}-{number}", std::process::id()));
        // (Where hierarchies of version 1 are mounted, what is above them is an ordinary folder.)
        if !hierarchy.join("cgroup.procs").exists() {
            return None;
        }
        std::fs::create_dir(&folder).ok()?;
        let made = Self { folder, freeze, thaw };
        made.folder.join(freeze.0).exists().then_some(made)
    }

    fn set(&self, value: &str) {
        std::fs::write(self.folder.join(self.freeze.0), value).expect("the group is ours");
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.set(self.thaw);
        // Its process ends with the test, and an empty group may be removed.
        let removed = || std::fs::remove_dir(&self.folder).is_ok().then_some(());
        let _ = restitch_testkit::wait_until(Duration::from_secs(10), removed);
    }
}

/// Groups by which this machine freezes.
fn freezers() -> Vec<Group> {
    let root = Path::new("/sys/fs/cgroup");
    let two = ("cgroup.freeze", "1");
    let mounts = [(root.to_path_buf(), two, "0"), (root.join("unified"), two, "0")];
    let one = (root.join("freezer"), ("freezer.state", "FROZEN"), "THAWED");
    mounts.into_iter().chain([one]).filter_map(|(at, freeze, thaw)| Group::new(&at, freeze, thaw)).collect()
}

#[test]
fn a_frozen_process_is_said_to_be_frozen_and_left_alone() {
    let built = require!(stoppable("odd.c", &FLAGS), "a C compiler");
    let groups = freezers();
    if groups.is_empty() {
        return skipped("no control group can be made here (not root?)");
    }
    for group in groups {
        let (restitch, mut target) = (Restitch::new(), Target::start(&built));
        let pid = target.pid().to_string();
        std::fs::write(group.folder.join("cgroup.procs"), &pid).expect("it may be moved");
        group.set(group.freeze.1);
        let frozen = || restitch_procfs::frozen(target.pid() as i32);
        let named = restitch_testkit::wait_until(Duration::from_secs(60), frozen).expect("it is frozen");
        let begun = Instant::now();
        for arguments in [
            vec!["attach", &pid, "--duration", "1"],
            vec!["record", "-p", &pid, "--duration", "1", "--source", "trace", "-o", "/dev/null"],
        ] {
            let finished = restitch.run(&arguments);
            expect_message(&finished, code::REFUSED, &["is frozen by its control group", &named.thaw]);
        }
        assert!(begun.elapsed() < Duration::from_secs(20), "it was waited for");
        group.set(group.thaw);
        target.assert_computing("after it was thawed");
        target.assert_untouched("after the refusals");
        restitch.attach(target.pid(), &[]).expect(code::DONE);
        target.assert_goes_back(&restitch);
        target.stop();
    }
}

/// A session that cannot give a process its original code back ends, and says so; a second process goes on
/// trying, so that what is frozen for a moment does not count for ever.
#[test]
fn a_process_that_is_frozen_while_it_counts_gets_its_code_back_when_it_thaws() {
    let built = require!(stoppable("odd.c", &FLAGS), "a C compiler");
    let groups = freezers();
    let Some(group) = groups.first() else { return skipped("no control group can be made here (not root?)") };
    let (restitch, mut target) = (Restitch::new(), Target::start(&built));
    let pid = target.pid();
    std::fs::write(group.folder.join("cgroup.procs"), pid.to_string()).expect("it may be moved");
    let mut command = restitch.command(&["attach", &pid.to_string(), "--duration", "9", "--measure", "0"]);
    let notes = restitch.state().join("notes");
    command.stdout(Stdio::null()).stderr(std::fs::File::create(&notes).expect("our own"));
    let mut attaching = Guarded::spawn(&mut command).expect("started");
    let counts = || look::ours(pid).iter().any(|line| line.name.contains("restitch-counters"));
    assert!(wait_until(PATIENCE, || counts().then_some(())).is_some(), "it does not count");
    // (They are mapped a moment before it goes over to them.)
    assert!(wait_until(PATIENCE, || (!look::differences(pid).is_empty()).then_some(())).is_some());
    group.set(group.freeze.1);
    let ended = attaching.wait_within(PATIENCE).expect("it ends");
    let said = std::fs::read_to_string(&notes).expect("written");
    assert_eq!(ended.code(), Some(code::FAILURE), "{said}");
    assert!(said.contains("is frozen") && said.contains("goes on trying"), "{said}");
    group.set(group.thaw);
    let given_back = || look::differences(pid).is_empty().then_some(());
    assert!(wait_until(PATIENCE, given_back).is_some(), "{:?}\n{said}", look::differences(pid));
    target.assert_computing("after it was thawed");
    restitch.revert(pid);
    target.assert_untouched("after revert");
    target.stop();
}

/// Whatever a process has forbidden itself: it is moved and given back, or left alone with a reason.
#[test]
fn processes_that_have_restricted_themselves_are_moved_or_refused_and_go_on() {
    let built = require!(stoppable("odd.c", &FLAGS), "a C compiler");
    let no_files = "raise its limit of open files";
    for (kind, restricted, refusal) in
        [("1", "sealed code", None), ("2", "no new code", None), ("3", "no more files", Some(no_files))]
    {
        let restitch = Restitch::new();
        let mut target = Target::start_with(&built, &["--restricted", kind]);
        if !target.is_running() {
            skipped(&format!("the kernel has no processes with {restricted}"));
            continue;
        }
        let attached = restitch.attach(target.pid(), &[]);
        match refusal {
            None => {
                attached.expect(code::DONE);
                assert!(!common::look::differences(target.pid()).is_empty(), "{restricted}: unchanged");
                target.assert_goes_back(&restitch);
            }
            Some(why) => {
                expect_message(&attached, code::REFUSED, &[why]);
                target.assert_untouched(restricted);
            }
        }
        target.assert_computing(restricted);
        target.stop();
    }
}

/// A static program of `compiler` whose code fills its last page: another 16 bytes are not left.
fn filled(compiler: &str) -> Option<PathBuf> {
    let header = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/stoppable.h");
    let mut len = 0;
    for _ in 0..8 {
        let padded = format!("-DPADDED={len}");
        let flags = [&FLAGS[..], &["-static", "-D_GNU_SOURCE", "-include", header, &padded]].concat();
        let built = restitch_testkit::compile_with(compiler, &program("odd.c"), &flags).ok()?;
        let image =
            restitch_image::Image::parse(std::fs::read(&built).expect("readable")).expect("an ELF file");
        let code = image.segments().iter().rfind(|s| s.executable).expect("code");
        let left = (4096 - (code.file_offset.get() + code.file_len) % 4096) % 4096;
        if left < 16 {
            return Some(built);
        }
        // Sections behind the filler are aligned to 16 bytes.
        len += left & !15;
    }
    panic!("the last page cannot be filled");
}

/// The stub of a borrowed thread goes elsewhere: into a gap between functions (glibc) or over instructions
/// that were executed for the last time (musl).
#[test]
fn static_programs_without_room_behind_their_code_are_moved_and_given_back() {
    for compiler in ["gcc", "musl-gcc"] {
        let built = require!(filled(compiler), "a static C library");
        let (restitch, mut target) = (Restitch::new(), Target::start(&built));
        restitch.attach(target.pid(), &[]).expect(code::DONE);
        target.assert_computing("after the attach");
        target.assert_goes_back(&restitch);
        target.stop();
    }
}

/// Programs under sanitizers do their work as before, and their reports still come.
#[test]
fn programs_under_sanitizers_are_moved_and_given_back() {
    for compiler in ["gcc", "clang-19"] {
        for kind in ["address", "undefined", "thread"] {
            let flag = format!("-fsanitize={kind}");
            let mut flags = FLAGS.to_vec();
            flags.extend(["-g", &flag]);
            let header = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/stoppable.h");
            flags.extend(["-D_GNU_SOURCE", "-include", header]);
            let built = restitch_testkit::compile_with(compiler, &program("odd.c"), &flags);
            let Ok(built) = built else {
                skipped(&format!("{compiler} has no {flag}"));
                continue;
            };
            let (restitch, mut target) = (Restitch::new(), Target::start(&built));
            if !target.is_running() {
                skipped(&format!("a program of {compiler} {flag} does not run here"));
                continue;
            }
            restitch.attach(target.pid(), &[]).expect(code::DONE);
            target.assert_computing("after the attach");
            restitch.revert(target.pid()).expect(code::DONE);
            target.assert_computing("after the revert");
            target.stop();
        }
    }
}
