//! One function a command: from arguments to a session and from its result to text.

use crate::args::{Args, Command, Instrument, Optimize, Record};
use crate::attach_args::Attach;
use crate::batch::{batch_command, cache_command};
use crate::child::{child, exit_status};
use crate::demo;
use crate::keeper::{Keeper, keep};
use crate::kernel::kernel_command;
use crate::lab::lab_command;
use crate::outputs::{Outputs, ended_early, failed_target, or_no_profile, or_say_why};
use crate::progress::Progress;
use crate::remedy::to_allow_more;
use crate::switch::Switch;
use restitch_report::{RunResult, Target, bytes, count, counted, paragraph, visible_line};
use restitch_session::{
    AskedToEnd, ContinuousOptions, ExitCode, GivenBack, InstrumentOptions, NotStarted, OptimizeOptions,
    OwnChild, ProcessStatus, RecordOptions, RecordSubject, SessionError, TraceSubject, VersionStatus,
    analyze_file, attach, begin_start, calls_cut_short, continuous, doctor, instrument, kept_for_cores,
    optimize, or_interrupted, record, revert, sees_roots, shows_own_namespace, status,
};
use std::ffi::OsString;
use std::path::Path;
use std::time::{Duration, Instant};

/// Runs a command; the exit code.
pub fn run(args: Args) -> Result<i32, SessionError> {
    if args.command.names_processes() && !shows_own_namespace() {
        return Err(SessionError::OtherNamespace);
    }
    let changes_processes = args.command.changes_processes();
    if !changes_processes && !args.command.is_kernels() {
        return run_command_line(args);
    }
    let asked = AskedToEnd::begin();
    AskedToEnd::answer("restitch: it is ending already, as soon as the step that it is at is done");
    // The kernel needs none: it leads calls back by itself.
    let mut keeper = changes_processes.then(Keeper::start);
    let done = or_interrupted(run_command_line(args));
    if let (Some(keeper), Err(SessionError::NotGivenBack { .. })) = (&mut keeper, &done) {
        keeper.goes_on();
    }
    drop(keeper);
    // What was asked for is done, but whoever has asked it to end is to see that it heard.
    match (done, asked.end()) {
        (Ok(0), Some(signal)) => Ok(ExitCode::of_signal(signal).number()),
        (done, _) => done,
    }
}

fn run_command_line(args: Args) -> Result<i32, SessionError> {
    match args.command {
        Command::Attach { pid, options } => attach_command(pid, &options),
        Command::Run { options, warm_up, command } => run_command(&options, warm_up, &command),
        Command::Revert { pid, tree } => revert_command(pid, tree),
        Command::Status { pid } => status_command(pid),
        Command::Record(record) => record_command(record),
        Command::Instrument(instrument) => instrument_command(instrument),
        Command::Optimize(optimize) => optimize_command(optimize),
        Command::Batch(options) => batch_command(options),
        Command::Cache(command) => cache_command(&command),
        Command::Lab(options) => lab_command(options),
        Command::Analyze { file } => analyze_command(&file),
        Command::Profile(command) => crate::profile_commands::run(command),
        Command::Doctor => doctor_command(),
        Command::Kernel(command) => kernel_command(command),
        Command::Demo { seconds } => demo::run(seconds),
        Command::Pages { folder } => crate::pages::write(&folder),
        Command::Keep { working } => keep(working),
        Command::DemoWorkload { .. } => Ok(ExitCode::Usage.number()),
    }
}

fn attach_command(pid: i32, options: &Attach) -> Result<i32, SessionError> {
    let outputs = outputs_of(options);
    outputs.check()?;
    let mut progress = Progress::new();
    let program = restitch_session::executable_path(pid).unwrap_or_default();
    let target = failed_target(program.display().to_string(), Some(pid));
    if options.continuous {
        return continuous_command(pid, options, target, progress);
    }
    let result = or_say_why("attach", target, options.json.as_deref(), || {
        attach(&options.options(pid), &mut progress)
    })?;
    progress.finish();
    Ok(outputs.publish(&result))
}

fn outputs_of(options: &Attach) -> Outputs<'_> {
    Outputs { json: options.json.as_deref(), html: options.html.as_deref(), written: None }
}

