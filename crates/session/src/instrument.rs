//! `instrument`: a counting version of a whole program or library as a file, whose processes count in one
//! shared file; and the profile that comes of it.

use crate::files::{replaced, without_privileges, write_output};
use restitch_address::FileOffset;
use restitch_apply::Why;
use restitch_apply_elf::{CountsSource, place_counting, plan_counting};
use restitch_pipeline::ExitCode;
use restitch_pipeline::PipelineError;
use restitch_pipeline::Watcher;
use restitch_pipeline::analysis::Analyzed;
use restitch_pipeline::counting_version::{Counters, CountingDraft, missing_counters};
use restitch_pipeline::derivation;
use restitch_pipeline::disk::check_writable;
use restitch_pipeline::disk::read_file;
use restitch_pipeline::disk::write_result;
use restitch_pipeline::make::Place;
use restitch_pipeline::original::{load_changeable, load_original};
use restitch_pipeline::summaries::version_summary;
use restitch_pipeline::timings::Timings;
use restitch_processes::SessionError;
use restitch_profile::{CountsFile, Derived, ModuleProfile, ProfileFile, Weights, code_hash, derive};
use restitch_program::FuncId;
use restitch_report::{self as report, Outcome, RunResult};
use std::path::{Path, PathBuf};

/// What to instrument.
#[derive(Debug, Clone)]
pub struct InstrumentOptions {
    /// The program or shared object.
    pub program: PathBuf,
    /// The new file.
    pub output: PathBuf,
    /// The file that its processes will count in. It is made, or begun anew.
    pub counts: PathBuf,
}

/// Writes a counting copy of a program or library, and the file that it counts in.
///
/// # Errors
/// [`SessionError`]; an existing output file is as it was.
pub fn instrument(options: &InstrumentOptions, watcher: &mut dyn Watcher) -> Result<RunResult, SessionError> {
    let mut timings = Timings::new();
    check_writable(&options.output)?;
    check_writable(&options.counts)?;
    let absolute = |path: &Path| {
        std::path::absolute(path).map_err(|source| PipelineError::File {
            operation: "finding the absolute path of",
            path: path.into(),
            source,
        })
    };
    let (counts, original) = (absolute(&options.counts)?, absolute(&options.program)?);
    watcher.phase("analysing", None);
    let module = load_changeable(&options.program)?;
    let program = &module.program;
    timings.end("analysis");
    let refused = |why| PipelineError::of_elf(&options.program, why);

    watcher.phase("counting version", None);
    let functions: Vec<FuncId> = program.function_ids().collect();
    let draft = CountingDraft::of(program, &functions, Counters::wide(Weights::Static, true));
    if draft.counts_nothing() {
        let why =
            "none of its functions can be counted; `restitch analyze FILE` says what keeps them in place";
        return Err(SessionError::nothing_to_do(why));
    }
    timings.end("counter placement");
    let room = draft.room(program);
    let (area, start) =
        place_counting(&module.image, room.version, room.counters, &Default::default()).map_err(refused)?;
    let place = Place { number: 1, start, counters: area, bias: None };
    let version = draft.emit(&options.program, &module, place)?;
    timings.end("emission");
    let version = draft.check(&options.program, &module, version, None)?;
    timings.end("check");

    watcher.phase("writing", None);
    let CountingDraft { plan, votes, .. } = draft;
    let missing = missing_counters(&version);
    let id = build_id(&module);
    let mut file = CountsFile::new(program, &plan.counted, &missing, &id, &original.to_string_lossy());
    file.votes = votes;
    file.code = code_of(&module);
    let (offset, len) = file.layout();
    let source =
        CountsSource { path: counts, identity: file.identity(), counters: FileOffset::new(offset), len };
    let output = plan_counting(&module.image, &version, &source, &Default::default()).map_err(refused)?;
    let replaced = replaced(&options.program, &options.output);
    let privileges = without_privileges(&options.program, &options.output);
    // First the counts, so that the program is never there without them.
    write_result(&options.counts, &file.write(), 0o644)?;
    write_output(&output, &options.program, &options.output).map_err(|error| SessionError::Unwritten {
        error: Box::new(error),
        done: format!(
            "{}, which it would count in, is there, and is used when it can be written",
            options.counts.display()
        ),
    })?;
    timings.end("write");

    let mut result = RunResult::new("instrument", report::Target::file(&options.program));
    result.warnings.extend(replaced);
    result.warnings.extend(privileges);
    let mut entry = module.report(&options.program.display().to_string());
    entry.version = Some(version_summary(&version));
    entry.counting = Some(derivation::planned(&plan, missing.len()));
    result.modules.push(entry);
    timings.finish(&mut result);
    result.outcome = Outcome::Written;
    result.exit_code = ExitCode::Done.number();
    Ok(result)
}

