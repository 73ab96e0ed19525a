//! What keeps this program from looking into a process: the kernel says no more than "not permitted"
//! (`__ptrace_may_access` in its kernel/ptrace.c), so the reasons that it may have are looked at in turn.

use crate::holder::path_of;
use crate::status::Status;
use crate::system::ptrace_scope;

/// What is asked of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// To see what there is in a process (`PTRACE_MODE_READ`).
    Look,
    /// To stop or change it, or to see its memory (`PTRACE_MODE_ATTACH`).
    Trace,
}

/// `CAP_SYS_PTRACE`.
const SYS_PTRACE: u32 = 19;

/// What the kernel takes into account.
#[derive(Clone, Copy, Debug)]
struct Circumstances {
    access: Access,
    /// `kernel.yama.ptrace_scope`, where there is Yama.
    scope: Option<i32>,
    /// Whose the process is.
    owner: Option<u32>,
    /// This program's effective user.
    own: u32,
    /// Whether this program may look into processes of others.
    has_capability: bool,
    /// Whether the users of this program are those of the system, and not of a user namespace.
    is_systems: bool,
    /// Whether a filter of system calls lies upon this program.
    is_filtered: bool,
}

/// What is in the way of `access` to process `pid`, and what helps.
pub fn obstacle(pid: i32, access: Access) -> String {
    let own_status = status(std::process::id() as i32).unwrap_or_default();
    let users = std::fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    Circumstances {
        access,
        scope: ptrace_scope().filter(|_| access == Access::Trace),
        owner: status(pid).and_then(|status| status.uid),
        // SAFETY: `geteuid` has no arguments and no memory effects.
        own: unsafe { libc::geteuid() },
        has_capability: own_status.capabilities.is_none_or(|set| set & 1 << SYS_PTRACE != 0),
        is_systems: users.split_whitespace().eq(["0", "0", "4294967295"]),
        is_filtered: own_status.seccomp.is_some_and(|mode| mode != 0),
    }
    .in_words()
}

fn status(pid: i32) -> Option<Status> {
    Some(Status::parse(&std::fs::read(path_of(pid, "status")).ok()?))
}

impl Circumstances {
    fn in_words(self) -> String {
        match (self.scope, self.owner) {
            (Some(3), _) => {
                "kernel.yama.ptrace_scope is 3, which forbids tracing until the next boot; set it \
                             to 1 in /etc/sysctl.d and boot again"
                    .into()
            }
            _ if self.own == 0 => self.of_root().into(),
            (Some(2), _) => "kernel.yama.ptrace_scope is 2, so only root may trace; use sudo".into(),
            (_, Some(owner)) if owner != self.own => {
                format!("it belongs to user {owner}; run as that user or use sudo")
            }
            (Some(1), _) => {
                "kernel.yama.ptrace_scope is 1, so only its own children may be traced; use sudo, \
                             start the program from here, or run: sudo sysctl kernel.yama.ptrace_scope=0"
                    .into()
            }
            _ => "it is protected (a set-user-id program, or one that forbids core dumps); use sudo".into(),
        }
    }

    fn of_root(self) -> &'static str {
        if !self.has_capability {
            "even root may not here; give the container or service the capability CAP_SYS_PTRACE"
        } else if !self.is_systems {
            "restitch is root in a user namespace only (of a container), and the process may be outside of it; run \
             restitch on the host"
        } else if self.is_filtered && self.access == Access::Trace {
            "even root may not here, by a seccomp filter that restitch was started under, or by a security \
             module; run restitch outside of that container or sandbox"
        } else {
            "even root may not here, by a security module (SELinux, AppArmor, Landlock, BPF) or the sandbox that \
             restitch runs in; run restitch outside of it, or change that rule"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Circumstances = Circumstances {
        access: Access::Trace,
        scope: None,
        owner: Some(1000),
        own: 0,
        has_capability: true,
        is_systems: true,
        is_filtered: false,
    };

    #[test]
    fn refusals_name_what_is_in_the_way_and_what_helps() {
        let says = |scope, owner, own, words: &str| {
            let said = Circumstances { scope, owner, own, ..USUAL }.in_words();
            assert!(said.contains(words), "{said}");
        };
        says(Some(1), Some(1000), 1000, "sudo sysctl kernel.yama.ptrace_scope=0");
        says(Some(2), Some(1000), 1000, "use sudo");
        says(Some(3), Some(1000), 0, "next boot");
        says(Some(1), Some(0), 1000, "belongs to user 0");
        says(None, Some(1000), 1000, "protected");
    }

    #[test]
    fn root_is_not_told_to_be_root() {
        let without = Circumstances { has_capability: false, ..USUAL };
        let in_namespace = Circumstances { is_systems: false, ..USUAL };
        let filtered = Circumstances { is_filtered: true, ..USUAL };
        let looking = Circumstances { access: Access::Look, ..filtered };
        let all = [
            (without, "CAP_SYS_PTRACE"),
            (in_namespace, "on the host"),
            (filtered, "seccomp"),
            (USUAL, "security module"),
            (looking, "security module"),
        ];
        for (circumstances, words) in all {
            let said = circumstances.in_words();
            assert!(said.contains(words) && !said.contains("sudo") && !said.contains("as root"), "{said}");
        }
        assert!(!looking.in_words().contains("seccomp"), "reading files is no matter of a filter of ptrace");
    }

    #[test]
    fn what_is_in_the_way_is_looked_up() {
        assert!(obstacle(std::process::id() as i32, Access::Look).contains(';'));
    }
}
