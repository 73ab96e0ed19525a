//! The repository keeps its own rules, and every rule notices what breaks it.

use std::sync::LazyLock;
use xtask::{Tree, tidy};

static REPOSITORY: LazyLock<Tree> =
    LazyLock::new(|| Tree::of_this_repository().expect("the repository is readable"));

/// Fails with all findings of `rule` in the repository.
fn holds(rule: tidy::Rule) {
    let findings: Vec<String> = rule(&REPOSITORY).iter().map(|finding| format!("  {finding}\n")).collect();
    assert!(findings.is_empty(), "\n{}", findings.concat());
}

/// The places that `rule` reports in `files`, as `path:line`.
fn places(rule: tidy::Rule, files: &[(&str, &str)]) -> Vec<String> {
    rule(&Tree::of_files(files)).iter().map(|f| format!("{}:{}", f.path, f.line)).collect()
}

/// What `rule` says about `files`.
fn texts(rule: tidy::Rule, files: &[(&str, &str)]) -> String {
    rule(&Tree::of_files(files)).iter().map(|f| format!("{}\n", f.what)).collect()
}

#[test]
fn the_repository_is_read() {
    assert!(REPOSITORY.paths.contains("crates/address/src/lib.rs"));
    assert!(REPOSITORY.files.iter().any(|file| file.path == "xtask/tests/tidy.rs"));
    assert!(!REPOSITORY.paths.iter().any(|path| path.starts_with("target")));
}

#[test]
fn the_page_for_contributors_says_each_rule() {
    let page = REPOSITORY.files.iter().find(|file| file.path == "CONTRIBUTING.md").expect("it is there");
    let rows: Vec<&str> = page.text.lines().filter(|line| line.starts_with("| ")).collect();
    let is_said = |name: &str| rows.iter().any(|row| row.contains(&format!("`{name}`")));
    let unsaid: Vec<&str> = tidy::RULES.iter().map(|(name, _)| *name).filter(|name| !is_said(name)).collect();
    assert!(unsaid.is_empty(), "the table of rules in CONTRIBUTING.md has no row for {unsaid:?}");
}

#[test]
fn rules_of_the_design_have_reasons_and_what_holds_them() {
    holds(tidy::reasoned_rules);
    let page = "# A\n\n## B\n\n**Rule.** b\n\n*Why*: c\n\n*Held by*: d\n\n## C\n\n**Rule.** b\n\n*Why*: c\n\n### D\n\n*Held by*: d\n";
    assert_eq!(places(tidy::reasoned_rules, &[("docs/design/a.md", page)]), ["docs/design/a.md:11"]);
    assert!(places(tidy::reasoned_rules, &[("docs/usage/a.md", page)]).is_empty());
    let bare = [("docs/design/a.md", "# A\n\n**Rule.** b\n")];
    assert_eq!(places(tidy::reasoned_rules, &bare), ["docs/design/a.md:1", "docs/design/a.md:1"]);
}

#[test]
fn unsafe_code_stays_at_the_edge() {
    holds(tidy::unsafe_code);
    let bad = "fn f() {\n    unsafe { g() }\n}\n";
    let files = [
        ("crates/emit/src/a.rs", bad),
        ("crates/tracee/src/a.rs", bad),
        ("crates/emit/src/b.rs", "// unsafe\n#![deny(unsafe_code)]\nconst A: &str = \"unsafe\";\n"),
    ];
    assert_eq!(places(tidy::unsafe_code, &files), ["crates/emit/src/a.rs:2"]);
}

#[test]
fn few_crates_know_the_decoder() {
    holds(tidy::decoder);
    let bad = "use iced_x86::Decoder;\n";
    let files = [
        ("crates/emit/src/a.rs", bad),
        ("crates/x86/src/a.rs", bad),
        ("crates/check/src/a.rs", bad),
        ("crates/emit/tests/a.rs", bad),
    ];
    assert_eq!(places(tidy::decoder, &files), ["crates/emit/src/a.rs:1"]);
}

