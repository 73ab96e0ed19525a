//! Versions of a few hand-made blocks, byte by byte.

mod support;

use restitch_address::{LoadBias, Svma};
use restitch_cfi::{CfiError, FrameState, NoUnwindTables, Row, UnwindForm, UnwindPiece};
use restitch_emit::{
    Counted, CounterRequest, CounterWidth, EmitError, Executions, LARGE_PAGE, PieceKind, RedirectKind,
    Request, SkipReason, Version, emit, emit_for,
};
use restitch_layout::{Fragment, Layout};
use restitch_program::{BlockId, EdgeId, EdgeKind};
use std::sync::Arc;
use support::small::{BASE, START, Small, order};
use support::{Comparison, Seen};

/// Code behind the headers of a version.
const TEXT: u64 = START + 0x1000;

fn hot(version: &Version) -> &[u8] {
    let offset = |at: Svma| at.offset_from(version.range.start) as usize;
    &version.bytes[offset(version.hot_text.start)..offset(version.hot_text.end)]
}

fn checked(request: &Request<'_>) -> Version {
    let version = emit(request).unwrap();
    let _: Seen = Comparison::new(request, &version).run();
    assert_eq!(version, emit(request).unwrap(), "same request, same bytes");
    version
}

/// test edi,edi; je +4 (to C) | B: inc eax; jmp C... | C: dec eax; ret
fn diamond() -> Small {
    let code = [0x85, 0xff, 0x74, 0x04, 0xff, 0xc0, 0xeb, 0x00, 0xff, 0xc8, 0xc3];
    Small::new(
        &code,
        "function 0x401000..0x40100b f movable redirectable
           0x401000 +4 entry cond(4)/2 -> 0x401008
           0x401004 +4 - jump/2 -> 0x401008
           0x401008 +3 target return/1",
    )
}

#[test]
fn the_original_order_needs_no_jumps() {
    let small = diamond();
    let version = checked(&small.request(&order(&[0, 1, 2])));
    assert_eq!(hot(&version), [0x85, 0xff, 0x74, 0x02, 0xff, 0xc0, 0xff, 0xc8, 0xc3]);
    // The jump that was left out: control goes on at its target.
    assert_eq!(version.to_version(Svma::new(BASE + 6)), Some(Svma::new(TEXT + 6)));
    assert_eq!(version.to_version(Svma::new(BASE + 8)), Some(Svma::new(TEXT + 6)));
    assert_eq!(version.map.to_original(Svma::new(TEXT + 6)), Some(Svma::new(BASE + 8)));
    assert_eq!(version.map.to_original(Svma::new(TEXT + 2)), Some(Svma::new(BASE + 2)));
    assert_eq!(version.map.to_original(Svma::new(TEXT + 3)), None, "inside a branch");
    assert!(version.redirects.is_empty(), "a block starts in the first five bytes");
}

/// Unwind tables without bytes: these pieces of code have the state of an entry throughout.
struct Leaves(Vec<UnwindPiece>);

impl UnwindForm for Leaves {
    fn piece_at(&self, at: Svma) -> Option<UnwindPiece> {
        self.0.iter().find(|piece| piece.range.contains(at)).copied()
    }

    fn rows_of(&self, piece: &UnwindPiece) -> Result<Vec<Row>, CfiError> {
        Ok(vec![Row { start: piece.range.start, state: Arc::new(FrameState::at_entry()) }])
    }
}

#[test]
fn another_form_of_unwind_tables_that_says_the_same_gives_the_same_version() {
    let small = diamond();
    let leaf = |range| UnwindPiece { range, personality: None, lsda: None, signal_frame: false };
    let other = Leaves(small.program.functions.iter().map(|f| leaf(f.range)).collect());
    let layout = order(&[0, 2, 1]);
    let version = checked(&Request { unwind: &other, ..small.request(&layout) });
    assert_eq!(version, checked(&small.request(&layout)));
}

