//! Whether a process stands still because its control group is frozen (cgroups(7),
//! `Documentation/admin-guide/cgroup-v2.rst`).
//!
//! Threads that a first-version freezer holds look like such that wait for a disk (state `D`), those of the
//! second version like sleeping ones; neither runs before the group is thawed, also not for a tracer.

use crate::holder::path_of;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// A control group that is frozen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frozen {
    /// Its path below the root of its hierarchy, as `/proc/PID/cgroup` has it.
    pub group: String,
    /// The command that thaws it. (If the freeze is that of a group above, it is to be thawed there.)
    pub thaw: String,
}

/// Which freezer: that of version 2, or the controller of version 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Freezer {
    Two,
    One,
}

/// The hierarchies that this program sees, with the group that their mount shows at its root.
static MOUNTS: LazyLock<Vec<(Freezer, String, PathBuf)>> =
    LazyLock::new(|| mounts(&std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default()));

/// The frozen group of process `pid`, if it is in one. `None` too where the groups cannot be seen (they are
/// mounted nowhere, or in another namespace).
pub fn frozen(pid: i32) -> Option<Frozen> {
    let text = std::fs::read_to_string(path_of(pid, "cgroup")).ok()?;
    groups(&text).into_iter().find_map(|(freezer, group)| {
        let mounted = MOUNTS.iter().filter(|(kind, ..)| *kind == freezer);
        let mut folders = mounted.filter_map(|(_, root, at)| folder(root, at, group));
        folders.find_map(|folder| look(freezer, group, &folder))
    })
}

fn look(freezer: Freezer, group: &str, folder: &Path) -> Option<Frozen> {
    let (file, thaw) = match freezer {
        Freezer::Two => ("cgroup.events", ("0", "cgroup.freeze")),
        Freezer::One => ("freezer.state", ("THAWED", "freezer.state")),
    };
    let text = std::fs::read_to_string(folder.join(file)).ok()?;
    let thaw = format!("echo {} >{}", thaw.0, quoted(&folder.join(thaw.1).to_string_lossy()));
    says_frozen(freezer, &text).then(|| Frozen { group: group.to_owned(), thaw })
}

/// `path` as a word for a shell: whoever may make groups may give them any name.
fn quoted(path: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/_.:@-".contains(c);
    if path.chars().all(is_plain) { path.to_owned() } else { format!("'{}'", path.replace('\'', r"'\''")) }
}

/// By the content of `cgroup.events` or `freezer.state`. (A group that is being frozen is not yet; its
/// threads are, one after another.)
fn says_frozen(freezer: Freezer, text: &str) -> bool {
    match freezer {
        Freezer::Two => text.lines().any(|line| line == "frozen 1"),
        Freezer::One => matches!(text.trim(), "FROZEN" | "FREEZING"),
    }
}

/// The groups that a process is in, by its `cgroup` file: `hierarchy:controllers:group`.
fn groups(text: &str) -> Vec<(Freezer, &str)> {
    text.lines()
        .filter_map(|line| {
            let mut parts = line.splitn(3, ':');
            let (hierarchy, controllers, group) = (parts.next()?, parts.next()?, parts.next()?);
            match (hierarchy, controllers) {
                ("0", "") => Some((Freezer::Two, group)),
                (_, list) if list.split(',').any(|name| name == "freezer") => Some((Freezer::One, group)),
                _ => None,
            }
        })
        .collect()
}

/// The folder of `group` where the group `root` is mounted at `at`. A group outside of what is mounted
/// (`/..`) has none.
fn folder(root: &str, at: &Path, group: &str) -> Option<PathBuf> {
    let below = match root {
        "/" => group,
        root => group.strip_prefix(root).filter(|rest| rest.is_empty() || rest.starts_with('/'))?,
    };
    let is_outside = below.split('/').any(|part| part == "..");
    (!is_outside).then(|| at.join(below.trim_start_matches('/')))
}

/// The hierarchies with a freezer among what is mounted, by `mountinfo` (proc_pid_mountinfo(5)).
fn mounts(text: &str) -> Vec<(Freezer, String, PathBuf)> {
    let mount = |line: &str| {
        let (before, behind) = line.split_once(" - ")?;
        let mut behind = behind.split(' ');
        let (kind, options) = (behind.next()?, behind.nth(1)?);
        let freezer = match kind {
            "cgroup2" => Freezer::Two,
            "cgroup" if options.split(',').any(|name| name == "freezer") => Freezer::One,
            _ => return None,
        };
        let mut before = before.split(' ').skip(3);
        Some((freezer, before.next()?.to_owned(), PathBuf::from(before.next()?)))
    };
    text.lines().filter_map(mount).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn groups_are_found_where_their_hierarchy_is_mounted() {
        let text = "37 31 0:34 / /sys/fs/cgroup/freezer rw,relatime - cgroup cgroup rw,freezer\n\
                    38 31 0:35 / /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio\n\
                    41 31 0:38 /box /sys/fs/cgroup/unified rw,relatime shared:9 - cgroup2 cgroup2 rw\n";
        let mounts = mounts(text);
        assert_eq!(mounts.len(), 2);
        let groups = groups("9:name=systemd:/\n6:freezer,pids:/a:b\n0::/box/c\n");
        assert_eq!(groups, [(Freezer::One, "/a:b"), (Freezer::Two, "/box/c")]);
        let at = |i: usize, group| folder(&mounts[i].1, &mounts[i].2, group);
        assert_eq!(at(0, "/a:b"), Some("/sys/fs/cgroup/freezer/a:b".into()));
        assert_eq!(at(1, "/box/c"), Some("/sys/fs/cgroup/unified/c".into()));
        assert_eq!(at(1, "/box"), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!([at(1, "/boxes"), at(0, "/../other")], [None, None]);
    }

    #[test]
    fn both_freezers_say_it_in_their_own_words() {
        assert!(says_frozen(Freezer::Two, "populated 1\nfrozen 1\n"));
        assert!(!says_frozen(Freezer::Two, "populated 1\nfrozen 0\n") && !says_frozen(Freezer::Two, ""));
        assert!(says_frozen(Freezer::One, "FROZEN\n") && says_frozen(Freezer::One, "FREEZING\n"));
        assert!(!says_frozen(Freezer::One, "THAWED\n"));
    }

    #[test]
    fn names_of_groups_are_words_for_a_shell() {
        assert_eq!(quoted("/sys/fs/cgroup/a.slice/cgroup.freeze"), "/sys/fs/cgroup/a.slice/cgroup.freeze");
        assert_eq!(quoted("/a;b/it's"), r"'/a;b/it'\''s'");
    }

    #[test]
    fn this_process_runs() {
        assert_eq!(frozen(std::process::id() as i32), None);
    }

    proptest! {
        #[test]
        fn any_text_is_read_without_panic(text in "([0-9 :/.,-]|cgroup2?|freezer|\n){0,40}") {
            let _ = (mounts(&text), groups(&text));
        }
    }
}
