//! Functions of a made-up kernel, copied and proved.

mod walks;

use restitch_address::Svma;
use restitch_kernel::{Called, FunctionId, Kernel, Lists, Symbols, image};
use restitch_kernel_check::ModuleForm;
use restitch_kernel_group::ModuleFacts;
use restitch_kernel_position::{
    Counts, Hot, Hottest, HowMany, IndirectCall, IndirectCallee, IndirectCalls, Order, PositionError,
    Positioned, Positioner, Request, Search, Subject, Through, Why, counts_text, hot_above,
};
use restitch_report::GroupCallGoes;
use restitch_testkit::small_kernel::SmallKernel;
use std::io::{Error, ErrorKind};
use std::path::Path;

fn kernel(small: &SmallKernel) -> Kernel {
    let symbols = Symbols::parse(&small.symbols, Path::new("list")).expect("symbols");
    let core = small.core();
    let read = |at: u64, room: &mut [u8]| {
        let part = core.get(at as usize..).and_then(|rest| rest.get(..room.len()));
        part.map(|part| room.copy_from_slice(part)).ok_or_else(|| Error::from(ErrorKind::UnexpectedEof))
    };
    let memory = image(read, Path::new("core"), &symbols).expect("memory");
    let lists = Lists { traceable: Some(small.traceable.clone()), ..Lists::default() };
    let mut kernel = Kernel::new(memory, symbols, None, &lists).expect("a kernel");
    // What a kernel's types would say of records of warnings: the second word leads to the file's name.
    let tables = &mut kernel.known.tables;
    (tables.has_types, tables.bug_pointers) = (true, vec![4]);
    kernel
}

const VERMAGIC: &str = "6.99.0-small SMP";

fn modules() -> ModuleFacts {
    ModuleFacts {
        vermagic: VERMAGIC.into(),
        name: "example".into(),
        structure_len: 0x380,
        structure_align: 64,
        name_at: 24,
        init_at: 0x138,
        exit_at: 0x350,
        has_retpolines: true,
        ..ModuleFacts::default()
    }
}

fn form() -> ModuleForm {
    let (name_at, init_at, exit_at) = (24, 0x138, 0x350);
    let (traces_are_calls, lists_calls) = (false, false);
    let vermagic = VERMAGIC.into();
    ModuleForm { vermagic, structure_len: 0x380, name_at, init_at, exit_at, traces_are_calls, lists_calls }
}

/// What is made of a kernel.
struct Made<'k> {
    kernel: &'k Kernel,
    subject: Subject<'k>,
}

impl<'k> Made<'k> {
    fn of(kernel: &'k Kernel) -> Self {
        Self { kernel, subject: Subject::of(kernel, modules(), form()).expect("anchors") }
    }

    fn ids(&self, names: &[&str]) -> Vec<FunctionId> {
        names.iter().map(|name| self.kernel.find(name).unwrap_or_else(|error| panic!("{error}"))).collect()
    }

    fn request(&self, roots: &[&str], callees: &[&str]) -> Request {
        let (roots, callees) = (self.ids(roots), self.ids(callees));
        Request {
            name: "group".into(),
            roots,
            callees,
            indirect: Vec::new(),
            order: Order::Kept,
            needs_trace_sites: false,
            counts: false,
            inlines: true,
        }
    }

    fn position(&self, request: &Request) -> Result<Positioned, PositionError> {
        Positioner::new(&self.subject)?.position(request)
    }

    fn proved(&self, roots: &[&str], callees: &[&str]) -> Positioned {
        let request = self.request(roots, callees);
        self.position(&request).unwrap_or_else(|error| panic!("{roots:?}: {error}"))
    }
}

#[test]
fn functions_are_proved_in_each_order() {
    let small = SmallKernel::new();
    let kernel = kernel(&small);
    let made = Made::of(&kernel);
    for name in ["work", "reads_user", "warns", "calls_by_register", "fail"] {
        let mut request = made.request(&[name], &[]);
        for order in [Order::Kept, Order::Reversed] {
            request.order = order;
            let positioned = made.position(&request).unwrap_or_else(|error| panic!("{name}: {error}"));
            assert_eq!(positioned.module.report().redirected, 1, "{name}");
            let again = made.position(&request).expect("it was proved");
            assert_eq!(again.module, positioned.module, "{name}: the same bytes");
        }
    }
}

