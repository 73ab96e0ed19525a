//! `batch`: to which programs the agent is passed on, and that those that it is not passed on to have nothing
//! to say about it.

mod common;

use common::batching::Batch;
use common::finish;
use restitch_testkit::{find_program, require, skip};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|m| m.uid() == 0)
}

/// Runs a shell script in a batch; `$0` is `argument`. What it prints.
#[track_caller]
fn say(batch: &Batch, script: &str, argument: &Path) -> String {
    let mut command = batch.command(&["--quiet"]);
    let done = finish(command.args(["sh", "-c", script]).arg(argument).env_remove("LD_PRELOAD"));
    assert_eq!((done.status.code(), &*done.stderr), (Some(0), ""), "{}", done.stdout);
    done.stdout
}

#[test]
fn programs_of_users_who_may_not_see_the_cache_start_without_a_word() {
    if !is_root() {
        skip!("only root can start programs of another user");
    }
    require!(find_program("setpriv"), "setpriv");
    let batch = Batch::new();
    let script = "for way in 1 2; do\n\
                  setpriv --reuid 65534 --regid 65534 --clear-groups sh -c 'ls -d /; echo \"${LD_PRELOAD-none}\"'\n\
                  chmod 711 \"$0\" \"$0/v1\"; done; chmod 700 \"$0/v1\"";
    let folder = batch.folder.path();
    std::fs::set_permissions(folder, std::fs::Permissions::from_mode(0o711)).expect("permitted");
    let agent = batch.cache().join("v1/librestitch-$PLATFORM.so");
    // The second time the cache can be seen, and the agent is passed on.
    let expected = format!("/\nnone\n/\n{}\n", agent.display());
    std::fs::create_dir(batch.cache()).expect("made");
    std::fs::set_permissions(batch.cache(), std::fs::Permissions::from_mode(0o700)).expect("permitted");
    assert_eq!(say(&batch, script, &batch.cache()), expected);
}

/// A root folder with a shell and what it needs.
fn root_folder(folder: &Path) -> Option<PathBuf> {
    let root = folder.join("root");
    let shell = std::fs::canonicalize("/bin/sh").ok()?;
    let listed = Command::new("ldd").arg(&shell).output().ok()?;
    let listed = String::from_utf8_lossy(&listed.stdout).into_owned();
    let libraries = listed.split_whitespace().filter(|w| w.starts_with('/')).map(PathBuf::from);
    let copy = |from: &Path, to: &Path| {
        let to = root.join(to.strip_prefix("/").expect("absolute"));
        std::fs::create_dir_all(to.parent().expect("a folder")).expect("made");
        std::fs::copy(from, to).expect("copied");
    };
    copy(&shell, Path::new("/bin/sh"));
    libraries.for_each(|library| copy(&library, &library));
    Some(root)
}

#[test]
fn programs_in_another_root_folder_start_without_a_word() {
    if !is_root() {
        skip!("only root can change the root folder");
    }
    require!(find_program("chroot"), "chroot");
    let batch = Batch::new();
    let root = require!(root_folder(batch.folder.path()), "ldd");
    let script = "chroot \"$0\" /bin/sh -c '/bin/sh -c \"echo ${LD_PRELOAD-none}\"'";
    assert_eq!(say(&batch, script, &root), "none\n");
}

#[test]
fn programs_start_without_a_word_when_the_cache_is_removed() {
    let batch = Batch::new();
    let script = "mv \"$0\" \"$0.away\"; env sh -c 'echo \"${LD_PRELOAD-none}\"'\n\
                  mv \"$0.away\" \"$0\"; env -i sh -c 'echo \"${LD_PRELOAD-none}\"'";
    let agent = batch.cache().join("v1/librestitch-$PLATFORM.so");
    assert_eq!(say(&batch, script, &batch.cache()), format!("none\n{}\n", agent.display()));
}

const ENTRIES: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
/* Executes itself with the LD_PRELOAD that it is given, in which "@" is what it was started with; the second time it says what it finds. */
int main(int argc, char **argv) {
    const char *own = getenv("LD_PRELOAD");
    if (argc < 2) return puts(own ? own : "none") < 0;
    char text[8000] = "LD_PRELOAD=", *end = text + strlen(text);
    for (const char *c = argv[1]; *c; c++)
        if (*c == '@') end = stpcpy(end, own); else *end++ = *c, *end = 0;
    char *words[] = {argv[0], 0}, *environment[] = {"A=1", text, "B=2", "LD_TRACE_LOADED_OBJECTS=", 0};
    if (strcmp(argv[2], "trace")) environment[3] = 0;
    if (!strcmp(argv[2], "move") && rename(argv[3], argv[4])) return 3;
    execve(argv[0], words, environment);
    return 2;
}
"#;

