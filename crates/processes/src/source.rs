//! Where profiles come from, and which sources this machine has.

use crate::error::SessionError;
use restitch_perf::{Availability, Pmu};
use std::str::FromStr;

/// A source of profiles, as a user names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Source {
    /// The best one that the machine allows.
    #[default]
    Auto,
    /// Branch records of the hardware.
    Lbr,
    /// Software branch tracing.
    Trace,
    /// Bursts in a tracing version.
    Burst,
    /// Instruction pointers.
    Ip,
    /// A counting version.
    Count,
}

/// What is done for a source.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SourceChoice {
    /// A counting version runs for some time.
    Count,
    /// Software branch tracing.
    Trace,
    /// Bursts in tracing versions.
    Burst,
    /// Samples by the kernel, with branch records of the hardware.
    Lbr,
    /// Samples by the kernel, of instructions alone.
    Ip,
}

impl FromStr for Source {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Ok(match text {
            "auto" => Self::Auto,
            "lbr" => Self::Lbr,
            "trace" => Self::Trace,
            "burst" => Self::Burst,
            "ip" => Self::Ip,
            "count" => Self::Count,
            _ => return Err("one of auto, lbr, trace, burst, ip, count is wanted".into()),
        })
    }
}

impl Source {
    /// What to do for this source on this machine.
    ///
    /// # Errors
    /// [`SessionError::Source`] with the reason and what to use instead.
    pub fn choose(self) -> Result<SourceChoice, SessionError> {
        let missing = |source_name, why: String| Err(SessionError::Source { source_name, why });
        let facts = Pmu::probe();
        match self {
            // An exact profile is worth more than any sampled one.
            Self::Auto | Self::Count => Ok(SourceChoice::Count),
            Self::Trace => match facts.hardware_breakpoints {
                Availability::Yes => Ok(SourceChoice::Trace),
                no => missing(
                    "software branch tracing",
                    format!("hardware breakpoints: {}; use --source count", reason(&no)),
                ),
            },
            Self::Lbr => match facts.branch_stack {
                Availability::Yes => Ok(SourceChoice::Lbr),
                no => missing(
                    "hardware branch records",
                    format!("{}; use --source trace or count", reason(&no)),
                ),
            },
            Self::Burst => Ok(SourceChoice::Burst),
            Self::Ip => Ok(SourceChoice::Ip),
        }
    }
}

/// The probe's answer without its leading "no".
fn reason(answer: &Availability) -> String {
    let text = answer.to_string();
    text.strip_prefix("no: ").map_or(text.clone(), str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_is_refused_with_an_alternative() {
        match "lbr".parse::<Source>().unwrap().choose() {
            Ok(choice) => assert_eq!(choice, SourceChoice::Lbr),
            Err(error) => {
                assert!(error.to_string().contains("--source trace"), "{error}");
                assert_eq!(error.exit_code(), restitch_pipeline::ExitCode::Refused);
            }
        }
        assert_eq!("ip".parse::<Source>().unwrap().choose().unwrap(), SourceChoice::Ip);
        assert_eq!("auto".parse::<Source>().unwrap().choose().unwrap(), SourceChoice::Count);
        assert_eq!("burst".parse::<Source>().unwrap().choose().unwrap(), SourceChoice::Burst);
        assert!("lbrs".parse::<Source>().unwrap_err().contains("burst"));
    }
}
