//! `demo`: the built-in workload, optimized while it runs, with its throughput shown live.
//!
//! **What is compared**: requests per second of the workload's own processor time, by totals, so that others'
//! work on the machine counts as little as it can; and nothing is claimed where the interval reaches past 1.

use crate::progress::Progress;
use restitch_report::stats::{self, quotient, ratio_of_totals};
use restitch_report::{Better, Helped, paragraph};
use restitch_session::{
    AskedToEnd, AttachOptions, Metric, PipelineError, SessionError, Watcher, attach, cpu_time, heed,
};
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode};
use std::time::{Duration, Instant};

/// Runs the workload in this process.
pub fn workload(arguments: Vec<OsString>) -> ExitCode {
    restitch_demo_workload::run(arguments.into_iter().map(|a| a.to_string_lossy().into_owned()))
}

/// Kills the workload when the demo ends, however it ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The demo.
pub fn run(seconds: f64) -> Result<i32, SessionError> {
    let progress_file = std::env::temp_dir().join(format!("restitch-demo-{}", std::process::id()));
    let result = with_workload(&progress_file, seconds);
    let _ = std::fs::remove_file(&progress_file);
    result
}

fn with_workload(progress_file: &Path, seconds: f64) -> Result<i32, SessionError> {
    let fail =
        |e: std::io::Error| SessionError::Command { command: "the demo workload".into(), why: e.into() };
    let file = |source| PipelineError::File { operation: "opening", path: progress_file.into(), source };
    // Not through what somebody else has put there: whoever began so and was killed has left a file of ours.
    let _ = std::fs::remove_file(progress_file);
    File::create_new(progress_file).and_then(|f| f.set_len(8)).map_err(file)?;
    let exe = std::env::current_exe().map_err(fail)?;
    let mut command = Command::new(exe);
    command
        .arg("demo-workload")
        .arg("--")
        .arg("--progress")
        .arg(progress_file)
        .args(["--seconds", &(4.0 * seconds + 120.0).to_string()]);
    let mut child = Running(command.spawn().map_err(fail)?);
    let counter = File::open(progress_file).map_err(file)?;

    println!("A server-like program with a large code footprint is running (process {}).", child.0.id());
    AskedToEnd::pause(Duration::from_millis(500));
    println!("Requests per second of its processor time:");
    let mut watched = Watched { child: &mut child, counter, scale: None };
    let before = watched.during("before", seconds)?;
    println!("restitch attach {} ...", watched.child.0.id());
    let during = Instant::now();
    let mut options = AttachOptions::new(watched.child.0.id() as i32);
    options.measure = Duration::ZERO;
    options.metric = Some(Metric { command: reading(progress_file) });
    let mut progress = Progress::new();
    progress.phase("attaching", None);
    let result = attach(&options, &mut progress)?;
    progress.finish();
    println!("  ... done in {:.1} s", during.elapsed().as_secs_f64());
    let after = watched.during("after", seconds)?;
    let pause = result.apply.as_ref().map_or(0.0, |a| a.pause_us);
    println!();
    print!("{}", paragraph("", &found(&before, &after)));
    println!("the program stood still for {:.1} ms in all and was not restarted", pause / 1000.0);
    Ok(restitch_session::ExitCode::Done.number())
}

/// Requests, and the seconds of processor time that they took.
type Served = (f64, f64);

/// The workload, watched.
struct Watched<'a> {
    child: &'a mut Running,
    counter: File,
    /// Requests per second of processor time that a mark of the bars stands for.
    scale: Option<f64>,
}

impl Watched<'_> {
    /// Shows every half second how fast it is.
    ///
    /// # Errors
    /// If it has ended, or this program is asked to end.
    fn during(&mut self, name: &str, seconds: f64) -> Result<Vec<Served>, SessionError> {
        let mut all = Vec::new();
        let end = Instant::now() + Duration::from_secs_f64(seconds.max(0.5));
        let mut last = self.read();
        while Instant::now() < end {
            AskedToEnd::pause(Duration::from_millis(500));
            heed()?;
            self.still_runs()?;
            let now = self.read();
            let served = (now.0.wrapping_sub(last.0) as f64, now.1.saturating_sub(last.1).as_secs_f64());
            last = now;
            println!("{}", self.line(name, served));
            all.push(served);
        }
        Ok(all)
    }

    /// Requests so far, and the processor time.
    fn read(&self) -> (u64, Duration) {
        (read(&self.counter), cpu_time(self.child.0.id() as i32))
    }

    fn still_runs(&mut self) -> Result<(), SessionError> {
        let ended = self.child.0.try_wait().ok().flatten();
        ended.map_or(Ok(()), |status| {
            let why = format!("it ended too early, with {status}; try again with fewer --seconds");
            Err(SessionError::Command { command: "the demo workload".into(), why: why.into() })
        })
    }

    /// A half second, with a bar; those before are about half as long as there is room for.
    fn line(&mut self, name: &str, served: Served) -> String {
        const ROOM: f64 = 54.0;
        let (requests, cpu) = served;
        let rate = requests / cpu;
        if requests == 0.0 || !rate.is_finite() {
            return format!("  {name:<7} {:>10}  it had no processor", "-");
        }
        let scale = *self.scale.get_or_insert(rate / (ROOM / 2.0));
        format!("  {name:<7} {rate:>10.0}  {}", "#".repeat((rate / scale).round().min(ROOM) as usize))
    }
}