#[test]
fn a_group_has_its_callees_and_parts() {
    let small = SmallKernel::new();
    let kernel = kernel(&small);
    let made = Made::of(&kernel);
    let positioned = made.proved(&["work"], &["fail", "warns", "reads_user"]);
    let functions: Vec<_> = positioned.functions.iter().map(|f| (f.name.as_str(), f.is_root)).collect();
    // `warns` is called by a static call, whose callee may change: not by the group.
    // The name that its part has, too.
    assert_eq!(functions, [("work", true), ("fail", false)]);
    let work = &positioned.functions[0];
    assert_eq!((work.hot_blocks, work.cold_blocks), (5, 1));
    let stays: Vec<_> = positioned.stays.iter().map(|stays| (stays.name.as_str(), &stays.why)).collect();
    assert_eq!(stays, [("reads_user", &Why::NotReached), ("warns", &Why::NotReached)]);
    assert!(positioned.hot_bytes > 0 && positioned.cold_bytes > 0);
}

#[test]
fn what_cannot_be_copied_is_refused_by_name() {
    let small = SmallKernel::new();
    let kernel = kernel(&small);
    let made = Made::of(&kernel);
    let refused = |roots: &[&str]| made.position(&made.request(roots, &[])).expect_err("refused").to_string();
    assert_eq!(
        refused(&["work", "jumps_by_table", "hushed"]),
        "no copy can be made of jumps_by_table: a jump whose targets are not known, of hushed: nothing may be \
         traced while it runs (noinstr text)"
    );
    let mut request = made.request(&["reads_user"], &[]);
    request.needs_trace_sites = true;
    let error = made.position(&request).expect_err("refused").to_string();
    assert!(error.contains("reads_user: the function tracer has no place in it"), "{error}");
    request.roots = made.ids(&["work"]);
    assert!(made.position(&request).is_ok());
}

#[test]
fn warnings_need_the_form_of_their_records() {
    let small = SmallKernel::new();
    let mut kernel = kernel(&small);
    kernel.known.tables.has_types = false;
    let made = Made::of(&kernel);
    let error = made.position(&made.request(&["warns"], &[])).expect_err("refused").to_string();
    assert!(error.contains("the kernel's types (BTF) do not describe"), "{error}");
    assert!(made.position(&made.request(&["reads_user"], &[])).is_ok());
}

/// Counts of blocks of `work` and `fail`, by their offsets.
fn counts(small: &SmallKernel, blocks: &[(u64, u64)]) -> Counts {
    let work = small.function("work");
    blocks.iter().map(|(offset, count)| (Svma::new(work + offset), *count)).collect()
}

