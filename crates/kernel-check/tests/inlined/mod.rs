//! Callees in place of their calls: proved where they know nothing of it, refused else.

use crate::synthetic::{LIVE, Synthetic, asked, at, facts, file, group, register};
use restitch_kernel_check::{CheckError, CheckedModule, check};
use restitch_kernel_group::{Block, Chunk, Condition, End, Fixup, Function, Group, Heat, UnwindRow};

const NOP: [u8; 5] = [0x0f, 0x1f, 0x44, 0, 0];
const CALL: [u8; 5] = [0xe8, 1, 2, 3, 4];
const MARK: [u8; 4] = [0xf3, 0x0f, 0x1e, 0xfa];

fn row(offset: u32, distance: u8) -> UnwindRow {
    UnwindRow { offset, row: [distance, 0, 0, 0, 5, 2] }
}

fn block(address: restitch_address::Svma, code: &[&[u8]], end: End, unwind: &[UnwindRow]) -> Block {
    Block {
        address,
        code: code.concat(),
        fixups: Vec::new(),
        end,
        unwind: unwind.to_vec(),
        exceptions: Vec::new(),
        warnings: Vec::new(),
    }
}

/// What the callee does between its push and its pop, and how it ends.
#[derive(Clone, Copy)]
struct Callee {
    /// `test %rdi,%rdi`.
    middle: &'static [u8],
    end: End,
}

const CALLEE: Callee = Callee { middle: &[0x48, 0x85, 0xff], end: End::Return };

/// `root` calls `short`, which pushes, branches, pops, and returns.
fn plain(callee: Callee) -> Group {
    let mut root = block(
        at(0x1000),
        &[&NOP, &[0x53], &CALL, &[0x5b]],
        End::Return,
        &[row(0, 8), row(6, 16), row(12, 8)],
    );
    root.fixups = vec![Fixup::Trace { at: 0 }, Fixup::Call { at: 6, target: at(0x2000) }];
    let mut group = Group { name: "group_b".into(), ..group() };
    group.functions = [("root", 0x1000, true), ("short", 0x2000, false)].map(function).into();
    group.chunks =
        vec![chunk(0, vec![root]), chunk(1, short(callee, [at(0x2000), at(0x2020), at(0x2030)], true, 0))];
    group
}

fn function((name, offset, is_redirected): (&str, u64, bool)) -> Function {
    Function { name: name.into(), address: at(offset), is_redirected }
}

fn chunk(function: usize, blocks: Vec<Block>) -> Chunk {
    Chunk { function, heat: Heat::Hot, align: 16, blocks }
}

/// The blocks of `short` at these addresses, below a caller's frame of so many bytes more.
fn short(
    callee: Callee,
    [first, other, last]: [restitch_address::Svma; 3],
    is_own: bool,
    above: u8,
) -> Vec<Block> {
    let head: &[u8] = if is_own { &[MARK.as_slice(), &NOP].concat() } else { &[] };
    let start = head.len() as u32;
    let (low, high) = (8 + above, 16 + above);
    // At 0x2020 in the original: behind the branch.
    let pad: Vec<u8> =
        if is_own { vec![0x90; 0x20 - 6 - head.len() - 1 - callee.middle.len()] } else { vec![] };
    let branch = End::Conditional { condition: Condition::Equal, taken: last, next: other };
    let mut entry =
        block(first, &[head, &[0x51], &pad, callee.middle], branch, &[row(0, low), row(start + 1, high)]);
    if is_own {
        entry.fixups = vec![Fixup::Trace { at: 4 }];
    }
    // inc %eax, and to the same.
    let other = block(other, &[&[0xff, 0xc0]], End::Jump(last), &[row(0, high)]);
    let last = block(last, &[&[0x59]], callee.end, &[row(0, high), row(1, low)]);
    vec![entry, other, last]
}

