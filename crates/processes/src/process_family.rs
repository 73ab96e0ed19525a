//! Which process a tree is led by. Problem: some servers execute themselves anew after they have forked their
//! workers (HAProxy as it is installed does), so the one that is named runs the same program at other
//! addresses than those that work. A set has one place for each module, so such families are taken one at a
//! time: the one that works. The same goes for processes of different users: a program's first process may be
//! root's, and those that work another user's (nginx, Apache).

use crate::error::SessionError;
use crate::process_set::process_of;
use restitch_address::Avma;
use restitch_pipeline::Watcher;
use restitch_procfs::{self as procfs, FileIdentity};
use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::Duration;

/// For so long processes are watched for whether they work.
const WATCHED: Duration = Duration::from_millis(250);
/// A named process's own family is left for another one if that does so many times as much.
const MUCH_MORE: u32 = 10;
/// Less in that time is no work.
const LEAST: Duration = Duration::from_millis(1);
/// A process that works this share of what the busiest one of its family does may lead in its place.
const BUSY: u32 = 2;

/// The process that is to lead, and the others that work at addresses of their own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ProcessFamily {
    /// The process that was named.
    named: i32,
    /// The named process, or the oldest one of the busy ones of the family that works: those that live but
    /// for a moment are not waited for.
    pub leader: i32,
    /// For each other family that works, such a process of it.
    pub elsewhere: Vec<i32>,
    /// The leader's program, where it is not the named process.
    program: PathBuf,
}

impl ProcessFamily {
    /// What is to be said of those that stay as they are.
    pub fn warnings(&self) -> Vec<String> {
        let told = |pid: &i32| {
            // With --tree the named process would lead to the same leader again.
            let (tree, relatives) = if *pid == self.named {
                ("", "")
            } else {
                (" --tree", " and those that were forked with it")
            };
            format!(
                "process {pid} works, too, with the same program at other addresses or as another user, and stays as it is; \
                 `restitch attach {pid}{tree}` is for it{relatives}"
            )
        };
        self.elsewhere.iter().map(told).collect()
    }
}

impl ProcessFamily {
    /// The error in place of one that tells of the leader's end, which nobody has named.
    pub fn explain(&self, error: SessionError) -> SessionError {
        let Self { named, leader, program, .. } = self;
        match error {
            SessionError::Ended { pid, when } if pid == *leader && leader != named => {
                let program = program.display();
                let why =
                    format!("it runs {program}, and was taken since it worked and process {named} did not");
                SessionError::Ended {
                    pid,
                    when: format!("{when} ({why}); name {named} again for those that work now"),
                }
            }
            other => other,
        }
    }
}

/// Who is to lead the tree of process `named`: it, unless only descendants of it work that run its program at
/// other addresses, or as another user. Without `tree` there is no choice, and none if `named` cannot be
/// looked at: whoever opens it next tells why.
pub fn at_work(named: i32, tree: bool, watcher: &mut dyn Watcher) -> ProcessFamily {
    let families = match process_of(named) {
        Ok(process) if tree => families(process).unwrap_or_default(),
        _ => Vec::new(),
    };
    if families.len() < 2 {
        return ProcessFamily { named, leader: named, elsewhere: Vec::new(), program: PathBuf::new() };
    }
    let before: BTreeMap<i32, Duration> =
        families.iter().flatten().map(|&pid| (pid, cpu_time(pid))).collect();
    std::thread::sleep(WATCHED);
    let used = |&pid: &i32| cpu_time(pid).saturating_sub(before[&pid]);
    let member = |pid: &i32| Member { pid: *pid, used: used(pid), started: started(*pid) };
    let members = families.iter().map(|family| family.iter().map(member).collect());
    let mut family = choose(named, members.collect());
    if family.leader != named {
        family.program = procfs::executable_path(family.leader).unwrap_or_default();
        watcher.note(&format!(
            "process {named} hardly works; {} does, which runs the same program at other addresses or as another user: it is taken, with those that were \
             forked with it",
            family.leader
        ));
    }
    family
}

/// A process of a family.
#[derive(Clone, Copy)]
struct Member {
    pid: i32,
    /// CPU time while it was watched.
    used: Duration,
    /// When it began, in clock ticks since boot; the end of time for one that has ended.
    started: u64,
}