#[test]
fn hot_blocks_stand_in_front_in_chains_and_cold_functions_stay() {
    let small = SmallKernel::new();
    let kernel = kernel(&small);
    let made = Made::of(&kernel);
    let mut request = made.request(&["work"], &["fail"]);
    // The branch at 0 is nearly always taken to 12, from where control goes on to 14 and 25.
    let hot = [(0, 1000), (9, 50), (12, 1000), (14, 1000), (25, 999), (0x40, 1)];
    request.order = Order::Counted { counts: counts(&small, &hot), hot: Hot::PercentOfCalls(5) };
    let positioned = made.position(&request).unwrap_or_else(|error| panic!("{error}"));
    let [work] = &positioned.functions[..] else { panic!("{:?}", positioned.functions) };
    assert_eq!((work.hot_blocks, work.cold_blocks, work.chains), (4, 2, 1));
    let stays: Vec<_> = positioned.stays.iter().map(|stays| (stays.name.as_str(), &stays.why)).collect();
    assert_eq!(stays, [("fail", &Why::Cold)]);
    // The likely way is no branch: test %edi,%edi; jne to the cold part; the static key.
    assert!(holds(positioned.module.file(), &[0x85, 0xff, 0x0f, 0x85]));
    // What the picture is made of: each hot block once, within the hot code.
    assert_eq!(positioned.hot_code.len(), 4);
    let from = positioned.hot_code.iter().map(|moved| moved.original.start.get() - small.function("work"));
    let mut from: Vec<u64> = from.collect();
    from.sort_unstable();
    assert_eq!(from, [0, 12, 14, 25]);
    let report = positioned.report(0);
    let bytes = positioned.hot_code.iter().map(|moved| moved.len).sum::<u64>();
    assert_eq!(report.bytes(), (bytes, work.cold_bytes));
    assert!(bytes <= positioned.hot_bytes && work.cold_bytes > 0);
    let cold = positioned.cold_code.iter().map(|moved| moved.len).sum::<u64>();
    assert_eq!((positioned.cold_code.len(), cold), (work.cold_blocks, work.cold_bytes));
    let cache = report.cache.expect("there are counts");
    assert_eq!((cache.before.lines(), cache.after.lines()), (1, 1));
    // In the same line of the cache wherever that is: 7 lines on, 7 sets on.
    let set = |at: u64| positioned.report(at).cache.expect("counts").after.sets.iter().position(|n| *n == 1);
    assert_eq!((set(0), set(7 * 64)), (Some(0), Some(7)));
    assert_eq!(made.position(&request).expect("proved").module, positioned.module);
    // One more than 5 percent, and the callee is hot.
    let hot = [(0, 1000), (9, 51), (12, 1000), (14, 1000), (25, 949), (0x40, 51), (0x80, 51)];
    request.order = Order::Counted { counts: counts(&small, &hot), hot: Hot::PercentOfCalls(5) };
    let positioned = made.position(&request).unwrap_or_else(|error| panic!("{error}"));
    let blocks: Vec<_> = positioned.functions.iter().map(|f| (f.hot_blocks, f.cold_blocks)).collect();
    assert_eq!(blocks, [(6, 0), (1, 0)]);
}

#[test]
fn a_root_that_was_never_called_is_refused() {
    let small = SmallKernel::new();
    let kernel = kernel(&small);
    let made = Made::of(&kernel);
    let mut request = made.request(&["work"], &[]);
    request.order = Order::Counted { counts: counts(&small, &[(12, 7)]), hot: Hot::PercentOfCalls(5) };
    let error = made.position(&request).expect_err("refused").to_string();
    assert!(error.contains("work_alias was never called"), "{error}");
}

#[test]
fn of_the_hottest_functions_those_are_led_to_that_others_call() {
    let small = SmallKernel::new();
    let kernel = kernel(&small);
    let names = |ids: &[FunctionId]| -> Vec<String> {
        ids.iter().map(|id| kernel.functions.get(*id).name.clone()).collect()
    };
    let [work, warns] = ["work", "warns"].map(|name| small.function(name));
    // From nowhere that is known, and by a static call, which leads to the original.
    let text = format!("{work:x} 5000\n{warns:x} {:x}\n{warns:x} {:x}\n", work + 19, work + 19);
    let hottest = Hottest::of(&kernel, &Called::parse(&text), 999);
    assert_eq!(names(&hottest.roots), ["__work_alias", "warns"]);
    assert_eq!(names(&hottest.callees), ["fail"], "the tracer cannot see it");
    assert_eq!(names(&Hottest::of(&kernel, &Called::parse(&text), 600).roots), ["warns"]);
    // By counts: `fail` is called as often as the cold part of `work` is executed.
    let counted =
        |blocks: &[(u64, u64)], how_many| Hottest::counted(&kernel, &counts(&small, blocks), how_many);
    let all = HowMany::PerTenThousand(10_000);
    let hottest = counted(&[(0, 1000), (12, 1000), (0x40, 7), (0x80, 7)], all);
    assert_eq!(
        (names(&hottest.roots), names(&hottest.callees)),
        (vec!["__work_alias".into()], vec!["fail".into()])
    );
    let hottest = counted(&[(0, 1000), (12, 1000), (0x40, 7), (0x80, 7)], HowMany::Functions(1));
    assert_eq!((hottest.roots.len(), hottest.callees.len()), (1, 0));
    let waits = small.function("waits") - work;
    assert_eq!(counted(&[(waits, 1000)], all), Hottest::default(), "it cannot be moved");
    let blocks = [(0, 1000), (9, 1), (12, 999), (14, 999), (25, 999)];
    assert_eq!(hot_above(&kernel, &[kernel.find("work").expect("there")], &counts(&small, &blocks)), 998);
}

