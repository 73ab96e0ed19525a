//! Processes in special states, and the memory of others.

mod common;

use common::Target;
use restitch_address::Avma;
use restitch_tracee::{
    AloneInMemory, Backing, Memory, Placement, Protection, StopOptions, Stopped, StubPlace, TraceError,
    settle_stragglers,
};
use std::path::PathBuf;
use std::time::{Duration, Instant};

#[test]
fn a_process_whose_first_thread_has_ended_is_stopped_and_borrowed_from() {
    let Some(target) = Target::start("special", &["leaderless"]) else { return };
    let pid = target.pid();
    let mut stopped = Stopped::seize_all(pid).unwrap();
    let threads: Vec<i32> = stopped.threads().collect();
    assert!(threads.len() == 1 && threads[0] != pid);
    let place = StubPlace::new(pid, target.padding, &stopped.maps().unwrap()).unwrap();
    let mut borrow = stopped.borrow_thread(place).unwrap();
    borrow.mmap(Placement::Anywhere, 4096, Protection::Read, Backing::Anonymous).unwrap();
    drop(borrow);
    drop(stopped);
    target.assert_ok();
}

/// One that has come since the first look is seen in the stop, and one that has gone is not.
#[test]
fn who_comes_to_share_the_memory_is_seen_in_the_stop() {
    let Some(target) = Target::start("special", &["shares"]) else { return };
    let pid = target.pid();
    let children = || std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap();
    let alone = AloneInMemory::verify(pid).unwrap();
    for comes in [true, false, true] {
        let signal = std::process::Command::new("kill").args(["-USR1", &pid.to_string()]).status().unwrap();
        assert!(signal.success());
        while children().trim().is_empty() == comes {
            std::thread::sleep(Duration::from_millis(1));
        }
        let stopped = Stopped::seize_all(pid).unwrap();
        let seen = alone.verify_stopped();
        stopped.resume();
        if comes && seen.is_ok() && !knows_sharers() {
            eprintln!("SKIPPED: kcmp is not permitted here");
            return;
        }
        let shares = matches!(&seen, Err(TraceError::SharedMemory { other, .. })
            if children().trim() == other.to_string());
        assert!(if comes { shares } else { seen.is_ok() }, "{seen:?}");
        assert_eq!(AloneInMemory::verify(pid).is_ok(), !comes);
    }
    target.assert_ok();
}

/// Whether the kernel tells who has the same memory.
fn knows_sharers() -> bool {
    let own = i64::from(std::process::id());
    // SAFETY: all arguments are numbers.
    unsafe { libc::syscall(libc::SYS_kcmp, own, own, 1i64, 0i64, 0i64) == 0 }
}

#[test]
fn a_vfork_parent_is_waited_for_and_then_refused_untouched() {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let end = folder.join(format!("vfork-child-ends-{}", std::process::id()));
    let _ = std::fs::remove_file(&end);
    let Some(target) = Target::start("special", &["vfork", end.to_str().unwrap()]) else { return };
    let pid = target.pid();
    // The child has said that it runs; its parent is on its way to where it waits for it.
    let state = || restitch_procfs::thread_stat(pid, pid).unwrap().state;
    while state() != restitch_procfs::ProcessState::Uninterruptible {
        std::thread::sleep(Duration::from_millis(1));
    }
    let short = StopOptions { limit: Duration::from_millis(100) };
    let refused = Stopped::seize_all_with(pid, short).map(drop).unwrap_err();
    assert!(matches!(refused, TraceError::VforkParent { .. }), "{refused}");
    assert_eq!(restitch_procfs::status(pid).unwrap().tracer, Some(0), "still traced");
    assert_eq!(settle_stragglers(), 0);
    // With patience it stops as soon as the child has gone, and not before.
    let told = std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(300));
        let at = Instant::now();
        std::fs::write(&end, "").unwrap();
        (at, end)
    });
    let patient = StopOptions { limit: Duration::from_secs(120) };
    Stopped::seize_all_with(pid, patient).unwrap().resume();
    let stopped = Instant::now();
    let (at, end) = told.join().unwrap();
    std::fs::remove_file(end).unwrap();
    assert!(stopped > at, "it was stopped while its child was there");
    target.assert_ok();
}

