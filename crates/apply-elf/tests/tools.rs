//! What other people's tools make of an output.

mod common;

use common::{IN_PLACE, Order, available, image, install, output};
use restitch_apply_elf::{ElfError, is_restitch_output, original_bytes};
use restitch_image::Image;
use restitch_testkit::{SUCCESS, compile, compile_with, program, require, run, scratch, skip, strip};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

fn outputs(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for (i, flags) in [
        &["-O2", "-pie", "-fPIE"][..],
        &["-O2", "-no-pie", "-g"],
        &["-O2", "-static"],
        &["-O2", "-static-pie"],
    ]
    .into_iter()
    .enumerate()
    {
        let compiled = compile(&program("throw.cc"), flags).expect("compiles");
        let stripped = strip(&compiled).expect("strip");
        for (kind, input) in [("whole", compiled), ("stripped", stripped)] {
            let bytes = output(&image(&input), Order::Reversed, &IN_PLACE);
            files.push(install(folder, &format!("{kind}{i}"), &bytes));
        }
    }
    files
}

/// Both streams of a tool that must succeed; `None` if it is not installed.
fn tool(name: &str, arguments: &[&str], file: &Path) -> Option<(String, String)> {
    let result = Command::new(name).args(arguments).arg(file).output().ok()?;
    assert!(result.status.success(), "{name} {arguments:?}: {}", String::from_utf8_lossy(&result.stderr));
    let text = |b: Vec<u8>| String::from_utf8_lossy(&b).into_owned();
    Some((text(result.stdout), text(result.stderr)))
}

#[test]
fn readelf_has_nothing_to_complain_about() {
    let folder = scratch();
    for file in outputs(folder.path()) {
        let Some((text, errors)) = tool("readelf", &["-aW"], &file) else {
            skip!("readelf is not installed")
        };
        assert!(errors.is_empty(), "{}: {errors}", file.display());
        for section in [".text.restitch", ".eh_frame.orig", ".note.restitch", ".symtab"] {
            assert!(text.contains(section), "{section} is missing");
        }
        assert!(!text.contains("Warning"), "{text}");
    }
}

/// Tracers find static probes by their notes: each copy has one of its own, and nothing is written over the
/// original's.
#[test]
fn copies_of_static_probes_have_notes() {
    let folder = scratch();
    let compiled = require!(available(compile(&program("probes.c"), &["-O2"])), "no compiler");
    let original = image(&compiled);
    let file = install(folder.path(), "out", &output(&original, Order::Reversed, &IN_PLACE));
    run(&mut Command::new(&file), LIMIT).expect(SUCCESS);
    let stripped = strip(&file).expect("strip");
    for file in [&file, &stripped] {
        let out = image(file);
        let named = |image: &Image| {
            let mut named: Vec<_> = image.static_probes().iter().map(|p| (p.name(), p.at)).collect();
            named.sort();
            named
        };
        let (old, new) = (named(&original), named(&out));
        assert_eq!(
            old.iter().map(|(name, _)| &**name).collect::<Vec<_>>(),
            ["test:early", "test:hot", "test:looked"]
        );
        let version = out.segments().iter().rfind(|s| s.executable).expect("a version").range;
        for (name, at) in &old {
            let copies: Vec<_> = new.iter().filter(|(n, _)| n == name).map(|(_, at)| *at).collect();
            assert!(copies.contains(at) && copies.len() == 2, "{name}: {copies:?}");
            assert!(copies.iter().any(|at| version.contains(*at)), "{name}: {copies:?}");
            assert!(copies.iter().all(|at| out.read(*at, 1) == Some(&[0x90])), "{name}: {copies:?}");
        }
        let Some((text, errors)) = tool("readelf", &["-nW"], file) else { skip!("readelf is not installed") };
        assert!(errors.is_empty() && text.matches("Provider: test").count() == 6, "{text}{errors}");
    }
}

