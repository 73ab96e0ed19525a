//! Layouts on the real processor: each is made into a file, and a command is run with it and with the
//! original in turns.
//!
//! **What is compared**: user cycles and other events of the processor's counters where there are any, else
//! processor time; by medians of the ratios of runs that stand next to each other, since machines drift.
//!
//! **What has to be equal**: how each run ends, which may be by an exit code other than 0, not by a signal;
//! and standard output, unless the original's own differs from run to run. Both are said.

use crate::files::optimize;
use crate::lab_options::{LabOptions, LabRuns};
use restitch_apply::{Why, explained};
use restitch_lab::{Measured, MeasuredLayout, Ratio};
use restitch_layout::LayoutChoice;
use restitch_perf::{CounterEvent, CounterOptions, Counters, Reading, front_end_events};
use restitch_pipeline::large_pages::LargePages;
use restitch_pipeline::optimize_options::OptimizeOptions;
use restitch_pipeline::version_options::VersionOptions;
use restitch_pipeline::{PipelineError, Watcher};
use restitch_processes::SessionError;
use restitch_processes::interrupt::heed;
use restitch_recording::trace_record::{exit_status, launch_holding};
use restitch_report::stats::median_of_ratios;
use restitch_tracee::AskedToEnd;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Probability that intervals hold the true ratio, if there are rounds enough.
const CONFIDENCE: f64 = 0.95;
/// Where the file stands in the command.
const PLACE: &str = "{}";

/// Runs the layouts.
///
/// # Errors
/// If the command cannot be run, does something else with a layout's file, or is too short to be measured.
pub(crate) fn run_layouts(
    options: &LabOptions,
    runs: &LabRuns,
    watcher: &mut dyn Watcher,
) -> Result<Measured, SessionError> {
    // Whoever interrupts it does not keep its files.
    let asked = AskedToEnd::begin();
    let measured = measure(options, runs, watcher)?;
    match asked.end() {
        Some(signal) => Err(SessionError::Interrupted { signal, then: String::new() }),
        None => Ok(measured),
    }
}

/// Makes the files of the layouts, and runs them and the original in turn.
fn measure(
    options: &LabOptions,
    runs: &LabRuns,
    watcher: &mut dyn Watcher,
) -> Result<Measured, SessionError> {
    let failed = |why: Why| SessionError::Command { command: shown(&runs.command), why };
    let folder = tempfile::Builder::new().prefix("restitch-lab-").tempdir();
    let without = |e| failed(explained(format!("making a folder for the files to run: {e}"), e));
    let folder = folder.map_err(without)?;
    let mut files = Vec::new();
    for (number, choice) in options.layouts.iter().enumerate() {
        heed()?;
        watcher.phase(&format!("making the file of {choice}"), None);
        let output = folder.path().join(number.to_string());
        std::fs::create_dir(&output).map_err(|e| failed(e.into()))?;
        let output = output.join(options.program.file_name().unwrap_or(OsStr::new("program")));
        match optimize(&wanted(options, *choice, output.clone()), watcher) {
            Ok(_) => files.push((choice.to_string(), output)),
            Err(error) => watcher.note(&format!("{choice} is not run: {error}")),
        }
    }
    if files.is_empty() {
        return Err(failed("none of the layouts could be made into a file".into()));
    }
    let bench = Bench { runs, folder: folder.path(), events: front_end_events() };
    watcher.phase("running the original", None);
    let expected = bench.run(&options.program)?;
    if let Some(signal) = signal_of(expected.status) {
        let why = format!("the original ended by signal {signal}; give a command that ends by itself");
        return Err(failed(why.into()));
    }
    let original = || bench.run(&options.program).and_then(|run| bench.ended_as(&expected, run, None));
    let repeats = original()?.output == expected.output;
    if !repeats {
        watcher.note("the original's own output is another one each time, so outputs are not compared");
    }
    let mut pairs: Vec<Pairs> = files.iter().map(|_| Pairs::default()).collect();
    for round in 0..runs.rounds {
        watcher.phase(&format!("running the layouts, round {} of {}", round + 1, runs.rounds), None);
        for (number, ((name, file), pairs)) in files.iter().zip(&mut pairs).enumerate() {
            let original_first = (round + number) % 2 == 0;
            let before = original_first.then(original).transpose()?;
            let own = bench.ended_as(&expected, bench.run(file)?, Some(name))?;
            if repeats && own.output != expected.output {
                let why = format!("with the layout {name} it printed something else than with the original");
                return Err(failed(why.into()));
            }
            let beside = before.map_or_else(original, Ok)?;
            pairs.push((beside.counted, own.counted));
        }
    }
    let mut counted: Vec<CounterEvent> = expected.counted.iter().map(|reading| reading.event).collect();
    // An event that another guest took away for a while is left out.
    counted.retain(|event| pairs.iter().all(|pairs| ratio_of(pairs, *event).is_some()));
    if counted.is_empty() {
        return Err(failed("it is too short to be measured; give it more to do".into()));
    }
    let layouts = files.into_iter().zip(&pairs).map(|((name, _), pairs)| MeasuredLayout {
        name,
        ratios: counted.iter().filter_map(|event| ratio_of(pairs, *event)).collect(),
    });
    let name = |event: &CounterEvent| bench.events.iter().find(|e| e.0 == *event).map(|e| e.1.to_owned());
    Ok(Measured {
        command: shown(&runs.command),
        rounds: runs.rounds,
        warnings: warnings(expected.status),
        events: counted.iter().filter_map(name).collect(),
        layouts: layouts.collect(),
        correlation: None,
    })
}