/// The kernel with other code in place of `reads_user`'s.
fn with_code(code: &[u8]) -> SmallKernel {
    let mut small = SmallKernel::new();
    // `reads_user` is known to fault at its start, with 4 as where that goes on.
    let old =
        small.symbols.replace("__start___ex_table", "x").replace("__stop___ex_table", "__start___ex_table");
    small.symbols = format!("{old}{:016x} D __stop___ex_table\n", stop(&old));
    small.put(small.function("reads_user"), &[0xcc; 16]);
    small.put(small.function("reads_user"), code);
    small
}

/// Where the table of faults ends: it is empty, and begins there.
fn stop(symbols: &str) -> u64 {
    let line = symbols.lines().find(|line| line.ends_with(" __start___ex_table")).expect("a symbol");
    u64::from_str_radix(line.split(' ').next().expect("an address"), 16).expect("an address")
}

/// The code of the copy of `reads_user` in a module file.
fn holds(file: &[u8], code: &[u8]) -> bool {
    file.windows(code.len()).any(|window| window == code)
}

#[test]
fn odd_code_is_copied_as_what_it_means() {
    // What the kernel has, and what is in the copy.
    let cases: [(&str, &[u8], &[u8]); 5] = [
        // ds orb $1,(%rdi): its lock was taken out.
        ("lock", &[0x3e, 0x80, 0x0f, 0x01, 0xc3], &[0xf0, 0x80, 0x0f, 0x01]),
        // call *%rax, too short for a thunk: by way of it in the copy.
        ("plain call", &[0xff, 0xd0, 0x48, 0x89, 0xc7, 0xc3], &[0xe8, 0, 0, 0, 0, 0x48, 0x89, 0xc7]),
        // ret $8; iretq
        ("arguments", &[0x31, 0xc0, 0xc2, 8, 0], &[0x31, 0xc0, 0xc2, 8, 0]),
        ("interrupt", &[0x31, 0xc0, 0x48, 0xcf], &[0x31, 0xc0, 0x48, 0xcf]),
        // test %edi,%edi; je to a jump to itself; ret: that one is not copied.
        ("circle", &[0x85, 0xff, 0x74, 0x01, 0xc3, 0xeb, 0xfe], &[0x85, 0xff, 0x0f, 0x84]),
    ];
    for (what, code, copy) in cases {
        let small = with_code(code);
        let kernel = kernel(&small);
        let made = Made::of(&kernel);
        let positioned = made.proved(&["reads_user"], &[]);
        assert!(holds(positioned.module.file(), copy), "{what}");
    }
}

#[test]
fn callees_are_counted_after_those_that_have_called_them() {
    let small = SmallKernel::new();
    let kernel = kernel(&small);
    let id = |name: &str| kernel.find(name).expect("there");
    let (work, fail, warns) = (id("work"), id("fail"), id("warns"));
    let executed = |blocks: &[&str]| -> Counts {
        blocks.iter().map(|name| (Svma::new(small.function(name)), 10)).collect()
    };
    // `fail` is called in the part of `work` that was not executed.
    let mut search = Search::new(&kernel, &[work]);
    assert_eq!((search.level(), search.depth()), (&[work][..], 0));
    search.counted(&executed(&["work"]));
    assert_eq!(search.level(), []);
    // What was seen called through a pointer is counted, once.
    search.seen([warns, work, warns]);
    assert_eq!(search.level(), [warns]);
    search.counted(&Counts::default());
    assert_eq!(search.finish(), (vec![work, warns], executed(&["work"])));
    let mut search = Search::new(&kernel, &[work]);
    search.counted(&executed(&["work", "work.cold"]));
    assert_eq!((search.level(), search.depth()), (&[fail][..], 1));
    search.counted(&executed(&["fail"]));
    assert_eq!(search.level(), [], "what is known is not counted again");
    assert_eq!(search.finish(), (vec![work, fail], executed(&["work", "work.cold", "fail"])));
}

