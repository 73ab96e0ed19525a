//! Where a recorded profile comes from.

use crate::outputs::ended_early;
use crate::progress::Progress;
use clap::Args;
use restitch_report::{RunResult, ending};
use restitch_session::profiles::ProfileOutput;
use restitch_session::{
    BurstRound, Bursts, LookAhead, Period, PipelineError, Recording, Sampled, SessionError, Source,
    SourceChoice, TraceRecordOptions, TraceSubject, Traced, burst_end, known, record_bursts, record_sampled,
    record_traced, refusal, sparse,
};

/// Options of `record` that choose the source.
#[derive(Debug, Args)]
pub struct SourceOptions {
    /// Where the profile comes from: count (counting versions), trace or burst (branch records by software),
    /// lbr (branch records of the hardware), ip (samples of instructions alone); auto counts.
    #[arg(long, value_name = "SOURCE", default_value = "auto")]
    pub source: Source,
    /// With any source but count: the share of the program's processor time for which it may be held or
    /// slowed down on average, in percent. restitch's own work at the same time is not part of it.
    #[arg(long, value_name = "PERCENT", default_value = "1%", value_parser = percent)]
    pub overhead: f64,
    /// With any source but count, how far apart records or samples of a thread are, in place of --overhead:
    /// so much of its processor time (500us, 5ms), or with --source trace, where the processor counts them,
    /// so many taken branches (500k, 2M).
    #[arg(long, value_name = "PERIOD", conflicts_with = "overhead")]
    pub period: Option<Period>,
    /// With --source trace, how the code ahead is followed: evaluate (with the values of registers and
    /// memory), or fixed (over branches that the instruction alone decides, with a breakpoint at all others:
    /// to compare).
    #[arg(long, value_name = "HOW", default_value = "evaluate", value_parser = look_ahead)]
    pub look_ahead: LookAhead,
}

fn look_ahead(text: &str) -> Result<LookAhead, String> {
    match text {
        "evaluate" => Ok(LookAhead::Evaluate),
        "fixed" => Ok(LookAhead::Fixed),
        _ => Err("evaluate or fixed is wanted".into()),
    }
}

/// `1%`, `0.5%` or a bare number of percent; the share comes out.
pub fn percent(text: &str) -> Result<f64, String> {
    match text.trim_end_matches('%').parse::<f64>() {
        Ok(p) if (0.01..=50.0).contains(&p) => Ok(p / 100.0),
        _ => Err("a percentage from 0.01% to 50% is wanted".into()),
    }
}

impl SourceOptions {
    /// Records by tracing, if that is the source; `None` if `record` shall count. `publish` gets the result
    /// and the exit code so far, and says that of all.
    pub fn record(
        &self,
        subject: TraceSubject,
        depth: Option<u16>,
        output: ProfileOutput,
        publish: impl FnOnce(&RunResult, i32) -> i32,
    ) -> Option<Result<i32, SessionError>> {
        let (program, pid) = named(&subject);
        let done = match self.source.choose() {
            Ok(source) if source != SourceChoice::Trace && self.look_ahead != LookAhead::Evaluate => {
                let why = "--look-ahead: code ahead is followed by --source trace alone; name that, or leave it out";
                Err(PipelineError::Usage(why.into()).into())
            }
            Ok(SourceChoice::Count) if self.period.is_some() => Err(SessionError::Source {
                source_name: "counts that come each so often",
                why: "everything is counted; name a source with --period (--source trace, burst or ip)"
                    .into(),
            }),
            Ok(SourceChoice::Count) => return None,
            Ok(SourceChoice::Trace) => {
                self.trace(subject, depth, output).map(|t| (t.result(&program, pid), t.status))
            }
            Ok(SourceChoice::Burst) => {
                self.burst(subject, depth, output).map(|b| (b.result(&program, pid), b.status))
            }
            Ok(source @ (SourceChoice::Ip | SourceChoice::Lbr)) => {
                self.sample(source, subject, output).map(|s| (s.result(&program, pid), s.status))
            }
            Err(error) => Err(error),
        };
        Some(done.map(|(mut result, status)| {
            let code = ended_early(&mut result, status);
            publish(&result, code)
        }))
    }

    fn recording(&self, depth: Option<u16>) -> Recording {
        let &Self { overhead, period, look_ahead, .. } = self;
        Recording { depth: depth.map(usize::from), overhead, period, look_ahead }
    }

    fn burst(
        &self,
        subject: TraceSubject,
        depth: Option<u16>,
        output: ProfileOutput,
    ) -> Result<Bursts, SessionError> {
        let mut progress = Progress::new();
        let shown = output.path.display().to_string();
        let options = TraceRecordOptions { subject, how: self.recording(depth), output };
        let bursts = record_bursts(options, &mut progress)?;
        progress.finish();
        tell_of_bursts(&bursts);
        tell_coverage(bursts.coverage);
        eprintln!("restitch: profile written to {shown}");
        Ok(bursts)
    }

    fn sample(
        &self,
        source: SourceChoice,
        subject: TraceSubject,
        output: ProfileOutput,
    ) -> Result<Sampled, SessionError> {
        let mut progress = Progress::new();
        let shown = output.path.display().to_string();
        let options = TraceRecordOptions { subject, how: self.recording(None), output };
        let sampled = record_sampled(options, source, &mut progress)?;
        progress.finish();
        tell_of_samples(&sampled);
        eprintln!("restitch: profile written to {shown}");
        Ok(sampled)
    }

