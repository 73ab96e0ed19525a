//! `batch` trusts nobody: an overlay takes the place of the very bytes that it was made of and of no others,
//! whatever the build id says; and what lies in the cache, above it or beside a command is believed only if
//! nobody else can have put it there.

mod common;

use common::batching::Batch;
use common::{PATIENCE, code, finish};
use restitch_address::Svma;
use restitch_image::Image;
use restitch_testkit::{TempDir, wait_until};
use std::fs::{File, Permissions};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Works for some seconds; says what it has computed, and whether it runs in an overlay. Where the file FLAG
/// is there, it changes a constant in its own code before anything of it runs.
const MAIN: &str = r#"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
__attribute__((noipa)) unsigned own(unsigned n) {
    unsigned s = 0;
    for (unsigned i = 0; i < n; i++) switch ((s + i) % 16) {
        case 0: s += 3; break; case 1: s ^= 7; break; case 2: s = s * 31 + 1; break; case 3: s += 5; break;
        case 4: s |= n & 5; break; case 5: s -= i; break; case 6: s ^= 0x01234567; break; case 7: s += 9; break;
        case 8: s ^= s >> 3; break; case 9: s += i; break; case 10: s -= 77; break; case 11: s = s * 5; break;
        case 12: s ^= i << 2; break; case 13: s += 1001; break; case 14: s = ~s; break; default: s += 11; }
    return s;
}
static long call(long number, long a, long b, long c) {
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b), "d"(c) : "rcx", "r11", "memory");
    return result;
}
static unsigned nothing(void) { return 0; }
static void *resolve(void) {
    if (call(21, (long)FLAG, 0, 0) == 0) {
        unsigned char *at = (unsigned char *)own;
        call(10, (long)at & -4096, 8192, 7);
        while (*(unsigned *)at != 0x01234567) at++;
        *at ^= 2;
        call(10, (long)own & -4096, 8192, 5);
    }
    return nothing;
}
unsigned early(void) __attribute__((ifunc("resolve")));
static int overlaid(void *at) {
    FILE *maps = fopen("/proc/self/maps", "r");
    char line[5000];
    unsigned long start, end;
    int found = 0;
    while (maps && fgets(line, sizeof line, maps))
        if (sscanf(line, "%lx-%lx", &start, &end) == 2 && start <= (unsigned long)at && (unsigned long)at < end)
            found = strstr(line, ".optimized") != 0 || strstr(line, ".overlay") != 0;
    return found;
}
int main(int argc, char **argv) {
    double seconds = argc > 2 ? atof(argv[2]) : 0;
    unsigned sum = own(100000) + early(), again;
    do again = own(100000); while (clock() < seconds * CLOCKS_PER_SEC);
    printf("%u %d\n", sum, overlaid((void *)own));
    return again == sum ? 42 : 1;
}
"#;

/// Entries of the jump table: the last case is the default.
const ENTRIES: usize = 15;

/// A program with a build id.
struct Program {
    folder: TempDir,
    file: PathBuf,
    /// It changes its code while this file is there.
    flag: PathBuf,
}

impl Program {
    fn build() -> Option<Self> {
        let Some(gcc) = restitch_testkit::find_program("gcc") else {
            restitch_testkit::skipped("gcc is missing");
            return None;
        };
        let folder = restitch_testkit::scratch();
        let (source, file, flag) =
            (folder.path().join("main.c"), folder.path().join("program"), folder.path().join("flag"));
        std::fs::write(&source, MAIN).expect("written");
        let mut gcc = Command::new(gcc);
        gcc.args(["-O2", "-Wl,--build-id=sha1", "-fcf-protection=none"]);
        gcc.arg(format!("-DFLAG=\"{}\"", flag.display())).arg("-o").arg(&file).arg(&source);
        let done = gcc.output().expect("gcc starts");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        Some(Self { folder, file, flag })
    }

    /// With an optimized overlay in the cache of a batch, and what it computes.
    fn optimized() -> Option<(Self, Batch, u32)> {
        let (program, batch) = (Self::build()?, Batch::new());
        let (sum, _) = plain(&program.file);
        program.until_optimized(&batch);
        assert_eq!(beside(&program.file, &batch), (sum, true));
        Some((program, batch, sum))
    }

