//! How well a traced profile agrees with an exact one:
//! `trace_fidelity OVERHEAD-PERCENT DEPTH -p PID SECONDS`, or
//! `trace_fidelity OVERHEAD-PERCENT DEPTH -- COMMAND...`; `burst` before that takes bursts in tracing
//! versions instead. The exact profile comes from a counting version.
//!
//! Overlap is the sum over all edges (blocks) of the smaller of the two normalized weights: 1 for equal
//! profiles, as AutoFDO's profile_diff computes it.

use restitch_apply::Why;
use restitch_image::Image;
use restitch_profile::{Profile, ProfileFile};
use restitch_program::Program;
use restitch_session::profiles::{ProfileOutput, WriteOptions};
use restitch_session::{
    Bursts, Quiet, RecordOptions, RecordSubject, Recording, TraceRecordOptions, TraceSubject, Traced,
    analyze_image, record, record_bursts, record_traced,
};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

fn main() -> Result<(), Why> {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let is_burst = arguments.first().is_some_and(|first| first == "burst");
    arguments.drain(..usize::from(is_burst));
    let (overhead, depth) = (arguments[0].parse::<f64>()? / 100.0, Some(arguments[1].parse()?));
    let folder = std::env::temp_dir().join(format!("trace-fidelity-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let (traced, exact) = (folder.join("traced"), folder.join("exact"));
    let is_process = arguments[2] == "-p";
    let (pid, duration) = match is_process {
        true => (arguments[3].parse()?, Duration::from_secs_f64(arguments[4].parse()?)),
        false => (0, Duration::ZERO),
    };
    let command = || {
        let mut command = Command::new(&arguments[3]);
        command.args(&arguments[4..]);
        command
    };
    let subject = match is_process {
        true => TraceSubject::Process(pid, duration),
        false => TraceSubject::Command(command()),
    };
    let options = TraceRecordOptions {
        subject,
        how: Recording { depth, overhead, ..Recording::default() },
        output: own(&traced),
    };
    match is_burst {
        true => tell_of_bursts(&record_bursts(options, &mut Quiet)?),
        false => tell(&record_traced(options, &mut Quiet)?),
    }
    let subject = match is_process {
        true => RecordSubject::Process { pid, tree: false, duration },
        false => RecordSubject::Command { command: command(), only: Vec::new() },
    };
    record(RecordOptions { subject, output: own(&exact) }, &mut Quiet)?;
    compare(&read(&traced)?, &read(&exact)?)?;
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

fn tell(result: &Traced) {
    let r = &result.report;
    println!(
        "traced: {} branches, {:?}, overhead {:.2} % (of CPU {:.1} s), {:.1} branches a breakpoint ({:.2} without evaluation), {} confirmed, {} contradicted, {:.0} branches/s, elsewhere {}",
        r.branches,
        r.records,
        100.0 * r.overhead().unwrap_or(f64::NAN),
        r.cpu.as_secs_f64(),
        r.usefulness(),
        r.usefulness_without_evaluation(),
        r.confirmed,
        r.contradicted,
        r.branches as f64 / r.cpu.as_secs_f64(),
        result.elsewhere
    );
}

fn tell_of_bursts(result: &Bursts) {
    let r = &result.report;
    println!(
        "bursts: {} branches, {:?}, mean {:.0}, refused {:?}, overhead {:.2} % (held {:.2} %, of CPU {:.1} s), {:.0} branches/s, elsewhere {}, mapped {} KiB, ended at {:?}",
        r.branches,
        r.bursts,
        r.mean_length(),
        r.refused,
        100.0 * r.overhead().unwrap_or(f64::NAN),
        100.0 * r.held.as_secs_f64() / r.cpu.as_secs_f64(),
        r.cpu.as_secs_f64(),
        r.branches as f64 / r.cpu.as_secs_f64(),
        result.elsewhere,
        result.mapped >> 10,
        result.ended_at
    );
}

/// restitch's own format.
fn own(path: &Path) -> ProfileOutput {
    ProfileOutput { path: path.to_owned(), format: None, options: WriteOptions::default() }
}

fn read(path: &Path) -> Result<ProfileFile, Why> {
    Ok(ProfileFile::read(&std::fs::read(path)?)?)
}

/// Weights of the edges and blocks of movable code, which is what both profiles can hold.
fn weights(program: &Program, profile: &Profile) -> (Vec<f64>, Vec<f64>) {
    let edge = |(i, e): (usize, &restitch_program::Edge)| {
        if program.is_movable(e.from) { profile.edges[i] as f64 } else { 0.0 }
    };
    let edges = program.edges.iter().enumerate().map(edge).collect();
    let blocks = program
        .block_ids()
        .map(|b| if program.is_movable(b) { profile.block(b) as f64 } else { 0.0 })
        .collect();
    (edges, blocks)
}

fn overlap(a: &[f64], b: &[f64]) -> f64 {
    let (all_a, all_b): (f64, f64) = (a.iter().sum(), b.iter().sum());
    a.iter().zip(b).map(|(x, y)| (x / all_a.max(1.0)).min(y / all_b.max(1.0))).sum()
}

/// The edges with the largest differences of normalized weight.
fn show(program: &Program, traced: &[f64], exact: &[f64]) {
    let (all_t, all_e): (f64, f64) = (traced.iter().sum(), exact.iter().sum());
    let share = |i: usize| (traced[i] / all_t.max(1.0), exact[i] / all_e.max(1.0));
    let mut order: Vec<usize> = (0..traced.len()).collect();
    order.sort_by(|&a, &b| {
        let gap = |i| {
            let (t, e) = share(i);
            (t - e).abs()
        };
        gap(b).total_cmp(&gap(a))
    });
    for &i in order.iter().take(25) {
        let e = &program.edges[i];
        let name = program.function(program.block(e.from).function).name.as_deref().unwrap_or("?");
        let (t, x) = share(i);
        let ends = (program.block(e.from).terminator_at(), program.block(e.to).start);
        println!(
            "  {name} {} -> {} {:?}: traced {:.3} %, exact {:.3} %",
            ends.0,
            ends.1,
            e.kind,
            100.0 * t,
            100.0 * x
        );
    }
}

fn compare(traced: &ProfileFile, exact: &ProfileFile) -> Result<(), Why> {
    let mut sums = [const { Vec::new() }; 4];
    for module in &exact.modules {
        let path = PathBuf::from(&module.path);
        let program = analyze_image(Arc::new(Image::parse(std::fs::read(&path)?)?))?.program;
        let (e, _) = module.resolve(&program);
        let t = traced
            .module(&module.build_id)
            .map_or_else(|| Profile::empty(&program), |m| m.resolve(&program).0);
        let ((te, tb), (ee, eb)) = (weights(&program, &t), weights(&program, &e));
        println!(
            "{}: edges {:.1} %, blocks {:.1} %, exact weight {:.0}, traced {:.0}",
            path.display(),
            100.0 * overlap(&te, &ee),
            100.0 * overlap(&tb, &eb),
            ee.iter().sum::<f64>(),
            te.iter().sum::<f64>()
        );
        if std::env::var("SHOW_DIFFERENCES").is_ok() {
            show(&program, &te, &ee);
        }
        for (sum, part) in sums.iter_mut().zip([te, ee, tb, eb]) {
            sum.extend(part);
        }
    }
    let [te, ee, tb, eb] = &sums;
    println!("all: edges {:.1} %, blocks {:.1} %", 100.0 * overlap(te, ee), 100.0 * overlap(tb, eb));
    Ok(())
}
