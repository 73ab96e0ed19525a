//! Code that must stay where it is, by name or by signature.

use restitch_address::Svma;
use restitch_image::{Image, RelocationKind};
use std::collections::BTreeSet;

/// Functions that look at their return address, or come back to it later or twice. Their call sites stay in
/// the original code, so that what they remember is an original address.
///
/// Sources: setjmp(3), getcontext(3), makecontext(3), vfork(2), dlsym(3) (`RTLD_NEXT` and the default scope
/// are found by the caller's address), dlopen(3) (`$ORIGIN` and search path of the caller), glibc's `mcount`
/// family (gprof).
const LOOKS_AT_ITS_CALLER: &[&str] = &[
    "setjmp",
    "_setjmp",
    "__setjmp",
    "sigsetjmp",
    "__sigsetjmp",
    "savectx",
    "getcontext",
    "swapcontext",
    "makecontext",
    "vfork",
    "__vfork",
    "__libc_vfork",
    "dlsym",
    "dlvsym",
    "dlopen",
    "dlmopen",
    "__libc_dlsym",
    "__libc_dlopen_mode",
    "mcount",
    "_mcount",
    "__fentry__",
    "__gnu_mcount_nc",
];

/// Whether a call to the symbol `name` (without version suffix) has to stay in the original code.
pub(crate) fn looks_at_its_caller(name: &str) -> bool {
    LOOKS_AT_ITS_CALLER.contains(&without_version(name))
}

/// Whether a function of this name begins at its caller to unwind (Itanium C++ ABI, Exception Handling,
/// 1.1): unwinders find moved code.
pub(crate) fn unwinds(name: &str) -> bool {
    name.starts_with("_Unwind_")
}

/// A symbol's name without its `@version`.
pub(crate) fn without_version(name: &str) -> &str {
    name.split('@').next().unwrap_or(name)
}

/// Addresses in functions whose ends the C library compares program counters with: glibc's cancellation
/// handler tells by that whether a system call was entered already.
pub(crate) fn compared_by_c_library(image: &Image) -> impl Iterator<Item = Svma> {
    let is_one = |name: &str| matches!(name, "__syscall_cancel_arch" | "__syscall_cancel_arch_start");
    image.symbols().iter().filter(move |symbol| is_one(&symbol.name)).map(|symbol| symbol.range.start)
}

/// Addresses in restartable sequences: their functions are not moved, because the kernel compares program
/// counters with the ranges in their descriptors (rseq(2); signature 0x53053053 in front of each abort
/// handler).
pub(crate) fn restartable_sequences(image: &Image) -> Vec<Svma> {
    const SIGNATURE: [u8; 4] = 0x5305_3053u32.to_le_bytes();
    let mut handlers = BTreeSet::new();
    for range in image.executable_ranges() {
        let Some(bytes) = image.read(range.start, range.len() as usize) else { continue };
        let mut from = 0;
        while let Some(i) = find(&bytes[from..], SIGNATURE) {
            handlers.insert(range.start + (from + i + 4) as u64);
            from += i + 1;
        }
    }
    if handlers.is_empty() {
        return Vec::new();
    }
    let mut out: Vec<Svma> = handlers.iter().copied().collect();
    // struct rseq_cs { u32 version, flags; u64 start_ip, post_commit_offset, abort_ip; }, by value or by
    // relocation.
    for r in image.relocations() {
        if let RelocationKind::Relative { target } = r.kind
            && handlers.contains(&target)
            && let Some(start) = image.relocation_at(r.at - 16)
            && let RelocationKind::Relative { target } = start.kind
        {
            out.push(target);
        }
    }
    for segment in image.segments().iter().filter(|s| !s.executable) {
        let Some(bytes) = image.read(segment.range.start, segment.file_len as usize) else { continue };
        for chunk in 2..bytes.len() / 8 {
            let word = |i: usize| {
                Svma::new(u64::from_le_bytes(bytes[8 * i..8 * i + 8].try_into().expect("8 bytes")))
            };
            if handlers.contains(&word(chunk)) {
                out.push(word(chunk - 2));
            }
        }
    }
    out
}

/// The first place of four bytes.
fn find(haystack: &[u8], needle: [u8; 4]) -> Option<usize> {
    // So many places at once, so that the compiler makes vector instructions of it.
    const AT_ONCE: usize = 256;
    let [a, b, c, d] = needle;
    let mut from = 0;
    while let Some(chunk) = haystack.get(from..from + AT_ONCE + 3) {
        let (bs, cs, ds) = (&chunk[1..], &chunk[2..], &chunk[3..]);
        let is_here = |i: usize| (chunk[i] == a) & (bs[i] == b) & (cs[i] == c) & (ds[i] == d);
        if (0..AT_ONCE).fold(false, |any, i| any | is_here(i)) {
            break;
        }
        from += AT_ONCE;
    }
    haystack[from..].windows(4).position(|w| w == needle).map(|i| from + i)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_bytes_are_found_wherever_they_are() {
        for len in [0, 3, 4, 258, 259, 260, 515, 1000] {
            assert_eq!(find(&vec![5; len], [5, 1, 2, 5]), None, "{len}");
            for at in 0..(len.max(3) - 3) {
                let mut bytes = vec![5; len];
                bytes[at..at + 4].copy_from_slice(&[5, 1, 2, 5]);
                assert_eq!(find(&bytes, [5, 1, 2, 5]), Some(at), "{len}");
            }
        }
    }
}