    /// Runs it in a batch until it runs in an overlay.
    fn until_optimized(&self, batch: &Batch) {
        let stop = batch.folder.path().join("stop");
        let script = "while [ ! -e \"$STOP\" ]; do \"$0\" --seconds 0.3; [ $? = 42 ] || exit 9; done";
        let mut command = batch.command(&["--eager"]);
        command.args(["sh", "-c", script]).arg(&self.file).env("STOP", &stop);
        let child = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
        let done = || (!batch.in_force().is_empty() && beside(&self.file, batch).1).then_some(());
        let is_done = wait_until(PATIENCE * 2, done).is_some();
        std::fs::write(&stop, "").expect("written");
        let output = child.wait_with_output().expect("it ends");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(is_done && output.status.code() == Some(code::DONE), "{said}");
        std::fs::remove_file(&stop).expect("removed");
    }

    /// Its bytes, with another constant in its code.
    fn with_other_constant(&self) -> Vec<u8> {
        let mut bytes = std::fs::read(&self.file).expect("read");
        let number = 0x0123_4567u32.to_le_bytes();
        let image = Image::parse(bytes.clone()).expect("a program");
        let own = image.symbols_named("own").next().expect("a symbol").range.start;
        let from = image.file_offset(own).expect("in the file").get() as usize;
        let at = bytes[from..].windows(4).position(|w| w == number).expect("the constant");
        bytes[from + at] ^= 2;
        bytes
    }

    /// Its bytes, with two entries of the jump table exchanged.
    fn with_other_table(&self) -> Vec<u8> {
        let mut bytes = std::fs::read(&self.file).expect("read");
        let image = Image::parse(bytes.clone()).expect("a program");
        let (text, constants) =
            (image.section(".text").expect("code"), image.section(".rodata").expect("constants"));
        let entry =
            |bytes: &[u8], at: usize| i32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        let start = constants.file_offset.get() as usize;
        let is_table = |at: &usize| {
            let table = constants.range.start + (at - start) as u64;
            (0..ENTRIES)
                .all(|n| text.range.contains(Svma::new(table.get()).offset(entry(&bytes, at + 4 * n).into())))
        };
        let end = start + constants.range.len() as usize - 4 * ENTRIES;
        let table = (start..=end).step_by(4).find(is_table).expect("a jump table");
        let (one, other) = (entry(&bytes, table + 4 * 7), entry(&bytes, table + 4 * 13));
        assert_ne!(one, other);
        bytes[table + 4 * 7..][..4].copy_from_slice(&other.to_le_bytes());
        bytes[table + 4 * 13..][..4].copy_from_slice(&one.to_le_bytes());
        bytes
    }

    /// Its bytes, with other initial data.
    fn with_other_data(&self) -> Vec<u8> {
        let mut bytes = std::fs::read(&self.file).expect("read");
        let image = Image::parse(bytes.clone()).expect("a program");
        let data = image.section(".data").expect("data").file_offset.get() as usize;
        bytes[data] ^= 1;
        bytes
    }
}

/// What a program computes, and whether it says that it runs in an overlay.
#[track_caller]
fn said(done: std::process::Output) -> (u32, bool) {
    assert_eq!((done.status.code(), &*done.stderr), (Some(42), &b""[..]));
    let text = String::from_utf8(done.stdout).expect("text");
    let (sum, overlaid) = text.trim().split_once(' ').expect("two numbers");
    (sum.parse().expect("a number"), overlaid == "1")
}

/// As it is.
#[track_caller]
fn plain(program: &Path) -> (u32, bool) {
    said(Command::new(program).output().expect("it starts"))
}

/// Beside the cache of a batch.
#[track_caller]
fn beside(program: &Path, batch: &Batch) -> (u32, bool) {
    beside_folder(program, &batch.cache().join("v1"))
}

#[track_caller]
fn beside_folder(program: &Path, folder: &Path) -> (u32, bool) {
    let agent = folder.join("librestitch-preload.so");
    said(Command::new(program).env("LD_PRELOAD", agent).output().expect("it starts"))
}

