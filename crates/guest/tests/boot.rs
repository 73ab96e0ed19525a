//! A stock kernel in a guest: what a job gets and gives, and what is said when it does not come to its end.

mod common;

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use common::{Bench, address_of, bench, had, line, memory_at};
use restitch_guest::{
    Counts, Edge, EdgeKind, Error, FileIn, Guest, Job, Output, Plugin, Source, build_control_module,
    root_image, take_view,
};
use restitch_testkit::{scratch, skip_unsupported};

fn script(text: &str) -> Job {
    Job { script: text.into(), ..Job::default() }
}

#[test]
fn a_job_gets_files_and_gives_its_output_status_and_files_back() {
    let Bench { lab, kernel } = had!(bench());
    let file =
        FileIn { guest: "/given/file".into(), source: Source::Bytes(b"content".to_vec()), executable: false };
    let job = Job {
        script: "uname -r; mkdir -p /made/below; cat /given/file >/made/below/file; echo said >&2; exit 7"
            .into(),
        files_in: vec![file],
        files_out: vec!["/made".into(), "/not/there".into()],
    };
    let output = had!(Guest::new(&lab, &kernel).run(&job));
    assert_eq!(output.status, 7);
    assert_eq!(output.text, format!("{}\nsaid\n", kernel.release()));
    assert_eq!(output.files.len(), 1);
    assert_eq!(output.files["made/below/file"], b"content");
    assert!(output.console.contains(&format!("Linux version {}", line())), "{}", output.console);
}

#[test]
fn a_kernel_that_warns_or_panics_fails_a_run_with_the_lines_that_say_so() {
    let Bench { lab, kernel } = had!(bench());
    let panics = Guest::new(&lab, &kernel).run(&script("echo c >/proc/sysrq-trigger; sleep 100"));
    let (complaints, console) = had!(match panics {
        Err(Error::Complained { complaints, console }) => Ok((complaints, console)),
        Err(error) => Err(error),
        Ok(output) => panic!("{output:?}"),
    });
    assert!(complaints.iter().any(|line| line.contains("Kernel panic - not syncing: sysrq triggered crash")));
    assert!(console.contains("Call Trace"), "{console}");
}

#[test]
fn a_script_runs_in_a_root_image_with_packages_and_leaves_it_as_it_was() {
    let Bench { lab, kernel } = had!(bench());
    let image = had!(root_image(&lab, &["bc"]));
    let before = std::fs::metadata(&image).unwrap().modified().unwrap();
    let job = Job {
        script: "ls /mark 2>/dev/null; touch /mark; sync; echo 6*7 | bc >/answer; cat /given".into(),
        files_in: vec![FileIn {
            guest: "/given".into(),
            source: Source::Bytes(b"file".to_vec()),
            executable: false,
        }],
        files_out: vec!["/answer".into()],
    };
    for _ in 0..2 {
        let output = had!(Guest::new(&lab, &kernel).image(&image).run(&job));
        assert_eq!((output.text.as_str(), output.status), ("file", 0), "{}", output.console);
        assert_eq!(output.files["answer"], b"42\n");
    }
    assert_eq!(std::fs::metadata(&image).unwrap().modified().unwrap(), before);
    assert_eq!(root_image(&lab, &["bc"]).unwrap(), image);
}

/// The error of a job that does not come to its end.
fn died(guest: &Guest<'_>, job: &Job) -> Result<String, Error> {
    match guest.run(job) {
        Err(error @ Error::Died { .. }) => Ok(error.to_string()),
        Err(error) => Err(error),
        Ok(output) => panic!("{output:?}"),
    }
}

#[test]
fn a_guest_that_takes_too_long_is_ended() {
    let Bench { lab, kernel } = had!(bench());
    let guest = Guest::new(&lab, &kernel).time_limit(Duration::from_secs(1));
    let text = had!(died(&guest, &script("exec sleep 100000")));
    assert!(text.contains("its time limit of 1 s is over"), "{text}");
}

#[test]
fn what_a_script_printed_is_said_if_its_guest_ends_before_it() {
    let Bench { lab, kernel } = had!(bench());
    let text = had!(died(&Guest::new(&lab, &kernel), &script("echo so far; poweroff -f; sleep 1000")));
    assert!(text.contains("the script printed: so far") && text.contains("Power down"), "{text}");
}

#[test]
fn a_view_has_the_symbols_and_the_memory_of_the_kernel() {
    let Bench { lab, kernel } = had!(bench());
    let folder = scratch();
    let view = folder.path().join("view");
    had!(take_view(&Guest::new(&lab, &kernel), &kernel, &view));
    let size = |name: &str| std::fs::metadata(view.join(name)).map_or(0, |metadata| metadata.len());
    assert!(size("sys/kernel/notes") > 20 && size("sys/kernel/btf/vmlinux") > 1_000_000);
    assert!(size("sys/kernel/tracing/available_filter_functions") > 100_000);
    assert!(view.join(format!("boot/config-{}", kernel.release())).exists());

    // The banner is where its symbol says, and says what /proc/version says.
    let banner = address_of(&view, "linux_banner").unwrap();
    let core = std::fs::read(view.join("proc/kcore")).unwrap();
    let version = std::fs::read_to_string(view.join("proc/version")).unwrap();
    let memory = memory_at(&core, banner).unwrap();
    assert!(memory.starts_with(version.trim_end().as_bytes()), "{version}");
    // Text of a module is there too.
    let module = address_of(&view, "virtblk_done").unwrap();
    assert!(memory_at(&core, module).unwrap()[..16].iter().any(|&byte| byte != 0));
}

