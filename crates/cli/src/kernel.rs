//! `restitch kernel`: what the kernel allows, and its code.

use crate::group_outputs::GroupOutputs;
use crate::kernel_find::{FindOptions, find};
use crate::kernel_groups::{count, find_and_hold, hold, revert, run_in_force, write_group};
use crate::outputs::check_outputs;
use crate::process_number::process_number;
use crate::remedy::to_allow_more;
use crate::seconds::{seconds, some_seconds};
use crate::sources::percent;
use clap::{Args, Subcommand, ValueEnum};
use restitch_apply::Why;
use restitch_kernel::{Analysis, Kernel, KernelDoctor, Source, kernel_doctor, release};
use restitch_kernel_control::{Control, Groups};
use restitch_kernel_position::{Counts, Hot, HowMany, Order};
use restitch_report::paragraph;
use restitch_session::{
    ExitCode, FoundGroupWanted, GroupWanted, PipelineError, Roots, SessionError, read_file, write_result,
};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The commands about the kernel.
#[derive(Debug, Subcommand)]
pub enum KernelCommand {
    /// Show what this kernel allows, and the commands that would allow more.
    Doctor {
        #[command(flatten)]
        options: KernelOptions,
    },
    /// Show the functions and blocks of the kernel's code, and how much of it can be moved.
    ///
    /// It is read as it stands in memory, which takes root.
    Analyze {
        /// Only these, and more of each: names, or addresses in them with 0x in front.
        #[arg(value_name = "FUNCTION")]
        functions: Vec<String>,
        #[command(flatten)]
        options: KernelOptions,
    },
    /// Show where the running kernel's time goes, and below which of its functions.
    ///
    /// Samples with their callers are taken on the whole machine. The functions that are named first can be
    /// given to `restitch kernel position`. Without a COMMAND, Ctrl-C, SIGTERM and SIGHUP end it early.
    Find {
        #[command(flatten)]
        options: FindOptions,
        #[command(flatten)]
        output: JsonOption,
    },
    /// Copy functions of the running kernel in a new order, prove it, and lead their calls to the copies.
    ///
    /// The copies are in force until it is asked to end (Ctrl-C, SIGTERM, SIGHUP). Then calls go to the
    /// original code again, and also if it is killed. It takes root and the control module.
    ///
    /// Without --order and --counts, it counts first: which functions are called, level by level, and how
    /// often their blocks are executed. If those that are hot are more than the processor keeps close by,
    /// they are copied with the hot ones in front.
    Position {
        #[command(flatten)]
        options: Box<PositionOptions>,
    },
    /// The same as position, in force while a command runs.
    ///
    /// What asks it to end (SIGTERM, SIGHUP, SIGINT) is passed on to the command. If the copies cannot be put
    /// in force, the command is not started.
    Run {
        /// Functions whose calls are to be led to copies: names, or addresses in them with 0x in front.
        #[arg(value_name = "FUNCTION", required = true)]
        functions: Vec<String>,
        #[command(flatten)]
        group: GroupOptions,
        /// The program and its arguments.
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// Count exactly how often the blocks of functions of the running kernel are executed.
    ///
    /// Copies that count are in force for a while. What the functions call is counted where they call it.
    /// Ctrl-C, SIGTERM and SIGHUP end it early, with what was counted until then. It takes root and the
    /// control module.
    Count {
        #[command(flatten)]
        options: CountOptions,
    },
    /// Show the groups of copies that are in the kernel.
    Status {
        #[command(flatten)]
        output: JsonOption,
    },
    /// Take a group out of the kernel: calls go to the original code again.
    Revert {
        /// Its name, as `restitch kernel status` has it.
        #[arg(value_name = "GROUP")]
        group: String,
    },
}

/// What is to be copied, and how.
#[derive(Debug, Args)]
pub struct GroupOptions {
    /// Also copy what they call directly, and what that calls, so many calls deep. Without this none of it;
    /// where calls are counted first, all that is hot.
    #[arg(long, value_name = "CALLS")]
    pub callees: Option<usize>,
    /// The order of blocks: as they are (kept), or the other way round, for tests (reversed).
    #[arg(long, value_name = "ORDER", value_enum)]
    pub order: Option<OrderName>,
    /// In place of --order: hot blocks in front, in chains, by how often instructions were executed. The file
    /// has lines of an address in hexadecimal, a length and a count.
    #[arg(long, value_name = "FILE", conflicts_with = "order")]
    pub counts: Option<PathBuf>,
    /// Blocks are hot that are executed more often than so many hundredths of the calls of the function.
    #[arg(long, value_name = "PERCENT", default_value_t = Order::HOT_PERCENT,
          value_parser = clap::value_parser!(u64).range(1..=100))]
    pub hot: u64,
    /// Call short functions, and those that are called from one place only, from hot blocks as well. Without
    /// this they stand in place of such calls, where they know nothing of their caller.
    #[arg(long, conflicts_with = "order")]
    pub no_inline: bool,
    #[command(flatten)]
    pub outputs: GroupOutputs,
}

