//! Modules that were written for a kernel in memory are proved; one with a fault is refused.

mod inlined;
mod synthetic;

use object::read::{Object as _, ObjectSection as _};
use restitch_address::Svma;
use restitch_kernel_check::{CheckError, CheckedModule, KernelFacts, ModuleForm, check};
use restitch_kernel_group::{
    Block, Condition, CounterMemory, End, Exception, Fixup, Group, ModuleFacts, Target, UnwindRow,
    write_module,
};
use std::collections::BTreeSet;
use synthetic::{
    DATA, KEY, LIVE, Live, Returns, Synthetic, TEXT, Through, asked, at, counting, data, facts, file, group,
    module_facts, register,
};

fn checked(group: &Group, kernel: &Synthetic) -> Result<CheckedModule, CheckError> {
    check(file(group), kernel, &facts(), &asked())
}

#[test]
fn what_is_written_is_proved_in_each_form_that_the_kernel_may_have() {
    for through in [Through::Plain, Through::Barrier, Through::Thunk, Through::Made] {
        for returns in [Returns::Plain, Returns::Thunk, Returns::OtherThunk] {
            for (key, no_call) in [(false, false), (true, true)] {
                let live = Live { through, returns, key, no_call };
                let checked = checked(&group(), &Synthetic::of(&group(), live));
                let checked = checked.unwrap_or_else(|error| panic!("{live:?}: {:#?}", error.findings));
                let report = checked.report();
                assert_eq!((report.group.as_str(), report.redirected), ("group_a", 1));
                assert_eq!(report.instructions, 19);
            }
        }
    }
}

/// Modules of groups that are not what the kernel has.
#[test]
fn a_module_of_another_group_is_refused() {
    type Change = fn(&mut Group);
    let cases: [(&str, Change); 38] = [
        ("leads to", |g| call(g, at(0x4000))),
        ("leads to", |g| call(g, at(0x3000))),
        ("leads to", |g| operand(g, 0, Target::Data(data(16)))),
        ("leads to", |g| operand(g, 0, Target::Code(at(0x2000)))),
        ("another condition", |g| condition(g, Condition::Below)),
        ("does not do what", |g| condition(g, Condition::NotEqual)),
        ("not the original's", |g| entry(g).code[22] = 0x87),
        ("not the original's", |g| leaf(g).code[2] = 0xf9),
        ("not do what", |g| leaf(g).end = End::Return),
        ("not do what", |g| leaf(g).end = End::IndirectJump(register("rcx"))),
        ("leads to", |g| leaf(g).end = End::Jump(at(0x3000))),
        ("does not do what", |g| entry(g).end = End::Next(at(0x101e))),
        ("__ex_table says", |g| entry(g).exceptions.clear()),
        ("__ex_table says", |g| entry(g).exceptions[0].data = 4),
        ("is a copy of", |g| entry(g).exceptions[0].fixup = at(0x101e)),
        ("__ex_table says", |g| {
            entry(g).exceptions.push(Exception { offset: 22, fixup: at(0x1080), data: 3 })
        }),
        ("two entries", |g| {
            let twice = entry(g).exceptions[0];
            entry(g).exceptions.push(twice);
        }),
        ("__bug_table says", |g| cold(g).warnings[0].entry[8] = 0x2b),
        ("__bug_table says", |g| cold(g).warnings[0].entry[10] = 3),
        ("__bug_table says", |g| cold(g).warnings[0].pointers[0].1 = data(0x301)),
        (".orc_unwind has another row", |g| cold(g).unwind[0].row[0] = 24),
        (".orc_unwind has another row", |g| entry(g).unwind[1].row[4] = 1),
        (".orc_unwind has another row", |g| {
            hot(g).unwind.push(UnwindRow { offset: 5, row: [24, 0, 0, 0, 5, 2] })
        }),
        (".orc_unwind has a row of no place", |g| {
            cold(g).unwind.push(UnwindRow { offset: 9, row: [24, 0, 0, 0, 5, 2] })
        }),
        ("__jump_table names", |g| key(g, |key, _, _| *key = data(KEY_B))),
        ("__jump_table names", |g| key(g, |_, inverted, on| (*inverted, *on) = (true, false))),
        ("in its first state", |g| key(g, |_, _, on| *on = true)),
        ("does not do what", |g| hot(g).end = End::Next(at(0x1038))),
        ("does not do what", |g| hot(g).end = End::Jump(at(0x1080))),
        (".static_call_sites names", |g| static_call(g, data(0x208), at(0x5000))),
        ("begins as one of another key", |g| static_call(g, data(0x200), at(0x3000))),
        ("does not do what", |g| hot(g).fixups[2] = Fixup::Call { at: 11, target: at(0x4000) }),
        ("does not do what", |g| hot(g).fixups[0] = indirect(0, "rbx")),
        ("does not do what", |g| {
            entry(g).fixups.remove(0);
        }),
        ("plain return", |g| g.kernel.return_thunk = None),
        ("leads to no thunk", |g| {
            g.kernel.thunks.insert(register("rax"), at(0x4000));
        }),
        ("not bound", |g| g.anchors[0].address = at(0xa010)),
        ("a symbol that it names", |g| g.anchors[0].symbol = "module_layout".into()),
    ];
    let kernel = Synthetic::of(&group(), LIVE);
    let cases = cases.into_iter().enumerate().filter_map(|(number, (said, change))| {
        let mut changed = group();
        change(&mut changed);
        unexpected(number, said, check(file(&changed), &kernel, &facts(), &asked()))
    });
    let unexpected: Vec<String> = cases.collect();
    assert!(unexpected.is_empty(), "{}", unexpected.join("\n"));
}

