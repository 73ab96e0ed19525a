//! `batch` when something goes wrong around it: the command goes on in its original code, and what is in the
//! cache stays whole.

mod common;

use common::batching::{Batch, compiled, processes_begun};
use common::{PATIENCE, code, finish};
use restitch_testkit::{copy_program, program, require, skip, wait_until};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// So long may work at the lowest priority take, on a machine whose processors others have.
const WORK: Duration = Duration::from_secs(3600);

/// Runs the programs in turns until the file `stop` is there; what they end with has to be 42.
const LOOP: &str =
    "while [ ! -e \"$STOP\" ]; do for p; do \"$p\" --seconds 0.2; [ $? = 42 ] || exit 9; done; done";

fn start(mut batch: Command, programs: &[PathBuf], stop: &Path) -> Child {
    batch.args(["sh", "-c", LOOP, "sh"]).args(programs).env("STOP", stop);
    batch.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts")
}

#[track_caller]
fn end(child: Child, stop: &Path) -> String {
    std::fs::write(stop, "").expect("written");
    let done = child.wait_with_output().expect("it ends");
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(code::DONE), "{said}");
    said
}

fn is_root() -> bool {
    use std::os::unix::fs::MetadataExt;
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

/// Files that were not renamed into place.
fn halves(batch: &Batch) -> Vec<PathBuf> {
    let folders = [batch.cache().join("v1"), batch.cache().join("v1/store")];
    let all = folders.iter().flat_map(|f| std::fs::read_dir(f).into_iter().flatten().flatten());
    all.filter(|e| e.file_name().to_string_lossy().contains(".tmp")).map(|e| e.path()).collect()
}

#[test]
fn two_batches_at_the_same_time_share_a_cache() {
    let sources = ["throw.cc", "switch.c"];
    let programs: Vec<PathBuf> = sources.iter().filter_map(|s| compiled(&program(s), &["-O2"])).collect();
    let [first, ..] = &programs[..] else { return };
    let batch = Batch::new();
    let stop = batch.folder.path().join("stop");
    let children = [(); 2].map(|()| start(batch.command(&["--eager"]), &programs, &stop));
    let ready =
        wait_until(PATIENCE * 2, || programs.iter().all(|p| batch.optimized().contains(p)).then_some(()));
    for child in children {
        end(child, &stop);
    }
    assert!(ready.is_some(), "{:?}", batch.optimized());
    assert_eq!(halves(&batch), Vec::<PathBuf>::new());
    let verified = batch.cache_command(&["verify"]);
    assert!(verified.stdout.matches(": sound").count() >= programs.len(), "{}", verified.stdout);
    assert!(!verified.stdout.contains("removed"), "{}", verified.stdout);
    assert_eq!(batch.kinds(first), (0, 2));
}

#[test]
fn a_killed_session_leaves_nothing_that_hurts_or_stays() {
    let Some(throw) = compiled(&program("throw.cc"), &["-O2"]) else { return };
    let batch = Batch::new();
    let stop = batch.folder.path().join("stop");
    // It is killed while runs are counted: a million of them, so that it certainly is.
    let mut child =
        start(batch.command(&["--eager", "--profile-runs", "1000000"]), std::slice::from_ref(&throw), &stop);
    let counting = wait_until(PATIENCE * 2, || batch.counted().contains(&throw).then_some(()));
    child.kill().expect("killed");
    std::fs::write(&stop, "").expect("written");
    child.wait().expect("it has ended");
    assert!(counting.is_some(), "runs were counted");
    // Whoever uses the cache without a session goes on counting, which hurts nobody.
    let agent = batch.cache().join("v1/librestitch-preload.so");
    let done = finish(Command::new(&throw).args(["--seconds", "0.2"]).env("LD_PRELOAD", agent));
    assert_eq!(done.status.code(), Some(42), "{}", done.stderr);
    // The next session takes what was left out of force, and begins anew.
    assert_eq!(batch.kinds(&throw), (2, 0));
    for left in ["counts", "overlay", "counting"] {
        assert_eq!(batch.files(left), Vec::<PathBuf>::new());
    }
    std::fs::remove_file(&stop).expect("removed");
    batch.optimize(std::slice::from_ref(&throw));
    assert_eq!(batch.kinds(&throw), (0, 2));
}

/// The C library in front of the agent is relocated behind it, and unwinders ask it, which knows no copies.
#[test]
fn programs_that_preload_the_c_library_run_as_ever() {
    let Some(throw) = compiled(&program("throw.cc"), &["-O2"]) else { return };
    let batch = Batch::new();
    batch.optimize(std::slice::from_ref(&throw));
    for agent in ["librestitch-preload.so", "librestitch-$PLATFORM.so"] {
        let agent = batch.cache().join("v1").join(agent);
        for list in [format!("libc.so.6:{}", agent.display()), format!("{}:libc.so.6", agent.display())] {
            let done = finish(Command::new(&throw).args(["--seconds", "0.2"]).env("LD_PRELOAD", &list));
            assert_eq!((done.status.code(), &*done.stderr), (Some(42), ""), "{list}: {}", done.status);
        }
    }
}

#[test]
fn a_program_that_is_replaced_meanwhile_is_never_run_in_its_predecessors_code() {
    let sources = ["throw.cc", "virt.cc"];
    let versions: Vec<PathBuf> = sources.iter().filter_map(|s| compiled(&program(s), &["-O2"])).collect();
    let [first, second] = &versions[..] else { return };
    let batch = Batch::new();
    let (stop, place) = (batch.folder.path().join("stop"), batch.folder.path().join("program"));
    let put = |file: &Path| {
        let new = batch.folder.path().join("new");
        copy_program(file, &new).expect("copied");
        std::fs::rename(&new, &place).expect("renamed");
    };
    put(first);
    let child = start(batch.command(&["--eager"]), std::slice::from_ref(&place), &stop);
    // While it is counted; when the other one, of which nothing was known, is optimized; and back again.
    let counting = wait_until(PATIENCE * 2, || batch.counted().contains(&place).then_some(()));
    put(second);
    let waits_for = |build| wait_until(PATIENCE * 3, || batch.has_optimized(build).then_some(()));
    let optimized = waits_for(second);
    put(first);
    let again = waits_for(first);
    // Where the first one was optimized at once it has hardly run since: then these are seen.
    for build in [second, first, second] {
        put(build);
        std::thread::sleep(Duration::from_secs(2));
    }
    let said = end(child, &stop);
    assert!(counting.is_some() && optimized.is_some() && again.is_some(), "{said}");
    let report = batch.report();
    let of = |list: &str| {
        let all = report[list].as_array().into_iter().flatten();
        all.filter(|m| m["path"] == *place.to_string_lossy()).cloned().collect::<Vec<_>>()
    };
    assert!(of("optimized").iter().any(|m| m["replaced"] == true), "{report:#}");
}

/// `inner` behind a script that mounts something for it alone.
fn among_mounts(script: &str, inner: &Command) -> Command {
    let mut outer = Command::new("unshare");
    outer.args(["-m", "sh", "-c", script, "sh"]).arg(inner.get_program()).args(inner.get_args());
    for (name, value) in inner.get_envs() {
        outer.env(name, value.expect("set"));
    }
    outer
}

#[test]
fn a_cache_that_can_only_be_read_is_used_and_that_is_said() {
    if !is_root() {
        skip!("only root can mount something for reading only");
    }
    let batch = Batch::new();
    batch.cache_command(&["list"]).expect(0);
    finish(batch.command(&[]).arg("true")).expect(0);
    let cache = batch.cache();
    let mounted = "mount --bind \"$FOLDER\" \"$FOLDER\" && mount -o remount,bind,ro \"$FOLDER\" || exit 99; exec \"$@\"";
    let mut shell = batch.command(&[]);
    // The agent is there all the same.
    shell.args(["sh", "-c", "grep -q librestitch /proc/$$/maps && echo mapped"]);
    let done = finish(among_mounts(mounted, &shell).env("FOLDER", &cache));
    if done.status.code() == Some(99) || done.stderr.contains("unshare") {
        skip!("mounting is not permitted here: {}", done.stderr);
    }
    assert_eq!((done.status.code(), &*done.stdout), (Some(0), "mapped\n"), "{}", done.stderr);
    assert!(done.stderr.contains("what is in the cache is used"), "{}", done.stderr);
    let prune =
        batch.restitch.command(&["cache", "prune", "--size", "0", "--cache", &cache.to_string_lossy()]);
    let pruned = finish(among_mounts(mounted, &prune).env("FOLDER", &cache));
    assert_eq!(pruned.status.code(), Some(1), "{}", pruned.stderr);
}

#[test]
fn a_full_disk_leaves_the_original_code() {
    if !is_root() {
        skip!("only root can mount a small file system");
    }
    let Some(throw) = compiled(&program("throw.cc"), &["-O2"]) else { return };
    let batch = Batch::new();
    let folder = batch.folder.path().join("small");
    std::fs::create_dir(&folder).expect("made");
    let mounted = "mount -t tmpfs -o size=$SIZE restitch-test \"$FOLDER\" || exit 99; exec \"$@\"";
    // First the agent itself does not fit, then the overlays of the larger modules do not.
    for (size, said) in [("16k", "original code"), ("240k", "")] {
        let mut inner =
            batch.command(&["--eager", "--profile-runs", "1", "--cache", &folder.to_string_lossy()]);
        inner.args(["sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10 11 12; do \"$0\" --seconds 0.3; [ $? = 42 ] || exit 9; done; echo done"]).arg(&throw);
        let done = finish(among_mounts(mounted, &inner).env("SIZE", size).env("FOLDER", &folder));
        if done.status.code() == Some(99) || done.stderr.contains("unshare") {
            skip!("mounting is not permitted here: {}", done.stderr);
        }
        assert_eq!((done.status.code(), &*done.stdout), (Some(0), "done\n"), "{}", done.stderr);
        assert!(done.stderr.contains(said), "{}", done.stderr);
        let report = batch.report();
        let list = |name: &str| report[name].as_array().cloned().unwrap_or_default();
        let in_force: Vec<_> = list("optimized").into_iter().filter(|m| m["in_force"] == true).collect();
        if !said.is_empty() {
            assert!(in_force.is_empty(), "nothing fits: {report:#}");
        }
        let no_room: Vec<_> =
            list("left").into_iter().filter(|m| m["why"].to_string().contains("No space left")).collect();
        let both = in_force.iter().any(|m| no_room.iter().any(|l| l["path"] == m["path"]));
        assert!(!both, "in force although there was no room for it: {report:#}");
        let size_of =
            |m: &serde_json::Value| m["path"].as_str().map(|p| std::fs::metadata(p).map_or(0, |f| f.len()));
        assert!(in_force.iter().all(|m| size_of(m) < Some(1 << 20)), "it cannot fit: {report:#}");
    }
}

#[test]
fn users_do_not_use_each_others_caches() {
    if !is_root() {
        skip!("only root can make files of another user");
    }
    let Some(throw) = compiled(&program("throw.cc"), &["-O2"]) else { return };
    let batch = Batch::new();
    batch.optimize(std::slice::from_ref(&throw));
    assert_eq!(batch.kinds(&throw), (0, 2));
    let own = |path: &Path, user: u32| std::os::unix::fs::chown(path, Some(user), None).expect("changed");
    // An overlay of another user's is not used, but made again.
    let overlays = || batch.files_of("overlay", &throw);
    overlays().iter().for_each(|o| own(o, 12345));
    let done = finish(batch.command_that_finishes("wait", &[]).arg("true"));
    assert!(done.stderr.contains("not as it was written"), "{}", done.stderr);
    let owner =
        |file: &PathBuf| std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(file).expect("there"));
    assert!(overlays().iter().map(owner).eq([0]));
    assert_eq!(batch.kinds(&throw), (0, 2));
    // A cache of another user's is not used at all, which is said once.
    own(&batch.cache().join("v1"), 12345);
    let done = finish(batch.command(&[]).args(["sh", "-c", "\"$0\" --seconds 0.2; echo $?"]).arg(&throw));
    assert_eq!((done.status.code(), &*done.stdout), (Some(0), "42\n"), "{}", done.stderr);
    assert_eq!(done.stderr.matches("belongs to user 12345").count(), 1, "{}", done.stderr);
    own(&batch.cache().join("v1"), 0);
    assert_eq!(batch.kinds(&throw), (0, 2));
}