#[test]
fn bytes_of_instructions_stay_in_the_crates_of_the_instruction_set() {
    holds(tidy::instruction_set);
    let none: [&str; 0] = [];
    for bad in [
        "const JUMP: u8 = 0xe9;\n",
        "let is_call = bytes[0] == 0xe8u8;\n",
        "matches!(code, [0x0f, 0x05, ..])\n",
        "const CODE: [u8; 2] = [\n    0x66,\n    0x1f,\n];\n",
        "let [0x48, rest @ .., 0xcc] = code else { return };\n",
        "if machine != elf::EM_X86_64 {}\n",
        "Some(elf::R_X86_64_RELATIVE)\n",
        "pub original: [u8; 5],\n",
    ] {
        let at = |path| places(tidy::instruction_set, &[(path, bad)]);
        assert_eq!(at("crates/emit/src/a.rs").len(), 1, "{bad}");
        for path in [
            "crates/x86/src/a.rs",
            "crates/check/src/a.rs",
            "crates/testkit/src/a.rs",
            "crates/emit/tests/a.rs",
            "crates/emit/src/testing.rs",
            "crates/apply-elf/src/startup.rs",
        ] {
            assert_eq!(at(path), none, "{path}: {bad}");
        }
        let in_tests = format!("fn f() {{}}\n\n#[cfg(test)]\nmod tests {{\n    {bad}}}\n");
        assert_eq!(places(tidy::instruction_set, &[("crates/emit/src/a.rs", &in_tests)]), none, "{bad}");
    }
    for good in [
        "// 0xe9, 0xe8\nconst A: &str = \"0x0f, 0x05\";\n",
        "let (signal, event) = (status >> 8 & 0xff, status >> 16 & 0xffff);\n",
        "match encoding {\n    0x02 | 0x0a => 2,\n}\n",
        "const SEED: u64 = 0xe9cc;\nlet x = [0xff, word];\n",
        "const MAGIC: [u8; 4] = [0x7f, b'E', b'L', b'F'];\n",
    ] {
        assert_eq!(places(tidy::instruction_set, &[("crates/emit/src/a.rs", good)]), none, "{good}");
    }
    assert_eq!(places(tidy::instruction_set, &[("crates/preload/agent/a.rs", "[0x66, 0x1f]\n")]).len(), 1);
    let stale = texts(tidy::instruction_set, &[("crates/apply-elf/src/startup.rs", "fn f() {}\n")]);
    assert!(stale.starts_with("holds no bytes of instructions"), "{stale}");
}

#[test]
fn the_page_on_instruction_sets_names_the_contract() {
    holds(tidy::contract);
    assert!(
        REPOSITORY.paths.contains("docs/extending.md") && REPOSITORY.paths.contains("crates/x86/src/isa.rs")
    );
    let contract =
        "//! fn no() {}\npub trait Isa {\n    const A: u64;\n    type B: Copy;\n    fn c(x: u8) -> u8;\n}\n";
    let page =
        |text| places(tidy::contract, &[("crates/x86/src/isa.rs", contract), ("docs/extending.md", text)]);
    let none: [&str; 0] = [];
    assert_eq!(page("`A`, `B`, `c`"), none);
    assert_eq!(page("`A`, c, `BB`"), ["crates/x86/src/isa.rs:4", "crates/x86/src/isa.rs:5"]);
    let offers = "mod own;\npub mod slot;\npub use own::{Type, reader, writer};\npub use own::last;\n";
    let files = [("crates/x86/src/lib.rs", offers), ("docs/extending.md", "`slot`, `reader`, `last`, `own`")];
    assert_eq!(places(tidy::contract, &files), ["crates/x86/src/lib.rs:3"]);
}

#[test]
fn code_that_names_registers_is_on_the_page_on_instruction_sets() {
    holds(tidy::named_places);
    let found = |path: &str, code: &str| {
        let page = "`crates/emit/src/a.rs`\n### Outside of the crate\n| b | `crates/emit/src/b.rs`, `crates/trace/src` |\n\n### More\n`crates/emit/src/c.rs`\n";
        places(tidy::named_places, &[(path, code), ("docs/extending.md", page)])
    };
    let none: [&str; 0] = [];
    for code in ["fn f() {\n    r.rip\n}", "//! A.\nconst A: R = Register::RSP;", "\nuse core::arch::asm;"] {
        assert_eq!(found("crates/emit/src/a.rs", code), ["crates/emit/src/a.rs:2"], "{code}");
        assert_eq!(found("crates/emit/src/c.rs", code), ["crates/emit/src/c.rs:2"], "{code}");
        for path in [
            "crates/emit/src/b.rs",
            "crates/trace/src/x/y.rs",
            "crates/x86/src/a.rs",
            "crates/emit/tests/a.rs",
        ] {
            assert_eq!(found(path, code), none, "{path}: {code}");
        }
    }
    assert_eq!(found("crates/preload/agent/sys.rs", "asm!(\"\")"), ["crates/preload/agent/sys.rs:1"]);
    for code in [
        "// r.rip\nfn rip() {}",
        "fn f() { r.ripe; Register(3) }",
        "fn g() {}\n\n#[cfg(test)]\nmod tests {\n    r.rip\n}\n",
    ] {
        assert_eq!(found("crates/emit/src/a.rs", code), none, "{code}");
    }
}

#[test]
fn the_size_of_a_page_is_written_once() {
    holds(tidy::page_size);
    let bad = "const PAGE: u64 = 4096;\nlet end = at.align_up(4096);\nlet len = n.next_multiple_of(4096);\n";
    let files = [
        ("crates/emit/src/a.rs", bad),
        ("crates/address/src/a.rs", bad),
        ("crates/preload/src/format.rs", bad),
        ("crates/emit/src/b.rs", "const MOST: usize = 4096;\n// align_up(4096)\n"),
    ];
    let found = places(tidy::page_size, &files);
    assert_eq!(found, ["crates/emit/src/a.rs:1", "crates/emit/src/a.rs:2", "crates/emit/src/a.rs:3"]);
    let agent = [("crates/preload/agent/sys.rs", "let first = start & !4095;\n")];
    assert_eq!(places(tidy::page_size, &agent), ["crates/preload/agent/sys.rs:1"]);
}