fn executable(path: &Path, bytes: &[u8]) {
    std::fs::write(path, bytes).expect("written");
    std::fs::set_permissions(path, Permissions::from_mode(0o755)).expect("permitted");
}

/// Other bytes in the same file, which says that nothing has happened.
fn overwrite(file: &Path, bytes: &[u8]) {
    let before = std::fs::metadata(file).expect("there");
    let open = File::options().write(true).open(file).expect("opened");
    open.write_all_at(bytes, 0).expect("written");
    open.set_modified(before.modified().expect("a time")).expect("set");
}

#[test]
fn a_program_that_was_patched_runs_as_it_is_whatever_its_build_id_says() {
    let Some((program, batch, sum)) = Program::optimized() else { return };
    let original = std::fs::read(&program.file).expect("read");
    let copy = program.folder.path().join("copy");
    // A copy of the same bytes is the same program, a stripped one too.
    executable(&copy, &original);
    assert_eq!(beside(&copy, &batch), (sum, true));
    if let Ok(stripped) = restitch_testkit::strip(&copy) {
        assert_eq!(beside(&stripped, &batch), (sum, true));
    }
    // What was changed in memory before the agent runs counts as well.
    std::fs::write(&program.flag, "").expect("written");
    let (changed, _) = plain(&program.file);
    assert_ne!(changed, sum);
    assert_eq!(beside(&program.file, &batch), (changed, false));
    assert_eq!(beside(&copy, &batch), (changed, false));
    std::fs::remove_file(&program.flag).expect("removed");

    for patched in [program.with_other_constant(), program.with_other_table(), program.with_other_data()] {
        executable(&copy, &patched);
        let (other, _) = plain(&copy);
        assert_eq!(beside(&copy, &batch), (other, false));
        overwrite(&program.file, &patched);
        assert_eq!(beside(&program.file, &batch), (other, false));
        overwrite(&program.file, &original);
        assert_eq!(beside(&program.file, &batch), (sum, true));
    }
    executable(&copy, &program.with_other_constant());
    let constant = plain(&copy).0;
    executable(&copy, &program.with_other_table());
    assert!(constant != sum && plain(&copy).0 != sum, "these patches change what is computed");

    // A session does not take the one for the other: beside it, it is left alone; in its place, all is made
    // anew.
    executable(&copy, &program.with_other_constant());
    let mut both = batch.command(&["--eager"]);
    both.args(["sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do \"$0\" --seconds 0.2; done; exit 0"])
        .arg(&copy);
    let both = finish(&mut both);
    assert!(both.stderr.contains("same build id and other content"), "{}", both.stderr);
    assert_eq!((beside(&copy, &batch), beside(&program.file, &batch)), ((constant, false), (sum, true)));
    overwrite(&program.file, &program.with_other_constant());
    program.until_optimized(&batch);
    assert_eq!(beside(&program.file, &batch), (constant, true));
    let verified = batch.cache_command(&["verify"]).stdout;
    assert!(verified.contains(": sound"), "{verified}");
    overwrite(&program.file, &original);
    assert_eq!(beside(&program.file, &batch), (sum, false));
    let verified = batch.cache_command(&["verify"]).stdout;
    assert!(!verified.contains(": sound"), "{verified}");
}

