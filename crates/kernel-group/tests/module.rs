//! What is written, as the kernel's loader would load it.

mod loader;

use loader::{Loaded, load, pointer};
use restitch_address::Svma;
use restitch_kernel_group::{
    Anchor, Block, Chunk, CounterMemory, Counters, End, Exception, Fixup, Function, Group, GroupError, Heat,
    KernelPlaces, ModuleFacts, Target, ThunkRegister, UnwindRow, Warning, write_module,
};
use restitch_x86::{Condition, Flow, Insn, first_insn, scan};
use std::collections::BTreeMap;

/// Of the kernel's text, as far below the modules as it is.
const TEXT: u64 = 0xffff_ffff_8100_0000;
const DATA: u64 = 0xffff_ffff_8280_0000;
const PRINT: u64 = TEXT + 0x12340;

fn at(offset: u64) -> Svma {
    Svma::new(TEXT + offset)
}

fn block(offset: u64, code: &[u8], end: End) -> Block {
    Block {
        address: at(offset),
        code: code.to_vec(),
        fixups: Vec::new(),
        end,
        unwind: vec![UnwindRow { offset: 0, row: [8, 0, 0, 0, 5, 2] }],
        exceptions: Vec::new(),
        warnings: Vec::new(),
    }
}

fn register(name: &str) -> ThunkRegister {
    ThunkRegister::named(name).unwrap()
}

fn facts() -> ModuleFacts {
    ModuleFacts {
        vermagic: "6.1.0 SMP preempt mod_unload modversions ".into(),
        name: "restitch_kernel".into(),
        structure_len: 0x380,
        structure_align: 64,
        name_at: 24,
        init_at: 0x138,
        exit_at: 0x350,
        traces_are_calls: true,
        lists_calls: true,
        has_retpolines: true,
        versions: [
            ("module_layout", 1),
            ("restitch_kernel_register", 2),
            ("restitch_kernel_unregister", 3),
            ("_printk", 4),
        ]
        .map(|(name, sum)| (name.to_owned(), sum))
        .into(),
    }
}

/// `root` with a call of `leaf`; most kinds of ends and fix-ups.
fn group() -> Group {
    const CALL: [u8; 5] = [0xe8, 1, 2, 3, 4];
    const NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];
    let mut entry = block(
        0x1000,
        &[&NOP[..], &CALL, &[0x48, 0x8b, 0x05, 9, 9, 9, 9], &[0x85, 0xc0]].concat(),
        End::Conditional { condition: Condition::Equal, taken: at(0x1040), next: at(0x1020) },
    );
    entry.fixups = vec![
        Fixup::Trace { at: 0 },
        Fixup::Call { at: 5, target: at(0x2000) },
        Fixup::Relative { field: 13, end: 17, target: Target::Data(Svma::new(DATA + 8)) },
    ];
    entry.exceptions = vec![Exception { offset: 10, fixup: at(0x1040), data: 3 }];
    entry.unwind.push(UnwindRow { offset: 5, row: [16, 0, 0, 0, 5, 2] });
    let mut hot = block(
        0x1020,
        &[&[0xff, 0xd0, 0x0f, 0x1f, 0x00][..], &[0x41, 0xff, 0xd0, 0x0f, 0x1f, 0x00], &CALL, &CALL].concat(),
        End::StaticKey {
            key: Svma::new(DATA + 0x100),
            taken: at(0x1040),
            next: at(0x1030),
            is_inverted: false,
            is_initially_on: false,
        },
    );
    hot.fixups = vec![
        Fixup::IndirectCall { at: 0, register: register("rax") },
        Fixup::IndirectCall { at: 5, register: register("r8") },
        Fixup::StaticCall { at: 11, key: Svma::new(DATA + 0x200), target: at(0x5000) },
        Fixup::Call { at: 16, target: at(0x3000) },
    ];
    let tail = block(0x1030, &[0x90], End::Return);
    let mut cold = block(0x1040, &[0x48, 0x8d, 0x3d, 5, 5, 5, 5, 0x0f, 0x0b], End::Jump(at(0x1020)));
    cold.fixups = vec![Fixup::Relative { field: 3, end: 7, target: Target::Warning(at(0x1047)) }];
    cold.warnings = vec![Warning {
        offset: 7,
        entry: vec![7, 7, 7, 7, 8, 8, 8, 8, 0x2a, 0, 1, 9],
        pointers: vec![(4, Svma::new(DATA + 0x300))],
    }];
    let leaf = block(0x2000, &[0x90, 0x90], End::IndirectJump(register("rdx")));
    let function = |name: &str, offset, is_redirected| Function {
        name: name.into(),
        address: at(offset),
        is_redirected,
    };
    let chunk = |function, heat, blocks| Chunk { function, heat, align: 16, blocks };
    Group {
        name: "group_a".into(),
        functions: vec![function("root", 0x1000, true), function("leaf", 0x2000, false)],
        chunks: vec![
            chunk(0, Heat::Cold, vec![cold]),
            chunk(0, Heat::Hot, vec![entry, hot, tail]),
            chunk(1, Heat::Hot, vec![leaf]),
        ],
        kernel: KernelPlaces {
            trace: Some(at(0x9000)),
            return_thunk: Some(at(0x9100)),
            thunks: ThunkRegister::all().zip(0..).map(|(r, i)| (r, at(0x9200 + 32 * i))).collect(),
        },
        anchors: vec![Anchor { symbol: "_printk".into(), address: Svma::new(PRINT) }],
        counters: None,
    }
}

