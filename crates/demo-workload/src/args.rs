//! The command line.

use std::{fmt, path::PathBuf, time::Duration};

/// What `--help` prints.
pub const USAGE: &str =
    "usage: restitch-demo-workload (--requests N | --seconds S) [--threads T] [--progress FILE]

  --requests N     serve N requests, then print how many and a checksum of their results
  --seconds S      serve for S seconds (may have a fraction), print nothing
  --threads T      that many serving threads (1 to 256; default 1)
  --progress FILE  every 2 ms, write two little-endian 64-bit numbers to FILE: requests finished so far, and
                   nanoseconds since the start at which they were counted";

/// When the program ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// After so many requests.
    Requests(u64),
    /// After so much time.
    Time(Duration),
}

/// What the command line asks for.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// When to end.
    pub amount: Amount,
    /// How many threads serve, at least one.
    pub threads: usize,
    /// The file that holds the number of finished requests, created or truncated at the start.
    pub progress: Option<PathBuf>,
}

/// Why a command line is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BadArguments {
    /// An option that does not exist, or a word that is no option.
    Unknown(String),
    /// The last option lacks its value.
    NoValue(String),
    /// A value that is not a number in the option's range.
    BadValue {
        /// The option.
        option: String,
        /// What was given.
        value: String,
    },
    /// Neither or both of `--requests` and `--seconds`.
    Amount,
}

impl fmt::Display for BadArguments {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown(word) => write!(f, "unknown argument '{word}'"),
            Self::NoValue(option) => write!(f, "{option} needs a value"),
            Self::BadValue { option, value } => write!(f, "'{value}' is not a usable value of {option}"),
            Self::Amount => write!(f, "give either --requests or --seconds"),
        }
    }
}

impl std::error::Error for BadArguments {}

impl Options {
    /// Reads arguments (without the program's name); `None` when help was asked for.
    pub fn parse(args: impl IntoIterator<Item = String>) -> Result<Option<Self>, BadArguments> {
        let mut amounts = Vec::new();
        let (mut threads, mut progress) = (1, None);
        let mut args = args.into_iter();
        while let Some(option) = args.next() {
            if option == "--help" {
                return Ok(None);
            }
            if !["--requests", "--seconds", "--threads", "--progress"].contains(&option.as_str()) {
                return Err(BadArguments::Unknown(option));
            }
            let value = args.next().ok_or_else(|| BadArguments::NoValue(option.clone()))?;
            let bad = || BadArguments::BadValue { option: option.clone(), value: value.clone() };
            match option.as_str() {
                "--requests" => amounts.push(Amount::Requests(value.parse().map_err(|_| bad())?)),
                "--seconds" => amounts.push(Amount::Time(seconds(&value).ok_or_else(bad)?)),
                "--threads" => {
                    threads = value.parse().ok().filter(|n| (1..=256).contains(n)).ok_or_else(bad)?;
                }
                _ => progress = Some(PathBuf::from(value)),
            }
        }
        match amounts[..] {
            [amount] => Ok(Some(Self { amount, threads, progress })),
            _ => Err(BadArguments::Amount),
        }
    }
}

fn seconds(value: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(value.parse().ok()?).ok()
}