#[test]
fn crates_that_compute_do_no_io() {
    holds(tidy::no_io);
    for bad in [
        "use std::fs::File;\n",
        "use std::{fmt, fs};\n",
        "use std::{\n collections::{BTreeMap, HashMap},\n os::fd::AsFd,\n};\n",
        "fn f() { std::process::exit(1) }\n",
        "use std::net;\n",
    ] {
        assert_eq!(places(tidy::no_io, &[("crates/cfi/src/a.rs", bad)]).len(), 1, "{bad}");
        assert!(places(tidy::no_io, &[("crates/session/src/a.rs", bad)]).is_empty(), "{bad}");
        assert!(places(tidy::no_io, &[("crates/cfi/tests/a.rs", bad)]).is_empty(), "{bad}");
        let in_tests = format!("fn f() {{}}\n\n#[cfg(test)]\nmod tests {{\n    {bad}}}\n");
        assert!(places(tidy::no_io, &[("crates/cfi/src/a.rs", &in_tests)]).is_empty(), "{bad}");
    }
    for good in ["use std::{fmt, ops::{Range, fs}};\n", "// std::fs\n", "use std::fmt;\n", "use foo::fs;\n"] {
        assert!(places(tidy::no_io, &[("crates/cfi/src/a.rs", good)]).is_empty(), "{good}");
    }
}

#[test]
fn files_are_short() {
    holds(tidy::length);
    let long = "\n".repeat(800);
    let tests = format!("fn f() {{}}\n\n#[cfg(test)]\nmod tests {{{long}}}\n");
    let declared = format!("\n#[cfg(test)]\nmod tests;\n{long}");
    let files = [
        ("crates/emit/src/a.rs", long.as_str()),
        ("crates/emit/src/b.rs", &long[1..]),
        ("crates/emit/src/c.rs", &tests),
        ("crates/emit/src/d.rs", &declared),
        ("crates/emit/src/d/tests.rs", &long),
        ("crates/emit/tests/a.rs", &long),
    ];
    assert_eq!(places(tidy::length, &files), ["crates/emit/src/a.rs:800", "crates/emit/src/d.rs:803"]);
}

#[test]
fn dependencies_point_downwards() {
    holds(tidy::layers);
    let manifest = |dependency: &str| format!("[dependencies]\n{dependency}.workspace = true\n");
    for (krate, dependency, expected) in [
        ("emit", "restitch-layout", ""),
        ("cli", "restitch-session", ""),
        ("emit", "restitch-check", "emit may not depend on check: dependencies point downwards only\n"),
        (
            "apply-elf",
            "restitch-apply-process",
            "apply-elf may not depend on apply-process: dependencies point downwards only\n",
        ),
        (
            "report",
            "restitch-address",
            "report may not depend on address: dependencies point downwards only\n",
        ),
        ("program", "restitch-procfs", "program only computes and may not depend on procfs\n"),
        ("program", "libc", "program only computes and may not depend on libc\n"),
        ("check", "restitch-x86", "check may not share the code of what it checks: x86\n"),
        ("kernel-check", "restitch-x86", "kernel-check may not share the code of what it checks: x86\n"),
        (
            "emit",
            "iced-x86",
            "emit may not depend on iced-x86: instructions are decoded in x86 and checkers\n",
        ),
        (
            "trace",
            "restitch-branch-table",
            "trace may not depend on branch-table, which is for tests: [dev-dependencies]\n",
        ),
        ("emit", "restitch-new", "depends on restitch-new, which is in no layer\n"),
        ("new", "libc", "in no layer; add the crate to LAYERS in xtask/src/tidy/layers.rs\n"),
    ] {
        let path = format!("crates/{krate}/Cargo.toml");
        assert_eq!(texts(tidy::layers, &[(&path, &manifest(dependency))]), expected, "{krate} {dependency}");
        let dev = manifest(dependency).replace("dependencies", "dev-dependencies");
        assert!(krate == "new" || texts(tidy::layers, &[(&path, &dev)]).is_empty());
    }
    let target = "[target.'cfg(unix)'.dependencies]\nlibc = \"0.2\"\n";
    assert!(!texts(tidy::layers, &[("crates/emit/Cargo.toml", target)]).is_empty());
    assert!(texts(tidy::layers, &[("crates/emit/Cargo.toml", "[")]).starts_with("not readable"));
}

#[test]
fn every_crate_has_its_layer() {
    let listed: Vec<&str> = tidy::LAYERS.concat();
    for krate in listed {
        assert!(
            REPOSITORY.paths.contains(&format!("crates/{krate}/Cargo.toml")),
            "{krate} is listed but gone"
        );
    }
}

