//! Where a borrowed thread runs: 11 bytes in dead padding.

use crate::error::TraceError;
use restitch_address::Avma;
use restitch_procfs::Mapping;
use restitch_x86::filler::{filler_len, is_filler_byte};
use restitch_x86::patch::BREAKPOINT;
use restitch_x86::system_call::{CALL, CALLS};

/// Bytes of padding that a place for the stub must have.
pub const STUB_SPACE: usize = 16;

/// Bytes of padding with which several system calls can be made in one go ([`crate::Batch`]).
pub const BATCH_SPACE: usize = STUB_SPACE + 64;

/// Whether `bytes` consist of filler (int3, zero pairs, nops) from the first to the last.
pub fn is_padding(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    while !rest.is_empty() {
        match filler_len(rest) {
            0 => return false,
            len => rest = &rest[len.min(rest.len())..],
        }
    }
    true
}

/// Finds [`STUB_SPACE`] bytes that are nothing but filler within `bytes`, which are at `start` in the
/// process.
///
/// The caller must pass **dead** bytes only: those between the end of one function and the start of the next,
/// or behind the last byte of an executable segment in its last page. Inside a function, filler before a loop
/// is executed.
pub fn find_padding(bytes: &[u8], start: Avma) -> Option<Avma> {
    let (mut at, mut run) = (0, 0);
    while at < bytes.len() {
        match filler_len(&bytes[at..]) {
            0 => (at, run) = (at + 1, at + 1),
            len => at += len,
        }
        if at.min(bytes.len()) - run.min(at) >= STUB_SPACE {
            return Some(start + run as u64);
        }
    }
    None
}

/// A place in one process that was found fit for the stub.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StubPlace {
    at: Avma,
    len: usize,
    /// What stands there, if that is no padding.
    dead: Option<[u8; STUB_SPACE]>,
}

impl StubPlace {
    /// Checks that `at` begins [`STUB_SPACE`] bytes in an executable, private mapping of the process `pid`
    /// whose `maps` these are. The bytes themselves are checked when the stub is written. To be called before
    /// the stop, since reading maps takes time; the mapping must stay (take it from the program, not from a
    /// library that may be closed). A process without any mapping has just ended.
    pub fn new(pid: i32, at: Avma, maps: &[Mapping]) -> Result<Self, TraceError> {
        if maps.is_empty() {
            return Err(TraceError::Vanished { tid: pid, operation: "a thread was to be borrowed" });
        }
        let end = at + STUB_SPACE as u64;
        let mapping = maps.iter().find(|m| m.range.contains(at) && m.range.contains(end - 1));
        let refuse = |why: &str| TraceError::NoStubPlace { pid, at, why: why.to_owned() };
        let permissions = mapping.ok_or_else(|| refuse("nothing is mapped there"))?.permissions;
        match (permissions.execute, permissions.shared) {
            (false, _) => Err(refuse("the mapping is not executable")),
            (_, true) => Err(refuse("the mapping is shared, writing would reach the file")),
            (true, false) => Ok(Self { at, len: STUB_SPACE, dead: None }),
        }
    }

    /// Says that [`BATCH_SPACE`] bytes of padding are there, in the same page.
    pub fn with_room(self) -> Self {
        Self { len: BATCH_SPACE, ..self }
    }

    /// Says that `bytes`, which stand there, are dead although they are no padding: they were executed for
    /// the last time.
    pub fn with_dead(self, bytes: [u8; STUB_SPACE]) -> Self {
        Self { dead: Some(bytes), ..self }
    }

    /// How many bytes are used.
    pub(crate) fn len(self) -> usize {
        self.len
    }

    /// The address.
    pub fn address(self) -> Avma {
        self.at
    }

    /// What stands in a place with `len` bytes of padding while a thread is borrowed. Whoever replaces the
    /// page meanwhile has to put it into the new one.
    pub fn code(len: usize) -> Vec<u8> {
        let mut code = CALL.to_vec();
        if len >= BATCH_SPACE {
            code.resize(STUB_SPACE, BREAKPOINT);
            code.extend_from_slice(&CALLS);
        }
        code
    }

    /// An error unless the bytes there are filler or a stub that an earlier, killed run left behind.
    pub(crate) fn check_bytes(self, pid: i32, bytes: &[u8]) -> Result<(), TraceError> {
        let tail = bytes.get(CALL.len()..).unwrap_or_default();
        let left_behind = bytes.starts_with(&CALL) && tail.iter().all(|byte| is_filler_byte(*byte));
        let known = self.dead.is_some_and(|dead| *bytes == dead);
        if left_behind || known || is_padding(bytes) || bytes.starts_with(&Self::code(self.len)) {
            return Ok(());
        }
        let why = format!("the bytes {bytes:02x?} are no padding");
        Err(TraceError::NoStubPlace { pid, at: self.at, why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NOP: &[u8] = &[0x0f, 0x1f, 0x44, 0x00, 0x00];
    const LONG_NOP: &[u8] = &[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00];

    #[test]
    fn padding_of_gnu_as_and_lld_is_recognised() {
        let gnu: Vec<u8> = [LONG_NOP, &[0x66, 0x66, 0x66, 0x66], LONG_NOP, NOP].concat();
        assert!(is_padding(&gnu));
        assert!(is_padding(&[0xcc; 40]) && is_padding(&[0; 16]) && is_padding(&[0x90; 3]));
        assert!(!is_padding(&[0xc3, 0x90]) && !is_padding(&[0x66, 0x66, 0x66]));
    }

    #[test]
    fn the_first_long_enough_run_is_found() {
        let mut bytes = vec![0xc3; 7];
        bytes.extend([0xcc; 15]);
        bytes.push(0xc3);
        bytes.extend(&LONG_NOP[2..]);
        bytes.extend(&LONG_NOP[2..]);
        assert_eq!(find_padding(&bytes, Avma::new(0x1000)), Some(Avma::new(0x1000 + 23)));
        assert_eq!(find_padding(&bytes[..38], Avma::new(0x1000)), None);
        assert_eq!(find_padding(&[], Avma::new(0)), None);
    }

    #[test]
    fn a_stub_left_behind_is_accepted_and_code_is_not() {
        let place = StubPlace { at: Avma::new(0), len: STUB_SPACE, dead: None };
        let mut bytes = CALL.to_vec();
        bytes.extend([0xcc; 5]);
        assert!(place.check_bytes(1, &bytes).is_ok());
        assert!(place.check_bytes(1, &[0x55; 16]).is_err());
        assert!(place.with_dead([0x55; 16]).check_bytes(1, &[0x55; 16]).is_ok());
        assert!(place.with_dead([0x55; 16]).check_bytes(1, &[0x56; 16]).is_err());
    }

    proptest! {
        #[test]
        fn what_is_found_is_padding(bytes in proptest::collection::vec(prop_oneof![Just(0xccu8), Just(0x90), Just(0x66), Just(0), any::<u8>()], 0..200)) {
            if let Some(at) = find_padding(&bytes, Avma::new(0)) {
                let at = at.get() as usize;
                prop_assert!(at + STUB_SPACE <= bytes.len());
                // The run may end inside a longer filler instruction; its start is sure.
                prop_assert!(filler_len(&bytes[at..]) > 0);
            }
        }
    }
}
