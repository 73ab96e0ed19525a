//! The hook's code: routines that answer an unwinder's question for moved code, and the table that they read.
//!
//! The code is position independent and freestanding: no lock, no allocation, no system call, no thread-local
//! data.
//!
//! * `find` stands in for `_dl_find_object`: it compares with the table's rows and jumps on to the original
//!   for all else. It uses no stack; a lookup costs 2 to 5 ns more.
//! * `iterate` stands in for `dl_iterate_phdr`: it calls the original with a callback of its own, `each`.
//!   That passes each object on with a `dlpi_adds` that changes with every change of the table (unwinders
//!   cache by it), and reports the versions right behind the first object.
//!
//! Why behind the first and not behind the last: the first object has to be the program; and glibc holds its
//! lock while it calls back, under which older libgcc keeps a cache without a lock of its own. Behind the
//! last one the lock is gone. A callback that returns non-zero ends the iteration with that value, as the
//! original does.
//!
//! Rows never move, and are used again only while nobody stands in the code: a thread that was stopped inside
//! goes on with the next row. A version is unmapped only when no register and no stack word leads into it: a
//! callback may be reading its headers.
//!
//! The page is an ELF image with unwind tables of its own (row 0), so that a callback may throw, and signal
//! handlers may unwind.
//!
//! Reference: glibc manual, "Dynamic Linker Introspection" (`struct dl_find_object`); dl_iterate_phdr(3).

use crate::hook::detour::{Displaced, MOST_TRAMPOLINE};
use crate::state::hook_journal::{CODE_LEN, ENTRY_LEN, MOST_ENTRIES, TABLE_AT};
use restitch_address::{Avma, AvmaRange, Svma, SvmaRange};
use restitch_cfi::{Cfa, CfiError, FrameState, Register, RegisterRule, Row, Run, UnwindInfo};
use std::sync::Arc;

/// Where the routine for `_dl_find_object` begins.
pub(crate) const FIND_AT: u64 = 0x100;
/// Where the routine for `dl_iterate_phdr` begins.
pub(crate) const ITERATE_AT: u64 = 0x180;
/// Where the displaced beginning of `_dl_find_object` goes.
pub(crate) const FIND_TRAMPOLINE_AT: u64 = 0x2a0;
/// Where the displaced beginning of `dl_iterate_phdr` goes.
pub(crate) const ITERATE_TRAMPOLINE_AT: u64 = 0x2c0;
/// Where the word is that `find` goes on through.
pub(crate) const ORIGINAL_AT: u64 = 0x300;
/// Where the word is that is added to `dlpi_adds`.
pub(crate) const GENERATION_AT: u64 = 0x308;
const EH_FRAME_HDR_AT: u64 = 0x320;

const _: () = assert!(64 + 2 * 56 <= FIND_AT && FIND_AT + FIND.len() as u64 <= ITERATE_AT);
const _: () = assert!(ITERATE_AT + ITERATE.len() as u64 <= FIND_TRAMPOLINE_AT);
const _: () = assert!(GENERATION_AT + 8 <= EH_FRAME_HDR_AT);
const _: () = assert!(FIND_TRAMPOLINE_AT + MOST_TRAMPOLINE as u64 <= ITERATE_TRAMPOLINE_AT);
const _: () = assert!(ITERATE_TRAMPOLINE_AT + MOST_TRAMPOLINE as u64 <= ORIGINAL_AT);

/// A row that matches nothing and is not the end.
const NO_START: u64 = 1;

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HookEntry {
    /// The mapping.
    pub range: AvmaRange,
    /// Its `.eh_frame_hdr`.
    pub eh_frame_hdr: Avma,
    /// Address of its name.
    pub name: Avma,
}