#[test]
fn old_profiles_are_made_anew() {
    let Some(throw) = compiled(&program("throw.cc"), &["-O2"]) else { return };
    let batch = Batch::new();
    batch.optimize(std::slice::from_ref(&throw));
    let entries = || -> Vec<(PathBuf, serde_json::Value)> {
        let store = std::fs::read_dir(batch.cache().join("v1/store")).expect("a folder");
        let files = store.flatten().map(|e| e.path()).filter(|p| p.extension().is_some_and(|e| e == "json"));
        files
            .map(|p| {
                let text = std::fs::read(&p).expect("read");
                (p, serde_json::from_slice(&text).expect("JSON"))
            })
            .collect()
    };
    let old = 1_000_000_000;
    for (path, mut entry) in entries() {
        entry["profiled_at"] = old.into();
        std::fs::write(path, entry.to_string()).expect("written");
    }
    let anew = || {
        entries().iter().any(|(_, e)| {
            e["path"] == *throw.to_string_lossy() && e["profiled_at"] != old && e["layout"] != ""
        })
    };
    assert!(!anew());
    let stop = batch.folder.path().join("stop");
    let child = start(batch.command(&["--eager"]), std::slice::from_ref(&throw), &stop);
    let done = wait_until(PATIENCE * 2, || anew().then_some(()));
    let said = end(child, &stop);
    assert!(done.is_some() && said.contains("counting runs of"), "{said}");
    std::fs::remove_file(&stop).expect("removed");
    assert_eq!(batch.kinds(&throw), (0, 2));
}

