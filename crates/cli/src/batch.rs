//! `restitch batch` and `restitch cache`: arguments, and what is printed.

use crate::child::child;
use crate::layout_names::LayoutNames;
use crate::outputs::check_outputs;
use crate::switch::Switch;
use clap::{Args, Subcommand};
use restitch_batch::cache::{Cache, Entry, MOST_BYTES, check_export};
use restitch_batch::config::Config;
use restitch_batch::{
    BatchOptions, BatchReport, Finish, Making, Optimized, Outcome, Verdict, batch, is_busy, optimize_pending,
};
use restitch_report::{counted, paragraph, visible_line};
use restitch_session::{
    ExitCode, LayoutChoice, PipelineError, SessionError, Watcher, layout_choice, write_result,
};
use std::collections::BTreeSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Arguments of `batch`.
#[derive(Debug, Args)]
pub struct Batch {
    /// Count only runs of programs of this name (or path), and the libraries that they use. What is in the
    /// cache already is used by others as well. May be given several times.
    #[arg(long, value_name = "NAME")]
    program: Vec<String>,
    /// Never optimize the program or library of this name (or path). May be given several times.
    #[arg(long, value_name = "NAME")]
    exclude: Vec<String>,
    /// Optimize whatever runs twice, whether it seems worth it or not.
    #[arg(long)]
    eager: bool,
    /// A configuration file. Otherwise restitch.toml in the current folder, if it is there, but for what it
    /// says of a cache; docs/batch.md describes it.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// The cache. Otherwise the one that the configuration names, $RESTITCH_CACHE_DIR,
    /// $XDG_CACHE_HOME/restitch or ~/.cache/restitch.
    #[arg(long, value_name = "FOLDER")]
    cache: Option<PathBuf>,
    /// Largest size of the cache in MiB (2048). What other builds have replaced goes first, then what was
    /// used longest ago.
    #[arg(long, value_name = "MIB")]
    cache_size: Option<u64>,
    /// How to lay out; docs/layout.md describes each way.
    #[arg(long, value_name = "NAME", value_parser = LayoutNames)]
    layout: Option<LayoutChoice>,
    /// Who does what is left when the command ends (profiles without a layout, modules that are worth it): a
    /// process in the background, `batch` before it ends, or the next batch.
    #[arg(long, value_name = "WHEN", default_value = "background")]
    finish: When,
    /// Count exactly so many runs of each module, instead of as many as are useful.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    profile_runs: Option<u64>,
    /// Where no gain is seen, let each eighth process, chosen by chance, run the original code, and compare.
    /// What is slower for certain is taken back.
    #[arg(long, value_name = "WHETHER", default_value = "on")]
    trials: Switch,
    /// Copy the agent and all optimized code into this folder in the end, for an image or another machine.
    #[arg(long, value_name = "FOLDER")]
    export: Option<PathBuf>,
    /// Write the result as JSON ("-" for standard output).
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
    /// Print nothing but errors.
    #[arg(long)]
    quiet: bool,
    /// The command, for example `make -j8`.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// When what was profiled is laid out.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum When {
    Background,
    Wait,
    Later,
}

/// What to do with the cache of `batch`.
#[derive(Debug, Subcommand)]
pub enum CacheCommand {
    /// List the modules in the cache: optimized, or being counted.
    List {
        #[command(flatten)]
        cache: CacheArgument,
    },
    /// Do what a command was too short for: lay out what was profiled, and begin with what is worth it.
    Optimize {
        #[command(flatten)]
        cache: CacheArgument,
        /// How to lay out; docs/layout.md describes each way.
        #[arg(long, value_name = "NAME", value_parser = LayoutNames)]
        layout: Option<LayoutChoice>,
        /// At the lowest priority, with what other processes leave.
        #[arg(long)]
        background: bool,
    },
    /// Remove what other builds have replaced and what was used longest ago, until it is small enough; or
    /// modules by name.
    Prune {
        #[command(flatten)]
        cache: CacheArgument,
        /// Largest size in MiB; 0 removes everything.
        #[arg(long, value_name = "MIB", default_value_t = MOST_BYTES >> 20, conflicts_with = "modules")]
        size: u64,
        /// Names or paths of programs and libraries: only these are removed, and they are profiled anew.
        #[arg(value_name = "MODULE")]
        modules: Vec<String>,
    },
    /// Compare the cache with the programs on disk; what is damaged is removed (exit code 3 then).
    Verify {
        #[command(flatten)]
        cache: CacheArgument,
    },
}