/// The command for a shell that prints the requests so far, which `progress` holds.
fn reading(progress: &Path) -> String {
    format!("od -An -t u8 -N 8 '{}'", progress.to_string_lossy().replace('\'', r"'\''"))
}

/// What came of it, in words.
fn found(before: &[Served], after: &[Served]) -> String {
    let Some((ratio, interval)) = ratio_of_totals(before, after, stats::CONFIDENCE) else {
        return "the program hardly had a processor, so nothing can be compared; try again on a quieter machine"
            .into();
    };
    let (was, is) = (quotient(before.iter()), quotient(after.iter()));
    let range = format!("{ratio:.2} ({:.2} to {:.2})", interval.low, interval.high);
    let verdict = match stats::helped(&interval, Better::Higher) {
        Helped::Yes => format!("{ratio:.2} times as fast ({:.2} to {:.2})", interval.low, interval.high),
        Helped::No => format!("slower here: {range}"),
        Helped::Unclear if before.len().min(after.len()) < stats::LEAST => {
            format!("{range}; that is too short a time to claim it; try again with more --seconds")
        }
        Helped::Unclear => {
            format!(
                "no difference could be shown: {range}; try again on a quieter machine, or with more --seconds"
            )
        }
    };
    format!("requests per second of processor time: before {was:.0}, after {is:.0}: {verdict}")
}

fn read(counter: &File) -> u64 {
    let mut bytes = [0; 8];
    let _ = counter.read_at(&mut bytes, 0);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read_whatever_the_folder_s_name() {
        let folder = restitch_testkit::scratch();
        let progress = folder.path().join("it's $HOME; a");
        std::fs::write(&progress, 7u64.to_le_bytes()).expect("writable");
        let read = Command::new("sh").args(["-c", &reading(&progress)]).output().expect("it starts");
        assert_eq!(String::from_utf8_lossy(&read.stdout).trim(), "7", "{read:?}");
    }

    #[test]
    fn only_what_is_beyond_noise_is_called_faster() {
        let served = |rates: &[f64]| rates.iter().map(|rate| (rate * 0.4, 0.4)).collect::<Vec<Served>>();
        let (before, after) = (served(&[100e3, 101e3, 99e3, 100e3]), served(&[149e3, 150e3, 151e3, 150e3]));
        assert!(found(&before, &after).contains("before 100000, after 150000: 1.50 times as fast (1.4"));
        assert!(found(&after, &before).contains("slower here: 0.67 ("));
        // On a machine where it got next to nothing: much work at once, and none.
        let noise = [(0.0, 0.1), (19326.0, 0.1), (0.0, 0.1), (500.0, 0.1), (0.0, 0.0)];
        let later = [(0.0, 0.2), (106782.0, 0.3), (0.0, 0.1), (900.0, 0.1), (0.0, 0.1)];
        let few = found(&before[..2], &after[..2]);
        assert!(
            few.contains("1.49 (") && few.contains("too short") && !few.contains("no difference"),
            "{few}"
        );
        for (before, after) in [(&noise[..], &later[..]), (&before, &before)] {
            let told = found(before, after);
            assert!(
                told.contains("no difference could be shown") && !told.contains("times as fast"),
                "{told}"
            );
        }
        assert!(found(&[(0.0, 0.0)], &after).contains("nothing can be compared"));
    }

    #[test]
    fn lines_fit_into_eighty_columns_however_fast_it_is() {
        let child = Command::new("true").spawn().expect("it starts");
        let counter = File::open("/dev/null").expect("it opens");
        let mut running = Running(child);
        let mut watched = Watched { child: &mut running, counter, scale: None };
        assert_eq!(watched.line("before", (50e3, 0.5)).matches('#').count(), 27);
        assert_eq!(watched.line("after", (1e9, 0.5)).len(), 76);
        assert!(watched.line("after", (0.0, 0.5)).ends_with("no processor"));
    }
}
