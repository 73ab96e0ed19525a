//! What C++ personality routines leave behind in exception objects.
//!
//! Problem: while libstdc++ and libc++abi unwind, they note in the exception object what they have found: the
//! landing pad, and pointers into the function's exception table. The object is on the heap, and once it is
//! freed they may lie there for as long as the process lives, so a version could never be known to be out of
//! use. Answer: landing pads of versions are those of the original code (the emitter's and the checker's
//! rule), and pointers into tables at just these places of an exception object do not count. They are used
//! again only where the handler is an exception specification, which the object tells.
//!
//! Reference: Itanium C++ ABI, "Exception Handling", 2.2.1; `__cxa_exception` in libstdc++'s `unwind-cxx.h`
//! and in libc++abi's `cxa_exception.h`, which agree from `nextException` on.

use restitch_address::Avma;
use restitch_tracee::Memory;

/// Vendor and language, with the last byte that tells dependent exceptions (`std::rethrow_exception`) from
/// others.
const CLASSES: [u64; 4] =
    [class(b"GNUCC++\0"), class(b"GNUCC++\x01"), class(b"CLNGC++\0"), class(b"CLNGC++\x01")];
/// Distances to `unwindHeader.exception_class`.
const SWITCH_VALUE: u64 = 0x24;
const ACTION_RECORD: u64 = 0x20;
const TABLE: u64 = 0x18;

const fn class(name: &[u8; 8]) -> u64 {
    u64::from_be_bytes(*name)
}

/// Whether the word at `at` is a pointer into an exception table that was noted in an exception object and is
/// not looked at again.
pub(crate) fn is_spent_note(memory: &Memory, at: Avma) -> bool {
    [ACTION_RECORD, TABLE].into_iter().any(|back| {
        let header = at + back;
        let is_class = |word: u64| CLASSES.contains(&word);
        let mut switch_value = [0; 4];
        memory.read_u64(header).is_ok_and(is_class)
            && memory.read(header.offset(-(SWITCH_VALUE as i64)), &mut switch_value).is_ok()
            && i32::from_le_bytes(switch_value) >= 0
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An exception object in this process: 14 words, the class in the last but two.
    fn object(class: u64, switch_value: i32) -> [u64; 14] {
        let mut words = [0; 14];
        words[7] = 1 | u64::from(switch_value as u32) << 32;
        (words[8], words[9], words[10]) = (0x1000, 0x2000, 0x3000);
        words[12] = class;
        words
    }

    #[test]
    fn notes_count_only_for_exception_specifications() {
        let memory = Memory::open_read_only(std::process::id() as i32).expect("our own");
        let spent =
            |words: &[u64; 14], i: usize| is_spent_note(&memory, Avma::new(&raw const words[i] as u64));
        let caught = object(class(b"GNUCC++\0"), 2);
        let found: Vec<usize> = (0..14).filter(|i| spent(&caught, *i)).collect();
        assert_eq!(found, [8, 9], "the landing pad behind them counts");
        assert!(spent(&object(class(b"CLNGC++\x01"), 0), 9));
        assert!(!spent(&object(class(b"GNUCC++\0"), -1), 9));
        assert!(!spent(&object(class(b"GNUCRUST"), 1), 9));
    }
}