/// What is to be known of runs that end with `status`, if anything.
fn warnings(status: i32) -> Vec<String> {
    let failing = format!(
        "the command ended with {status} in each run, the original's as well; if that is a failure, these are \
         the times of failing, and a command that succeeds is to be given"
    );
    if status == 0 { Vec::new() } else { vec![failing] }
}

/// The signal that a status, as shells give it, tells of. (Exit codes that look the same mean the same, by
/// shells' own use of them.)
fn signal_of(status: i32) -> Option<i32> {
    (129..=128 + 31).contains(&status).then_some(status - 128)
}

/// How a run ended, in words.
fn ended(status: i32) -> String {
    signal_of(status).map_or_else(|| format!("with {status}"), |signal| format!("by signal {signal}"))
}

/// Checks that the command runs the program: its first word names it, or `{}` says where the file stands.
///
/// # Errors
/// If what would be run in place of the first word is not what stands there.
pub(crate) fn check_command(program: &Path, runs: &LabRuns) -> Result<(), PipelineError> {
    let Some(first) = runs.command.first().filter(|_| !runs.command.iter().any(|word| word == PLACE)) else {
        return Ok(());
    };
    let search = std::env::var_os("PATH").unwrap_or_default();
    // A program that is missing is told by whoever opens it.
    if !program.exists() || file_named(first, &search).is_some_and(|file| is_same(&file, program)) {
        return Ok(());
    }
    let (first, program) = (first.to_string_lossy(), program.display());
    Err(PipelineError::Usage(format!(
        "the command begins with {first}, which is not {program}, so the layouts would not be run; begin it with \
         {program}, or put {PLACE} as a word of its own where the program's file is to stand"
    )))
}