/// Calls of these functions that are hot, as caller, offset of the site, callee and count.
fn indirect(kernel: &Kernel, names: &[&str], seen: &str, counts: &Counts, threshold: u64) -> Vec<String> {
    let ids = names.iter().map(|name| kernel.find(name).expect("there"));
    let name = |id: FunctionId| kernel.functions.get(id).name.as_str();
    let said = |call: &IndirectCall| {
        let to = match call.callee {
            IndirectCallee::Function(id) => name(id),
            IndirectCallee::InModule => "module",
            IndirectCallee::Unseen => "unseen",
        };
        let offset = call.site.get() - kernel.functions.get(call.caller).start().get();
        format!("{}+{offset} {:?} {to} {}", name(call.caller), call.through, call.count)
    };
    let calls = IndirectCalls::new(kernel, &Called::parse(seen)).of(ids, counts, threshold);
    calls.iter().map(said).collect()
}

#[test]
fn calls_through_pointers_are_parted_as_their_targets_were_seen() {
    let small = SmallKernel::new();
    let kernel = kernel(&small);
    let at = |name: &str| small.function(name);
    let counts: Counts = [("calls_by_register", 1000), ("work", 0)]
        .map(|(name, count)| (Svma::new(at(name)), count))
        .into_iter()
        .collect();
    let names = ["work", "calls_by_register"];
    // lfence; call *%rax, as one site; here
    let behind = at("calls_by_register") + 5;
    let seen = |calls: &[(u64, usize)]| -> String {
        calls.iter().map(|(to, times)| format!("{to:x} {behind:x}\n").repeat(*times)).collect()
    };
    let some = seen(&[(at("warns"), 30), (at("work"), 9), (1, 1)]);
    let found = indirect(&kernel, &names, &some, &counts, 0);
    assert_eq!(found.len(), 3, "{found:?}");
    let holds = |words: &str| found.iter().any(|found| found == words);
    assert!(holds("calls_by_register+0 Pointer warns 750"), "{found:?}");
    assert!(holds("calls_by_register+0 Pointer __work_alias 225"), "{found:?}");
    assert!(holds("calls_by_register+0 Pointer module 25"), "{found:?}");
    // Those that are called more often than that; what returns elsewhere is another's.
    let often = indirect(&kernel, &names, &some, &counts, 225);
    assert_eq!(often, ["calls_by_register+0 Pointer warns 750"]);
    let elsewhere = format!("{:x} {:x}\n", at("warns"), behind + 1);
    let unseen = indirect(&kernel, &names, &elsewhere, &counts, 50);
    assert_eq!(unseen, ["calls_by_register+0 Pointer unseen 1000"]);
    assert!(indirect(&kernel, &names, &some, &Counts::default(), 0).is_empty(), "nothing was executed");
    // Where no thunks are used, the call has filler behind it: call *%rax; nopl (%rax); ret.
    let small = with_code(&[0xff, 0xd0, 0x0f, 0x1f, 0x00, 0xc3]);
    let reads = small.function("reads_user");
    let kernel = self::kernel(&small);
    let counts: Counts = [(Svma::new(reads), 10)].into_iter().collect();
    let seen = format!("{:x} {:x}\n", small.function("warns"), reads + 2);
    assert_eq!(indirect(&kernel, &["reads_user"], &seen, &counts, 0), ["reads_user+0 Pointer warns 10"]);
}

#[test]
fn static_calls_are_of_what_stands_in_the_code() {
    let small = SmallKernel::new();
    let kernel = kernel(&small);
    // The block behind the static key's branch holds the static call.
    let blocks = counts(&small, &[(0, 10), (14, 8)]);
    assert_eq!(indirect(&kernel, &["work"], "", &blocks, 7), ["__work_alias+14 StaticCall warns 8"]);
    assert!(indirect(&kernel, &["work"], "", &blocks, 8).is_empty());
}