/// `int _dl_find_object(void *pc /* rdi */, struct dl_find_object *result /* rsi */)`.
#[rustfmt::skip]
const FIND: [u8; 76] = [
    0x48, 0x8d, 0x05, 0xf9, 0x06, 0, 0, // lea table(%rip),%rax
    // next:
    0x48, 0x8b, 0x08,                   // mov (%rax),%rcx
    0x48, 0x85, 0xc9,                   // test %rcx,%rcx
    0x74, 70 - 15,                      // je original
    0x48, 0x39, 0xcf,                   // cmp %rcx,%rdi
    0x72, 64 - 20,                      // jb skip
    0x48, 0x3b, 0x78, 0x08,             // cmp 8(%rax),%rdi
    0x73, 64 - 26,                      // jae skip
    0x48, 0xc7, 0x06, 0, 0, 0, 0,       // movq $0,(%rsi)          flags
    0x48, 0x89, 0x4e, 0x08,             // mov %rcx,8(%rsi)        map_start
    0x48, 0x8b, 0x50, 0x08,             // mov 8(%rax),%rdx
    0x48, 0x89, 0x56, 0x10,             // mov %rdx,16(%rsi)       map_end
    0x48, 0x8b, 0x50, 0x10,             // mov 16(%rax),%rdx
    0x48, 0x89, 0x56, 0x18,             // mov %rdx,24(%rsi)       link_map
    0x48, 0x8b, 0x50, 0x18,             // mov 24(%rax),%rdx
    0x48, 0x89, 0x56, 0x20,             // mov %rdx,32(%rsi)       eh_frame
    0x31, 0xc0,                         // xor %eax,%eax
    0xc3,                               // ret
    // skip:
    0x48, 0x83, 0xc0, ENTRY_LEN as u8,  // add $40,%rax
    0xeb, (7 - 70i8) as u8,             // jmp next
    // original:
    0xff, 0x25, 0xb4, 0x01, 0, 0,       // jmp *original(%rip)
];