#[test]
fn the_control_module_is_built_without_warnings_and_the_kernel_takes_it_and_gives_it_back() {
    let Bench { lab, kernel } = had!(bench());
    let module = had!(build_control_module(&lab, &kernel));
    let module = FileIn { guest: "/control.ko".into(), source: Source::Path(module), executable: false };
    let job = Job {
        script:
            "insmod /control.ko && cat /dev/restitch-kernel; echo 'enable nothing' >/dev/restitch-kernel; \
                 rmmod restitch-kernel && echo gone"
                .into(),
        files_in: vec![module],
        files_out: Vec::new(),
    };
    let output = had!(Guest::new(&lab, &kernel).run(&job));
    // No group is registered, so none of that name can be enabled.
    assert_eq!(output.text, "sh: write error: No such file or directory\ngone\n", "{}", output.console);
}

/// The program of the counting test, compiled.
fn system_calls(folder: &Path) -> Result<FileIn, String> {
    let gcc = restitch_testkit::find_program("gcc").ok_or("gcc is not available")?;
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = folder.join("system_calls");
    let output = Command::new(gcc)
        .args(["-O2", "-static", "-Wall", "-Wextra", "-Werror", "-I"])
        .arg(root.join("kernel/plugin"))
        .arg(root.join("tests/guest/system_calls.c"))
        .arg("-o")
        .arg(&program)
        .output()
        .map_err(|error| error.to_string())?;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Ok(FileIn { guest: "/system_calls".into(), source: Source::Path(program), executable: true })
}

fn counted(output: &Output) -> Vec<&Counts> {
    output.windows.iter().map(|window| &window.counts).collect()
}

#[test]
fn the_plugin_counts_every_instruction_block_and_branch_of_a_window() {
    let Bench { lab, kernel } = had!(bench());
    let plugin = had!(Plugin::build(&lab));
    let folder = scratch();
    let program = match system_calls(folder.path()) {
        Ok(program) => program,
        Err(why) => skip_unsupported!("{why}"),
    };
    let job = Job {
        script: "/system_calls 0 && /system_calls 500 && /system_calls 300 copies; s=$?; \
                 mkdir /view; cat /proc/kallsyms >/view/kallsyms; exit $s"
            .into(),
        files_in: vec![program],
        files_out: vec!["/view".into()],
    };
    let output = had!(Guest::new(&lab, &kernel).exact().plugin(plugin).run(&job));
    assert_eq!(output.status, 0, "{}", output.text);
    let windows = counted(&output);
    let clocks: Vec<u64> = output.text.lines().map(|line| line.parse().unwrap()).collect();
    assert_eq!((windows.len(), clocks.len()), (3, 3));

    // All that the guest's clock says was executed is counted, but for what stands around the marks.
    let around = clocks[0] - all(windows[0]);
    assert!(around < 20, "{around}");
    for (window, clock) in windows.iter().zip(&clocks) {
        assert_eq!(window.unexplained, 0);
        assert_eq!(all(window) + around, *clock);
        let branches: u64 = window.edges.iter().filter(|edge| edge.is_taken()).map(|edge| edge.count).sum();
        assert_eq!(window.summary().taken_branches, branches);
        each_way_out_of_a_branch_was_executed(window);
    }

    // Faults in copies, one a call and one more that never succeeds, disturb nothing.
    assert!(windows[2].interruptions >= 600, "{}", windows[2].interruptions);
    // Those that are never repeated go on elsewhere.
    let ended = windows[2].edges.iter().filter(|edge| edge.kind == EdgeKind::Fault);
    let ended: u64 = ended.map(|edge| edge.count).sum();
    assert!(ended >= 300 && ended.is_multiple_of(300), "{ended}");
    let symbols = String::from_utf8(output.files["view/kallsyms"].clone()).unwrap();
    let symbol = |name: &str| {
        let line = symbols.lines().find(|line| line.split_whitespace().nth(2) == Some(name)).unwrap();
        u64::from_str_radix(&line[..16], 16).unwrap()
    };
    for (name, counts) in [("__x64_sys_getppid", [0, 500, 300]), ("__x64_sys_read", [0, 0, 300])] {
        assert_eq!([0, 1, 2].map(|at| windows[at].at(symbol(name))), counts, "{name}");
    }
    assert_eq!(windows[2].at(symbol("__x64_sys_write")), 600);
}

/// Executed instructions as the guest's clock has them.
fn all(counts: &Counts) -> u64 {
    counts.summary().instructions + counts.user_instructions + counts.repetitions
}

/// Branches are as often left as they are executed: nothing was lost between two units of the emulator.
fn each_way_out_of_a_branch_was_executed(counts: &Counts) {
    let mut left: std::collections::BTreeMap<u64, u64> = std::collections::BTreeMap::new();
    let is_branch = |edge: &&Edge| !matches!(edge.kind, EdgeKind::Other | EdgeKind::Fault);
    for edge in counts.edges.iter().filter(is_branch) {
        *left.entry(edge.from).or_default() += edge.count;
        assert!(counts.at(edge.to) > 0, "{edge:x?}");
    }
    for (from, count) in left {
        assert_eq!(counts.at(from), count, "{from:x}");
    }
}
