//! The command line, as the user types it.

use crate::attach_args::Attach;
use crate::kernel::KernelCommand;
use crate::layout_names::LayoutNames;
use crate::process_number::process_number;
use crate::seconds::{seconds, some_seconds};
use crate::switch::Switch;
use crate::version_args::{LAYOUT, VersionArgs};
use clap::{ArgGroup, Args as ClapArgs, Parser, Subcommand};
use restitch_lab::Machine;
use restitch_report::paragraph;
use restitch_session::{ExitCode, LayoutChoice};
use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::path::PathBuf;

/// What the exit code means where another command has run.
pub const STAND_IN: &str = "`run`, `batch`, `record -- COMMAND`, `kernel run` and `kernel find -- COMMAND` end with the exit code of COMMAND once it has run (128 + n: signal n ended it).";

/// The list of exit codes below the help.
fn exit_codes() -> String {
    let rows = ExitCode::ALL.map(|code| paragraph(&format!("  {:3}  ", code.number()), code.meaning()));
    format!("Exit codes:\n{}{}", rows.concat(), paragraph("", STAND_IN).trim_end())
}

/// Makes native programs faster while they run: watches which branches a process takes, lays its hot code out
/// again, and moves the process over to the new layout. No source, symbols, rebuild or restart needed.
#[derive(Debug, Parser)]
#[command(version, after_help = exit_codes(), max_term_width = 80)]
pub struct Args {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Optimize a running process.
    ///
    /// Asked to end (Ctrl-C, SIGTERM, SIGHUP), it gives the process its original code back, or keeps the new
    /// layout if that is active and only its measurement was left.
    Attach {
        /// The process.
        #[arg(value_parser = process_number)]
        pid: i32,
        #[command(flatten)]
        options: Attach,
    },
    /// Start a program and optimize it while it runs.
    ///
    /// What asks it to end (SIGTERM, SIGHUP, SIGINT) is passed on to the program.
    Run {
        #[command(flatten)]
        options: Attach,
        /// Seconds that the program may warm up before it is profiled.
        #[arg(long, value_name = "SECONDS", default_value_t = 2.0, value_parser = seconds)]
        warm_up: f64,
        /// The program and its arguments. A text file without `#!` is run by /bin/sh, as shells do.
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// Give a process, and the children that it has forked off, their original code back, byte for byte.
    Revert {
        /// The process.
        #[arg(value_parser = process_number)]
        pid: i32,
        /// Also all processes that run its program.
        #[arg(long)]
        tree: bool,
    },
    /// Show which processes are under restitch, those that were forked off by one of them included.
    Status {
        /// Only this process.
        #[arg(value_parser = process_number)]
        pid: Option<i32>,
    },
    /// Record a profile of a process, or of a command and all programs that it executes.
    ///
    /// Asked to end, the recording of a process writes what it has; that of a command passes the signal on.
    #[command(
        group(ArgGroup::new("subject").required(true).args(["pid", "from_counts", "command"])),
        override_usage = "restitch record [OPTIONS] --output <FILE> --pid <PID>\n       restitch record [OPTIONS] --output <FILE> -- <COMMAND>...\n       restitch record [OPTIONS] --output <FILE> --from-counts <FILE>"
    )]
    Record(Record),
    /// Write a copy of a program or shared library that counts its branches in a file, whoever runs it.
    ///
    /// All processes that run the copy count in the same file, at the same time or one after the other.
    /// `restitch record --from-counts FILE` makes a profile of it.
    Instrument(Instrument),
    /// Write an optimized copy of a program or shared library.
    Optimize(Optimize),
    /// Run a command whose programs run again and again (a build, a test suite), and optimize them between
    /// their runs.
    Batch(crate::batch::Batch),
    /// Show, shrink or check the cache of `batch`.
    #[command(subcommand)]
    Cache(crate::batch::CacheCommand),
    /// Compare layouts of a program by models of a processor's front end: caches, TLBs, branch target buffer.
    Lab(Lab),
    /// Show the functions, blocks and jump tables of a file, and how much of it can be moved.
    Analyze {
        /// The file.
        file: PathBuf,
    },
    /// Convert, merge, compare and show profiles, restitch's own and those of other tools.
    #[command(subcommand)]
    Profile(crate::profile_args::ProfileCommand),
    /// Show what this machine allows, and the commands that would allow more.
    Doctor,
    /// Look at the code of the Linux kernel that runs here, and lead calls to copies of it in another order.
    #[command(subcommand)]
    Kernel(KernelCommand),
    /// Watch restitch speed up a built-in program while it runs.
    Demo {
        /// Seconds before the change, and again after it.
        #[arg(long, value_name = "SECONDS", default_value_t = 5.0, value_parser = some_seconds)]
        seconds: f64,
    },
    /// Give processes their original code back when the restitch that works on them is killed; it is on
    /// standard input.
    #[command(hide = true)]
    Keep {
        /// The working restitch.
        working: i32,
    },
    /// The program that `demo` runs.
    #[command(hide = true)]
    DemoWorkload {
        /// Its own arguments.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<OsString>,
    },
    /// Write the manual pages, shell completions and the page of options below a folder like /usr/share, as
    /// packages have them.
    #[command(hide = true)]
    Pages {
        /// The folder. What is missing of it is made.
        folder: PathBuf,
    },
}