    fn trace(
        &self,
        subject: TraceSubject,
        depth: Option<u16>,
        output: ProfileOutput,
    ) -> Result<Traced, SessionError> {
        let mut progress = Progress::new();
        let shown = output.path.display().to_string();
        let options = TraceRecordOptions { subject, how: self.recording(depth), output };
        let traced = record_traced(options, &mut progress)?;
        progress.finish();
        tell(&traced);
        tell_coverage(traced.coverage);
        eprintln!("restitch: profile written to {shown}");
        Ok(traced)
    }
}

/// The program, and the process if it runs already.
fn named(subject: &TraceSubject) -> (String, Option<i32>) {
    match subject {
        TraceSubject::Process(pid, _) | TraceSubject::Tree(pid, _) => {
            let program = restitch_session::executable_path(*pid).unwrap_or_default();
            (program.display().to_string(), Some(*pid))
        }
        TraceSubject::Command(command) => (command.get_program().to_string_lossy().into_owned(), None),
    }
}

fn tell_of_bursts(bursts: &Bursts) {
    let r = &bursts.report;
    eprintln!(
        "restitch: {} in {} of {:.0} on average, of {}, {}; overhead {} (held {})",
        several(r.branches, "branch"),
        several(r.all(), "burst"),
        r.mean_length(),
        several(r.threads, "thread"),
        several(bursts.modules, "module"),
        in_percent(r.overhead()),
        in_percent(r.held_share())
    );
    let list = |items: Vec<String>| if items.is_empty() { "none".into() } else { items.join(", ") };
    let ends = r.bursts.iter().map(|(end, n)| format!("{n} {}", burst_end(*end))).collect();
    let refused = r.refused.iter().map(|(why, n)| format!("{n} {}", refusal(*why))).collect();
    eprintln!("restitch: bursts ended: {}; alarms without one: {}", list(ends), list(refused));
    let round = |r: &BurstRound| {
        format!(
            "{:.0} ({} bursts, {} blocks, made in {:.1} s)",
            r.mean_length,
            r.bursts,
            r.blocks,
            r.made.as_secs_f64()
        )
    };
    let rounds = bursts.rounds.iter().map(round).collect();
    eprintln!("restitch: mean length of bursts in each version: {}", list(rounds));
    if !bursts.ended_at.is_empty() {
        let places = bursts.ended_at.iter().map(|(place, n)| format!("{place} ({n})")).collect();
        eprintln!("restitch: code without a copy was most often: {}", list(places));
    }
    if !bursts.refused_at.is_empty() {
        let places = bursts.refused_at.iter().map(|(place, n)| format!("{place} ({n})")).collect();
        eprintln!("restitch: alarms came most often in code without a copy: {}", list(places));
    }
    if let Some(why) = &bursts.kept {
        eprintln!("restitch: tracing versions stay mapped, unused: {why}");
    }
}

fn tell_of_samples(sampled: &Sampled) {
    let told = &sampled.told;
    let branches = match told.branches {
        0 => String::new(),
        n => format!(" with {n} branches"),
    };
    let lost = match told.lost {
        0 => String::new(),
        n => format!("; the kernel had no room for {n} more"),
    };
    let outside = match told.elsewhere {
        n if told.source == "ip" && 2 * n > told.samples => format!(" ({n} in code of no file)"),
        _ => String::new(),
    };
    eprintln!(
        "restitch: {}{outside}{branches} of {}, {}: {} a second at {:.1} us each; overhead {}{lost}",
        several(told.samples, "sample"),
        several(sampled.processes, "process"),
        several(sampled.modules, "module"),
        told.per_second,
        told.cost_us,
        in_percent(Some(told.overhead))
    );
    match told.coverage {
        Some(share) if sampled.source == SourceChoice::Lbr => tell_coverage(share),
        Some(share) => {
            eprintln!(
                "restitch: the samples fall into code that takes about {:.0} % of the time",
                100.0 * share
            );
        }
        None => {}
    }
}

/// A number of things, in digits that scripts can read.
fn several(number: impl TryInto<u64>, thing: &str) -> String {
    let number = number.try_into().unwrap_or(u64::MAX);
    format!("{number} {thing}{}", ending(number, thing))
}

fn in_percent(share: Option<f64>) -> String {
    share.map_or_else(|| "unknown".into(), |share| format!("{:.2} %", 100.0 * share))
}

fn tell_coverage(coverage: f64) {
    eprintln!("restitch: {}", sparse(coverage).unwrap_or_else(|| known(coverage)));
}

fn tell(traced: &Traced) {
    let r = &traced.report;
    let records: u64 = r.records.values().sum();
    eprintln!(
        "restitch: {} in {} ({} full) of {} with {}, {}; overhead {}",
        several(r.branches, "branch"),
        several(records, "record"),
        r.full(),
        several(r.processes, "process"),
        several(r.threads, "thread"),
        several(traced.modules, "module"),
        in_percent(r.overhead())
    );
    eprintln!(
        "restitch: {:.1} branches for each breakpoint ({:.2} without evaluating ahead); {} of {} evaluations contradicted",
        r.usefulness(),
        r.usefulness_without_evaluation(),
        r.contradicted,
        r.confirmed + r.contradicted
    );
    if r.blocked_threads > 0 {
        eprintln!(
            "restitch: not seen, as the signal that interrupts them is blocked in them: {}",
            several(r.blocked_threads, "thread")
        );
    }
}

#[cfg(test)]
mod tests {
    use super::percent;

    #[test]
    fn percentages_come_with_and_without_their_sign() {
        assert_eq!(percent("1%"), Ok(0.01));
        assert_eq!(percent("0.5"), Ok(0.005));
        assert!(percent("0").is_err() && percent("99%").is_err() && percent("x%").is_err());
    }
}