#[test]
fn code_of_which_unwinders_know_nothing_stays() {
    let small = diamond();
    let layout = order(&[0, 1, 2]);
    let version = emit(&Request { unwind: &NoUnwindTables, ..small.request(&layout) }).unwrap();
    assert!(version.blocks.is_empty() && hot(&version).is_empty());
    assert!(version.skipped.iter().map(|skipped| skipped.why).eq([SkipReason::Unwind]));
}

#[test]
fn what_is_mapped_covers_the_large_pages_of_hot_code() {
    let small = diamond();
    let layout = order(&[0, 1, 2]);
    let plain = checked(&small.request(&layout));
    let large = checked(&Request { large_pages: true, ..small.request(&layout) });
    assert_eq!((plain.large, large.large, large.loaded_len), (0, LARGE_PAGE, LARGE_PAGE));
    assert!(plain.loaded_len < LARGE_PAGE);
    assert_eq!(plain.bytes[0x100..plain.loaded_len as usize], large.bytes[0x100..plain.loaded_len as usize]);
    assert_eq!((&plain.map, &plain.symbols), (&large.map, &large.symbols));
}

#[test]
fn a_branch_is_inverted_when_its_target_comes_next() {
    let small = diamond();
    let version = checked(&small.request(&order(&[0, 2, 1])));
    let expected = [0x85, 0xff, 0x75, 0x03, 0xff, 0xc8, 0xc3, 0xff, 0xc0, 0xeb, 0xf9];
    assert_eq!(hot(&version), expected);
}

#[test]
fn neither_way_next_takes_two_branches() {
    let small = diamond();
    let version = checked(&small.request(&order(&[1, 0, 2])));
    // B, jmp C; A, je C is next: inverted to B.
    assert_eq!(&hot(&version)[..4], [0xff, 0xc0, 0xeb, 0x04]);
    let version = checked(&small.request(&order(&[2, 1, 0])));
    assert_eq!(hot(&version)[7..], [0x85, 0xff, 0x74, 0xf5, 0xeb, 0xf6]);
    let added = version.map.pieces.last().unwrap();
    assert_eq!((added.kind, added.original), (PieceKind::Added, Svma::new(BASE + 4)));
}

#[test]
fn what_is_not_placed_is_jumped_to() {
    let small = diamond();
    let version = checked(&small.request(&order(&[0])));
    let je = (BASE + 8) as i64 - (TEXT + 8) as i64;
    let jmp = (BASE + 4) as i64 - (TEXT + 13) as i64;
    let mut expected = vec![0x85, 0xff, 0x0f, 0x84];
    expected.extend((je as i32).to_le_bytes());
    expected.push(0xe9);
    expected.extend((jmp as i32).to_le_bytes());
    assert_eq!(hot(&version), expected);
    assert!(version.redirects.is_empty(), "block 1 is in the way");
    let refused = version.skipped.iter().find(|s| s.why == SkipReason::NotRedirectable);
    assert!(refused.is_some());
}