impl Command {
    /// Whether something of it may be left in a process if it is cut off in the middle.
    pub fn changes_processes(&self) -> bool {
        match self {
            Self::Attach { options, .. } => !options.dry_run,
            Self::Run { .. } | Self::Revert { .. } | Self::Demo { .. } => true,
            Self::Record(record) => record.from_counts.is_empty(),
            // Each by its name, so that whoever adds one has to say.
            Self::Status { .. } | Self::Doctor | Self::Kernel(_) => false,
            Self::Instrument(_) | Self::Optimize(_) | Self::Analyze { .. } | Self::Lab(_) => false,
            Self::Batch(_) | Self::Cache(_) | Self::Profile(_) => false,
            Self::Keep { .. } | Self::DemoWorkload { .. } | Self::Pages { .. } => false,
        }
    }

    /// Whether it goes by numbers of processes, those that it starts included.
    pub fn names_processes(&self) -> bool {
        matches!(self, Self::Status { .. } | Self::Attach { .. }) || self.changes_processes()
    }

    /// Whether it has to do with the kernel, and heeds requests to end.
    pub fn is_kernels(&self) -> bool {
        matches!(self, Self::Kernel(command) if command.heeds_requests())
    }

    /// Whether the exit code is that of another command, which restitch runs.
    pub fn is_stand_in(&self) -> bool {
        match self {
            Self::Run { .. } | Self::Batch(_) => true,
            Self::Kernel(command) => command.is_stand_in(),
            Self::Record(record) => !record.command.is_empty(),
            _ => false,
        }
    }
}

/// Options of `record`.
#[derive(Debug, ClapArgs)]
#[group(skip)]
pub struct Record {
    #[command(flatten)]
    pub source: crate::sources::SourceOptions,
    /// The process.
    #[arg(short, long, value_parser = process_number)]
    pub pid: Option<i32>,
    /// Also all processes that run its program.
    #[arg(long, requires = "pid")]
    pub tree: bool,
    /// Seconds of sampling and counting together. (A COMMAND is recorded to its end.)
    #[arg(long, value_name = "SECONDS", default_value_t = 6.0, value_parser = some_seconds,
          conflicts_with_all = ["command", "from_counts"])]
    pub duration: f64,
    /// The profile file. Its ending chooses the format, as for `restitch profile convert`; any other is
    /// restitch's own.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// Count only programs of this name or path that COMMAND executes (may be repeated).
    #[arg(long, value_name = "NAME", conflicts_with_all = ["pid", "from_counts"])]
    pub program: Vec<String>,
    /// Make the profile of what programs of `restitch instrument` have counted in this file (may be
    /// repeated).
    #[arg(long, value_name = "FILE", conflicts_with = "command")]
    pub from_counts: Vec<PathBuf>,
    /// Write the result as JSON ("-" for standard output).
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the result as an HTML page.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// The format of the profile file, where its ending is another.
    #[arg(long, value_name = "FORMAT", value_parser = restitch_session::profiles::Format::named)]
    pub format: Option<restitch_session::profiles::Format>,
    /// Branches a sample, for an output in the format of perf.data (32; with --source trace or burst 64;
    /// at most 1024), and branches a record for --source trace (512) and --source burst (4000, or less
    /// where system calls end bursts).
    #[arg(long, value_name = "BRANCHES", value_parser = clap::value_parser!(u16).range(1..=15000))]
    pub depth: Option<u16>,
    /// The program and its arguments. A text file without `#!` is run by /bin/sh, as shells do.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