#[test]
fn what_is_damaged_or_put_into_a_cache_is_found_and_nothing_waits_for_it() {
    let Some((program, batch, sum)) = Program::optimized() else { return };
    let run = |batch: &Batch| finish(batch.command(&[]).arg(&program.file));
    // One byte of the code.
    let stored = batch.files("optimized")[0].clone();
    let whole = std::fs::read(&stored).expect("read");
    let mut bytes = whole.clone();
    bytes[4096 + 77] ^= 1;
    overwrite(&stored, &bytes);
    let done = run(&batch);
    assert_eq!(done.status.code(), Some(42), "{}", done.stderr);
    assert!(
        done.stdout.starts_with(&format!("{sum} ")) && done.stderr.contains("not as it was written"),
        "{}",
        done.stderr
    );
    assert!(
        !stored.exists() || std::fs::read(&stored).expect("read") == whole,
        "it was made again, or is gone"
    );
    assert_eq!(beside(&program.file, &batch).0, sum);

    // Whatever stands in the place of any file.
    let all = |batch: &Batch| -> Vec<PathBuf> {
        let folder = |p: PathBuf| std::fs::read_dir(p).expect("a folder").flatten().map(|e| e.path());
        let v1 = batch.cache().join("v1");
        let files = folder(v1.clone()).chain(folder(v1.join("store")));
        files.filter(|f| !f.is_dir() && !f.to_string_lossy().contains("librestitch")).collect()
    };
    finish(batch.restitch.command(&["cache", "optimize"]).env("RESTITCH_CACHE_DIR", batch.cache()));
    let kept = all(&batch);
    assert!(kept.len() >= 6, "{kept:?}");
    for put in [pipe, endless, garbage, strange] {
        for file in &kept {
            println!("{}", file.display());
            let before = (std::fs::read_link(file), std::fs::read(file));
            let _ = std::fs::remove_file(file);
            put(file);
            assert_eq!(beside(&program.file, &batch).0, sum, "{}", file.display());
            let done = run(&batch);
            assert_eq!(done.status.code(), Some(42), "{}: {}", file.display(), done.stderr);
            assert!(done.stdout.starts_with(&format!("{sum} ")), "{}", done.stdout);
            for command in ["list", "verify"] {
                let done = batch.cache_command(&[command]);
                assert!(matches!(done.status.code(), Some(0 | 3)), "{}", done.stderr);
            }
            let _ = std::fs::remove_file(file);
            match before {
                (Ok(target), _) => symlink(target, file).expect("linked"),
                (_, Ok(bytes)) => {
                    std::fs::write(file, bytes).expect("written");
                    std::fs::set_permissions(file, Permissions::from_mode(0o600)).expect("permitted");
                }
                _ => {}
            }
        }
    }
}

fn pipe(file: &Path) {
    assert!(Command::new("mkfifo").arg(file).status().expect("it starts").success());
}

fn endless(file: &Path) {
    symlink("/dev/zero", file).expect("linked");
}

