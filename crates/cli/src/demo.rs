//! `demo`: the built-in workload, optimized while it runs, with its throughput shown live.

use crate::progress::Progress;
use restitch_session::{
    AskedToEnd, AttachOptions, Metric, PipelineError, SessionError, Watcher, attach, heed,
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
    let child = Running(command.spawn().map_err(fail)?);
    let counter = File::open(progress_file).map_err(file)?;

    println!("A server-like program with a large code footprint is running (process {}).", child.0.id());
    AskedToEnd::pause(Duration::from_millis(500));
    let before = watch("before", &counter, seconds)?;
    println!("restitch attach {} ...", child.0.id());
    let during = Instant::now();
    let mut options = AttachOptions::new(child.0.id() as i32);
    options.measure = Duration::ZERO;
    options.metric = Some(Metric { command: format!("od -An -t u8 -N 8 {}", progress_file.display()) });
    let mut progress = Progress::new();
    progress.phase("attaching", None);
    let result = attach(&options, &mut progress)?;
    progress.finish();
    println!("  ... done in {:.1} s", during.elapsed().as_secs_f64());
    let after = watch("after", &counter, seconds)?;
    let pause = result.apply.as_ref().map_or(0.0, |a| a.pause_us);
    println!();
    println!(
        "requests per second: before {before:.0}, after {after:.0}: {:.2} times as fast",
        after / before
    );
    println!("the program stood still for {:.1} ms in all and was not restarted", pause / 1000.0);
    Ok(restitch_session::ExitCode::Done.number())
}

/// Shows the throughput every half second; the median.
fn watch(name: &str, counter: &File, seconds: f64) -> Result<f64, SessionError> {
    let mut rates = Vec::new();
    let end = Instant::now() + Duration::from_secs_f64(seconds.max(0.5));
    let (mut last, mut since) = (read(counter), Instant::now());
    while Instant::now() < end {
        AskedToEnd::pause(Duration::from_millis(500));
        heed()?;
        let (now, time) = (read(counter), Instant::now());
        let rate = (now.wrapping_sub(last)) as f64 / (time - since).as_secs_f64();
        (last, since) = (now, time);
        rates.push(rate);
        println!("  {name:<7} {rate:>10.0} requests/s  {}", "#".repeat((rate / 20_000.0).min(50.0) as usize));
    }
    rates.sort_by(f64::total_cmp);
    Ok(rates.get(rates.len() / 2).copied().unwrap_or(0.0))
}

fn read(counter: &File) -> u64 {
    let mut bytes = [0; 8];
    let _ = counter.read_at(&mut bytes, 0);
    u64::from_le_bytes(bytes)
}