/// Goes on until there is nothing more to do. A result is published after each round; in the end, files are
/// written once more.
fn continuous_command(
    pid: i32,
    options: &Attach,
    target: Target,
    mut progress: Progress,
) -> Result<i32, SessionError> {
    let outputs = outputs_of(options);
    let what = ContinuousOptions {
        attach: options.options(pid),
        rest: Duration::from_secs_f64(options.rest),
        frequency: options.watch_rate,
    };
    let (mut is_said, mut is_written) = (false, true);
    let mut tell = |result: &RunResult| match &result.continuous {
        Some(all) if all.ended.is_some() => {
            is_written = outputs.publish_beside(result);
            all.rows().iter().for_each(|(label, words)| eprintln!("restitch: {label}: {words}"));
        }
        _ => outputs.publish_between(result, &mut is_said),
    };
    let result = or_say_why("attach", target, outputs.json, || {
        continuous(&what, &|| AskedToEnd::signal().is_some(), &mut tell, &mut progress)
    })?;
    progress.finish();
    Ok(match result.exit_code {
        0 if !is_written => ExitCode::Failure.number(),
        code => code,
    })
}

/// It is looked so often whether a command has ended while it warms up.
const LOOK: Duration = Duration::from_millis(50);

fn run_command(options: &Attach, warm_up: f64, command: &[OsString]) -> Result<i32, SessionError> {
    let name = command.first().map(|c| c.to_string_lossy().into_owned()).unwrap_or_default();
    let fail = |e: std::io::Error| SessionError::Command { command: name.clone(), why: e.into() };
    let mut starting = child(command);
    begin_start()?;
    let started = OwnChild::spawn(&mut starting);
    let mut started = started.map_err(|e| NotStarted::new(starting.get_program(), e))?;
    AskedToEnd::stand_for(started.pid());
    let warm = Instant::now() + Duration::from_secs_f64(warm_up);
    let ended = loop {
        let ended = started.has_ended().map_err(fail)?;
        let left = warm.saturating_duration_since(Instant::now());
        if ended || left.is_zero() {
            break ended;
        }
        std::thread::sleep(left.min(LOOK));
    };
    if !ended {
        // The program goes on in any case: what went wrong with it is said, and its exit code is what counts.
        match attach_command(started.pid(), options) {
            Err(error) if error.exit_code() == ExitCode::Vanished => tell_short(&name),
            Err(error) => eprintln!("restitch: {error}"),
            Ok(_) => {}
        }
    } else {
        tell_short(&name);
    }
    let status = started.wait().map_err(fail)?;
    Ok(exit_status(status))
}

/// That a program was too short to be optimized while it runs.
fn tell_short(name: &str) {
    eprintln!(
        "restitch: {name} ended before it could be optimized; `restitch record -- {name}` profiles short programs"
    );
}

fn record_command(args: Record) -> Result<i32, SessionError> {
    let outputs =
        Outputs { json: args.json.as_deref(), html: args.html.as_deref(), written: Some(&args.output) };
    outputs.check()?;
    let is_command = args.pid.is_none() && args.from_counts.is_empty();
    let publish = |result: &RunResult, code: i32| match outputs.publish_beside(result) {
        // That of a command says more.
        false if code == ExitCode::Done.number() && !is_command => ExitCode::Failure.number(),
        _ => code,
    };
    let recorded =
        |depth: u16| crate::profile_commands::recorded(args.output.clone(), args.format, depth.min(1024));
    // What a perf with the usual settings shows in full, and not too many stacks a record.
    let profile = recorded(args.depth.unwrap_or(64));
    if let Some(done) = args.source.record(traced_subject(&args), args.depth, profile, publish) {
        return or_no_profile(done, &args.output);
    }
    let profile = recorded(args.depth.unwrap_or(32));
    let options = RecordOptions { subject: counted_subject(&args), output: profile };
    or_no_profile(record_by_counting(options, publish), &args.output)
}

/// What is recorded, where the source is none that counts.
fn traced_subject(args: &Record) -> TraceSubject {
    let duration = Duration::from_secs_f64(args.duration);
    match args.pid {
        Some(pid) if args.tree => TraceSubject::Tree(pid, duration),
        Some(pid) => TraceSubject::Process(pid, duration),
        None => TraceSubject::Command(child(&args.command)),
    }
}

