//! A thread's registers, and what the kernel does with them when it restarts a system call.

use restitch_address::Avma;
use restitch_x86::kernel::{NUMBERED_CALL, numbered_call};

/// The general registers of a stopped thread: `struct user_regs_struct` of `<sys/user.h>`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(C)]
#[expect(missing_docs, reason = "the fields are the registers that they are named after")]
pub struct Registers {
    pub r15: u64,
    pub r14: u64,
    pub r13: u64,
    pub r12: u64,
    pub rbp: u64,
    pub rbx: u64,
    pub r11: u64,
    pub r10: u64,
    pub r9: u64,
    pub r8: u64,
    pub rax: u64,
    pub rcx: u64,
    pub rdx: u64,
    pub rsi: u64,
    pub rdi: u64,
    /// Number of the system call that the thread is in; -1 (all ones) for none.
    pub orig_rax: u64,
    pub rip: Avma,
    pub cs: u64,
    pub eflags: u64,
    pub rsp: Avma,
    pub ss: u64,
    pub fs_base: Avma,
    pub gs_base: Avma,
    pub ds: u64,
    pub es: u64,
    pub fs: u64,
    pub gs: u64,
}

const _: () = assert!(size_of::<Registers>() == size_of::<libc::user_regs_struct>());

/// `orig_rax` outside system calls.
pub(crate) const NO_SYSTEM_CALL: u64 = u64::MAX;
/// The code segment of 64-bit user code.
const USER_CS_64: u64 = 0x33;
/// `-EINTR`.
const MINUS_EINTR: i64 = -4;
/// `-ERESTARTNOHAND`: restart unless a handler runs; then return `EINTR`.
const MINUS_ERESTARTNOHAND: i64 = -514;

/// `io_pgetevents`, missing in the libc crate.
const SYS_IO_PGETEVENTS: libc::c_long = 333;

/// System calls that return `EINTR` when a tracer interrupts them, although without a signal handler they
/// never would, and that have no effect in that case, so that calling them again is right. `close` is not
/// among them (it has closed), nor are calls that the kernel restarts by itself.
const RESTARTABLE_AFTER_EINTR: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_readv,
    libc::SYS_pread64,
    libc::SYS_preadv,
    libc::SYS_preadv2,
    libc::SYS_write,
    libc::SYS_writev,
    libc::SYS_pwrite64,
    libc::SYS_pwritev,
    libc::SYS_pwritev2,
    // Like the others that wait for a socket with a timeout (`sock_intr_errno`): if nothing was moved.
    libc::SYS_sendfile,
    libc::SYS_splice,
    libc::SYS_accept,
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_epoll_wait,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_semop,
    libc::SYS_semtimedop,
    libc::SYS_io_getevents,
    SYS_IO_PGETEVENTS,
    libc::SYS_io_uring_enter,
    // In memory files, in older kernels: what was allocated is given back (`shmem_fallocate`).
    libc::SYS_fallocate,
];
/// Modes of `fallocate` that move what is behind: twice is not once.
const MOVING: u64 = (libc::FALLOC_FL_COLLAPSE_RANGE | libc::FALLOC_FL_INSERT_RANGE) as u64;

/// System calls that swap the signal mask while they wait.
const MASK_SWAPPING: &[libc::c_long] = &[
    libc::SYS_rt_sigsuspend,
    libc::SYS_ppoll,
    libc::SYS_pselect6,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    SYS_IO_PGETEVENTS,
];

/// What the kernel does with an interrupted system call before the thread runs on (signal(7),
/// `arch/x86/kernel/signal.c`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PendingRestart {
    /// Nothing: not in a system call, or it has its result.
    None,
    /// It calls it again with the same arguments (`-ERESTARTSYS`, `-ERESTARTNOINTR`, `-ERESTARTNOHAND`).
    Again,
    /// It continues it with what is left of its timeout (`-ERESTART_RESTARTBLOCK`).
    Continue,
}

impl Registers {
    /// The general registers by their numbers in instructions: rax, rcx, rdx, rbx, rsp, rbp, rsi, rdi, r8 to
    /// r15.
    pub fn general(&self) -> [u64; 16] {
        let low = [self.rax, self.rcx, self.rdx, self.rbx, self.rsp.get(), self.rbp, self.rsi, self.rdi];
        let high = [self.r8, self.r9, self.r10, self.r11, self.r12, self.r13, self.r14, self.r15];
        std::array::from_fn(|i| if i < 8 { low[i] } else { high[i - 8] })
    }

    /// Whether the thread runs 64-bit code.
    pub fn is_64_bit(&self) -> bool {
        self.cs == USER_CS_64
    }

    /// Whether these are the registers of a thread that never leaves the kernel: it has no program counter
    /// and no stack.
    pub(crate) fn are_of_the_kernel(&self) -> bool {
        (self.rip, self.rsp) == (Avma::new(0), Avma::new(0))
    }

    /// The number of the system call that the thread is in, if it is in one.
    pub fn system_call(&self) -> Option<i64> {
        let number = self.orig_rax as i64;
        (number >= 0).then_some(number)
    }

