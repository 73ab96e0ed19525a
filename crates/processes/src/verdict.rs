//! The measured verdict: the same quantities in windows before and after.
//!
//! Best is a metric of the user's own (`--metric COMMAND` prints a number that grows with the work done). Two
//! values are made of it: work per second, and what a unit of work costs in user cycles (in CPU time where
//! there is no PMU). Which of them tells something depends on the load: where clients wait for answers both
//! do, where requests come at a rate of their own only the cost does, and rates also change because clients
//! ask for less. So **the cost decides where it shows a difference, and the rate only where it does not**.
//!
//! Without a metric, cycles per instruction in user mode where there is a PMU: code layout changes the number
//! of instructions by the jumps that it saves, a percent or two, so the ratio is close to that of cycles per
//! unit of work. Without either, nothing that can be read tells faster from busier, and the verdict says so.
//!
//! Of a metric that counts [in steps](crate::judgement) totals are compared, or nothing.

use crate::error::SessionError;
use crate::interrupt::heed;
use crate::judgement::{Judgement, NO_WORK, Window, is_coarse, judge, judge_work, why_unjudged};
use restitch_apply::{Why, explained};
use restitch_perf::{CounterEvent, CounterOptions, Counters};
use restitch_report::{Better, stats};
use restitch_tracee::{AskedToEnd, as_started};
use std::io::{self, Read};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// A command that prints how much work has been done so far.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metric {
    /// The shell command.
    pub command: String,
}

impl Metric {
    /// Runs the command.
    ///
    /// # Errors
    /// If it cannot be run, fails, or prints no number.
    pub fn read(&self) -> Result<f64, SessionError> {
        let words = |why: &str| format!("{why}; give a command that prints one number, the work done so far");
        let of_command =
            |why: Why| SessionError::Command { command: format!("--metric '{}'", self.command), why };
        let fail = |why: String| of_command(words(&why).into());
        let not_run = |e: io::Error| of_command(explained(words(&e.to_string()), e));
        let (status, text, errors) = self.run().map_err(not_run)??;
        if !status.success() {
            let text = if errors.trim().is_empty() { "without a message" } else { errors.trim() };
            return Err(fail(format!("it ended with {status}, {text}")));
        }
        let number =
            text.split_whitespace().next().and_then(|w| w.parse::<f64>().ok()).filter(|n| n.is_finite());
        number.ok_or_else(|| match text.trim() {
            "" => fail("it printed nothing".into()),
            text => fail(format!("it printed {text:?}")),
        })
    }

    /// Runs it to its end: how it ended, and what it has written. It is killed if this program is asked to
    /// end.
    fn run(&self) -> io::Result<Result<(ExitStatus, String, String), SessionError>> {
        const LOOK: Duration = Duration::from_millis(20);
        let mut command = Command::new("sh");
        command
            .arg("-c")
            .arg(&self.command)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        as_started(&mut command);
        let mut running = command.spawn()?;
        let output = reader(running.stdout.take());
        let readers = output.and_then(|output| Ok((output, reader(running.stderr.take())?)));
        let (output, errors) = match readers {
            Ok(readers) => readers,
            Err(error) => {
                running.kill()?;
                running.wait()?;
                return Err(error);
            }
        };
        let mut texts = Vec::new();
        for pipe in [output, errors] {
            let text = loop {
                match pipe.recv_timeout(LOOK) {
                    Err(RecvTimeoutError::Timeout) => {}
                    text => break text.unwrap_or_default(),
                }
                if let Err(interrupted) = heed() {
                    running.kill()?;
                    running.wait()?;
                    return Ok(Err(interrupted));
                }
            };
            texts.push(text);
        }
        let [output, errors] = texts.try_into().unwrap_or_default();
        Ok(Ok((running.wait()?, output, errors)))
    }
}

/// All that a pipe gives, read by a thread of its own.
///
/// # Errors
/// If there may be no more threads.
fn reader(pipe: Option<impl Read + Send + 'static>) -> io::Result<Receiver<String>> {
    let (sender, receiver) = channel();
    std::thread::Builder::new().spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // What was read before an error counts.
            let _ = pipe.read_to_end(&mut bytes);
        }
        // An error: nobody waits for it any more.
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    })?;
    Ok(receiver)
}