/// The same, for how long, or whereto.
#[derive(Debug, Args)]
pub struct PositionOptions {
    /// Functions whose calls are to be led to copies: names, or addresses in them with 0x in front.
    #[arg(value_name = "FUNCTION", required_unless_present = "hottest")]
    pub functions: Vec<String>,
    #[command(flatten)]
    pub group: GroupOptions,
    #[command(flatten)]
    pub walk: WalkOptions,
    /// Lead calls back after so many seconds.
    #[arg(long = "for", value_name = "SECONDS", value_parser = seconds, conflicts_with = "write")]
    pub time: Option<f64>,
    /// Write the module here in place of loading it. It fits the kernel until the machine starts again. The
    /// hottest functions are those of counts then.
    #[arg(long, value_name = "FILE")]
    pub write: Option<PathBuf>,
    /// With --write: read a folder with copies of the kernel's files (proc/kallsyms, proc/kcore,
    /// sys/kernel/btf/vmlinux, lib/modules and others) in place of the running kernel.
    #[arg(long, value_name = "FOLDER", requires = "write")]
    pub view: Option<PathBuf>,
}

/// What is counted first.
#[derive(Debug, Args)]
pub struct WalkOptions {
    /// In place of functions: the hottest ones, so many (40), or as many as hold that share of what is
    /// executed in all that can be copied (95%); all as one group. By the counts that are given, else by
    /// counting.
    #[arg(long, value_name = "NUMBER|PERCENT", value_parser = how_many,
          conflicts_with_all = ["functions", "order"])]
    pub hottest: Option<HowMany>,
    /// Count each level of callees for so many seconds.
    #[arg(long, value_name = "SECONDS", value_parser = some_seconds, default_value_t = 5.0,
          conflicts_with_all = ["order", "counts", "write"])]
    pub count_for: f64,
    /// Count at most while this process runs. What the kernel does for others meanwhile is counted as well.
    #[arg(long, value_name = "PID", value_parser = process_number, conflicts_with_all = ["order", "counts", "write"])]
    pub pid: Option<i32>,
    /// Put nothing in force if less than this share of the hot code finds no place in a model of the
    /// first-level cache.
    #[arg(long, value_name = "PERCENT", default_value = "10%", value_parser = percent,
          conflicts_with_all = ["order", "counts", "write"])]
    pub bottleneck: f64,
    /// Leave out what is called through pointers and static calls. Without this, the function tracer lists
    /// calls for a second first, and such functions belong to the group as others do.
    #[arg(long, conflicts_with_all = ["order", "counts", "write", "hottest"])]
    pub direct_only: bool,
    /// Put the copies in force however small the hot code is.
    #[arg(long, conflicts_with_all = ["order", "counts", "write", "bottleneck"])]
    pub anyway: bool,
}

/// What is to be counted, for how long, and whereto.
#[derive(Debug, Args)]
pub struct CountOptions {
    /// The functions: names, or addresses in them with 0x in front.
    #[arg(value_name = "FUNCTION", required = true)]
    pub functions: Vec<String>,
    /// Also count what they call directly, and what that calls, so many calls deep.
    #[arg(long, value_name = "CALLS", default_value_t = 0)]
    pub callees: usize,
    /// Count for so many seconds.
    #[arg(long = "for", value_name = "SECONDS", value_parser = some_seconds, default_value_t = 20.0)]
    pub time: f64,
    /// Write the counts here, for `restitch kernel position --counts`. They fit the kernel until the machine
    /// starts again.
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,
    #[command(flatten)]
    pub json: JsonOption,
}

/// `40`, or `95%`.
fn how_many(text: &str) -> Result<HowMany, String> {
    let share = |number: &str| {
        let percent: f64 = number.parse().ok()?;
        (0.01..=100.0).contains(&percent).then_some(HowMany::PerTenThousand((percent * 100.0).round() as u32))
    };
    let functions = |number: usize| (number > 0).then_some(HowMany::Functions(number));
    let parsed = match text.strip_suffix('%') {
        Some(number) => share(number),
        None => text.parse().ok().and_then(functions),
    };
    parsed.ok_or_else(|| "a number of functions above 0, or a percentage up to 100%, is wanted".into())
}