fn exported(print: u64) -> BTreeMap<&'static str, u64> {
    let control = loader::BASE + 0x10_0000;
    [
        ("restitch_kernel_register", control),
        ("restitch_kernel_unregister", control + 0x40),
        ("_printk", print),
    ]
    .into()
}

fn loaded(group: &Group) -> Loaded {
    load(&write_module(group, &facts()).unwrap().file, &exported(PRINT)).unwrap()
}

/// Instructions of a function of the module.
fn code(module: &Loaded, name: &str) -> Vec<Insn> {
    let (start, len) = module.symbols[name];
    let mut insns = Vec::new();
    scan(&module.at(start)[..len as usize], Svma::new(start), |insn| insns.push(insn)).unwrap();
    insns
}

fn flows(module: &Loaded, name: &str) -> Vec<Flow> {
    code(module, name).iter().map(|insn| insn.flow).filter(|flow| *flow != Flow::Next).collect()
}

#[test]
fn copies_lead_to_copies_and_else_to_the_kernel() {
    let module = loaded(&group());
    let place = |name: &str| Svma::new(module.symbols[name].0);
    let (root, leaf, cold) = (place("root.restitch"), place("leaf.restitch"), place("root.restitch.cold"));
    assert_eq!(
        flows(&module, "root.restitch"),
        [
            Flow::Call(at(0x9000)), // the tracer's
            Flow::Call(leaf),
            Flow::Conditional(Condition::Equal, cold),
            Flow::Call(at(0x9200)),
            Flow::Call(at(0x9200 + 32 * 7)),
            Flow::Call(at(0x5000)),
            Flow::Call(at(0x3000)),
            Flow::Jump(at(0x9100)), // the return
        ]
    );
    assert_eq!(flows(&module, "leaf.restitch"), [Flow::Jump(at(0x9200 + 32 * 2))]);
    let hot = root + 25;
    assert_eq!(flows(&module, "root.restitch.cold"), [Flow::Stop, Flow::Jump(hot)]);
    let names: Vec<_> = code(&module, "root.restitch").iter().filter_map(|insn| insn.names).collect();
    assert!(names.contains(&Svma::new(DATA + 8)), "{names:?}");
    assert_eq!((root.get() % 16, leaf.get() % 16), (0, 0));
}