/// Sections that refer to symbols by number keep doing so.
#[test]
fn relocations_kept_by_the_linker_stay_right() {
    let folder = scratch();
    let flags = ["-O2", "-no-pie", "-Wl,--emit-relocs"];
    let compiled = require!(available(compile(&program("throw.cc"), &flags)), "no compiler");
    let file = install(folder.path(), "out", &output(&image(&compiled), Order::Reversed, &IN_PLACE));
    run(&mut Command::new(&file), LIMIT).expect(SUCCESS);
    let relocations = |file: &Path| tool("readelf", &["-rW"], file);
    let (Some(new), Some(old)) = (relocations(&file), relocations(&compiled)) else {
        skip!("readelf is not installed")
    };
    assert!(new.0 == old.0 && new.1.is_empty());
    assert!(old.0.contains(".rela.text"));
}

/// `strip` lays the file out again: it must keep what runs, and the note.
#[test]
fn stripped_outputs_run_and_are_recognised() {
    let folder = scratch();
    for file in outputs(folder.path()) {
        for option in ["--strip-all", "--strip-debug", "--strip-unneeded"] {
            let copy = folder.path().join("copy");
            let arguments = [option, "-o", copy.to_str().unwrap()];
            let Some((_, errors)) = tool("strip", &arguments, &file) else { skip!("strip is not installed") };
            assert_eq!(errors, "");
            run(&mut Command::new(&copy), LIMIT).expect(SUCCESS);
            let stripped = image(&copy);
            assert_eq!(is_restitch_output(&stripped).expect("recognised").number, 3);
            assert!(matches!(original_bytes(&stripped), Err(ElfError::Changed { .. })));
        }
    }
}

#[test]
fn debug_information_can_be_split_off() {
    let folder = scratch();
    for file in outputs(folder.path()) {
        let debug = folder.path().join("debug");
        std::fs::copy(&file, &debug).unwrap();
        if tool("objcopy", &["--only-keep-debug"], &debug).is_none() {
            skip!("objcopy is not installed");
        }
        let (text, _) = tool("readelf", &["-SW"], &debug).expect("readelf comes with objcopy");
        assert!(text.contains(".text.restitch"));
    }
}

const ABORTING: &str = "#include <stdlib.h>\n\
    __attribute__((noinline)) int inner(int n) { if (n > 1) abort(); return n; }\n\
    __attribute__((noinline)) int middle(int n) { return inner(n * 2) + 1; }\n\
    __attribute__((noinline)) int outer(int n) { return middle(n + 1) * 3; }\n\
    int main(int c, char **v) { (void)v; return outer(c) + 2; }\n";

const GDB: [&str; 10] =
    ["-batch", "-nx", "-ex", "run", "-ex", "bt", "-ex", "frame function middle", "-ex", "info symbol $pc"];

#[test]
fn gdb_walks_and_names_moved_frames() {
    let folder = scratch();
    let source = folder.path().join("aborting.c");
    std::fs::write(&source, ABORTING).unwrap();
    for flags in [&["-O2", "-pie", "-fPIE"][..], &["-O2", "-no-pie"], &["-O2", "-static"]] {
        let compiled = require!(available(compile_with("gcc", &source, flags)), "no compiler");
        let file = install(folder.path(), "out", &output(&image(&compiled), Order::Reversed, &IN_PLACE));
        let Some((text, _)) = tool("gdb", &GDB, &file) else { skip!("gdb is not installed") };
        if !text.contains("SIGABRT") {
            skip!("gdb cannot start a process here");
        }
        let lines: Vec<_> = text.lines().filter(|l| l.starts_with('#')).collect();
        let line = |name: &str| {
            let found = lines.iter().position(|l| l.contains(&format!(" in {name}")));
            found.unwrap_or_else(|| panic!("no frame of {name}: {text}"))
        };
        let frames = [line("inner"), line("middle"), line("outer"), line("main")];
        assert!(frames.is_sorted() && frames[3] - frames[0] == 3, "{text}");
        assert!(text.contains(" in section .text.restitch"), "{text}");
    }
}