#[test]
fn what_a_jump_through_a_pointer_leads_to_was_called_where_its_function_was() {
    // jmp *%rax by way of the thunk; and `work` calls it from its part that stands apart, in place of `fail`.
    let mut small = with_code(&[0x90; 16]);
    let (jumps, cold) = (small.function("reads_user"), small.function("work.cold"));
    let near = |opcode: u8, at: u64, to: u64| -> Vec<u8> {
        [&[opcode][..], &(to.wrapping_sub(at + 5) as u32).to_le_bytes()].concat()
    };
    let thunk = small.place(15);
    small.put(jumps, &near(0xe9, jumps, thunk));
    small.put(cold, &near(0xe8, cold, jumps));
    let kernel = kernel(&small);
    let counts: Counts = [(Svma::new(jumps), 100)].into_iter().collect();
    let warns = small.function("warns");
    let seen = format!("{jumps:x} {:x}\n{warns:x} {:x}\n", cold + 5, cold + 5);
    assert_eq!(indirect(&kernel, &["reads_user"], &seen, &counts, 5), ["reads_user+0 Pointer warns 100"]);
    // The tracer has no place in it: then nobody knows where it was called.
    let seen = format!("{warns:x} {:x}\n", cold + 5);
    assert_eq!(indirect(&kernel, &["reads_user"], &seen, &counts, 5), ["reads_user+0 Pointer unseen 100"]);
}

#[test]
fn calls_through_pointers_are_led_to_copies_of_callees() {
    let small = SmallKernel::new();
    let kernel = kernel(&small);
    let made = Made::of(&kernel);
    let mut request = made.request(&["calls_by_register"], &["warns", "reads_user"]);
    let (caller, site) = (request.roots[0], Svma::new(small.function("calls_by_register")));
    let call = |name: &str, count: u64| IndirectCall {
        caller,
        site,
        through: Through::Pointer,
        callee: IndirectCallee::Function(made.ids(&[name])[0]),
        count,
    };
    let led = |request: &Request| -> Vec<(String, bool, bool)> {
        let positioned = made.position(request).unwrap_or_else(|error| panic!("{error}"));
        let functions = positioned.functions.iter();
        functions.map(|copied| (copied.name.clone(), copied.is_root, copied.is_led)).collect()
    };
    let root = ("calls_by_register".to_owned(), true, true);
    assert_eq!(led(&request), std::slice::from_ref(&root), "no call leads to the others");
    request.indirect = vec![call("warns", 7), call("reads_user", 5), call("fail", 3)];
    let both = [("reads_user".to_owned(), false, true), ("warns".to_owned(), false, true)];
    assert_eq!(led(&request), [std::slice::from_ref(&root), &both].concat());
    let positioned = made.position(&request).expect("proved");
    assert_eq!(positioned.module.report().redirected, 3);
    let calls = &positioned.report(0).indirect_calls;
    let goes: Vec<_> = calls.iter().map(|call| (call.callee.as_deref(), call.goes, call.offset)).collect();
    let (copy, original) = (GroupCallGoes::Copy, GroupCallGoes::Original);
    let expected = [(Some("warns"), copy), (Some("reads_user"), copy), (Some("fail"), original)];
    assert_eq!(goes, expected.map(|(name, goes)| (name, goes, Some(0))));
    // Where calls are really led, it takes a place of the tracer.
    request.needs_trace_sites = true;
    request.roots = made.ids(&["work"]);
    let functions = led(&request);
    assert!(functions.contains(&("warns".to_owned(), false, true)), "{functions:?}");
    assert!(!functions.iter().any(|(name, ..)| name == "reads_user"), "{functions:?}");
}

/// Walks through functions at random: what the counters would say gives the counts of all blocks and ways.
#[test]
fn all_counts_follow_from_the_counters() {
    let small = SmallKernel::new();
    let kernel = kernel(&small);
    let made = Made::of(&kernel);
    for name in ["work", "reads_user", "warns", "calls_by_register", "fail"] {
        let mut request = made.request(&[name], &["fail"][usize::from(name == "fail")..]);
        request.counts = true;
        for order in [Order::Kept, Order::Reversed] {
            request.order = order;
            let positioned = made.position(&request).unwrap_or_else(|error| panic!("{name}: {error}"));
            let counting = positioned.counting.as_ref().expect("counters");
            assert_eq!(positioned.module.report().counters, counting.counters() as u64, "{name}");
            assert!(counting.counters() > 0 && counting.undetermined() == 0, "{name}");
            for seed in 1..40 {
                walks::are_counted(&kernel, &request.roots, counting, seed);
            }
        }
    }
}