#[test]
fn far_branches_grow_and_cold_code_stands_apart() {
    let mut code = vec![0x85, 0xff, 0x74, 0x00];
    code.extend([0x90; 200]);
    code.push(0xc3);
    let end = BASE + code.len() as u64;
    let text = format!(
        "function 0x401000..{end:#x} f movable redirectable
           0x401000 +4 entry cond(4)/2 -> 0x401004
           0x401004 +200 target fall
           {:#x} +1 - return/1",
        end - 1
    );
    let small = Small::new(&code, &text);
    let fragment = |b: u32| Fragment { blocks: vec![BlockId(b)], align: 1 };
    let layout = Layout { hot: vec![fragment(0), fragment(2)], cold: vec![fragment(1)], ..Layout::default() };
    let version = checked(&small.request(&layout));
    assert_eq!(version.blocks[2].version.start.get() % 64, 0);
    assert!(version.hot_text.end <= version.blocks[2].version.start);
    // je C1 ; jmp C1 (short reach is enough: 64 bytes).
    assert_eq!(&hot(&version)[..6], [0x85, 0xff, 0x74, 0x3c, 0xeb, 0x3a]);
    let back = version.to_version(Svma::new(end - 1)).unwrap();
    assert_eq!(version.map.to_original(back), Some(Svma::new(end - 1)));
    let version = checked(&small.request(&order(&[1, 0, 2])));
    // jmp over the next block; test; je and jmp back over 200 bytes.
    let code = hot(&version);
    assert_eq!((&code[200..202], &code[204..206], code[210]), (&[0xeb, 0x0d][..], &[0x0f, 0x84][..], 0xe9));
}

#[test]
fn short_conditionals_go_over_an_island() {
    // A: loop A; B: ret
    let small = Small::new(
        &[0xe2, 0xfe, 0xc3],
        "function 0x401000..0x401003 f movable
           0x401000 +2 entry,target short/2 -> 0x401000
           0x401002 +1 - return/1",
    );
    let version = checked(&small.request(&order(&[0, 1])));
    assert_eq!(hot(&version), [0xe2, 0x02, 0xeb, 0x02, 0xeb, 0xfa, 0xc3]);
    let counted: Vec<Counted> = (0..2).map(|e| Counted::Edge(EdgeId(e))).collect();
    let layout = order(&[1, 0]);
    let counters = Some(CounterRequest {
        area_start: Svma::new(0x60_0000),
        width: CounterWidth::Bits64,
        counted: &counted,
        votes: &[],
    });
    let version = checked(&Request { counters, ..small.request(&layout) });
    assert_eq!(version.counters.unwrap().missing, []);
}

#[test]
fn what_a_short_conditional_leads_to_stays_right_behind_it() {
    // A: 30 nops, jrcxz C; B: jmp A; C: 40 nops, ret; D: 2,000 nops that never run, ret
    let (b, c, d) = (BASE + 32, BASE + 34, BASE + 75);
    let mut code = vec![0x90; 30];
    code.extend([0xe3, 0x02, 0xeb, 0xde]);
    code.extend([0x90; 40]);
    code.push(0xc3);
    code.extend([0x90; 2000]);
    code.push(0xc3);
    let end = BASE + code.len() as u64;
    let small = Small::new(
        &code,
        &format!(
            "function 0x401000..{end:#x} f movable
               0x401000 +32 entry,target short/2 -> {c:#x}
               {b:#x} +2 - jump/2 -> 0x401000
               {c:#x} +41 target return/1
               {d:#x} +2001 - return/1"
        ),
    );
    let layout = order(&[0, 2, 1, 3]);
    let request = small.request(&layout);
    // C would take one line less if there were padding in front of it.
    let heat = Executions { blocks: &[1, 0, 1000, 0], edges: &[] };
    let version = emit_for(&request, heat).unwrap();
    let _: Seen = Comparison::new(&request, &version).run();
    let at = |b: u64| version.to_version(Svma::new(b)).unwrap();
    let island = at(BASE + 30);
    let bytes = &version.bytes[island.offset_from(version.range.start) as usize..];
    assert_eq!(bytes[0], 0xe3, "jrcxz");
    assert_eq!(island + 2 + u64::from(bytes[1]), at(c));
}

#[test]
fn code_that_runs_off_its_function_goes_on_in_the_original() {
    // call +0; end of the function.
    let small = Small::new(
        &[0xe8, 0, 0, 0, 0, 0xc3],
        "function 0x401000..0x401005 f movable redirectable
           0x401000 +5 entry fall
             call 0x401000 +5 -> 0x401005",
    );
    let version = checked(&small.request(&order(&[0])));
    assert_eq!(hot(&version)[5], 0xe9);
    assert_eq!(version.map.to_original(Svma::new(TEXT + 5)), Some(Svma::new(BASE + 5)), "the return address");
    assert_eq!(version.redirects.len(), 1, "the call returns behind the redirect");
}

#[test]
fn redirects_keep_out_of_the_way_of_returns() {
    // call *%rax; ret; nops
    let text = |redirectable: &str| {
        format!(
            "function 0x401000..0x401008 f movable {redirectable}
               0x401000 +8 entry return/1
                 call 0x401000 +2 indirect"
        )
    };
    let small = Small::new(&[0xff, 0xd0, 0x90, 0x90, 0x90, 0x90, 0x90, 0xc3], &text("redirectable"));
    let version = checked(&small.request(&order(&[0])));
    assert!(version.redirects.is_empty());
    assert_eq!(version.skipped[0].why, SkipReason::NotRedirectable);
}

#[test]
fn redirects_lead_behind_endbr64_to_the_counter() {
    let mut code = vec![0xf3, 0x0f, 0x1e, 0xfa];
    code.extend([0x90; 5]);
    code.push(0xc3);
    let small =
        Small::new(&code, "function 0x401000..0x40100a f movable redirectable\n 0x401000 +10 entry return/1");
    let layout = order(&[0]);
    let counted = [Counted::Block(BlockId(0))];
    let counters = Some(CounterRequest {
        area_start: Svma::new(0x60_0000),
        width: CounterWidth::Bits64,
        counted: &counted,
        votes: &[],
    });
    let version = checked(&Request { counters, ..small.request(&layout) });
    let redirect = version.redirects[0];
    assert_eq!((redirect.at.get(), redirect.to.get()), (BASE + 4, TEXT + 4));
    assert_eq!(redirect.kind, RedirectKind::Entry);
    assert_eq!(&hot(&version)[4..7], [0x48, 0xff, 0x05]);
    assert_eq!(version.map.to_original(redirect.to), Some(redirect.at));
}

/// Where a function of these bytes, one block, is redirected, counting or not.
fn redirected(code: &[u8]) -> [u64; 2] {
    let len = code.len();
    let text = format!(
        "function 0x401000..{:#x} f movable redirectable\n   0x401000 +{len} entry return/1",
        BASE + len as u64
    );
    let small = Small::new(code, &text);
    let layout = order(&[0]);
    let counted = [Counted::Block(BlockId(0))];
    let counters = Some(CounterRequest {
        area_start: Svma::new(0x60_0000),
        width: CounterWidth::Bits64,
        counted: &counted,
        votes: &[],
    });
    [small.request(&layout), Request { counters, ..small.request(&layout) }].map(|request| {
        let version = checked(&request);
        let redirect = version.redirects[0];
        assert_eq!(version.map.to_original(redirect.to), Some(redirect.at));
        redirect.at.get() - BASE
    })
}

#[test]
fn the_first_instruction_stays_where_there_is_room_behind_it() {
    let nops = |before: &[u8], nops: usize| [before, &vec![0x90; nops], &[0xc3]].concat();
    // push %rbx
    assert_eq!(redirected(&nops(&[0x53], 5)), [1, 1]);
    assert_eq!(redirected(&nops(&[0x53], 3)), [0, 0], "its redirect would reach behind the block");
    // lea 0(%rip),%rax
    assert_eq!(redirected(&nops(&[0x48, 0x8d, 0x05, 0, 0, 0, 0], 4)), [7, 7]);
    // push %rbp; mov %rsp,%rbp, as either assembler writes it
    assert_eq!(redirected(&nops(&[0x55, 0x48, 0x89, 0xe5], 4)), [4, 4]);
    assert_eq!(redirected(&nops(&[0x55, 0x48, 0x8b, 0xec], 4)), [4, 4]);
    assert_eq!(redirected(&nops(&[0x55, 0x48, 0x89, 0xe5], 1)), [1, 1], "behind the first one there is room");
    // endbr64; push %rbp; mov %rsp,%rbp
    let marked = [0xf3, 0x0f, 0x1e, 0xfa, 0x55, 0x48, 0x89, 0xe5];
    assert_eq!(redirected(&nops(&marked, 4)), [8, 8]);
    assert_eq!(redirected(&nops(&marked, 0)), [4, 4]);
    // test %edi,%edi; setne %al: the counter would have to keep the flags behind the first one, so it stays
    // in front of both.
    assert_eq!(redirected(&nops(&[0x85, 0xff, 0x0f, 0x95, 0xc0], 4)), [2, 0]);
    // The same, and the flags are dead again behind them: mov %eax,%ecx; xor %eax,%eax
    assert_eq!(redirected(&nops(&[0x85, 0xff, 0x0f, 0x95, 0xc0, 0x89, 0xc1, 0x31, 0xc0], 4)), [2, 2]);
    // call *%rax
    assert_eq!(
        redirected(&nops(&[0xff, 0xd0], 8)),
        [0, 0],
        "a call is none that goes on to what is behind it"
    );
}

#[test]
fn an_endbr64_that_is_a_block_of_its_own_is_entered_and_counted() {
    // endbr64 | dec eax; nop; nop; jne back | ret
    let code = [0xf3, 0x0f, 0x1e, 0xfa, 0xff, 0xc8, 0x90, 0x90, 0x75, 0xfa, 0xc3];
    let small = Small::new(
        &code,
        "function 0x401000..0x40100b f movable redirectable
           0x401000 +4 entry fall/0
           0x401004 +6 target cond(5)/2 -> 0x401004
           0x40100a +1 - return/1",
    );
    let layout = order(&[0, 1, 2]);
    let counted = [Counted::Block(BlockId(0)), Counted::Block(BlockId(1))];
    let counters = Some(CounterRequest {
        area_start: Svma::new(0x60_0000),
        width: CounterWidth::Bits64,
        counted: &counted,
        votes: &[],
    });
    for request in [small.request(&layout), Request { counters, ..small.request(&layout) }] {
        let version = checked(&request);
        let redirect = version.redirects[0];
        assert_eq!((redirect.at.get(), redirect.to.get()), (BASE + 4, TEXT));
        assert_eq!(redirect.kind, RedirectKind::Entry);
    }
}

#[test]
fn landings_are_redirected_where_there_is_room() {
    // A: jmp *%rax | B: 5 nops, ret | C: ret
    let code = [0xff, 0xe0, 0x90, 0x90, 0x90, 0x90, 0x90, 0xc3, 0xc3];
    let small = Small::new(
        &code,
        "function 0x401000..0x401009 f movable
           0x401000 +2 entry indirect/2
           0x401002 +6 indirect return/1
           0x401008 +1 indirect return/1",
    );
    let version = checked(&small.request(&order(&[0, 1, 2])));
    assert_eq!(version.redirects.len(), 1);
    let redirect = version.redirects[0];
    assert_eq!((redirect.at.get(), redirect.to.get()), (BASE + 2, TEXT + 2));
    assert_eq!(redirect.kind, RedirectKind::Landing);
}

/// jmp *0x401010(,%rax,8) | ret | ret | ... and the table.
fn switch(elf_type: u16) -> Small {
    let mut code = vec![0xff, 0x24, 0xc5, 0x10, 0x10, 0x40, 0x00, 0xc3, 0xc3];
    code.resize(16, 0xcc);
    code.extend((BASE + 7).to_le_bytes());
    code.extend((BASE + 8).to_le_bytes());
    Small::of_type(
        elf_type,
        &code,
        "function 0x401000..0x401009 f movable
           0x401000 +7 entry table(0)/7
           0x401007 +1 indirect return/1
           0x401008 +1 indirect return/1
         table 0x401000 load 0x401000 at 0x401010 base 0x401010 absolute8 copyable: 0x401007 0x401008",
    )
}

#[test]
fn a_table_copy_leads_to_copies() {
    let small = switch(2);
    let layout = order(&[0, 2]);
    let version = checked(&small.request(&layout));
    assert_eq!(version.tables.len(), 16);
    let at = version.tables.start.offset_from(version.range.start) as usize;
    let entry = |i: usize| u64::from_le_bytes(version.bytes[at + 8 * i..][..8].try_into().unwrap());
    assert_eq!(entry(0), BASE + 7, "not placed: the original");
    assert_eq!(entry(1), TEXT + 7);
    let target = u32::from_le_bytes(hot(&version)[3..7].try_into().unwrap());
    assert_eq!(u64::from(target), version.tables.start.get());
    let kinds: Vec<PieceKind> = version.map.pieces.iter().map(|p| p.kind).collect();
    assert_eq!(kinds, [PieceKind::Branch, PieceKind::Linear]);
}

#[test]
fn absolute_tables_of_position_independent_files_are_not_copied() {
    let small = switch(3);
    let layout = order(&[0, 1, 2]);
    let request = small.request(&layout);
    let version = checked(&request);
    assert!(version.tables.is_empty());
    assert!(version.skipped.iter().any(|s| s.why == SkipReason::TableNotCopied));
    let bias = LoadBias::between(Svma::new(0), restitch_address::Avma::new(0x1_0000_0000));
    let version = emit(&Request { bias: Some(bias), ..request }).unwrap();
    let at = version.tables.start.offset_from(version.range.start) as usize;
    assert_eq!(u64::from_le_bytes(version.bytes[at..][..8].try_into().unwrap()), 0x1_0000_0000 + TEXT + 7);
}

#[test]
fn what_cannot_be_copied_stays() {
    // A: xbegin | B: mov 0x7fffffff(%rip),%eax; ret
    let mut code = vec![0xc7, 0xf8, 0, 0, 0, 0];
    code.extend([0x8b, 0x05, 0xff, 0xff, 0xff, 0x7f, 0xc3]);
    let small = Small::new(
        &code,
        "function 0x401000..0x40100d f movable
           0x401000 +6 entry fall
           0x401006 +7 - return/1",
    );
    // The second operand is just out of reach from below.
    let layout = order(&[0, 1]);
    let request = small.request(&layout);
    let version = emit(&Request { start: Svma::new(0x30_0000), ..request }).unwrap();
    assert!(version.blocks.is_empty());
    assert!(version.skipped.iter().all(|s| s.why == SkipReason::OutOfReach) && version.skipped.len() == 2);
    assert_eq!(checked(&request).blocks.len(), 1);
    let far = emit(&Request { start: Svma::new(1 << 40), ..request }).unwrap();
    assert!(far.blocks.is_empty() && far.text.is_empty());
}

#[test]
fn what_may_not_be_copied_stays() {
    let small = Small::new(
        &[0xc3, 0xc3, 0xc3],
        "function 0x401000..0x401001 f undecodable
           0x401000 +1 entry return/1
         function 0x401001..0x401003 g movable
           0x401001 +1 entry,pinned return/1
           0x401002 +1 padding return/1",
    );
    let version = checked(&small.request(&order(&[0, 1, 2])));
    assert!(version.blocks.is_empty());
    assert!(version.skipped.iter().all(|s| s.why == SkipReason::NotMovable) && version.skipped.len() == 3);
}

#[test]
fn contradictory_requests_are_refused() {
    let small = diamond();
    let layout = order(&[0, 1, 2]);
    let request = small.request(&layout);
    let error = |request: Request<'_>| emit(&request).unwrap_err();
    assert!(matches!(error(Request { start: Svma::new(START + 8), ..request }), EmitError::Unaligned(_)));
    let twice = order(&[0, 1, 0]);
    assert!(matches!(error(Request { layout: &twice, ..request }), EmitError::BlockTwice { .. }));
    let unknown = order(&[7]);
    assert!(matches!(error(Request { layout: &unknown, ..request }), EmitError::UnknownBlock(BlockId(7))));
    let mut odd = order(&[0]);
    odd.hot[0].align = 3;
    assert!(matches!(error(Request { layout: &odd, ..request }), EmitError::Alignment(3)));
    let count = |counted: &[Counted], area| {
        let counters = Some(CounterRequest {
            area_start: Svma::new(area),
            width: CounterWidth::Bits64,
            counted,
            votes: &[],
        });
        error(Request { counters, ..request })
    };
    let block = Counted::Block(BlockId(0));
    assert!(matches!(count(&[block, block], 0x60_0000), EmitError::CountedTwice(1)));
    assert!(matches!(count(&[Counted::Edge(EdgeId(99))], 0x60_0000), EmitError::UnknownCounted(0)));
    assert!(matches!(count(&[block], 1 << 40), EmitError::CountersOutOfReach { .. }));
    let small = switch(2);
    assert_eq!(small.program.edges[0].kind, EdgeKind::Table);
    let layout = order(&[0]);
    let counted = [Counted::Edge(EdgeId(0))];
    let counters = Some(CounterRequest {
        area_start: Svma::new(0x60_0000),
        width: CounterWidth::Bits64,
        counted: &counted,
        votes: &[],
    });
    let error = emit(&Request { counters, ..small.request(&layout) }).unwrap_err();
    assert!(matches!(error, EmitError::TableEdge(EdgeId(0))));
    assert!(error.to_string().contains("count its target block instead"));
}

#[test]
fn counters_of_blocks_that_stay_are_missing_not_zero() {
    let small = diamond();
    let layout = order(&[0, 2]);
    let counted = [Counted::Block(BlockId(0)), Counted::Block(BlockId(1)), Counted::Block(BlockId(2))];
    let counters = Some(CounterRequest {
        area_start: Svma::new(0x60_0000),
        width: CounterWidth::Bits64,
        counted: &counted,
        votes: &[],
    });
    let version = checked(&Request { counters, ..small.request(&layout) });
    let table = version.counters.unwrap();
    assert_eq!((table.missing, table.counted.len(), table.area.len()), (vec![1], 3, 24));
}

#[test]
fn a_counter_moves_to_where_the_flags_are_dead() {
    // A: cmp; je B | B: setne al; test edi,edi; je .. | ...
    let code = [0x39, 0xf7, 0x74, 0x00, 0x0f, 0x95, 0xc0, 0x85, 0xff, 0xc3];
    let small = Small::new(
        &code,
        "function 0x401000..0x40100a f movable
           0x401000 +4 entry cond(4)/2 -> 0x401004
           0x401004 +6 target,flags-in return/1",
    );
    let layout = order(&[0, 1]);
    let counted = [Counted::Block(BlockId(1)), Counted::Edge(EdgeId(0))];
    let counters = Some(CounterRequest {
        area_start: Svma::new(0x60_0000),
        width: CounterWidth::Bits64,
        counted: &counted,
        votes: &[],
    });
    let version = checked(&Request { counters, ..small.request(&layout) });
    // Edge 0, the fall-through, keeps the flags; the block's counter waits for the setne.
    let code = hot(&version);
    assert_eq!(&code[4..9], [0x48, 0x8d, 0x64, 0x24, 0x80]);
    assert_eq!(&code[4 + 29..4 + 29 + 6], [0x0f, 0x95, 0xc0, 0x48, 0xff, 0x05]);
}

#[test]
fn no_redirect_stands_behind_a_system_call() {
    // Two bytes; mov $1, %eax; ret.
    let redirected = |first: [u8; 2]| {
        let code = [&first[..], &[0xb8, 1, 0, 0, 0, 0xc3]].concat();
        let small = Small::new(
            &code,
            "function 0x401000..0x401008 f movable redirectable\n0x401000 +8 entry return/1",
        );
        let layout = order(&[0]);
        let version = checked(&small.request(&layout));
        restitch_check::check(&small.image, &small.program, &layout, version.clone(), None).unwrap();
        version.redirects[0].at.offset_from(Svma::new(BASE))
    };
    assert_eq!(redirected([0x31, 0xc9]), 2, "xor %ecx, %ecx");
    for first in [[0x0f, 0x05], [0xcd, 0x80], [0x0f, 0x34]] {
        assert_eq!(redirected(first), 0, "{first:x?}");
    }
}