/// Orders without counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum OrderName {
    /// As they are.
    Kept,
    /// The other way round.
    Reversed,
}

/// Where the result goes beside the screen.
#[derive(Debug, Args)]
pub struct JsonOption {
    /// Write the result as JSON ("-" for standard output).
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// What the first two have.
#[derive(Debug, Args)]
pub struct KernelOptions {
    /// Read a folder with copies of the kernel's files (proc/kallsyms, proc/kcore, sys/kernel/btf/vmlinux and
    /// others) in place of the running kernel.
    #[arg(long, value_name = "FOLDER")]
    pub view: Option<PathBuf>,
    #[command(flatten)]
    output: JsonOption,
}

impl KernelOptions {
    fn source(&self) -> Source {
        self.view.as_deref().map_or_else(Source::running, Source::folder)
    }
}

impl JsonOption {
    fn check(&self) -> Result<(), SessionError> {
        Ok(check_outputs(&[self.json.as_deref()])?)
    }

    fn is_printed(&self) -> bool {
        self.json.as_deref() == Some(Path::new("-"))
    }

    /// Prints the result, in words or as JSON, and writes it where it was asked for.
    fn publish(&self, text: &str, json: Result<String, impl Into<Why>>) -> Result<(), SessionError> {
        let json = json.map_err(|e| SessionError::Command { command: "json".into(), why: e.into() });
        match &self.json {
            None => print!("{text}"),
            Some(_) if self.is_printed() => print_json!(&json?),
            Some(path) => {
                print!("{text}");
                // It may tell where the kernel is.
                write_result(path, json?.as_bytes(), 0o600)?;
            }
        }
        Ok(())
    }
}

/// Runs one of them; the exit code.
pub fn kernel_command(command: KernelCommand) -> Result<i32, SessionError> {
    match command {
        KernelCommand::Doctor { options } => {
            options.output.check()?;
            let facts = kernel_doctor(&options.source());
            options.output.publish(&doctor_text(&facts), facts.to_json())?;
            Ok(if facts.can_analyze { ExitCode::Done } else { ExitCode::NotPermitted }.number())
        }
        KernelCommand::Analyze { functions, options } => {
            options.output.check()?;
            let source = options.source();
            let kernel = Kernel::read(&source)?;
            let ids = functions.iter().map(|name| kernel.find(name)).collect::<Result<Vec<_>, _>>()?;
            let analysis = Analysis::of(&kernel, release(&source), &ids);
            options.output.publish(&analysis.to_text(), analysis.to_json())?;
            Ok(ExitCode::Done.number())
        }
        KernelCommand::Find { options, output } => {
            output.check()?;
            let found = find(&options)?;
            output.publish(&found.report.to_text(), found.report.to_json())?;
            Ok(found.status)
        }
        KernelCommand::Status { output } => {
            output.check()?;
            let groups = Groups::new(Control::default().groups()?);
            output.publish(&groups.to_text(), groups.to_json())?;
            Ok(ExitCode::Done.number())
        }
        KernelCommand::Revert { group } => {
            print!("{}", revert(&group)?);
            Ok(ExitCode::Done.number())
        }
        KernelCommand::Position { options } => {
            let (outputs, time) = (&options.group.outputs, options.time.map(Duration::from_secs_f64));
            check_outputs(&[options.write.as_deref()])?;
            outputs.check()?;
            match &options.write {
                Some(file) => write_group(&options.source(), &options.wanted()?, outputs, file),
                None if options.counts_first() => find_and_hold(&options.found(), outputs, time),
                None => hold(&options.wanted()?, outputs, time),
            }
        }
        KernelCommand::Count { options } => {
            options.json.check()?;
            check_outputs(&[options.output.as_deref()])?;
            let wanted = GroupWanted::counting(options.functions, options.callees);
            let counts = count(&wanted, Duration::from_secs_f64(options.time))?;
            if let Some(path) = &options.output {
                // It tells where the kernel is.
                write_result(path, counts.blocks.as_bytes(), 0o600)?;
            }
            options.json.publish(&counts.report.to_text(), counts.report.to_json())?;
            Ok(ExitCode::Done.number())
        }
        KernelCommand::Run { functions, group, command } => {
            group.outputs.check()?;
            run_in_force(&group.wanted(functions)?, &group.outputs, &command)
        }
    }
}

impl KernelCommand {
    /// Whether the exit code is that of another command, which restitch runs.
    pub fn is_stand_in(&self) -> bool {
        match self {
            Self::Run { .. } => true,
            Self::Find { options, .. } => !options.command.is_empty(),
            _ => false,
        }
    }

