//! The measured verdict: the same quantity in windows before and after.
//!
//! Best is a metric of the user's own (`--metric COMMAND` prints a number that grows with the work done: the rate
//! of its growth is compared). Without one, cycles per instruction in user mode where there is a PMU: code layout changes
//! the number of instructions by the jumps that it saves, a percent or two, so the ratio is close to that of cycles per unit of work. Without
//! either, nothing that can be read tells faster from busier, and the verdict says so.

use crate::SessionError;
use restitch_perf::{CounterEvent, CounterOptions, Counters};
use restitch_report::{Better, Verdict, stats};
use std::process::Command;
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
        let fail = |why: String| SessionError::Command { command: self.command.clone(), why };
        let out =
            Command::new("sh").arg("-c").arg(&self.command).output().map_err(|e| fail(e.to_string()))?;
        if !out.status.success() {
            let text = String::from_utf8_lossy(&out.stderr).trim().to_owned();
            return Err(fail(format!("it ended with {}: {text}", out.status)));
        }
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let number =
            text.split_whitespace().next().and_then(|w| w.parse::<f64>().ok()).filter(|n| n.is_finite());
        number.ok_or_else(|| fail(format!("it has to print one number, but printed {:?}", text.trim())))
    }
}

/// What is read at the ends of windows.
#[derive(Debug)]
enum Meter {
    Metric(Metric),
    Cpi(Counters),
    Nothing,
}

/// Measurements in windows.
#[derive(Debug)]
pub struct Windows {
    meter: Meter,
    length: Duration,
    last: Option<(Instant, (f64, f64))>,
    /// One value a window.
    values: Vec<f64>,
    error: Option<SessionError>,
}

impl Windows {
    /// Windows of `length` on the processes `pids`.
    pub fn new(metric: Option<Metric>, pids: &[i32], length: Duration) -> Self {
        let meter = match metric {
            Some(metric) => Meter::Metric(metric),
            None => {
                let wanted = [CounterEvent::Cycles, CounterEvent::Instructions];
                match Counters::open(pids, &wanted, CounterOptions::default()) {
                    Ok(counters) if counters.events() == wanted => Meter::Cpi(counters),
                    _ => Meter::Nothing,
                }
            }
        };
        Self { meter, length, last: None, values: Vec::new(), error: None }
    }

    /// Starts the first window now.
    pub fn start(&mut self) {
        self.values.clear();
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
        let Some((since, before)) = self.last else { return };
        if since.elapsed() < self.length {
            return;
        }
        let Some(now) = self.read() else { return };
        let seconds = since.elapsed().as_secs_f64();
        let value = match self.meter {
            Meter::Metric(_) => (now.0 - before.0) / seconds,
            Meter::Cpi(_) => (now.0 - before.0) / (now.1 - before.1),
            Meter::Nothing => f64::NAN,
        };
        if value.is_finite() {
            self.values.push(value);
        }
        self.last = Some((Instant::now(), now));
    }

    /// Measures for `duration`.
    pub fn measure(&mut self, duration: Duration) {
        self.start();
        let end = Instant::now() + duration;
        while Instant::now() < end {
            std::thread::sleep(self.until_next().min(end.saturating_duration_since(Instant::now())));
            self.tick();
        }
    }

    fn read(&mut self) -> Option<(f64, f64)> {
        let result = match &self.meter {
            Meter::Metric(metric) => metric.read().map(|n| (n, 0.0)),
            Meter::Cpi(counters) => counters
                .read()
                .map_err(SessionError::from)
                .map(|r| (r[0].scaled().unwrap_or(f64::NAN), r[1].scaled().unwrap_or(f64::NAN))),
            Meter::Nothing => return None,
        };
        match result {
            Ok(reading) => Some(reading),
            Err(error) => {
                self.error.get_or_insert(error);
                None
            }
        }
    }

    /// Windows that were measured and not taken yet.
    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// The windows' values so far; they start anew.
    pub fn take(&mut self) -> Vec<f64> {
        std::mem::take(&mut self.values)
    }

    /// Whether anything can be measured at all.
    pub fn can_measure(&self) -> bool {
        !matches!(self.meter, Meter::Nothing)
    }

    /// The verdict, or why there is none.
    pub fn verdict(&mut self, before: &[f64], after: &[f64]) -> Result<Verdict, String> {
        if let Some(error) = self.error.take() {
            return Err(format!("no verdict: {error}"));
        }
        let (metric, unit, better) = match &self.meter {
            Meter::Metric(m) => (m.command.as_str(), "per second", Better::Higher),
            Meter::Cpi(_) => ("user cycles per instruction", "cycles", Better::Lower),
            Meter::Nothing => {
                return Err(
                    "no verdict: this machine has no cycle counter; give --metric COMMAND, which prints the \
                            work done so far (requests, transactions)"
                        .into(),
                );
            }
        };
        stats::verdict(metric, unit, better, before, after)
            .ok_or_else(|| "no verdict: too few measurements, or no work was done while measuring".into())
    }
}
