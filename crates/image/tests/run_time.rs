//! Run times are recognised by marks in the file, whatever it is called and however it was stripped; what
//! only resembles them is not.

use restitch_image::{Image, RunTime};
use restitch_testkit::{compile, scratch, skipped, strip, without_section_headers};
use std::path::PathBuf;

/// A program with this assembly (C text at file scope) in it.
fn made(text: &str, flags: &[&str]) -> Option<PathBuf> {
    let folder = scratch();
    let source = folder.path().join("marked.c");
    std::fs::write(&source, format!("{text}\nint main(void) {{ return 0; }}\n")).unwrap();
    compile(&source, flags).map_err(|error| skipped(&error.to_string())).ok()
}

fn run_time(path: &PathBuf) -> Option<RunTime> {
    Image::parse(std::fs::read(path).unwrap()).unwrap().run_time()
}

#[track_caller]
fn expect(text: &str, flags: &[&str], expected: Option<RunTime>) {
    let Some(path) = made(text, flags) else { return };
    assert_eq!(run_time(&path), expected, "{text} {flags:?}");
}

/// `name` as a label without a type, or as an object, in data.
fn label(name: &str, kind: &str) -> String {
    format!(r#"__asm__(".data\n.globl \"{name}\"\n{kind}\n\"{name}\": .quad 0\n.text");"#)
}

#[test]
fn ocaml_has_frame_tables_under_the_names_of_all_its_versions() {
    expect(&label("caml_system__frametable", ""), &["-O2"], Some(RunTime::OCaml));
    expect(&label("caml_frametable", ""), &["-O2"], Some(RunTime::OCaml));
    expect(&label("caml_system.frametable", ""), &["-O2"], Some(RunTime::OCaml));
    let object = r#".type \"caml_system$frametable\",@object\n.size \"caml_system$frametable\", 8"#;
    expect(&label("caml_system$frametable", object), &["-O2"], Some(RunTime::OCaml));
    expect(&label("camlStdlib__List__frametable", ""), &["-O2"], Some(RunTime::OCaml));
    // A library of compiled code, which calls the collector of the program that loads it.
    let call = "extern void caml_call_gc(void); void entry(void) { caml_call_gc(); }";
    expect(call, &["-O2", "-shared", "-fPIC"], Some(RunTime::OCaml));
    for other in ["camlp4", "frametable", "caml_frame", "my_caml_frametable", "camlframetable"] {
        expect(&label(other, ""), &["-O2"], None);
    }
}

#[test]
fn stripped_files_have_names_for_the_loader_or_what_their_run_time_reads() {
    let exported = made(&label("caml_system__frametable", ""), &["-O2", "-rdynamic"]);
    let reads = "const char *volatile parameters = \"OCAMLRUNPARAM\";";
    let Some((exported, reads)) = exported.zip(made(reads, &["-O2"])) else { return };
    assert_eq!(run_time(&reads), Some(RunTime::OCaml));
    for path in [exported, reads] {
        let stripped = strip(&path).unwrap();
        assert_eq!(run_time(&stripped), Some(RunTime::OCaml), "{stripped:?}");
        let bare = without_section_headers(&stripped).unwrap();
        assert_eq!(run_time(&bare), Some(RunTime::OCaml), "{bare:?}");
    }
}

#[test]
fn an_interpreter_of_byte_code_has_no_tables_of_return_addresses() {
    let both = "const char *volatile parameters = \"OCAMLRUNPARAM\";
        const char *volatile error = \"Fatal error: the file '%s' is not a bytecode executable file\";";
    expect(both, &["-O2"], None);
}

#[test]
fn go_has_sections_a_note_and_information_on_its_build() {
    let section = |name: &str| format!(r#"__asm__(".section {name},\"a\"\n.quad 1\n.text");"#);
    expect(&section(".gopclntab"), &["-O2"], Some(RunTime::Go));
    let note = r#"__asm__(".section .note.go.buildid,\"a\",@note\n.long 4, 8, 4\n.asciz \"Go\\0\"\n.quad 7\n.text");"#;
    let info = r#"__asm__(".data\n.p2align 4\n.ascii \"\\377 Go buildinf:\"\n.quad 8, 0\n.text");"#;
    for text in [note, info] {
        let Some(path) = made(text, &["-O2"]) else { return };
        assert_eq!(run_time(&path), Some(RunTime::Go), "{text}");
        let bare = without_section_headers(&strip(&path).unwrap()).unwrap();
        assert_eq!(run_time(&bare), Some(RunTime::Go), "{text}, without section headers");
    }
    // Who writes of Go has not its tables.
    expect("const char *volatile text = \"runtime.pclntab, .gopclntab and go.buildid\";", &["-O2"], None);
}

#[test]
fn others_have_names_that_they_define_or_sections() {
    let library = &["-O2", "-shared", "-fPIC"];
    let defines = |name: &str| format!("void {name}(void) {{}}");
    expect(&defines("JNI_CreateJavaVM"), library, Some(RunTime::Java));
    expect(&defines("coreclr_initialize"), library, Some(RunTime::DotNet));
    expect(&defines("_kDartVmSnapshotInstructions"), library, Some(RunTime::Dart));
    expect(&defines("mono_aot_file_info"), library, Some(RunTime::MonoAot));
    expect(&defines("graal_create_isolate"), library, Some(RunTime::NativeImage));
    let section = r#"__asm__(".section __managedcode,\"ax\"\nret\n.text");"#;
    expect(section, library, Some(RunTime::DotNetAot));
    let heap = r#"__asm__(".section .svm_heap,\"a\"\n.quad 1\n.text");"#;
    expect(heap, &["-O2"], Some(RunTime::NativeImage));
    // Who calls a virtual machine is none.
    let calls = "extern int JNI_CreateJavaVM(void); int entry(void) { return JNI_CreateJavaVM(); }";
    expect(calls, library, None);
}

#[test]
fn other_programs_have_no_marks() {
    expect("", &["-O2"], None);
    expect("", &["-O2", "-static"], None);
    for name in ["python3", "perl", "gdb", "node"] {
        let Some(path) = restitch_testkit::find_program(name) else { continue };
        assert_eq!(run_time(&path), None, "{name}");
    }
    // What looks for all the marks, and so has their texts inside.
    assert_eq!(run_time(&std::env::current_exe().unwrap()), None);
}

#[test]
fn code_that_counts_its_calls_refers_to_what_counts_them() {
    for flags in [&["-pg"][..], &["-pg", "-mfentry"], &["-pg", "-no-pie"], &["-pg", "-static"]] {
        let Some(path) = made("void entry(void) {}", flags) else { continue };
        assert_eq!(run_time(&path), Some(RunTime::CallGraph), "{flags:?}");
        assert_eq!(run_time(&strip(&path).unwrap()), Some(RunTime::CallGraph), "{flags:?}, stripped");
    }
    // What defines it for others, as the C library does.
    let library = &["-O2", "-shared", "-fPIC", "-Wl,-soname,libcounts.so"];
    expect("void mcount(void) {} void _mcount(void) {}", library, None);
    expect("void mcounter(void) {}", &["-O2"], None);
    expect("int mcount; int _mcount(void) { return ++mcount; }", &["-O2"], None);
    expect("", &["-O2", "-static"], None);
}
