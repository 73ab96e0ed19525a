//! Routines that make system calls in a thread that is borrowed for them. They end by `rt_sigreturn`, which
//! gives the thread back all that it had.

/// One call: `syscall; mov $15,%eax; syscall; ud2`. The second call is `rt_sigreturn`.
pub const CALL: [u8; 11] = [0x0f, 0x05, 0xb8, 0x0f, 0x00, 0x00, 0x00, 0x0f, 0x05, 0x0f, 0x0b];

/// The loop of several calls: rbx is the table's present entry, ebp the number of entries left.
#[rustfmt::skip]
pub const CALLS: [u8; 51] = [
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
pub const AFTER_CALL: u64 = 29;
/// Number and six arguments; the result replaces the number.
pub const ENTRY: usize = 56;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::KernelEntry;

    #[test]
    fn the_loop_is_as_its_comments_say() {
        assert_eq!(&CALLS[AFTER_CALL as usize - 2..AFTER_CALL as usize], &[0x0f, 0x05]);
        // The displacement counts from behind the jump, which is at 38.
        assert_eq!(CALLS[38], 0x75);
        assert_eq!(40 + i32::from(CALLS[39] as i8), 0);
    }

    #[test]
    fn both_routines_return_through_the_kernel_and_stop_behind_it() {
        for routine in [&CALL[..], &CALLS[..CALLS.len() - 2]] {
            let end = &routine[routine.len() - 9..];
            assert_eq!(end, [0xb8, 15, 0, 0, 0, 0x0f, 0x05, 0x0f, 0x0b]);
        }
        assert_eq!(KernelEntry::beginning_of(&CALL), Some(KernelEntry::SystemCall));
    }
}
