//! System calls in a process that otherwise runs on.
//!
//! Mapping and unmapping need a thread of the process, but only one: the others need not stand still for it.
//! What is done this way is seen by them at once, so it has to be harmless to whoever runs.

use crate::borrow::Borrow;
use crate::cut_calls::would_be_cut;
use crate::error::TraceError;
use crate::seize::seize_one;
use crate::stopped::{StopTimes, Stopped};
use crate::stub::StubPlace;
use crate::wait::pauses;
use restitch_procfs::{self as procfs, ProcessState};
use std::time::Duration;

/// Most threads that are tried.
const MOST_TRIES: usize = 8;

/// Borrows one thread of process `pid` for `work`, while the other threads run; also says how long that
/// thread stood still. Where none of them can be borrowed while others run, all are stopped; where none can
/// be borrowed at all, it is tried again for a moment. `place` is where its stub goes. `work` is done once at
/// most.
///
/// # Errors
/// Those of [`Stopped::seize_all`] and [`Stopped::borrow_thread`], and those of `work`. What was done in the
/// process stays.
pub fn visit<T, E: From<TraceError>>(
    pid: i32,
    place: StubPlace,
    mut work: impl FnMut(&mut Borrow<'_>) -> Result<T, E>,
) -> Result<(T, Duration), E> {
    let mut pauses = pauses();
    loop {
        match visit_one(pid, place, &mut work)? {
            Ok(done) => return Ok(done),
            Err(TraceError::NothingToBorrow { .. }) => {}
            Err(error) => return Err(error.into()),
        }
        let error = match visit_stopped(pid, place, &mut work)? {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        let passes = matches!(&error, TraceError::NothingToBorrow { why, .. } if why.passes());
        match pauses.next().filter(|_| passes) {
            Some(pause) => std::thread::sleep(pause),
            None => return Err(error.into()),
        }
    }
}

/// What came of a visit, and how long it took; the inner error is that it was not begun.
type Visited<T, E> = Result<Result<(T, Duration), TraceError>, E>;

/// With all threads stopped.
fn visit_stopped<T, E: From<TraceError>>(
    pid: i32,
    place: StubPlace,
    work: &mut impl FnMut(&mut Borrow<'_>) -> Result<T, E>,
) -> Visited<T, E> {
    let mut held = Stopped::seize_all(pid)?;
    let done = in_a_borrow(&mut held, place, work);
    let StopTimes { stopped, resuming, .. } = held.resume();
    done.map_or_else(|error| Ok(Err(error)), |done| done.map(|done| Ok((done, stopped + resuming))))
}

/// With one of several threads, the others run.
fn visit_one<T, E: From<TraceError>>(
    pid: i32,
    place: StubPlace,
    work: &mut impl FnMut(&mut Borrow<'_>) -> Result<T, E>,
) -> Visited<T, E> {
    let mut last = TraceError::Vanished { tid: pid, operation: "choosing a thread to borrow" };
    for tid in candidates(pid)? {
        let mut held = match seize_one(pid, tid) {
            Ok(held) => held,
            // It has ended, or will not stop now: another one does as well.
            Err(error @ (TraceError::Vanished { .. } | TraceError::NotStopping { .. })) => {
                last = error;
                continue;
            }
            Err(error) => return Err(error.into()),
        };
        let done = in_a_borrow(&mut held, place, work);
        let StopTimes { stopped, resuming, .. } = held.resume();
        match done {
            Ok(done) => return done.map(|done| Ok((done, stopped + resuming))),
            Err(error @ (TraceError::NothingToBorrow { .. } | TraceError::ForbiddenCall { .. })) => {
                last = error
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(Err(last))
}

/// Does `work`; an error of the outer kind is that it was not begun.
fn in_a_borrow<T, E: From<TraceError>>(
    held: &mut Stopped,
    place: StubPlace,
    work: &mut impl FnMut(&mut Borrow<'_>) -> Result<T, E>,
) -> Result<Result<T, E>, TraceError> {
    let mut borrow = held.borrow_thread(place)?;
    let done = work(&mut borrow);
    let returned = borrow.finish();
    Ok(done.and_then(|done| returned.map(|()| done).map_err(E::from)))
}

/// How willingly a thread is borrowed, the most first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Willing {
    /// It waits, and misses nothing.
    Sleeps,
    Runs,
    /// Its call would be cut short.
    InCall,
}

/// Threads that can be expected to stop soon, sleeping ones first: they miss the least.
fn candidates(pid: i32) -> Result<Vec<i32>, TraceError> {
    let mut found: Vec<(Willing, i32)> = Vec::new();
    for thread in procfs::threads(pid)? {
        match procfs::thread_stat(pid, thread.tid) {
            Err(_) => {}
            Ok(stat) if stat.state == ProcessState::Uninterruptible || stat.state.is_ended() => {}
            Ok(stat) if stat.stays_in_kernel() => {}
            Ok(_) if would_be_cut(pid, thread.tid) => found.push((Willing::InCall, thread.tid)),
            Ok(stat) if stat.state == ProcessState::Sleeping => found.push((Willing::Sleeps, thread.tid)),
            Ok(_) => found.push((Willing::Runs, thread.tid)),
        }
    }
    if found.is_empty() {
        // All of them wait in the kernel, perhaps for a moment only.
        found.extend(procfs::threads(pid)?.into_iter().map(|thread| (Willing::Runs, thread.tid)));
    }
    found.sort();
    Ok(found.into_iter().take(MOST_TRIES).map(|(_, tid)| tid).collect())
}