#[test]
fn documents_name_what_exists() {
    holds(tidy::named_paths);
    let exists = [("docs/a.md", ""), ("crates/emit/src/map.rs", ""), ("scripts/test", "")];
    for (line, findings) in [
        ("`crates/emit/src/map.rs`, `map.rs`, `docs/a.md`, `a.md`, `scripts/test -q`", 0),
        ("`crates/emit/src/gone.rs` and `scripts/gone`", 2),
        ("`elsewhere/gone.rs`, `GONE.md`, `gone.rs`", 3),
        ("[a](docs/a.md) [b](docs/a.md#x) [c](https://example.org/x.md)", 0),
        ("[a](docs/b.md)", 1),
        ("`target/release/restitch`, `/proc/PID/mem`, `crates/*/src`, `and/or`, plain scripts/gone", 0),
        ("```\nscripts/gone --all\nscripts/test\n```", 1),
    ] {
        let files = [&exists[..], &[("README.md", line)]].concat();
        assert_eq!(places(tidy::named_paths, &files).len(), findings, "{line}");
    }
    let link = [("docs/a.md", "[up](../README.md) [b](b.md)"), ("README.md", "")];
    assert_eq!(places(tidy::named_paths, &link), ["docs/a.md:1"]);
}

#[test]
fn tests_that_documents_name_exist() {
    holds(tidy::named_tests);
    let tests = ("crates/emit/tests/a.rs", "#[test]\nfn what_is_moved_stays_right() {}\n");
    let page = "*Held by*: `what_is_moved_stays_right`, `what_was_there_before`,\n`user_regs_struct`, `A_B_C_D`, what_is_no_code_at_all\n";
    let found = |path: &str| places(tidy::named_tests, &[tests, (path, page)]);
    let none: [&str; 0] = [];
    assert_eq!(found("docs/design/a.md"), ["docs/design/a.md:1"]);
    assert_eq!(found("docs/usage/a.md"), none);
}

#[test]
fn no_file_names_a_folder_of_one_machine() {
    holds(tidy::machine_paths);
    for (word, bad) in [
        ("work/x", true),
        ("root", true),
        ("home/user", true),
        ("workspace", false),
        ("root_dir", false),
        ("homes/x", false),
    ] {
        for (prefix, begins) in
            [("", true), ("\"", true), ("= ", true), ("a", false), ("{pid}", false), (".", false)]
        {
            let line = format!("{prefix}/{word}");
            let found = !places(tidy::machine_paths, &[("x.sh", &line)]).is_empty();
            assert_eq!(found, bad && begins, "{line}");
        }
    }
}

#[test]
fn documents_can_be_read_in_one_go() {
    holds(tidy::document_lengths);
    let some = |words: usize| format!("{}.\n", "a word ".repeat(words / 2).trim_end());
    let lines = |words: usize| "four words on it\n".repeat(words / 4);
    let page = |text: &str| places(tidy::document_lengths, &[("docs/a.md", text)]);
    let none: [&str; 0] = [];

    assert_eq!(page(&"x".repeat(121)), ["docs/a.md:1"]);
    assert_eq!(page(&"ü".repeat(120)), none);
    assert_eq!(page(&format!("| {} |\n```\n{}\n```\n", "x".repeat(121), "x".repeat(121))), none);

    assert_eq!(page(&lines(120)), none);
    assert_eq!(page(&format!("# A\n\n{}", lines(124))), ["docs/a.md:3"]);
    assert_eq!(page(&format!("{0}\n{0}", lines(120))), none);
    assert_eq!(page(&format!("- {0}- {0}1. {0}", lines(80))), none);
    assert_eq!(page(&format!("{}```\n{}```\n", lines(100), lines(100))), none);

    let paragraphs = |number: usize| format!("{}\n", lines(100)).repeat(number);
    assert_eq!(page(&paragraphs(3)), none);
    assert_eq!(page(&paragraphs(4)), ["docs/a.md:79"]);
    assert_eq!(page(&format!("{0}# B\n\n{0}", paragraphs(3))), none);
    assert_eq!(page(&format!("{}{}", paragraphs(3), "| a | row | of | table |\n".repeat(100))), none);

    let headed = format!("# A\n\n{}\n", some(16)).repeat(60);
    for (path, wrong) in [
        ("README.md", true),
        ("docs/usage/a.md", true),
        ("docs/decisions/a.md", true),
        ("docs/DESIGN.md", false),
        ("SECURITY.md", false),
        ("docs/a.md", false),
    ] {
        let found = places(tidy::document_lengths, &[(path, &headed)]);
        assert_eq!(!found.is_empty(), wrong, "{path}: {found:?}");
    }
    for path in ["docs/DESIGN.md", "docs/benchmarks.md"] {
        assert_eq!(places(tidy::document_lengths, &[(path, &headed)]).len(), 0, "{path}");
        let found = places(tidy::document_lengths, &[(path, &headed.repeat(2))]);
        assert_eq!(found, [format!("{path}:1")]);
    }
    for (path, is_held) in [
        ("docs/json.md", true),
        ("bench/README.md", true),
        ("bench/results/README.md", true),
        ("kernel/module/README.md", true),
        ("bench/results/2026-01-31-a.md", false),
        ("CHANGELOG.md", false),
    ] {
        let found = places(tidy::document_lengths, &[(path, &lines(124))]);
        assert_eq!(!found.is_empty(), is_held, "{path}");
    }
}