fn built(folder: &Path, text: &str) -> Option<PathBuf> {
    let gcc = find_program("gcc")?;
    let (source, program) = (folder.join("entries.c"), folder.join("entries"));
    std::fs::write(&source, text).expect("written");
    let built = Command::new(gcc).arg("-o").arg(&program).arg(&source).status().expect("gcc starts");
    assert!(built.success());
    Some(program)
}

#[test]
fn others_entries_stay_as_they_are() {
    let batch = Batch::new();
    let program = require!(built(batch.folder.path(), ENTRIES), "gcc");
    let (cache, away) = (batch.cache(), batch.folder.path().join("away"));
    let agent = cache.join("v1/librestitch-$PLATFORM.so");
    let put_in = |text: &str| text.replace('@', agent.to_str().expect("text"));
    // A library that is nowhere is what somebody else's entry is here: the loader says so on standard error.
    let run = |given: &str, how: &str| {
        let mut command = batch.command(&["--quiet"]);
        command.arg(&program).args([given, how]).args([&cache, &away]).env_remove("LD_PRELOAD");
        let done = finish(&mut command);
        assert_eq!(done.status.code(), Some(0), "{}", done.stderr);
        if how == "move" {
            // The session has made a part of it anew.
            let _ = std::fs::remove_dir_all(&cache);
            std::fs::rename(&away, &cache).expect("renamed");
        }
        done.stdout.trim_end().to_owned()
    };
    for (given, without) in [
        ("@", "none"),
        ("@:@", "none"),
        ("/no/a.so:@", "/no/a.so"),
        ("@:/no/a.so", "/no/a.so"),
        ("/no/a.so @ /no/b.so", "/no/a.so /no/b.so"),
        ("/no/a.so:@:@ /no/b.so", "/no/a.so /no/b.so"),
        ("@.b::@", "@.b:"),
        ("/no/a.so", "/no/a.so"),
    ] {
        let is_named = given.split([':', ' ']).any(|word| word == "@");
        let with = if is_named { put_in(given) } else { format!("{}:{}", put_in(given), agent.display()) };
        assert_eq!(run(given, "stay"), with, "{given}");
        assert_eq!(run(given, "move"), put_in(without), "{given}");
    }
}

#[test]
fn lists_of_libraries_do_not_name_the_agent() {
    // A script, which `find_program` passes over.
    require!(Path::new("/usr/bin/ldd").exists().then_some(()), "ldd");
    let batch = Batch::new();
    let program = require!(built(batch.folder.path(), ENTRIES), "gcc");
    let script = "ldd \"$0\"; LD_TRACE_LOADED_OBJECTS=1 \"$0\"; LD_TRACE_LOADED_OBJECTS= \"$0\"; \"$0\" @ trace\n\
                  LD_TRACE_LOADED_OBJECTS=1 /lib64/ld-linux-x86-64.so.2 \"$0\"";
    let said = say(&batch, script, &program);
    assert_eq!((said.matches("libc.so.6 =>").count(), said.matches("librestitch").count()), (5, 0), "{said}");
}

#[test]
fn a_batch_below_a_batch_adds_no_second_agent() {
    let batch = Batch::new();
    let below = |cache: &Path| {
        let script = "\"$1\" batch --quiet --finish later --cache \"$0\" -- sh -c 'echo \"$LD_PRELOAD\"'";
        let mut command = batch.command(&["--quiet"]);
        command.args(["sh", "-c", script]).arg(cache).arg(env!("CARGO_BIN_EXE_restitch"));
        let done = finish(command.env_remove("LD_PRELOAD"));
        assert_eq!((done.status.code(), &*done.stderr), (Some(0), ""));
        done.stdout.trim_end().to_owned()
    };
    let agent = |cache: &Path| cache.join("v1/librestitch-$PLATFORM.so").display().to_string();
    assert_eq!(below(&batch.cache()), agent(&batch.cache()));
    let other = batch.folder.path().join("other");
    assert_eq!(below(&other), format!("{}:{}", agent(&batch.cache()), agent(&other)));
}

#[test]
fn an_exported_folder_has_a_library_for_each_kind_of_processes() {
    let batch = Batch::new();
    let folder = batch.folder.path().join("exported");
    finish(batch.command(&["--quiet", "--export", &folder.to_string_lossy()]).arg("true")).expect(0);
    let class = |name: &str| std::fs::read(folder.join(name)).expect("it was exported")[4];
    let names = ["preload", "x86_64", "haswell", "xeon_phi", "i686", "i586", "i486", "i386"];
    let classes = names.map(|name| class(&format!("librestitch-{name}.so")));
    assert_eq!(classes, [2, 2, 2, 2, 1, 1, 1, 1]);
    // It is passed on under the name for all of them.
    let agent = folder.join("librestitch-$PLATFORM.so");
    let mut command = Command::new("sh");
    command.args(["-c", "env -i sh -c 'echo \"$LD_PRELOAD\"'"]).env("LD_PRELOAD", &agent);
    let done = finish(&mut command);
    assert_eq!((done.stdout, &*done.stderr), (format!("{}\n", agent.display()), ""));
}
