//! Work on several modules at once.

use std::num::NonZero;
use std::sync::Mutex;
use std::thread;

/// `work` on each of `items`, on as many threads as there are processors for; the results in order. What is
/// likely to take longest should stand first. This thread works, too, so that the others may be missing: a
/// user may have no more of them (`ulimit -u`).
pub fn map<T: Send, R: Send>(items: Vec<T>, work: impl Fn(T) -> R + Sync) -> Vec<R> {
    let processors = thread::available_parallelism().map_or(1, NonZero::get);
    if items.len() < 2 || processors < 2 {
        return items.into_iter().map(work).collect();
    }
    let threads = processors.min(items.len());
    let queue = Mutex::new(items.into_iter().enumerate());
    let next = || queue.lock().unwrap_or_else(std::sync::PoisonError::into_inner).next();
    let worker = || {
        let mut done = Vec::new();
        while let Some((i, item)) = next() {
            done.push((i, work(item)));
        }
        done
    };
    let mut done: Vec<(usize, R)> = thread::scope(|scope| {
        let start = |_| thread::Builder::new().spawn_scoped(scope, worker).ok();
        let others: Vec<_> = (1..threads).filter_map(start).collect();
        let own = worker();
        // A panic of a worker goes on here: it is a bug, and nothing has been done to the process yet.
        let results = others.into_iter().map(|w| w.join().unwrap_or_else(|e| std::panic::resume_unwind(e)));
        results.flatten().chain(own).collect()
    });
    done.sort_unstable_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn results_keep_their_order() {
        for n in [0, 1, 2, 100] {
            let doubled = super::map((0..n).collect(), |i: i32| 2 * i);
            assert_eq!(doubled, (0..n).map(|i| 2 * i).collect::<Vec<_>>());
        }
    }
}
