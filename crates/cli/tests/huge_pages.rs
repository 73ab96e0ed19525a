//! Large pages for hot code: where versions come to lie, that programs go on being right, and that everything
//! goes again. Whether the kernel really gives large pages depends on it and on the file system, so that is
//! told, not asserted.

mod common;

use common::{Restitch, Target, code, look, stoppable};
use restitch_testkit::{SUCCESS, scratch};
use std::process::Command;

const LARGE: u64 = 2 << 20;

#[test]
fn a_live_version_lies_in_large_pages() {
    let Some(program) = stoppable("switch.c", &["-O2"]) else { return };
    let restitch = Restitch::new();
    let mut target = Target::start(&program);
    let pid = target.pid();
    for (option, large) in [("on", true), ("off", false), ("auto", false)] {
        let attached = restitch.attach(pid, &["--huge-pages", option, "--json", "-"]);
        attached.expect(code::DONE);
        let result: serde_json::Value = serde_json::from_str(&attached.stdout).expect("JSON");
        let modules = result["modules"].as_array().expect("modules");
        let (mut bytes, mut given) = (Vec::new(), 0);
        for version in modules.iter().map(|m| &m["version"]) {
            bytes.push(version["bytes"].as_u64().expect("a number"));
            given += version["large_page_bytes"].as_u64().expect("a number");
        }
        println!("{option}: {bytes:?} bytes mapped, {given} of them by large pages");
        let whole = |n: &u64| n.is_multiple_of(LARGE);
        assert_eq!(bytes.iter().all(whole), large, "{option}: {bytes:?}");
        assert!(large || given == 0, "{option}: {given}");
        // A version that somebody may return into stays mapped for a while.
        let versions: Vec<_> = look::ours(pid).into_iter().filter(|v| v.end - v.start >= LARGE).collect();
        assert!(!large || !versions.is_empty(), "{option}");
        assert!(versions.iter().all(|v| v.start.is_multiple_of(LARGE)), "{option}: {versions:x?}");
        target.assert_computing("in the new layout");
    }
    target.assert_goes_back(&restitch);
    target.stop();
}

struct Segment {
    offset: u64,
    address: u64,
    len: u64,
    align: u64,
}

/// The PT_LOAD with the highest address (System V ABI, figures 4-3 and 5-1).
fn last_segment(file: &[u8]) -> Segment {
    let number =
        |at: usize, len: usize| file[at..at + len].iter().rev().fold(0, |n, b| n << 8 | u64::from(*b));
    let (first, count) = (number(32, 8) as usize, number(56, 2) as usize);
    let headers = (0..count).map(|i| first + 56 * i).filter(|h| number(*h, 4) == 1);
    let segments = headers.map(|h| Segment {
        offset: number(h + 8, 8),
        address: number(h + 16, 8),
        len: number(h + 32, 8),
        align: number(h + 48, 8),
    });
    segments.max_by_key(|s| s.address).expect("a segment")
}

#[test]
fn an_output_file_asks_for_large_pages() {
    let moved_headers = [&["-O2", "-static", "-fuse-ld=gold"][..], &["-O2", "-static-pie", "-fuse-ld=lld"]];
    let usual = [&["-O2"][..], &["-O2", "-no-pie"], &["-O2", "-static"]];
    for flags in usual.into_iter().chain(moved_headers) {
        let Some(program) = stoppable("virt.cc", flags) else { return };
        let restitch = Restitch::new();
        let folder = scratch();
        let path = |name: &str| folder.path().join(name);
        let (profile, output) = (path("profile"), path("output"));
        let mut record = restitch.command(&["record", "-o"]);
        record.arg(&profile).arg("--").arg(&program).args(["--seconds", "1"]);
        // The program's own exit code.
        common::finish(&mut record).expect(SUCCESS);
        let mut align = Vec::new();
        for option in ["on", "off"] {
            let mut optimize = restitch.command(&["optimize", "--huge-pages", option, "--profile"]);
            optimize.arg(&profile).arg("-o").arg(&output).arg(&program);
            common::finish(&mut optimize).expect(code::DONE);
            let added = last_segment(&std::fs::read(&output).expect("written"));
            assert_eq!(added.address % added.align, added.offset % added.align, "{flags:?} {option}");
            assert!(
                option == "off" || added.len >= LARGE && added.address.is_multiple_of(LARGE),
                "{flags:?}"
            );
            align.push(added.align);
            let ran = Command::new(&output).args(["--seconds", "1"]).status().expect("it starts");
            assert_eq!(ran.code(), Some(SUCCESS), "{flags:?} {option}");
        }
        assert_eq!(align, [LARGE, 4096], "{flags:?}");
    }
}
