//! What a tracing version and its tracer share: a window of memory near each module, all windows being one
//! file. That of the first module is the whole file; the others have the words, which code reaches relative
//! to the program counter. The table is found by its address.
//!
//! ```text
//! 0        words: where to write next, whether a burst is under way, registers that inserted code has taken
//! 4096     records of 4 bytes: the number of a direct branch, or where in the table the target of an indirect one stands
//! TABLE    from original to copied addresses: pairs of 8-byte addresses, open addressing, zero for none
//! ```
//! One thread at a time is in a burst. Addresses in the window are those of the process.

use crate::page::LARGE_PAGE;
use restitch_address::{Avma, PAGE, Svma, SvmaRange};

/// Where the next record is written: the address in the first module's window. A burst is over when its low
/// 16 bits are zero.
pub const CURSOR: u64 = 0;
/// [`RUNNING`] while a thread is in a burst; else why the last one ended.
pub const STATE: u64 = 8;
/// `rcx` of the program, while inserted code uses it.
pub const SAVED_RCX: u64 = 16;
/// `rax`.
pub const SAVED_RAX: u64 = 24;
/// `rdx`.
pub const SAVED_RDX: u64 = 32;
/// Status flags: `lahf` in bits 8 to 15, the overflow flag in bit 0.
pub const SAVED_FLAGS: u64 = 40;
/// Where an indirect branch that is looked up is left, if its target has no copy.
pub const SITE: u64 = 48;
/// Where it goes in the copy.
pub const TARGET: u64 = 56;
/// Where it goes in the original code.
pub const ORIGINAL: u64 = 64;
/// The return address that an indirect call pushes.
pub const RETURN: u64 = 72;
/// Bytes of a window that has the words only.
pub const WORDS_LEN: u64 = PAGE;
/// In records of indirect branches; numbers of direct ones have not this bit. The others are the offset of
/// the target's pair in the table.
pub const INDIRECT: u32 = 1 << 31;

/// [`STATE`]: a thread is in a burst.
pub const RUNNING: u32 = 1;
/// [`STATE`]: the burst has all of its records.
pub const FULL: u32 = 2;
/// [`STATE`]: it came to code that is not copied.
pub const NO_COPY: u32 = 3;
/// [`STATE`]: an indirect branch went to code that is not copied.
pub const NO_TARGET: u32 = 4;
/// [`STATE`]: the tracer took the thread out (a signal).
pub const TAKEN_OUT: u32 = 5;

/// Where records begin.
pub const RECORDS: u64 = WORDS_LEN;
/// The address behind the last record is a multiple of this.
pub const RECORDS_END: u64 = 1 << 16;
/// Most bytes of records in a burst.
pub const MOST_RECORDS: u64 = 62 << 10;
/// Where the table begins.
pub const TABLE: u64 = RECORDS + 2 * RECORDS_END + PAGE;
/// Further pairs behind the table, so that no search has to wrap. The last ones stay empty.
pub const TABLE_SLACK: u64 = 1024;
/// Where a stretch of code begins in the table: at the high bits of the product of this and the stretch's
/// number (Knuth's multiplicative hashing).
pub const HASH: u64 = 0x9e37_79b9_7f4a_7c15;
/// Addresses of one stretch of `2^STRETCH` bytes are near each other in the table. A burst begins with cold
/// caches and address translations; were each address anywhere, its look-ups would touch nearly as many pages
/// as there are targets (cc1plus: 376 pages for 400 return addresses of 100 places, 138 with stretches, at
/// the same mean length of searches).
pub const STRETCH: u8 = 9;
/// ... a pair apart for each `2^APART` bytes: blocks have more on average.
pub const APART: u8 = 3;

/// Where the search for an address begins in a table with `2^bits` pairs.
pub fn slot(address: Avma, bits: u8) -> usize {
    let (address, within) = (address.get(), (1 << (STRETCH - APART)) - 1);
    let stretch = (address >> STRETCH).wrapping_mul(HASH) >> (64 - u32::from(bits));
    stretch as usize + ((address >> APART) & within) as usize
}

