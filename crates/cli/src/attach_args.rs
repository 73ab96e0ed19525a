//! The options of `attach` and `run`.

use crate::seconds::{seconds, some_seconds};
use crate::version_args::{LAYOUT, VersionArgs};
use clap::{Args as ClapArgs, ValueEnum};
use restitch_session::{AttachOptions, Metric, RetargetedSlots};
use std::path::PathBuf;
use std::time::Duration;

/// Heading of the options that say where the profile comes from.
const PROFILE: &str = "Profile options";
/// Heading of the options of the measurement afterwards.
const VERDICT: &str = "Verdict options";
/// Heading of the options that say where the result is written.
const RESULT: &str = "Result options";

/// Options of `attach` and `run`. (The group has a name of its own: the default would be that of the
/// variant.)
#[derive(Debug, ClapArgs)]
#[group(id = "attach_options")]
pub struct Attach {
    /// Optimize once and leave. This is the default.
    #[arg(long)]
    pub once: bool,
    /// Stay, and optimize again when the work of the process changes, for all kinds of work seen so far. Ends
    /// with the process, when `restitch revert` or another attach changes it, or on SIGINT or SIGTERM (the
    /// layout stays).
    #[arg(long, conflicts_with_all = ["once", "dry_run"])]
    pub continuous: bool,
    /// With --continuous: least seconds between two optimizations.
    #[arg(long, value_name = "SECONDS", default_value_t = 120.0, value_parser = seconds, requires = "continuous")]
    pub rest: f64,
    /// With --continuous: samples per second and running thread between optimizations. 400 are compared with
    /// the work seen so far.
    #[arg(long, value_name = "NUMBER", default_value_t = 50, value_parser = clap::value_parser!(u64).range(1..=4000), requires = "continuous")]
    pub watch_rate: u64,
    /// Use this profile in place of profiling now: one of `restitch record` on any machine, or of a format
    /// that `restitch profile formats` lists as read. The process is stopped once. Modules of other builds
    /// than the profile's stay as they are.
    #[arg(long, help_heading = PROFILE, value_name = "FILE", conflicts_with_all = ["continuous", "source", "overhead", "duration"])]
    pub profile: Option<PathBuf>,
    /// Where the profile comes from: count (a counting version), trace or burst (branch records by software),
    /// lbr (branch records of the hardware), ip (samples of instructions alone: the process is stopped once,
    /// and gains least); auto counts.
    #[arg(long, help_heading = PROFILE, value_name = "SOURCE", default_value = "auto")]
    pub source: restitch_session::Source,
    /// With any source but count: the share of the program's processor time for which it may be held or
    /// slowed down on average, in percent. restitch's own work at the same time is not part of it.
    #[arg(long, help_heading = PROFILE, value_name = "PERCENT", default_value = "5%", value_parser = crate::sources::percent)]
    pub overhead: f64,
    /// Seconds of profiling: a third sampling, the rest counting or tracing. Without this it ends when the
    /// profile has settled, after 6 seconds at most.
    #[arg(long, help_heading = PROFILE, value_name = "SECONDS", value_parser = some_seconds)]
    pub duration: Option<f64>,
    /// Seconds of measuring after the change, for the verdict; with --profile also before it.
    #[arg(long, help_heading = VERDICT, value_name = "SECONDS", default_value_t = 3.0, value_parser = seconds)]
    pub measure: f64,
    /// Write the result as JSON, as docs/json.md describes it ("-" for standard output).
    #[arg(long, help_heading = RESULT, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the result as an HTML page.
    #[arg(long, help_heading = RESULT, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Only say what would be done and what stays in place, and why. The process is sampled, not changed.
    #[arg(long)]
    pub dry_run: bool,
    /// Also optimize all processes of the same user that run the same program; those forked later start in
    /// the new layout. Where only children of PID work, another user's or after executing themselves anew,
    /// these, and PID if it has the same addresses.
    #[arg(long)]
    pub tree: bool,
    /// Undo the new layout (exit code 8) if it was measured to be slower, or could not be measured. One that
    /// makes no difference stays. Without hardware counters this needs --metric.
    #[arg(long, help_heading = VERDICT)]
    pub revert_if_slower: bool,
    /// A shell command that prints a growing number, the work done so far (requests, transactions). The
    /// verdict is then about the cost of a unit of work, and the rate where the cost shows no difference. It
    /// is run once before anything else.
    #[arg(long, help_heading = VERDICT, value_name = "COMMAND")]
    pub metric: Option<String>,
    #[command(flatten)]
    pub version: VersionArgs,
    /// Let calls from other modules (linkage), and virtual calls too (on), go straight to the new code,
    /// through pointers in memory that is read-only by now.
    #[arg(long, help_heading = LAYOUT, value_name = "WHICH", default_value = "off")]
    pub slots: SlotChoice,
    /// With --promote-calls: a profile that knows the targets of indirect calls (as of
    /// `restitch record --source trace`), in place of counting them.
    #[arg(long, help_heading = PROFILE, value_name = "FILE", requires = "promote_calls")]
    pub call_targets: Option<PathBuf>,
}

impl Attach {
    /// What the library is asked for: process `pid`.
    pub fn options(&self, pid: i32) -> AttachOptions {
        AttachOptions {
            pid,
            tree: self.tree,
            profile: self.profile.clone(),
            source: self.source,
            overhead: self.overhead,
            duration: self.duration.map(Duration::from_secs_f64),
            dry_run: self.dry_run,
            revert_if_slower: self.revert_if_slower,
            metric: self.metric.clone().map(|command| Metric { command }),
            measure: Duration::from_secs_f64(self.measure),
            version: self.version.options(),
            slots: self.slots.into(),
            call_targets: self.call_targets.clone(),
        }
    }
}

/// Which slots lead into the new layout.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum SlotChoice {
    /// Those of linkage tables: calls from other modules.
    Linkage,
    /// Those of v-tables, too: virtual calls.
    On,
    /// None.
    Off,
}

impl From<SlotChoice> for RetargetedSlots {
    fn from(slots: SlotChoice) -> Self {
        match slots {
            SlotChoice::Linkage => Self::Linkage,
            SlotChoice::On => Self::All,
            SlotChoice::Off => Self::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Args, Command};
    use clap::Parser;

    #[test]
    fn what_is_not_said_of_an_attach_is_what_the_library_does_by_default() {
        let parsed = Args::try_parse_from(["restitch", "attach", "4711"]).expect("it is complete");
        let Command::Attach { pid, options } = parsed.command else { panic!("it is attach") };
        let (said, default) = (options.options(pid), AttachOptions::new(4711));
        assert_eq!(format!("{said:#?}"), format!("{default:#?}"));
    }
}
