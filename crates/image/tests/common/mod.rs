//! Builds small programs, and finds installed ones.
#![allow(dead_code)]

use restitch_image::Image;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

pub const SOURCE: &str = r#"
#include <stdio.h>
#include <stdlib.h>
int table[64];
const char message[] = "counted";
__attribute__((noinline)) int twice(int x) { return 2 * x; }
static __attribute__((noinline)) int local_helper(int x) { return x + table[x & 63]; }
int (*pointers[2])(int) = { twice, local_helper };
int main(int argc, char **argv) {
    void *p = malloc(argc + 10);
    int sum = 0;
    for (int i = 0; i < 100; i++) sum += pointers[i & 1](i);
    printf("%s %d %p %p\n", message, sum, p, (void *)free);
    free(p);
    return 0;
}
int exported_alias(int) __attribute__((alias("twice")));
"#;

/// Whether `program` can be started at all.
pub fn have(program: &str) -> bool {
    let mut command = Command::new(program);
    command.arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok()
}

/// The file that gcc makes of [`SOURCE`] with `flags`; none if gcc or the linker is not there.
pub fn build(directory: &Path, name: &str, flags: &[&str]) -> Option<PathBuf> {
    let (source, output) = (directory.join("program.c"), directory.join(name));
    std::fs::write(&source, SOURCE).unwrap();
    let mut gcc = Command::new("gcc");
    gcc.args(["-O1", "-o"]).arg(&output).arg(&source).args(flags);
    restitch_testkit::compiled(&mut gcc).map(|()| output)
}

/// The bytes that gcc makes of [`SOURCE`].
pub fn built(flags: &[&str]) -> Option<Vec<u8>> {
    let directory = tempfile::tempdir().unwrap();
    let file = build(directory.path(), "program", flags)?;
    Some(std::fs::read(file).unwrap())
}

pub fn run(program: &str, arguments: &[&str]) -> bool {
    Command::new(program).args(arguments).status().is_ok_and(|s| s.success())
}

/// A stripped program with MiniDebugInfo, made the way distributions make it: the symbols are in an
/// xz-compressed file in a section. With it, the symbols of the program before.
pub fn with_mini_debuginfo(real_xz: bool) -> Option<(Vec<u8>, Image)> {
    let directory = tempfile::tempdir().unwrap();
    let file = build(directory.path(), "program", &["-pie", "-fPIE"])?;
    let [debug, packed, out] = ["debug", "debug.xz", "out"].map(|n| directory.path().join(n));
    let text = |p: &Path| p.to_str().unwrap().to_owned();
    let before = parse(std::fs::read(&file).unwrap());
    let made = run("objcopy", &["--only-keep-debug", &text(&file), &text(&debug)])
        && run("strip", &["-s", &text(&file)]);
    if !made || (real_xz && !have("xz")) {
        return None;
    }
    if real_xz {
        assert!(run("xz", &["-k", &text(&debug)]));
    } else {
        let mut bytes = Vec::new();
        lzma_rs::xz_compress(&mut &*std::fs::read(&debug).unwrap(), &mut bytes).unwrap();
        std::fs::write(&packed, bytes).unwrap();
    }
    let section = format!(".gnu_debugdata={}", text(&packed));
    assert!(run("objcopy", &["--add-section", &section, &text(&file), &text(&out)]));
    Some((std::fs::read(&out).unwrap(), before))
}

/// The same file without section headers.
pub fn without_sections(mut data: Vec<u8>) -> Vec<u8> {
    data[40..48].fill(0);
    data[58..64].fill(0);
    data
}

pub fn parse(data: Vec<u8>) -> Image {
    Image::parse(data).unwrap_or_else(|e| panic!("{e}"))
}