#[test]
fn the_tables_are_of_the_copies() {
    let module = loaded(&group());
    let place = |name: &str| module.symbols[name].0;
    let (root, cold) = (place("root.restitch"), place("root.restitch.cold"));
    let listed =
        |name: &str| module.table(name, 4).into_iter().map(|entry| pointer(entry, 0)).collect::<Vec<_>>();
    assert_eq!(listed(".return_sites"), [root + 52]);
    assert_eq!(listed(".retpoline_sites"), [root + 25, root + 30, place("leaf.restitch") + 2]);
    // Not that of a copy, nor those which are rewritten.
    assert_eq!(listed(".call_sites"), [root + 41]);
    assert_eq!(
        module.table("__mcount_loc", 8),
        [(module.sections["__mcount_loc"].0, &root.to_le_bytes()[..])]
    );

    let exceptions = module.table("__ex_table", 12);
    assert_eq!((pointer(exceptions[0], 0), pointer(exceptions[0], 4)), (root + 10, cold));
    assert_eq!(exceptions[0].1[8..], [3, 0, 0, 0]);

    let warnings = module.table("__bug_table", 12);
    assert_eq!((pointer(warnings[0], 0), pointer(warnings[0], 4)), (cold + 7, DATA + 0x300));
    assert_eq!(warnings[0].1[8..], [0x2a, 0, 1, 9]);
    assert_eq!(code(&module, "root.restitch.cold")[0].names, Some(Svma::new(warnings[0].0)));

    let keys = module.table("__jump_table", 16);
    assert_eq!((pointer(keys[0], 0), pointer(keys[0], 4)), (root + 46, cold));
    let key = u64::from_le_bytes(*keys[0].1[8..].first_chunk().unwrap());
    assert_eq!((keys[0].0 + 8).wrapping_add(key), DATA + 0x100);

    let calls = module.table(".static_call_sites", 8);
    assert_eq!((pointer(calls[0], 0), pointer(calls[0], 4)), (root + 36, DATA + 0x200));
}

#[test]
fn a_static_key_begins_in_the_state_it_was_made_in() {
    for (inverted, on, jumps) in
        [(false, false, false), (true, false, true), (false, true, true), (true, true, false)]
    {
        let mut group = group();
        let end = &mut group.chunks[1].blocks[1].end;
        let End::StaticKey { is_inverted, is_initially_on, .. } = end else { panic!("{end:?}") };
        (*is_inverted, *is_initially_on) = (inverted, on);
        let module = loaded(&group);
        let site = pointer(module.table("__jump_table", 16)[0], 0);
        let insn = first_insn(module.at(site), Svma::new(site)).unwrap();
        assert_eq!(insn.len, 5);
        let cold = Svma::new(module.symbols["root.restitch.cold"].0);
        assert_eq!(insn.flow, if jumps { Flow::Jump(cold) } else { Flow::Next });
        let entry = module.table("__jump_table", 16)[0];
        assert_eq!(entry.1[8] & 1, u8::from(inverted));
    }
}

#[test]
fn the_unwinder_has_a_row_for_each_place() {
    let module = loaded(&group());
    let rows: Vec<(u64, &[u8])> = module
        .table(".orc_unwind_ip", 4)
        .into_iter()
        .zip(module.table(".orc_unwind", 6))
        .map(|(place, row)| (pointer(place, 0), row.1))
        .collect();
    assert!(rows.windows(2).all(|pair| pair[0].0 < pair[1].0), "{rows:x?}");
    let row = |at: u64| rows.iter().rev().find(|(from, _)| *from <= at).map(|(_, row)| i16::from(row[0]));
    let (root, len) = module.symbols["root.restitch"];
    let (called, _) = module.symbols["root.restitch.called"];
    assert_eq!((row(called), row(root), row(root + 5)), (Some(16), Some(8), Some(16)));
    assert_eq!((row(called - 1), row(root + len)), (Some(0), Some(0)));
    assert_eq!(called % 2, 0);
    let called = code(&module, "root.restitch.called");
    assert_eq!((called.len(), called[0].end()), (1, Svma::new(root)));
}

#[test]
fn the_row_of_an_end_that_is_left_out_is_left_out() {
    let mut group = group();
    // The next block stands right behind it, and begins with another row.
    group.chunks[1].blocks[2].end = End::Stop;
    group.chunks[1].blocks[2].unwind.push(UnwindRow { offset: 1, row: [24, 0, 0, 0, 5, 2] });
    group.chunks[1].blocks.swap(1, 2);
    let module = loaded(&group);
    let places: Vec<u64> =
        module.table(".orc_unwind_ip", 4).into_iter().map(|place| pointer(place, 0)).collect();
    assert!(places.windows(2).all(|pair| pair[0] < pair[1]), "{places:x?}");
}

