//! The unwinder's hook: how C++ exceptions, `backtrace()` and `pthread_cancel` find the tables of moved frames.
//!
//! Problem: libgcc asks glibc's `_dl_find_object` which object holds a program counter; glibc knows nothing of our
//! versions. Idea: in glibc from 2.35 on that function is `mov GLRO,%rax; jmp *disp(%rax)`: it jumps through a pointer in the
//! loader's data. Replacing that pointer (one aligned 8-byte write) by the address of a small routine of ours hooks every lookup without
//! touching code. The routine compares with a short table of versions and jumps on to the original for all else. It uses
//! no stack, no lock, no memory but its table; a lookup costs 2 to 5 ns more.
//!
//! Limits: lookups through `dl_iterate_phdr` (LLVM's libunwind, older libgcc) do not see versions; static programs are
//! not hooked. The caller refuses those where exceptions could pass moved frames.
//!
//! Reference: glibc manual, "Dynamic Linker Introspection" (`struct dl_find_object`).

use crate::Target;
use crate::journal::JournalHook;
use restitch_address::{Avma, AvmaRange, Svma};
use restitch_x86::{Op, decode_one};

/// Length of the page with code and table.
pub(crate) const PAGE_LEN: u64 = 4096;
const ORIGINAL_AT: usize = 128;
const TABLE_AT: usize = 136;
const ENTRY_LEN: usize = 32;
/// One entry stays zero: the end mark.
pub(crate) const MOST_ENTRIES: usize = (PAGE_LEN as usize - TABLE_AT) / ENTRY_LEN - 1;

/// A row that matches nothing and is not the end. Rows never move: a thread that stands inside the routine goes on with
/// the next row, and must not miss the one that it is looking for.
pub(crate) const NO_ENTRY: HookEntry =
    HookEntry { range: AvmaRange { start: Avma::new(1), end: Avma::new(1) }, eh_frame_hdr: Avma::new(0) };

/// One row of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HookEntry {
    /// The version's mapping.
    pub range: AvmaRange,
    /// Its `.eh_frame_hdr`.
    pub eh_frame_hdr: Avma,
}

/// `int _dl_find_object(void *pc /* rdi */, struct dl_find_object *result /* rsi */)`.
#[rustfmt::skip]
const CODE: [u8; 76] = [
    0x48, 0x8d, 0x05, (TABLE_AT - 7) as u8, 0, 0, 0, // lea table(%rip),%rax
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
    0x48, 0x83, 0xc0, 0x20,             // add $32,%rax
    0xeb, (7 - 70i8) as u8,             // jmp next
    // original:
    0xff, 0x25, (ORIGINAL_AT - 76) as u8, 0, 0, 0, // jmp *original(%rip)
];