const KEY_B: u64 = 0x110;

/// What a good module is checked against.
struct Against {
    kernel: Synthetic,
    facts: KernelFacts,
    asked: BTreeSet<Svma>,
    file: Vec<u8>,
}

impl Against {
    fn new() -> Self {
        let kernel = Synthetic::of(&group(), LIVE);
        Self { kernel, facts: facts(), asked: asked(), file: file(&group()) }
    }

    /// Bytes of the section's header in the file.
    fn header(&mut self, name: &str) -> &mut [u8] {
        let object = object::File::parse(&*self.file).unwrap();
        let index = object.section_by_name(name).unwrap().index().0;
        let table = u64::from_le_bytes(*self.file[40..].first_chunk().unwrap()) as usize;
        &mut self.file[table + 64 * index..][..64]
    }
}

/// Such a branch is copied as it stands.
#[test]
fn a_key_that_cannot_be_switched_any_more_is_no_key() {
    for is_jump in [false, true] {
        let mut kernel = Synthetic::of(&group(), Live { key: is_jump, ..LIVE });
        kernel.name(DATA + KEY, "__start_ro_after_init");
        kernel.name(DATA + KEY + 16, "__end_ro_after_init");
        let plain = |is_taken: bool| {
            let mut group = group();
            let End::StaticKey { taken, next, .. } = hot(&mut group).end else { panic!() };
            hot(&mut group).end = if is_taken { End::Jump(taken) } else { End::Next(next) };
            checked(&group, &kernel)
        };
        let proved = plain(is_jump);
        assert!(proved.is_ok(), "{is_jump}: {:#?}", proved.err().map(|error| error.findings));
        assert!(plain(!is_jump).is_err(), "the other way of it");
    }
}