/// `root` with `short` in place of the call.
fn inlined(callee: Callee) -> Group {
    let mut group = plain(callee);
    let entry = [0, 1, 2].map(Block::inlined);
    let mut root = block(at(0x1000), &[&NOP, &[0x53]], End::Next(entry[0]), &[row(0, 8), row(6, 16)]);
    root.fixups = vec![Fixup::Trace { at: 0 }];
    let rest = block(at(0x100b), &[&[0x5b]], End::Return, &[row(0, 16), row(1, 8)]);
    let mut short = short(callee, entry, false, 8);
    let mut last = short.pop();
    if let Some(last) = &mut last {
        match callee.end {
            End::Return => last.end = End::Jump(at(0x100b)),
            End::Jump(target) => {
                last.code.extend(CALL);
                last.fixups = vec![Fixup::Call { at: 1, target }];
                last.end = End::Jump(at(0x100b));
            }
            _ => {}
        }
    }
    group.chunks = vec![chunk(0, [root].into_iter().chain(short).chain(last).chain([rest]).collect())];
    group
}

fn checked(group: &Group, callee: Callee) -> Result<CheckedModule, CheckError> {
    check(file(group), &Synthetic::of(&plain(callee), LIVE), &facts(), &asked())
}

#[test]
fn a_callee_may_stand_in_place_of_its_call() {
    let plain = checked(&plain(CALLEE), CALLEE).unwrap_or_else(|error| panic!("{:#?}", error.findings));
    let inlined = checked(&inlined(CALLEE), CALLEE).unwrap_or_else(|error| panic!("{:#?}", error.findings));
    // Without the call, the return, and the place of the tracer.
    assert_eq!(plain.report().instructions, inlined.report().instructions + 3);
    // Its frame, and flags that are dead behind what makes it.
    for middle in [
        &[0x48, 0x8b, 0x04, 0x24, 0x85, 0xc0][..], // mov (%rsp),%rax; test %eax,%eax
        &[0x48, 0x8d, 0x3c, 0x24, 0x85, 0xff],     // lea (%rsp),%rdi; test %edi,%edi
        &[0xff, 0xc0],                             // inc %eax
    ] {
        let callee = Callee { middle, ..CALLEE };
        let result = checked(&self::inlined(callee), callee);
        assert!(result.is_ok(), "{middle:x?}: {:#?}", result.unwrap_err().findings);
    }
    // Blocks elsewhere: jumps are added.
    let mut apart = self::inlined(CALLEE);
    apart.chunks[0].blocks.swap(1, 4);
    assert!(checked(&apart, CALLEE).is_ok());
    // What follows the call stays in the kernel.
    let mut back = self::inlined(CALLEE);
    back.chunks[0].blocks.pop();
    assert!(checked(&back, CALLEE).is_ok());
}

#[test]
fn a_callee_that_knows_of_its_call_may_not() {
    let cases = [
        // mov 8(%rsp),%rax: the return address.
        ("uses the stack above", Callee { middle: &[0x48, 0x8b, 0x44, 0x24, 0x08], ..CALLEE }),
        // mov %rsp,%rax
        ("uses the stack above", Callee { middle: &[0x48, 0x89, 0xe0], ..CALLEE }),
        // sub $8,%rsp and a branch by its flags
        ("uses the stack above", Callee { middle: &[0x48, 0x83, 0xec, 0x08], ..CALLEE }),
        ("left without a return", Callee { end: End::IndirectJump(register("rdx")), ..CALLEE }),
    ];
    for (number, (said, callee)) in cases.into_iter().enumerate() {
        assert!(checked(&plain(callee), callee).is_ok(), "{said}: the call itself");
        refused(number, said, checked(&inlined(callee), callee));
    }
}

#[track_caller]
fn refused(number: usize, said: &str, result: Result<CheckedModule, CheckError>) {
    let Err(error) = result else { panic!("case {number}: {said}: it is proved") };
    let is_said = error.findings.iter().any(|finding| finding.to_string().contains(said));
    assert!(is_said, "case {number}: {said}: {error}");
}