    /// What the kernel is going to do with an interrupted system call.
    pub fn pending_restart(&self) -> PendingRestart {
        match (self.system_call(), self.rax as i64) {
            (None, _) => PendingRestart::None,
            (Some(_), -514..=-512) => PendingRestart::Again,
            (Some(_), -516) => PendingRestart::Continue,
            _ => PendingRestart::None,
        }
    }

    /// The registers with which the thread can be continued by `rt_sigreturn`, which knows no system call to
    /// restart: the restart has been carried out. A wait that would have continued with the rest of its
    /// timeout begins anew, because `rt_sigreturn` makes the kernel forget that rest (it would give a false
    /// `EINTR`).
    pub fn settled(&self) -> Self {
        let mut settled = *self;
        if self.pending_restart() != PendingRestart::None {
            settled.rax = self.orig_rax;
            settled.rip = self.rip - 2;
        }
        settled.orig_rax = NO_SYSTEM_CALL;
        settled
    }

    /// For a thread that is about to call `restart_syscall`, because it was interrupted in a wait before: the
    /// registers with which that wait begins anew. `code` are the 7 bytes from 5 before the program counter
    /// on; the call's number is known where they are `mov $number, %eax; syscall`, as in C libraries.
    /// Elsewhere nothing is changed.
    pub(crate) fn begun_anew(&self, code: &[u8; NUMBERED_CALL]) -> Self {
        const WAITS: [libc::c_long; 4] =
            [libc::SYS_poll, libc::SYS_nanosleep, libc::SYS_clock_nanosleep, libc::SYS_futex];
        let Some(number) = numbered_call(code) else { return *self };
        let is_wait = WAITS.contains(&libc::c_long::from(number));
        if is_wait { Self { rax: number.into(), ..*self } } else { *self }
    }

    /// The registers with a false `EINTR` repaired, if the stop caused one: the kernel then calls again,
    /// unless a signal handler runs.
    pub(crate) fn repaired(&self) -> Option<Self> {
        let number = self.system_call()?;
        let interrupted = self.rax as i64 == MINUS_EINTR;
        let moves = number == libc::SYS_fallocate && self.rsi & MOVING != 0;
        let restartable = RESTARTABLE_AFTER_EINTR.contains(&number) && !moves;
        (interrupted && restartable).then_some(Self { rax: MINUS_ERESTARTNOHAND as u64, ..*self })
    }

    /// Whether the thread waits in a call that has swapped its signal mask for the duration.
    pub(crate) fn swaps_signal_mask(&self) -> bool {
        self.system_call().is_some_and(|number| MASK_SWAPPING.contains(&number))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_call(number: libc::c_long, result: i64) -> Registers {
        Registers {
            orig_rax: number as u64,
            rax: result as u64,
            rip: Avma::new(0x1002),
            ..Registers::default()
        }
    }

    #[test]
    fn restarts_are_carried_out_by_settling() {
        for result in [-512, -513, -514, -516] {
            let settled = in_call(libc::SYS_poll, result).settled();
            assert_eq!(settled.rip, Avma::new(0x1000));
            assert_eq!(settled.rax, libc::SYS_poll as u64);
            assert_eq!(settled.system_call(), None);
        }
        for result in [-4, -511, -515, -517, 0, 5] {
            let settled = in_call(libc::SYS_poll, result).settled();
            assert_eq!((settled.rip, settled.rax as i64), (Avma::new(0x1002), result));
        }
        let outside = Registers { rax: -512i64 as u64, orig_rax: NO_SYSTEM_CALL, ..in_call(0, 0) };
        assert_eq!(outside.settled(), outside);
        let again = Registers { rax: libc::SYS_restart_syscall as u64, ..outside };
        assert_eq!(again.begun_anew(&[0xb8, 7, 0, 0, 0, 0x0f, 0x05]).rax, libc::SYS_poll as u64);
        assert_eq!(again.begun_anew(&[0xb8, 1, 0, 0, 0, 0x0f, 0x05]), again, "write does not wait");
        assert_eq!(again.begun_anew(&[0x90, 7, 0, 0, 0, 0x0f, 0x05]), again);
    }

    #[test]
    fn only_calls_without_effect_are_repaired() {
        let repaired = |call, result| in_call(call, result).repaired().map(|r| r.rax as i64);
        assert_eq!(repaired(libc::SYS_epoll_wait, -4), Some(-514));
        assert_eq!(repaired(libc::SYS_close, -4), None);
        for moves_bytes in [libc::SYS_sendfile, libc::SYS_splice, libc::SYS_preadv2, libc::SYS_pwritev2] {
            assert_eq!(repaired(moves_bytes, -4), Some(-514));
            assert_eq!(repaired(moves_bytes, 1), None);
        }
        assert_eq!(repaired(libc::SYS_fallocate, -4), Some(-514));
        let moving =
            |mode: i32| Registers { rsi: mode as u64, ..in_call(libc::SYS_fallocate, -4) }.repaired();
        assert!(
            moving(libc::FALLOC_FL_ZERO_RANGE).is_some() && moving(libc::FALLOC_FL_INSERT_RANGE).is_none()
        );
        assert_eq!(repaired(libc::SYS_epoll_wait, 0), None);
        let outside = Registers { orig_rax: NO_SYSTEM_CALL, ..in_call(0, -4) };
        assert_eq!(outside.repaired(), None);
    }
}
