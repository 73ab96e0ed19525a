//! Files as distributions ship them, laid out again completely.

mod common;

use common::{IN_PLACE, MOVED, Order, available, image, install, output};
use restitch_apply_elf::{ElfError, plan_output};
use restitch_testkit::{SUCCESS, find_program, run, scratch, skip};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

const LIMIT: Duration = Duration::from_secs(120);

fn stdout(command: &mut Command) -> Vec<u8> {
    let Output { status, stdout, stderr } = command.output().expect("starts");
    assert!(status.success(), "{command:?}: {status} {}", String::from_utf8_lossy(&stderr));
    stdout
}

#[test]
fn ls_lists_the_same() {
    let Some(ls) = find_program("ls") else { skip!("there is no ls") };
    let folder = scratch();
    for (order, options) in [(Order::Random(5), IN_PLACE), (Order::Reversed, MOVED)] {
        let new = install(folder.path(), "ls", &output(&image(&ls), order, &options));
        let list = |program: &Path| stdout(Command::new(program).args(["-laR", "/usr/share/doc/gcc"]));
        assert_eq!(list(&new), list(&ls));
    }
}

const SCRIPT: &str = "import json, re, threading\n\
    def f(n): return 1 if n < 2 else n * f(n - 1)\n\
    def g():\n  try: [][1]\n  except IndexError as e: return str(e)\n\
    t = [threading.Thread(target=f, args=(50,)) for _ in range(4)]\n\
    [x.start() for x in t]; [x.join() for x in t]\n\
    print(json.dumps({str(i): f(i) for i in range(30)}), re.findall('a+b', 'aab b ab'), g())\n";

#[test]
fn python_computes_the_same() {
    let Some(python) = find_program("python3") else { skip!("there is no python3") };
    let python = std::fs::canonicalize(python).expect("the program");
    let folder = scratch();
    let new = install(folder.path(), "python3", &output(&image(&python), Order::Random(9), &IN_PLACE));
    let compute = |program: &Path| stdout(Command::new(program).args(["-I", "-c", SCRIPT]));
    assert_eq!(compute(&new), compute(&python));
}

#[test]
fn a_compiler_writes_the_same_assembly() {
    let Some(compiler) = find_program("cc1plus") else { skip!("there is no cc1plus") };
    let folder = scratch();
    let source = folder.path().join("input.cc");
    let text = std::fs::read_to_string(restitch_testkit::program("virt.cc")).expect("a test program");
    let own = text.lines().filter(|l| !l.starts_with("#include")).collect::<Vec<_>>().join("\n");
    std::fs::write(&source, format!("struct A {{ virtual int f(int n) {{ return n; }} }};\n\
        template <int N> int g(A *a) {{ return a->f(N) + g<N - 1>(a); }}\ntemplate <> int g<0>(A *a) {{ return a->f(0); }}\n\
        int h(A *a) {{ try {{ return g<99>(a); }} catch (int) {{ return 1; }} }}\n#if 0\n{own}\n#endif\n")).unwrap();
    let new = install(folder.path(), "cc1plus", &output(&image(&compiler), Order::Reversed, &IN_PLACE));
    let compile = |program: &Path| {
        let mut command = Command::new(program);
        stdout(command.args(["-quiet", "-O2", "-o", "-"]).arg(&source))
    };
    let (expected, there) = (compile(&compiler), compile(&new));
    assert!(expected.len() > 1000 && expected == there);
    let version = Command::new(&new)
        .arg("-version")
        .current_dir(folder.path())
        .stdin(std::process::Stdio::null())
        .output()
        .expect("starts");
    assert!(String::from_utf8_lossy(&version.stderr).contains("GNU C++"));
}

/// The C and C++ run-time libraries, among them the unwinder itself, under programs that throw and cancel.
#[test]
fn system_libraries_work() {
    let folder = scratch();
    let libraries = ["libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6"];
    for name in libraries {
        let Some(path) = library(name) else { skip!("{name} is not where Debian has it") };
        install(folder.path(), name, &output(&image(&path), Order::Random(11), &IN_PLACE));
    }
    for name in ["throw.cc", "cancel.cc", "threads.c", "fork.c", "setjmp.c", "signals.c"] {
        let source = restitch_testkit::program(name);
        let program = restitch_testkit::require!(
            available(restitch_testkit::compile(&source, &["-O2"])),
            "no compiler"
        );
        println!("{name}");
        run(Command::new(program).env("LD_LIBRARY_PATH", folder.path()), LIMIT).expect(SUCCESS);
    }
}

#[test]
fn the_dynamic_loader_is_refused() {
    let Some(path) = library("ld-linux-x86-64.so.2") else { skip!("the loader is not where Debian has it") };
    let image = image(&path);
    let version = common::version(&image, Order::Original, &IN_PLACE);
    let refused = plan_output(&image, &version, &IN_PLACE);
    assert!(matches!(refused, Err(ElfError::DynamicLoader(_))));
}

fn library(name: &str) -> Option<PathBuf> {
    let path = Path::new("/usr/lib/x86_64-linux-gnu").join(name);
    path.exists().then_some(path)
}