#[test]
fn what_is_no_callee_s_code_is_refused() {
    type Change = fn(&mut Vec<Block>);
    let cases: [(&str, Change); 11] = [
        ("has another row", |blocks| blocks[1].unwind[1].row[0] = 16),
        ("has a row of no place", |blocks| {
            blocks[0].unwind = vec![row(0, 8), row(6, 8)];
            blocks.swap(1, 4);
        }),
        ("does not do what", |blocks| blocks[3].end = End::Return),
        ("is a copy of", |blocks| blocks[3].end = End::Jump(at(0x1000))),
        ("not the original's", |blocks| blocks[2].code[1] = 0xc1),
        ("has another row", |blocks| blocks[0].end = End::Next(Block::inlined(1))),
        ("is a copy of", |blocks| blocks[2].end = End::Jump(Block::inlined(0))),
        ("left without a return", |blocks| blocks[2].end = End::Jump(at(0x2030))),
        ("not the original's", |blocks| blocks[0].end = End::Jump(at(0x100b))),
        ("still", |blocks| {
            blocks[1].code.splice(0..0, NOP);
            blocks[1].fixups = vec![Fixup::Trace { at: 0 }];
            blocks[1].unwind[1].offset += 5;
        }),
        // The callee's own copy, which returns.
        ("has a row of no place", |blocks| {
            blocks.drain(1..4);
            blocks[0].end = End::Jump(at(0x2000));
        }),
    ];
    for (number, (said, change)) in cases.into_iter().enumerate() {
        let mut group = inlined(CALLEE);
        change(&mut group.chunks[0].blocks);
        if group.chunks[0].blocks.len() == 2 {
            group.chunks.push(plain(CALLEE).chunks.remove(1));
        }
        refused(number, said, checked(&group, CALLEE));
    }
}

/// A callee that hands over to another function by a jump: that is called.
#[test]
fn what_a_callee_hands_over_to_is_called() {
    let callee = Callee { end: End::Jump(at(0x3000)), ..CALLEE };
    let mut group = inlined(callee);
    let result = checked(&group, callee);
    assert!(result.is_ok(), "{:#?}", result.unwrap_err().findings);
    type Change = fn(&mut Block);
    let changes: [(&str, Change); 4] = [
        ("leads to", |last| last.fixups = vec![Fixup::Call { at: 1, target: at(0x4000) }]),
        ("is a copy of", |last| last.end = End::Jump(Block::inlined(2))),
        ("has another row", |last| last.unwind[1].row[0] = 24),
        ("left without a return", |last| {
            last.code.truncate(1);
            last.fixups.clear();
            last.end = End::Jump(at(0x3000));
        }),
    ];
    for (number, (said, change)) in changes.into_iter().enumerate() {
        let mut group = group.clone();
        change(&mut group.chunks[0].blocks[3]);
        refused(number, said, checked(&group, callee));
    }
    // What was pushed is there still: a jump within a function, to a part that has a name.
    let mut pushed = (plain(callee), group.clone());
    for (last, distance) in [(&mut pushed.0.chunks[1].blocks[2], 16), (&mut pushed.1.chunks[0].blocks[3], 24)]
    {
        last.code[0] = 0x90;
        last.unwind = vec![row(0, distance)];
    }
    let kernel = Synthetic::of(&pushed.0, LIVE);
    refused(4, "with a frame of its own", check(file(&pushed.1), &kernel, &facts(), &asked()));
    // To what has a copy in the group.
    let other = block(at(0x3000), &[&[0xff, 0xc0]], End::Return, &[row(0, 8)]);
    let mut kernel = plain(callee);
    for group in [&mut group, &mut kernel] {
        group.functions.push(function(("callee", 0x3000, false)));
        group.chunks.push(chunk(2, vec![other.clone()]));
    }
    let result = check(file(&group), &Synthetic::of(&kernel, LIVE), &facts(), &asked());
    assert!(result.is_ok(), "{:#?}", result.unwrap_err().findings);
}

/// Two functions that call each other at once have no end.
#[test]
fn callees_in_callees_have_an_end() {
    let mut group = plain(CALLEE);
    let mut short = block(at(0x2000), &[&MARK, &NOP, &CALL], End::Return, &[row(0, 8)]);
    short.fixups = vec![Fixup::Trace { at: 4 }, Fixup::Call { at: 9, target: at(0x2000) }];
    group.chunks[1].blocks = vec![short];
    let kernel = Synthetic::of(&group, LIVE);
    let mut copy = group.clone();
    copy.chunks.pop();
    let root = &mut copy.chunks[0].blocks[0];
    root.code[6..11].copy_from_slice(&[0xff, 0xc0, 0xff, 0xc0, 0x53]);
    root.fixups.pop();
    refused(0, "is deep in others", check(file(&copy), &kernel, &facts(), &asked()));
}
