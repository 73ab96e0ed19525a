//! `batch`: programs that run again and again are optimized between their runs, and notice nothing.

mod common;

use common::batching::{Batch, compiled};
use common::{PATIENCE, code, expect_message, finish};
use restitch_testkit::{copy_program, program, require, wait_until};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

#[test]
fn programs_are_optimized_between_their_runs() {
    let sources =
        ["throw.cc", "personality.c", "backtrace.c", "setjmp.c", "signals.c", "switch.c", "virt.cc"];
    let compiled: Vec<PathBuf> =
        sources.iter().filter_map(|s| compiled(&program(s), &["-O2", "-rdynamic"])).collect();
    let [throw, ..] = &compiled[..] else { return };
    let batch = Batch::new();
    batch.optimize(&compiled);
    for program in &compiled {
        assert_eq!(batch.kinds(program), (0, 2), "{}: {:#}", program.display(), batch.report());
    }
    // Libraries of which little runs may be counted on by the next command.
    let counted = batch.counted();
    assert!(compiled.iter().all(|p| !counted.contains(p)), "counting is over: {counted:?}");

    let listed = batch.cache_command(&["list"]);
    for program in &compiled {
        assert!(listed.stdout.contains(&*program.to_string_lossy()), "{}", listed.stdout);
    }
    let verified = batch.cache_command(&["verify"]);
    assert!(verified.stdout.matches(": sound").count() >= compiled.len(), "{}", verified.stdout);
    assert!(!verified.stdout.contains("removed"), "{}", verified.stdout);

    // What runs in an overlay cannot be attached to, and says so.
    let mut running = Command::new(throw);
    running.args(["--seconds", "60"]).env("LD_PRELOAD", batch.cache().join("v1/librestitch-preload.so"));
    let mut running = restitch_testkit::Guarded::spawn(&mut running).expect("it starts");
    let attached = wait_until(PATIENCE, || {
        let attached = batch.restitch.run(&["attach", &running.pid().to_string(), "--duration", "1"]);
        (attached.status.code() == Some(code::REFUSED)).then_some(attached)
    });
    expect_message(&attached.expect("refused"), code::REFUSED, &["restitch batch", ".optimized"]);
    assert!(running.is_running());
    running.kill().expect("ended");

    // A program that is replaced has another build id, and runs as it is.
    let copy = batch.folder.path().join("program");
    copy_program(throw, &copy).expect("copied");
    assert_eq!(batch.kinds(&copy), (2, 0), "the overlay is known by the first path");
    assert_eq!(batch.kinds(throw), (0, 2));

    // What is excluded runs as it is although it was optimized before, and only there.
    assert_eq!(batch.kinds_with(&["--exclude", &throw.to_string_lossy()], throw), (2, 0));
    assert_eq!(batch.kinds(throw), (0, 2));

    // One that others may write to, or that is damaged where it says what it is, is made again; one that is
    // damaged in force is put in force again.
    let overlays =
        || -> Vec<PathBuf> { compiled.iter().flat_map(|p| batch.files_of("overlay", p)).collect() };
    let mode = |files: &[PathBuf]| {
        for file in files {
            std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o622)).expect("permitted");
        }
    };
    let truncate = |files: &[PathBuf]| {
        for file in files {
            let bytes = std::fs::read(file).expect("read");
            std::fs::remove_file(file).expect("removed");
            std::fs::write(file, &bytes[..bytes.len() - 5000]).expect("written");
            std::fs::set_permissions(file, std::fs::Permissions::from_mode(0o600)).expect("permitted");
        }
    };
    truncate(&overlays());
    assert_eq!(batch.kinds(throw), (0, 2));
    for damage in [&mode as &dyn Fn(&[PathBuf]), &truncate] {
        damage(&batch.files("optimized"));
        let done = finish(batch.command_that_finishes("wait", &[]).arg("true"));
        assert!(done.stderr.contains("not as it was written"), "{}", done.stderr);
        assert_eq!((overlays().len(), batch.kinds(throw)), (compiled.len(), (0, 2)));
    }
    truncate(&batch.files("optimized"));
    // (One of a library that was not optimized before may have been made meanwhile, and is sound.)
    let verified = batch.cache_command(&["verify"]);
    for program in &compiled {
        let removed = format!("{}: removed", program.display());
        assert!(verified.stdout.contains(&removed), "{}", verified.stdout);
    }
    assert_eq!(batch.kinds(throw), (2, 0));
    batch.cache_command(&["prune", "--size", "0"]).expect(code::DONE);
    assert_eq!((batch.files("optimized"), batch.files("overlay")), (Vec::new(), Vec::new()));
}

