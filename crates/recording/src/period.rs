//! How far apart records and samples are, where no budget decides that.

use restitch_perf::AlarmEvent;
use restitch_processes::SessionError;
use std::str::FromStr;
use std::time::Duration;

/// What lies between the beginnings of two records, or between two samples, of one thread.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Period {
    /// So much of its processor time.
    Time(Duration),
    /// So many branches that it has taken, where the processor counts them.
    TakenBranches(u64),
}

/// Shorter ones leave a thread no time to run; longer ones are no sampling.
const TIMES: (f64, f64) = (20e-6, 100.0);
const BRANCHES: (f64, f64) = (5e3, 1e11);

impl FromStr for Period {
    type Err = String;

    /// A time (`500us`, `5ms`, `1s`), or a number of taken branches (`500000`, `500k`, `2M`).
    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = || {
            "a time (500us, 5ms; 20us to 100s) or a number of taken branches (500k, 2M; 5k at least) is wanted".to_owned()
        };
        let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(digits);
        let number: f64 = number.parse().map_err(|_| wanted())?;
        let within = |value: f64, (least, most): (f64, f64)| (least..=most).contains(&value).then_some(value);
        let time =
            |seconds: f64| within(number * seconds, TIMES).map(|t| Self::Time(Duration::from_secs_f64(t)));
        let branches = |many: f64| within(number * many, BRANCHES).map(|n| Self::TakenBranches(n as u64));
        match unit {
            "us" => time(1e-6),
            "ms" => time(1e-3),
            "s" => time(1.0),
            "" => branches(1.0),
            "k" => branches(1e3),
            "M" => branches(1e6),
            _ => None,
        }
        .ok_or_else(wanted)
    }
}

impl Period {
    /// The event of alarms, and the period in these events.
    ///
    /// # Errors
    /// If taken branches are not counted here.
    pub fn alarm(self) -> Result<(AlarmEvent, u64), SessionError> {
        match self {
            Self::Time(time) => Ok((AlarmEvent::TaskClock, time.as_nanos() as u64)),
            Self::TakenBranches(number) => match AlarmEvent::best() {
                event @ AlarmEvent::TakenBranches { .. } => Ok((event, number)),
                _ => Err(not_counted("this machine")),
            },
        }
    }

    /// The time, for sources whose alarms come by that.
    ///
    /// # Errors
    /// If it is a number of branches.
    pub fn time(self) -> Result<Duration, SessionError> {
        match self {
            Self::Time(time) => Ok(time),
            Self::TakenBranches(_) => Err(not_counted("this source")),
        }
    }
}

fn not_counted(who: &str) -> SessionError {
    SessionError::Source {
        source_name: "alarms by numbers of taken branches",
        why: format!("{who} does not count them; give a time, such as --period 5ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_times_or_numbers_of_branches() {
        let time = |us| Ok(Period::Time(Duration::from_micros(us)));
        let read = |text: &str| text.parse::<Period>();
        assert_eq!((read("500us"), read("5ms"), read("1.5s")), (time(500), time(5000), time(1_500_000)));
        let branches = |n| Ok(Period::TakenBranches(n));
        assert_eq!(
            (read("500000"), read("500k"), read("2M")),
            (branches(500_000), branches(500_000), branches(2_000_000))
        );
        for text in [
            "",
            "ms",
            "5m",
            "5 ms",
            "1us",
            "1000s",
            "0",
            "1",
            "-5ms",
            "1e9",
            "NaN",
            "0x10",
            "5.5.5ms",
            "99999999999999M",
        ] {
            assert!(read(text).is_err_and(|why| why.contains("5ms")), "{text}");
        }
    }

    #[test]
    fn who_counts_no_branches_is_told_to_give_a_time() {
        assert_eq!(
            Period::Time(Duration::from_millis(5)).alarm().unwrap(),
            (AlarmEvent::TaskClock, 5_000_000)
        );
        let error = Period::TakenBranches(10_000).time().unwrap_err();
        assert!(error.to_string().contains("--period 5ms"), "{error}");
        assert_eq!(error.exit_code(), restitch_pipeline::ExitCode::Refused);
    }
}