pub(crate) fn build_id(module: &Analyzed) -> Vec<u8> {
    module.image.build_id().map(|b| b.as_bytes().to_vec()).unwrap_or_default()
}

/// A hash of the module's code.
fn code_of(module: &Analyzed) -> u64 {
    let code = module.image.segments().iter().filter(|s| s.executable);
    let bytes = |at, len: u64| module.image.read(at, len as usize).unwrap_or_default();
    code_hash(code.map(|s| (s.range.start, bytes(s.range.start, s.file_len))))
}

/// The profile that counts files hold, one module each (several of one module are added), and the report of
/// it.
///
/// # Errors
/// If one cannot be read or its program has changed.
pub(crate) fn from_counts(
    paths: &[PathBuf],
    watcher: &mut dyn Watcher,
) -> Result<(ProfileFile, RunResult), SessionError> {
    let mut timings = Timings::new();
    watcher.phase("reading counts", None);
    let mut file = ProfileFile { modules: Vec::new() };
    let mut result = RunResult::new("record", report::Target::file(Path::new("")));
    for path in paths {
        let bad = |why: Why| SessionError::from(PipelineError::BadFile { path: path.clone(), why });
        let bytes = read_file(path)?;
        let (counts, values) = CountsFile::read(&bytes).map_err(|e| bad(e.into()))?;
        let original = PathBuf::from(&counts.path);
        let module = load_original(&original)?;
        let (plan, known) = counts.known(&module.program, &values).map_err(|e| bad(e.into()))?;
        if counts.build_id != build_id(&module) {
            let why = format!("{} is another build than the one that was instrumented", counts.path);
            return Err(bad(why.into()));
        }
        if counts.code != code_of(&module) {
            let why = format!(
                "{} has the build id of what was instrumented, and other code: it was patched; instrument it again",
                counts.path
            );
            return Err(bad(why.into()));
        }
        let mut derived: Derived = derive(&module.program, &known);
        derived.profile.adopt_votes(&module.program, &counts.votes, &counts.read_votes(&bytes));
        let missing = counts.counted.iter().filter(|c| !c.1).count();
        let mut entry = module.report(&counts.path);
        entry.counting = Some(derivation::summary(&module.program, &plan, missing, &derived));
        result.modules.push(entry);
        if result.target.program.is_empty() {
            result.target.program = counts.path.clone();
        }
        let part = ModuleProfile::of(&module.program, &derived.profile, &counts.build_id, &counts.path);
        file = ProfileFile::merge(&[(&file, 1.0), (&ProfileFile { modules: vec![part] }, 1.0)]);
    }
    file.modules.retain(|m| !m.blocks.is_empty());
    if file.modules.is_empty() {
        let why =
            "the counts are all zero: run the instrumented program first (where it can open the counts file)";
        return Err(SessionError::nothing_to_do(why));
    }
    timings.end("counts to profile");
    derivation::finish(&mut result, "counts file", 0.0);
    timings.finish(&mut result);
    Ok((file, result))
}
