//! How much memory a process's cgroups would still let it have: beyond that, the kernel ends a process of the
//! group.
//!
//! What the kernel would give back first counts as free: pages of files, and memory for which there is swap
//! space. Limits: where the group's files cannot be read (another cgroup namespace, no mount), nothing is
//! known.

use std::path::{Path, PathBuf};

/// What is left in the tightest of a process's memory cgroups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryRoom {
    /// Bytes that may still be used.
    pub left: u64,
    /// The group's limit, in bytes.
    pub limit: u64,
    /// Bytes that are used, pages of files included.
    pub used: u64,
    /// The group's folder.
    pub group: PathBuf,
}

/// Of process `pid`. `None` if no group limits it, or that cannot be found out.
pub fn memory_room(pid: i32) -> Option<MemoryRoom> {
    let read = |path: &Path| std::fs::read_to_string(path).ok();
    let text = |path: &str| read(Path::new(path)).unwrap_or_default();
    let groups = Hierarchy::all(&text("/proc/self/mountinfo"));
    let of = text(&format!("/proc/{pid}/cgroup"));
    let swap = swap_space(&text("/proc/meminfo"));
    let rooms = groups
        .iter()
        .flat_map(|hierarchy| hierarchy.groups(&of).into_iter().map(move |group| (hierarchy, group)));
    rooms.filter_map(|(hierarchy, group)| hierarchy.room(group, swap, read)).min_by_key(|room| room.left)
}

/// Names of a group's files and of lines in its statistics.
struct Names {
    /// Of version 1, whose hierarchies are named by what they control.
    is_first: bool,
    limit: &'static str,
    used: &'static str,
    /// Limit and use of swap space; in version 1 memory is in both.
    swap: [&'static str; 2],
    /// Pages of files, descendants included.
    files: [&'static str; 2],
}

const FIRST: Names = Names {
    is_first: true,
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    swap: ["memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes"],
    files: ["total_inactive_file", "total_active_file"],
};
const SECOND: Names = Names {
    is_first: false,
    limit: "memory.max",
    used: "memory.current",
    swap: ["memory.swap.max", "memory.swap.current"],
    files: ["inactive_file", "active_file"],
};

/// Where memory cgroups are to be seen.
struct Hierarchy {
    names: &'static Names,
    mount: PathBuf,
    /// The group that is seen there.
    root: PathBuf,
}

impl Hierarchy {
    /// From `/proc/self/mountinfo`.
    fn all(mounts: &str) -> Vec<Self> {
        let one = |line: &str| {
            let (before, behind) = line.split_once(" - ")?;
            let fields: Vec<&str> = before.split(' ').collect();
            let mut kind = behind.split(' ');
            let names = match (kind.next()?, kind.nth(1)?) {
                ("cgroup2", _) => &SECOND,
                ("cgroup", options) if options.split(',').any(|o| o == "memory") => &FIRST,
                _ => return None,
            };
            Some(Self { names, mount: fields.get(4)?.into(), root: fields.get(3)?.into() })
        };
        mounts.lines().filter_map(one).collect()
    }

    /// The group of a process, by its `cgroup` file, and those above it; none if it is not to be seen here.
    fn groups(&self, of: &str) -> Vec<PathBuf> {
        let is_first = self.names.is_first;
        let path = of.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
            let is_it =
                if is_first { controllers.split(',').any(|c| c == "memory") } else { controllers.is_empty() };
            is_it.then_some(path)
        });
        let below = path.and_then(|path| Path::new(path).strip_prefix(&self.root).ok());
        let Some(below) = below.filter(|below| below.components().all(|c| c.as_os_str() != "..")) else {
            return Vec::new();
        };
        // (Joined with nothing it would end with a slash.)
        let group: PathBuf = self.mount.components().chain(below.components()).collect();
        group
            .ancestors()
            .take_while(|folder| folder.starts_with(&self.mount))
            .map(Path::to_path_buf)
            .collect()
    }