#[test]
fn programs_at_fixed_addresses_and_libraries_are_optimized() {
    let batch = Batch::new();
    let source = batch.folder.path().join("library.c");
    std::fs::write(
        &source,
        "int turn(unsigned n) { switch (n % 7) { case 0: return 3; case 1: return 7; case 2: return 1; case 3: return 9;\n\
         case 4: return n & 5; case 5: return n | 3; default: return 11; } }\n\
         unsigned work(unsigned n) { unsigned s = 0; for (unsigned i = 0; i < n; i++) s = s * 31 + turn(s >> 3); return s; }\n",
    )
    .expect("written");
    let library = batch.folder.path().join("libturn.so");
    let (main, program) = (batch.folder.path().join("main.c"), batch.folder.path().join("main"));
    std::fs::write(
        &main,
        "unsigned work(unsigned);\nint main(void) { return work(60000000) == work(60000000) ? 42 : 1; }\n",
    )
    .expect("written");
    let gcc = require!(restitch_testkit::find_program("gcc"), "gcc");
    let build = |arguments: &[&std::ffi::OsStr]| {
        assert!(
            Command::new(&gcc).args(arguments).arg("-Wl,--build-id=sha1").status().expect("gcc").success()
        );
    };
    build(&[
        "-O2".as_ref(),
        "-shared".as_ref(),
        "-fPIC".as_ref(),
        "-o".as_ref(),
        library.as_ref(),
        source.as_ref(),
    ]);
    build(&["-O2".as_ref(), "-o".as_ref(), program.as_ref(), main.as_ref(), library.as_ref()]);
    let Some(fixed) = compiled(&restitch_testkit::program("throw.cc"), &["-O2", "-no-pie"]) else { return };
    // The library's own program has too little code of its own to be worth it.
    let stop = batch.folder.path().join("stop");
    let script = "while [ ! -e \"$STOP\" ]; do \"$0\"; [ $? = 42 ] || exit 9; \"$1\" --seconds 0.3; [ $? = 42 ] || exit 9; done";
    let mut command = batch.command(&["--eager"]);
    command.args(["sh", "-c", script]).args([&program, &fixed]).env("STOP", &stop);
    let mut child = command.stderr(Stdio::piped()).spawn().expect("it starts");
    let complete = wait_until(PATIENCE * 2, || {
        let optimized = batch.optimized();
        ([&library, &fixed].iter().all(|p| optimized.contains(p))
            || child.try_wait().is_ok_and(|s| s.is_some()))
        .then_some(())
    });
    std::thread::sleep(std::time::Duration::from_secs(2));
    std::fs::write(&stop, "").expect("written");
    let output = child.wait_with_output().expect("it ends");
    assert!(
        complete.is_some() && output.status.code() == Some(0),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let report = batch.report();
    let optimized: Vec<&str> =
        report["optimized"].as_array().into_iter().flatten().filter_map(|m| m["path"].as_str()).collect();
    assert!(optimized.iter().any(|p| Path::new(p) == library), "{report:#}");
    assert!(optimized.iter().any(|p| Path::new(p) == fixed), "{report:#}");
}

const ENVIRONMENT: &str = r#"
#define _GNU_SOURCE
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
/* Starts itself by each function, with an environment of its own or an emptied one; the last says what it finds. */
static char own[4096];
int main(int argc, char **argv) {
    char *empty[] = {0}, *one[] = {"A=1", 0}, *other[] = {"LD_PRELOAD=/nonexistent.so", "A=1", 0};
    if (argc > 1 && !strcmp(argv[1], "end")) {
        const char *preload = getenv("LD_PRELOAD");
        return preload && strstr(preload, "librestitch-$PLATFORM.so") && argc == 4 && !strcmp(argv[3], "b") ? 0 : 1;
    }
    if (readlink("/proc/self/exe", own, sizeof own - 1) < 0) return 2;
    char *words[] = {own, "end", "a", "b", 0};
    int failed = 0;
    for (int way = 0; way < 13; way++) {
        pid_t pid = 0;
        if (way == 11 || way == 12) {
            if ((way == 11 ? posix_spawn : posix_spawnp)(&pid, own, 0, 0, words, one)) return 3;
        } else if ((pid = way == 10 ? vfork() : fork()) == 0) {
            switch (way) {
            case 0: execve(own, words, one); break;
            case 1: execve(own, words, empty); break;
            case 2: execle(own, own, "end", "a", "b", (char *)0, one); break;
            case 3: clearenv(); execl(own, own, "end", "a", "b", (char *)0); break;
            case 4: clearenv(); execlp(own, own, "end", "a", "b", (char *)0); break;
            case 5: clearenv(); execv(own, words); break;
            case 6: clearenv(); execvp(own, words); break;
            case 7: execvpe(own, words, one); break;
            case 8: fexecve(open(own, O_RDONLY), words, one); break;
            case 9: execveat(AT_FDCWD, own, words, other, 0); break;
            case 10: execve(own, words, one); break;
            }
            _exit(99);
        }
        int status;
        if (waitpid(pid, &status, 0) != pid || status) printf("way %d: %x\n", way, status), failed = 1;
    }
    for (int way = 0; way < 2; way++) {
        clearenv();
        char command[5000];
        snprintf(command, sizeof command, "'%s' end a b", own);
        int status = way ? pclose(popen(command, "r")) : system(command);
        if (status || getenv("LD_PRELOAD")) printf("%s: %x\n", way ? "popen" : "system", status), failed = 1;
    }
    if (execl("/nonexistent", "1", "2", "3", "4", "5", "6", "7", (char *)0) != -1) return 4;
    return failed;
}
"#;

/// Compiles a program from text.
fn built(folder: &Path, name: &str, text: &str, flags: &[&str]) -> Option<PathBuf> {
    restitch_testkit::find_program("gcc").or_else(|| {
        restitch_testkit::skipped("gcc is missing");
        None
    })?;
    let (source, output) = (folder.join(format!("{name}.c")), folder.join(name));
    std::fs::write(&source, text).expect("written");
    let done =
        Command::new("gcc").args(flags).arg("-o").arg(&output).arg(&source).output().expect("gcc starts");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    Some(output)
}

#[test]
fn the_agent_is_passed_on_whatever_environment_a_program_gives() {
    let batch = Batch::new();
    let Some(program) = built(batch.folder.path(), "environment", ENVIRONMENT, &["-O2"]) else { return };
    let done = finish(batch.command(&[]).arg(&program));
    assert_eq!(done.status.code(), Some(0), "{}{}", done.stdout, done.stderr);
}

#[test]
fn the_agent_is_initialized_before_all_libraries() {
    let Some(throw) = compiled(&program("throw.cc"), &["-O2"]) else { return };
    let batch = Batch::new();
    finish(batch.command(&[]).arg("true")).expect(code::DONE);
    let agent = batch.cache().join("v1/librestitch-preload.so");
    let mut traced = Command::new(&throw);
    let done = finish(traced.env("LD_PRELOAD", agent).env("LD_DEBUG", "files"));
    assert_eq!(done.status.code(), Some(42), "{}", done.stderr);
    let order: Vec<&str> =
        done.stderr.lines().filter_map(|l| Some(l.split_once("calling init: ")?.1)).collect();
    assert!(order.len() > 2, "libraries are initialized: {}", done.stderr);
    assert!(order[0].contains("librestitch-"), "what they execute then is overlaid: {order:#?}");
}

#[test]
fn sanitizers_static_programs_and_strange_ones_run_as_ever() {
    let batch = Batch::new();
    let text = "#include <stdio.h>\n#include <stdlib.h>\nint main(void) { char *p = malloc(7); p[6] = 0; free(p); puts(\"fine\"); return 0; }\n";
    let folder = batch.folder.path();
    for (name, flags) in
        [("sanitized", &["-g", "-fsanitize=address"][..]), ("static", &["-static"]), ("plain", &[])]
    {
        let Some(program) = built(folder, name, text, flags) else { return };
        let done = finish(batch.command(&["--quiet"]).arg(&program));
        assert_eq!((done.status.code(), &*done.stdout, &*done.stderr), (Some(0), "fine\n", ""), "{name}");
    }
    let done = finish(batch.command(&["--quiet"]).args(["sh", "-c", "exit 7"]));
    assert_eq!(done.status.code(), Some(7));
    let done = finish(batch.command(&["--quiet"]).args(["sh", "-c", "kill -9 $$"]));
    assert_eq!(done.status.code(), Some(137));
    let done = finish(batch.command(&["--quiet"]).args([
        "env",
        "-i",
        "sh",
        "-c",
        "echo $#; pwd >/dev/null",
        "a",
        "b",
    ]));
    assert_eq!((&*done.stdout, &*done.stderr), ("1\n", ""));
}

/// A sanitizer wants to be the first library that the C library tells of.
#[test]
fn programs_under_sanitizers_are_counted_and_optimized() {
    let flags = ["-O1", "-g", "-fsanitize=address", "-Wl,--build-id=sha1"];
    let Ok(sanitized) = restitch_testkit::compile(&program("switch.c"), &flags) else {
        return restitch_testkit::skipped("gcc has no -fsanitize=address");
    };
    let batch = Batch::new();
    // Every run ends as the program does alone, or this fails.
    batch.optimize(std::slice::from_ref(&sanitized));
    assert_eq!(batch.kinds(&sanitized), (0, 2), "{:#}", batch.report());
}

#[test]
fn a_layout_that_is_asked_for_is_made_of_the_profile_that_is_kept() {
    let Some(throw) = compiled(&program("throw.cc"), &["-O2"]) else { return };
    let batch = Batch::new();
    batch.optimize(std::slice::from_ref(&throw));
    let layout = || {
        let notes = batch.files_of("json", &throw);
        let [note] = &notes[..] else { panic!("{notes:?}") };
        let note: serde_json::Value =
            serde_json::from_slice(&std::fs::read(note).expect("there")).expect("JSON");
        (note["layout"].as_str().expect("text").to_owned(), note["profiled_runs"].clone())
    };
    let (first, runs) = layout();
    assert_eq!(first, "ext-tsp-across+search");
    // Who asks for nothing gets what is there; who asks gets that, without a new profile.
    finish(batch.command(&[]).arg("true")).expect(code::DONE);
    assert_eq!(layout(), (first, runs.clone()));
    finish(batch.command_that_finishes("wait", &["--layout", "c3"]).arg("true")).expect(code::DONE);
    assert_eq!(layout(), ("c3".into(), runs.clone()));
    assert_eq!(batch.kinds_with(&["--layout", "c3"], &throw), (0, 2));
    batch.cache_command(&["optimize", "--layout", "stitch:4K:2M"]).expect(code::DONE);
    assert_eq!(layout(), ("stitch:4K:2M".into(), runs));
    assert_eq!(batch.kinds(&throw), (0, 2));
    // By its name it is removed, and nothing else.
    let name = throw.file_name().expect("a name").to_string_lossy().into_owned();
    let others = batch.files("json").len() - 1;
    let pruned = batch.cache_command(&["prune", &name]);
    assert_eq!((pruned.status.code(), pruned.stdout.as_str()), (Some(code::DONE), "1 module removed\n"));
    assert_eq!((batch.files("json").len(), batch.kinds(&throw)), (others, (2, 0)));
    let nothing = batch.cache_command(&["prune", &name, "no-such-program"]);
    expect_message(&nothing, code::NOTHING_TO_DO, &["no-such-program"]);
    let both = batch.cache_command(&["prune", &name, "--size", "1"]);
    assert_eq!(both.status.code(), Some(code::USAGE), "{}", both.stderr);
}

#[test]
fn a_program_that_was_to_count_and_did_not_run_is_named() {
    let batch = Batch::new();
    let shell = std::fs::canonicalize("/bin/sh").expect("it is there");
    let name = shell.file_name().expect("a name").to_string_lossy().into_owned();
    // Of a link, the file that it leads to counts: `sh` is one, and the kernel never says so.
    for name in [&*name, "sh", "/bin/sh"] {
        let done =
            finish(batch.command(&["--program", name, "--program", "gti"]).args(["sh", "-c", "exit 3"]));
        assert_eq!(done.status.code(), Some(3), "{}", done.stderr);
        assert!(done.stderr.contains("no program named gti was run"), "{}", done.stderr);
        assert!(!done.stderr.contains(&format!("named {name} ")), "{}", done.stderr);
    }
}

#[test]
fn what_goes_wrong_with_the_cache_does_not_stop_the_command() {
    let batch = Batch::new();
    let folder = batch.folder.path();
    let file = folder.join("file");
    std::fs::write(&file, "").expect("written");
    for cache in [
        &*file.join("below").to_string_lossy(),
        "/proc/nonexistent",
        &folder.join("with blank").to_string_lossy(),
    ] {
        let done = finish(batch.command(&["--cache", cache]).args(["echo", "done"]));
        assert_eq!((done.status.code(), &*done.stdout), (Some(0), "done\n"), "{}", done.stderr);
        assert!(done.stderr.contains("original code"), "{}", done.stderr);
    }
    expect_message(
        &finish(batch.command(&[]).arg("/nonexistent/program")),
        code::NOT_FOUND,
        &["/nonexistent/program"],
    );
    let config = folder.join("restitch.toml");
    std::fs::write(&config, "[batch]\nprogramms = []\n").expect("written");
    let wrong = finish(batch.command(&["--config", &config.to_string_lossy()]).arg("true"));
    expect_message(&wrong, code::BAD_INPUT, &["restitch.toml", "programms"]);
    std::fs::write(&config, "[batch]\nprograms = [\"none\"]\n").expect("written");
    let right = finish(batch.command(&["--config", &config.to_string_lossy()]).arg("true"));
    assert_eq!(right.status.code(), Some(0), "{}", right.stderr);
    // The configuration may name the cache, as seen from its folder, if somebody has named it.
    std::fs::write(&config, "[batch]\ncache = \"here\"\n").expect("written");
    let list = || finish(batch.restitch.command(&["cache", "list", "--config"]).arg(&config));
    expect_message(&list(), code::BAD_INPUT, &["here: there is no cache"]);
    assert!(!folder.join("here").exists(), "a name that was mistyped comes into being");
    std::fs::create_dir(folder.join("here")).expect("the folder is writable");
    let listed = list();
    listed.expect(code::DONE);
    assert!(folder.join("here/v1").exists(), "{}", listed.stderr);
}
