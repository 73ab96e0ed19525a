//! What a sample costs the program that it is taken of.
//!
//! **Problem.** A sample of the CPU clock is a timer interrupt. On bare metal that is a few microseconds; in
//! a virtual machine setting and taking it may be exits to the host, and one was seen to cost 100
//! microseconds. At 4,000 samples a second that is nothing, or a third of the program's time.
//!
//! **Idea.** Measure it here: this thread does the same work with and without samples in turns, and compares
//! its own processor time.

use crate::error::PerfError;
use crate::record::Record;
use crate::sampler::{IpSampler, SampleEvent, SampleOptions};
use std::hint::black_box;
use std::time::Duration;

/// Samples of each second while it is measured.
const FREQUENCY: u64 = 4000;
/// How often both are done.
const ROUNDS: usize = 12;
/// What is to be done takes about so long: some samples.
const WORK: Duration = Duration::from_millis(2);
/// Steps that are timed to know how many of them are that much.
const TRIAL: u64 = 200_000;

/// Processor time that one sample of this kind takes from the sampled thread, measured on the calling thread:
/// about 50 ms of processor time. Zero if it is too little to be told.
///
/// # Errors
/// If sampling is not permitted.
pub fn sample_cost(event: SampleEvent, branch_stack: bool) -> Result<Duration, PerfError> {
    let options = SampleOptions {
        frequency: FREQUENCY,
        event,
        branch_stack,
        inherit: false,
        tasks: false,
        ring_pages: 8,
        ..SampleOptions::default()
    };
    let mut sampler = IpSampler::open(&[std::process::id() as i32], options)?;
    sampler.disable()?;
    work(TRIAL);
    let trial = time_of(|| work(TRIAL)).max(Duration::from_micros(1));
    let steps = (TRIAL as f64 * WORK.as_secs_f64() / trial.as_secs_f64()) as u64;
    sampler.drain();
    let (mut more, mut samples) = (Vec::new(), 0);
    // SAFETY: gettid(2) has no arguments and cannot fail.
    let own = unsafe { libc::gettid() };
    for _ in 0..ROUNDS {
        let plain = time_of(|| work(steps));
        sampler.enable()?;
        let sampled = time_of(|| work(steps));
        sampler.disable()?;
        more.push(sampled.as_secs_f64() - plain.as_secs_f64());
        let is_own = |record: &Record| matches!(record, Record::Sample(sample) if sample.tid == own);
        samples += sampler.drain().iter().filter(|r| is_own(r)).count();
    }
    Ok(cost_of(&mut more, samples))
}

/// The median of what the rounds took `more`, in seconds, for each of the `samples` of one round.
fn cost_of(more: &mut [f64], samples: usize) -> Duration {
    more.sort_unstable_by(f64::total_cmp);
    let median = more.get(more.len() / 2).copied().unwrap_or(0.0);
    Duration::from_secs_f64((median * more.len() as f64 / samples.max(1) as f64).clamp(0.0, 1.0))
}

fn work(steps: u64) {
    let mut state = 1u64;
    for _ in 0..steps {
        state = black_box(state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1));
    }
}

/// Processor time of this thread that `f` takes.
fn time_of(f: impl FnOnce()) -> Duration {
    let start = thread_time();
    f();
    thread_time().saturating_sub(start)
}

fn thread_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a live timespec that nobody else has. The clock is there on every Linux; failing, the
    // time stays 0.
    unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &raw mut time) };
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_round_says_what_a_sample_costs() {
        // One round was disturbed.
        assert_eq!(cost_of(&mut [0.4e-3, 0.5e-3, 90.0, 0.6e-3, 0.5e-3], 25), Duration::from_micros(100));
        for (rounds, samples) in [(&mut [][..], 0), (&mut [-0.1][..], 3)] {
            assert_eq!(cost_of(rounds, samples), Duration::ZERO);
        }
    }
}
