//! Functions whose insides are known outside of them stay; labels of computed gotos, and numbers that are no
//! addresses, keep nothing in place.

use restitch_cfi::UnwindInfo;
use restitch_image::Image;
use restitch_program::{Movability, analyze};
use restitch_testkit::{compile, scratch, skipped, strip};
use std::path::{Path, PathBuf};

/// A function `fetch` with three labels in its middle.
const FETCH: &str = r#"
__asm__(".text\n.p2align 4\n.globl fetch\n.type fetch,@function\nfetch:\n.cfi_startproc\ntest %rsi, %rsi\nje 1f\nadd $1, %rsi\n1:\n"
        ".globl from\nfrom: movslq (%rdi), %rax\n.globl to\nto: ret\n.globl otherwise\notherwise: mov %rsi, %rax\nret\n"
        ".cfi_endproc\n.size fetch, .-fetch\n");
long fetch(const int *, long);
extern const char from[], to[], otherwise[];
"#;

/// A number of the size of addresses in a program at fixed addresses.
const MAIN: &str =
    "int main(int argc, char **argv) { static int one = 1; (void)argv; return fetch(&one, argc) != 1; }";

fn made(text: &str, flags: &[&str]) -> Option<PathBuf> {
    let folder = scratch();
    let source = folder.path().join("labels.c");
    std::fs::write(&source, text).unwrap();
    compile(&source, flags).map_err(|error| skipped(&error.to_string())).ok()
}

fn movability(path: &Path, at: restitch_address::Svma) -> Movability {
    let image = Image::parse(std::fs::read(path).unwrap()).unwrap();
    let tables = image.eh_frame().unwrap();
    let unwind =
        UnwindInfo::parse(image.read(tables.start, tables.len() as usize).unwrap(), tables.start).unwrap();
    let program = analyze(&image, &unwind).unwrap();
    assert_eq!(program.validate(), Ok(()));
    program.function(program.function_at(at).unwrap()).movability
}

/// What becomes of `function` in the program of `text`, with its symbols and without them, in all ways of
/// linking.
#[track_caller]
fn expect(text: &str, function: &str, expected: Movability) {
    for flags in [&["-O2", "-fPIE", "-pie"][..], &["-O2", "-no-pie", "-fno-pie"], &["-O2", "-static"]] {
        let Some(path) = made(text, flags) else { return };
        let image = Image::parse(std::fs::read(&path).unwrap()).unwrap();
        let at = image.symbols_named(function).next().unwrap().range.start;
        assert_eq!(movability(&path, at), expected, "{text} {flags:?}");
        assert_eq!(movability(&strip(&path).unwrap(), at), expected, "{text} {flags:?}, stripped");
    }
}

#[test]
fn two_labels_that_another_function_compares_with() {
    let judge = "int judge(const char *at) { return at >= from && at < to; } int (*volatile judge_it)(const char *) = judge;";
    expect(&format!("{FETCH}{judge}{MAIN}"), "fetch", Movability::KnownLabels);
    let from_entry = "int judge(const char *at) { return at >= (const char *)fetch && at < to; } int (*volatile judge_it)(const char *) = judge;";
    expect(&format!("{FETCH}{from_entry}{MAIN}"), "fetch", Movability::KnownLabels);
}

#[test]
fn rows_of_a_table() {
    let rows = "const char *const rows[] = {from, to, otherwise, 0}; const char *const *volatile all = rows;";
    expect(&format!("{FETCH}{rows}{MAIN}"), "fetch", Movability::KnownLabels);
}

#[test]
fn distances_in_a_section_of_their_own() {
    let table =
        r#"__asm__(".section fault_table,\"a\"\n.p2align 2\n.long from - ., otherwise - .\n.text\n");"#;
    expect(&format!("{FETCH}{table}{MAIN}"), "fetch", Movability::KnownLabels);
    // Other content, of the same length.
    let other = r#"__asm__(".section fault_table,\"a\"\n.p2align 2\n.long 1, otherwise - .\n.text\n");"#;
    expect(&format!("{FETCH}{other}{MAIN}"), "fetch", Movability::Movable);
}

#[test]
fn a_section_of_code_whose_bounds_the_linker_offers() {
    let text = FETCH.replace(".text\\n.p2align", ".section fetch_code,\\\"ax\\\"\\n.p2align");
    assert_ne!(text, FETCH);
    let text = text.replace(".size fetch, .-fetch\\n", ".size fetch, .-fetch\\n.text\\n");
    expect(&format!("{text}{MAIN}"), "fetch", Movability::KnownLabels);
    // Sections that only linkers sort by.
    expect(&format!("{}{MAIN}", text.replace("fetch_code", ".text.fetch")), "fetch", Movability::Movable);
}

#[test]
fn the_end_of_a_function() {
    let text = FETCH.replace(".size fetch", ".globl behind\\nbehind:\\nnopw 0(%rax,%rax)\\n.size fetch");
    let judge = "extern const char behind[]; const char *volatile end = behind;
        int judge(const char *at) { return at >= (const char *)fetch && at < behind; } int (*volatile judge_it)(const char *) = judge;";
    expect(&format!("{text}{judge}{MAIN}"), "fetch", Movability::KnownLabels);
}

#[test]
fn nobody_knows_labels() {
    expect(&format!("{FETCH}{MAIN}"), "fetch", Movability::Movable);
}

#[test]
fn labels_that_are_jumped_to() {
    let goes = "__attribute__((noinline)) int goes(const unsigned char *code) {
        static const void *const labels[] = {&&end, &&one, &&two, &&three};
        int sum = 0;
        goto *labels[*code++];
        one: sum += 3; goto *labels[*code++];
        two: sum *= 5; goto *labels[*code++];
        three: sum ^= 77; goto *labels[*code++];
        end: return sum;
    }
    int main(int argc, char **argv) { static const unsigned char code[] = {1, 2, 3, 0}; (void)argv; return goes(code) == argc; }";
    expect(goes, "goes", Movability::Movable);
}

#[test]
fn a_number_that_equals_an_address() {
    // A single number in code, and a word beside other numbers.
    let Some(path) = made(&format!("{FETCH}{MAIN}"), &["-O2", "-no-pie", "-fno-pie", "-Wl,-Ttext=0x600000"])
    else {
        return;
    };
    let image = Image::parse(std::fs::read(&path).unwrap()).unwrap();
    let at = image.symbols_named("fetch").next().unwrap().range.start;
    let number = at.get() + 5;
    let main = MAIN.replace("fetch(&one, argc)", "fetch(&one, argc + (NUMBER - NUMBER))");
    let uses = "volatile long words[] = {3, NUMBER, 4}; long used(long x) { return x == NUMBER; } long (*volatile use)(long) = used;";
    let text = format!("{FETCH}{uses}{main}").replace("NUMBER", &format!("{number}L"));
    let flags = ["-O2", "-no-pie", "-fno-pie", "-Wl,-Ttext=0x600000"];
    let Some(path) = made(&text, &flags) else { return };
    let moved = Image::parse(std::fs::read(&path).unwrap()).unwrap();
    let at = moved.symbols_named("fetch").next().unwrap().range.start;
    assert!((number - 32..number).contains(&at.get()), "the number is inside of the function");
    assert_eq!(movability(&strip(&path).unwrap(), at), Movability::Movable);
}