/// What is read at the ends of windows.
#[derive(Debug)]
enum Meter {
    /// Work so far, and a counter of what the processes use for it, if one can be opened.
    Metric(Metric, Option<Counters>),
    Cpi(Counters),
    /// Why there is none.
    Nothing(&'static str),
}

/// Why nothing can be measured.
const NO_COUNTER: &str = "this machine has no cycle counter; give --metric COMMAND, which prints the work done so far (requests, transactions)";
const UNASKED: &str = "nothing is to be measured (--measure 0)";

/// Measurements in windows.
#[derive(Debug)]
pub struct Windows {
    meter: Meter,
    length: Duration,
    /// How long is measured; before the change no longer than that.
    duration: Duration,
    last: Option<(Instant, (f64, f64))>,
    values: Vec<Window>,
    /// Windows that have ended since the start, with a value or without.
    ended: usize,
    error: Option<SessionError>,
}

impl Windows {
    /// Windows of `length` on the processes `pids`, of which `duration` is to be measured.
    pub fn new(metric: Option<Metric>, pids: &[i32], length: Duration, duration: Duration) -> Self {
        let meter = match metric {
            // Where there are no cycles the task clock is counted.
            Some(metric) => Meter::Metric(
                metric,
                Counters::open(pids, &[CounterEvent::Cycles], CounterOptions::default()).ok(),
            ),
            None => {
                let wanted = [CounterEvent::Cycles, CounterEvent::Instructions];
                match Counters::open(pids, &wanted, CounterOptions::default()) {
                    Ok(counters) if counters.events() == wanted => Meter::Cpi(counters),
                    _ => Meter::Nothing(NO_COUNTER),
                }
            }
        };
        Self { duration, ..Self::with(meter, length) }
    }

    /// Nobody wants to know.
    pub fn unasked() -> Self {
        Self::with(Meter::Nothing(UNASKED), Duration::from_secs(1))
    }

    fn with(meter: Meter, length: Duration) -> Self {
        let duration = Duration::ZERO;
        Self { meter, length, duration, last: None, values: Vec::new(), ended: 0, error: None }
    }

    /// Starts the first window now.
    pub fn start(&mut self) {
        self.values.clear();
        self.ended = 0;
        self.last = self.read().map(|r| (Instant::now(), r));
    }

    /// Time until the running window ends.
    pub fn until_next(&self) -> Duration {
        match self.last {
            Some((since, _)) => self.length.saturating_sub(since.elapsed()).max(Duration::from_millis(1)),
            None => self.length,
        }
    }

    /// Ends the running window if its time has come.
    pub fn tick(&mut self) {
        let Some((since, before)) = self.last.filter(|(since, _)| since.elapsed() >= self.length) else {
            return;
        };
        self.last = self.read().map(|r| (Instant::now(), r));
        let Some((until, now)) = self.last else { return };
        let seconds = (until - since).as_secs_f64();
        self.ended += 1;
        let (first, second) = (now.0 - before.0, now.1 - before.1);
        let window = match self.meter {
            Meter::Metric(..) => Window { work: first, base: seconds, spent: second },
            _ => Window { work: first, base: second, spent: f64::NAN },
        };
        if window.value().is_finite() {
            self.values.push(window);
        }
    }

    /// Measures for `duration`, and longer if so few windows have not ended by then that nothing could be
    /// said; no longer than until this program is asked to end.
    pub fn measure(&mut self, duration: Duration) {
        self.start();
        let end = Instant::now() + duration;
        while (Instant::now() < end || self.wants_more_than(stats::LEAST)) && AskedToEnd::signal().is_none() {
            AskedToEnd::pause(self.until_next());
            self.tick();
        }
    }

    fn read(&mut self) -> Option<(f64, f64)> {
        let value = |reading: &restitch_perf::Reading| reading.scaled().unwrap_or(f64::NAN);
        let result = match &self.meter {
            Meter::Metric(metric, counters) => metric.read().map(|n| {
                let cost = counters.as_ref().and_then(|c| c.read().ok());
                (n, cost.and_then(|c| c.first().map(value)).unwrap_or(f64::NAN))
            }),
            Meter::Cpi(counters) => {
                counters.read().map_err(SessionError::from).map(|r| (value(&r[0]), value(&r[1])))
            }
            Meter::Nothing(_) => return None,
        };
        match result {
            Ok(reading) => Some(reading),
            Err(error) => {
                self.error.get_or_insert(error);
                None
            }
        }
    }

