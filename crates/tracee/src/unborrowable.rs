//! Why a thread cannot be borrowed, and what its user can do about it.

use restitch_address::Avma;

/// Why no thread can be [borrowed](crate::Stopped::borrow_thread): what was wrong with one of them.
#[derive(Debug, thiserror::Error)]
pub enum Unborrowable {
    /// The process has no thread that could be.
    #[error("there is none")]
    ThereIsNone,
    /// Below its stack pointer there is not enough of its stack.
    #[error(
        "thread {tid} stands on a small stack (a coroutine's, perhaps): {needed} bytes below {below} are needed"
    )]
    SmallStack {
        /// The thread.
        tid: i32,
        /// How many bytes are needed.
        needed: u64,
        /// Where they would have to be.
        below: Avma,
    },
    /// It stands on a stack that may have others' data below, and they run.
    #[error("thread {tid} stands on a coroutine's stack in {mapping}, below which running threads may write")]
    NotItsOwnStack {
        /// The thread.
        tid: i32,
        /// The mapping with the stack.
        mapping: String,
    },
    /// Others may write where it is to be written.
    #[error("thread {tid} has its stack in {mapping}, which others write to as well")]
    SharedStack {
        /// The thread.
        tid: i32,
        /// The mapping with the stack.
        mapping: String,
    },
    /// Pages below its stack pointer are a file's.
    #[error("thread {tid} has its stack in {mapping}, whose pages a file system would have to bring first")]
    StackOfFile {
        /// The thread.
        tid: i32,
        /// The mapping with the stack.
        mapping: String,
    },
    /// A userfaultfd's handler would have to bring pages below its stack pointer.
    #[error(
        "thread {tid} has its stack in {mapping}, which a userfaultfd watches: whoever touches it may wait for ever"
    )]
    WatchedStack {
        /// The thread.
        tid: i32,
        /// The mapping with the stack.
        mapping: String,
    },
    /// System calls that it makes come back to it as signals.
    #[error(
        "thread {tid} has its system calls handed to itself (PR_SET_SYSCALL_USER_DISPATCH); one on its behalf would end it by SIGSYS"
    )]
    CallsDispatched {
        /// The thread.
        tid: i32,
    },
    /// The processor checks its return addresses.
    #[error("it uses a shadow stack, past which rt_sigreturn cannot lead")]
    ShadowStack,
    /// It could not be found out.
    #[error("{0}")]
    Failed(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl Unborrowable {
    /// Whether it may be over in a moment; else it is how the process was made.
    pub fn passes(&self) -> bool {
        match self {
            Self::ThereIsNone | Self::SmallStack { .. } | Self::NotItsOwnStack { .. } | Self::Failed(_) => {
                true
            }
            Self::SharedStack { .. }
            | Self::StackOfFile { .. }
            | Self::WatchedStack { .. }
            | Self::CallsDispatched { .. }
            | Self::ShadowStack => false,
        }
    }

    /// What its user can do.
    pub(crate) fn next_step(&self) -> &'static str {
        match self {
            Self::ThereIsNone | Self::SmallStack { .. } | Self::NotItsOwnStack { .. } | Self::Failed(_) => {
                "try again"
            }
            Self::SharedStack { .. } | Self::StackOfFile { .. } => {
                "make a faster copy of the program instead (restitch record, restitch optimize)"
            }
            Self::WatchedStack { .. } => {
                "end what watches it, or make a faster copy of the program instead (restitch record, restitch optimize)"
            }
            Self::CallsDispatched { .. } => {
                "run the program without what hands them to it (Wine, a sandbox), or make a faster copy of it instead (restitch record, restitch optimize)"
            }
            Self::ShadowStack => {
                "start it without (GLIBC_TUNABLES=glibc.cpu.x86_shstk=off), or make a faster copy of the program instead (restitch record, restitch optimize)"
            }
        }
    }

    /// Of two threads' reasons the one that tells more: one that passes makes it worth while to try again.
    pub(crate) fn or(self, other: Self) -> Self {
        let tells = |why: &Self| (why.passes(), !matches!(why, Self::ThereIsNone));
        match () {
            () if matches!(self, Self::ThereIsNone) => other,
            () if tells(&other) >= tells(&self) => other,
            () => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_passes_is_to_be_tried_again() {
        let mapping = || "mapping 0x1000-0x2000 (anonymous)".to_owned();
        let below = Avma::new(0x1000);
        let passing = [
            Unborrowable::ThereIsNone,
            Unborrowable::SmallStack { tid: 7, needed: 8, below },
            Unborrowable::NotItsOwnStack { tid: 7, mapping: mapping() },
            Unborrowable::Failed("for a test".into()),
        ];
        let lasting = [
            Unborrowable::SharedStack { tid: 7, mapping: mapping() },
            Unborrowable::StackOfFile { tid: 7, mapping: mapping() },
            Unborrowable::WatchedStack { tid: 7, mapping: mapping() },
            Unborrowable::CallsDispatched { tid: 7 },
            Unborrowable::ShadowStack,
        ];
        for why in passing {
            assert!(why.passes() && why.next_step() == "try again", "{why}");
        }
        for why in lasting {
            assert!(!why.passes() && why.next_step().contains("restitch optimize"), "{why}");
            assert!(!why.next_step().contains("again"), "{why}");
        }
    }

    #[test]
    fn one_thread_that_can_be_borrowed_later_is_worth_waiting_for() {
        let small = || Unborrowable::SmallStack { tid: 7, needed: 8, below: Avma::new(0x1000) };
        assert!(small().or(Unborrowable::ShadowStack).passes());
        assert!(Unborrowable::ShadowStack.or(small()).passes());
        let none = Unborrowable::ThereIsNone.or(Unborrowable::ShadowStack);
        assert!(matches!(none, Unborrowable::ShadowStack));
    }
}
