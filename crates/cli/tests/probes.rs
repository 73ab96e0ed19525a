//! Probes of the kernel (uprobes, as bpftrace and perf probe set them) on functions of a process that is
//! under restitch: it goes on, and they see what they are to see.

mod common;

use common::target::cpu_ticks;
use common::{PATIENCE, Restitch, code, look};
use restitch_address::Svma;
use restitch_image::Image;
use restitch_testkit::{Guarded, compile, require, scratch, wait_until};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

const TRACING: &str = "/sys/kernel/tracing";

/// Hot work behind a pointer, a check of what it computes, and a function that waits for a file.
const PROGRAM: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
static int by_size(const void *a, const void *b) { return *(const int *)a - *(const int *)b; }
__attribute__((noinline, noclone)) unsigned step(unsigned s) {
    int v[60];
    for (int i = 0; i < 60; i++) { s = s * 1664525 + 1013904223; v[i] = s >> 8; }
    qsort(v, 60, sizeof *v, by_size);
    for (int i = 1; i < 60; i++) if (v[i] < v[i - 1]) _exit(5);
    switch (s % 7) {
    case 0: s += v[5]; break;
    case 1: s ^= v[9]; break;
    case 2: s -= v[2]; break;
    case 3: s *= 3; break;
    default: s++;
    }
    return s;
}
unsigned (*volatile way)(unsigned) = step;
__attribute__((noinline, noclone)) int waiting(const char *begin, const char *end) {
    if (access(begin, F_OK)) return 0;
    puts("waits"), fflush(stdout);
    while (access(end, F_OK)) usleep(1000);
    return 1;
}
__attribute__((noinline, noclone)) unsigned work(unsigned s, const char *begin, const char *end) {
    for (int i = 0; i < 200; i++) s = way(s);
    return s + (unsigned)waiting(begin, end);
}
int main(int count, char **arguments) {
    unsigned s = 1;
    if (count != 3) return 3;
    for (;;) s = work(s, arguments[1], arguments[2]);
}
"#;

/// A probe that is set until it is dropped.
struct Probe {
    group: String,
    program: String,
}

impl Probe {
    /// Of the function `name` of `program`: of its entry (`p`) or its return (`r`). `None` if this machine
    /// has no such probes.
    fn set(kind: char, program: &Path, name: &str) -> Option<Self> {
        let symbols = Command::new("nm").arg(program).output().expect("binutils");
        let symbols = String::from_utf8_lossy(&symbols.stdout).into_owned();
        let line = symbols.lines().find(|line| line.ends_with(&format!(" {name}"))).expect("the function");
        let offset = line.split(' ').next().expect("its address").trim_start_matches('0');
        Self::define(kind, program, name, &format!("0x{offset}"))
    }

    /// Of a static probe of `program` (any file that has such notes), as tracers set it.
    fn set_static(program: &Path, probe: &Static) -> Option<Self> {
        let counted = probe.counter.map_or(String::new(), |at| format!("(0x{at:x})"));
        let name = format!("{}_{:x}", probe.name, probe.offset);
        Self::define('p', program, &name, &format!("0x{:x}{counted}", probe.offset))
    }

    fn define(kind: char, program: &Path, name: &str, place: &str) -> Option<Self> {
        // Tests of one process run at the same time.
        static NUMBER: AtomicUsize = AtomicUsize::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let group = format!("restitch_{}_{number}_{name}", std::process::id());
        let definition = format!("{kind}:{group}/it {}:{place}\n", program.display());
        append("uprobe_events", &definition).ok()?;
        let probe = Self { group, program: program.display().to_string() };
        std::fs::write(format!("{TRACING}/events/{}/enable", probe.group), "1").ok()?;
        Some(probe)
    }

    /// How often it was hit.
    fn hits(&self) -> u64 {
        let all = std::fs::read_to_string(format!("{TRACING}/uprobe_profile")).expect("readable");
        // File, name, hits.
        let lines = all.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
        let own = lines.filter(|words| words.first() == Some(&&*self.program));
        own.filter_map(|words| words.get(2)?.parse::<u64>().ok()).sum()
    }
}

impl Drop for Probe {
    fn drop(&mut self) {
        let _ = std::fs::write(format!("{TRACING}/events/{}/enable", self.group), "0");
        let _ = append("uprobe_events", &format!("-:{}/it\n", self.group));
    }
}

fn append(file: &str, text: &str) -> std::io::Result<()> {
    use std::io::Write;
    std::fs::OpenOptions::new().append(true).open(format!("{TRACING}/{file}"))?.write_all(text.as_bytes())
}

/// Whether probes can be set here: tracefs is there, or could be mounted.
fn can_probe() -> bool {
    let is_there = || Path::new(TRACING).join("uprobe_events").exists();
    if !is_there() {
        let _ = Command::new("mount").args(["-t", "tracefs", "tracefs", TRACING]).output();
    }
    is_there() && append("uprobe_events", "").is_ok()
}