#[test]
fn a_module_for_another_kernel_or_request_is_refused() {
    type Change = fn(&mut Against);
    let cases: [(&str, Change); 29] = [
        ("than was asked for", |a| a.asked.clear()),
        // The key cannot be written any more: the loader must not be told of it.
        ("does not do what", |a| {
            a.kernel.name(DATA + KEY, "__start_ro_after_init");
            a.kernel.name(DATA + KEY + 16, "__end_ro_after_init");
        }),
        ("than was asked for", |a| a.asked = BTreeSet::from([at(0x1000), at(0x2000)])),
        ("not the original's", |a| a.kernel.write(TEXT + 0x1016, &[0x84])),
        ("is a breakpoint", |a| a.kernel.write(TEXT + 0x1038, &[0xcc])),
        ("leads to", |a| a.kernel.write(TEXT + 0x102f, &[0, 0, 0, 0])),
        ("is no instruction", |a| a.kernel.write(TEXT + 0x1038, &[0xd6])),
        ("is no branch by a static key", |a| a.kernel.write(TEXT + 0x1033, &[0x31, 0xc0])),
        ("by a condition", |a| a.kernel.write(TEXT + 0x1029, &[0x0f, 0x84])),
        ("in its first state", |a| a.kernel.write(DATA + KEY + 8, &[1])),
        ("goes round in a circle", |a| a.kernel.write(TEXT + 0x1089, &[0xeb, 0xfe])),
        ("the kernel knows by where it is", |a| {
            a.kernel.name(TEXT + 0x1080, "__noinstr_text_start");
            a.kernel.name(TEXT + 0x1100, "__noinstr_text_end");
        }),
        ("bounds of a table", |a| a.kernel.name(DATA, "__start___ex_table")),
        ("bounds of its code", |a| a.kernel.name(DATA, "_etext")),
        ("a symbol that it names is not there", |a| a.kernel.name(DATA, "_printk")),
        ("is of another function's code", |a| a.kernel.name(TEXT + 0x1030, "other")),
        (".call_sites does not have it", |a| {
            let facts = ModuleFacts { lists_calls: false, ..module_facts() };
            a.file = write_module(&group(), &facts).unwrap().file;
        }),
        ("says what a group does not", |a| a.facts.module.vermagic = "6.1.1".into()),
        ("structure of another length", |a| a.facts.module.structure_len += 64),
        ("structure that says more", |a| a.facts.module.init_at += 8),
        ("structure that says more", |a| a.facts.module.exit_at += 8),
        ("has no plain name", |a| a.facts.module.name_at += 8),
        ("what the function tracer expects", |a| a.facts.module.traces_are_calls = false),
        ("does not do what", |a| a.facts.traces = Some(BTreeSet::new())),
        ("middle of an entry", |a| a.facts.warning.len = 16),
        (".text has other flags", |a| a.header(".text")[8] |= 1),
        (".rodata has other flags", |a| a.header(".rodata")[8] |= 4),
        (".init.text has other flags", |a| a.header(".init.text")[4] = 7),
        ("another alignment", |a| a.header("__jump_table")[48] = 4),
    ];
    let cases = cases.into_iter().enumerate().filter_map(|(number, (said, change))| {
        let mut against = Against::new();
        change(&mut against);
        let Against { kernel, facts, asked, file } = against;
        unexpected(number, said, check(file, &kernel, &facts, &asked))
    });
    let unexpected: Vec<String> = cases.collect();
    assert!(unexpected.is_empty(), "{}", unexpected.join("\n"));
}

#[test]
fn places_of_the_tracer_may_be_given() {
    let mut against = Against::new();
    against.kernel.write(TEXT + 0x1004, &[0xe8, 1, 2, 3, 4]);
    against.facts.traces = Some(BTreeSet::from([at(0x1004)]));
    let checked = check(against.file, &against.kernel, &against.facts, &against.asked);
    checked.unwrap_or_else(|error| panic!("{:#?}", error.findings));
}

#[test]
fn the_form_of_modules_is_read_from_one() {
    // A group does not call the tracer by its name.
    let own = ModuleForm { traces_are_calls: false, ..facts().module };
    assert_eq!(ModuleForm::read(&file(&group())), Ok(own));
    assert!(ModuleForm::read(&file(&group())[..300]).is_err());
}