/// `int dl_iterate_phdr(callback /* rdi */, void *data /* rsi */)`, and the callback that it hands to the
/// original. On its stack: callback, data, whether the versions were reported, and the table's number when it
/// began.
#[rustfmt::skip]
const ITERATE: [u8; 276] = [
    0x48, 0x83, 0xec, 0x28,                   // 000 sub $40,%rsp
    0x48, 0x89, 0x3c, 0x24,                   // 004 mov %rdi,(%rsp)
    0x48, 0x89, 0x74, 0x24, 0x08,             // 008 mov %rsi,8(%rsp)
    0x48, 0xc7, 0x44, 0x24, 0x10, 0, 0, 0, 0, // 00d movq $0,16(%rsp)
    0x48, 0x8b, 0x05, 0x6b, 0x01, 0, 0,       // 016 mov generation(%rip),%rax
    0x48, 0x89, 0x44, 0x24, 0x18,             // 01d mov %rax,24(%rsp)         one number for all objects
    0x48, 0x8d, 0x3d, 0x0d, 0, 0, 0,          // 022 lea each(%rip),%rdi
    0x48, 0x89, 0xe6,                         // 029 mov %rsp,%rsi
    0xe8, 0x0f, 0x01, 0, 0,                   // 02c call trampoline
    0x48, 0x83, 0xc4, 0x28,                   // 031 add $40,%rsp
    0xc3,                                     // 035 ret
    // each(struct dl_phdr_info * /* rdi */, size_t /* rsi */, void * /* rdx */):
    0xf3, 0x0f, 0x1e, 0xfa,                   // 036 endbr64
    0x53,                                     // 03a push %rbx
    0x55,                                     // 03b push %rbp
    0x48, 0x83, 0xec, 0x58,                   // 03c sub $88,%rsp
    0x48, 0x89, 0xd3,                         // 040 mov %rdx,%rbx
    0x48, 0x83, 0xfe, 0x40,                   // 043 cmp $64,%rsi
    0x0f, 0x82, 0xbf, 0, 0, 0,                // 047 jb plain              a structure of before glibc 2.4
    0x0f, 0x10, 0x07,                         // 04d movups (%rdi),%xmm0   a copy of our own
    0x0f, 0x10, 0x4f, 0x10,                   // 050 movups 16(%rdi),%xmm1
    0x0f, 0x10, 0x57, 0x20,                   // 054 movups 32(%rdi),%xmm2
    0x0f, 0x10, 0x5f, 0x30,                   // 058 movups 48(%rdi),%xmm3
    0x0f, 0x11, 0x04, 0x24,                   // 05c movups %xmm0,(%rsp)
    0x0f, 0x11, 0x4c, 0x24, 0x10,             // 060 movups %xmm1,16(%rsp)
    0x0f, 0x11, 0x54, 0x24, 0x20,             // 065 movups %xmm2,32(%rsp)
    0x0f, 0x11, 0x5c, 0x24, 0x30,             // 06a movups %xmm3,48(%rsp)
    0x48, 0x8b, 0x43, 0x18,                   // 06f mov 24(%rbx),%rax
    0x48, 0x01, 0x44, 0x24, 0x20,             // 073 add %rax,32(%rsp)     dlpi_adds
    0x0f, 0x10, 0x44, 0x24, 0x20,             // 078 movups 32(%rsp),%xmm0 adds and subs, for the versions
    0x0f, 0x11, 0x44, 0x24, 0x40,             // 07d movups %xmm0,64(%rsp)
    0x48, 0x89, 0xe7,                         // 082 mov %rsp,%rdi
    0xbe, 0x40, 0, 0, 0,                      // 085 mov $64,%esi
    0x48, 0x8b, 0x53, 0x08,                   // 08a mov 8(%rbx),%rdx
    0xff, 0x13,                               // 08e call *(%rbx)
    0x85, 0xc0,                               // 090 test %eax,%eax
    0x75, 0x71,                               // 092 jne out
    0x83, 0x7b, 0x10, 0,                      // 094 cmpl $0,16(%rbx)
    0x75, 0x6b,                               // 098 jne out
    0xc7, 0x43, 0x10, 0x01, 0, 0, 0,          // 09a movl $1,16(%rbx)
    0x48, 0x8d, 0x2d, 0xd8, 0x05, 0, 0,       // 0a1 lea table(%rip),%rbp
    // next:
    0x48, 0x8b, 0x45, 0,                      // 0a8 mov (%rbp),%rax
    0x48, 0x85, 0xc0,                         // 0ac test %rax,%rax
    0x74, 0x52,                               // 0af je done
    0x48, 0x83, 0xf8, NO_START as u8,         // 0b1 cmp $1,%rax
    0x74, 0x46,                               // 0b5 je skip
    0x48, 0x89, 0x04, 0x24,                   // 0b7 mov %rax,(%rsp)       dlpi_addr
    0x48, 0x8b, 0x4d, 0x20,                   // 0bb mov 32(%rbp),%rcx
    0x48, 0x89, 0x4c, 0x24, 0x08,             // 0bf mov %rcx,8(%rsp)      dlpi_name
    0x48, 0x8b, 0x48, 0x20,                   // 0c4 mov 32(%rax),%rcx     e_phoff
    0x48, 0x01, 0xc1,                         // 0c8 add %rax,%rcx
    0x48, 0x89, 0x4c, 0x24, 0x10,             // 0cb mov %rcx,16(%rsp)     dlpi_phdr
    0x0f, 0xb7, 0x48, 0x38,                   // 0d0 movzwl 56(%rax),%ecx  e_phnum
    0x48, 0x89, 0x4c, 0x24, 0x18,             // 0d4 mov %rcx,24(%rsp)     dlpi_phnum
    0x0f, 0x10, 0x44, 0x24, 0x40,             // 0d9 movups 64(%rsp),%xmm0
    0x0f, 0x11, 0x44, 0x24, 0x20,             // 0de movups %xmm0,32(%rsp) adds, subs
    0x0f, 0x57, 0xc0,                         // 0e3 xorps %xmm0,%xmm0
    0x0f, 0x11, 0x44, 0x24, 0x30,             // 0e6 movups %xmm0,48(%rsp) no thread-local data
    0x48, 0x89, 0xe7,                         // 0eb mov %rsp,%rdi
    0xbe, 0x40, 0, 0, 0,                      // 0ee mov $64,%esi
    0x48, 0x8b, 0x53, 0x08,                   // 0f3 mov 8(%rbx),%rdx
    0xff, 0x13,                               // 0f7 call *(%rbx)
    0x85, 0xc0,                               // 0f9 test %eax,%eax
    0x75, 0x08,                               // 0fb jne out
    // skip:
    0x48, 0x83, 0xc5, ENTRY_LEN as u8,        // 0fd add $40,%rbp
    0xeb, 0xa5,                               // 101 jmp next
    // done:
    0x31, 0xc0,                               // 103 xor %eax,%eax
    // out:
    0x48, 0x83, 0xc4, 0x58,                   // 105 add $88,%rsp
    0x5d,                                     // 109 pop %rbp
    0x5b,                                     // 10a pop %rbx
    0xc3,                                     // 10b ret
    // plain:
    0x48, 0x8b, 0x53, 0x08,                   // 10c mov 8(%rbx),%rdx
    0xff, 0x13,                               // 110 call *(%rbx)
    0xeb, 0xf1,                               // 112 jmp out
];

