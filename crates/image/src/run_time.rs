//! Run times that look code addresses up in tables of their own.
//!
//! Problem: a version differs from the original in program counters and return addresses alone, which is
//! nothing to a program, and to the unwinders that ask for `.eh_frame`. A run time that walks its stack by
//! its own tables (to collect garbage, to grow stacks, to unwind, to count calls) finds an address of a copy
//! in none of them, and ends the process, frees what is in use, or tells something else.
//!
//! Idea: such a run time leaves marks in every file that it is linked into, which `strip` keeps: names of
//! sections, names of symbols (of whatever kind, defined or not: files of `ocamlopt` have its tables as
//! labels without a type), the name of a note, the environment variable that it reads. The code of such a
//! file stays where it is, all of it (`restitch_program::Movability::RunTime`), whatever command asks. File
//! names are no marks.
//!
//! Limits: a file that was stripped of its section headers and whose marks were renamed or packed is not
//! recognised. Which run times were tried, and which need nothing of this, is written in
//! docs/usage/run-times.md.

use crate::Image;
use restitch_address::Svma;

/// A run time whose tables know addresses of code.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RunTime {
    /// Native code of OCaml: the collector looks return addresses up in frame tables.
    OCaml,
    /// Go (gc): stacks are walked by `.gopclntab`.
    Go,
    /// HotSpot and its relatives: signal handlers judge program counters.
    Java,
    /// The .NET run time: signal handlers judge program counters, and helpers are copied and patched.
    DotNet,
    /// .NET compiled ahead of time.
    DotNetAot,
    /// A GraalVM native image.
    NativeImage,
    /// Dart compiled ahead of time.
    Dart,
    /// Code that Mono has compiled ahead of time.
    MonoAot,
    /// Code of `gcc -pg`: calls are counted by return addresses, time by program counters.
    CallGraph,
}

/// What a file has that this run time is linked into.
struct Marks {
    run_time: RunTime,
    /// Names of sections.
    sections: &'static [&'static str],
    /// Names of symbols that the file defines or refers to.
    names: &'static [&'static str],
    /// Names of symbols that the file defines.
    defined: &'static [&'static str],
    /// The name of a note, with the zeros that end it.
    note: Option<&'static str>,
}

/// Sources: OCaml, runtime/amd64.S and asmcomp; Go, cmd/link/internal/ld/pcln.go and
/// cmd/internal/buildid/note.go; JDK, hotspot/share/prims/jni.cpp; .NET, src/coreclr/dlls/mscoree and
/// ILCompiler's ObjectNodeSection.cs; Graal, substratevm's NativeImage.java; Dart,
/// runtime/vm/dart_api_impl.h; Mono, mono/mini/aot-compiler.c.
const MARKS: &[Marks] = &[
    Marks {
        run_time: RunTime::OCaml,
        sections: &[],
        names: &["caml_call_gc", "caml_frametable"],
        defined: &[],
        note: None,
    },
    Marks {
        run_time: RunTime::Go,
        sections: &[".gopclntab", ".data.rel.ro.gopclntab", ".note.go.buildid", ".go.buildinfo"],
        names: &[],
        defined: &["runtime.pclntab"],
        note: Some("Go\0\0"),
    },
    Marks {
        run_time: RunTime::NativeImage,
        sections: &[".svm_heap"],
        names: &[],
        defined: &["__svm_code_section", "__svm_version_info", "graal_create_isolate"],
        note: None,
    },
    Marks {
        run_time: RunTime::DotNetAot,
        sections: &["__managedcode", ".dotnet_eh_table"],
        names: &[],
        defined: &["__start___managedcode"],
        note: None,
    },
    Marks {
        run_time: RunTime::DotNet,
        sections: &[],
        names: &[],
        defined: &["coreclr_initialize", "DotNetRuntimeInfo", "DotNetRuntimeDebugHeader"],
        note: None,
    },
    Marks { run_time: RunTime::Java, sections: &[], names: &[], defined: &["JNI_CreateJavaVM"], note: None },
    Marks {
        run_time: RunTime::Dart,
        sections: &[],
        names: &[],
        defined: &["_kDartVmSnapshotInstructions", "_kDartIsolateSnapshotInstructions"],
        note: None,
    },
    Marks {
        run_time: RunTime::MonoAot,
        sections: &[],
        names: &[],
        defined: &["mono_aot_file_info"],
        note: None,
    },
];

/// The end of `OCAMLRUNPARAM` and of its older name, which linkers store in one.
const OCAML_PARAMETERS: &[u8] = b"CAMLRUNPARAM";
/// What OCaml's interpreter of byte code, which walks no stack of native code, says of a file.
const OCAML_BYTE_CODE: &[u8] = b"is not a bytecode executable file";
/// What code of `-pg` calls when a function is entered (GCC manual, Instrumentation Options, also of
/// `-mfentry`; clang calls the first).
const ENTRY_COUNTERS: &[&[u8]] = &[b"mcount", b"_mcount", b"__fentry__", b"__gnu_mcount_nc"];
/// What the C library that is linked into such a program says of its result, up to what is put into it.
const CALL_GRAPH_FILE: &[u8] = b"_mcleanup: gmon.out: ";
/// What `go version` looks for (debug/buildinfo): at an address that is a multiple of 16.
const GO_BUILD_INFO: &[u8] = b"\xff Go buildinf:";