#[derive(Debug, Args)]
pub struct CacheArgument {
    /// The cache. Otherwise the one that the --config file names, $RESTITCH_CACHE_DIR,
    /// $XDG_CACHE_HOME/restitch or ~/.cache/restitch.
    #[arg(long = "cache", value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// A configuration file of `batch`, which may name the cache.
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

/// Lines on standard error, which the command has, too: no bars.
struct Lines {
    quiet: bool,
}

impl Watcher for Lines {
    fn phase(&mut self, _name: &str, _seconds: Option<f64>) {}
    fn note(&mut self, text: &str) {
        if !self.quiet {
            eprintln!("restitch: {text}");
        }
    }
}

/// Runs `batch`; the command's exit status.
pub fn batch_command(options: Batch) -> Result<i32, SessionError> {
    check_outputs(&[options.json.as_deref()])?;
    options.export.as_deref().map_or(Ok(()), check_export)?;
    let config = Config::read(options.config.as_deref(), |text| eprintln!("restitch: {text}"))?;
    let named = config.layout.map(|name| layout_choice(&name)).transpose();
    let layout = named.map_err(|e| SessionError::Command { command: "batch".into(), why: e.into() })?;
    let layout = options.layout.or(layout);
    let either = |given: Vec<String>, configured| if given.is_empty() { configured } else { given };
    let wanted = BatchOptions {
        command: child(&options.command),
        only: either(options.program, config.programs),
        exclude: [options.exclude, config.exclude].concat(),
        eager: options.eager,
        trials: options.trials == Switch::On && config.trials,
        cache: options.cache.or(config.cache),
        making: Making {
            layout: layout.unwrap_or_default(),
            lay_out_again: layout.is_some(),
            runs: options.profile_runs,
            finish: match options.finish {
                When::Background => Finish::Background,
                When::Wait => Finish::Wait,
                When::Later => Finish::Later,
            },
        },
        export: options.export,
        cache_size: options.cache_size.or(config.cache_size).map_or(MOST_BYTES, bytes_of),
    };
    let report = batch(wanted, &mut Lines { quiet: options.quiet })?;
    if !options.quiet {
        eprint!("{}", text(&report));
    }
    if let Some(path) = &options.json {
        let json = report.to_json();
        if path.as_os_str() == "-" {
            print_json!(&json);
        } else if let Err(error) = write_result(path, json.as_bytes(), 0o644) {
            eprintln!("restitch: {error}");
        }
    }
    Ok(report.status)
}

/// Of so many MiB; as many as there can be, if that is too much.
fn bytes_of(mib: u64) -> u64 {
    mib.saturating_mul(1 << 20)
}

fn text(report: &BatchReport) -> String {
    let words = format!(
        "{:.1} s, exit status {}; {:.1} s of processor time spent on optimizing, {:.1} s of the command's on samples",
        report.command_seconds, report.status, report.own_seconds, report.sampling_seconds
    );
    let mut out = paragraph("restitch: ", &words);
    for o in &report.optimized {
        out.push_str(&optimized(o));
    }
    for l in &report.left {
        let words = format!(
            "{} ({:.1} s in {}): {}",
            visible_line(&l.path.to_string_lossy()),
            l.seconds,
            counted(l.runs, "run"),
            visible_line(&l.why)
        );
        out.push_str(&paragraph("  left alone: ", &words));
    }
    if report.lost_records > 0 {
        let words = format!("{} of the kernel's records were lost: times are too low", report.lost_records);
        out.push_str(&paragraph("  ", &words));
    }
    if report.goes_on {
        out.push_str("  a process in the background does what the command was too short for\n");
    }
    if let Some(count) = report.exported {
        out.push_str(&format!("  exported: {}\n", counted(count as u64, "optimized module")));
    }
    out
}

fn optimized(o: &Optimized) -> String {
    let words = format!(
        "{}{}: {}",
        visible_line(&o.path.to_string_lossy()),
        if o.replaced { " (until another build replaced it)" } else { "" },
        state(o)
    );
    let mut out = paragraph("  ", &words);
    let kinds = [
        ("original", &o.original),
        ("counting", &o.counting),
        ("optimized", &o.optimized),
        ("held out", &o.held_out),
    ];
    for (name, runs) in kinds.into_iter().filter(|(_, r)| r.runs > 0) {
        out.push_str(&format!(
            "    {name:>9}: {}, {:.1} s of user code, {:.3} s a run\n",
            counted(runs.runs, "run"),
            runs.seconds,
            runs.seconds / runs.runs as f64
        ));
    }
    if let (Some(saved), Some(within)) = (o.saved_seconds_per_run, o.saved_within) {
        let (kind, words) = gain(o, saved, within);
        out.push_str(&paragraph(&format!("    {kind}: "), &(words + &break_even(o))));
    }
    out
}

/// How far a module has come.
fn state(o: &Optimized) -> String {
    match (o.in_force, o.new) {
        (false, _) => format!("profiled in {}, not laid out yet", counted(o.profiled_runs, "run")),
        (true, true) => format!("optimized in this session, from {}", counted(o.profiled_runs, "run")),
        (true, false) => "optimized before".into(),
    }
}

/// What a run takes less, or more: `saved` seconds, give or take `within`. What that is called, and figures.
fn gain(o: &Optimized, saved: f64, within: f64) -> (&'static str, String) {
    let before = o.original_seconds_per_run;
    let (share, share_within) = (100.0 * saved / before, 100.0 * within / before);
    let kind = match (o.is_told_apart(), saved > 0.0) {
        (true, true) => "saved",
        (true, false) => "slower, by",
        (false, _) => "no difference that could be told",
    };
    let seconds = saved * if saved < 0.0 && o.is_told_apart() { -1.0 } else { 1.0 };
    let words = format!(
        "{seconds:.4} s a run (+- {within:.4}; {:.1} % +- {share_within:.1}), {}",
        share.abs().copysign(seconds),
        if o.by_trial {
            "kernel included, against runs held out beside them"
        } else {
            "if the runs did alike work"
        }
    );
    (kind, words)
}

/// After how many runs the time that optimizing took is saved again, if that is known.
fn break_even(o: &Optimized) -> String {
    let Some(n) = o.breaks_even_after else { return String::new() };
    let tense = if n <= o.optimized_runs_in_all { "were" } else { "will be" };
    format!("; {:.1} s of optimizing {tense} saved after {}", o.cost_seconds, counted(n, "run"))
}

/// Runs `cache`.
pub fn cache_command(command: &CacheCommand) -> Result<i32, SessionError> {
    let (CacheCommand::List { cache }
    | CacheCommand::Optimize { cache, .. }
    | CacheCommand::Prune { cache, .. }
    | CacheCommand::Verify { cache }) = command;
    if let (CacheCommand::Optimize { background: true, .. }, Some(folder)) = (command, &cache.folder)
        && !folder.exists()
    {
        // It was removed before its session's last words were read.
        return Ok(ExitCode::Done.number());
    }
    // A configuration that nobody has named says nothing of caches.
    let named = cache.config.as_deref().map(|file| Config::read(Some(file), |_| {})).transpose()?;
    let configured = named.and_then(|config| config.cache);
    let folder = cache.folder.as_deref().or(configured.as_deref());
    if let Some(absent) = folder.filter(|folder| !folder.exists()) {
        let why =
            "there is no cache here; name another one with --cache (`restitch batch` makes them)".into();
        return Err(PipelineError::BadFile { path: absent.into(), why }.into());
    }
    let cache = Cache::open(folder)?;
    match command {
        CacheCommand::List { .. } => list(&cache),
        CacheCommand::Optimize { layout, background, .. } => optimize(&cache, *layout, *background),
        CacheCommand::Prune { modules, .. } if !modules.is_empty() => forget(&cache, modules)?,
        CacheCommand::Prune { size, .. } => prune(&cache, *size)?,
        CacheCommand::Verify { .. } => return Ok(verify(&cache).number()),
    }
    Ok(ExitCode::Done.number())
}

fn list(cache: &Cache) {
    let (entries, counting) = (cache.entries(), cache.counting());
    list_profiled(cache, &entries);
    for c in &counting {
        print!("{}", listed(&c.path, ": is being counted", c.bytes, &c.build_id));
    }
    let bytes = entries.iter().map(|e| cache.size(e)).chain(counting.iter().map(|c| c.bytes)).sum::<u64>();
    let modules: BTreeSet<&String> =
        entries.iter().map(|e| &e.build_id).chain(counting.iter().map(|c| &c.build_id)).collect();
    let modules = counted(modules.len() as u64, "module");
    println!("{modules}, {:.1} MiB", mebibytes(bytes));
}

/// A module of the cache: what it is, and below that how large, and of which build.
fn listed(path: &Path, state: &str, bytes: u64, build_id: &str) -> String {
    let words = format!("{}{state}", visible_line(&path.to_string_lossy()));
    let more = format!("{:.1} MiB, build id {build_id}", mebibytes(bytes));
    paragraph("", &words) + &paragraph("  ", &more)
}

fn mebibytes(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

/// The modules of which there is a profile.
fn list_profiled(cache: &Cache, entries: &[Entry]) {
    let replaced = cache.replaced();
    for e in entries {
        let state = match (e.layout.is_empty(), e.trial.is_lost()) {
            (true, _) => "profiled",
            (_, true) => "taken back, as its runs took longer; profiled",
            _ => "optimized",
        };
        let build = if replaced.contains(&e.build_id) { " (an older build)" } else { "" };
        let state = format!("{build}: {state} from {}", counted(e.profiled_runs, "run"));
        print!("{}", listed(&e.path, &state, cache.size(e), &e.build_id));
    }
}

fn optimize(cache: &Cache, layout: Option<LayoutChoice>, background: bool) {
    // In the background it is what a batch was told, which has seen to that itself.
    layout.iter().filter(|_| !background).for_each(|&layout| cache.want_layout(layout));
    for (path, outcome) in optimize_pending(cache, layout.unwrap_or_default(), background) {
        let said = match outcome {
            Ok(Outcome::Optimized(_)) => "optimized".into(),
            Ok(Outcome::Counting) => "its next runs count".into(),
            Err(error) if is_busy(&error) => {
                format!("{error}; `restitch cache list` says what has come of it when that session has ended")
            }
            Err(error) => error.to_string(),
        };
        println!("{}: {said}", path.display());
    }
}

/// Removes modules by name.
fn forget(cache: &Cache, modules: &[String]) -> Result<(), SessionError> {
    cache.check_writable()?;
    let (removed, unknown) = cache.forget(modules);
    println!("{} removed", counted(removed as u64, "module"));
    if !unknown.is_empty() {
        let why = format!(
            "nothing in the cache is named {}; `restitch cache list` says what is there",
            unknown.join(", ")
        );
        return Err(SessionError::nothing_to_do(why));
    }
    Ok(())
}

/// Removes modules until the cache has so many MiB.
fn prune(cache: &Cache, size: u64) -> Result<(), SessionError> {
    cache.check_writable()?;
    let (removed, known) = cache.prune(bytes_of(size));
    println!("{removed} of {} removed", counted(known as u64, "module"));
    Ok(())
}

fn verify(cache: &Cache) -> ExitCode {
    let mut code = ExitCode::Done;
    let all = cache.verify_all();
    if all.is_empty() {
        println!("the cache is empty: there is nothing to compare");
    }
    for (path, verdict) in all {
        let said = match verdict {
            Verdict::Sound => "sound".into(),
            Verdict::Orphaned => {
                "the program on disk is gone or has changed; it is made again when the new one is used".into()
            }
            Verdict::Removed(why) => {
                code = ExitCode::BadInput;
                format!("removed: {why}")
            }
        };
        println!("{}: {said}", path.display());
    }
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_size_is_too_large() {
        assert_eq!(bytes_of(2048), MOST_BYTES);
        assert_eq!(bytes_of(1 << 44), u64::MAX);
    }
}