/// Kernels that start on one processor write another prefix over locks, and locks again when there is a
/// second one: in the copy has to be the lock.
#[test]
fn a_lock_that_the_kernel_has_taken_out_is_in_the_copy() {
    // lock incl (%rdi), in place of what the leaf begins with.
    let with = |prefix: u8| {
        let mut group = group();
        leaf(&mut group).code.splice(0..0, [prefix, 0xff, 0x07]);
        group
    };
    let (lock, no_lock) = (0xf0, 0x3e);
    for (original, copy, is_proved) in
        [(lock, lock, true), (no_lock, lock, true), (no_lock, no_lock, false), (lock, no_lock, false)]
    {
        let checked = checked(&with(copy), &Synthetic::of(&with(original), LIVE));
        assert_eq!(checked.is_ok(), is_proved, "{original:x} {copy:x}: {checked:?}");
        let said = checked.map_or_else(|error| error.to_string(), |_| String::new());
        assert!(is_proved || said.contains("is not the original's"), "{said}");
    }
}

/// What is unexpected about the end of a check that has to be refused with these words.
fn unexpected(case: usize, said: &str, result: Result<CheckedModule, CheckError>) -> Option<String> {
    let Err(error) = result else { return Some(format!("{case} ({said}): proved")) };
    let findings: Vec<String> = error.findings.iter().map(ToString::to_string).collect();
    let is_said = findings.iter().any(|finding| finding.contains(said));
    (!is_said).then(|| format!("{case} ({said}): {findings:#?}"))
}

fn entry(group: &mut Group) -> &mut Block {
    &mut group.chunks[1].blocks[0]
}
fn hot(group: &mut Group) -> &mut Block {
    &mut group.chunks[1].blocks[1]
}
fn cold(group: &mut Group) -> &mut Block {
    &mut group.chunks[0].blocks[0]
}
fn leaf(group: &mut Group) -> &mut Block {
    &mut group.chunks[2].blocks[0]
}
fn call(group: &mut Group, target: Svma) {
    let which = usize::from(target == at(0x3000));
    // That of the leaf, or that of the callee.
    match which {
        1 => entry(group).fixups[1] = Fixup::Call { at: 10, target },
        _ => hot(group).fixups[3] = Fixup::Call { at: 16, target },
    }
}
fn operand(group: &mut Group, _: u32, target: Target) {
    entry(group).fixups[2] = Fixup::Relative { field: 18, end: 22, target };
}
fn condition(group: &mut Group, other: Condition) {
    let End::Conditional { condition, .. } = &mut entry(group).end else { panic!() };
    *condition = other;
}
fn key(group: &mut Group, change: fn(&mut Svma, &mut bool, &mut bool)) {
    let End::StaticKey { key, is_inverted, is_initially_on, .. } = &mut hot(group).end else { panic!() };
    change(key, is_inverted, is_initially_on);
}
fn static_call(group: &mut Group, key: Svma, target: Svma) {
    hot(group).fixups[2] = Fixup::StaticCall { at: 11, key, target };
}
fn indirect(at: u32, name: &str) -> Fixup {
    Fixup::IndirectCall { at, register: register(name) }
}

#[test]
fn counters_are_proved_to_change_nothing_else() {
    for memory in [CounterMemory::PerProcessor, CounterMemory::Shared] {
        let kernel = Synthetic::of(&group(), LIVE);
        let checked = checked(&counting(memory), &kernel);
        let checked = checked.unwrap_or_else(|error| panic!("{:#?}", error.findings));
        let report = checked.report();
        assert_eq!((report.instructions, report.counters), (19, 4));
    }
}