/// Length in bytes of a whole window whose table has `2^bits` pairs. Large ones are made of whole
/// [`LARGE_PAGE`]s: a look-up touches any of their small pages, which costs an address translation that is
/// not cached, and the first time a fault (3 to 6 us for sixteen pages).
pub fn window_len(bits: u8) -> u64 {
    let len = TABLE + 16 * ((1 << bits) + TABLE_SLACK);
    len.next_multiple_of(if len < LARGE_PAGE { PAGE } else { LARGE_PAGE })
}

/// The table that leads from `pairs` of original and copied addresses, from the first to the second; `None`
/// if they are too many for `2^bits`.
pub fn table(pairs: &[(Avma, Avma)], bits: u8) -> Option<Vec<u8>> {
    let len = (1usize << bits) + TABLE_SLACK as usize;
    let mut slots = vec![(0u64, 0u64); len];
    for (from, to) in pairs {
        let first = slot(*from, bits);
        // The last pair stays empty: searches end there.
        let found = (first..len - 1).find(|i| slots[*i].0 == 0 || slots[*i].0 == from.get())?;
        slots[found] = (from.get(), to.get());
    }
    let mut bytes = Vec::with_capacity(16 * len);
    for (from, to) in slots {
        bytes.extend_from_slice(&from.to_le_bytes());
        bytes.extend_from_slice(&to.to_le_bytes());
    }
    Some(bytes)
}

/// Takes the pair of `from` out of a table with `2^bits` pairs; all others stay where they are. What is left
/// is an address that nobody can come from, and that leads to itself.
pub fn strike(table: &mut [u8], from: Avma, bits: u8) {
    let (pairs, _) = table.as_chunks_mut::<16>();
    for pair in &mut pairs[slot(from, bits)..] {
        let key: [u8; 8] = std::array::from_fn(|i| pair[i]);
        match u64::from_le_bytes(key) {
            0 => return,
            found if found == from.get() => return *pair = [0xff; 16],
            _ => {}
        }
    }
}

/// What there is to know about a tracing version beside its code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BurstTable {
    /// The window near this version, in canonical coordinates: a whole one, or one of [`WORDS_LEN`] bytes.
    pub window: SvmaRange,
    /// Where look-ups find the table, in the whole window of this or another module.
    pub table: Avma,
    /// The window's table has `2^bits` pairs.
    pub bits: u8,
    /// Number of the first branch.
    pub first: u32,
    /// What the numbers mean.
    pub branches: Vec<BurstBranch>,
    /// Branches that no record names, by address: who comes to one takes it, and where it goes is known, or
    /// is what the next record says.
    pub unnamed: Vec<BurstBranch>,
    /// Where code is left that a thread has come to without a branch, by address: the original instructions
    /// that come next.
    pub leaves: Vec<Svma>,
    /// Where indirect branches may come in: original address and its copy, by original address.
    pub entries: Vec<(Svma, Svma)>,
    /// Inserted code by address: what a thread has to be given back that is taken out there.
    pub inserted: Vec<Inserted>,
}

/// A branch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct BurstBranch {
    /// The branch instruction.
    pub from: Svma,
    /// Its target; `None` where a record says it.
    pub to: Option<Svma>,
}

/// Instructions that are not the program's, among which the same is to be done to leave.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Inserted {
    /// The first one.
    pub at: Svma,
    /// Length in bytes of all.
    pub len: u32,
    /// What is taken of the program's state.
    pub taken: Taken,
    /// Where the program goes on.
    pub leads: Leads,
}

/// What of the program's state is in the window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Taken {
    /// Nothing.
    Nothing,
    /// `rcx`.
    Rcx,
    /// `rcx` and `rax`.
    RcxRax,
    /// `rcx`, `rax`, `rdx` and the status flags.
    All,
}

/// Where a thread that is in inserted code goes on in the original code.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Leads {
    /// To this instruction.
    To(Svma),
    /// To what the instruction at the address in [`SITE`] is equivalent to.
    ToSite,
    /// To what the instruction at the address in `rax` is equivalent to.
    ToRax,
    /// To the address in [`ORIGINAL`].
    ToOriginal,
}

impl BurstTable {
    /// The inserted code that holds `at`.
    pub fn inserted_at(&self, at: Svma) -> Option<&Inserted> {
        let i = self.inserted.partition_point(|p| p.at.offset_from(at) <= 0).checked_sub(1)?;
        let found = &self.inserted[i];
        ((at.offset_from(found.at) as u64) < u64::from(found.len)).then_some(found)
    }
}
