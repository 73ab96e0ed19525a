//! A made-up kernel, understood.

use restitch_address::Svma;
use restitch_kernel::{
    Code, EdgeKind, End, Kernel, KernelError, Knowledge, Lists, Reason, Sampled, Sampling, SiteKind, Survey,
    Symbols, TimeReport, image,
};
use restitch_testkit::small_kernel::SmallKernel;
use std::io::{Error, ErrorKind, Result};
use std::path::Path;

fn bytes_at(core: &[u8]) -> impl Fn(u64, &mut [u8]) -> Result<()> {
    move |at, room| {
        let part = core.get(at as usize..).and_then(|rest| rest.get(..room.len()));
        room.copy_from_slice(part.ok_or_else(|| Error::from(ErrorKind::UnexpectedEof))?);
        Ok(())
    }
}

fn read(small: &SmallKernel, core: &[u8], lists: &Lists) -> std::result::Result<Kernel, KernelError> {
    let symbols = Symbols::parse(&small.symbols, Path::new("list"))?;
    Kernel::new(image(bytes_at(core), Path::new("core"), &symbols)?, symbols, None, lists)
}

fn kernel(small: &SmallKernel) -> Kernel {
    let lists = Lists { traceable: Some(small.traceable.clone()), ..Lists::default() };
    read(small, &small.core(), &lists).unwrap_or_else(|error| panic!("{error}"))
}

fn code(kernel: &Kernel, name: &str) -> Code {
    kernel.code(kernel.find(name).unwrap_or_else(|error| panic!("{error}")))
}

fn reasons(small: &SmallKernel, name: &str) -> Vec<Reason> {
    let kernel = kernel(small);
    let id = kernel.find(name).unwrap_or_else(|error| panic!("{error}"));
    kernel.reasons(id, &kernel.code(id))
}

/// What is read-only since boot switches nothing any more.
#[test]
fn branches_by_keys_that_cannot_be_written_are_plain_code() {
    let mut small = SmallKernel::new();
    let line = small.symbols.lines().find(|line| line.ends_with(" key")).expect("a key").to_owned();
    let key = u64::from_str_radix(line.split(' ').next().expect("an address"), 16).expect("hexadecimal");
    small.symbols +=
        &format!("{key:016x} D __start_ro_after_init\n{:016x} D __end_ro_after_init\n", key + 16);
    let code = code(&kernel(&small), "work");
    assert!(code.blocks.iter().all(|block| !matches!(block.end, End::StaticKey { .. })), "{code:?}");
}

#[test]
fn a_function_is_cut_into_blocks_with_its_rarely_executed_part() {
    let small = SmallKernel::new();
    let kernel = kernel(&small);
    let work = small.function("work");
    let code = code(&kernel, "work");
    let starts: Vec<u64> = code.blocks.iter().map(|block| block.range.start.get() - work).collect();
    assert_eq!(starts, [0, 9, 12, 14, 25, 0x40]);
    let key = Svma::new(work + 25);
    assert!(matches!(code.blocks[2].end,
        End::StaticKey { taken, is_jump: false, is_inverted: false, is_initially_on: false, .. } if taken == key));
    assert_eq!(code.blocks[4].end, End::Return);
    assert_eq!(code.blocks[5].end, End::NoReturn, "it calls what only traps");
    assert!(code.sites.iter().any(|site| site.kind == SiteKind::Trace && site.at.get() == work));
    assert!(code.sites.iter().any(|site| matches!(site.kind, SiteKind::StaticCall { .. })));
    let dead = code.edges.iter().filter(|edge| !edge.is_live);
    let dead: Vec<_> = dead.map(|edge| (edge.from, edge.to, edge.kind)).collect();
    assert_eq!(dead, [(Some(2), Some(4), EdgeKind::Taken)]);
    assert!(reasons(&small, "work").is_empty() && reasons(&small, "__work_alias").is_empty());
}

#[test]
fn tables_say_which_faults_and_traps_go_on() {
    let small = SmallKernel::new();
    let kernel = kernel(&small);
    let user = code(&kernel, "reads_user");
    assert_eq!(user.blocks.len(), 3);
    assert!(user.blocks.iter().all(|block| block.is_reached));
    assert!(user.edges.iter().any(|edge| edge.kind == EdgeKind::Fault && edge.to == Some(2)));
    let warns = code(&kernel, "warns");
    assert_eq!((warns.blocks.len(), warns.blocks[0].end), (1, End::Return));
    assert!(warns.sites.iter().any(|site| matches!(site.kind, SiteKind::Bug { goes_on: true, .. })));
    assert_eq!(code(&kernel, "fail").blocks[0].end, End::Trap);
    assert_eq!(kernel.known.tables.bug_len, 12, "found by trying");
}

