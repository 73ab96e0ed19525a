//! perf.data for profiles of counts: where modules would lie in a process, and a walk through each.

use super::code::{Code, Known};
use super::load::resolve;
use super::loaded::Loaded;
use super::options::WriteOptions;
use crate::error::PipelineError;
use restitch_address::{Avma, AvmaRange, FileOffset, LoadBias, PAGE, Svma};
use restitch_image::{Image, ImageKind};
use restitch_profile::Profile;
use restitch_profile_formats::synthesize::{Step, branches_in, walk};
use restitch_profile_formats::{PerfDataWriter, PerfMapping, PerfSample, TakenBranch};

/// The process that the file tells of.
const PID: u32 = 1000;
/// Where the kernel puts position-independent programs without randomization.
const PROGRAM: u64 = 0x5555_5555_4000;
/// Where libraries go: below, from here downwards.
const LIBRARIES: u64 = 0x7fff_f000_0000;
/// A place that no module covers: the rest of the world.
const ELSEWHERE: u64 = 0x7fff_f7f0_0000;
/// Nanoseconds that a branch takes in the file.
const BRANCH_TIME: u64 = 10;

/// Writes a file with one process that has run all modules whose code is known.
pub(super) fn perf_data(
    loaded: &Loaded,
    code: &mut Code,
    options: &WriteOptions,
    notes: &mut Vec<String>,
) -> Result<Vec<u8>, PipelineError> {
    let mut parts: Vec<(usize, Profile)> = Vec::new();
    let mut missing = None;
    for (index, module) in loaded.modules.iter().enumerate() {
        if code.excludes(module) {
            continue;
        }
        match code.of(module, &loaded.path) {
            Ok(known) => {
                let (profile, more) = resolve(module, known)?;
                notes.extend(more);
                parts.push((index, profile));
            }
            Err(error) => {
                notes.push(format!("left out: {error}"));
                missing = Some(error);
            }
        }
    }
    if let (true, Some(error)) = (parts.is_empty(), missing) {
        return Err(error);
    }
    let mut file = File::new(options);
    let mut all = 0u64;
    for (index, profile) in &parts {
        let known = code.of(&loaded.modules[*index], &loaded.path)?;
        all = all.saturating_add(branches_in(&known.analyzed.program, profile));
    }
    // The program first: tools take the process's name from it.
    let is_program = |known: &Known| known.analyzed.image.kind() != ImageKind::SharedObject;
    let mut order = Vec::new();
    for part in &parts {
        let program = is_program(code.of(&loaded.modules[part.0], &loaded.path)?);
        order.push((!program, part));
    }
    order.sort_by_key(|(library, part)| (*library, part.0));
    for (_, (index, profile)) in order {
        let known = code.of(&loaded.modules[*index], &loaded.path)?;
        let own = branches_in(&known.analyzed.program, profile);
        let share = own as f64 / all.max(1) as f64;
        let limit = ((options.records as f64 * share).ceil() as u64).max(1);
        file.module(known, profile, limit, options.seed);
    }
    notes.push(format!(
        "{} branch stacks of up to {} branches were synthesized from counts by a random walk (seed {})",
        file.samples,
        file.writer.depth(),
        options.seed
    ));
    Ok(file.writer.finish())
}

struct File {
    writer: PerfDataWriter,
    time: u64,
    samples: u64,
    next_library: u64,
    named: bool,
}

impl File {
    fn new(options: &WriteOptions) -> Self {
        let mut writer = PerfDataWriter::new(options.depth, options.depth as u64);
        writer.command_line(["restitch", "profile", "convert"].map(String::from));
        Self { writer, time: 1_000_000_000, samples: 0, next_library: LIBRARIES, named: false }
    }

    fn module(&mut self, known: &Known, profile: &Profile, limit: u64, seed: u64) {
        let bias = self.map(known);
        let program = &known.analyzed.program;
        let depth = self.writer.depth();
        let mut stack: Vec<TakenBranch> = Vec::with_capacity(depth);
        walk(program, profile, limit, seed, |step| {
            stack.push(taken(step, bias));
            if stack.len() == depth {
                self.sample(&mut stack);
            }
        });
        self.sample(&mut stack);
    }

    /// Writes the branches, oldest first, as one sample, and empties them.
    fn sample(&mut self, stack: &mut Vec<TakenBranch>) {
        let Some(newest) = stack.last() else { return };
        self.time += BRANCH_TIME * stack.len() as u64;
        // Control is where the newest branch went, or still at it if that is elsewhere.
        let ip = if newest.to == Avma::new(ELSEWHERE) { newest.from } else { newest.to };
        stack.reverse();
        let sample = PerfSample { pid: PID, tid: PID, time: self.time, ip, branches: stack };
        self.writer.sample(&sample);
        self.samples += 1;
        stack.clear();
    }

    /// Maps the executable segments as the loader would, and says by how much addresses are moved.
    fn map(&mut self, known: &Known) -> LoadBias {
        let image = &known.analyzed.image;
        let bias = self.bias(image);
        let build_id = known.build_id();
        let path = std::fs::canonicalize(&known.path).unwrap_or_else(|_| known.path.clone());
        let path = path.display().to_string();
        if !self.named {
            let name = path.rsplit('/').next().unwrap_or_default();
            self.writer.command(PID, PID, self.time, name, true);
            self.named = true;
        }
        for segment in image.segments().iter().filter(|s| s.executable) {
            let start = segment.range.start.align_down(PAGE);
            let ahead = segment.range.start.get() - start.get();
            let len = (segment.range.len() + ahead).next_multiple_of(PAGE);
            self.time += 1;
            self.writer.mapping(&PerfMapping {
                pid: PID,
                tid: PID,
                time: self.time,
                range: AvmaRange::new(bias.to_actual(start), len),
                offset: FileOffset::new(segment.file_offset.get() - ahead),
                path: &path,
                build_id: &build_id,
            });
        }
        bias
    }

    fn bias(&mut self, image: &Image) -> LoadBias {
        let span = image.span();
        let first = span.start.align_down(PAGE);
        let at = match image.kind() {
            ImageKind::Executable => return LoadBias::between(Svma::new(0), Avma::new(0)),
            ImageKind::Pie => PROGRAM,
            ImageKind::SharedObject => {
                let len = span.len().next_multiple_of(2 << 20) + (2 << 20);
                self.next_library -= len;
                self.next_library &= !((2 << 20) - 1);
                self.next_library
            }
        };
        LoadBias::between(first, Avma::new(at))
    }
}

fn taken(step: Step, bias: LoadBias) -> TakenBranch {
    let (from, to) = step;
    let place = |at: Option<Svma>| at.map_or(Avma::new(ELSEWHERE), |at| bias.to_actual(at));
    TakenBranch { from: place(from), to: place(to), mispredicted: Some(false) }
}