#[test]
fn the_design_links_each_idea_that_was_given_up() {
    holds(tidy::linked_decisions);
    let decisions = [("docs/decisions/001-a.md", ""), ("docs/decisions/002-b.md", "[a](001-a.md)")];
    let found =
        |page: &str, text: &str| places(tidy::linked_decisions, &[&decisions[..], &[(page, text)]].concat());
    let link = "[a](../decisions/001-a.md) and [b](../decisions/002-b.md#why)";
    let (first, second) = ("docs/decisions/001-a.md:0", "docs/decisions/002-b.md:0");
    let none: [&str; 0] = [];
    assert_eq!(found("docs/design/a.md", link), none);
    assert_eq!(found("docs/usage/a.md", link), [first, second]);
    assert_eq!(found("docs/design/a.md", "`docs/decisions/001-a.md`, [b](../decisions/002-b.md)"), [first]);
}

#[test]
fn gains_are_those_that_were_measured() {
    holds(tidy::gains);
    let measured = "\
| postgres, one | 88 | 0.5 [0.4, 0.6] | 0.3 | faster |
<!-- bench:begin -->
| program and load | rounds | CPU time [interval] | user CPU time | verdict |
|---|---|---|---|---|
| postgres, one | 88 | 0.701 [0.675, 0.731] | 0.617 [0.601, 0.645] | faster |
| postgres, two | 88 | 0.746 [0.725, 0.769] | 0.675 [0.657, 0.695] | faster |
| python3 as a file | 88 | 0.979 [0.940, 1.005] | 0.985 [0.939, 1.028] | unclear |
<!-- bench:end -->
| redis | 88 | 0.9 [0.8, 1.0] | 0.9 | faster |
";
    let at = |row: &str| {
        let text =
            format!("CPU time for the same work:\n\n| program | load |\n|---|---|\n{row}\n\n| a | 0.1 |\n");
        places(tidy::gains, &[("README.md", &text), ("docs/benchmarks.md", measured)])
    };
    let none: [&str; 0] = [];
    for good in ["| PostgreSQL | one 0.70, two 0.75 |", "| `python3` | no difference could be shown. |"] {
        assert_eq!(at(good), none, "{good}");
    }
    for bad in [
        "| PostgreSQL | one 0.70, two 0.74 |",
        "| PostgreSQL | one 0.75, two 0.70 |",
        "| PostgreSQL | one 0.70 |",
        "| PostgreSQL | one 0.62, two 0.68 |",
        "| python3 | 0.98 |",
        "| redis | 0.90 |",
        "| PostgreSQL | one 0.70 | two 0.75 |",
    ] {
        assert_eq!(at(bad), ["README.md:5"], "{bad}");
    }
}

/// The table that the rule reads is there: with none, it would find nothing.
#[test]
fn the_table_of_gains_is_found() {
    let text = |path: &str| REPOSITORY.files.iter().find(|f| f.path == path).map(|f| f.text.clone());
    let (readme, measured) = (text("README.md").unwrap(), text("docs/benchmarks.md").unwrap());
    let without = measured.replace("<!-- bench:begin -->", "");
    let found = places(tidy::gains, &[("README.md", &readme), ("docs/benchmarks.md", &without)]);
    assert!(found.len() >= 3, "{found:?}");
}

#[test]
fn pages_for_users_and_of_the_design_have_no_dates() {
    holds(tidy::timeless_documents);
    for (line, wrong) in [
        ("seen on 2026-01-31", true),
        ("since January 2026", true),
        ("Linux 6.18, glibc 2.35, port 2026, May I", false),
        ("0.97 [0.95, 1.02]", true),
        ("[-1,2.5]", true),
        ("[a link](b.md), [0, x], [3]", false),
        ("```\n2026-01-31 [0.95, 1.02]\n```", false),
    ] {
        for path in ["docs/usage/a.md", "docs/design/a.md"] {
            let found = places(tidy::timeless_documents, &[(path, line)]);
            assert_eq!(!found.is_empty(), wrong, "{path}: {line}");
        }
        assert!(places(tidy::timeless_documents, &[("docs/benchmarks.md", line)]).is_empty());
    }
}

#[test]
fn contributors_are_told_of_each_crate() {
    holds(tidy::listed_crates);
    assert!(REPOSITORY.paths.contains("CONTRIBUTING.md"));
    let files = [
        ("crates/emit/Cargo.toml", ""),
        ("crates/emit-more/Cargo.toml", ""),
        ("crates/emit-more/src/lib.rs", ""),
        ("CONTRIBUTING.md", "| `emit`, emit-more |"),
    ];
    assert_eq!(places(tidy::listed_crates, &files), ["crates/emit-more/Cargo.toml:0"]);
}

#[test]
fn every_crate_says_what_it_is_for() {
    holds(tidy::crate_docs);
    let files = [
        ("crates/emit/src/lib.rs", "use a;\n//! late\n"),
        ("crates/x86/src/lib.rs", "//! A doc.\n"),
        ("crates/x86/src/inner.rs", "use a;\n"),
    ];
    assert_eq!(places(tidy::crate_docs, &files), ["crates/emit/src/lib.rs:1"]);
}