#[test]
fn live_flags_are_kept_and_dead_ones_are_not() {
    const COUNTS: [u8; 4] = [0x65, 0x48, 0xff, 0x05];
    // What the kernel has, and how many of its counters keep the flags.
    let cases: [(&str, &[u8], usize); 3] = [
        // xor %eax,%eax; ret
        ("dead", &[0x31, 0xc0, 0xc3], 0),
        // test %edi,%edi; 2: je 8; mov %eax,%eax; mov %ecx,%ecx; 8: ret; the flags are dead in each block.
        ("branch", &[0x85, 0xff, 0x74, 0x04, 0x89, 0xc0, 0x89, 0xc9, 0xc3], 0),
        // mov %edi,%eax; test %edi,%edi; jmp 6: 6: je 6; ret: one block of a loop has a live flag only.
        ("live", &[0x85, 0xff, 0xeb, 0x00, 0x89, 0xf8, 0x74, 0xfc, 0xc3], 1),
    ];
    for (what, code, kept) in cases {
        let small = with_code(code);
        let kernel = kernel(&small);
        let made = Made::of(&kernel);
        let mut request = made.request(&["reads_user"], &[]);
        request.counts = true;
        let positioned = made.position(&request).unwrap_or_else(|error| panic!("{what}: {error}"));
        let file = positioned.module.file();
        let places = file.windows(5).filter(|window| window[..4] == COUNTS || window[1..] == COUNTS);
        let keeping = places.filter(|window| window[0] == 0x9c).count();
        assert_eq!(keeping, kept, "{what}");
    }
}

#[test]
fn counts_are_written_as_they_are_read() {
    let small = SmallKernel::new();
    let kernel = kernel(&small);
    let made = Made::of(&kernel);
    let mut request = made.request(&["work"], &[]);
    request.counts = true;
    let counting = made.position(&request).expect("proved").counting.expect("counters");
    let values: Vec<u64> = (0..counting.counters() as u64).map(|number| 10 + number).collect();
    let counts = counting.counts(&values);
    let read = Counts::parse(&counts_text(&counts)).expect("lines of counts");
    assert!(counts[0].blocks.iter().all(|block| read.at(block.range.start) == block.count));
    assert!(counts[0].blocks.iter().any(|block| block.count > 0));
}

/// A kernel in which `calls_by_register` calls `undecodable` twice, and that has this in front of its
/// branch, and in the end returns, or hands over to `runs_on`.
fn calling(first: &[u8], hands_over: bool) -> SmallKernel {
    let mut small = SmallKernel::new();
    let (caller, callee) = (small.function("calls_by_register"), small.function("undecodable"));
    let call = |at: u64| [&[0xe8][..], &(callee.wrapping_sub(at + 5) as u32).to_le_bytes()].concat();
    // call; mov %eax,%esi; call; ret
    small.put(caller, &[&call(caller)[..], &[0x89, 0xc6], &call(caller + 7), &[0xc3]].concat());
    // test %edi,%edi; je; inc %eax; ret
    let code = [first, &[0x85, 0xff, 0x74, 0x02, 0xff, 0xc0]].concat();
    let (end, other) = (callee + code.len() as u64, small.function("runs_on"));
    let jump = [&[0xe9][..], &(other.wrapping_sub(end + 5) as u32).to_le_bytes()].concat();
    small.put(callee, &[&code[..], if hands_over { &jump } else { &[0xc3] }].concat());
    small
}

