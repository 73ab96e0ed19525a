//! System calls in another process leave no trace in its threads, also when this program is killed in
//! between.

mod common;

use common::Target;
use restitch_address::{Avma, AvmaRange, FileOffset};
use restitch_testkit::wait_until;
use restitch_tracee::{
    BATCH_SPACE, Backing, Batch, Borrow, Placement, Protection, RemoteFd, Sealed, Stopped, StubPlace,
    TraceError, visit as visit_one,
};
use std::process::{Command, Stdio};
use std::time::Duration;

fn place(pid: i32, at: Avma) -> StubPlace {
    StubPlace::new(pid, at, &restitch_procfs::maps(pid).unwrap()).unwrap().with_room()
}

/// Addresses that no program here uses.
const FREE: [AvmaRange; 2] = [at(0x10_0000_0000), at(0x10_0010_0000)];

const fn at(start: u64) -> AvmaRange {
    AvmaRange::new(Avma::new(start), 8192)
}

/// Two visits: map, protect, unmap, call by call while all threads are held; and in one go while one thread
/// is.
fn visit(pid: i32, place: StubPlace) -> Result<(), TraceError> {
    visit_all(pid, place)?;
    let results = visit_one(pid, place, |borrow| borrow.run(&in_one_go()))?.0;
    results.into_iter().try_for_each(|result| result.map(drop))
}

fn in_one_go() -> Batch {
    let mut batch = Batch::new();
    batch.mmap(Placement::At(FREE[0].start), 8192, Protection::ReadWrite, Backing::Anonymous);
    batch.mremap_leaving(FREE[0], FREE[1].start);
    batch.munmap(FREE[1]);
    batch.munmap(FREE[0]);
    batch
}

fn visit_all(pid: i32, place: StubPlace) -> Result<(), TraceError> {
    let mut stopped = Stopped::seize_all(pid)?;
    let mut borrow = stopped.borrow_thread(place)?;
    let range = borrow.mmap(Placement::Anywhere, 8192, Protection::ReadWrite, Backing::Anonymous)?;
    borrow.mprotect(range, Protection::Read)?;
    borrow.munmap(range)?;
    borrow.finish()?;
    stopped.resume();
    Ok(())
}

#[test]
fn visits_do_not_disturb_waiting_computing_and_reading_programs() {
    for arguments in [&["vector"][..], &["sleep"], &["read"], &["sleep", "threads"], &["vector", "threads"]] {
        let Some(target) = Target::start("selfcheck", arguments) else { return };
        let place = place(target.pid(), target.padding);
        for round in 0..150u64 {
            visit(target.pid(), place).unwrap();
            std::thread::sleep(Duration::from_micros(round * 13 % 900));
        }
        target.assert_ok();
    }
}

#[test]
fn a_program_blocked_in_every_way_is_not_disturbed() {
    let Some(target) = Target::start("sleepers", &[]) else { return };
    let place = place(target.pid(), target.padding);
    for round in 0..200u64 {
        visit(target.pid(), place).unwrap();
        std::thread::sleep(Duration::from_micros(round * 71 % 3000));
    }
    target.assert_ok();
}

#[test]
fn signals_during_visits_arrive() {
    let Some(target) = Target::start("signals", &["20000"]) else { return };
    let place = place(target.pid(), target.padding);
    while !target.is_done() {
        match visit(target.pid(), place) {
            Ok(()) => {}
            Err(error) if error.is_gone() => break,
            Err(error) => panic!("{error}"),
        }
        std::thread::sleep(Duration::from_micros(300));
    }
    target.assert_ok();
}

#[test]
fn every_call_does_what_it_says() {
    let Some(target) = Target::start("selfcheck", &["sleep"]) else { return };
    let pid = target.pid();
    let before = restitch_procfs::maps(pid).unwrap();
    let mut stopped = Stopped::seize_all(pid).unwrap();
    let mut borrow = stopped.borrow_thread(place(pid, target.padding)).unwrap();
    let fd = borrow.open(c"/proc/self/exe", libc::O_RDONLY, 0).unwrap();
    let file = borrow
        .mmap(Placement::Anywhere, 4096, Protection::ReadExecute, Backing::Private(fd, FileOffset::new(0)))
        .unwrap();
    assert_eq!(borrow.memory().read_vec(file.start, 4).unwrap(), b"\x7fELF");
    borrow.close(fd).unwrap();
    assert!(matches!(borrow.close(fd), Err(TraceError::RemoteCall { call: "close", .. })));
    let taken = borrow.mmap(Placement::At(file.start), 4096, Protection::Read, Backing::Anonymous);
    assert!(matches!(taken, Err(TraceError::RemoteCall { call: "mmap", .. })), "{taken:?}");
    let anonymous =
        borrow.mmap(Placement::Anywhere, 4096, Protection::ReadWrite, Backing::Anonymous).unwrap();
    borrow.memory().write(anonymous.start, b"moved").unwrap();
    borrow.mremap(anonymous, file.start).unwrap();
    assert_eq!(borrow.memory().read_vec(file.start, 5).unwrap(), b"moved");
    borrow.madvise(file, libc::MADV_DONTNEED).unwrap();
    assert_eq!(borrow.memory().read_vec(file.start, 5).unwrap(), [0; 5]);
    assert!(borrow.membarrier(0, 0).unwrap() > 0);
    let memfd = borrow.memfd_create(c"test").unwrap();
    let path = format!("/proc/{pid}/fd/{}", memfd.number());
    std::fs::write(path, vec![7u8; 4096]).unwrap();
    borrow
        .mmap(Placement::Over(file.start), 4096, Protection::Read, Backing::Shared(memfd, FileOffset::new(0)))
        .unwrap();
    assert_eq!(borrow.memory().read_vec(file.start, 2).unwrap(), [7, 7]);
    borrow.close(memfd).unwrap();
    borrow.munmap(AvmaRange::new(file.start, 4096)).unwrap();
    borrow.finish().unwrap();
    let padding = stopped.memory().read_vec(target.padding, 16).unwrap();
    assert_eq!(padding, [0xcc; 16]);
    stopped.resume();
    let strip = |maps: Vec<restitch_procfs::Mapping>| {
        maps.into_iter().map(|m| (m.range, m.permissions)).collect::<Vec<_>>()
    };
    let split = |ranges: &[(AvmaRange, restitch_procfs::Permissions)]| ranges.len();
    assert_eq!(split(&strip(restitch_procfs::maps(pid).unwrap())), split(&strip(before)));
    target.assert_ok();
}