/// Of families of processes, the named one's first, the one that works and who stands for it.
fn choose(named: i32, families: Vec<Vec<Member>>) -> ProcessFamily {
    let work = |family: &[Member]| family.iter().map(|member| member.used).sum::<Duration>();
    let most = (0..families.len()).max_by_key(|&i| (work(&families[i]), usize::MAX - i)).unwrap_or(0);
    let own = families.first().map_or(Duration::ZERO, |own| work(own));
    let other = most != 0 && work(&families[most]) >= LEAST.max(own * MUCH_MORE);
    let taken = if other { most } else { 0 };
    let leader = if other { oldest_at_work(&families[most]).unwrap_or(named) } else { named };
    let works = |(i, family): (usize, &Vec<Member>)| {
        (i != taken && work(family) >= LEAST).then(|| oldest_at_work(family).unwrap_or(named))
    };
    let elsewhere = families.iter().enumerate().filter_map(works).collect();
    ProcessFamily { named, leader, elsewhere, program: PathBuf::new() }
}

/// Of the busy members of a family the one that has been there for the longest, and so is the likeliest to
/// stay.
fn oldest_at_work(family: &[Member]) -> Option<i32> {
    let most = family.iter().map(|member| member.used).max()?;
    let busy = family.iter().filter(|member| member.used * BUSY >= most);
    busy.min_by_key(|member| (member.started, member.pid)).map(|member| member.pid)
}

/// When a process began, in clock ticks since boot.
fn started(pid: i32) -> u64 {
    procfs::ProcessId::of(pid).map_or(u64::MAX, |process| process.start_time)
}

/// `named` and those of its descendants that run its program, by the address at which that lies and the user
/// that they are of; `named`'s own family first.
///
/// # Errors
/// If `named` cannot be looked at.
pub fn families(named: i32) -> Result<Vec<Vec<i32>>, SessionError> {
    let (program, family) = program_of(named)?;
    let mut found = BTreeMap::from([(family, BTreeSet::from([named]))]);
    for process in procfs::descendants(named)? {
        // One that has ended, or may not be looked at, is none of them.
        if let Ok((other, family)) = program_of(process.pid)
            && other == program
            && other.is_some()
        {
            found.entry(family).or_default().insert(process.pid);
        }
    }
    let own = found.remove(&family).unwrap_or_default();
    Ok(std::iter::once(own).chain(found.into_values()).map(|family| family.into_iter().collect()).collect())
}

/// Where a program begins, and who runs it.
type Family = (Option<Avma>, Option<[u32; 3]>);

/// The file that a process executes (`None`: it does not tell), and its family.
fn program_of(pid: i32) -> Result<(Option<FileIdentity>, Family), SessionError> {
    let file = procfs::open_executable(pid)?;
    let family = (procfs::auxv(pid)?.entry(), procfs::status(pid)?.users());
    Ok((FileIdentity::of(&file.file).ok(), family))
}

/// CPU time of the threads that a process has now; none, if it has ended.
pub fn cpu_time(pid: i32) -> Duration {
    let threads = procfs::threads(pid).unwrap_or_default();
    threads.into_iter().filter_map(|thread| procfs::thread_cpu_time(pid, thread.tid).ok()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_family_that_works_leads() {
        let ms = Duration::from_millis;
        let lead = |families: &[&[(u64, i32)]]| {
            let member = |&(t, pid): &(u64, i32)| Member { pid, used: ms(t), started: pid as u64 };
            let family = choose(1, families.iter().map(|f| f.iter().map(member).collect()).collect());
            (family.leader, family.elsewhere)
        };
        assert_eq!(lead(&[&[(0, 1)], &[(40, 2), (100, 3)]]), (3, vec![]), "the named one waits");
        assert_eq!(
            lead(&[&[(0, 1)], &[(9, 2), (90, 3), (100, 4)]]),
            (3, vec![]),
            "of the busy ones, the oldest"
        );
        assert_eq!(lead(&[&[(20, 1)], &[(150, 2)]]), (1, vec![2]), "it works, if less");
        assert_eq!(lead(&[&[(2, 1)], &[(150, 2)], &[(30, 4)]]), (2, vec![1, 4]), "hardly");
        assert_eq!(lead(&[&[(0, 1), (200, 5)], &[(150, 2)]]), (1, vec![2]), "its own children work");
        assert_eq!(lead(&[&[(0, 1)], &[(0, 2)]]), (1, vec![]), "nobody does");
    }

    #[test]
    fn the_end_of_a_process_that_nobody_has_named_is_explained() {
        let program = PathBuf::from("/usr/sbin/server");
        let family = ProcessFamily { named: 1, leader: 20, elsewhere: Vec::new(), program };
        let ended = |pid| SessionError::Ended { pid, when: "meanwhile".into() };
        let told = family.explain(ended(20)).to_string();
        assert!(
            ["process 20 ended meanwhile", "/usr/sbin/server", "name 1 again"]
                .iter()
                .all(|w| told.contains(w)),
            "{told}"
        );
        let own = ProcessFamily { leader: 1, ..family };
        assert_eq!(own.explain(ended(1)).to_string(), ended(1).to_string());
    }
}