#[test]
fn a_call_through_a_thunk_comes_back_though_the_thunk_calls_its_own_middle() {
    let mut small = SmallKernel::new();
    let own = kernel(&small);
    let start = |name: &str| own.functions.get(own.find(name).expect("a function")).start().get();
    let (caller, thunk) = (start("calls_by_register"), start("__x86_indirect_thunk_rax"));
    // call +1; int3; mov %rax,(%rsp); ret
    small.put(thunk, &[0xe8, 1, 0, 0, 0, 0xcc, 0x48, 0x89, 0x04, 0x24, 0xc3]);
    let to = (thunk - (caller + 5)) as u32;
    small.put(caller, &[&[0xe8][..], &to.to_le_bytes(), &[0xc3]].concat());
    let calls = code(&kernel(&small), "calls_by_register");
    assert!(calls.sites.iter().any(|site| matches!(site.kind, SiteKind::IndirectCall(Some(_)))));
    assert_eq!((calls.blocks.len(), calls.blocks[0].end), (1, End::Return));
}

#[test]
fn what_stays_has_its_reason() {
    let small = SmallKernel::new();
    for (name, reason) in [
        ("jumps_by_table", Reason::JumpTable),
        ("undecodable", Reason::Undecodable),
        ("knows_itself", Reason::OwnAddress),
        ("runs_on", Reason::RunsOn),
        ("hushed", Reason::NoInstrumentation),
        ("waits", Reason::Scheduler),
        ("__x86_return_thunk", Reason::Thunk),
        ("__x86_indirect_thunk_rax", Reason::Thunk),
    ] {
        assert_eq!(reasons(&small, name), [reason], "{name}");
    }
    for name in ["calls_by_register", "reads_user", "warns", "fail"] {
        assert!(reasons(&small, name).is_empty(), "{name}");
    }
}

#[test]
fn who_has_changed_a_function_is_left_alone() {
    let mut small = SmallKernel::new();
    let traced = Lists { traced: Some("work (1) R\n".into()), ..Lists::default() };
    let kernel = read(&small, &small.core(), &traced).expect("a kernel");
    let id = kernel.find("work").expect("a function");
    assert_eq!(kernel.reasons(id, &kernel.code(id)), [Reason::HasUsers]);
    // A breakpoint in place of a static key's branch.
    small.put(small.function("work") + 12, &[0xcc]);
    assert!(reasons(&small, "work").contains(&Reason::UnknownState));
    // The tracer's place jumps somewhere, and its list says where that place is.
    let mut small = SmallKernel::new();
    let work = small.function("work");
    small.put(work, &[0xe9, 0, 0, 0, 0]);
    let sites = Lists { trace_sites: Some(format!("{work:x} work\n")), ..Lists::default() };
    let kernel = read(&small, &small.core(), &sites).expect("a kernel");
    let id = kernel.find("work").expect("a function");
    assert!(kernel.reasons(id, &kernel.code(id)).contains(&Reason::HasUsers));
}

#[test]
fn addresses_that_others_know_are_found() {
    let mut small = SmallKernel::new();
    let inside = small.function("warns") + 5;
    small.put(restitch_testkit::small_kernel::BASE + 0x2900, &inside.to_le_bytes());
    assert_eq!(reasons(&small, "warns"), [Reason::KnownInside]);
}

#[test]
fn names_of_several_functions_are_named_and_wrong_ones_get_advice() {
    let small = SmallKernel::new();
    let kernel = kernel(&small);
    let text = |name: &str| kernel.find(name).expect_err("not one function").to_string();
    let (first, second) = (small.place(9), small.place(10));
    assert_eq!(
        text("same"),
        format!("2 functions are called same; name one by its address: {first:#x}, {second:#x}")
    );
    assert_eq!(text("warn"), "the kernel has no function warn; it has warns");
    assert!(kernel.find(&format!("{second:#x}")).is_ok());
}