#[test]
fn the_control_module_is_given_the_functions() {
    let module = loaded(&group());
    let (start, described) = &module.sections[".rodata"];
    let word = |at: usize| u64::from_le_bytes(*described[at..].first_chunk().unwrap());
    assert_eq!((word(0), &described[8..16]), (1 | 1 << 32, &b"group_a\0"[..]));
    assert_eq!(word(64), module.sections[".gnu.linkonce.this_module"].0);
    assert_eq!(word(72), start + 80);
    let (root, called) = (module.symbols["root.restitch"].0, module.symbols["root.restitch.called"].0);
    assert_eq!([word(80), word(88), word(96)], [TEXT + 0x1000, root, called]);
    let structure = &module.sections[".gnu.linkonce.this_module"].1;
    assert_eq!(&structure[24..32], b"group_a\0");
    let init = module.symbols["init_module"].0;
    assert_eq!(u64::from_le_bytes(*structure[0x138..].first_chunk().unwrap()), init);
    let insns = code(&module, "init_module");
    assert_eq!(insns[1].names, Some(Svma::new(*start)));
    assert_eq!(insns[2].flow, Flow::Jump(Svma::new(exported(0)["restitch_kernel_register"])));
}

#[test]
fn a_file_fits_one_place_of_the_kernel_only() {
    let file = write_module(&group(), &facts()).unwrap().file;
    assert!(load(&file, &exported(PRINT)).is_ok());
    for elsewhere in [PRINT + 1, PRINT - 1, PRINT + 0x20_0000, PRINT - 0x20_0000, PRINT + 0x3000_0000] {
        let said = load(&file, &exported(elsewhere)).unwrap_err();
        assert!(said.contains("overflow"), "{said}");
    }
}

#[test]
fn what_cannot_be_written_is_refused() {
    type Change = fn(&mut Group);
    let cases: [(&str, Change); 10] = [
        ("letters, digits", |group| group.name = "a b".into()),
        ("1 to 55", |group| group.name = "a".repeat(56)),
        ("twice", |group| group.chunks.push(group.chunks[0].clone())),
        ("binds", |group| group.anchors.clear()),
        ("checksum of other", |group| group.anchors[0].symbol = "other".into()),
        ("calls of 0 functions", |group| group.functions[0].is_redirected = false),
        ("entry of leaf", |group| {
            group.functions[1].is_redirected = true;
            group.chunks[2].heat = Heat::Cold;
        }),
        ("thunk of r8", |group| assert!(group.kernel.thunks.remove(&register("r8")).is_some())),
        ("no 5 bytes", |group| group.chunks[1].blocks[0].fixups.push(Fixup::Trace { at: 18 })),
        ("without a row", |group| group.chunks[1].blocks[1].unwind.clear()),
    ];
    for (said, change) in cases {
        let mut group = group();
        change(&mut group);
        let error = write_module(&group, &facts()).unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
        assert!(matches!(error, GroupError::Group { .. } | GroupError::Block { .. }));
    }
}

#[test]
fn the_facts_of_what_is_written_are_those_it_was_written_by() {
    let file = write_module(&group(), &facts()).unwrap().file;
    let read = ModuleFacts::read("group_a.ko", &file).unwrap();
    // A group does not call the tracer by its name, nor does it export anything.
    let own = ModuleFacts { name: "group_a".into(), traces_are_calls: false, ..facts() };
    assert_eq!(read, own);
    let cut = ModuleFacts::read("cut.ko", &file[..200]).unwrap_err().to_string();
    assert!(cut.contains("the module file cut.ko cannot be read"), "{cut}");
}

#[test]
fn another_order_is_the_same_code_with_other_jumps() {
    let first = write_module(&group(), &facts()).unwrap();
    assert_eq!(first, write_module(&group(), &facts()).unwrap());
    let mut other = group();
    other.chunks[1].blocks[1..].reverse();
    let module = loaded(&other);
    let root = Svma::new(module.symbols["root.restitch"].0);
    let jumps: Vec<Flow> = flows(&module, "root.restitch");
    // Over the tail to the next block, and from its end back.
    assert_eq!((jumps[3], jumps[jumps.len() - 1]), (Flow::Jump(root + 33), Flow::Jump(root + 27)));
    assert_eq!(pointer(module.table(".return_sites", 4)[0], 0), (root + 28).get());
}