/// Whether `page` begins with this hook's routines.
pub(crate) fn is_ours(page: &[u8]) -> bool {
    let holds = |at: u64, code: &[u8]| page.get(at as usize..at as usize + code.len()) == Some(code);
    holds(FIND_AT, &FIND) && holds(ITERATE_AT, &ITERATE)
}

/// The functions that are detoured, with the unwind tables of their modules.
#[derive(Default)]
pub(crate) struct Trampolines<'a> {
    /// `_dl_find_object`, in actual addresses: module coordinates are translated by the difference.
    pub find: Option<(&'a Displaced, &'a UnwindInfo)>,
    /// `dl_iterate_phdr`.
    pub iterate: Option<(&'a Displaced, &'a UnwindInfo)>,
}

/// Everything of the page at `page` that does not change while it is in use: headers, code, unwind tables.
/// `original` is where `find` goes on.
pub(crate) fn fixed_part(
    page: Avma,
    original: Avma,
    trampolines: &Trampolines<'_>,
) -> Result<Vec<u8>, CfiError> {
    let mut out = vec![0; TABLE_AT as usize];
    let mut put = |at: u64, bytes: &[u8]| out[at as usize..at as usize + bytes.len()].copy_from_slice(bytes);
    put(FIND_AT, &FIND);
    put(ITERATE_AT, &ITERATE);
    for (at, displaced) in
        [(FIND_TRAMPOLINE_AT, trampolines.find), (ITERATE_TRAMPOLINE_AT, trampolines.iterate)]
    {
        if let Some((displaced, _)) = displaced {
            put(at, &displaced.code);
        }
    }
    put(ORIGINAL_AT, &original.get().to_le_bytes());
    let tables = unwind_tables(page, trampolines)?;
    let room = (TABLE_AT - EH_FRAME_HDR_AT) as usize;
    if tables.len() > room {
        let at = Svma::new(page.get());
        return Err(CfiError::Malformed { what: "the hook's .eh_frame", at, why: "it is too long" });
    }
    put(EH_FRAME_HDR_AT, &tables);
    put(0, &headers(tables.len() as u64));
    Ok(out)
}

/// Address of the page's own `.eh_frame_hdr`.
pub(crate) fn own_tables(page: Avma) -> Avma {
    page + EH_FRAME_HDR_AT
}