#[test]
fn memory_is_read_one_by_one_and_in_batches() {
    let Some(target) = Target::start("special", &["waiting"]) else { return };
    let pid = target.pid();
    let memory = Memory::open_read_only(pid).unwrap();
    let maps = restitch_procfs::maps(pid).unwrap();
    let places: Vec<(Avma, usize)> = maps
        .iter()
        .filter(|mapping| mapping.permissions.read && mapping.path().is_some())
        .map(|mapping| (mapping.range.start, 16))
        .cycle()
        .take(1500)
        .collect();
    let single: Vec<_> = places.iter().map(|&(at, len)| memory.read_vec(at, len).ok()).collect();
    assert_eq!(memory.read_many(&places), single);
    let mut with_hole = places[..4].to_vec();
    with_hole.insert(2, (Avma::new(8), 16));
    let read = memory.read_many(&with_hole);
    assert!(read[2].is_none() && read.iter().flatten().count() == 4);
    assert!(memory.write(places[0].0, &[0]).unwrap_err().to_string().contains("cannot write 1 bytes"));
    assert!(
        memory.write_words(&[(places[0].0, 0)]).unwrap_err().to_string().contains("cannot write 8 bytes")
    );
    let mut large = vec![0; 4096];
    memory.read(places[0].0, &mut large).unwrap();
    assert_eq!(large, memory.read_vec(places[0].0, 4096).unwrap());
    assert!(memory.read(Avma::new(8), &mut large).is_err());
    let error = memory.read_u64(Avma::new(8)).unwrap_err().to_string();
    assert!(error.contains("cannot read 8 bytes at 0x8"), "{error}");
    target.assert_ok();
}

#[test]
fn many_words_are_written_wherever_they_stand() {
    let Some(target) = Target::start("special", &["waiting"]) else { return };
    let pid = target.pid();
    let stopped = Stopped::seize_all(pid).unwrap();
    // Below what the thread uses of its stack, more than one call takes, and a place among them where the
    // process itself may not write.
    let stack = stopped.registers(pid).unwrap().rsp.align_down(8) - 16384;
    let mut words: Vec<(Avma, u64)> = (0..1200).map(|i| (stack + 8 * i, 0x1234_0000 + i)).collect();
    words[700] = (target.padding, 0x9090_9090_9090_9090);
    stopped.memory().write_words(&words).unwrap();
    for (at, word) in words {
        assert_eq!(stopped.memory().read_u64(at).unwrap(), word, "{at}");
    }
    stopped.resume();
    target.assert_ok();
}

/// What `look` finds at the pages of `special.c`'s "watched", while the process is stopped. Whoever waits for
/// a page waits for ever, so that is an error here.
fn look_at_watched(look: fn(&Memory, Avma)) {
    let Some(target) = Target::start_or("special", &["watched"], "skipped") else { return };
    let (pid, pages) = (target.pid(), target.padding);
    let (told, answer) = std::sync::mpsc::channel();
    let looks = std::thread::spawn(move || {
        let stopped = Stopped::seize_all(pid).unwrap();
        look(stopped.memory(), pages);
        stopped.resume();
        told.send(()).unwrap();
    });
    match answer.recv_timeout(Duration::from_secs(60)) {
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => panic!("somebody is waited for"),
        _ => looks.join().unwrap(),
    }
    target.assert_ok();
}

fn assert_watched<T: std::fmt::Debug>(result: Result<T, TraceError>, page: Avma) {
    match result {
        Err(TraceError::Watched { at, .. }) => assert_eq!(at, page),
        other => panic!("{other:?}"),
    }
}

