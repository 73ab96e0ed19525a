//! `restitch profile`: from arguments to a session and from its result to text.

use crate::profile_args::{Input, Output, ProfileCommand};
use restitch_report::paragraph;
use restitch_session::profiles::{
    Converted, Format, Holds, MergeWeights, ProfileInput, ProfileOutput, WriteOptions, compare_profiles,
    convert_profile, merge_profile_files, show_profile,
};
use restitch_session::{ExitCode, SessionError, check_writable, write_result};
use std::path::{Path, PathBuf};

/// Runs a command; the exit code.
pub fn run(command: ProfileCommand) -> Result<i32, SessionError> {
    match command {
        ProfileCommand::Convert { profile, input, output } => {
            let output = output_of(output);
            let converted = convert_profile(&input_of(profile, &input), &input.program, &output)?;
            report(&converted, &output.path);
        }
        ProfileCommand::Merge { profiles, weights, sum, input, output } => {
            let output = output_of(output);
            let weights = match (sum, weights.is_empty()) {
                (true, _) => MergeWeights::AsCounted,
                (false, true) => MergeWeights::Equal,
                (false, false) => MergeWeights::Shares(weights),
            };
            let inputs: Vec<ProfileInput> = profiles.into_iter().map(|p| input_of(p, &input)).collect();
            let merged = merge_profile_files(&inputs, &weights, &input.program, &output)?;
            report(&merged, &output.path);
        }
        ProfileCommand::Compare { profiles, input, movable, json, svg } => {
            compare(profiles, &input, movable, json.as_deref(), svg.as_deref())?;
        }
        ProfileCommand::Show { profile, input } => show(&input_of(profile, &input), &input.program)?,
        ProfileCommand::Formats => formats(),
    }
    Ok(ExitCode::Done.number())
}

/// Where `record` writes, with the format and the depth that were asked for.
pub fn recorded(path: PathBuf, format: Option<Format>, depth: u16) -> ProfileOutput {
    let options = WriteOptions { depth: usize::from(depth), ..WriteOptions::default() };
    ProfileOutput { path, format, options }
}

fn input_of(path: PathBuf, input: &Input) -> ProfileInput {
    ProfileInput { path, format: input.from, sampled: input.edges.into() }
}

fn output_of(output: Output) -> ProfileOutput {
    let options =
        WriteOptions { depth: usize::from(output.depth), records: output.records, seed: output.seed };
    ProfileOutput { path: output.output, format: output.format, options }
}

fn report(converted: &Converted, path: &Path) {
    converted.notes.iter().for_each(|note| eprintln!("restitch: {note}"));
    let format = converted.format.map_or("", Format::describe);
    println!("{}: {format}, {} bytes", path.display(), converted.bytes);
}

fn compare(
    profiles: Vec<PathBuf>,
    input: &Input,
    movable: bool,
    json: Option<&Path>,
    svg: Option<&Path>,
) -> Result<(), SessionError> {
    let is_file = |p: &&Path| p.as_os_str() != "-";
    [json.filter(is_file), svg].into_iter().flatten().try_for_each(check_writable)?;
    let inputs: Vec<ProfileInput> = profiles.into_iter().map(|p| input_of(p, input)).collect();
    let comparison = compare_profiles(&inputs, &input.program, movable)?;
    let write = |path: &Path, text: String| write_result(path, text.as_bytes(), 0o644);
    comparison.warnings.iter().for_each(|note| eprintln!("restitch: {note}"));
    let as_json =
        comparison.to_json().map_err(|e| SessionError::Command { command: "json".into(), why: e.into() })?;
    match json {
        Some(path) if path.as_os_str() == "-" => print_json!(&as_json),
        Some(path) => {
            print!("{}", comparison.to_text());
            write(path, as_json)?;
        }
        None => print!("{}", comparison.to_text()),
    }
    Ok(svg.map_or(Ok(()), |path| write(path, comparison.to_svg()))?)
}

fn show(input: &ProfileInput, programs: &[PathBuf]) -> Result<(), SessionError> {
    let facts = show_profile(input, programs)?;
    println!("{}: {}", input.path.display(), facts.format.map_or("", Format::describe));
    for symbol in facts.order.iter().take(10) {
        println!("  {symbol}");
    }
    if facts.order.len() > 10 {
        println!("  ... {} symbols in all", facts.order.len());
    }
    for module in &facts.modules {
        println!("{}", module.path);
        if !module.build_id.is_empty() {
            println!("  build id {}", module.build_id);
        }
        for (what, count) in module.content.iter().filter(|(_, n)| *n > 0) {
            println!("  {count:>20} {what}");
        }
        for (name, share) in &module.hottest {
            println!("  {:>19.1}% {name}", 100.0 * share);
        }
    }
    facts.notes.iter().for_each(|note| eprintln!("restitch: {note}"));
    Ok(())
}

fn formats() {
    println!("{:<13} {:<8} {:<8} what", "name", "read", "written");
    for format in Format::ALL {
        let read = if format.holds() == Holds::Counts { "counts" } else { "order" };
        let head = format!("{:<13} {read:<8} {:<8} ", format.name(), "yes");
        print!("{}", paragraph(&head, format.describe()));
    }
}