#[test]
fn files_of_a_crate_use_each_other_one_way() {
    holds(tidy::circles);
    let root = ("crates/new/src/lib.rs", "mod a;\nmod b;\nmod c;\npub use b::{Thing, other};\n");
    let of_b = ("crates/new/src/b.rs", "use crate::c::f;\npub struct Thing;\n");
    let of_c = ("crates/new/src/c/inner.rs", "pub fn f() -> crate::a::A { todo() }\n");
    let closing = [
        "use crate::b::Thing;\n",
        "use crate::Thing;\n",
        "use crate::{d, Thing};\n",
        "use crate::{x::{y, c}, b};\n",
        "fn f() -> crate::b::Thing { g() }\n",
    ];
    for text in closing {
        let files = [root, ("crates/new/src/a.rs", text), of_b, of_c];
        let said = texts(tidy::circles, &files);
        assert!(said.starts_with("a circle: a -> b -> c -> a;"), "{text}: {said}");
    }
    let open = [
        "// crate::b\nconst S: &str = \"crate::b\";\n",
        "use crate::{x::{b, Thing}};\n",
        "fn f() {}\n\n#[cfg(test)]\nmod tests {\n    use crate::b::Thing;\n}\n",
    ];
    for text in open {
        let files = [root, ("crates/new/src/a.rs", text), of_b, of_c];
        assert_eq!(texts(tidy::circles, &files), "", "{text}");
    }
}

#[test]
fn files_import_from_the_modules_that_define() {
    holds(tidy::defining_modules);
    let root = (
        "crates/new/src/lib.rs",
        "mod a;\nmod b;\npub mod verify;\npub use a::{Thing, inner::{Deep, self}};\npub use b::*;\npub(crate) use a::more;\npub use verify::verify;\npub use std::fmt;\npub struct Own;\n",
    );
    let of_b = (
        "crates/new/src/b.rs",
        "pub struct All;\npub fn every() {}\nstruct Hidden;\n    pub fn method() {}\n",
    );
    let said = |text: &str| texts(tidy::defining_modules, &[root, of_b, ("crates/new/src/c.rs", text)]);
    for (text, path) in [
        ("use crate::Thing;\n", "a::Thing"),
        ("use crate::{verify, Deep};\n", "a::inner::Deep"),
        ("fn f() { crate::more() }\n", "a::more"),
        ("use crate::All;\n", "b::All"),
        ("mod tests {\n    use crate::every;\n}\n", "b::every"),
    ] {
        let said = said(text);
        assert!(said.ends_with(&format!("name crate::{path}\n")), "{text}: {said}");
    }
    for text in [
        "use crate::a::Thing;\nuse crate::{a, Own, verify, fmt};\n",
        "use super::Thing;\n// crate::Thing\n",
        "fn f() { $crate::Thing; crate::method(); crate::Hidden }\n",
    ] {
        assert_eq!(said(text), "", "{text}");
    }
}

#[test]
fn files_of_a_folder_use_each_other_one_way() {
    let root = ("crates/new/src/lib.rs", "mod batch;\n");
    let folder = ("crates/new/src/batch/mod.rs", "mod a;\nmod b;\npub use b::Thing;\n");
    let of_b = ("crates/new/src/batch/b.rs", "use super::a::f;\npub struct Thing;\n");
    for text in ["use super::b::Thing;\n", "use super::Thing;\n", "use crate::batch::{c, b::Thing};\n"] {
        let said = texts(tidy::circles, &[root, folder, of_b, ("crates/new/src/batch/a.rs", text)]);
        assert!(said.contains("a circle: batch/a -> batch/b -> batch/a;"), "{text}: {said}");
    }
    for text in ["use super::super::b::Thing;\n", "use crate::b::Thing;\n", "fn f() {}\n"] {
        let said = texts(tidy::circles, &[root, folder, of_b, ("crates/new/src/batch/a.rs", text)]);
        assert_eq!(said, "", "{text}");
    }
}

#[test]
fn descriptors_are_looked_up_in_the_threads_own_table() {
    holds(tidy::descriptor_names);
    let bad = "fn f(fd: i32) -> String {\n    format!(\"/proc/self/fd/{fd}\")\n}\n";
    let good = "fn f(fd: i32) -> String {\n    format!(\"/proc/thread-self/fd/{fd}\")\n}\n";
    let files = [("crates/procfs/src/a.rs", bad), ("crates/procfs/src/b.rs", good)];
    assert_eq!(places(tidy::descriptor_names, &files), ["crates/procfs/src/a.rs:2"]);
}

#[test]
fn threads_that_cannot_be_started_are_no_panic() {
    holds(tidy::threads);
    let bad = "fn f() {\n    std::thread::spawn(|| ());\n    thread::scope(|scope| scope.spawn(|| ()));\n}\n";
    let good = "fn f() {\n    Builder::new().spawn(|| ())?;\n    command.spawn()?;\n}\n";
    let files =
        [("crates/batch/src/a.rs", bad), ("crates/batch/src/b.rs", good), ("crates/batch/tests/a.rs", bad)];
    assert_eq!(places(tidy::threads, &files), ["crates/batch/src/a.rs:2", "crates/batch/src/a.rs:3"]);
}