/// The ELF header and two program headers (System V ABI, chapters 4 and 5).
fn headers(tables: u64) -> Vec<u8> {
    let mut out = vec![0x7f, b'E', b'L', b'F', 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    let (kind, machine, version) = (3u16, 62u16, 1u32);
    out.extend_from_slice(&kind.to_le_bytes());
    out.extend_from_slice(&machine.to_le_bytes());
    out.extend_from_slice(&version.to_le_bytes());
    // e_entry, e_phoff, e_shoff, e_flags
    [0u64, 64, 0].iter().for_each(|w| out.extend_from_slice(&w.to_le_bytes()));
    out.extend_from_slice(&[0; 4]);
    [64u16, 56, 2, 0, 0, 0].iter().for_each(|w| out.extend_from_slice(&w.to_le_bytes()));
    let (load, eh_frame) = ((1u32, 5u32, 0, CODE_LEN), (0x6474_e550u32, 4u32, EH_FRAME_HDR_AT, tables));
    for (kind, flags, at, len) in [load, eh_frame] {
        out.extend_from_slice(&kind.to_le_bytes());
        out.extend_from_slice(&flags.to_le_bytes());
        [at, at, at, len, len, 4].iter().for_each(|w| out.extend_from_slice(&w.to_le_bytes()));
    }
    out
}

/// `.eh_frame_hdr` and, behind it, `.eh_frame`.
fn unwind_tables(page: Avma, trampolines: &Trampolines<'_>) -> Result<Vec<u8>, CfiError> {
    let base = Svma::new(page.get());
    let mut runs = vec![run(base + FIND_AT, FIND.len(), &[(0, 8, 0)])];
    // (offset, CFA - rsp, how many of rbx and rbp are saved)
    let iterate = [(0, 8, 0), (4, 48, 0), (0x35, 8, 0), (0x3b, 16, 1), (0x3c, 24, 2)];
    let each = [(0x40, 112, 2), (0x109, 24, 2), (0x10a, 16, 1), (0x10b, 8, 0), (0x10c, 112, 2)];
    let rows: Vec<_> = iterate.into_iter().chain(each).collect();
    runs.push(run(base + ITERATE_AT, ITERATE.len(), &rows));
    for (at, displaced) in
        [(FIND_TRAMPOLINE_AT, trampolines.find), (ITERATE_TRAMPOLINE_AT, trampolines.iterate)]
    {
        runs.extend(displaced.and_then(|(d, unwind)| d.run(unwind, base + at)));
    }
    let hdr = base + EH_FRAME_HDR_AT;
    let eh_frame_at = hdr + (12 + 8 * runs.len() as u64);
    let eh_frame = restitch_cfi::write_eh_frame(eh_frame_at, &runs)?;
    let mut out = restitch_cfi::write_eh_frame_hdr(hdr, eh_frame_at, &eh_frame.entries)?;
    out.extend_from_slice(&eh_frame.bytes);
    Ok(out)
}

fn run(start: Svma, len: usize, rows: &[(u64, i64, usize)]) -> Run {
    let state = |cfa: i64, saved: usize| {
        let cfa_rule = Cfa::RegisterOffset { register: Register::RSP, offset: cfa };
        let mut state = FrameState { cfa: cfa_rule, ..FrameState::at_entry() };
        let (rbx, rbp) = ((Register(3), -16), (Register(6), -24));
        for (register, offset) in [rbx, rbp].into_iter().take(saved).rev() {
            state.registers.insert(0, (register, RegisterRule::Offset(offset)));
        }
        Arc::new(state)
    };
    Run {
        range: SvmaRange::new(start, len as u64),
        rows: rows
            .iter()
            .map(|(at, cfa, saved)| Row { start: start + *at, state: state(*cfa, *saved) })
            .collect(),
        personality: None,
        lsda: None,
        signal_frame: false,
    }
}

/// The table's bytes, row 0 (the page itself) included. `None` is a row that is free.
pub(crate) fn table(page: Avma, own_name: Avma, link_map: Avma, entries: &[Option<HookEntry>]) -> Vec<u8> {
    let own =
        HookEntry { range: AvmaRange::new(page, CODE_LEN), eh_frame_hdr: own_tables(page), name: own_name };
    let mut out = Vec::with_capacity((CODE_LEN - TABLE_AT) as usize);
    for entry in std::iter::once(Some(own)).chain(entries.iter().take(MOST_ENTRIES).copied()) {
        let row = match entry {
            Some(e) => {
                let range = (e.range.start.get(), e.range.end.get());
                [range.0, range.1, link_map.get(), e.eh_frame_hdr.get(), e.name.get()]
            }
            None => [NO_START, NO_START, 0, 0, 0],
        };
        row.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
    }
    out.resize((CODE_LEN - TABLE_AT) as usize, 0);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_x86::{Flow, scan};

    fn decoded(code: &[u8], at: u64) -> Vec<restitch_x86::Insn> {
        let mut insns = Vec::new();
        scan(code, Svma::new(at), |i| insns.push(i)).unwrap();
        insns
    }

    fn targets(insns: &[restitch_x86::Insn], at: u64) -> Vec<u64> {
        let target = |i: &restitch_x86::Insn| match i.flow {
            Flow::Jump(t) | Flow::Conditional(_, t) | Flow::Call(t) => Some(t.get() - at),
            _ => None,
        };
        insns.iter().filter_map(target).collect()
    }

    #[test]
    fn the_find_routine_goes_where_its_comments_say() {
        let insns = decoded(&FIND, FIND_AT);
        assert_eq!(targets(&insns, FIND_AT), [70, 64, 64, 7]);
        assert_eq!(insns[0].names, Some(Svma::new(TABLE_AT)));
        assert_eq!(insns.last().unwrap().names, Some(Svma::new(ORIGINAL_AT)));
    }

    #[test]
    fn the_iterate_routine_goes_where_its_comments_say() {
        let insns = decoded(&ITERATE, ITERATE_AT);
        let trampoline = ITERATE_TRAMPOLINE_AT - ITERATE_AT;
        let wanted = [trampoline, 0x10c, 0x105, 0x105, 0x103, 0xfd, 0x105, 0xa8, 0x105];
        assert_eq!(targets(&insns, ITERATE_AT), wanted);
        let names: Vec<u64> = insns.iter().filter_map(|i| i.names).map(Svma::get).collect();
        assert_eq!(names, [GENERATION_AT, ITERATE_AT + 0x36, TABLE_AT]);
        for label in wanted.iter().skip(1) {
            assert!(insns.iter().any(|i| i.at.get() == ITERATE_AT + label), "{label:#x}");
        }
    }

    #[test]
    fn the_page_describes_its_own_frames() {
        let page = Avma::new(0x7000_0000);
        let fixed = fixed_part(page, Avma::new(0x1234), &Trampolines::default()).unwrap();
        assert!(is_ours(&fixed));
        let base = Svma::new(page.get());
        let hdr_at = base + EH_FRAME_HDR_AT;
        let memory = restitch_cfi::Bytes { at: base, bytes: &fixed };
        let hdr = restitch_cfi::read_eh_frame_hdr(&memory, hdr_at).unwrap();
        let from = hdr.eh_frame.offset_from(base) as usize;
        let info = UnwindInfo::parse(&fixed[from..], hdr.eh_frame).unwrap();
        let row = |at: u64| info.row_at(base + ITERATE_AT + at).unwrap().unwrap().state.cfa.clone();
        let rsp = |offset| Cfa::RegisterOffset { register: Register::RSP, offset };
        assert_eq!(row(0x31), rsp(48), "behind the call of the original");
        assert_eq!(row(0x36), rsp(8));
        assert_eq!(row(0x90), rsp(112), "behind the call back");
        assert_eq!(row(0xf9), rsp(112));
        assert_eq!(row(0x112), rsp(112));
    }

    #[test]
    fn a_free_row_is_no_end() {
        let entry = HookEntry {
            range: AvmaRange::new(Avma::new(0x1000), 0x1000),
            eh_frame_hdr: Avma::new(0x1100),
            name: Avma::new(5),
        };
        let bytes = table(Avma::new(0x10_0000), Avma::new(3), Avma::new(9), &[None, Some(entry)]);
        let word = |row: usize, i: usize| {
            let at = row * ENTRY_LEN as usize + 8 * i;
            u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap())
        };
        assert_eq!((word(0, 0), word(0, 3)), (0x10_0000, 0x10_0000 + EH_FRAME_HDR_AT));
        assert_eq!((word(1, 0), word(1, 1)), (1, 1));
        let row: Vec<u64> = (0..5).map(|i| word(2, i)).collect();
        assert_eq!(row, [0x1000, 0x2000, 9, 0x1100, 5]);
        assert_eq!(word(3, 0), 0);
        assert_eq!(bytes.len() as u64, CODE_LEN - TABLE_AT);
    }
}