#[test]
fn missing_pages_that_somebody_watches_are_named_and_not_waited_for() {
    look_at_watched(|memory, pages| {
        let missing = pages + 4096;
        assert_eq!(memory.read_vec(pages, 1).unwrap(), [7]);
        assert_watched(memory.read_vec(pages, 8192), missing);
        assert_watched(memory.read_u64(missing + 80), missing);
        assert_watched(memory.write(missing + 80, &[1]), missing);
        assert_watched(memory.write_words(&[(pages, 7), (missing, 7)]), missing);
        let read = memory.read_many(&[(pages, 1), (missing - 8, 8), (missing, 8), (missing + 4096, 1)]);
        assert_eq!(read, [Some(vec![7]), Some(vec![0; 8]), None, Some(vec![7])]);
        assert!(memory.holds(&[(pages, vec![7])]) && !memory.holds(&[(pages, vec![7]), (missing, vec![0])]));
    });
}

#[test]
fn pages_whose_watcher_is_told_of_writes_are_read_only() {
    look_at_watched(|memory, pages| {
        let protected = pages + 8192;
        assert_eq!(memory.read_vec(protected, 1).unwrap(), [7]);
        assert_watched(memory.write(protected, &[8]), protected);
        assert_watched(memory.write_words(&[(protected, 8)]), protected);
        assert_eq!(memory.read_vec(protected, 1).unwrap(), [7]);
    });
}

/// `served.c`, with a folder that it mounts over. `None`, with a message, if that is not possible here.
fn served(touched: &[&str]) -> Option<(Target, tempfile::TempDir)> {
    let folder = tempfile::tempdir().expect("writable");
    let arguments = [&[folder.path().to_str().expect("text")], touched].concat();
    let target = Target::start_or("served", &arguments, "skipped");
    if target.is_none() {
        eprintln!("SKIPPED: no FUSE here (/dev/fuse, root)");
    }
    Some((target?, folder))
}

#[test]
fn pages_of_a_server_that_does_not_answer_are_not_waited_for_in_a_stop() {
    let Some((target, _folder)) = served(&["touched"]) else { return };
    let (pid, first) = (target.pid(), target.padding);
    let missing = first + 4096;
    let unserved = |result: Result<(), TraceError>| match result {
        Err(TraceError::Unserved { at, .. }) => assert_eq!(at, missing),
        other => panic!("{other:?}"),
    };
    let stopped = Stopped::seize_all(pid).unwrap();
    let memory = stopped.memory();
    let begun = Instant::now();
    assert_eq!(memory.read_vec(first, 1).unwrap(), [7]);
    memory.write(first, &[8]).unwrap();
    unserved(memory.read_vec(first, 4097).map(drop));
    unserved(memory.write(missing, &[8]));
    unserved(memory.write_words(&[(first, 8), (missing, 8)]));
    assert_eq!(memory.read_many(&[(first, 1), (missing, 1)]), [Some(vec![8]), None]);
    assert!(!memory.holds(&[(missing, vec![7])]));
    assert!(begun.elapsed() < Duration::from_secs(2), "somebody was waited for");
    stopped.resume();
    target.assert_ok();
}

#[test]
fn a_server_that_does_not_answer_is_given_up_and_others_are_waited_for() {
    let Some((target, _folder)) = served(&[]) else { return };
    let first = target.padding;
    let memory = Memory::open(target.pid()).unwrap();
    // The process has not read it yet.
    assert_eq!(memory.read_many(&[(first, 1)]), [Some(vec![7])]);
    let begun = Instant::now();
    let error = memory.read_vec(first + 4096, 1).unwrap_err();
    assert!(matches!(error, TraceError::Unserved { .. }), "{error}");
    assert!(memory.read_vec(first + 8192, 1).is_err());
    assert!(begun.elapsed() < Duration::from_secs(60), "waited for {:?}", begun.elapsed());
    assert_eq!(memory.read_vec(first, 1).unwrap(), [7]);
    target.assert_ok();
}

#[test]
fn code_can_be_written_while_stopped() {
    let Some(target) = Target::start("special", &["waiting"]) else { return };
    let stopped = Stopped::seize_all(target.pid()).unwrap();
    stopped.memory().write(target.padding, &[0x90; 8]).unwrap();
    assert_eq!(stopped.memory().read_vec(target.padding, 9).unwrap()[7..], [0x90, 0xcc]);
    stopped.resume();
    target.assert_ok();
}