/// The file that is executed for a command's first word.
fn file_named(word: &OsStr, search: &OsStr) -> Option<PathBuf> {
    if word.as_bytes().contains(&b'/') {
        return Some(PathBuf::from(word));
    }
    let is_run = |file: &PathBuf| {
        std::fs::metadata(file).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(search).map(|folder| folder.join(word)).find(is_run)
}

/// Whether both paths lead to one file.
fn is_same(one: &Path, other: &Path) -> bool {
    let file = |path: &Path| std::fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    file(one).is_some_and(|one| file(other) == Some(one))
}

/// What `optimize` does by default, with this layout.
fn wanted(options: &LabOptions, layout: LayoutChoice, output: PathBuf) -> OptimizeOptions {
    OptimizeOptions {
        program: options.program.clone(),
        profile: options.profile.clone(),
        output,
        version: VersionOptions {
            layout,
            large_pages: if options.large_pages { LargePages::On } else { LargePages::Off },
            ..VersionOptions::default()
        },
        pointers: true,
    }
}

/// What the original and a layout have counted next to each other, round for round.
type Pairs = Vec<(Vec<Reading>, Vec<Reading>)>;

fn ratio_of(pairs: &Pairs, event: CounterEvent) -> Option<Ratio> {
    let value = |counted: &[Reading]| counted.iter().find(|reading| reading.event == event)?.scaled();
    let values: Option<Vec<(f64, f64)>> =
        pairs.iter().map(|(original, own)| Some((value(original)?, value(own)?))).collect();
    let (original, own): (Vec<f64>, Vec<f64>) = values?.into_iter().unzip();
    let (median, interval) = median_of_ratios(&original, &own, CONFIDENCE)?;
    Some(Ratio { median, low: interval.low, high: interval.high, confidence: interval.confidence })
}

/// One run.
struct Run {
    status: i32,
    output: Vec<u8>,
    counted: Vec<Reading>,
}

struct Bench<'a> {
    runs: &'a LabRuns,
    folder: &'a Path,
    events: Vec<(CounterEvent, &'static str)>,
}

impl Bench<'_> {
    /// Runs the command with `file`, and counts from its program's entry point on.
    fn run(&self, file: &Path) -> Result<Run, SessionError> {
        let failed = |why: Why| SessionError::Command { command: shown(&self.runs.command), why };
        let printed = self.folder.join("output");
        let unkept = |e| failed(explained(format!("keeping its output: {e}"), e));
        let output = File::create(&printed).map_err(unkept)?;
        let mut command = command_with(&self.runs.command, file);
        // What is read again has to be a file; a terminal or pipe is read once.
        let input = std::fs::metadata("/dev/stdin").is_ok_and(|m| m.is_file());
        let input = input.then(|| File::open("/dev/stdin").ok()).flatten();
        command.stdin(input.map_or_else(Stdio::null, Stdio::from)).stdout(output);
        let events: Vec<CounterEvent> = self.events.iter().map(|event| event.0).collect();
        let (process, counters) = launch_holding(command, |process| {
            Counters::open(&[process.pid], &events, CounterOptions::default())
        })?;
        let status = exit_status(None, process)?;
        heed()?;
        if let Some(signal) = AskedToEnd::ended_command() {
            return Err(SessionError::Interrupted { signal, then: String::new() });
        }
        let counted = counters?.read()?;
        let unread = |e| failed(explained(format!("reading its output: {e}"), e));
        let output = std::fs::read(&printed).map_err(unread)?;
        Ok(Run { status, output, counted })
    }

    /// The run, of a layout or the original, if it has ended as the original did at first.
    fn ended_as(&self, expected: &Run, run: Run, layout: Option<&str>) -> Result<Run, SessionError> {
        if run.status == expected.status {
            return Ok(run);
        }
        let (own, usual) = (ended(run.status), ended(expected.status));
        let why = match layout {
            Some(name) => format!("with the layout {name} it ended {own}, and not {usual}"),
            None => format!(
                "the original ended {usual} and then {own}; give a command that ends the same way each time"
            ),
        };
        Err(SessionError::Command { command: shown(&self.runs.command), why: why.into() })
    }
}

/// The command, with `file` in its place.
fn command_with(words: &[OsString], file: &Path) -> Command {
    let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
    let Some((first, rest)) = words.split_first() else { return Command::new(file) };
    if words.iter().any(|word| word == PLACE) {
        let put = |word: &OsString| if word == PLACE { file.clone().into_os_string() } else { word.clone() };
        let mut command = Command::new(put(first));
        command.args(rest.iter().map(put));
        return command;
    }
    let mut command = Command::new(file);
    command.arg0(first).args(rest);
    command
}