    /// Whether there will be more windows, and fewer than `enough` have ended since the start.
    pub fn wants_more_than(&self, enough: usize) -> bool {
        self.last.is_some() && self.ended < enough
    }

    /// Whether there will be more windows, and those so far and `earlier` ones show a metric that counts in
    /// steps, of which there can hardly be enough.
    pub fn wants_more_steps(&self, earlier: &[Window]) -> bool {
        let so_far = self.length * (self.ended + earlier.len()) as u32;
        let is_metric = matches!(self.meter, Meter::Metric(..));
        is_metric && self.wants_more_than(usize::MAX) && so_far < self.duration && {
            is_coarse(&[earlier, &self.values].concat())
        }
    }

    /// The windows' values so far; they start anew.
    pub fn take(&mut self) -> Vec<Window> {
        std::mem::take(&mut self.values)
    }

    /// Whether anything can be measured at all.
    pub fn can_measure(&self) -> bool {
        self.why_nothing().is_none()
    }

    /// Why nothing can be measured, if that is so.
    pub fn why_nothing(&self) -> Option<&'static str> {
        match self.meter {
            Meter::Nothing(why) => Some(why),
            _ => None,
        }
    }

    /// The verdict, or why there is none.
    pub fn verdict(&mut self, before: &[Window], after: &[Window]) -> Result<Judgement, String> {
        if let Some(why) = self.why_nothing() {
            return Err(format!("no verdict: {why}"));
        }
        if let Some(error) = self.error.take() {
            return Err(format!("no verdict: {error}"));
        }
        for (when, windows) in [("before", before), ("after", after)] {
            if windows.len() < stats::LEAST {
                let (n, least) = (windows.len(), stats::LEAST);
                return Err(format!("no verdict: too few measurements {when} ({n}; it takes {least})"));
            }
        }
        let judged = match &self.meter {
            Meter::Metric(metric, counters) => {
                if let Some(why) = why_unjudged(before, after) {
                    return Err(self.unjudged(&why));
                }
                judge_work(&metric.command, counters.as_ref().map(Counters::events), before, after)
            }
            _ => judge("user cycles per instruction", "cycles", Better::Lower, Window::value, before, after)
                .map(|verdict| Judgement { verdict, beside: None }),
        };
        judged.ok_or_else(|| format!("no verdict: {NO_WORK}"))
    }