#[test]
fn parameters_have_names() {
    holds(tidy::tuple_parameters);
    let bad = "fn one(&(a, b): &(u32, u32)) {}\nfn two<F: Fn(u32) -> (u32, u32)>(\n    f: F,\n    (a, b): (u32, u32),\n) {}\n";
    let good = "fn f(pair: (u32, u32), g: impl Fn((u32, u32)) -> u32) { g.map(|(a, b)| a) }\ntype F = fn((u32, u32));\n";
    let files = [("crates/emit/src/a.rs", bad), ("crates/emit/src/b.rs", good)];
    assert_eq!(places(tidy::tuple_parameters, &files), ["crates/emit/src/a.rs:1", "crates/emit/src/a.rs:2"]);
}

#[test]
fn elf_files_are_read_in_one_crate() {
    holds(tidy::elf_files);
    let none: [&str; 0] = [];
    let reading = "use object::read::elf::ElfFile64;\n";
    let found = |path: &str, text: &str| places(tidy::elf_files, &[(path, text)]);
    assert_eq!(found("crates/cfi/src/a.rs", reading), ["crates/cfi/src/a.rs:1"]);
    assert_eq!(found("crates/image/src/a.rs", reading), ["crates/image/src/a.rs:1"]);
    assert_eq!(found("crates/cfi/tests/a.rs", reading), none);
    assert_eq!(found("crates/cfi/src/a.rs", "use object::elf;\n"), ["crates/cfi/src/a.rs:1"]);
    assert_eq!(found("crates/image/src/a.rs", "use object::elf;\nuse an_object::File;\n"), none);
    assert_eq!(
        found("crates/apply-elf/src/a.rs", "fn f() {\n    u64::from_le_bytes(b);\n}\n"),
        ["crates/apply-elf/src/a.rs:2"]
    );
    for mark in ["b\"\\x7fELF\\x02\"", "[0x7f, b'E', b'L']", "elf::ELFMAG"] {
        assert_eq!(
            found("crates/emit/src/a.rs", &format!("\nfn f() {{ {mark} }}\n")),
            ["crates/emit/src/a.rs:2"]
        );
        assert_eq!(found("crates/emit/src/elf.rs", mark), none);
        assert_eq!(found("crates/emit/src/a.rs", &format!("// {mark}\n").replace("ELFMAG", "x")), none);
    }
    assert_eq!(found("crates/emit/src/elf.rs", ""), ["crates/emit/src/elf.rs:1"]);
}

#[test]
fn errors_keep_what_they_come_from() {
    holds(tidy::kept_sources);
    let lost = [
        "a.map_err(|e| bad(e.to_string()))",
        "a.map_err(|e| bad(format!(\"reading ({e})\")))",
        "a.map_err(|error: Io| Bad { why: format!(\"{error:?}, {}\", b(c)) })",
        "a.map_err(|e| bad(words_of(&e)))",
        "match a { Ok(a) => Ok(a), Err(e) => Err(Bad { pid, why: why(&e, 1) }) }",
        "a.map_err(ToString::to_string)",
        "match a { Ok(a) => Ok(a), Err(e) => Err(bad(&format!(\"ü {e}\"))) }",
        "match a { Err(e) => return Err(e.to_string()), }",
        "if let Err(e) = a.b(|c| { c }) { f(); return Err(bad(&format!(\"{e}\"))); }",
    ];
    let kept = [
        "a.map_err(|e| bad(e.into()))",
        "a.map_err(|e| bad(explained(words_of(&e), e)))",
        "a.map_err(|e| bad(explained(format!(\"reading ({e})\"), e)))",
        "a.map_err(|source| Bad { why: source.to_string(), source })",
        "a.map_err(|_| format!(\"{e} is no number\"))",
        "a.map_err(bad)",
        "a.map_err(|e| note.to_string(), \"{{e}}\", the_e.to_string())",
        "match a { Err(e) => note(e.to_string()), Err(e) => Err(e), }",
        "if let Err(e) = a { note(e.to_string()); return Err(e); }",
    ];
    for text in lost {
        let text = format!("fn f() {{\n    {text}\n}}\n");
        assert_eq!(
            places(tidy::kept_sources, &[("crates/emit/src/a.rs", &text)]),
            ["crates/emit/src/a.rs:2"],
            "{text}"
        );
        assert!(places(tidy::kept_sources, &[("crates/emit/tests/a.rs", &text)]).is_empty(), "{text}");
    }
    for text in kept {
        assert_eq!(texts(tidy::kept_sources, &[("crates/emit/src/a.rs", text)]), "", "{text}");
    }
}

#[test]
fn what_is_printed_goes_through_one_place() {
    holds(tidy::printing);
    let bad = "fn f() {\n    println!(\"x\");\n    writeln!(std::io::stderr(), \"\");\n}\n";
    let good = "fn f(c: &mut C) { c.stdout().write(b\"println!\"); }\n// eprintln!\n#[cfg(test)]\nmod tests {\n    fn g() { println!() }\n}\n";
    let files = [
        ("crates/session/src/a.rs", bad),
        ("crates/cli/src/a.rs", bad),
        ("crates/cli/src/print.rs", bad),
        ("crates/session/tests/a.rs", bad),
        ("crates/session/src/b.rs", good),
    ];
    let found = places(tidy::printing, &files);
    assert_eq!(found, ["crates/session/src/a.rs:2", "crates/session/src/a.rs:3", "crates/cli/src/a.rs:3"]);
}