/// The program, compiled under a name of its own: probes are of files.
fn program(folder: &Path) -> Option<PathBuf> {
    let source = folder.join("probed.c");
    std::fs::write(&source, PROGRAM).expect("writable");
    let compiled = compile(&source, &["-O2"]).ok()?;
    let own = folder.join("probed");
    restitch_testkit::copy_program(&compiled, &own).expect("room for a copy");
    Some(own)
}

struct Running {
    process: Guarded,
    begin: PathBuf,
    end: PathBuf,
}

fn start(program: &Path, folder: &Path) -> Running {
    let (begin, end) = (folder.join("begin"), folder.join("end"));
    let mut command = Command::new(program);
    command.args([&begin, &end]).stdout(Stdio::null());
    Running { process: Guarded::spawn(&mut command).expect("started"), begin, end }
}

/// The program, at work in `folder`, and a restitch for it.
fn begin(folder: &Path) -> Option<(PathBuf, Restitch, Running)> {
    let program = program(folder)?;
    let mut running = start(&program, folder);
    running.assert_computing("by itself");
    Some((program, Restitch::new(), running))
}

impl Running {
    #[track_caller]
    fn assert_computing(&mut self, when: &str) {
        let (pid, before) = (self.process.pid(), cpu_ticks(self.process.pid()));
        let goes_on = wait_until(PATIENCE, || {
            (cpu_ticks(pid) > before + 5 || !self.process.is_running()).then_some(())
        });
        assert!(goes_on.is_some() && self.process.is_running(), "it does not go on {when}");
    }
}

/// What a file says about one of its static probes: in file offsets, which tracers give the kernel.
#[derive(Debug)]
struct Static {
    name: String,
    offset: u64,
    counter: Option<u64>,
}

/// The static probes that `readelf` finds in a file.
fn static_probes(file: &Path) -> Vec<Static> {
    let notes = Command::new("readelf").arg("-nW").arg(file).output().expect("binutils");
    let image = Image::parse(std::fs::read(file).expect("readable")).expect("an ELF file");
    let offset = |at: u64| image.file_offset(Svma::new(at)).expect("in a segment").get();
    let mut found = Vec::new();
    for line in String::from_utf8_lossy(&notes.stdout).lines().map(str::trim) {
        if let Some(name) = line.strip_prefix("Name: ") {
            found.push(Static { name: name.into(), offset: 0, counter: None });
        }
        if let (Some(rest), Some(last)) = (line.strip_prefix("Location: 0x"), found.last_mut()) {
            let numbers: Vec<u64> = rest
                .split(", ")
                .filter_map(|part| u64::from_str_radix(part.rsplit("0x").next()?, 16).ok())
                .collect();
            let [at, _, counter] = numbers[..] else { panic!("{line}") };
            (last.offset, last.counter) = (offset(at), (counter != 0).then(|| offset(counter)));
        }
    }
    found
}

const ALL: [&str; 2] = ["--keep-in-place", "off"];

#[test]
fn a_probed_function_of_a_moved_program_goes_on() {
    if !can_probe() {
        return restitch_testkit::unsupported("no uprobes here (not root, or no tracefs)");
    }
    let folder = scratch();
    let (program, restitch, mut running) = require!(begin(folder.path()), "gcc");
    let pid = running.process.pid();
    restitch.attach(pid, &ALL).expect(code::DONE);
    // Set and taken away while its code is moved; then it stays in another attach and a revert.
    for again in [false, true] {
        let probe = Probe::set('p', &program, "step").expect("a probe");
        running.assert_computing("with a probe");
        assert!(probe.hits() > 0, "the probe sees calls");
        if again {
            restitch.attach(pid, &ALL).expect(code::DONE);
            running.assert_computing("with a probe, attached again");
            restitch.revert(pid).expect(code::DONE);
            running.assert_computing("with a probe, reverted");
        }
        drop(probe);
        running.assert_computing("without the probe");
    }
    assert_eq!(look::differences(pid), [], "its code is the file's");
    restitch.attach(pid, &ALL).expect(code::DONE);
    running.assert_computing("attached once more");
    restitch.revert(pid).expect(code::DONE);
}