/// The group with a counter in `leaf`, and one on the edge from the entry to the cold block, before which the
/// flags are kept.
fn counting(memory: CounterMemory) -> Group {
    let mut group = group();
    group.counters = Some(Counters { memory, number: 2 });
    let leaf = &mut group.chunks[2].blocks[0];
    leaf.code = [&[0; 8][..], &leaf.code].concat();
    leaf.fixups = vec![Fixup::Count { at: 0, number: 1, keeps_flags: false }];
    let mut edge = block(0, &[0; 10], End::Jump(at(0x1040)));
    edge.address = Block::on_edge(7);
    edge.fixups = vec![Fixup::Count { at: 0, number: 0, keeps_flags: true }];
    edge.unwind.extend([1, 10].map(|offset| UnwindRow {
        offset,
        row: if offset == 1 { UnwindRow::lowered(edge.unwind[0].row) } else { edge.unwind[0].row },
    }));
    let entry = &mut group.chunks[1].blocks[0];
    entry.end = End::Conditional { condition: Condition::Equal, taken: Block::on_edge(7), next: at(0x1020) };
    group.chunks[1].blocks.push(edge);
    group
}

#[test]
fn counters_are_counted_where_the_module_says() {
    for (memory, section, prefix) in
        [(CounterMemory::PerProcessor, ".data..percpu", 0x65), (CounterMemory::Shared, ".data", 0xf0)]
    {
        let written = write_module(&counting(memory), &facts()).unwrap();
        assert!(written.places.iter().all(|place| place.original.get() >= TEXT));
        let module = load(&written.file, &exported(PRINT)).unwrap();
        let (counters, bytes) = module.sections[section].clone();
        assert_eq!((bytes, counters % 64), (vec![0; 16], 0));
        let (said, head) = module.sections[".restitch.counters"].clone();
        assert_eq!(head[..16], [counters.to_le_bytes(), 2u64.to_le_bytes()].concat());
        let places = (4..head.len() / 4).map(|word| pointer((said, &head[..]), word * 4));
        let [edge, leaf] = places.collect::<Vec<_>>()[..] else { panic!("two places count") };
        let leads = |at: u64| first_insn(module.at(at), Svma::new(at)).and_then(|insn| insn.names);
        assert_eq!(leaf, module.symbols["leaf.restitch"].0);
        assert_eq!((module.at(leaf)[0], leads(leaf)), (prefix, Some(Svma::new(counters + 8))));
        assert_eq!((module.at(edge)[0], module.at(edge)[9]), (0x9c, 0x9d));
        assert_eq!((module.at(edge + 1)[0], leads(edge + 1)), (prefix, Some(Svma::new(counters))));
        let flows = flows(&module, "root.restitch");
        assert!(flows.contains(&Flow::Conditional(Condition::Equal, Svma::new(edge))), "{flows:?}");
    }
}

#[test]
fn counters_that_there_are_not_are_refused() {
    let refused = |change: fn(&mut Group)| {
        let mut group = counting(CounterMemory::Shared);
        change(&mut group);
        write_module(&group, &facts()).unwrap_err().to_string()
    };
    assert!(refused(|group| group.counters = None).contains("has no counter"));
    assert!(
        refused(|group| group.counters.iter_mut().for_each(|own| own.number = 1)).contains("no counter 1")
    );
    assert!(refused(|group| group.chunks[2].blocks[0].code.truncate(7)).contains("are no 8 bytes"));
    let gone = refused(|group| group.chunks[1].blocks.truncate(3));
    assert!(gone.contains("a block that is not there"), "{gone}");
}

#[test]
fn a_word_on_the_stack_moves_frames_that_are_found_from_its_pointer() {
    for (row, lowered) in [
        ([8, 0, 0, 0, 5, 2], [16, 0, 0, 0, 5, 2]),
        ([0xff, 0, 0xf0, 0xff, 0x45, 2], [7, 1, 0xf0, 0xff, 0x45, 2]),
        ([16, 0, 0xf0, 0xff, 0x44, 2], [16, 0, 0xf0, 0xff, 0x44, 2]),
        ([0, 0, 0, 0, 9, 2], [8, 0, 0, 0, 9, 2]),
        ([0; 6], [0; 6]),
    ] {
        assert_eq!(UnwindRow::lowered(row), lowered);
    }
}