/// What is recorded by counting.
fn counted_subject(args: &Record) -> RecordSubject {
    let duration = Duration::from_secs_f64(args.duration);
    match args.pid {
        Some(pid) => RecordSubject::Process { pid, tree: args.tree, duration },
        None if !args.from_counts.is_empty() => RecordSubject::Counts(args.from_counts.clone()),
        None => RecordSubject::Command { command: child(&args.command), only: args.program.clone() },
    }
}

/// Records by counting.
fn record_by_counting(
    options: RecordOptions,
    publish: impl FnOnce(&RunResult, i32) -> i32,
) -> Result<i32, SessionError> {
    let output = options.output.path.clone();
    let mut progress = Progress::new();
    let (mut result, status) = record(options, &mut progress)?;
    progress.finish();
    let code = ended_early(&mut result, status);
    eprint!("{}", result.to_text());
    eprintln!("restitch: profile written to {}", output.display());
    Ok(publish(&result, code))
}

fn instrument_command(args: Instrument) -> Result<i32, SessionError> {
    let Instrument { program, output, counts, json } = args;
    let outputs = Outputs { json: json.as_deref(), written: Some(&output), html: None };
    outputs.check()?;
    let mut progress = Progress::new();
    let options = InstrumentOptions { program, output: output.clone(), counts };
    let result = instrument(&options, &mut progress)?;
    progress.finish();
    Ok(outputs.publish(&result))
}

fn optimize_command(args: Optimize) -> Result<i32, SessionError> {
    let Optimize { program, profile, output, version, pointers, json } = args;
    let outputs = Outputs { json: json.as_deref(), written: Some(&output), html: None };
    outputs.check()?;
    let (version, pointers) = (version.options(), pointers == Switch::On);
    let options = OptimizeOptions { program, profile, output: output.clone(), version, pointers };
    let mut progress = Progress::new();
    let target = failed_target(options.program.display().to_string(), None);
    let result = or_say_why("optimize", target, json.as_deref(), || optimize(&options, &mut progress))?;
    progress.finish();
    Ok(outputs.publish(&result))
}

fn revert_command(pid: i32, tree: bool) -> Result<i32, SessionError> {
    let reverted = revert(pid, tree)?;
    for (pid, what) in &reverted.processes {
        match what {
            GivenBack::Done(report) => println!(
                "process {pid} has its original code again: {} restored, {} moved, pause {} us",
                counted(report.restored as u64, "place"),
                counted(report.moved_threads as u64, "thread"),
                report.pause_us
            ),
            GivenBack::NothingThere => {
                println!("process {pid} has its original code: nothing of restitch is in it")
            }
            GivenBack::Failed(error) => {
                println!("process {pid} could not be given its original code back");
                eprintln!("restitch: {error}");
            }
        }
    }
    for kept in &reverted.kept {
        println!("{kept}; run `restitch revert {}` again later", kept.pid);
    }
    if let Some(told) = calls_cut_short() {
        println!("{told}");
    }
    Ok(reverted.exit_code().number())
}

fn status_command(pid: Option<i32>) -> Result<i32, SessionError> {
    let list = status(pid)?;
    let sees_roots = sees_roots()?;
    if list.is_empty() {
        println!("{}", none_of_own(sees_roots));
    }
    for process in &list {
        print_status(process);
        if is_original(process) && !sees_roots {
            println!("  (if root has optimized it: `sudo restitch status {}`)", process.pid);
        }
    }
    let kept = kept_for_cores()?;
    if pid.is_none() && kept.versions > 0 {
        println!(
            "for core files: {} of ended processes, {}, in {}, for a week each",
            counted(kept.versions as u64, "version"),
            bytes(kept.bytes),
            kept.folder.display()
        );
    }
    Ok(ExitCode::Done.number())
}

/// There is no process in the user's state directory; those of others cannot be seen.
const fn none_of_own(sees_roots: bool) -> &'static str {
    if sees_roots {
        "no process that root has optimized is under restitch (`restitch attach PID` optimizes one)"
    } else {
        "no process of yours is under restitch (`sudo restitch status` shows those that root has optimized)"
    }
}