#[test]
fn counters_that_change_more_are_refused() {
    type Change = fn(&mut Group);
    fn set(block: &mut Block, place: usize, number: u32, keeps_flags: bool) {
        let Fixup::Count { at, .. } = block.fixups[place] else { panic!("no counter") };
        block.fixups[place] = Fixup::Count { at, number, keeps_flags };
    }
    let cases: [(&str, Change); 8] = [
        // A word more than is counted, and one that two places count.
        ("counted at two places, or at none", |g| g.counters.iter_mut().for_each(|own| own.number = 5)),
        ("counts what another one counts", |g| set(leaf(g), 0, 0, false)),
        // Between `test` and its branch.
        ("overwrites flags that are read", |g| {
            let test = &mut g.chunks[1].blocks[4];
            set(test, 0, 3, false);
            test.code.truncate(11);
            test.unwind.truncate(1);
        }),
        // The stack is lower there; and not so elsewhere.
        ("counter has a row of the unwinder", |g| g.chunks[1].blocks[4].unwind.truncate(1)),
        ("counter has a row of the unwinder", |g| g.chunks[1].blocks[1].unwind[0].row = [24, 0, 0, 0, 5, 2]),
        ("pushes where the unwinder knows no stack", |g| {
            let edge = &mut g.chunks[1].blocks[1];
            edge.code.extend([0; 2]);
            set(edge, 0, 2, true);
            edge.unwind[0].row = [0; 6];
        }),
        // The edge leads elsewhere.
        ("is a copy of", |g| g.chunks[1].blocks[1].end = End::Jump(at(0x1038))),
        // A counter that nothing leads to.
        ("at a place that was not proved", |g| {
            let Some(Block { end: End::Conditional { next, .. }, .. }) = g.chunks[1].blocks.first_mut()
            else {
                panic!("no branch")
            };
            *next = at(0x101e);
        }),
    ];
    let kernel = Synthetic::of(&group(), LIVE);
    let cases = cases.into_iter().enumerate().filter_map(|(number, (said, change))| {
        let mut changed = counting(CounterMemory::PerProcessor);
        change(&mut changed);
        unexpected(number, said, check(file(&changed), &kernel, &facts(), &asked()))
    });
    let unexpected: Vec<String> = cases.collect();
    assert!(unexpected.is_empty(), "{}", unexpected.join("\n"));
}

/// `leaf` reads flags when it begins, or is called by code that reads those that it returns.
#[test]
fn flags_that_cross_calls_are_live() {
    let mut kernel = Synthetic::of(&group(), LIVE);
    // `pushfq; pop %rax` in place of `mov %rdi,%rax`.
    kernel.write(TEXT + 0x2000, &[0x9c, 0x58, 0x90]);
    let mut changed = counting(CounterMemory::Shared);
    let Fixup::Count { at: place, .. } = leaf(&mut changed).fixups[0] else { panic!("no counter") };
    leaf(&mut changed).code[place as usize + 8..].copy_from_slice(&[0x9c, 0x58, 0x90]);
    let refused = check(file(&changed), &kernel, &facts(), &asked()).unwrap_err();
    // That of the counter in front of the call.
    assert!(refused.to_string().contains("flags that are read"), "{refused}");
    // Another function calls `root`, and branches by what that returns: `pop; ret` is where it returns.
    let mut group = counting(CounterMemory::Shared);
    let tail = &mut group.chunks[1].blocks[3];
    tail.code.extend([0; 8]);
    tail.fixups = vec![Fixup::Count { at: 2, number: 4, keeps_flags: false }];
    group.counters.iter_mut().for_each(|own| own.number = 5);
    let kernel = Synthetic::of(&self::group(), LIVE);
    assert_eq!(check(file(&group), &kernel, &facts(), &asked()).unwrap().report().counters, 5);
    let mut kernel = kernel;
    kernel.write(TEXT + 0x4000, &[0xe8, 0xfb, 0xcf, 0xff, 0xff, 0x75, 0x00]);
    let refused = check(file(&group), &kernel, &facts(), &asked()).unwrap_err();
    assert!(refused.to_string().contains("flags that are read"), "{refused}");
}
