//! Reading of live processes: this one, and children of it.

use restitch_procfs::{self as procfs, FileIdentity, Mapping, ProcError, ProcessId};
use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

fn own_pid() -> i32 {
    std::process::id() as i32
}

struct Sleeper(Child);

impl Sleeper {
    fn start(program: &str) -> Self {
        let child = Command::new(program).arg("100").stdout(Stdio::null()).spawn().unwrap();
        let sleeper = Self(child);
        // The child is a copy of this process until its exec, then it is set up and linked.
        let own = procfs::executable_path(own_pid()).unwrap();
        let sleeps = |pid| {
            procfs::executable_path(pid).is_ok_and(|path| path != own)
                && procfs::status(pid).unwrap().state == Some(procfs::ProcessState::Sleeping)
                && procfs::maps(pid).unwrap().iter().any(|mapping| mapping.is_special("[heap]"))
        };
        while !sleeps(sleeper.pid()) {
            std::thread::sleep(Duration::from_millis(1));
        }
        sleeper
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_process_is_known_by_number_and_start() {
    let sleeper = Sleeper::start("sleep");
    let id = ProcessId::of(sleeper.pid()).unwrap();
    assert!(id.is_alive() && id.verify().is_ok());
    let other = ProcessId { start_time: id.start_time + 1, ..id };
    assert!(!other.is_alive());
    assert!(other.verify().unwrap_err().to_string().contains("given to another process"));
    drop(sleeper);
    assert!(!id.is_alive());
    assert!(matches!(id.verify(), Err(ProcError::Gone { .. })));
}

#[test]
fn a_zombie_is_not_alive() {
    let mut child = Command::new("true").spawn().unwrap();
    let id = ProcessId::of(child.id() as i32).unwrap();
    let ended = |id: ProcessId| procfs::status(id.pid).unwrap().state == Some(procfs::ProcessState::Zombie);
    while !ended(id) {
        std::thread::sleep(Duration::from_millis(1));
    }
    assert!(!id.is_alive());
    child.wait().unwrap();
}

#[test]
fn this_process_is_described() {
    let pid = own_pid();
    let maps = procfs::maps(pid).unwrap();
    let auxv = procfs::auxv(pid).unwrap();
    let headers = auxv.program_headers().unwrap();
    let program = maps.iter().find(|mapping| mapping.range.contains(headers)).unwrap();
    assert_eq!(program.path().unwrap(), procfs::executable_path(pid).unwrap());
    assert!(maps.iter().any(|m| m.permissions.execute && m.range.contains(auxv.entry().unwrap())));
    let heap = maps.iter().find(|mapping| mapping.is_special("[heap]")).unwrap();
    assert_eq!(procfs::thread_stat(pid, pid).unwrap().heap_start, Some(heap.range.start));
    let status = procfs::status(pid).unwrap();
    assert_eq!((status.pid, status.tgid, status.kernel_thread), (Some(pid), Some(pid), false));
    let threads = procfs::threads(pid).unwrap();
    assert!(threads.iter().any(|thread| thread.tid == pid));
    let busy: Duration = threads.iter().filter_map(|t| procfs::thread_cpu_time(t.pid, t.tid).ok()).sum();
    assert!(busy > Duration::ZERO && busy < Duration::from_secs(3600));
}

#[test]
fn mapped_files_are_opened_also_when_deleted_or_replaced() {
    let path = std::path::PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("sleep-{}", own_pid()));
    // By another process: a file that is open for writing here might be inherited by a child of another test
    // just now, and could not be executed.
    assert!(Command::new("cp").arg("/bin/sleep").arg(&path).status().unwrap().success());
    let sleeper = Sleeper::start(path.to_str().unwrap());
    let headers = procfs::auxv(sleeper.pid()).unwrap().program_headers().unwrap();
    let maps = procfs::maps(sleeper.pid()).unwrap();
    let mapping = maps.iter().find(|mapping| mapping.range.contains(headers)).unwrap();
    let magic = |mut file: std::fs::File| {
        let mut bytes = [0; 4];
        file.read_exact(&mut bytes).unwrap();
        bytes
    };
    assert_eq!(magic(procfs::open_mapped(sleeper.pid(), mapping).unwrap().file), *b"\x7fELF");
    // Another file takes the path: only map_files (root) still reaches the mapped one.
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, b"another").unwrap();
    match procfs::open_mapped(sleeper.pid(), mapping) {
        Ok(opened) => assert_eq!(magic(opened.file), *b"\x7fELF"),
        Err(error) => assert!(matches!(error, ProcError::Replaced { .. }), "{error}"),
    }
    assert_eq!(magic(procfs::open_executable(sleeper.pid()).unwrap().file), *b"\x7fELF");
    std::fs::remove_file(&path).unwrap();
}

/// Where a library is closed and another one opened, the maps that were read are of the first and what is
/// mapped is the second.
#[test]
fn a_file_that_came_to_the_same_addresses_is_not_taken_for_the_first_one() {
    let sleeper = Sleeper::start("sleep");
    let headers = procfs::auxv(sleeper.pid()).unwrap().program_headers().unwrap();
    let maps = procfs::maps(sleeper.pid()).unwrap();
    let now = maps.iter().find(|mapping| mapping.range.contains(headers)).unwrap();
    let gone = Mapping { inode: now.inode + 1, ..now.clone() };
    let opened = procfs::open_mapped(sleeper.pid(), &gone);
    assert!(matches!(opened, Err(ProcError::Replaced { .. })), "{opened:?}");
}

#[test]
fn users_of_a_program_and_descendants_are_found() {
    let (first, second) = (Sleeper::start("sleep"), Sleeper::start("sleep"));
    let file = procfs::open_executable(first.pid()).unwrap().file;
    let users = procfs::processes_mapping(FileIdentity::of(&file).unwrap()).unwrap();
    let pids: Vec<i32> = users.iter().map(|user| user.pid).collect();
    assert!(pids.contains(&first.pid()) && pids.contains(&second.pid()) && !pids.contains(&own_pid()));
    let below: Vec<i32> = procfs::descendants(own_pid()).unwrap().iter().map(|id| id.pid).collect();
    assert!(below.contains(&first.pid()) && below.contains(&second.pid()));
}

#[test]
fn what_does_not_exist_is_gone() {
    assert!(matches!(procfs::maps(i32::MAX), Err(ProcError::Gone { .. })));
    assert!(matches!(ProcessId::of(i32::MAX), Err(ProcError::Gone { .. })));
    assert!(procfs::threads(i32::MAX).unwrap_err().to_string().contains("does not exist"));
}