/// A group of both, by counts: the callee, which has so many bytes in front of its branch, branches in half
/// of the cases.
fn called(small: &SmallKernel, first: u64, inlines: bool) -> Positioned {
    let kernel = kernel(small);
    let made = Made::of(&kernel);
    let (caller, callee) = (small.function("calls_by_register"), small.function("undecodable") + first);
    let executed =
        [(caller, 1000), (callee - first, 2000), (callee, 2000), (callee + 4, 1000), (callee + 6, 2000)];
    let counts = executed.map(|(at, count)| (Svma::new(at), count)).into_iter().collect();
    let mut request = made.request(&["calls_by_register"], &["undecodable"]);
    request.order = Order::Counted { counts, hot: Hot::PercentOfCalls(5) };
    request.inlines = inlines;
    made.position(&request).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn short_callees_stand_in_place_of_hot_calls() {
    let small = calling(&[], false);
    let of = |positioned: &Positioned| {
        let functions = positioned.functions.iter();
        let functions = functions.map(|f| (f.name.clone(), f.hot_blocks, f.cold_blocks, f.inlined));
        functions.collect::<Vec<_>>()
    };
    let [by_call, inlined] = [false, true].map(|inlines| called(&small, 0, inlines));
    let [caller, callee] = ["calls_by_register", "undecodable"].map(str::to_owned);
    assert_eq!(of(&by_call), [(caller.clone(), 1, 0, 0), (callee.clone(), 3, 0, 0)]);
    // The caller is parted twice, and has the callee's three blocks twice; of that nothing else is left.
    assert_eq!(of(&inlined), [(caller, 9, 0, 0), (callee, 0, 0, 2)]);
    // A call takes two instructions, with its return.
    let instructions = |positioned: &Positioned| positioned.module.report().instructions;
    assert_eq!(instructions(&inlined), 2 * (instructions(&by_call) - 4 - 1) + 2);
    // The blocks of the callee are those of the original, for the picture.
    let callee = small.function("undecodable");
    let places = inlined.hot_code.iter().map(|moved| moved.original.start.get());
    assert_eq!(places.filter(|at| (callee..callee + 7).contains(at)).count(), 6);
    assert_eq!(called(&small, 0, true).module, inlined.module, "the same bytes");
}

#[test]
fn callees_that_know_their_caller_are_called() {
    // mov (%rsp),%rax
    let positioned = called(&calling(&[0x48, 0x8b, 0x04, 0x24], false), 4, true);
    assert_eq!(positioned.functions.iter().map(|f| f.inlined).collect::<Vec<_>>(), [0, 0]);
    assert_eq!(positioned.stays, []);
}

#[test]
fn callees_that_hand_over_to_others_stand_there_too() {
    let positioned = called(&calling(&[], true), 0, true);
    let functions = positioned.functions.iter().map(|f| (f.hot_blocks, f.inlined));
    assert_eq!(functions.collect::<Vec<_>>(), [(9, 0), (0, 2)]);
    let file = positioned.module.file();
    // inc %eax; call
    assert!(holds(file, &[0xff, 0xc0, 0xe8]));
}

/// A call that is the last instruction of a block: what follows is another one, and stays that.
#[test]
fn what_follows_a_call_may_be_a_block_already() {
    let mut small = calling(&[], false);
    let (caller, callee) = (small.function("calls_by_register"), small.function("undecodable"));
    // test %edi,%edi; je to the return; call; ret
    let call = [&[0xe8][..], &(callee.wrapping_sub(caller + 9) as u32).to_le_bytes()].concat();
    small.put(caller, &[&[0x85, 0xff, 0x74, 0x05], &call[..], &[0xc3], &[0xcc; 5]].concat());
    let kernel = kernel(&small);
    let made = Made::of(&kernel);
    let executed = [caller, caller + 4, caller + 9, callee, callee + 4, callee + 6];
    let counts = executed.map(|at| (Svma::new(at), 1000)).into_iter().collect();
    let mut request = made.request(&["calls_by_register"], &["undecodable"]);
    request.order = Order::Counted { counts, hot: Hot::PercentOfCalls(5) };
    let positioned = made.position(&request).unwrap_or_else(|error| panic!("{error}"));
    // Three blocks of its own, and the callee's.
    let functions = positioned.functions.iter().map(|f| (f.hot_blocks, f.cold_blocks, f.inlined));
    assert_eq!(functions.collect::<Vec<_>>(), [(6, 0, 0), (0, 0, 1)]);
}