/// The page's bytes.
pub(crate) fn page(original: Avma, link_map: Avma, entries: &[HookEntry]) -> Vec<u8> {
    let mut out = vec![0; PAGE_LEN as usize];
    out[..CODE.len()].copy_from_slice(&CODE);
    out[ORIGINAL_AT..TABLE_AT].copy_from_slice(&original.get().to_le_bytes());
    for (i, e) in entries.iter().take(MOST_ENTRIES).enumerate() {
        let row = [e.range.start.get(), e.range.end.get(), link_map.get(), e.eh_frame_hdr.get()];
        for (j, word) in row.into_iter().enumerate() {
            let at = TABLE_AT + i * ENTRY_LEN + j * 8;
            out[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
    }
    out
}

/// Where the hook goes in a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct HookSite {
    /// The pointer that `_dl_find_object` jumps through.
    pub slot: Avma,
    /// Its original value.
    pub original: Avma,
    /// The program's link map.
    pub link_map: Avma,
    /// Our page, if the pointer leads there already: a restitch that was killed had got this far.
    pub page: Option<Avma>,
}

impl HookSite {
    /// The journal's form, for the hook at `page`.
    pub fn journal(&self, page: Avma) -> JournalHook {
        JournalHook {
            page: page.get(),
            len: PAGE_LEN,
            slot: self.slot.get(),
            original: self.original.get(),
            link_map: self.link_map.get(),
            rows: Vec::new(),
        }
    }
}

/// Whether the code at `page` is this hook; then the pointer's original value, which its page holds.
fn hooked(page: Avma, read: &mut impl FnMut(Avma) -> Option<u64>) -> Option<Avma> {
    for (i, word) in CODE.chunks_exact(8).enumerate() {
        if read(page + 8 * i as u64)?.to_le_bytes() != word {
            return None;
        }
    }
    read(page + ORIGINAL_AT as u64).map(Avma::new)
}

/// Finds the pointer. `read` reads 8 bytes of the process. The error says what is missing.
pub(crate) fn find_site(
    target: &Target,
    mut read: impl FnMut(Avma) -> Option<u64>,
) -> Result<HookSite, String> {
    let (module, function) = target
        .modules
        .iter()
        .find_map(|m| {
            let s = m.image.symbols().iter().find(|s| s.name.split('@').next() == Some("_dl_find_object"))?;
            m.path.to_string_lossy().contains("libc.so").then_some((m, s.range.start))
        })
        .ok_or("its C library has no _dl_find_object (glibc before 2.35, another C library, or a static program)")?;
    let shape = "the C library's _dl_find_object has an unknown form";
    let mut at = function;
    let mut pointer = None;
    for _ in 0..3 {
        let bytes = module.image.read_tail(at).ok_or(shape)?;
        let insn = decode_one(&bytes[..bytes.len().min(15)], at).ok_or(shape)?;
        match (insn.op, pointer) {
            (Op::Load { dst, mem, size: 8, .. }, None) if mem.rip => {
                pointer = Some((dst, Svma::new(mem.disp as u64)));
            }
            (Op::JumpMemory(mem), Some((reg, got))) if mem.base == Some(reg) && mem.index.is_none() => {
                let table = read(module.bias.to_actual(got)).ok_or("the loader's data cannot be read")?;
                let slot = Avma::new(table).offset(mem.disp);
                let value = Avma::new(read(slot).ok_or("the loader's data cannot be read")?);
                let ours = hooked(value, &mut read);
                let (original, page) = (ours.unwrap_or(value), ours.map(|_| value));
                let link_map =
                    link_map(target, &mut read).ok_or("the loader's list of objects cannot be read")?;
                return Ok(HookSite { slot, original, link_map, page });
            }
            // `endbr64` in front.
            (Op::Other, None) => {}
            _ => return Err(shape.into()),
        }
        at = insn.insn.end();
    }
    Err(shape.into())
}

/// The program's `struct link_map`, by way of DT_DEBUG's `struct r_debug`.
fn link_map(target: &Target, read: &mut impl FnMut(Avma) -> Option<u64>) -> Option<Avma> {
    const PT_DYNAMIC: u32 = 2;
    const DT_DEBUG: u64 = 21;
    let program = &target.modules[target.program];
    let dynamic = program.image.program_headers().iter().find(|h| h.kind == PT_DYNAMIC)?;
    let start = program.bias.to_actual(dynamic.address);
    for i in 0..dynamic.memory_len / 16 {
        match read(start + 16 * i)? {
            0 => break,
            DT_DEBUG => {
                let debug = Avma::new(read(start + 16 * i + 8)?);
                return read(debug + 8).filter(|m| *m != 0).map(Avma::new);
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_x86::{Flow, scan};

    #[test]
    fn the_routine_decodes_and_its_jumps_go_where_the_comments_say() {
        let mut insns = Vec::new();
        scan(&CODE, Svma::new(0), |i| insns.push(i)).unwrap();
        let targets: Vec<u64> = insns
            .iter()
            .filter_map(|i| match i.flow {
                Flow::Jump(t) | Flow::Conditional(_, t) => Some(t.get()),
                _ => None,
            })
            .collect();
        assert_eq!(targets, [70, 64, 64, 7]);
        assert_eq!(insns[0].names, Some(Svma::new(TABLE_AT as u64)));
        assert_eq!(insns.last().unwrap().names, Some(Svma::new(ORIGINAL_AT as u64)));
        assert!(insns.iter().any(|i| i.at == Svma::new(64)) && insns.iter().any(|i| i.at == Svma::new(70)));
    }
}
