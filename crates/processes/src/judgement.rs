//! What windows of measurements say.
//!
//! A metric may count in steps: a few units in a window, or many units at once now and then. The median of
//! such windows says what the usual one has, which may be nothing, or what the metric's own command adds to
//! it. So **their totals are compared**, by an interval that allows for the steps and for what the command
//! may have added; and with few steps nothing is.

use restitch_perf::CounterEvent;
use restitch_report::stats::{self, CONFIDENCE, Interval, helped, quotient, ratio_of_totals};
use restitch_report::{Better, Verdict};

/// Why there is no verdict where nothing was done.
pub(crate) const NO_WORK: &str = "no work was done while measuring";
/// With fewer units in the usual window a unit is more than a hundredth of it.
const FEW_UNITS: f64 = 100.0;
/// Work comes in steps where one of so many windows is further from the average than by half of it, and some
/// have hardly any; others are from a machine that does other things as well.
const ONE_FAR_OF: usize = 6;
/// Less than such a part of the average is hardly any.
const HARDLY_ANY: f64 = 0.25;
/// Steps on a side from which on their number says something.
const LEAST_STEPS: usize = 10;
/// Units that a command which looks at the metric adds to it by that, at most.
const MOST_OF_ITS_OWN: f64 = 5.0;

/// What one window has given.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Window {
    /// Units of work, or cycles.
    pub(crate) work: f64,
    /// Seconds, or instructions.
    pub(crate) base: f64,
    /// What the work has cost; not a number where that is not known.
    pub(crate) spent: f64,
}

impl Window {
    /// Work per second, or cycles per instruction.
    pub(crate) fn value(&self) -> f64 {
        self.work / self.base
    }

    /// What a unit of work has cost; not finite where that is not known.
    fn cost(&self) -> f64 {
        self.spent / self.work
    }
}

/// What was found out.
#[derive(Debug, Clone, PartialEq)]
pub struct Judgement {
    /// What decides.
    pub verdict: Verdict,
    /// What was measured beside it.
    pub beside: Option<Verdict>,
}

/// The verdict on one of the values of windows, if enough of them have it.
pub(crate) fn judge(
    metric: &str,
    unit: &str,
    better: Better,
    what: fn(&Window) -> f64,
    before: &[Window],
    after: &[Window],
) -> Option<Verdict> {
    let values = |windows: &[Window]| windows.iter().map(what).filter(|v| v.is_finite()).collect::<Vec<_>>();
    let (before, after) = (values(before), values(after));
    let enough = before.len().min(after.len()) >= stats::LEAST;
    enough.then(|| stats::verdict(metric, unit, better, &before, &after)).flatten()
}

/// Why nothing can be said by such windows of a metric, if that is so.
pub(crate) fn why_unjudged(before: &[Window], after: &[Window]) -> Option<String> {
    let all = || before.iter().chain(after);
    if all().any(|window| window.work < 0.0) {
        return Some("it became smaller while measuring, as if it had begun anew".into());
    }
    if all().all(|window| window.work == 0.0) {
        return Some(NO_WORK.into());
    }
    if !is_coarse(before) && !is_coarse(after) {
        return None;
    }
    let made = |own| (steps(before, own), steps(after, own));
    let enough = |(before, after): (usize, usize)| before.min(after) >= LEAST_STEPS;
    let own = most_of_its_own(before, after);
    if !enough(made(0.0)) {
        let ((before, after), (all_before, all_after)) = (made(0.0), (before.len(), after.len()));
        return Some(format!(
            "it grows in steps: in {before} of {all_before} looks before and {after} of {all_after} after it had grown \
             as much as usual, and a verdict needs {LEAST_STEPS} of each"
        ));
    }
    (!enough(made(own))).then(|| {
        format!("it mostly grows by {own} each time that it is read, as if only its command did that")
    })
}

/// Units in each window that may be the command's own.
fn most_of_its_own(before: &[Window], after: &[Window]) -> f64 {
    before.iter().chain(after).map(|window| window.work).fold(MOST_OF_ITS_OWN, f64::min)
}

/// The verdict on windows of a metric; `counted` is what was counted as cost, if anything.
pub(crate) fn judge_work(
    metric: &str,
    counted: Option<&[CounterEvent]>,
    before: &[Window],
    after: &[Window],
) -> Option<Judgement> {
    if is_coarse(before) || is_coarse(after) {
        return judge_totals(metric, counted, before, after);
    }
    let rate = judge(metric, "per second", Better::Higher, Window::value, before, after);
    let cost = counted.and_then(|events| {
        let (name, unit, scale) = named_cost(metric, events);
        judge(&name, unit, Better::Lower, Window::cost, before, after).map(|v| scaled(v, scale))
    });
    decide(rate, cost)
}

