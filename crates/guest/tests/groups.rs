//! Group modules in a stock kernel: copies of the poll path, in force under a load that knows every result.
//! All paths and all kernels are in `bench/verify/kernel_groups.py`.

mod common;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::{Bench, address_of, bench, file, had, memory_at, program};
use restitch_guest::{Error, FileIn, Guest, Job, Source, build_control_module, take_view};
use restitch_testkit::{scratch, skip_unsupported};
use sha2::{Digest, Sha256};

/// The function whose callers are led to the copy, and some of what it calls, where this kernel has it: of
/// these the memory is compared.
const FUNCTIONS: [&str; 4] = ["do_sys_poll", "poll_freewait", "__fdget", "fput"];
/// How long the group is toggled, with and without tracing, in seconds; holders that are killed.
const SETTINGS: &str = "SECONDS=5 KILLS=5\n";
const SCRIPT: &str = include_str!("../../../tests/guest/groups.sh");

/// The group's name: that of its function behind the product's.
const GROUP: &str = "restitch_do_sys_poll";

/// The group module of the first function in a view and of what it calls, their blocks reversed.
fn group(view: &Path, release: &str, control: &Path) -> PathBuf {
    let to = view.with_file_name(format!("{GROUP}.ko"));
    // Checksums of what it exports are among what a module has to say.
    std::fs::copy(control, view.join("lib/modules").join(release).join("restitch-kernel.ko")).unwrap();
    let mut command = Command::new(env!("CARGO"));
    command.args(["run", "-q", "-p", "restitch", "--", "kernel", "position", FUNCTIONS[0], "--view"]);
    command.arg(view).args(["--callees", "1", "--order", "reversed", "--write"]).arg(&to);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    to
}

/// A line for each function: address, length, the checksum of its bytes, and name.
fn memory(view: &Path, functions: &[&str]) -> String {
    let core = std::fs::read(view.join("proc/kcore")).unwrap();
    let text = std::fs::read_to_string(view.join("proc/kallsyms")).unwrap();
    let places = text.lines().filter_map(|line| u64::from_str_radix(line.split(' ').next()?, 16).ok());
    let places: std::collections::BTreeSet<u64> = places.collect();
    let line = |name: &&str| {
        let start = address_of(view, name).unwrap();
        let len = places.range(start + 1..).next().unwrap() - start;
        let bytes = &memory_at(&core, start).unwrap()[..len as usize];
        let sum: String = Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect();
        format!("{start:x} {len} {sum} {name}\n")
    };
    functions.iter().map(line).collect()
}

/// What guests get.
struct Given {
    view: PathBuf,
    files: Vec<FileIn>,
}

/// All files, made for a guest of two processors; none without a compiler for its programs.
fn given(Bench { lab, kernel }: &Bench, folder: &Path) -> Result<Option<Given>, Error> {
    let programs =
        [("loads", "/loads"), ("groups", "/groups/programs")].map(|(name, to)| program(name, to, folder));
    let [Some(loads), Some(groups)] = programs else { return Ok(None) };
    let control = build_control_module(lab, kernel)?;
    let view = folder.join("view");
    // Lock prefixes are taken out where there is one processor only: as many as in the run.
    take_view(&Guest::new(lab, kernel).append("nokaslr").processors(2), kernel, &view)?;
    let functions = FUNCTIONS.into_iter().filter(|name| address_of(&view, name).is_some());
    let functions: Vec<&str> = functions.collect();
    let group = group(&view, kernel.release(), &control);
    let memory = memory(&view, &functions);
    let files = vec![
        loads,
        groups,
        file("/control.ko", Source::Path(control)),
        file(&format!("/groups/{GROUP}.ko"), Source::Path(group)),
        file("/roots", Source::Bytes(format!("{GROUP} do_sys_poll poll\n").into_bytes())),
        file("/memory", Source::Bytes(memory.into_bytes())),
    ];
    Ok(Some(Given { view, files }))
}

#[test]
fn copies_in_force_do_what_the_kernel_does_and_leave_it_as_it_was() {
    let bench = had!(bench());
    let folder = scratch();
    let Some(Given { view, files }) = had!(given(&bench, folder.path())) else {
        skip_unsupported!("gcc is not available");
    };
    let Bench { lab, kernel } = &bench;
    let run = |guest: Guest<'_>, script: String| {
        guest.run(&Job { script, files_in: files.clone(), files_out: Vec::new() }).unwrap().text
    };
    let text = run(Guest::new(lab, kernel).append("nokaslr").processors(2), format!("{SETTINGS}{SCRIPT}"));
    assert!(text.ends_with("all held\n"), "{text}");

    // Addresses are others in a boot of its own choice: the group is refused.
    let moved = format!(
        "grep -w do_sys_poll /proc/kallsyms; insmod /control.ko; insmod /groups/{GROUP}.ko && echo taken; \
         cat /dev/restitch-kernel; echo end"
    );
    let text = run(Guest::new(lab, kernel).processors(2), moved);
    let there = format!("{:x} ", address_of(&view, "do_sys_poll").unwrap());
    assert!(!text.starts_with(&there), "{text}");
    assert!(text.ends_with("invalid module format\nend\n") && !text.contains("taken"), "{text}");
}