#[test]
fn comments_keep_to_the_width_of_the_code() {
    holds(tidy::comment_width);
    let long = "word ".repeat(25);
    let code = "x".repeat(120);
    let text = format!(
        "/// {long}\n    // {long}\n//! `{code} y`\n/// | {long} |\n/// ```\n/// {long}\n/// ```\nlet a = \"// {long}\";\n/// short\n"
    );
    assert_eq!(
        places(tidy::comment_width, &[("crates/emit/src/a.rs", &text)]),
        ["crates/emit/src/a.rs:1", "crates/emit/src/a.rs:2"]
    );
}

#[test]
fn dependencies_are_named_by_the_crates_that_ask_for_them() {
    holds(tidy::unused_dependencies);
    let manifest =
        "[dependencies]\nperf-event-open-sys.workspace = true\n[dev-dependencies]\nlibc = \"0.2\"\n";
    let findings = |used: &str, tested: &str| {
        let files = [
            ("crates/perf/Cargo.toml", manifest),
            ("crates/perf/src/lib.rs", used),
            ("crates/perf/tests/all.rs", tested),
            // Another crate's sources are none of this one.
            ("crates/perf-more/src/lib.rs", "use libc::c_int;\n"),
        ];
        texts(tidy::unused_dependencies, &files)
    };
    assert_eq!(findings("use perf_event_open_sys::bindings;\n", "libc::getpid();\n"), "");
    assert!(findings("", "libc::getpid();\n").starts_with("perf-event-open-sys is asked for"));
    assert!(
        findings("use perf_event_open_sys as sys;\n", "// libc\nlet a = \"libc\"; let libc2 = 0;\n")
            .starts_with("libc is")
    );
    // What tests alone name is for them.
    let tests = "fn f() {}\n\n#[cfg(test)]\nmod tests {\n    use perf_event_open_sys::bindings;\n}\n";
    for (used, tested) in [(tests, "libc::getpid();"), ("", "libc::getpid(); perf_event_open_sys::a();")] {
        let said = findings(used, tested);
        assert!(
            said.starts_with("perf-event-open-sys is asked for") && said.contains("besides tests"),
            "{said}"
        );
    }
    assert_eq!(
        findings(
            "use perf_event_open_sys::bindings;\n\n#[cfg(test)]\nmod tests {\n    use libc::a;\n}\n",
            ""
        ),
        ""
    );
    let of_target = manifest.replace("[dependencies]", "[target.'cfg(unix)'.dependencies]");
    assert!(
        texts(tidy::unused_dependencies, &[("crates/perf/Cargo.toml", &of_target)])
            .contains("perf-event-open-sys is")
    );
    let root = ("Cargo.toml", "[workspace.dependencies]\nlibc = \"0.2\"\nmemmap2 = \"0.9\"\n");
    let crates = ["crates/perf/Cargo.toml", "crates/perf/src/lib.rs"]
        .into_iter()
        .zip(["[target.a.dependencies]\nlibc.workspace = true\n", "use libc::c_int;\n"]);
    let files: Vec<(&str, &str)> = std::iter::once(root).chain(crates).collect();
    assert_eq!(
        texts(tidy::unused_dependencies, &files),
        "memmap2 is on the workspace's list, and no crate asks for it\n"
    );
}

#[test]
fn dependencies_are_few_and_from_one_source() {
    assert!(REPOSITORY.files.iter().any(|file| file.path == "Cargo.lock"), "the lock file is not read");
    holds(tidy::dependencies);
    let lock = |rest: &str| format!("[[package]]\nname = \"a\"\nversion = \"1.0.0\"\n{rest}");
    let registry = "source = \"registry+https://github.com/rust-lang/crates.io-index\"\n";
    let whole = lock(&format!("{registry}checksum = \"00\"\n"));
    for (text, words) in [
        (whole.clone(), ""),
        (lock(registry), "has no checksum"),
        (lock("source = \"git+https://example.org/a\"\nchecksum = \"00\"\n"), "comes from git"),
        (format!("{whole}{whole}"), "two versions of a"),
    ] {
        let said = texts(tidy::dependencies, &[("Cargo.lock", &text)]);
        assert!(said.contains(words) && said.is_empty() == words.is_empty(), "{text}: {said}");
    }
    for (path, text, words) in [
        ("Cargo.toml", "[workspace.dependencies]\nleft-pad = \"1\"\n", "without a reason"),
        (
            "Cargo.toml",
            "[workspace.dependencies]\nlibc = { git = \"https://example.org\" }\n",
            "not come from the registry",
        ),
        ("crates/emit/Cargo.toml", "[dependencies]\nlibc = \"0.2\"\n", "not taken from the workspace"),
    ] {
        let said = texts(tidy::dependencies, &[(path, text)]);
        assert!(said.contains(words), "{text}: {said}");
    }
}
