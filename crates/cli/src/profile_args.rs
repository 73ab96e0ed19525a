//! The command line of `restitch profile`.

use clap::{Args, Subcommand, ValueEnum};
use restitch_session::profiles::{Format, Sampled};
use std::path::PathBuf;

const CONVERT: &str = "\
Examples:
  restitch profile convert prog.profile --program ./prog -o prog.fdata
  llvm-bolt ./prog -data prog.fdata -o prog.bolt -reorder-blocks=ext-tsp
  restitch profile convert prog.profile -o prog.perf.data --depth 64
  perf report -i prog.perf.data --branch-history
  restitch profile convert perf.data --program ./prog -o prog.profile
  restitch profile convert prog.profile --program ./prog -o prog.order
  ld.lld --symbol-ordering-file prog.order ...
See docs/profiles.md for what each format can hold.";

const MERGE: &str = "\
Examples:
  restitch profile merge morning.profile evening.profile -o day.profile
  restitch profile merge --weights 3,1 web.profile batch.profile -o both.profile
  restitch profile merge --sum part1.profile part2.profile -o whole.profile";

const COMPARE: &str = "\
Examples:
  restitch profile compare a.profile b.profile c.profile
  restitch profile compare *.profile --svg likeness.svg --json likeness.json
  restitch profile compare truth.profile perf.data --program ./prog
The measures and their formulas are in docs/profiles.md.";

/// What to do with profiles.
#[derive(Debug, Subcommand)]
pub enum ProfileCommand {
    /// Write a profile in another format.
    #[command(after_help = CONVERT)]
    Convert {
        /// The profile, in any format that is read.
        profile: PathBuf,
        #[command(flatten)]
        input: Input,
        #[command(flatten)]
        output: Output,
    },
    /// Add profiles up; each counts the same, however long it was recorded.
    #[command(after_help = MERGE)]
    Merge {
        /// The profiles.
        #[arg(required = true)]
        profiles: Vec<PathBuf>,
        /// What each profile counts, relative to the others.
        #[arg(long, value_name = "NUMBERS", value_delimiter = ',', conflicts_with = "sum")]
        weights: Vec<f64>,
        /// Add counts as they are (for parts of one recording).
        #[arg(long)]
        sum: bool,
        #[command(flatten)]
        input: Input,
        #[command(flatten)]
        output: Output,
    },
    /// Say how alike profiles are, each with each.
    #[command(after_help = COMPARE)]
    Compare {
        /// The profiles, two at least.
        #[arg(required = true, num_args = 2..)]
        profiles: Vec<PathBuf>,
        #[command(flatten)]
        input: Input,
        /// Leave out code that cannot be moved, which counting versions do not count, and functions whose
        /// entry cannot lead to a copy, of which they count a part.
        #[arg(long)]
        movable: bool,
        /// Write the tables as JSON, as docs/json.md describes it ("-" for standard output).
        #[arg(long, value_name = "FILE")]
        json: Option<PathBuf>,
        /// Write the tables as a picture (heat maps, SVG).
        #[arg(long, value_name = "FILE")]
        svg: Option<PathBuf>,
    },
    /// Say what is in a profile.
    Show {
        /// The profile.
        profile: PathBuf,
        #[command(flatten)]
        input: Input,
    },
    /// List the formats: which are read, which are written, what each holds.
    Formats,
}

/// What inputs need.
#[derive(Debug, Args)]
pub struct Input {
    /// The program or library that the profile is of; may be given several times. Needed for formats that do
    /// not say it, and where the profiled file is not in its place any more.
    #[arg(long, value_name = "FILE")]
    pub program: Vec<PathBuf>,
    /// The format of the input, where it is not to be found out.
    #[arg(long, value_name = "FORMAT", value_parser = Format::named)]
    pub from: Option<Format>,
    /// How counts are made of a profile that has instruction samples only: the nearest flow, or what the flow
    /// equations and bounds give.
    #[arg(long, value_enum, value_name = "HOW", default_value_t = Edges::Repaired)]
    pub edges: Edges,
}

/// How counts are made of instruction samples.
#[derive(Debug, Clone, Copy, ValueEnum)]
pub enum Edges {
    /// Flow repair: the counts nearest to the samples that satisfy the flow equations
    Repaired,
    /// Block counts as sampled, edges derived from them
    Derived,
}

impl From<Edges> for Sampled {
    fn from(edges: Edges) -> Self {
        match edges {
            Edges::Repaired => Sampled::Repaired,
            Edges::Derived => Sampled::Derived,
        }
    }
}

/// What is written.
#[derive(Debug, Args)]
pub struct Output {
    /// The new file. Its ending chooses the format (.profile .perf.data .fdata .no_lbr.fdata .yaml .pa .afdo
    /// .propeller .order).
    #[arg(short, long, value_name = "FILE")]
    pub output: PathBuf,
    /// The format, where the ending is another.
    #[arg(long, value_name = "FORMAT", value_parser = Format::named)]
    pub format: Option<Format>,
    /// perf.data: branches a sample.
    #[arg(long, value_name = "BRANCHES", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    pub depth: u16,
    /// perf.data: the most branch records to synthesize (24 bytes each).
    #[arg(long, value_name = "NUMBER", default_value_t = 1 << 20)]
    pub records: u64,
    /// perf.data: seed of the random walk.
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    pub seed: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    /// The endings stand in the help text; what they mean, in the library.
    #[test]
    fn help_of_the_output_has_an_ending_of_each_format() {
        let command = Output::augment_args(clap::Command::new("restitch"));
        let output =
            command.get_arguments().find(|argument| argument.get_id() == "output").expect("declared");
        let help = output.get_help().expect("documented").to_string();
        let endings = help.split(['(', ' ', ')']).filter(|word| word.starts_with('.') && word.len() > 1);
        let named = |ending| Format::of_file_name(&format!("x{ending}")).expect("it tells the format");
        assert_eq!(endings.map(named).collect::<BTreeSet<_>>(), BTreeSet::from(Format::ALL), "{help}");
    }
}
