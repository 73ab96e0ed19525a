//! Decisions of a session, without a command.

use crate::observe::{Mode, Usage};
use crate::*;
use restitch_pipeline::Quiet;

/// A session that takes whatever runs.
fn eager(folder: &Path) -> Session {
    let cache = Cache::open(Some(&folder.join("cache"))).expect("a folder");
    let options = BatchOptions {
        command: Command::new("true"),
        only: Vec::new(),
        exclude: Vec::new(),
        eager: true,
        trials: true,
        cache: None,
        making: Making::default(),
        export: None,
        cache_size: 1 << 20,
    };
    Session::new(cache, None, options)
}

/// A module of which so many runs have ended, with a sample each.
fn seen(path: &Path, samples: u64) -> Seen {
    let ended = BTreeMap::from([(Mode::Original, Usage { runs: samples, samples, pairs: 0, coarse: 0 })]);
    Seen { path: path.into(), samples, begun: samples, ended, ..Seen::default() }
}

#[test]
fn a_module_that_few_samples_show_nothing_of_is_given_to_the_worker_again() {
    let folder = tempfile::tempdir().unwrap();
    let (path, mut session) = (folder.path().join("a"), eager(folder.path()));
    std::fs::write(&path, "").unwrap();
    let mut samples = 3;
    let mut tries = 0;
    while session.is_worth_it(&seen(&path, samples)) {
        session.given.insert(path.clone());
        session.wanted.insert(path.clone());
        assert!(!session.is_worth_it(&seen(&path, 10 * samples)), "it is being tried");
        session.hear(Message::Uncounted(path.clone(), samples), &mut Quiet);
        assert!(!session.is_worth_it(&seen(&path, samples + 40)), "after {samples}");
        assert!(!session.wanted.contains(&path) && session.left[&path] == work::UNCOUNTED);
        samples = (4 * samples).max(50);
        tries += 1;
    }
    assert_eq!(tries, 5, "it is left alone in the end");
    assert!(samples > 2000, "{samples}");

    // One that is counted in the end is not left alone.
    let mut session = eager(folder.path());
    session.hear(Message::Uncounted(path.clone(), 3), &mut Quiet);
    session.hear(Message::Counting(path.clone()), &mut Quiet);
    assert!(session.left.is_empty() && session.uncounted.is_empty());
    // One that is left alone for another reason is.
    session.given.insert(path.clone());
    session.hear(Message::Left(path.clone(), "it is not".into()), &mut Quiet);
    assert!(!session.is_worth_it(&seen(&path, 100_000)));
}

#[test]
fn a_module_that_another_session_works_on_is_looked_at_again_after_a_while() {
    let folder = tempfile::tempdir().unwrap();
    let (path, mut session) = (folder.path().join("a"), eager(folder.path()));
    std::fs::write(&path, "").unwrap();
    session.given.insert(path.clone());
    session.hear(Message::Left(path.clone(), work::BUSY.into()), &mut Quiet);
    assert!(!session.is_worth_it(&seen(&path, 100)) && session.left[&path] == work::BUSY);
    // Half a minute later.
    let ago = Instant::now().checked_sub(ELSEWHERE).expect("the machine runs for longer");
    session.busy.insert(path.clone(), ago);
    assert!(session.is_worth_it(&seen(&path, 100)));
    session.hear(Message::Counting(path.clone()), &mut Quiet);
    assert!(session.left.is_empty());
}

#[test]
fn a_build_that_replaces_another_is_looked_at_anew() {
    let folder = tempfile::tempdir().unwrap();
    let (path, mut session) = (folder.path().join("a"), eager(folder.path()));
    std::fs::write(&path, "").unwrap();
    for is_noticed in [false, true] {
        assert_eq!(session.files.has_changed(&path), is_noticed);
        session.given.insert(path.clone());
        session.left.insert(path.clone(), "of the one before".into());
        session.suspended.insert(path.clone());
        std::fs::write(&path, if is_noticed { "another" } else { "one" }).unwrap();
        session.hear(Message::Left(path.clone(), REPLACED.into()), &mut Quiet);
        assert!(session.left.is_empty() && session.suspended.is_empty());
        assert!(session.is_worth_it(&seen(&path, 100)));
        std::fs::write(&path, "and a third one").unwrap();
    }
}

#[test]
fn what_an_earlier_command_has_tried_counts() {
    let folder = tempfile::tempdir().unwrap();
    let (path, mut session) = (folder.path().join("a"), eager(folder.path()));
    std::fs::write(&path, "").unwrap();
    usage::add(&session.cache, &[seen(&path, 100)], now(), None, |_| Some(true));
    usage::settle(&session.cache, &path, Some(100));
    session.past = usage::read(&session.cache);
    assert!(!session.is_worth_it(&seen(&path, 299)), "299 and 100 before that");
    assert!(session.is_worth_it(&seen(&path, 300)));
}

#[test]
fn the_agent_stands_in_the_environment_once() {
    let folder = tempfile::tempdir().unwrap();
    let (here, link) = (folder.path().join("here"), folder.path().join("link"));
    std::fs::create_dir(&here).unwrap();
    std::os::unix::fs::symlink(&here, &link).unwrap();
    let agent = |folder: &Path| folder.join("librestitch-$PLATFORM.so");
    let text = |theirs: &str| preload(Some(theirs.into()), &agent(&here)).into_string().unwrap();
    let (own, linked) = (agent(&here).display().to_string(), agent(&link).display().to_string());
    for named in [own.clone(), linked, format!("/a.so:{own}"), format!("{own} /a.so")] {
        assert_eq!(text(&named), named);
    }
    // That of another cache is another one.
    for theirs in ["/a.so", "/nonexistent/librestitch-$PLATFORM.so", &format!("{own}.so")] {
        assert_eq!(text(theirs), format!("{theirs}:{own}"));
    }
    assert_eq!((text(""), preload(None, &agent(&here)).into_string().unwrap()), (own.clone(), own));
}

#[test]
fn an_overlay_of_another_cache_is_not_worth_it() {
    let folder = tempfile::tempdir().unwrap();
    let (path, session) = (folder.path().join("0123.optimized"), eager(folder.path()));
    std::fs::write(&path, vec![0; 8192]).unwrap();
    assert!(session.is_worth_it(&seen(&path, 1000)), "by its name alone it is a program like others");
    std::fs::write(&path, in_force::tests::overlay(0)).unwrap();
    assert!(!session.is_worth_it(&seen(&path, 1000)));
}
