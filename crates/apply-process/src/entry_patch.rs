//! The jumps that lead out of code: their bytes, and where they may be.

use restitch_address::Avma;

/// Length of a redirect.
pub(crate) const LEN: usize = 5;
/// The bytes of one.
pub(crate) type Bytes = [u8; LEN];

/// Whether a patch at `at` would lie on two pages. There is never one: a write that is cut short would leave half of it.
pub(crate) fn crosses_page(at: Avma) -> bool {
    at.align_down(4096) != (at + LEN as u64 - 1).align_down(4096)
}

/// `jmp to` at `at`.
pub(crate) fn jump(at: Avma, to: Avma) -> Option<Bytes> {
    let displacement = i32::try_from(to.offset_from(at + LEN as u64)).ok()?;
    let d = displacement.to_le_bytes();
    Some([0xe9, d[0], d[1], d[2], d[3]])
}
