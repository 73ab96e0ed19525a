//! Where a borrowed thread runs: 11 bytes in dead padding.

use crate::TraceError;
use restitch_address::Avma;
use restitch_procfs::Mapping;

/// The code: `syscall; mov $15,%eax; syscall; ud2`. The second call is `rt_sigreturn`.
pub(crate) const STUB: [u8; 11] = [0x0f, 0x05, 0xb8, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05, 0x0f, 0x0b];

/// Bytes of padding that a place for the stub must have.
pub const STUB_SPACE: usize = 16;

/// Bytes of padding with which several system calls can be made in one go ([`crate::Batch`]).
pub const BATCH_SPACE: usize = STUB_SPACE + 64;

/// The loop of [`crate::Batch`]: rbx is the table's present entry, ebp the number of entries left.
#[rustfmt::skip]
const LOOP: [u8; 51] = [
    0x48, 0x8b, 0x03,                   // mov (%rbx),%rax
    0x48, 0x8b, 0x7b, 0x08,             // mov 8(%rbx),%rdi
    0x48, 0x8b, 0x73, 0x10,             // mov 16(%rbx),%rsi
    0x48, 0x8b, 0x53, 0x18,             // mov 24(%rbx),%rdx
    0x4c, 0x8b, 0x53, 0x20,             // mov 32(%rbx),%r10
    0x4c, 0x8b, 0x43, 0x28,             // mov 40(%rbx),%r8
    0x4c, 0x8b, 0x4b, 0x30,             // mov 48(%rbx),%r9
    0x0f, 0x05,                         // syscall
    0x48, 0x89, 0x03,                   // mov %rax,(%rbx)
    0x48, 0x83, 0xc3, ENTRY as u8,      // add $56,%rbx
    0xff, 0xcd,                         // dec %ebp
    0x75, (-40i8) as u8,                // jne the start
    0xb8, 0x0f, 0, 0, 0,                // mov $15,%eax            rt_sigreturn
    0x0f, 0x05,                         // syscall
    0x0f, 0x0b,                         // ud2
    0xcc, 0xcc,
];
/// Where the loop's system call has returned to.
pub(crate) const AFTER_CALL: u64 = 29;
/// Number and six arguments; the result replaces the number.
pub(crate) const ENTRY: usize = 56;

/// The filler instructions of assemblers and linkers: `nop` in the lengths of the Intel and AMD manuals ("multi-byte
/// NOP"), with the operand-size prefixes that GNU as puts before the long ones.
const NOPS: &[&[u8]] = &[
    &[0x90],
    &[0x66, 0x90],
    &[0x0f, 0x1f, 0x00],
    &[0x0f, 0x1f, 0x40, 0x00],
    &[0x0f, 0x1f, 0x44, 0x00, 0x00],
    &[0x66, 0x0f, 0x1f, 0x44, 0x00, 0x00],
    &[0x0f, 0x1f, 0x80, 0x00, 0x00, 0x00, 0x00],
    &[0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
    &[0x66, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
    &[0x2e, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
    &[0x66, 0x2e, 0x0f, 0x1f, 0x84, 0x00, 0x00, 0x00, 0x00, 0x00],
];

/// Length of the filler at the start of `bytes`, 0 if there is none.
fn filler_len(bytes: &[u8]) -> usize {
    match bytes {
        [0xcc, ..] => 1,
        [0x00, 0x00, ..] => 2,
        // More operand-size prefixes in front of a nop that has one.
        [0x66, tail @ ..] if tail.first() == Some(&0x66) => match filler_len(tail) {
            0 => 0,
            len => len + 1,
        },
        _ => NOPS.iter().map(|nop| if bytes.starts_with(nop) { nop.len() } else { 0 }).fold(0, usize::max),
    }
}

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

/// Finds [`STUB_SPACE`] bytes that are nothing but filler within `bytes`, which are at `start` in the process.
///
/// The caller must pass **dead** bytes only: those between the end of one function and the start of the next, or
/// behind the last byte of an executable segment in its last page. Inside a function, filler before a loop is executed.
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
    /// Checks that `at` begins [`STUB_SPACE`] bytes in an executable, private mapping of the process `pid` whose `maps`
    /// these are. The bytes themselves are checked when the stub is written. To be called before the stop, since
    /// reading maps takes time; the mapping must stay (take it from the program, not from a library that may be closed).
    /// A process without any mapping has just ended.
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

    /// Says that `bytes`, which stand there, are dead although they are no padding: they were executed for the last time.
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

    /// What stands in a place with `len` bytes of padding while a thread is borrowed. Whoever replaces the page meanwhile has to put it into the new one.
    pub fn code(len: usize) -> Vec<u8> {
        let mut code = STUB.to_vec();
        if len >= BATCH_SPACE {
            code.resize(STUB_SPACE, 0xcc);
            code.extend_from_slice(&LOOP);
        }
        code
    }

    /// An error unless the bytes there are filler or a stub that an earlier, killed run left behind.
    pub(crate) fn check_bytes(self, pid: i32, bytes: &[u8]) -> Result<(), TraceError> {
        let tail = bytes.get(STUB.len()..).unwrap_or_default();
        let left_behind = bytes.starts_with(&STUB) && tail.iter().all(|byte| FILLER_BYTES.contains(byte));
        let known = self.dead.is_some_and(|dead| *bytes == dead);
        if left_behind || known || is_padding(bytes) || bytes.starts_with(&Self::code(self.len)) {
            return Ok(());
        }
        let why = format!("the bytes {bytes:02x?} are no padding");
        Err(TraceError::NoStubPlace { pid, at: self.at, why })
    }
}

/// Bytes of which filler consists.
const FILLER_BYTES: &[u8] = &[0x00, 0xcc, 0x90, 0x66, 0x2e, 0x0f, 0x1f, 0x40, 0x44, 0x80, 0x84];

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_loop_is_as_its_comments_say() {
        assert_eq!(&LOOP[AFTER_CALL as usize - 2..AFTER_CALL as usize], &[0x0f, 0x05]);
        // The displacement counts from behind the jump, which is at 38.
        assert_eq!(LOOP[38], 0x75);
        assert_eq!(40 + i32::from(LOOP[39] as i8), 0);
    }

    #[test]
    fn padding_of_gnu_as_and_lld_is_recognised() {
        let gnu: Vec<u8> = [NOPS[10], &[0x66, 0x66, 0x66, 0x66], NOPS[10], NOPS[4]].concat();
        assert!(is_padding(&gnu));
        assert!(is_padding(&[0xcc; 40]) && is_padding(&[0; 16]) && is_padding(&[0x90; 3]));
        assert!(!is_padding(&[0xc3, 0x90]) && !is_padding(&[0x66, 0x66, 0x66]));
    }

    #[test]
    fn the_first_long_enough_run_is_found() {
        let mut bytes = vec![0xc3; 7];
        bytes.extend([0xcc; 15]);
        bytes.push(0xc3);
        bytes.extend(NOPS[8]);
        bytes.extend(NOPS[8]);
        assert_eq!(find_padding(&bytes, Avma::new(0x1000)), Some(Avma::new(0x1000 + 23)));
        assert_eq!(find_padding(&bytes[..38], Avma::new(0x1000)), None);
        assert_eq!(find_padding(&[], Avma::new(0)), None);
    }

    #[test]
    fn a_stub_left_behind_is_accepted_and_code_is_not() {
        let place = StubPlace { at: Avma::new(0), len: STUB_SPACE, dead: None };
        let mut bytes = STUB.to_vec();
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