    /// Whether a request to end is heeded: it takes out of the kernel what it has put there, or tells what it
    /// has measured until then.
    pub fn heeds_requests(&self) -> bool {
        match self {
            Self::Position { options } => options.write.is_none(),
            Self::Run { .. } | Self::Count { .. } | Self::Find { .. } => true,
            _ => false,
        }
    }
}

impl PositionOptions {
    fn source(&self) -> Source {
        self.view.as_deref().map_or_else(Source::running, Source::folder)
    }

    fn wanted(&self) -> Result<GroupWanted, SessionError> {
        let wanted = self.group.wanted(self.functions.clone())?;
        if self.walk.hottest.is_some() && !matches!(wanted.order, Order::Counted { .. }) {
            return Err(SessionError::NoCounts);
        }
        Ok(GroupWanted { hottest: self.walk.hottest, ..wanted })
    }

    /// Whether the order is not said: then it comes of counting.
    fn counts_first(&self) -> bool {
        self.group.order.is_none() && self.group.counts.is_none()
    }

    fn found(&self) -> FoundGroupWanted {
        let walk = &self.walk;
        // Of the hottest functions nobody has asked for what they call.
        let (roots, depth) = match walk.hottest {
            Some(most) => (Roots::Hottest(most), Some(self.group.callees.unwrap_or(0))),
            None => (Roots::Named(self.functions.clone()), self.group.callees),
        };
        FoundGroupWanted {
            roots,
            depth,
            time: Duration::from_secs_f64(walk.count_for),
            pid: walk.pid,
            percent: self.group.hot,
            is_direct_only: walk.direct_only,
            inlines: !self.group.no_inline,
            least_pressure: if walk.anyway { 0.0 } else { walk.bottleneck },
        }
    }
}

impl GroupOptions {
    fn wanted(&self, functions: Vec<String>) -> Result<GroupWanted, SessionError> {
        let (callees, order) = (self.callees.unwrap_or(0), self.order()?);
        let inlines = !self.no_inline;
        Ok(GroupWanted { functions, hottest: None, callees, order, counts: false, inlines })
    }

    fn order(&self) -> Result<Order, SessionError> {
        let Some(path) = &self.counts else {
            return Ok(match self.order {
                None | Some(OrderName::Kept) => Order::Kept,
                Some(OrderName::Reversed) => Order::Reversed,
            });
        };
        let bad = |why: Why| PipelineError::BadFile { path: path.clone(), why };
        let text = String::from_utf8(read_file(path)?).map_err(|error| bad(error.into()))?;
        let counts = Counts::parse(&text).map_err(|error| bad(error.into()))?;
        Ok(Order::Counted { counts, hot: Hot::PercentOfCalls(self.hot) })
    }
}

fn doctor_text(facts: &KernelDoctor) -> String {
    let mut text = String::new();
    for check in &facts.checks {
        let head = format!("{} {:<23}", if check.available { "yes" } else { "no " }, check.name);
        text += &paragraph(&head, &check.state);
        text += &paragraph("      ", check.meaning);
        text += &to_allow_more(check.remedy.as_deref());
    }
    let sum = match (facts.can_analyze, facts.can_redirect) {
        (true, true) => "restitch kernel analyze works here, and copies of functions can be put in force.",
        (true, false) => {
            "restitch kernel analyze works here; for copies in force, see the lines with \"no\"."
        }
        (false, _) => "restitch kernel analyze does not work here: see the lines with \"no\".",
    };
    text + "\n" + &paragraph("", sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hottest_functions_are_a_number_or_a_share() {
        assert_eq!(how_many("40"), Ok(HowMany::Functions(40)));
        assert_eq!(how_many("95%"), Ok(HowMany::PerTenThousand(9500)));
        assert_eq!(how_many("99.95%"), Ok(HowMany::PerTenThousand(9995)));
        for text in ["0", "-1", "x", "", "%", "0%", "101%", "NaN%", "4.5"] {
            assert!(how_many(text).is_err(), "{text}");
        }
    }
}