fn garbage(file: &Path) {
    let bytes: Vec<u8> = (0..20_000u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    std::fs::write(file, bytes).expect("written");
}

/// Large numbers, in what is JSON and in what is not.
fn strange(file: &Path) {
    let text = match file.extension().and_then(|e| e.to_str()) {
        Some("json") => r#"{"path":"/bin/true","build_id":"00","profiled_runs":18446744073709551615,"profiled_at":18446744073709551615,"cost_seconds":1e308,"layout":"x"}"#.to_owned(),
        _ => "1e999".into(),
    };
    std::fs::write(file, text).expect("written");
}

#[test]
fn counts_that_somebody_else_has_written_end_in_no_panic() {
    let Some(program) = Program::build() else { return };
    let batch = Batch::new();
    let (sum, _) = plain(&program.file);
    let run = |seconds: &str, runs: &str| {
        let mut command = batch.command(&["--eager", "--profile-runs", runs]);
        finish(
            command
                .args(["sh", "-c", "for i in 1 2 3 4 5 6; do \"$0\" --seconds $1; done; exit 0"])
                .arg(&program.file)
                .arg(seconds),
        )
    };
    run("0.3", "1000");
    let counts = batch.files("counts");
    let [counts] = &counts[..] else { panic!("it is counted: {counts:?}") };
    let file = File::options().read(true).write(true).open(counts).expect("opened");
    let len = file.metadata().expect("there").len();
    // Behind identity and length all is garbage: tickets, runs that have begun and ended, counters.
    file.write_all_at(&vec![0xff; (len - 32) as usize], 32).expect("written");
    let done = run("0.1", "1000");
    assert!(!done.stderr.contains("overflow"), "{}", done.stderr);
    finish(batch.restitch.command(&["cache", "optimize"]).env("RESTITCH_CACHE_DIR", batch.cache()));
    assert_eq!(beside(&program.file, &batch).0, sum);
    finish(batch.command(&["--eager", "--finish", "wait"]).arg("true"));
    assert_eq!(beside(&program.file, &batch).0, sum);
}

#[test]
fn folders_that_others_may_write_to_hold_no_cache_and_no_configuration() {
    let folder = restitch_testkit::scratch();
    let batch = Batch::new();
    let above = folder.path().join("above");
    std::fs::create_dir(&above).expect("made");
    let cache = above.join("cache");
    let run = |more: &[&str]| {
        let mut command = batch.command(more);
        finish(command.args(["echo", "done"]).current_dir(&above))
    };
    let mode =
        |path: &Path, mode| std::fs::set_permissions(path, Permissions::from_mode(mode)).expect("permitted");
    let with_cache = || run(&["--cache", &cache.to_string_lossy()]);
    mode(&above, 0o755);
    assert!(!with_cache().stderr.contains("original code"));
    let is_refused = |why: &str| {
        let done = with_cache();
        assert_eq!((done.status.code(), &*done.stdout), (Some(0), "done\n"), "{}", done.stderr);
        assert!(done.stderr.contains("original code") && done.stderr.contains(why), "{}", done.stderr);
    };
    mode(&above, 0o777);
    is_refused("others may write to it");
    mode(&above, 0o755);
    let is_root = std::fs::metadata("/proc/self").expect("there").uid() == 0;
    if is_root {
        chown(&above, Some(12345), None).expect("given away");
        is_refused("belongs to another user");
        chown(&above, Some(0), None).expect("taken back");
    }

    // What is found says nothing of caches; what others may have written says nothing at all.
    let (config, evil) = (above.join("restitch.toml"), above.join("evil"));
    std::fs::write(&config, "[batch]\ncache = \"evil\"\nprograms = [\"none\"]\n").expect("written");
    mode(&config, 0o644);
    let done = run(&[]);
    assert!(
        !evil.exists() && done.stderr.contains("--config") && done.stderr.contains("named none"),
        "{}",
        done.stderr
    );
    batch.cache_command(&["list"]).expect(code::DONE);
    assert!(!evil.exists());
    mode(&config, 0o666);
    let done = run(&[]);
    assert!(done.stderr.contains("left out") && !done.stderr.contains("named none"), "{}", done.stderr);
    mode(&config, 0o644);
    if is_root {
        chown(&config, Some(12345), None).expect("given away");
        let done = run(&[]);
        assert!(done.stderr.contains("left out") && !done.stderr.contains("named none"), "{}", done.stderr);
    }
    std::fs::remove_file(&config).expect("removed");
    for put in [pipe, endless] {
        put(&config);
        let done = run(&[]);
        assert!(done.stdout == "done\n" && done.stderr.contains("left out"), "{}", done.stderr);
        std::fs::remove_file(&config).expect("removed");
    }
}

#[test]
fn what_is_exported_is_read_by_those_who_may_read_the_program() {
    let Some((program, batch, sum)) = Program::optimized() else { return };
    let exported = program.folder.path().join("exported");
    let export = || finish(batch.command(&["--export", &exported.to_string_lossy()]).arg("true"));
    let overlay = || {
        let files = std::fs::read_dir(&exported).expect("a folder").flatten().map(|e| e.path());
        files.filter(|f| f.extension().is_some_and(|e| e == "overlay")).collect::<Vec<_>>()
    };
    for (of_program, of_overlay) in [(0o755, 0o644), (0o711, 0o600), (0o750, 0o600)] {
        std::fs::set_permissions(&program.file, Permissions::from_mode(of_program)).expect("permitted");
        export().expect(0);
        let mode = std::fs::metadata(&overlay()[0]).expect("exported").mode() & 0o777;
        assert_eq!(mode, of_overlay, "of a program with {of_program:o}");
    }
    assert_eq!(beside_folder(&program.file, &exported), (sum, true));
    // Where others may write to the folder nothing is taken from it, nor put into it.
    std::fs::set_permissions(&exported, Permissions::from_mode(0o775)).expect("permitted");
    assert_eq!(beside_folder(&program.file, &exported), (sum, false));
    assert!(export().stderr.contains("others may write to it"));
}