    /// What is left in one group, if it has a limit.
    fn room(&self, group: PathBuf, swap: u64, read: impl Fn(&Path) -> Option<String>) -> Option<MemoryRoom> {
        let number = |name: &str| read(&group.join(name))?.trim().parse::<u64>().ok();
        let (limit, used) = (number(self.names.limit)?, number(self.names.used)?);
        // Version 1 has a number for none.
        if limit >= u64::MAX / 4 {
            return None;
        }
        let statistics = read(&group.join("memory.stat")).unwrap_or_default();
        let value = |name: &&str| {
            statistics
                .lines()
                .find_map(|l| l.strip_prefix(*name)?.strip_prefix(' ')?.trim().parse::<u64>().ok())
        };
        let files: u64 = self.names.files.iter().filter_map(value).sum();
        let swap = match self.names.swap.map(number) {
            [Some(most), Some(now)] => swap.min(most.saturating_sub(now)),
            _ => swap,
        };
        let left = limit.saturating_sub(used.saturating_sub(files)).min(limit).saturating_add(swap);
        Some(MemoryRoom { left, limit, used, group })
    }
}

/// Free swap space, by `/proc/meminfo`.
fn swap_space(meminfo: &str) -> u64 {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("SwapFree:"));
    line.and_then(|l| l.trim().trim_end_matches("kB").trim().parse::<u64>().ok()).map_or(0, |kib| kib << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOUNTS: &str = "31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
        32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n\
        35 31 0:32 /docker /sys/fs/cgroup/memory rw,relatime shared:9 - cgroup cgroup rw,memory\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";

    fn groups(of: &str) -> Vec<String> {
        let all = Hierarchy::all(MOUNTS);
        assert_eq!(all.len(), 2);
        all.iter().flat_map(|h| h.groups(of)).map(|p| p.display().to_string()).collect()
    }

    #[test]
    fn groups_are_found_in_both_versions() {
        assert_eq!(
            groups("4:memory:/docker/a/b\n1:cpu:/x\n0::/\n"),
            [
                "/sys/fs/cgroup/memory/a/b",
                "/sys/fs/cgroup/memory/a",
                "/sys/fs/cgroup/memory",
                "/sys/fs/cgroup/unified"
            ]
        );
        assert_eq!(groups("0::/user.slice/a\n").len(), 3);
        // Another root, outside of our namespace, nonsense.
        assert_eq!(groups("4:memory:/elsewhere\n0::/../a\n"), Vec::<String>::new());
        assert_eq!(groups("memory\n:::\n"), Vec::<String>::new());
    }

    #[test]
    fn pages_of_files_and_swap_space_are_free() {
        let all = Hierarchy::all(MOUNTS);
        let left = |hierarchy: &Hierarchy, files: &[(&str, &str)], swap: u64| {
            let read = |path: &Path| {
                let name = path.file_name()?.to_str()?;
                files.iter().find(|(n, _)| *n == name).map(|(_, text)| (*text).to_owned())
            };
            hierarchy.room("/g".into(), swap, read).map(|room| room.left)
        };
        let first = [
            ("memory.limit_in_bytes", "1000000\n"),
            ("memory.usage_in_bytes", "900000\n"),
            (
                "memory.stat",
                "cache 5\ninactive_file 7\ntotal_inactive_file 100000\ntotal_active_file 50000\n",
            ),
        ];
        assert_eq!(left(&all[0], &first, 0), Some(250_000));
        assert_eq!(left(&all[0], &first, 70_000), Some(320_000));
        let none = [("memory.limit_in_bytes", "9223372036854771712"), ("memory.usage_in_bytes", "1")];
        assert_eq!(left(&all[0], &none, 0), None);
        let second = |max: &'static str| {
            [
                ("memory.max", max),
                ("memory.current", "4096"),
                ("memory.swap.max", "100"),
                ("memory.swap.current", "40"),
            ]
        };
        assert_eq!(left(&all[1], &second("8192\n"), 1000), Some(4096 + 60));
        assert_eq!(left(&all[1], &second("max\n"), 1000), None);
        // More pages of files than are used: they are counted a little later.
        let odd = [
            ("memory.max", "10"),
            ("memory.current", "4"),
            ("memory.stat", "inactive_file 9\nactive_file 9\n"),
        ];
        assert_eq!(left(&all[1], &odd, 0), Some(10));
        assert_eq!(swap_space("SwapTotal: 9 kB\nSwapFree:      2 kB\n"), 2048);
    }
}
