//! The laboratory's command.

use crate::args::Lab;
use crate::outputs::check_outputs;
use crate::progress::Progress;
use crate::switch::Switch;
use restitch_apply::Why;
use restitch_lab::{comparison_svg, occupancy_svg};
use restitch_report::paragraph;
use restitch_session::{ExitCode, LabOptions, LabRuns, LayoutChoice, SessionError, lab, write_result};

/// Compares layouts; prints the table and writes the pictures.
pub fn lab_command(options: Lab) -> Result<i32, SessionError> {
    let files = [options.json.as_deref(), options.svg.as_deref(), options.occupancy.as_deref()];
    check_outputs(&files)?;
    let mut progress = Progress::new();
    let layouts = if options.layouts.is_empty() { LayoutChoice::all() } else { options.layouts };
    let wanted = LabOptions {
        program: options.program,
        profile: options.profile,
        layouts,
        machine: options.machine,
        duplicate: options.duplicate == Switch::On,
        prefetch: options.prefetch == Switch::On,
        large_pages: options.large_pages == Switch::On,
        steps: options.steps.get(),
        seed: options.seed,
        records: options.records,
        runs: (!options.command.is_empty())
            .then(|| LabRuns { command: options.command, rounds: options.rounds.get() }),
    };
    let (comparison, seconds) = lab(&wanted, &mut progress)?;
    progress.finish();
    let failed = |why: Why| SessionError::Command { command: "lab".into(), why };
    let mut table = comparison.to_text();
    let took: Vec<String> = seconds.iter().map(|(name, s)| format!("{name} {s:.2}")).collect();
    table.push_str(&format!("\n{}", paragraph("seconds to lay out: ", &took.join(", "))));
    let to_stdout = options.json.as_deref().is_some_and(|p| p.as_os_str() == "-");
    if !to_stdout {
        print!("{table}");
    }
    let json = || comparison.to_json().map_err(|e| failed(e.into()));
    if to_stdout {
        print_json!(&json()?);
    }
    let json = options.json.filter(|_| !to_stdout).map(|path| (path, json()));
    let svg = options.svg.map(|path| (path, comparison_svg(&comparison).map_err(|e| failed(e.into()))));
    let occupancy =
        options.occupancy.map(|path| (path, occupancy_svg(&comparison).map_err(|e| failed(e.into()))));
    // One that cannot be written does not keep the others from being.
    let mut code = ExitCode::Done;
    for (path, text) in [json, svg, occupancy].into_iter().flatten() {
        if let Err(error) = text.and_then(|text| Ok(write_result(&path, text.as_bytes(), 0o644)?)) {
            eprintln!("restitch: {error}; the comparison itself is done");
            code = ExitCode::Failure;
        }
    }
    Ok(code.number())
}