/// What other threads of a target may do with the descriptor of a memory file before it is taken over.
#[test]
fn only_the_memory_file_that_was_made_is_taken_over() {
    let Some(target) = Target::start("selfcheck", &["sleep"]) else { return };
    let pid = target.pid();
    let mut stopped = Stopped::seize_all(pid).unwrap();
    let mut borrow = stopped.borrow_thread(place(pid, target.padding)).unwrap();
    let made = borrow.memfd_create(c"made").unwrap();
    let file = borrow.take_memory_file(made).unwrap().fill(b"code", 8192, Sealed::Length).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 8192);
    let refused = |borrow: &Borrow<'_>, fd, word: &str| {
        let error = borrow.take_memory_file(fd).expect_err(word).to_string();
        assert!(error.contains(word) && error.contains("nothing was written"), "{error}");
    };
    refused(&borrow, made, "another memory file");
    for (path, flags) in
        [(c"/proc/self/exe", libc::O_RDONLY), (c"/proc/self/mem", libc::O_RDWR), (c"/dev/null", libc::O_PATH)]
    {
        let memory = borrow.memfd_create(c"exchanged").unwrap();
        let other = borrow.open(path, flags, 0).unwrap();
        let exchanged = borrow
            .raw_system_call(libc::SYS_dup2, [other.number() as u64, memory.number() as u64, 0, 0, 0, 0]);
        assert_eq!(exchanged.unwrap(), i64::from(memory.number()));
        refused(&borrow, memory, "another file");
        borrow.close(memory).unwrap();
        refused(&borrow, memory, "closed");
        borrow.close(other).unwrap();
    }
    borrow.close(made).unwrap();
    borrow.finish().unwrap();
    stopped.resume();
    target.assert_ok();
}

#[test]
fn calls_in_one_go_do_what_they_say_singly_and_together() {
    let Some(target) = Target::start("selfcheck", &["sleep", "threads"]) else { return };
    let pid = target.pid();
    for place in [
        place(pid, target.padding),
        StubPlace::new(pid, target.padding, &restitch_procfs::maps(pid).unwrap()).unwrap(),
    ] {
        let ((), held) = visit_one(pid, place, |borrow| {
            let mut batch = Batch::new();
            batch.memfd_create(c"test");
            batch.open(c"/proc/self/exe");
            batch.open(c"/there/is/no/such/file");
            let mut results = borrow.run(&batch)?;
            assert!(matches!(results.pop(), Some(Err(TraceError::RemoteCall { call: "openat", .. }))));
            let fds: Vec<RemoteFd> =
                results.into_iter().map(|result| RemoteFd::from_result(result.unwrap())).collect();
            std::fs::write(format!("/proc/{pid}/fd/{}", fds[0].number()), vec![7u8; 8192]).unwrap();
            let mut batch = Batch::new();
            for (fd, range) in fds.iter().zip(FREE) {
                let backing = Backing::Private(*fd, FileOffset::new(0));
                batch.mmap(Placement::At(range.start), 8192, Protection::Read, backing);
                // Taken.
                batch.mmap(Placement::At(range.start), 8192, Protection::Read, Backing::Anonymous);
                batch.close(*fd);
            }
            let results = borrow.run(&batch)?;
            let done: Vec<bool> = results.iter().map(Result::is_ok).collect();
            assert_eq!(done, [true, false, true, true, false, true], "{results:?}");
            assert_eq!(borrow.memory().read_vec(FREE[0].start, 2)?, [7, 7]);
            assert_eq!(borrow.memory().read_vec(FREE[1].start, 4)?, b"\x7fELF");
            // What was written goes along, and the file shows again in the place that is left.
            borrow.memory().write(FREE[0].start, b"own")?;
            let mut batch = Batch::new();
            batch.mremap_leaving(FREE[0], FREE[1].start);
            batch.mremap(FREE[1], FREE[1].start + 0x10_0000);
            assert!(borrow.run(&batch)?.iter().all(Result::is_ok));
            assert_eq!(borrow.memory().read_vec(FREE[1].start + 0x10_0000, 4)?, b"own\x07");
            assert_eq!(borrow.memory().read_vec(FREE[0].start, 4)?, [7; 4]);
            let mut batch = Batch::new();
            batch.munmap(FREE[0]);
            batch.munmap(AvmaRange::new(FREE[1].start + 0x10_0000, 8192));
            assert!(borrow.run(&batch)?.iter().all(Result::is_ok));
            assert!(borrow.run(&Batch::new())?.is_empty());
            Ok::<(), TraceError>(())
        })
        .unwrap();
        assert!(!held.is_zero());
    }
    target.assert_ok();
}