    /// What is said of a metric by which nothing can be said.
    fn unjudged(&self, why: &str) -> String {
        let longer = (self.duration.as_secs() * 4).max(30);
        format!(
            "no verdict: whether it helped could not be judged by this metric: {why}; measure longer (--measure \
             {longer}), or give a metric that changes several times a second, by a hundred or more, and that the \
             command itself does not add to"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use restitch_report::Helped;

    fn metric(command: &str) -> Metric {
        Metric { command: command.into() }
    }

    fn window(work: f64, spent: f64) -> Window {
        Window { work, base: 1.0, spent }
    }

    /// The judgement on work per second and the CPU time of a unit in nanoseconds, before and after.
    fn judged(before: (f64, f64), after: (f64, f64)) -> Judgement {
        let noise = [1.0, 1.01, 0.99, 1.02, 0.98, 1.005, 0.995, 1.0];
        let around = |(value, cost): (f64, f64)| noise.map(|n| window(value * n, value * cost));
        let counted = Some(&[CounterEvent::TaskClock][..]);
        judge_work("requests", counted, &around(before), &around(after)).expect("there is a verdict")
    }

    #[test]
    fn a_bad_metric_says_what_it_did_and_what_to_give() {
        for (command, what) in [
            ("exit 3", "it ended with exit status: 3, without a message; give"),
            ("echo no >&2; exit 4", "exit status: 4, no; give"),
            ("", "it printed nothing; give"),
            ("echo many", "it printed \"many\"; give"),
        ] {
            let told = metric(command).read().expect_err("it gives no number").to_string();
            assert!(told.contains(&format!("--metric '{command}'")) && told.contains(what), "{told}");
        }
        assert_eq!(metric("echo ' 12.5 requests'").read().ok(), Some(12.5));
    }

    #[test]
    fn at_a_fixed_rate_the_cost_of_a_unit_decides() {
        let slower = judged((1000.0, 50_000.0), (1000.0, 60_000.0));
        assert_eq!(slower.verdict.helped, Helped::No);
        assert_eq!(
            (slower.verdict.metric.as_str(), slower.verdict.unit.as_str()),
            ("CPU time per unit of requests", "us")
        );
        assert!((slower.verdict.before - 50.0).abs() < 1.0, "{slower:?}");
        assert_eq!(slower.beside.expect("the rate").helped, Helped::Unclear);
    }

    #[test]
    fn clients_that_ask_for_less_do_not_make_a_layout_bad() {
        let fewer = judged((1000.0, 50_000.0), (500.0, 40_000.0));
        assert_eq!((fewer.verdict.helped, fewer.beside.expect("the rate").helped), (Helped::Yes, Helped::No));
    }

    #[test]
    fn a_machine_that_becomes_quieter_makes_no_layout_good() {
        let more = judged((1000.0, 50_000.0), (1200.0, 50_000.0));
        assert_eq!((more.verdict.unit.as_str(), more.verdict.helped), ("us", Helped::Unclear));
        assert_eq!(more.beside.expect("the rate").helped, Helped::Yes);
    }

    #[test]
    fn the_rate_decides_where_nobody_knows_the_cost() {
        let unknown = judged((1000.0, f64::NAN), (500.0, f64::NAN));
        assert_eq!((unknown.verdict.helped, unknown.beside), (Helped::No, None));
    }

    #[test]
    fn too_few_measurements_are_no_verdict() {
        let mut windows = Windows::with(Meter::Metric(metric("requests"), None), Duration::ZERO);
        let some = |n| vec![window(900.0, f64::NAN); n];
        let why = windows.verdict(&some(2), &some(15)).expect_err("two are too few");
        assert_eq!(why, "no verdict: too few measurements before (2; it takes 3)");
        let why = windows.verdict(&some(6), &some(1)).expect_err("one is too few");
        assert!(why.contains("too few measurements after (1;"), "{why}");
    }

    #[test]
    fn a_metric_of_a_few_units_is_not_judged_and_says_what_would_be() {
        let mut windows = Windows::with(Meter::Metric(metric("requests"), None), Duration::ZERO);
        let of = |work: &[f64]| work.iter().map(|work| window(*work, f64::NAN)).collect::<Vec<_>>();
        for (before, after, why) in [
            (&[1.0; 6][..], &[3.0; 12][..], "it grows in steps"),
            (&[1.0, 1.0, 900.0, 1.0, 1.0, 1.0], &[900.0; 12], "in 1 of 6 looks before and 12 of 12 after"),
            (&[1.0; 16], &[1.0; 16], "it mostly grows by 1 each time that it is read"),
            (&[900.0; 6], &[900.0, -8000.0, 900.0], "it became smaller"),
            (&[0.0; 6], &[0.0; 6], "no work was done"),
        ] {
            let told = windows.verdict(&of(before), &of(after)).expect_err(why);
            assert!(
                told.contains(why) && told.contains("--measure 30") && told.contains("does not add to"),
                "{told}"
            );
        }
        windows.duration = Duration::from_secs(1);
        windows.length = Duration::from_millis(250);
        windows.last = Some((Instant::now(), (0.0, 0.0)));
        assert!(
            windows.wants_more_steps(&of(&[1.0, 1.0, 900.0])) && !windows.wants_more_steps(&of(&[900.0; 3]))
        );
        assert!(!windows.wants_more_steps(&of(&[1.0, 1.0, 900.0, 1.0])), "it was measured long enough");
    }

    #[test]
    fn measuring_goes_on_until_something_can_be_said_or_the_metric_fails() {
        let windows = |command| Windows::with(Meter::Metric(metric(command), None), Duration::from_millis(1));
        let mut short = windows("date +%s%N");
        short.measure(Duration::ZERO);
        assert!(short.take().len() >= stats::LEAST);
        let mut broken = windows("exit 1");
        broken.measure(Duration::ZERO);
        assert!(broken.verdict(&[], &[]).expect_err("nothing was measured").contains("--metric 'exit 1'"));
    }
}