#[test]
fn what_is_not_laid_out_in_the_end_is_laid_out_afterwards() {
    let Some(throw) = compiled(&program("throw.cc"), &["-O2"]) else { return };
    for when in ["wait", "background"] {
        let batch = Batch::new();
        let stop = batch.folder.path().join("stop");
        let options = ["--eager", "--profile-runs", "1000000"];
        let child = start(batch.command_that_finishes(when, &options), std::slice::from_ref(&throw), &stop);
        let counted = wait_until(PATIENCE * 2, || {
            let counts = batch.files_of("counts", &throw);
            let started = |p: &PathBuf| processes_begun(p).is_some_and(|n| n > 2);
            counts.iter().any(started).then_some(())
        });
        let said = end(child, &stop);
        assert!(counted.is_some(), "{said}");
        let report = batch.report();
        assert_eq!(report["goes_on"] == true, when == "background", "{report:#}");
        // What works at the lowest priority may get no processor for long: it is waited for while it lives.
        let works = || batch.works_in_background().then_some(());
        let done = wait_until(WORK, || works().is_none().then_some(()));
        assert!(done.is_some(), "{when}: it works on and on");
        assert!(batch.in_force().contains(&throw), "{when}: {said}");
        assert!(when == "background" || said.contains("is optimized"), "{said}");
        assert_eq!(batch.kinds(&throw), (0, 2), "{when}");
    }
}

#[test]
fn programs_of_32_bits_are_left_alone_without_a_word() {
    let gcc = require!(restitch_testkit::find_program("gcc"), "gcc");
    let batch = Batch::new();
    let (source, program) = (batch.folder.path().join("small.c"), batch.folder.path().join("small"));
    std::fs::write(&source, "#include <stdio.h>\nint main(void) { puts(\"small\"); return 0; }\n")
        .expect("written");
    let built = Command::new(gcc).args(["-m32", "-o"]).arg(&program).arg(&source).output().expect("gcc");
    if !built.status.success() {
        skip!("there is no compiler for 32 bits");
    }
    if Command::new(&program).output().is_err() {
        skip!("programs of 32 bits do not run here");
    }
    let script = "\"$0\"; env -i \"$0\"; env | grep -c librestitch";
    let done = finish(batch.command(&["--quiet"]).args(["sh", "-c", script]).arg(&program));
    assert_eq!((&*done.stdout, &*done.stderr), ("small\nsmall\n1\n", ""));
}
