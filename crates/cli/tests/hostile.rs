//! Hostile targets, and others who share the machine: root's restitch neither writes nor reads where they
//! lead it, does not wait for them, and changes nobody else's process.
//!
//! Where the tests run as root the hostile processes are of a user of their own, else of the same one.

mod common;

use common::{PATIENCE, Restitch, Target, code, expect_message, look, stoppable};
use restitch_testkit::{Guarded, copy_program, find_program, require, scratch, wait_until};
use std::fs::{File, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// The hostile user (`hostile.h`).
const USER: u32 = 65533;
/// Where `hostile.h` maps a file.
const PLACE: &str = "7e0000000000";
/// A version's name, as restitch gives one.
const NAME: &str = "program.0123456789abcdef.restitch-version";

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

/// At the same addresses in all processes.
fn hostile_program() -> Option<PathBuf> {
    hostile_in("-DHOSTILE=2")
}

/// One of its own for each `define`: `--tree` takes all processes of a program and a user, those of other
/// tests as well.
fn hostile_in(define: &str) -> Option<PathBuf> {
    let header = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/common/hostile.h");
    stoppable("switch.c", &["-O2", "-pthread", "-fno-pie", "-no-pie", define, "-include", header])
}

/// The program, hostile in this way with this file.
fn start(what: &str, file: &Path, count: &Path) -> Option<Target> {
    let program = if what == "server" { hostile_in("-DHOSTILE=3") } else { hostile_program() }?;
    let text = |path: &Path| path.display().to_string();
    let environment = [
        ("RESTITCH_TEST_HOSTILE", what),
        ("RESTITCH_TEST_FILE", &text(file)),
        ("RESTITCH_TEST_COUNT", &text(count)),
    ];
    let mut target = Target::start_in(&program, &environment);
    target.assert_running("at its start");
    Some(target)
}

fn make_fifo(path: &Path) -> bool {
    Command::new("mkfifo").arg(path).status().is_ok_and(|status| status.success())
}

fn set_mode(path: &Path, mode: u32) {
    std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("our own");
}

/// A thread of the target puts a file that only we may read in place of each memory file that restitch has it
/// make.
#[test]
fn exchanged_descriptors_lead_nowhere() {
    let folder = scratch();
    let (victim, count) = (folder.path().join("victim"), folder.path().join("count"));
    std::fs::write(&victim, "ours alone").expect("writable");
    std::fs::write(&count, "").expect("writable");
    set_mode(&victim, 0o600);
    let Some(mut target) = start("exchange", &victim, &count) else { return };
    let restitch = Restitch::new();
    // Both the counters' files and, where nobody sees the state directory's, the versions'.
    for mode in [0o711, 0o700] {
        set_mode(restitch.state(), mode);
        // Whether it wins the race is a matter of luck; mostly it does at once.
        for _ in 0..4 {
            let attached = restitch.attach(target.pid(), &[]);
            target.assert_running(&attached.stderr);
            assert_eq!(std::fs::read_to_string(&victim).expect("there"), "ours alone", "{}", attached.stderr);
            let has_exchanged = std::fs::metadata(&count).is_ok_and(|m| m.len() > 0);
            println!("exchanged: {has_exchanged}; {} {}", attached.status, attached.stderr);
            if attached.stderr.contains("exchanges them") {
                expect_message(&attached, code::REFUSED, &["nothing was written", "descriptor"]);
                break;
            }
            restitch.revert(target.pid());
        }
    }
    let about = std::fs::metadata(&victim).expect("there");
    assert_eq!((about.len(), about.permissions().mode() & 0o7777), (10, 0o600));
    target.assert_computing("in the end");
}

/// A target has a file mapped whose name is that of a version, with a record beside it that waits for ever,
/// and one that lists files elsewhere.
#[test]
fn records_beside_a_targets_own_files_are_not_read() {
    let (theirs, elsewhere) = (scratch(), scratch());
    set_mode(theirs.path(), 0o755);
    let image = theirs.path().join(NAME);
    std::fs::write(&image, vec![0xc3; 4096]).expect("writable");
    set_mode(&image, 0o755);
    let record = image.with_extension(format!("{PLACE}.restitch-record"));
    if !make_fifo(&record) {
        return restitch_testkit::skipped("mkfifo is missing");
    }
    let Some(mut target) = start("map", &image, &image) else { return };
    let restitch = Restitch::new();
    let pid = target.pid().to_string();
    let listed = elsewhere.path().join(NAME);
    let made_up = format!(
        r#"{{"version":{{"number":1,"kind":"optimized","module":"/bin/true","bias":0,"start":{},"len":4096,"file":"{2}","map_file":"{2}.map","eh_frame_hdr":{1},"counters":null,"retired":false}},"hook":null}}"#,
        u64::from_str_radix(PLACE, 16).expect("a number"),
        u64::from_str_radix(PLACE, 16).expect("a number"),
        listed.display()
    );
    for made in [None, Some(made_up)] {
        if let Some(text) = made {
            std::fs::remove_file(&record).expect("ours");
            std::fs::write(&record, text).expect("writable");
        }
        restitch.run(&["status"]).expect(code::DONE);
        let told = restitch.status(target.pid());
        told.expect(code::DONE);
        assert!(!told.stdout.contains("optimized"), "{}", told.stdout);
        restitch.attach(target.pid(), &[]).expect(code::DONE);
        target.assert_computing("in the new layout");
        restitch.revert(target.pid()).expect(code::DONE);
        let left = std::fs::read_dir(elsewhere.path()).expect("ours").count();
        assert_eq!(left, 0, "files were made where the record said");
        assert_eq!(
            std::fs::read_dir(theirs.path()).expect("ours").count(),
            2,
            "{pid}: files were made beside its own"
        );
    }
}

/// The loader's list of objects, by which the unwinder's functions are found, goes in circles.
#[test]
fn a_link_map_that_lies_is_not_believed() {
    let unused = scratch();
    let Some(mut target) = start("circle", unused.path(), unused.path()) else { return };
    let restitch = Restitch::new();
    let attached = restitch.attach(target.pid(), &[]);
    assert!(matches!(attached.status.code(), Some(code::DONE | code::REFUSED)), "{}", attached.stderr);
    target.assert_computing("whatever came of it");
    if attached.status.success() {
        target.assert_goes_back(&restitch);
    }
}

/// What is in the state directory in place of a journal is not waited for, and not followed.
#[test]
fn what_is_no_journal_is_no_journal() {
    let Some(program) = stoppable("switch.c", &["-O2"]) else { return };
    let (restitch, folder) = (Restitch::new(), scratch());
    let mut target = Target::start(&program);
    let pid = target.pid();
    restitch.attach(pid, &[]).expect(code::DONE);
    let journal = restitch.journals().pop().expect("it has one");
    let kept = folder.path().join("kept");
    std::fs::rename(&journal, &kept)
        .and_then(|()| std::fs::copy(&kept, folder.path().join("copy")))
        .expect("ours");
    type Put<'a> = Box<dyn Fn() + 'a>;
    let mut instead: Vec<(&str, Put<'_>)> = vec![
        ("a link", Box::new(|| symlink(&kept, &journal).expect("free"))),
        (
            "an endless file",
            Box::new(|| File::create(&journal).and_then(|f| f.set_len(1 << 40)).expect("sparse")),
        ),
        ("a folder", Box::new(|| std::fs::create_dir(&journal).expect("free"))),
    ];
    if make_fifo(&folder.path().join("fifo")) {
        instead.push(("a pipe", Box::new(|| assert!(make_fifo(&journal)))));
    }
    for (what, put) in instead {
        put();
        for command in ["status", "revert"] {
            let finished = restitch.run(&[command, &pid.to_string()]);
            assert!(!finished.status.success(), "{what}: {command}: {}", finished.stdout);
            assert!(finished.stderr.contains(&journal.display().to_string()), "{what}: {}", finished.stderr);
        }
        restitch.run(&["status"]);
        target.assert_computing(what);
        let removed = if journal.is_dir() && !journal.is_symlink() {
            std::fs::remove_dir(&journal)
        } else {
            std::fs::remove_file(&journal)
        };
        removed.expect("it was left alone");
    }
    std::fs::rename(&kept, &journal).expect("ours");
    target.assert_goes_back(&restitch);
    target.stop();
}

/// A pipe is where a module was: nobody who is not root can open the module any more, and nobody waits for
/// the pipe.
#[test]
fn a_pipe_in_place_of_a_module_is_not_waited_for() {
    let Some(program) = stoppable("switch.c", &["-O2"]) else { return };
    let folder = scratch();
    set_mode(folder.path(), 0o777);
    let (own, binary) = (folder.path().join("program"), folder.path().join("restitch"));
    copy_program(&program, &own).expect("room for a copy");
    copy_program(Path::new(env!("CARGO_BIN_EXE_restitch")), &binary).expect("room for a copy");
    let as_user = |command: &mut Command| {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        if is_root() {
            command.uid(USER).gid(USER);
        }
    };
    let mut command = Command::new(&own);
    as_user(command.args(["--seconds", "600"]));
    let process = Guarded::spawn(&mut command).expect("started");
    let executes = || std::fs::read_link(format!("/proc/{}/exe", process.pid())).is_ok_and(|exe| exe == own);
    assert!(wait_until(PATIENCE, || executes().then_some(())).is_some());
    std::fs::remove_file(&own).expect("ours");
    if !make_fifo(&own) {
        return restitch_testkit::skipped("mkfifo is missing");
    }
    for arguments in [["status"].as_slice(), &["attach", "--duration", "1", "--measure", "0"]] {
        let mut command = Command::new(&binary);
        command.arg(arguments[0]).arg(process.pid().to_string()).args(&arguments[1..]);
        command.env(
            "RESTITCH_STATE_DIR",
            std::env::temp_dir().join(format!("restitch-hostile-{}", process.pid())),
        );
        as_user(&mut command);
        let finished = common::finish(&mut command);
        println!("{} {}", finished.status, finished.stderr);
    }
    let _ = std::fs::remove_dir_all(std::env::temp_dir().join(format!("restitch-hostile-{}", process.pid())));
}

/// What root has optimized, others do not see, and are not told that it is not there.
#[test]
fn others_are_told_that_they_see_their_own() {
    if !is_root() {
        return restitch_testkit::skipped("only root can run as another user");
    }
    let Some(program) = stoppable("switch.c", &["-O2"]) else { return };
    let restitch = Restitch::new();
    let mut target = Target::start(&program);
    restitch.attach(target.pid(), &[]).expect(code::DONE);
    let folder = scratch();
    set_mode(folder.path(), 0o755);
    let (binary, state) = (folder.path().join("restitch"), folder.path().join("state"));
    copy_program(Path::new(env!("CARGO_BIN_EXE_restitch")), &binary).expect("room for a copy");
    std::fs::create_dir(&state).expect("writable");
    set_mode(&state, 0o700);
    std::os::unix::fs::chown(&state, Some(USER), Some(USER)).expect("root may");
    let mut command = Command::new(&binary);
    command.arg("status").env("RESTITCH_STATE_DIR", &state).uid(USER).gid(USER);
    let told = common::finish(&mut command);
    told.expect(code::DONE);
    assert!(told.stdout.starts_with("no process of yours is under restitch (`sudo"), "{}", told.stdout);
    target.assert_goes_back(&restitch);
    let none = restitch.run(&["status"]);
    none.expect(code::DONE);
    assert!(
        none.stdout.starts_with("no process that root has optimized is under restitch"),
        "{}",
        none.stdout
    );
    target.stop();
}

/// Others hold locks on everything that they can open.
#[test]
fn locks_of_others_hold_nobody_up() {
    if !is_root() {
        return restitch_testkit::skipped("only root can run as another user");
    }
    let flock = require!(find_program("flock"), "flock");
    let Some(program) = stoppable("switch.c", &["-O2"]) else { return };
    let restitch = Restitch::new();
    set_mode(restitch.state(), 0o755);
    let mut target = Target::start(&program);
    let places = [restitch.state().to_path_buf(), PathBuf::from(format!("/proc/{}", target.pid()))];
    let hold = |place: &PathBuf| {
        let mut command = Command::new(&flock);
        // Nobody else may have it afterwards: it has it by then.
        command.arg("--no-fork").arg(place).args(["sleep", "600"]).uid(USER).gid(USER).stdin(Stdio::null());
        Guarded::spawn(&mut command).expect("started")
    };
    let holders: Vec<Guarded> = places.iter().map(hold).collect();
    for place in &places {
        let is_held = || File::open(place).expect("there").try_lock().is_err().then_some(());
        assert!(wait_until(PATIENCE, is_held).is_some(), "{}", place.display());
    }
    restitch.attach(target.pid(), &[]).expect(code::DONE);
    target.assert_computing("in the new layout");
    target.assert_goes_back(&restitch);
    target.stop();
    drop(holders);
}

/// Processes of other users are not taken along because they run the same program.
#[test]
fn a_tree_is_of_one_user() {
    if !is_root() {
        return restitch_testkit::skipped("only root can run as another user");
    }
    let (restitch, unused) = (Restitch::new(), scratch());
    let Some(program) = hostile_program() else { return };
    let mut named = Target::start(&program);
    let mut of_root = Target::start(&program);
    let Some(mut stranger) = start("user", unused.path(), unused.path()) else { return };
    let (attached, others) = (restitch.attach(named.pid(), &["--tree"]), stranger.pid().to_string());
    attached.expect(code::DONE);
    let said = attached.stdout.clone() + &attached.stderr;
    let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(said.contains("of other users") && said.contains(&others), "{said}");
    assert!(said.contains(&USER.to_string()), "{said}");
    assert!(!look::ours(of_root.pid()).is_empty(), "that of the same user was not taken along: {said}");
    assert_eq!(look::ours(stranger.pid()), [], "somebody else's process was changed");
    assert_eq!(look::differences(stranger.pid()), []);
    stranger.assert_computing("beside it");
    // Of that user all are taken, and the others are not.
    restitch.attach(stranger.pid(), &["--tree"]).expect(code::DONE);
    assert!(!look::ours(stranger.pid()).is_empty());
    for target in [&mut named, &mut of_root, &mut stranger] {
        target.assert_goes_back(&restitch);
        target.stop();
    }
}

/// Whose first process waits, and whose workers are another user's: these are taken, the first process with
/// them, since it is named, so that workers that it forks later are in the layout; and all are given back.
#[test]
fn workers_of_another_user_are_taken_where_the_named_process_waits() {
    let unused = scratch();
    let Some(mut server) = start("server", unused.path(), unused.path()) else { return };
    let restitch = Restitch::new();
    let path = format!("/proc/{0}/task/{0}/children", server.pid());
    let workers = |count: usize| {
        let all = std::fs::read_to_string(&path).expect("it lives");
        let all: Vec<u32> = all.split_whitespace().filter_map(|pid| pid.parse().ok()).collect();
        (all.len() == count).then_some(all)
    };
    wait_until(PATIENCE, || workers(1)).expect("it has one");
    let attached = restitch.attach(server.pid(), &["--tree"]);
    attached.expect(code::DONE);
    if is_root() {
        assert!(attached.stderr.contains("hardly works"), "{}", attached.stderr);
    }
    assert!(!attached.stdout.contains("of other users"), "{}", attached.stdout);
    assert!(
        Command::new("kill").args(["-USR1", &server.pid().to_string()]).status().expect("kill").success()
    );
    let workers = wait_until(PATIENCE, || workers(2)).expect("another one comes");
    for pid in workers.iter().chain([&server.pid()]) {
        assert!(!look::differences(*pid).is_empty(), "{pid} is not in the layout: {}", attached.stderr);
    }
    common::revert_tree_until(&restitch, server.pid(), |_| {
        workers.iter().chain([&server.pid()]).all(|pid| look::ours(*pid).is_empty())
    });
    assert!(workers.iter().chain([&server.pid()]).all(|pid| look::differences(*pid).is_empty()));
    server.stop();
}

/// A link that somebody else has put in place of an output is not followed, and what it leads to stays.
#[test]
fn links_of_others_in_place_of_outputs_are_not_followed() {
    if !is_root() {
        return restitch_testkit::skipped("only root can run as another user");
    }
    let Some(program) = stoppable("switch.c", &["-O2"]) else { return };
    let (shared, own, restitch) = (scratch(), scratch(), Restitch::new());
    set_mode(shared.path(), 0o1777);
    let victim = own.path().join("victim");
    std::fs::write(&victim, "ours").expect("writable");
    let put = |name: &str, to: &Path| {
        let link = shared.path().join(name);
        symlink(to, &link).expect("free");
        std::os::unix::fs::lchown(&link, Some(USER), Some(USER)).expect("root may");
        link
    };
    let (file, folder) = (put("file", &victim), put("folder", own.path()));
    let counts = own.path().join("counts");
    let instrument = |output: &Path| {
        let mut command = restitch.command(&["instrument", "--counts"]);
        common::finish(command.arg(&counts).arg("-o").arg(output).arg(&program))
    };
    for output in [file, folder.join("victim")] {
        let finished = instrument(&output);
        expect_message(
            &finished,
            code::FAILURE,
            &["symbolic link", "another user", &USER.to_string(), "name another path"],
        );
        assert!(!finished.stderr.contains("check the permissions"), "{}", finished.stderr);
        assert_eq!(std::fs::read(&victim).expect("there"), b"ours");
    }
    // Their owner's are.
    let link = shared.path().join("ours");
    symlink(&victim, &link).expect("free");
    instrument(&link).expect(code::DONE);
    assert!(link.is_symlink() && std::fs::read(&victim).expect("there").starts_with(b"\x7fELF"));
}

/// A pipe of somebody else in place of an input or output is not waited for, and one that was given open is.
#[test]
fn pipes_of_others_are_not_waited_for() {
    if !is_root() {
        return restitch_testkit::skipped("only root can run as another user");
    }
    let Some(program) = stoppable("switch.c", &["-O2"]) else { return };
    let (folder, restitch) = (scratch(), Restitch::new());
    let pipe = folder.path().join("pipe");
    if !make_fifo(&pipe) {
        return restitch_testkit::skipped("no mkfifo");
    }
    std::os::unix::fs::chown(&pipe, Some(USER), Some(USER)).expect("root may");
    let profile = folder.path().join("profile");
    let (theirs, own) = (pipe.to_str().expect("text"), profile.to_str().expect("text"));
    let program = program.to_str().expect("text");
    for arguments in [
        &["instrument", "--counts", own, "-o", theirs, program][..],
        &["optimize", program, "--profile", theirs, "-o", own],
    ] {
        let refused = restitch.run(arguments);
        expect_message(&refused, code::FAILURE, &["pipe of another user", &USER.to_string(), "another path"]);
        assert!(!refused.stderr.contains("check the permissions"), "{}", refused.stderr);
    }
    // Both ends, so that nobody waits.
    let ends = || File::options().read(true).write(true).open(&pipe).expect("root may");
    let mut taking = Command::new("cat");
    let _taking = Guarded::spawn(taking.stdin(ends()).stdout(Stdio::null())).expect("cat");
    let mut command = restitch.command(&["instrument", "--counts", own, "-o", "/dev/stdout", program]);
    let status = command.stdout(ends()).stderr(Stdio::null()).status().expect("it starts");
    assert_eq!(status.code(), Some(code::DONE));
}

/// A state directory in which, or above which, somebody else can exchange things is refused.
#[test]
fn a_state_directory_that_others_can_exchange_is_refused() {
    let Some(program) = stoppable("switch.c", &["-O2"]) else { return };
    let folder = scratch();
    let (restitch, mut target) = (Restitch::new(), Target::start(&program));
    let refused = |state: &Path, word: &str| {
        let mut command = restitch.command(&["attach", &target.pid().to_string(), "--duration", "1"]);
        let finished = common::finish(command.env("RESTITCH_STATE_DIR", state));
        expect_message(&finished, code::FAILURE, &[word, "RESTITCH_STATE_DIR"]);
    };
    let open = folder.path().join("open");
    std::fs::create_dir_all(open.join("state")).expect("ours");
    set_mode(&open.join("state"), 0o700);
    set_mode(&open, 0o777);
    let helps = |folder: &Path| format!("chmod go-w {}", folder.canonicalize().expect("there").display());
    refused(&open.join("state"), &helps(&open));
    set_mode(&open, 0o1777);
    set_mode(&open.join("state"), 0o777);
    refused(&open.join("state"), &helps(&open.join("state")));
    if is_root() {
        let theirs = folder.path().join("theirs");
        std::fs::create_dir_all(theirs.join("state")).expect("ours");
        std::os::unix::fs::chown(&theirs, Some(USER), None).expect("root may");
        refused(&theirs.join("state"), &format!("belongs to user {USER}"));
        std::os::unix::fs::chown(theirs.join("state"), Some(USER), None).expect("root may");
        refused(&theirs.join("state"), &format!("belongs to user {USER}, and restitch runs as user 0"));
    }
    target.assert_untouched("after it was refused");
    target.stop();
}

/// Who may not read a program may not read its version.
#[test]
fn versions_of_secret_programs_are_secret() {
    let Some(program) = stoppable("switch.c", &["-O2"]) else { return };
    for (mode, expected) in [(0o700, 0o600), (0o755, 0o644)] {
        let (restitch, folder) = (Restitch::new(), scratch());
        let own = folder.path().join("program");
        copy_program(&program, &own).expect("room for a copy");
        set_mode(&own, 0o755);
        set_mode(folder.path(), mode);
        let mut target = Target::start(&own);
        restitch.attach(target.pid(), &[]).expect(code::DONE);
        let is_image = |path: &PathBuf| path.extension().is_some_and(|e| e == "restitch-version");
        let of_program = |path: &PathBuf| path.to_string_lossy().contains("/program.");
        let images: Vec<PathBuf> =
            restitch.all_files().into_iter().filter(|p| is_image(p) && of_program(p)).collect();
        assert!(!images.is_empty(), "{:?}", restitch.all_files());
        for path in restitch.all_files() {
            let found = std::fs::metadata(&path).expect("there").permissions().mode() & 0o7777;
            let wanted = if images.contains(&path) {
                expected
            } else if is_image(&path) {
                found
            } else {
                0o600
            };
            assert_eq!(found, wanted, "{}", path.display());
        }
        target.assert_goes_back(&restitch);
        target.stop();
    }
}

/// A program's folder has a name that is no text, and a line break in it.
#[test]
fn names_that_are_no_text_are_names_like_others() {
    use std::os::unix::ffi::OsStrExt;
    let Some(program) = stoppable("switch.c", &["-O2"]) else { return };
    let (restitch, folder) = (Restitch::new(), scratch());
    let odd = folder.path().join(std::ffi::OsStr::from_bytes(b"\xff\xfe\n\x1b[2J"));
    std::fs::create_dir(&odd).expect("a name that the kernel takes");
    let own = odd.join("program");
    copy_program(&program, &own).expect("room for a copy");
    let mut target = Target::start(&own);
    let attached = restitch.attach(target.pid(), &[]);
    attached.expect(code::DONE);
    assert!(!attached.stdout.contains('\x1b'), "{}", attached.stdout);
    let status = restitch.run(&["status"]);
    status.expect(code::DONE);
    assert!(status.stdout.contains(&target.pid().to_string()), "{}", status.stdout);
    target.assert_computing("in the new layout");
    target.assert_goes_back(&restitch);
    target.stop();
}