#[test]
fn figures_add_up() {
    let small = SmallKernel::new();
    let survey = Survey::of(&kernel(&small));
    assert_eq!(survey.functions, 16);
    let staying: u64 = survey.not_movable.iter().map(|staying| staying.functions).sum();
    assert_eq!(survey.movable_functions + staying, survey.functions);
    assert_eq!((survey.counts.static_keys, survey.counts.short_static_keys), (1, 1));
    assert_eq!((survey.counts.static_calls, survey.counts.exceptions), (1, 1));
    assert_eq!((survey.counts.bugs, survey.counts.warnings), (2, 1));
    assert_eq!((survey.ambiguous_functions, survey.unwind_rows), (2, 2));
    assert_eq!((survey.counts.edges, survey.counts.exact_edges), (8, 8));
}

#[test]
fn what_is_no_kernel_is_refused_in_words() {
    let small = SmallKernel::new();
    let core = small.core();
    let refused = |small: &SmallKernel, core: &[u8]| {
        read(small, core, &Lists::default()).map(|_| ()).expect_err("no kernel").to_string()
    };
    assert_eq!(refused(&small, &core[..core.len() - 1]), "core: it ends before 0x5000");
    assert_eq!(refused(&small, &core[..20]), "core: it ends before 0x40");
    let mut lying = core.clone();
    lying[32..40].copy_from_slice(&u64::MAX.to_le_bytes());
    assert_eq!(refused(&small, &lying), "core: its parts are behind any file's end");
    let mut elsewhere = core.clone();
    elsewhere[82] = 1;
    assert!(refused(&small, &elsewhere).starts_with("core: it does not hold 16384 bytes"));
    let saying = |symbols: String| {
        let mut other = small.clone();
        other.symbols = symbols;
        other
    };
    let hidden = saying("0000000000000000 T _text\n".repeat(3));
    assert!(refused(&hidden, &core).starts_with("list shows no addresses"));
    let foreign = saying("# names\n".into());
    assert_eq!(refused(&foreign, &core), "list: line 1: an address, a letter and a name are wanted");
    let few = saying(small.symbols.replace("__stop___ex_table", "x"));
    assert!(refused(&few, &core).contains("CONFIG_KALLSYMS_ALL"));
}

#[test]
fn samples_say_where_the_time_goes_and_below_which_function() {
    let small = SmallKernel::new();
    let kernel = kernel(&small);
    let at = |name: &str| Svma::new(small.function(name) + 4);
    let [work, cold, fail, warns] = ["work", "work.cold", "fail", "warns"].map(at);
    let elsewhere = Svma::new(small.function("work") - 0x1000);
    let stacks: [(u64, Svma, &[Svma]); 6] = [
        (50, fail, &[cold, warns]),
        // What is called last in a function returns behind it, here to padding.
        (20, fail, &[Svma::new(small.function("fail") - 0x10), warns, elsewhere]),
        (10, work, &[warns]),
        (10, warns, &[]),
        // A recursive function is taken once.
        (6, warns, &[work, warns, work]),
        (4, elsewhere, &[]),
    ];
    let mut sampled = Sampled::default();
    for (times, at, callers) in stacks {
        (0..times).for_each(|_| sampled.add(&kernel.functions, at, callers));
    }
    assert_eq!((sampled.all, sampled.elsewhere), (100, 4));
    let names = |found: Vec<restitch_kernel::SampledFunction>| -> Vec<(String, u64, u64)> {
        found.iter().map(|f| (kernel.functions.get(f.id).name.clone(), f.own, f.inclusive)).collect()
    };
    let (work, fail, warns) =
        (("__work_alias".to_owned(), 10, 86), ("fail".to_owned(), 70, 70), ("warns".to_owned(), 16, 96));
    // 67.2 of 96 are wanted, then 72.
    assert_eq!(names(sampled.hottest(0.7)), std::slice::from_ref(&fail));
    assert_eq!(names(sampled.hottest(0.75)), [fail.clone(), warns.clone()]);
    assert_eq!(names(sampled.hottest(1.0)), [fail.clone(), warns.clone(), work.clone()]);
    // 86 of 96 samples of `warns` are below `work`, which is not nearly all.
    assert_eq!(names(sampled.roots(0.1, |_| true)), [warns.clone(), work.clone(), fail.clone()]);
    assert_eq!(names(sampled.roots(0.8, |_| true)), [warns.clone(), work.clone()]);
    let is_fail = |id| kernel.functions.get(id).name == "fail";
    assert_eq!(names(sampled.roots(0.1, is_fail)), [fail]);
    let mut below = sampled.clone();
    (0..900).for_each(|_| below.add(&kernel.functions, at("work"), &[at("warns")]));
    assert_eq!(names(below.roots(0.5, |_| true)), [("__work_alias".to_owned(), 910, 986)]);
    assert_eq!(Sampled::default().hottest(0.95), []);
    assert_eq!(Sampled::default().roots(0.0, |_| true), []);
}