/// What a unit of the metric costs: its name, its unit, and how many of that are counted at a time.
fn named_cost(metric: &str, events: &[CounterEvent]) -> (String, &'static str, f64) {
    let (what, unit, scale) = match events {
        [CounterEvent::Cycles] => ("user cycles", "cycles", 1.0),
        _ => ("CPU time", "us", 1e-3),
    };
    (format!("{what} per unit of {metric}"), unit, scale)
}

/// The verdict in another unit.
fn scaled(verdict: Verdict, scale: f64) -> Verdict {
    Verdict { before: verdict.before * scale, after: verdict.after * scale, ..verdict }
}

/// The cost decides; the rate does where there is no cost: it rises and falls with what clients ask for, and
/// with what else the machine does.
fn decide(rate: Option<Verdict>, cost: Option<Verdict>) -> Option<Judgement> {
    match (rate, cost) {
        (rate, Some(cost)) => Some(Judgement { verdict: cost, beside: rate }),
        (rate, None) => rate.map(|verdict| Judgement { verdict, beside: None }),
    }
}

/// Whether the metric's steps can be seen in the windows.
pub(crate) fn is_coarse(windows: &[Window]) -> bool {
    let mut work: Vec<f64> = windows.iter().map(|window| window.work).collect();
    let mean = work.iter().sum::<f64>() / work.len() as f64;
    let far = work.iter().filter(|work| (*work - mean).abs() > mean / 2.0 || **work == 0.0).count();
    work.sort_by(f64::total_cmp);
    let (Some(least), Some(usual)) = (work.first(), work.get(work.len() / 2)) else { return false };
    let has_pauses = *least <= mean * HARDLY_ANY;
    has_pauses && far * ONE_FAR_OF >= work.len() || unit(&work).is_some_and(|unit| *usual < FEW_UNITS * unit)
}

/// Windows that have at least half of what they have on the average, each without `own`.
fn steps(windows: &[Window], own: f64) -> usize {
    let work = || windows.iter().map(|window| window.work - own);
    let half = work().sum::<f64>() / windows.len() as f64 / 2.0;
    work().filter(|work| *work > 0.0 && *work >= half).count()
}

/// What the metric counts in, where that are whole numbers: the greatest that divides all of them, or 1 where
/// they are all alike.
fn unit(work: &[f64]) -> Option<f64> {
    let is_whole = work.iter().all(|work| work.fract() == 0.0 && work.abs() < 1e18);
    let divisor = |a: u64, b: u64| -> u64 {
        let (mut a, mut b) = (a, b);
        while b != 0 {
            (a, b) = (b, a % b);
        }
        a
    };
    let is_alike = work.windows(2).all(|pair| pair[0] == pair[1]);
    let all = || work.iter().map(|work| work.abs() as u64).fold(0, divisor).max(1);
    is_whole.then(|| if is_alike { 1.0 } else { all() as f64 })
}

/// The verdict on windows of a metric that counts in steps.
fn judge_totals(
    metric: &str,
    counted: Option<&[CounterEvent]>,
    before: &[Window],
    after: &[Window],
) -> Option<Judgement> {
    let own = most_of_its_own(before, after);
    let side = |windows: &[Window], pair: &dyn Fn(&Window) -> (f64, f64)| -> Vec<(f64, f64)> {
        let pairs = windows.iter().map(pair);
        pairs.filter(|pair| pair.0.is_finite() && pair.1.is_finite()).collect()
    };
    let compare = |name: &str, unit: &str, better, pair: &dyn Fn(&Window, f64) -> (f64, f64)| {
        let of = |own: f64| {
            let pair = |window: &Window| pair(window, own);
            (side(before, &pair), side(after, &pair))
        };
        totals(name, unit, better, of(0.0), of(own))
    };
    let rate = compare(metric, "per second", Better::Higher, &|w, own| (w.work - own, w.base));
    let cost = counted.and_then(|events| {
        let (name, unit, scale) = named_cost(metric, events);
        compare(&name, unit, Better::Lower, &|w, own| (w.spent, w.work - own)).map(|v| scaled(v, scale))
    });
    decide(rate, cost)
}

/// What was gained in each window, and what it took, before and after.
type Sides = (Vec<(f64, f64)>, Vec<(f64, f64)>);