/// Nothing in it is known.
fn is_original(p: &ProcessStatus) -> bool {
    p.versions.is_empty() && p.patches == 0
}

fn print_status(p: &ProcessStatus) {
    print_versions(p);
    if p.left_replacements > 0 {
        println!(
            "  {} KiB of replacement mappings were left by a restitch that was killed, unused: `restitch revert {}`",
            p.left_replacements / 1024,
            p.pid
        );
    }
}

fn print_versions(p: &ProcessStatus) {
    if let Some(lost) = &p.lost {
        let what = match p.patches {
            0 => "cannot be looked at".into(),
            places => format!("{places} places patched, by a layout whose state files are not here"),
        };
        println!("{} {}: {what}", p.pid, p.program);
        println!("  {lost}");
        return;
    }
    if is_original(p) {
        println!("{} {}: original code", p.pid, p.program);
        return;
    }
    if p.patches == 0 && p.versions.iter().all(|version| version.is_retired) {
        println!("{} {}: original code; versions that are not used any more stay mapped", p.pid, p.program);
    } else {
        println!("{} {}: {} patched", p.pid, p.program, counted(p.patches as u64, "place"));
    }
    for VersionStatus { number, kind, module, bytes, is_retired } in &p.versions {
        let kind = format!("{kind:?}").to_lowercase();
        let retired = if *is_retired { ", retired" } else { "" };
        println!("  version {number} of {module}: {kind}, {} KiB{retired}", bytes / 1024);
    }
    if !p.gdb.is_empty() {
        println!("  for names in gdb (`gdb -p {}`):", p.pid);
        // To be copied: whole, on one line.
        p.gdb.iter().for_each(|command| print!("    {}\n", visible_line(command)));
    }
    if p.left_counting {
        println!("  left in a counting version (restitch was killed, or could not take it out):");
        println!("  `restitch revert {0}` or `restitch attach {0}`", p.pid);
    }
}

fn analyze_command(file: &Path) -> Result<i32, SessionError> {
    let facts = analyze_file(file)?;
    let m = &facts.module;
    println!("{}", m.path);
    println!("  build id        {}", m.build_id.as_deref().unwrap_or("none"));
    println!("  functions       {}", count(m.functions));
    println!("  blocks          {}", count(m.blocks));
    println!("  code            {}, {:.1} % of it movable", bytes(m.code_bytes), 100.0 * m.movable_share);
    let copied = if facts.tables.0 == 0 {
        String::new()
    } else {
        format!(", {} of them copied with the code", count(facts.tables.1 as u64))
    };
    println!("  jump tables     {}{copied}", count(facts.tables.0 as u64));
    let others = if facts.indirect_jumps == 0 { "" } else { "; these land in the original code" };
    println!("  indirect jumps  {} without a table{others}", count(facts.indirect_jumps as u64));
    for r in &m.not_movable {
        let words = format!("{}, {}: {}", counted(r.functions, "function"), bytes(r.bytes), r.reason);
        print!("{}", paragraph("  not moved       ", &words));
    }
    if facts.is_output {
        println!("  this is an output of restitch; the figures are those of its original");
    }
    Ok(ExitCode::Done.number())
}

fn doctor_command() -> Result<i32, SessionError> {
    let facts = doctor();
    for c in &facts.checks {
        let head = format!("{} {:<23}", if c.available { "yes" } else { "no " }, c.name);
        print!("{}", paragraph(&head, &c.state));
        print!("{}", paragraph("      ", c.meaning));
        print!("{}", to_allow_more(c.remedy.as_deref()));
    }
    let can = facts.can_attach();
    println!();
    println!(
        "{}",
        if can {
            "restitch attach works here."
        } else {
            "restitch attach does not work here: see the lines with \"no\"."
        }
    );
    Ok(if can { ExitCode::Done } else { ExitCode::NotPermitted }.number())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_sees_nothing_is_told_what_may_be_unseen() {
        let (user, root) = (none_of_own(false), none_of_own(true));
        assert!(user.starts_with("no process of yours") && user.contains("sudo restitch status"), "{user}");
        assert!(root.contains("root has optimized") && !root.contains("sudo"), "{root}");
    }
}