/// Options of `instrument`.
#[derive(Debug, ClapArgs)]
#[group(skip)]
pub struct Instrument {
    /// The file.
    pub program: PathBuf,
    /// The new file.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// The file to count in. It is made here; its path is fixed in the copy. Where a process cannot write
    /// it, it runs uncounted.
    #[arg(long, value_name = "FILE")]
    pub counts: PathBuf,
    /// Write the result as JSON ("-" for standard output).
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Options of `optimize`.
#[derive(Debug, ClapArgs)]
#[group(skip)]
pub struct Optimize {
    /// The file.
    pub program: PathBuf,
    /// A profile from `restitch record`, or of another format that `restitch profile formats` lists as
    /// read.
    #[arg(long, value_name = "FILE")]
    pub profile: PathBuf,
    /// The new file.
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    #[command(flatten)]
    pub version: VersionArgs,
    /// Let pointers to functions of a position-independent file lead straight to the new code: everything
    /// that makes such an address (data, instructions, exported symbols) is changed together, so that
    /// comparisons hold; functions of which not all of that is known keep theirs.
    #[arg(long, help_heading = LAYOUT, value_name = "WHETHER", default_value = "on")]
    pub pointers: Switch,
    /// Write the result as JSON ("-" for standard output).
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Options of `lab`.
#[derive(Debug, ClapArgs)]
#[group(id = "lab_options")]
pub struct Lab {
    /// The file.
    pub program: PathBuf,
    /// A profile from `restitch record`.
    #[arg(long, value_name = "FILE")]
    pub profile: PathBuf,
    /// Layouts to compare, separated by commas; all unless given. Distances may follow a name:
    /// `stitch:4K:64K:2M`, `stitch:zen4`; and `+search` or `+search=SECONDS`, for local search afterwards.
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = LayoutNames)]
    pub layouts: Vec<LayoutChoice>,
    /// Processor to model: haswell, kaby-lake, ice-lake, golden-cove, zen2 to zen5, neoverse-n1, neoverse-v1;
    /// this machine unless given.
    #[arg(long, value_name = "NAME")]
    pub machine: Option<Machine>,
    /// Show each layout also with duplicates of blocks that hot jumps lead to: by edge counts, and by paths
    /// if the profile has some.
    #[arg(long, value_name = "WHETHER", default_value = "off")]
    pub duplicate: Switch,
    /// Show each layout also with lines fetched ahead that the model of the second-level cache misses, and
    /// with as many bytes that do nothing.
    #[arg(long, value_name = "WHETHER", default_value = "off")]
    pub prefetch: Switch,
    /// Model the hot code of the layouts in large pages.
    #[arg(long = "huge-pages", value_name = "WHETHER", default_value = "off")]
    pub large_pages: Switch,
    /// Steps of the execution, at most; a step is about a basic block.
    #[arg(long, value_name = "NUMBER", default_value = "5000000")]
    pub steps: NonZeroUsize,
    /// A perf.data file with branch stacks (`restitch record --source trace --depth 1024`): a real execution
    /// instead of a made-up one.
    #[arg(long, value_name = "FILE", conflicts_with = "seed")]
    pub records: Option<PathBuf>,
    /// Seed of the made-up execution. The same seed gives the same numbers.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
    /// Write the result as JSON ("-" for standard output).
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write the comparison as a picture.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
    /// Write the map of hot lines by cache set as a picture.
    #[arg(long, value_name = "FILE")]
    pub occupancy: Option<PathBuf>,
    /// With COMMAND: how often each layout runs; six give intervals of 95 %.
    #[arg(long, value_name = "NUMBER", default_value = "6", requires = "command")]
    pub rounds: NonZeroUsize,
    /// Also make a file of each layout and run this command with it on this processor, in turns with the
    /// original: user cycles and front-end events by the processor's counters, else processor time. The file
    /// is run in place of the first word, which has to be PROGRAM, or wherever `{}` stands.
    #[arg(last = true, value_name = "COMMAND")]
    pub command: Vec<OsString>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_definition_is_sound() {
        Args::command().debug_assert();
    }

    #[test]
    fn old_spellings_of_options_are_understood_and_not_listed() {
        let parsed = |args: &[&str]| Args::try_parse_from(args).unwrap_or_else(|e| panic!("{e}"));
        let Command::Attach { options, .. } =
            parsed(&["restitch", "attach", "1", "--turn", "off", "--stay", "off"]).command
        else {
            panic!("it is attach");
        };
        assert_eq!(options.version.invert_branches, Switch::Off);
        assert_eq!(options.version.keep_in_place, Switch::Off);
        let mut command = Args::command();
        let attach =
            command.find_subcommand_mut("attach").expect("there is one").render_long_help().to_string();
        assert!(attach.contains("--invert-branches") && attach.contains("--keep-in-place"), "{attach}");
        assert!(!attach.contains("--turn") && !attach.contains("--stay"), "{attach}");
    }

    #[test]
    fn the_help_lists_every_exit_code_with_its_meaning() {
        let help = Args::command().render_long_help().to_string();
        let unwrapped = help.split_whitespace().collect::<Vec<_>>().join(" ");
        for code in ExitCode::ALL {
            let words = format!("{} {}", code.number(), code.meaning());
            assert!(unwrapped.contains(&words), "{words:?} is missing in {help}");
        }
    }
}