/// The verdict on `all` the totals, by an interval that holds also for those without what the command adds.
fn totals(metric: &str, unit: &str, better: Better, all: Sides, without: Sides) -> Option<Verdict> {
    let (ratio, one) = ratio_of_totals(&all.0, &all.1, CONFIDENCE)?;
    let (_, other) = ratio_of_totals(&without.0, &without.1, CONFIDENCE)?;
    let interval = Interval { low: one.low.min(other.low), high: one.high.max(other.high), ..one };
    Some(Verdict {
        metric: metric.to_owned(),
        unit: unit.to_owned(),
        better,
        before: quotient(all.0.iter()),
        after: quotient(all.1.iter()),
        ratio,
        ratio_low: interval.low,
        ratio_high: interval.high,
        confidence: interval.confidence,
        samples_before: all.0.len() as u64,
        samples_after: all.1.len() as u64,
        helped: helped(&interval, better),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_report::Helped;

    fn windows(work: impl IntoIterator<Item = f64>) -> Vec<Window> {
        let window = |(i, work)| Window { work, base: 0.25, spent: 1e8 + 1e6 * f64::from(i % 7) };
        (0u32..).zip(work).map(window).collect()
    }

    /// Numbers that look like random ones, from 0 on and less than 1.
    fn random(seed: u64) -> impl FnMut() -> f64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        move || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    /// So many windows of a server whose clients publish what they have done about once a second, each in its
    /// turn, `rate` units a second together; and whoever asks has done one himself.
    fn published(seed: u64, clients: usize, rate: f64, n: usize) -> Vec<Window> {
        let mut random = random(seed);
        let mut next: Vec<f64> = (0..clients).map(|_| random()).collect();
        let work = (1..=n).map(|i| {
            let (mut work, now) = (1.0, i as f64 * 0.25);
            for client in &mut next {
                while *client < now {
                    work += (rate / clients as f64 * (0.9 + 0.2 * random())).round();
                    *client += 1.0 + 0.02 * random();
                }
            }
            work
        });
        windows(work.collect::<Vec<f64>>())
    }

    fn judged(before: &[Window], after: &[Window]) -> Option<Judgement> {
        match why_unjudged(before, after) {
            Some(_) => None,
            None => judge_work("work", Some(&[CounterEvent::TaskClock]), before, after),
        }
    }

    #[test]
    fn few_units_and_rare_steps_are_coarse_and_steady_work_is_not() {
        let coarse = |work: &[f64]| is_coarse(&windows(work.iter().copied()));
        assert!(coarse(&[1.0; 6]) && coarse(&[20.0, 21.0, 20.0, 22.0, 20.0, 21.0]));
        assert!(coarse(&[1.0, 1.0, 5000.0, 1.0, 1.0, 1.0]) && coarse(&[0.0, 0.0, 0.0]));
        assert!(coarse(&[640.0, 704.0, 640.0, 704.0, 640.0, 704.0]), "in steps of 64");
        assert!(!coarse(&[900.0, 1013.0, 1101.0, 950.0, 1007.0, 998.0]));
        assert!(!coarse(&[1000.0; 6]) && !coarse(&[100.0; 3]) && !coarse(&[]));
        assert!(!coarse(&[0.91, 0.93, 0.90, 1.02, 0.97, 0.95]), "no whole numbers");
        assert!(!coarse(&[20_011.0, 19_408.0, 8_107.0, 20_309.0, 9_001.0]), "others had the processors");
        for clients in [1, 2, 3] {
            assert!(is_coarse(&published(1, clients, 4000.0, 24)), "{clients}");
        }
    }

    #[test]
    fn a_few_steps_are_not_judged_and_nor_is_what_the_command_adds_itself() {
        let (before, after) = (published(1, 1, 5000.0, 6), published(2, 1, 5000.0, 16));
        let why = why_unjudged(&before, &after).expect("these are too few steps");
        assert!(why.contains("of 6 looks before") && why.contains("needs 10 of each"), "{why}");
        let own = why_unjudged(&windows([1.0; 60]), &windows([1.0; 60])).expect("nothing else was done");
        assert!(own.contains("grows by 1 each time"), "{own}");
        let mostly = [vec![1.0; 57], vec![2.0; 3]].concat();
        assert!(why_unjudged(&windows(mostly), &windows([2.0; 60])).is_some());
    }

    #[test]
    fn equal_work_published_in_steps_is_hardly_ever_called_better_or_worse() {
        let (mut judgements, mut claims) = (0, 0);
        for seed in 0..160 {
            let (clients, n) = ([1, 2, 4, 12][seed as usize % 4], [6, 60][seed as usize / 4 % 2]);
            let (before, after) =
                (published(2 * seed, clients, 4000.0, n), published(2 * seed + 1, clients, 4000.0, 30 + n));
            if let Some(judgement) = judged(&before, &after) {
                judgements += 1;
                claims += u32::from(judgement.verdict.helped != Helped::Unclear);
            }
        }
        assert!(judgements > 80 && claims * 20 <= judgements, "{claims} of {judgements}");
    }

    #[test]
    fn many_steps_show_a_large_difference() {
        let judgement =
            judged(&published(1, 2, 2000.0, 120), &published(2, 2, 6000.0, 120)).expect("a verdict");
        let rate = judgement.beside.as_ref().unwrap_or(&judgement.verdict);
        assert_eq!((judgement.verdict.helped, rate.helped), (Helped::Yes, Helped::Yes), "{judgement:?}");
        assert!((rate.ratio - 3.0).abs() < 0.2 && (rate.before - 2000.0).abs() < 200.0, "{rate:?}");
    }
}