#[test]
fn code_is_not_taken_for_padding() {
    let Some(target) = Target::start("selfcheck", &["sleep"]) else { return };
    let pid = target.pid();
    let maps = restitch_procfs::maps(pid).unwrap();
    let code = StubPlace::new(pid, target.padding + 128, &maps).unwrap();
    let mut stopped = Stopped::seize_all(pid).unwrap();
    let refused = stopped.borrow_thread(code).map(drop);
    assert!(matches!(refused, Err(TraceError::NoStubPlace { .. })), "{refused:?}");
    drop(stopped);
    let data = maps.iter().find(|mapping| !mapping.permissions.execute).unwrap();
    assert!(StubPlace::new(pid, data.range.start, &maps).is_err());
    assert!(StubPlace::new(pid, Avma::new(1 << 46), &maps).is_err());
    target.assert_ok();
}

const KILLED: &str = "RESTITCH_TEST_VISIT";
/// How long a thread may take to end what a visitor has begun.
const PATIENCE: Duration = Duration::from_secs(60);

/// Whether the process has ended what a visitor that was killed had begun: no thread stands in the stub at
/// `padding`, and nothing is mapped where visits map something for a moment. A thread may have to wait for a
/// processor until it comes to that.
fn is_settled(pid: i32, padding: Avma) -> bool {
    let stub = AvmaRange::new(padding, BATCH_SPACE as u64);
    // (One that has ended is looked at by the test.)
    let Ok(stopped) = Stopped::seize_all(pid) else { return restitch_procfs::has_ended(pid) };
    let stands = |tid| stopped.registers(tid).is_ok_and(|registers| stub.contains(registers.rip));
    let maps = restitch_procfs::maps(pid).unwrap_or_default();
    let is_mapped = maps.iter().any(|mapping| FREE.iter().any(|free| free.overlaps(&mapping.range)));
    !is_mapped && !stopped.threads().any(stands)
}

/// Not a test by itself: the program that the next test starts and kills.
#[test]
fn helper_that_visits_until_it_is_killed() {
    let Ok(value) = std::env::var(KILLED) else { return };
    let (pid, padding) = value.split_once(' ').unwrap();
    let (pid, padding) = (pid.parse().unwrap(), Avma::new(padding.parse().unwrap()));
    let place = place(pid, padding);
    loop {
        if let Err(error) = visit(pid, place) {
            eprintln!("visit: {error}");
            std::process::exit(7);
        }
    }
}

/// Whenever the visitor is killed, the kernel detaches it from all threads at once, wherever they are: in
/// front of the stub, in the middle of it, in a system call of ours. The program must notice nothing but what
/// it has to expect of any stop signal: an EINTR of epoll_wait, when the visitor dies between the
/// interruption and the repair.
#[test]
fn a_visitor_killed_at_any_point_leaves_a_correct_program() {
    let mut kills = 0;
    for arguments in [&["vector"][..], &["doze"], &["read", "threads"]] {
        let Some(mut target) = Target::start("selfcheck", arguments) else { return };
        for round in 0..150u64 {
            let mut visitor = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "helper_that_visits_until_it_is_killed", "--nocapture"])
                .env(KILLED, format!("{} {}", target.pid(), target.padding.get()))
                .stdout(Stdio::null())
                .spawn()
                .unwrap();
            std::thread::sleep(Duration::from_micros(4000 + round * 7919 % 5000));
            let ended_early = visitor.try_wait().unwrap();
            assert!(ended_early.is_none(), "{ended_early:?} in round {round} of {arguments:?}");
            visitor.kill().unwrap();
            visitor.wait().unwrap();
            kills += 1;
            // The next visitor would find the place taken.
            let is_done = || is_settled(target.pid(), target.padding).then_some(());
            assert!(wait_until(PATIENCE, is_done).is_some(), "{arguments:?}: half done in round {round}");
            assert!(!target.has_ended(), "{arguments:?} died in round {round}");
        }
        target.assert_ok();
    }
    assert_eq!(kills, 450);
}