#[test]
fn where_the_time_goes_is_told_with_what_can_be_a_root_and_why_the_rest_cannot() {
    let small = SmallKernel::new();
    let kernel = kernel(&small);
    let at = |name: &str| Svma::new(small.function(name) + 4);
    let mut sampled = Sampled::default();
    (0..60).for_each(|_| sampled.add(&kernel.functions, at("work"), &[]));
    (0..40).for_each(|_| sampled.add(&kernel.functions, at("jumps_by_table"), &[]));
    let sampling = || Sampling {
        release: "6.99.0-small".into(),
        subject: "the whole machine".into(),
        event: "the CPU clock",
        seconds: 10.0,
        lost: 3,
    };
    let report = TimeReport::of(sampling(), &sampled, Knowledge::Kernel(&kernel), 0.1);
    let roots: Vec<_> = report.roots.iter().map(|root| (&*root.name, root.can_be_root)).collect();
    assert_eq!(roots, [("__work_alias", Some(true)), ("jumps_by_table", Some(false))]);
    let text = report.to_text();
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    for words in [
        "__work_alias                         60.0 %   60.0 %  yes",
        "jumps_by_table                       40.0 %   40.0 %  no: ",
        "lost        3 samples came too fast",
        "next: sudo restitch kernel position __work_alias",
    ] {
        assert!(text.contains(words), "{words:?} is missing in {text}");
    }
    assert!(report.roots[1].reasons[0].contains("a jump whose targets are not known"), "{report:?}");
    // With names alone the same, but for what can be moved.
    let names = Knowledge::Names(&kernel.functions, "no /proc/kcore");
    let known = TimeReport::of(sampling(), &sampled, names, 0.1);
    assert_eq!(known.roots.iter().map(|root| root.can_be_root).collect::<Vec<_>>(), [None, None]);
    let told = known.to_text();
    assert!(told.contains("which functions can be moved is not known: no /proc/kcore"), "{told}");
    assert!(!told.contains("next:"), "{told}");
    // Too few are too few.
    let mut few = Sampled::default();
    few.add(&kernel.functions, at("work"), &[]);
    let few = TimeReport::of(sampling(), &few, Knowledge::Kernel(&kernel), 0.1);
    assert_eq!(few.roots, []);
    assert!(few.to_text().contains("too few to tell anything") && !few.to_text().contains("next:"));
    let value: serde_json::Value = serde_json::from_str(&report.to_json().expect("JSON")).expect("JSON");
    let document = include_str!("../../../docs/json.md");
    for field in value["roots"][0].as_object().expect("fields").keys() {
        assert!(document.contains(&format!("| `roots[].{field}` |")), "{field}");
    }
}

#[test]
fn functions_whose_bytes_change_after_they_were_read_are_told() {
    let folder = restitch_testkit::scratch();
    let source = restitch_kernel::Source::folder(folder.path());
    let mut small = SmallKernel::new();
    small.write_view(folder.path());
    let kernel = Kernel::read(&source).unwrap_or_else(|error| panic!("{error}"));
    let ids: Vec<_> = kernel.functions.ids().collect();
    let changed = || kernel.changed(&source, &ids).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(changed(), []);
    // In the part that stands apart: it is the function's, too.
    let work = kernel.find("work").unwrap_or_else(|error| panic!("{error}"));
    let cold = kernel.functions.get(work).parts[1].start;
    small.put(cold.get(), &[0xcc]);
    small.write_view(folder.path());
    assert_eq!(changed(), [work]);
    std::fs::write(folder.path().join("proc/kcore"), b"\x7fELF").expect("written");
    assert!(matches!(kernel.changed(&source, &ids), Err(KernelError::Damaged { .. })));
}
