//! `restitch kernel` with the kernel that runs: groups come into force and out of it, however restitch ends,
//! in a stock kernel under QEMU. What runs there is this very program, with the libraries that it needs.

mod guest_files;

use guest_files::{file, program};
use restitch_guest::{Error, FileIn, Guest, Job, Lab, Output, build_control_module};
use restitch_testkit::{find_program, scratch, skip_unsupported};
use std::path::Path;
use std::process::Command;

const SCRIPT: &str = include_str!("../../../tests/guest/position.sh");
/// The kernel, unless `RESTITCH_GUEST_KERNEL` names another line.
const KERNEL: &str = "6.1";

/// The load of the guest; none without a compiler.
fn load(folder: &Path) -> Option<FileIn> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/guest/loads.c");
    let to = folder.join("loads");
    let mut gcc = Command::new(find_program("gcc")?);
    gcc.args(["-O2", "-static", "-Wall", "-Wextra", "-Werror", "-o"]).arg(&to).arg(source);
    let output = gcc.output().expect("it starts");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(file("/loads", to))
}

/// Runs the script in a guest that has `files` and the control module.
fn run(mut files_in: Vec<FileIn>) -> Result<Output, Error> {
    let lab = Lab::open()?;
    let line = std::env::var("RESTITCH_GUEST_KERNEL").unwrap_or_else(|_| KERNEL.into());
    let kernel = lab.kernel(&line)?;
    let control = build_control_module(&lab, &kernel)?;
    // As DKMS installs it. It is an example of modules, too.
    let installed = format!("/lib/modules/{}/updates/dkms/restitch-kernel.ko", kernel.release());
    files_in.extend([file(installed, &control), file("/control.ko", &control)]);
    let job = Job { script: SCRIPT.into(), files_in, files_out: Vec::new() };
    Guest::new(&lab, &kernel).processors(2).run(&job)
}

#[test]
fn groups_come_into_force_and_out_of_it_however_restitch_ends() {
    let folder = scratch();
    let (Some(mut files), Some(load)) = (program(folder.path()), load(folder.path())) else {
        skip_unsupported!("gcc or strip is not available");
    };
    files.push(load);
    match run(files) {
        Ok(output) => {
            // With the seconds since the guest's start, for who wants to make it faster.
            println!("{}", output.text);
            assert!(output.text.ends_with("all held\n"), "{}", output.console);
        }
        Err(error) if error.is_missing() => skip_unsupported!("{error}"),
        Err(error) => panic!("{error}"),
    }
}
