//! How often records are taken, so that they cost what they may.

use std::time::Duration;

/// Weight of a new cost in the running average.
const NEWS: f64 = 1.0 / 16.0;
/// The first guess of what a record costs, before anything is known: code has to be decoded then.
const FIRST_COST: f64 = 300_000.0;
/// Periods are kept between these, in nanoseconds: below, alarms come before the thread has run; above, a
/// change of the target's behaviour would be noticed too late.
const PERIODS: (f64, f64) = (50_000.0, 2e9);

/// How far observation may shorten and lengthen periods.
const GAINS: (f64, f64) = (0.03, 8.0);

/// For so long a record of `depth` branches may hold its thread: more than twice what it takes on an idle
/// machine, where a stop takes 9 to 12 us and some branches need none.
pub(crate) fn longest_record(depth: usize) -> Duration {
    const LEAST: Duration = Duration::from_millis(10);
    const EACH_BRANCH: Duration = Duration::from_micros(20);
    LEAST + EACH_BRANCH * depth as u32
}

/// Chooses periods.
#[derive(Debug)]
pub(crate) struct Pace {
    overhead: f64,
    fixed: Option<u64>,
    cost: f64,
    /// The part of the cost that is told of later.
    later: f64,
    /// Sum of costs and of the running time between them, both in nanoseconds, slowly forgotten.
    spent: f64,
    ran: f64,
    /// Periods are set shorter or longer by this: alarms that fall into the kernel are lost, and threads
    /// differ.
    gain: f64,
    random: u64,
    /// Events in a nanosecond of running.
    rate: f64,
}

impl Pace {
    /// `rate`: about how many events there are in a nanosecond of running.
    pub fn new(overhead: f64, fixed: Option<u64>, rate: f64, seed: u64) -> Self {
        let random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        Self {
            overhead: overhead.clamp(1e-5, 1.0),
            fixed,
            cost: FIRST_COST,
            later: 0.0,
            spent: 0.0,
            ran: 0.0,
            gain: 1.0,
            random,
            rate,
        }
    }

    /// A record has cost this much.
    pub fn paid(&mut self, cost: Duration) {
        let cost = cost.as_nanos() as f64;
        self.cost += (cost - self.cost) * NEWS;
        self.spent += cost;
    }

    /// A part of a record's cost that becomes known later: it is made up for, and expected of the next one.
    pub fn paid_more(&mut self, cost: Duration) {
        let cost = cost.as_nanos() as f64;
        self.later += (cost - self.later) * NEWS;
        self.spent += cost;
    }

    /// Tells what all records have cost and how long the threads have really run; to be called about ten
    /// times a second.
    pub fn observed(&mut self, held: Duration, cpu: Duration) {
        if cpu > Duration::from_millis(20) {
            let ratio = held.as_secs_f64() / (cpu.as_secs_f64() * self.overhead);
            self.gain = (self.gain * ratio.clamp(0.1, 10.0).powf(0.2)).clamp(GAINS.0, GAINS.1);
        }
    }

    /// The period until the next alarm of a thread, in events, with a jitter of a quarter up and down so that
    /// no loop of the target keeps step with it.
    pub fn next_period(&mut self) -> u64 {
        let jitter = 0.75 + 0.5 * self.unit();
        if let Some(period) = self.fixed {
            return (period as f64 * jitter) as u64;
        }
        // What was overdrawn is saved up again; what was left is not spent at once.
        let drawn = if self.ran > 0.0 { self.spent / (self.ran * self.overhead) } else { 1.0 };
        let wanted = (self.cost + self.later) / self.overhead * drawn.clamp(0.9, 8.0) * jitter;
        let period = (wanted * self.gain).clamp(PERIODS.0, PERIODS.1);
        self.ran += period / self.gain;
        if self.ran > 20e9 {
            (self.ran, self.spent) = (self.ran / 2.0, self.spent / 2.0);
        }
        (period * self.rate) as u64
    }

    /// The first period of a thread: its alarm is somewhere between two, so that threads that live for less
    /// than a period have their share of records, too.
    pub fn first_period(&mut self) -> u64 {
        let period = self.next_period() as f64;
        (period * self.unit()) as u64
    }

    /// One in `n`.
    pub fn one_in(&mut self, n: u32) -> bool {
        n != 0 && self.unit() < 1.0 / f64::from(n)
    }

    /// A number from 0 to 1 (xorshift64*, Vigna 2016).
    fn unit(&mut self) -> f64 {
        self.random ^= self.random >> 12;
        self.random ^= self.random << 25;
        self.random ^= self.random >> 27;
        (self.random.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 11) as f64 / (1u64 << 53) as f64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_is_kept_whatever_records_cost() {
        for (overhead, cost) in [(0.01, 20.0), (0.01, 900.0), (0.02, 100.0), (0.001, 50.0)] {
            let mut pace = Pace::new(overhead, None, 1.0, 7);
            let (mut ran, mut spent) = (0.0, 0.0);
            for i in 0..20_000 {
                let this = cost * if i % 10 == 0 { 5.0 } else { 0.6 };
                pace.paid(Duration::from_nanos((this * 1e3) as u64));
                spent += this * 1e3;
                ran += pace.next_period() as f64;
            }
            let measured = spent / ran;
            assert!((0.8..1.1).contains(&(measured / overhead)), "{overhead} {cost}: {measured}");
        }
    }

    #[test]
    fn alarms_that_are_lost_in_the_kernel_are_made_up_for() {
        for (user_share, overhead) in [(1.0, 0.01), (0.2, 0.01), (0.5, 0.1)] {
            let mut pace = Pace::new(overhead, None, 1.0, 11);
            let (mut held, mut cpu, mut told) = (0.0, 0.0, 0.0);
            while cpu < 60.0 {
                cpu += pace.next_period() as f64 / 1e9;
                if pace.unit() < user_share {
                    pace.paid(Duration::from_micros(100));
                    held += 100e-6;
                }
                if cpu - told > 0.1 {
                    pace.observed(Duration::from_secs_f64(held), Duration::from_secs_f64(cpu));
                    told = cpu;
                }
            }
            let measured = held / cpu / overhead;
            assert!((0.8..1.2).contains(&measured), "{user_share} {overhead}: {measured}");
        }
    }

    #[test]
    fn periods_are_jittered_around_a_fixed_one() {
        let mut pace = Pace::new(0.01, Some(1_000_000), 1.0, 3);
        let periods: Vec<u64> = (0..1000).map(|_| pace.next_period()).collect();
        assert!(periods.iter().all(|p| (750_000..=1_250_000).contains(p)));
        let mean = periods.iter().sum::<u64>() / 1000;
        assert!((970_000..1_030_000).contains(&mean), "{mean}");
        assert!(periods.iter().collect::<std::collections::BTreeSet<_>>().len() > 900);
    }
}