impl RunTime {
    /// Why its code stays where it is, in words that follow a file's name.
    pub fn why(self) -> &'static str {
        match self {
            Self::OCaml => {
                "is native code of OCaml, whose garbage collector looks return addresses up in tables of its own, where those of moved code are not"
            }
            Self::Go => {
                "is a Go program, whose run time walks stacks by tables of its own, in which moved code is not"
            }
            Self::Java => "is a Java virtual machine, whose signal handlers judge program counters",
            Self::DotNet => "is a .NET run time, whose signal handlers judge program counters",
            Self::DotNetAot => {
                "is a .NET program compiled ahead of time, whose run time walks stacks by tables of its own, in which moved code is not"
            }
            Self::NativeImage => {
                "is a GraalVM native image, whose garbage collector looks return addresses up in tables of its own, where those of moved code are not"
            }
            Self::Dart => {
                "is Dart compiled ahead of time, whose garbage collector looks return addresses up in tables of its own, where those of moved code are not"
            }
            Self::CallGraph => {
                "is built for gprof (-pg), which counts calls by return addresses and time by program counters, and knows those of the original code alone"
            }
            Self::MonoAot => {
                "is code that Mono has compiled ahead of time, whose run time walks stacks by tables of its own, in which moved code is not"
            }
        }
    }

    /// Whether other modules of a process that has such code may have versions: what the run time's tables
    /// and handlers know is this code alone, and it is tried.
    pub fn leaves_other_modules(self) -> bool {
        matches!(self, Self::OCaml | Self::MonoAot | Self::CallGraph)
    }
}

/// The run time that a file has marks of.
pub(crate) fn of(image: &Image) -> Option<RunTime> {
    by_marks(image).or_else(|| by_text(image)).or_else(|| counts_calls(image).then_some(RunTime::CallGraph))
}

/// Whether it is made to count its calls: it refers to what does, or has that of the C library inside. (What
/// it defines itself under such a name may be anything; the C library defines it for others.)
fn counts_calls(image: &Image) -> bool {
    // Who looks for it, as this crate does, has the constant too, but not what goes on behind it (which is no
    // constant here: linkers put one behind the other).
    let goes_on = |rest: &[u8]| matches!(rest, [b'%', b's', b'\n', 0, ..]);
    let says_so = |bytes: &&[u8]| found_in(bytes, CALL_GRAPH_FILE).any(goes_on);
    image.names().any(|name| ENTRY_COUNTERS.contains(&name.text) && !name.is_defined)
        || image.soname().is_none() && image.constants().iter().any(says_so)
}

fn by_marks(image: &Image) -> Option<RunTime> {
    let section = |m: &&Marks| m.sections.iter().any(|name| image.section(name).is_some());
    if let Some(found) = MARKS.iter().find(section) {
        return Some(found.run_time);
    }
    let notes = image.note_names();
    if let Some(found) = MARKS.iter().find(|m| m.note.is_some_and(|name| notes.contains(&name.as_bytes()))) {
        return Some(found.run_time);
    }
    image.names().find_map(|name| {
        if is_frame_table(name.text) {
            return Some(RunTime::OCaml);
        }
        let is = |wanted: &&str| wanted.as_bytes() == name.text;
        let has = |m: &&Marks| m.names.iter().any(is) || name.is_defined && m.defined.iter().any(is);
        MARKS.iter().find(has).map(|m| m.run_time)
    })
}

/// `caml_system__frametable`, `camlStdlib.frametable` (5.3), `camlStdlib$frametable` (5.4) and the like: one
/// a compilation unit.
fn is_frame_table(name: &[u8]) -> bool {
    let unit = name.strip_prefix(b"caml").and_then(|rest| rest.strip_suffix(b"frametable"));
    unit.is_some_and(|unit| unit.last().is_some_and(|c| matches!(c, b'_' | b'.' | b'$')))
}

/// Whether 16 bytes begin what `go version` reads: behind the mark are the size of a pointer and flags. (The
/// library of gccgo, whose programs go by `.eh_frame`, has the mark as a constant.)
fn is_build_info(bytes: &[u8]) -> bool {
    bytes.starts_with(GO_BUILD_INFO) && matches!(bytes[GO_BUILD_INFO.len()..], [4 | 8, 0..=3])
}

/// What follows each place of `wanted` in `bytes`, in order.
fn found_in<'a>(bytes: &'a [u8], wanted: &'a [u8]) -> impl Iterator<Item = &'a [u8]> {
    memchr::memmem::find_iter(bytes, wanted).map(move |at| &bytes[at + wanted.len()..])
}

/// By what is left in a file without any name: constant strings.
fn by_text(image: &Image) -> Option<RunTime> {
    let constants = image.constants();
    let ends_text = |rest: &[u8]| rest.first().is_none_or(|byte| *byte == 0);
    let has_parameters = |bytes: &&[u8]| found_in(bytes, OCAML_PARAMETERS).any(ends_text);
    let has_byte_code = |bytes: &&[u8]| found_in(bytes, OCAML_BYTE_CODE).next().is_some();
    if constants.iter().any(has_parameters) && !constants.iter().any(has_byte_code) {
        return Some(RunTime::OCaml);
    }
    let writable = image.segments().iter().filter(|s| s.writable);
    let mut bytes = writable.filter_map(|s| Some((s.range.start, image.read_tail(s.range.start)?)));
    let has_info = |(start, bytes): (Svma, &[u8])| {
        let first = start.get().next_multiple_of(16) - start.get();
        bytes.get(first as usize..).unwrap_or_default().chunks(16).any(is_build_info)
    };
    bytes.any(has_info).then_some(RunTime::Go)
}