fn shown(words: &[OsString]) -> String {
    words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_stands_where_it_was_asked_for() {
        let command = |words: &[&str]| {
            let words: Vec<OsString> = words.iter().map(OsString::from).collect();
            let command = command_with(&words, Path::new("/a/file"));
            let rest: Vec<String> = command.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
            (command.get_program().to_string_lossy().into_owned(), rest.join(" "))
        };
        assert_eq!(command(&["prog", "x", "y"]), ("/a/file".into(), "x y".into()));
        assert_eq!(command(&["env", "A=1", "{}", "x"]), ("env".into(), "A=1 /a/file x".into()));
        assert_eq!(command(&["{}", "x", "{}"]), ("/a/file".into(), "x /a/file".into()));
    }

    #[test]
    fn the_first_word_has_to_be_the_program() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        for name in ["prog", "other"] {
            std::fs::write(at(name), "").expect("written");
            std::fs::set_permissions(at(name), std::fs::Permissions::from_mode(0o755)).expect("set");
        }
        std::os::unix::fs::symlink(at("prog"), at("link")).expect("made");
        let check = |words: &[&OsStr]| {
            let command = words.iter().map(|word| (*word).to_owned()).collect();
            check_command(&at("prog"), &LabRuns { command, rounds: 6 })
        };
        for program in ["prog", "link"] {
            assert!(check(&[at(program).as_os_str(), OsStr::new("x")]).is_ok(), "{program}");
            let found = file_named(OsStr::new(program), folder.path().as_os_str()).expect("it is in PATH");
            assert!(is_same(&found, &at("prog")), "{program}");
        }
        for words in [&["other", "x"][..], &["missing"], &["sh", "-c", "prog {}"]] {
            let first = if words[0] == "sh" { PathBuf::from("sh") } else { at(words[0]) };
            let words: Vec<&OsStr> =
                [first.as_os_str()].into_iter().chain(words[1..].iter().map(OsStr::new)).collect();
            let refused = check(&words).expect_err("it is another").to_string();
            assert!(refused.contains("begins with") && refused.contains("put {}"), "{refused}");
        }
        assert!(check(&[OsStr::new("sh"), OsStr::new("{}")]).is_ok());
        assert!(check(&[]).is_ok());
    }

    #[test]
    fn ends_are_told_by_signals_and_codes() {
        assert_eq!((ended(139).as_str(), ended(3).as_str()), ("by signal 11", "with 3"));
        assert_eq!((ended(255).as_str(), signal_of(128)), ("with 255", None));
        assert!(warnings(0).is_empty() && warnings(1)[0].contains("ended with 1 in each run"));
    }

    #[test]
    fn what_was_not_counted_in_every_run_has_no_ratio() {
        let reading = |value, running| Reading { event: CounterEvent::Cycles, value, enabled: 10, running };
        let pairs = |runs: &[(u64, u64)]| -> Pairs {
            runs.iter().map(|&(a, b)| (vec![reading(a, 10)], vec![reading(b, 10)])).collect()
        };
        let ratio = ratio_of(&pairs(&[(100, 90), (200, 160), (100, 85)]), CounterEvent::Cycles).unwrap();
        assert!((ratio.median - 0.85).abs() < 1e-12 && (ratio.low - 0.8).abs() < 1e-12, "{ratio:?}");
        assert_eq!(ratio_of(&pairs(&[(100, 90)]), CounterEvent::TaskClock), None);
        assert_eq!(ratio_of(&pairs(&[(100, 90), (0, 1)]), CounterEvent::Cycles), None, "nothing was counted");
        let taken_away = vec![(vec![reading(100, 0)], vec![reading(90, 10)])];
        assert_eq!(ratio_of(&taken_away, CounterEvent::Cycles), None);
    }
}