/// Sets its flag in the end.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A probe may come and go at any time, also while a counting version is in force and while the layout is put
/// in its place.
#[test]
fn probes_come_and_go_while_a_program_is_attached() {
    if !can_probe() {
        return restitch_testkit::unsupported("no uprobes here (not root, or no tracefs)");
    }
    let folder = scratch();
    let (program, restitch, mut running) = require!(begin(folder.path()), "gcc");
    let pid = running.process.pid();
    let over = AtomicBool::new(false);
    let hits = std::thread::scope(|scope| {
        let setting = scope.spawn(|| {
            let mut hits = 0;
            for name in ["step", "work"].into_iter().cycle().take_while(|_| !over.load(Ordering::Relaxed)) {
                let probe = Probe::set('p', &program, name).expect("a probe");
                std::thread::sleep(std::time::Duration::from_millis(20));
                hits += probe.hits();
            }
            hits
        });
        // Also if an assertion does not hold: the scope waits for the other thread.
        let ending = Ending(&over);
        for _ in 0..2 {
            let attached = restitch.attach(pid, &ALL);
            // Nothing else is hot, so it may be that nothing could be moved.
            assert!(
                [code::DONE, code::NOTHING_TO_DO].contains(&attached.status.code().unwrap_or(-1)),
                "{attached:?}"
            );
            running.assert_computing("attached");
        }
        drop(ending);
        setting.join().expect("it sets them")
    });
    assert!(hits > 0, "the probes see calls");
    restitch.revert(pid);
    running.assert_computing("reverted");
    assert_eq!(look::differences(pid), [], "its code is the file's");
    restitch.attach(pid, &ALL).expect(code::DONE);
    running.assert_computing("attached without probes");
    restitch.revert(pid).expect(code::DONE);
}

/// The kernel holds the address to which a probed function returns: the version that it leads into has to
/// stay.
#[test]
fn a_version_into_which_a_probed_function_returns_stays() {
    if !can_probe() {
        return restitch_testkit::unsupported("no uprobes here (not root, or no tracefs)");
    }
    let folder = scratch();
    let (program, restitch, mut running) = require!(begin(folder.path()), "gcc");
    let pid = running.process.pid();
    // A probed function stays, and is called from the version.
    let probe = Probe::set('r', &program, "waiting").expect("a probe");
    running.assert_computing("with a probe");
    restitch.attach(pid, &ALL).expect(code::DONE);
    std::fs::write(&running.begin, "").expect("writable");
    let sleeps = || {
        let before = cpu_ticks(pid);
        std::thread::sleep(std::time::Duration::from_millis(300));
        (cpu_ticks(pid) <= before + 5).then_some(())
    };
    assert!(wait_until(PATIENCE, sleeps).is_some(), "it does not wait");
    let reverted = restitch.revert(pid);
    reverted.expect(code::DONE);
    let said = format!("{}{}", reverted.stdout, reverted.stderr);
    // So that it waits no more.
    std::fs::remove_file(&running.begin).expect("there");
    std::fs::write(&running.end, "").expect("writable");
    running.assert_computing(&format!("after the probed function has returned; the revert said {said}"));
    assert!(said.contains("stays mapped") && probe.hits() > 0, "{said}");
    drop(probe);
    let gone = wait_until(PATIENCE, || {
        restitch.revert(pid);
        look::ours(pid).is_empty().then_some(())
    });
    assert!(gone.is_some(), "a version stays for good");
    running.assert_computing("in the end");
}

/// Static probes may lie just behind an entry: no redirect covers them. Where their code was copied, the
/// version's file names them; one that is only passed while somebody looks stays where it is.
#[test]
fn static_probes_of_a_moved_program_are_seen() {
    if !can_probe() {
        return restitch_testkit::unsupported("no uprobes here (not root, or no tracefs)");
    }
    let folder = scratch();
    let compiled = require!(compile(&restitch_testkit::program("probes.c"), &["-O2"]).ok(), "gcc");
    let own = folder.path().join("marked");
    restitch_testkit::copy_program(&compiled, &own).expect("room for a copy");
    let restitch = Restitch::new();
    let mut command = Command::new(&own);
    command.args(["--seconds", "600"]).stdout(Stdio::null());
    let process = Guarded::spawn(&mut command).expect("started");
    let mut running = Running { process, begin: PathBuf::new(), end: PathBuf::new() };
    let pid = running.process.pid();
    running.assert_computing("by itself");
    restitch.attach(pid, &ALL).expect(code::DONE);
    let version = look::ours(pid).into_iter().find(|line| line.permissions.contains('x')).expect("a version");
    let (own_probes, copied) = (static_probes(&own), static_probes(Path::new(&version.name)));
    for name in ["early", "hot", "looked"] {
        let find = |all: &[Static]| all.iter().position(|p| p.name == name);
        let (original, copy) = (find(&own_probes).expect("a probe"), find(&copied));
        let mut probes = vec![Probe::set_static(&own, &own_probes[original]).expect("a probe")];
        if let Some(copy) = copy {
            probes.push(Probe::set_static(Path::new(&version.name), &copied[copy]).expect("a probe"));
        }
        running.assert_computing(name);
        let hits: Vec<u64> = probes.iter().map(Probe::hits).collect();
        assert!(hits.iter().sum::<u64>() > 0, "nobody sees {name}: {hits:?}");
        match name {
            "looked" => assert!(copy.is_none(), "{copied:?}"),
            _ => assert!(copy.is_some(), "{copied:?}"),
        }
        drop(probes);
        running.assert_computing(name);
    }
    restitch.revert(pid).expect(code::DONE);
    running.assert_computing("reverted");
    assert_eq!(look::differences(pid), [], "its code is the file's");
}
