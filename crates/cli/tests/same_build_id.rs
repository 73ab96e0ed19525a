//! Programs with one build id and other content, as a patch makes them: versions of the one are none of the
//! other.

mod common;

use common::{Restitch, code, expect_message, finish};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

const SOURCE: &str = r#"
#include <stdio.h>
__attribute__((noipa)) unsigned step(unsigned x, int k) {
    if (x % 7 == 3) return x * 2654435761u + k;
    if (x & 64) return x * 0x01234567u ^ k;
    return x + 0x9e3779b9u;
}
int main(void) {
    unsigned x = 1;
    for (int i = 0; i < 300000; i++) x = step(x, i);
    printf("%08x\n", x);
}
"#;

fn executable(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).expect("written");
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o755)).expect("permitted");
}

/// What an instrumented copy has counted is no profile of a program that was patched since.
#[test]
fn counts_are_not_those_of_a_patched_program() {
    let Some(gcc) = restitch_testkit::find_program("gcc") else {
        return restitch_testkit::skipped("gcc is missing");
    };
    let (restitch, folder) = (Restitch::new(), restitch_testkit::scratch());
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("s.c"), SOURCE).expect("written");
    let mut gcc = Command::new(gcc);
    gcc.args(["-O2", "-Wl,--build-id=sha1", "-o"]).arg(at("one")).arg(at("s.c"));
    assert!(gcc.status().expect("gcc starts").success());
    let mut instrument = restitch.command(&["instrument"]);
    instrument.arg(at("one")).arg("-o").arg(at("copy")).arg("--counts").arg(at("counts"));
    finish(&mut instrument).expect(code::DONE);
    assert!(Command::new(at("copy")).output().expect("it starts").status.success());
    let record = || {
        let mut command = restitch.command(&["record", "-o"]);
        finish(command.arg(at("profile")).arg("--from-counts").arg(at("counts")))
    };
    record().expect(code::DONE);
    std::fs::remove_file(at("profile")).expect("it is there");

    let mut patched = std::fs::read(at("one")).expect("read");
    let place = patched.windows(4).position(|w| w == 0x0123_4567u32.to_le_bytes()).expect("the constant");
    patched[place] ^= 2;
    executable(&at("one"), &patched);
    expect_message(
        &record(),
        code::BAD_INPUT,
        &["one has the build id", "it was patched", "instrument it again"],
    );
    assert!(!at("profile").exists());
}

#[test]
fn a_patched_copy_in_a_tree_is_not_taken_for_the_original() {
    let Some(gcc) = restitch_testkit::find_program("gcc") else {
        return restitch_testkit::skipped("gcc is missing");
    };
    let (restitch, folder) = (Restitch::new(), restitch_testkit::scratch());
    let at = |name: &str| folder.path().join(name);
    std::fs::write(at("s.c"), SOURCE).expect("written");
    // At a fixed address every process has it at the same place.
    let mut gcc = Command::new(gcc);
    gcc.args(["-O2", "-no-pie", "-Wl,--build-id=sha1", "-o"]).arg(at("one")).arg(at("s.c"));
    assert!(gcc.status().expect("gcc starts").success());
    let original = std::fs::read(at("one")).expect("read");
    let mut patched = original.clone();
    let place = original.windows(4).position(|w| w == 0x0123_4567u32.to_le_bytes()).expect("the constant");
    patched[place] ^= 2;
    executable(&at("two"), &patched);
    executable(&at("three"), &original);

    // One after the other: the same file, a copy, a patched copy, and the same file patched in place.
    let script = "./one; ./one; ./three; ./two; ./two; cat two > one; ./one; ./one; cat three > one; ./one";
    let plain =
        Command::new("sh").args(["-c", script]).current_dir(folder.path()).output().expect("it starts");
    let expected = String::from_utf8(plain.stdout).expect("text");
    let different: std::collections::BTreeSet<&str> = expected.lines().collect();
    assert_eq!((expected.lines().count(), different.len()), (8, 2), "{expected}");
    let mut record = restitch.command(&["record", "-o"]);
    record.arg(at("profile")).args(["--", "sh", "-c", script]).current_dir(folder.path());
    let recorded = finish(&mut record);
    recorded.expect(code::DONE);
    assert_eq!(recorded.stdout, expected, "{}", recorded.stderr);
}
